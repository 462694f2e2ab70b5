//! Policies that are right: what is stored, what stands in for what is not given, what can be changed.

use std::time::Duration;

use crate::status::wait_for_state;
use pg_expiry_tests::{Cluster, Db, Shop, wait_for_value};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn what_is_stored_is_qualified() {
    let mut shop = Shop::new();
    let row = shop
        .client
        .query_one(
            "SELECT relation::text, owner::text, deadline, predicate, cancel_function FROM expiry.policy",
            &[],
        )
        .unwrap();
    let stored: [&str; 5] = std::array::from_fn(|column| row.get(column));
    assert_eq!(
        stored,
        ["orders", "postgres", "pay_by", "(status = 'pending'::text)", "public.cancel_order(bigint)"]
    );
}

#[test]
fn same_table_name_in_two_schemas() {
    let mut shop = Shop::new();
    shop.client
        .batch_execute(
            "CREATE SCHEMA branch; CREATE TABLE branch.orders (LIKE orders INCLUDING ALL);
             CREATE FUNCTION branch.cancel_order(k bigint) RETURNS void LANGUAGE sql
                 AS $$ UPDATE branch.orders SET status = 'closed' WHERE id = k $$;
             INSERT INTO branch.orders VALUES (1, 1, 'pending', now() - interval '1 s')",
        )
        .unwrap();
    shop.due(1, SECOND);
    let name: String = shop.value(
        "SELECT expiry.create_policy('branch.orders', 'pay_by', $$status = 'pending'$$, 'branch.cancel_order')",
    );
    assert_eq!(name, "branch.orders");
    wait_for_value(&mut shop.client, "SELECT status FROM branch.orders", "closed".to_owned());
    wait_for_value(&mut shop.client, "SELECT status FROM orders", "cancelled".to_owned());
    wait_for_value(
        &mut shop.client,
        "SELECT count(*) FROM expiry.event WHERE policy = 'branch.orders'",
        1_i64,
    );
}

#[test]
fn odd_names_and_types() {
    let db = Db::with_extension();
    let mut client = db.connect();
    let long = "l".repeat(63);
    client
        .batch_execute(&format!(
            r#"CREATE SCHEMA "My Shop";
            CREATE TYPE "My Shop"."Sta'te" AS ENUM ('new "one"', 'gone');
            CREATE TABLE "My Shop"."Order;Items" ("ID" uuid, "select" text COLLATE "C", "%s" int, "Pay By" timestamptz,
                "{long}" "My Shop"."Sta'te" DEFAULT 'new "one"', PRIMARY KEY ("ID", "select", "%s"));
            CREATE FUNCTION "My Shop"."Can;cel"(o "My Shop"."Order;Items") RETURNS boolean LANGUAGE sql AS
                $$ UPDATE "My Shop"."Order;Items" SET "{long}" = 'gone' WHERE "ID" = o."ID"; SELECT true $$;
            INSERT INTO "My Shop"."Order;Items"
                SELECT gen_random_uuid(), E'quo"te''s\\ \n' || n, n, now() FROM generate_series(1, 3) n;
            SELECT expiry.create_policy('"My Shop"."Order;Items"', '"Pay By"', $$"{long}" = 'new "one"'$$,
                '"My Shop"."Can;cel"', name => 'the "policy''s" name')"#
        ))
        .unwrap();
    let gone = format!(r#"SELECT count(*) FROM "My Shop"."Order;Items" WHERE "{long}" = 'gone'"#);
    wait_for_value(&mut client, &gone, 3_i64);
    wait_for_value(
        &mut client,
        "SELECT count(*) FROM expiry.event WHERE policy = 'the \"policy''s\" name'",
        3_i64,
    );
    let index = "SELECT octet_length(c.relname) <= 63 AND c.relname LIKE '%\\_expiry\\_idx'
                 FROM expiry.binding b JOIN pg_class c ON c.oid = b.index";
    wait_for_value(&mut client, index, true);
}

#[test]
fn settings_stand_in_for_what_is_not_given() {
    let mut shop = Shop::without_policy();
    let name = shop.db.name.clone();
    shop.client
        .batch_execute(&format!(
            "ALTER DATABASE {name} SET pg_expiry.deadline = 'pay_by';
             ALTER DATABASE {name} SET pg_expiry.predicate = $$status = 'pending'$$;
             ALTER DATABASE {name} SET pg_expiry.cancel_function = 'cancel_order(bigint)'"
        ))
        .unwrap();
    let mut client = shop.db.connect();
    client
        .batch_execute("SET search_path = pg_catalog; SELECT expiry.create_policy('public.orders')")
        .unwrap();
    shop.due(1, SECOND);
    // The worker was started before the settings, or after them: then it sees them at once.
    wait_for_value(
        &mut shop.client,
        "SELECT deadline IS NULL AND predicate IS NULL FROM expiry.policy",
        true,
    );
    shop.settle();
    shop.assert_invariant();
}

/// Dropped and made again in one go, as a deployment does it, while the old one's index is still being dropped.
#[test]
fn name_is_taken_again_before_its_index_is_gone() {
    let mut shop = Shop::new();
    wait_for_value(&mut shop.client, "SELECT index IS NOT NULL FROM expiry.binding", true);
    shop.client
        .batch_execute(
            "SELECT expiry.stop_workers(); SELECT expiry.drop_policy('orders');
             CREATE TABLE bills (id bigint PRIMARY KEY, status text DEFAULT 'pending', pay_by timestamptz DEFAULT now());
             CREATE FUNCTION close_bill(k bigint) RETURNS void LANGUAGE sql AS
                 $$ UPDATE bills SET status = 'closed' WHERE id = k $$",
        )
        .unwrap();
    let mut other = shop.db.connect();
    other
        .batch_execute(
            "BEGIN; SELECT expiry.create_policy('bills', 'pay_by', $$status = 'pending'$$, 'close_bill(bigint)', name => 'orders')",
        )
        .unwrap();
    shop.client.batch_execute("SELECT expiry.start_workers()").unwrap();
    let waits = "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                     WHERE NOT l.granted AND a.backend_type LIKE 'pg_expiry%' AND a.datname = current_database())";
    wait_for_value(&mut shop.client, waits, true);
    other.batch_execute("COMMIT; INSERT INTO bills VALUES (1)").unwrap();
    wait_for_value(&mut shop.client, "SELECT status FROM bills", "closed".to_owned());
    wait_for_value(&mut shop.client, "SELECT state FROM expiry.status", "active".to_owned());
}

#[test]
fn without_preload_one_is_told() {
    let cluster = Cluster::builder().preload(false).start();
    let db = cluster.create_database();
    db.create_extension();
    let mut shop = Shop::in_database(db);
    let (mut client, notices) = shop.db.connect_with_notices("postgres");
    shop.due(1, SECOND);
    client
        .batch_execute(
            "SELECT expiry.create_policy('orders', 'pay_by', $$status = 'pending'$$, 'cancel_order(bigint)')",
        )
        .unwrap();
    let said = notices.take("NOTICE");
    assert!(said[0].message().contains("1 rows of public.orders are due already"), "{said:?}");
    assert!(said[1].message().contains("shared_preload_libraries"), "{said:?}");
    // The index that CALL run() builds goes with the policy, at the next run().
    let indexes = "SELECT count(*) FROM pg_indexes WHERE tablename = 'orders'";
    client.batch_execute("CALL expiry.run()").unwrap();
    wait_for_value(&mut client, indexes, 2_i64);
    client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
    client.batch_execute("CALL expiry.run()").unwrap();
    wait_for_value(&mut client, indexes, 1_i64);
    shop.assert_invariant();
}

#[test]
fn paused_and_resumed() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", paused => true");
    shop.due(1, SECOND);
    wait_for_state(&mut shop, "paused", "");
    shop.client.batch_execute("SELECT expiry.resume('orders')").unwrap();
    shop.settle();
    shop.client.batch_execute("SELECT expiry.pause()").unwrap();
    wait_for_state(&mut shop, "paused", "");
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', paused => false)").unwrap();
    shop.due(2, SECOND);
    shop.settle();
    shop.assert_invariant();
}

#[test]
fn altered_parameters_change_and_others_stay() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", timeout => '1 h', channel => 'one', batch_size => 5");
    shop.client
        .batch_execute("SELECT expiry.alter_policy('orders', channel => 'two', max_attempts => 3)")
        .unwrap();
    let row = shop
        .client
        .query_one(
            "SELECT concat_ws(' ', timeout, channel, batch_size, max_attempts, deadline, cancel_function) FROM expiry.policy",
            &[],
        )
        .unwrap();
    assert_eq!(row.get::<_, &str>(0), "01:00:00 two 5 3 pay_by public.cancel_order(bigint)");
    let mut listener = shop.db.listen("two");
    shop.due(1, 3601 * SECOND);
    listener.next(10 * SECOND);
    shop.due(2, SECOND);
    let row = shop.client.query_one("SELECT count(*) FROM expiry.preview('orders')", &[]).unwrap();
    assert_eq!(row.get::<_, i64>(0), 0, "not before its timeout");
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', timeout => '0')").unwrap();
    listener.next(10 * SECOND);
    shop.assert_invariant();
}

#[test]
fn no_session_setting_changes_what_a_predicate_says() {
    let mut shop = Shop::without_policy();
    let odd = "SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'SQL, DMY'; SET IntervalStyle = 'sql_standard';
               SET extra_float_digits = 0; SET quote_all_identifiers = on; SET bytea_output = 'escape';";
    shop.client
        .batch_execute(&format!(
            "{odd} SELECT expiry.create_policy('orders', 'pay_by', $$status = 'pending' AND pay_by > '01/02/2020'
                 AND pay_by - pay_by < interval '1 day -1 hour' AND sku::float8 > 0.1$$, 'cancel_order(bigint)')"
        ))
        .unwrap();
    let stored: String = shop.value("SELECT predicate || cancel_function FROM expiry.policy");
    for part in ["'2020-01-31 15:00:00+00'", "'P1DT-1H'", "(0.1)", "(status = "] {
        assert!(stored.contains(part), "{part} in {stored}");
    }
    shop.due(1, SECOND);
    shop.settle();
    shop.client.batch_execute("CALL expiry.run()").unwrap();
    shop.db.connect().batch_execute("CALL expiry.run()").unwrap();
    assert_eq!(shop.value::<String>("SELECT predicate || cancel_function FROM expiry.policy"), stored);
    shop.assert_invariant();
}
