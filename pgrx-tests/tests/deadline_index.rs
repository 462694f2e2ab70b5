//! The deadline index: found, built beside running checkouts, repaired, and dropped if it is ours.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Shop, wait_for_value, wait_until};

const SECOND: Duration = Duration::from_secs(1);

fn indexes(client: &mut Client, table: &str) -> Vec<String> {
    let sql = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = $1::text::regclass AND NOT indisprimary ORDER BY 1";
    client.query(sql, &[&table]).unwrap().iter().map(|row| row.get(0)).collect()
}

fn wait_for_indexes(client: &mut Client, table: &str, expected: &[&str]) {
    wait_until(format_args!("indexes {expected:?}"), 10 * SECOND, || {
        let found = indexes(client, table);
        if found == expected { Ok(()) } else { Err(found) }
    });
}

const VALID: &str = "SELECT index_state FROM expiry.status";

#[test]
fn index_is_built_and_dropped_with_the_policy() {
    let mut shop = Shop::new();
    shop.due(1, SECOND);
    wait_for_value(&mut shop.client, VALID, "valid".to_owned());
    wait_for_indexes(&mut shop.client, "orders", &["orders_pay_by_expiry_idx"]);
    shop.settle();
    shop.client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
    wait_for_indexes(&mut shop.client, "orders", &[]);
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.binding", 0_i64);
}

#[test]
fn index_of_the_user_is_used_and_left_alone() {
    for index in [
        "(pay_by) WHERE status = 'pending'",
        "(pay_by DESC, id) WHERE 'pending' = status",
        "(pay_by) INCLUDE (sku) WHERE status IN ('pending')",
    ] {
        let mut shop = Shop::without_policy();
        shop.client.batch_execute(&format!("CREATE INDEX mine ON orders {index}")).unwrap();
        shop.create_policy("");
        shop.due(1, SECOND);
        shop.settle();
        assert_eq!(indexes(&mut shop.client, "orders"), ["mine"], "{index}");
        shop.client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
        assert_eq!(indexes(&mut shop.client, "orders"), ["mine"], "{index}");
    }
}

#[test]
fn index_that_does_not_fit_is_not_used() {
    for index in [
        "(pay_by)",
        "(pay_by) WHERE status = 'paid'",
        "(pay_by) WHERE status = 'pending' AND id > 0",
        "(id, pay_by) WHERE status = 'pending'",
        "(pay_by NULLS FIRST) WHERE status = 'pending'",
        "USING hash (pay_by) WHERE status = 'pending'",
        "((pay_by + interval '1 s' * 0)) WHERE status = 'pending'",
    ] {
        let mut shop = Shop::without_policy();
        if shop.client.batch_execute(&format!("CREATE INDEX mine ON orders {index}")).is_err() {
            continue; // not immutable
        }
        shop.create_policy("");
        wait_for_indexes(&mut shop.client, "orders", &["mine", "orders_pay_by_expiry_idx"]);
    }
}

#[test]
fn predicate_that_is_always_true_needs_no_partial_index() {
    let mut shop = Shop::without_policy();
    shop.client.batch_execute("CREATE INDEX mine ON orders (pay_by)").unwrap();
    shop.client
        .batch_execute(
            "SELECT expiry.create_policy('orders', 'pay_by', '1 = 1', 'cancel_order', paused => true)",
        )
        .unwrap();
    wait_for_value(&mut shop.client, VALID, "valid".to_owned());
}

#[test]
fn altered_policy_gets_another_index_and_loses_the_old_one() {
    let mut shop = Shop::new();
    wait_for_indexes(&mut shop.client, "orders", &["orders_pay_by_expiry_idx"]);
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', predicate => $$status <> 'paid' AND status <> 'cancelled'$$)").unwrap();
    shop.due(1, SECOND);
    shop.settle();
    wait_for_value(
        &mut shop.client,
        "SELECT indexdef LIKE '%paid%' FROM pg_indexes WHERE indexname LIKE 'orders_pay_by_expiry_idx%'",
        true,
    );
}

#[test]
fn invalid_index_is_rebuilt() {
    let mut shop = Shop::new();
    wait_for_value(&mut shop.client, VALID, "valid".to_owned());
    shop.client
        .batch_execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'orders_pay_by_expiry_idx'::regclass",
        )
        .unwrap();
    let before: u32 = shop.value("SELECT 'orders_pay_by_expiry_idx'::regclass::oid");
    // A plain UPDATE of the catalog tells nobody; this does.
    shop.client
        .batch_execute("COMMENT ON TABLE orders IS 'x'; ALTER TABLE orders SET (fillfactor = 99)")
        .unwrap();
    wait_until("another index", 10 * SECOND, || {
        let row = shop
            .client
            .query_opt("SELECT oid FROM pg_class WHERE relname = 'orders_pay_by_expiry_idx'", &[])
            .unwrap();
        row.is_some_and(|row| row.get::<_, u32>(0) != before)
    });
    wait_for_value(&mut shop.client, VALID, "valid".to_owned());
}

#[test]
fn interrupted_build_is_made_good() {
    let mut shop = Shop::without_policy();
    let mut old = shop.db.connect();
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM orders").unwrap();
    shop.create_policy("");
    shop.due(1, SECOND);
    let builder = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_expiry index builder' AND datname = current_database()";
    let pid: i32 = wait_until("a build that waits", 10 * SECOND, || {
        wait_for_value(&mut shop.client, VALID, "building".to_owned());
        shop.client.query_opt(builder, &[]).unwrap().map(|row| row.get(0))
    });
    wait_for_value(&mut shop.client, "SELECT state FROM expiry.status", "indexing".to_owned());
    shop.client.execute("SELECT pg_terminate_backend($1)", &[&pid]).unwrap();
    wait_until("another builder", 10 * SECOND, || {
        shop.client.query_opt(builder, &[]).unwrap().is_some_and(|row| row.get::<_, i32>(0) != pid)
    });
    assert_eq!(shop.status(1), "pending", "nothing is claimed without the index");
    old.batch_execute("COMMIT").unwrap();
    shop.settle();
    wait_for_indexes(&mut shop.client, "orders", &["orders_pay_by_expiry_idx"]);
    shop.assert_invariant();
}

#[test]
fn checkout_goes_on_while_an_index_is_built() {
    let mut shop = Shop::without_policy();
    shop.fill(1..=200_000, "now() + interval '1 day'");
    let done = AtomicBool::new(false);
    let (db, done) = (&shop.db, &done);
    let (longest, orders) = thread::scope(|scope| {
        let checkout = scope.spawn(move || {
            let mut client = db.connect();
            let insert = client
                .prepare("INSERT INTO orders (id, pay_by) VALUES ($1, now() + interval '1 day')")
                .unwrap();
            let (mut longest, mut id) = (Duration::ZERO, 1_000_000_i64);
            while !done.load(Ordering::Relaxed) {
                let begun = Instant::now();
                client.execute(&insert, &[&id]).unwrap();
                longest = longest.max(begun.elapsed());
                id += 1;
            }
            (longest, id - 1_000_000)
        });
        let mut client = db.connect();
        client
            .batch_execute(
                "SET lock_timeout = '1s';
                 SELECT expiry.create_policy('orders', 'pay_by', $$status = 'pending'$$, 'cancel_order(bigint)')",
            )
            .unwrap();
        wait_for_value(&mut client, VALID, "valid".to_owned());
        client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
        wait_for_indexes(&mut client, "orders", &[]);
        done.store(true, Ordering::Relaxed);
        checkout.join().unwrap()
    });
    assert!(orders > 100, "{orders} orders");
    assert!(longest < SECOND, "an insert took {longest:?}");
}

#[test]
fn partitioned_table_leaf_by_leaf() {
    let mut shop = Shop::without_policy();
    shop.client
        .batch_execute(
            "CREATE TABLE bills (id bigint, region int, status text DEFAULT 'pending', pay_by timestamptz, PRIMARY KEY (id, region))
                 PARTITION BY LIST (region);
             CREATE TABLE bills_1 PARTITION OF bills FOR VALUES IN (1);
             CREATE TABLE bills_2 (junk int, pay_by timestamptz, id bigint, status text, region int, PRIMARY KEY (id, region));
             ALTER TABLE bills_2 DROP COLUMN junk; ALTER TABLE bills ATTACH PARTITION bills_2 FOR VALUES IN (2);
             CREATE TABLE bills_3 PARTITION OF bills FOR VALUES IN (3, 4) PARTITION BY LIST (region);
             CREATE TABLE bills_33 PARTITION OF bills_3 FOR VALUES IN (3);
             CREATE TABLE \"bills 34\" PARTITION OF bills_3 FOR VALUES IN (4);
             CREATE INDEX mine ON bills_1 (pay_by) WHERE status = 'pending';
             INSERT INTO bills SELECT id, 1 + id % 4, 'pending', now() FROM generate_series(1, 400) id;
             CREATE FUNCTION close_bill(id bigint, region int) RETURNS void LANGUAGE sql AS
                 $$ UPDATE bills b SET status = 'closed' WHERE b.id = $1 AND b.region = $2 $$;
             SELECT expiry.create_policy('bills', 'pay_by', $$status = 'pending'$$, 'close_bill')",
        )
        .unwrap();
    wait_for_value(&mut shop.client, "SELECT count(*) FROM bills WHERE status = 'closed'", 400_i64);
    wait_for_indexes(&mut shop.client, "bills", &["bills_pay_by_expiry_idx"]);
    assert_eq!(indexes(&mut shop.client, "bills_1"), ["mine"], "attached, not built again");
    shop.client
        .batch_execute("CREATE TABLE bills_5 PARTITION OF bills FOR VALUES IN (5); INSERT INTO bills VALUES (1, 5, 'pending', now())")
        .unwrap();
    wait_for_value(&mut shop.client, "SELECT status FROM bills_5", "closed".to_owned());
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.event WHERE kind = 'cancelled'", 401_i64);
}

#[test]
fn two_policies_on_one_table_share_an_index() {
    let mut shop = Shop::new();
    wait_for_value(&mut shop.client, VALID, "valid".to_owned());
    shop.create_policy(", name => 'second', timeout => '1 hour'");
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.status WHERE index_state = 'valid'", 2_i64);
    assert_eq!(indexes(&mut shop.client, "orders"), ["orders_pay_by_expiry_idx"]);
    shop.client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
    let left = "SELECT b.index IS NOT NULL FROM expiry.binding b WHERE policy = 'second' AND NOT EXISTS (SELECT FROM expiry.binding WHERE policy = 'orders')";
    wait_for_value(&mut shop.client, left, true);
    assert_eq!(indexes(&mut shop.client, "orders"), ["orders_pay_by_expiry_idx"]);
    shop.client.batch_execute("SELECT expiry.drop_policy('second')").unwrap();
    wait_for_indexes(&mut shop.client, "orders", &[]);
}

#[test]
fn partitioned_table_with_an_open_checkout() {
    let mut shop = Shop::without_policy();
    shop.client
        .batch_execute(
            "CREATE TABLE bills (id bigint PRIMARY KEY, status text DEFAULT 'pending', pay_by timestamptz) PARTITION BY RANGE (id);
             CREATE TABLE bills_1 PARTITION OF bills FOR VALUES FROM (0) TO (1000000);
             CREATE TABLE bills_2 PARTITION OF bills FOR VALUES FROM (1000000) TO (2000000);
             CREATE FUNCTION close_bill(k bigint) RETURNS void LANGUAGE sql AS
                 $$ UPDATE bills SET status = 'closed' WHERE id = k $$",
        )
        .unwrap();
    let mut open = shop.db.connect();
    open.batch_execute("BEGIN; INSERT INTO bills VALUES (0)").unwrap();
    shop.client
        .batch_execute("SELECT expiry.create_policy('bills', 'pay_by', $$status = 'pending'$$, 'close_bill')")
        .unwrap();
    let mut longest = Duration::ZERO;
    let begun = Instant::now();
    for id in 1_000_000_i64.. {
        let insert = Instant::now();
        shop.client.execute("INSERT INTO bills VALUES ($1, 'paid', now())", &[&id]).unwrap();
        longest = longest.max(insert.elapsed());
        if begun.elapsed() > 2 * SECOND {
            break;
        }
    }
    assert!(longest < SECOND / 4, "an insert took {longest:?}");
    open.batch_execute("COMMIT").unwrap();
    wait_for_value(&mut shop.client, VALID, "valid".to_owned());
}
