//! Rows that no trigger has ever seen are cancelled like all others: there is no side index to miss them.

use std::io::Write;

use pg_expiry_tests::{Shop, eventually};

/// R58 (a, b, e).
#[test]
fn rows_that_pass_no_trigger() {
    let mut shop = Shop::without_policy();
    // A trigger that would refuse them all, had it its say.
    shop.client
        .batch_execute(
            "INSERT INTO orders (id, pay_by) SELECT id, now() - interval '1 day' FROM generate_series(1, 5) id;
             CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$;
             CREATE TRIGGER refuse BEFORE INSERT ON orders EXECUTE FUNCTION refuse()",
        )
        .unwrap();
    shop.create_policy("");
    shop.wait_for_cancelled(5);
    shop.client.batch_execute("SET session_replication_role = replica").unwrap();
    shop.fill(11..=15, "now() - interval '1 day'");
    shop.fill(16..=20, "now() + interval '0.5 s'");
    shop.client.batch_execute("RESET session_replication_role").unwrap();
    shop.wait_for_cancelled(15);
    for which in ["USER", "ALL", "refuse"] {
        shop.client.batch_execute(&format!("ALTER TABLE orders DISABLE TRIGGER {which}")).unwrap();
        let first: i64 = shop.value("SELECT max(id) + 1 FROM orders");
        shop.fill(first..=first + 4, "now() - interval '1 day'");
        shop.client.batch_execute(&format!("ALTER TABLE orders ENABLE TRIGGER {which}")).unwrap();
    }
    shop.wait_for_cancelled(30);
    shop.assert_invariant();
}

/// R58 (f): nothing of before the TRUNCATE is left, also not of rows that had failed, and what is loaded
/// under the same keys is cancelled once more.
#[test]
fn truncated_and_loaded_again() {
    let mut shop = Shop::new();
    shop.replace_cancel_order(
        "IF (SELECT sku FROM orders WHERE id = order_id) = 2 THEN RAISE EXCEPTION 'not this one'; END IF;
         UPDATE stock SET qty = qty + 1 WHERE sku = 1;
         UPDATE orders SET status = 'cancelled' WHERE id = order_id",
    );
    shop.client.batch_execute("INSERT INTO stock VALUES (2, 0)").unwrap();
    shop.fill(1..=300, "now() - interval '1 s'");
    shop.client.batch_execute("INSERT INTO orders (id, sku, pay_by) VALUES (301, 2, now())").unwrap();
    shop.wait_for_cancelled(300);
    eventually(&mut shop.client, "SELECT count(*) FROM expiry.failure", 1_i64);
    for statement in
        ["TRUNCATE orders", "BEGIN; TRUNCATE orders; SELECT pg_sleep(0.2); COMMIT", "DELETE FROM orders"]
    {
        let before: i64 = shop.value("SELECT count(*) FROM expiry.event");
        shop.fill(1001..=1300, "now() + interval '0.3 s'");
        shop.client.batch_execute(statement).unwrap();
        // As a reload does it.
        let mut copy = shop.client.copy_in("COPY orders (id, pay_by) FROM STDIN").unwrap();
        for id in 1..=301 {
            writeln!(copy, "{id}\t2020-01-01 00:00:00+00").unwrap();
        }
        copy.finish().unwrap();
        // 301 may still wait for its second attempt.
        shop.client.batch_execute("SELECT expiry.retry('orders')").unwrap();
        shop.wait_for_cancelled(301);
        let events: i64 = shop.value("SELECT count(*) FROM expiry.event");
        assert!(events - before >= 301, "{statement}: {}", events - before);
        eventually(&mut shop.client, "SELECT count(*) FROM expiry.failure", 0_i64);
        let phantoms = "SELECT count(*) FROM expiry.event WHERE (key->>'id')::bigint > 1000
                        AND occurred_at < deadline";
        assert_eq!(shop.value::<i64>(phantoms), 0);
    }
    eventually(&mut shop.client, "SELECT state || ' ' || backlog FROM expiry.status", "active 0".to_owned());
}

/// R58 (c): a partition that was filled before it came, with and without an index of its own; and one
/// that goes takes its rows with it.
#[test]
fn partition_that_comes_filled() {
    let mut shop = Shop::without_policy();
    shop.client
        .batch_execute(
            "CREATE TABLE hold (id bigint, shop int, state text DEFAULT 'held', until timestamptz, PRIMARY KEY (id, shop))
                 PARTITION BY LIST (shop);
             CREATE TABLE hold_1 PARTITION OF hold FOR VALUES IN (1);
             CREATE FUNCTION release(h hold) RETURNS void LANGUAGE sql AS
                 $$ UPDATE hold SET state = 'free' WHERE (id, shop) = (h.id, h.shop) $$;
             SELECT expiry.create_policy('hold', 'until', $$state = 'held'$$, 'release(hold)');
             INSERT INTO hold VALUES (1, 1, 'held', now())",
        )
        .unwrap();
    let held = "SELECT count(*) FROM hold WHERE state = 'held'";
    eventually(&mut shop.client, held, 0_i64);
    for (shop_id, index) in [(2, ""), (3, "CREATE INDEX ON filled (until) WHERE state = 'held';")] {
        shop.client
            .batch_execute(&format!(
                "CREATE TABLE filled (LIKE hold); {index}
                 INSERT INTO filled SELECT id, {shop_id}, 'held', now() - interval '1 day' FROM generate_series(1, 500) id;
                 ALTER TABLE hold ATTACH PARTITION filled FOR VALUES IN ({shop_id});
                 ALTER TABLE filled RENAME TO hold_{shop_id}"
            ))
            .unwrap();
        eventually(&mut shop.client, held, 0_i64);
    }
    eventually(&mut shop.client, "SELECT count(DISTINCT key) FROM expiry.event", 1001_i64);
    shop.client
        .batch_execute(
            "BEGIN; ALTER TABLE hold DETACH PARTITION hold_2;
             UPDATE hold_2 SET state = 'held'; INSERT INTO hold VALUES (2, 1, 'held', now()); COMMIT",
        )
        .unwrap();
    eventually(&mut shop.client, held, 0_i64);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM hold_2 WHERE state = 'held'"), 500);
    eventually(&mut shop.client, "SELECT count(*) FROM expiry.event", 1002_i64);
}
