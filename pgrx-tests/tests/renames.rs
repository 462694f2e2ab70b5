//! DDL on what a policy names: renames are followed, what is gone stops it, what comes back lets it go on.

use std::time::Duration;

use crate::status::wait_for_state;
use pg_expiry_tests::{Db, Shop, wait_for_value, wait_until};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn renames_are_followed() {
    let mut shop = Shop::new();
    shop.client
        .batch_execute(
            "BEGIN;
             ALTER TABLE orders RENAME COLUMN pay_by TO due_at;
             ALTER TABLE orders RENAME COLUMN status TO \"Sta;te\";
             ALTER TABLE orders RENAME TO bills;
             CREATE SCHEMA moved; ALTER TABLE bills SET SCHEMA moved;
             ALTER FUNCTION cancel_order(bigint) RENAME TO close_bill; ALTER FUNCTION close_bill(bigint) SET SCHEMA moved;
             CREATE OR REPLACE FUNCTION moved.close_bill(order_id bigint) RETURNS void LANGUAGE sql
                 AS $$ UPDATE moved.bills SET \"Sta;te\" = 'closed' WHERE id = order_id $$;
             INSERT INTO moved.bills (id, due_at) VALUES (1, now());
             COMMIT",
        )
        .unwrap();
    wait_for_value(&mut shop.client, "SELECT \"Sta;te\" FROM moved.bills", "closed".to_owned());
    let names = "SELECT concat_ws(' | ', relation, deadline, predicate, cancel_function) FROM expiry.policy";
    wait_for_value(
        &mut shop.client,
        names,
        "moved.bills | due_at | (\"Sta;te\" = 'pending'::text) | moved.close_bill(bigint)".to_owned(),
    );
}

#[test]
fn type_and_schema_of_a_predicate_are_followed() {
    let db = Db::with_extension();
    let mut client = db.connect();
    client
        .batch_execute(
            "CREATE SCHEMA old; CREATE TYPE old.state AS ENUM ('open', 'closed');
             CREATE TABLE old.t (id int PRIMARY KEY, s old.state DEFAULT 'open', at timestamptz);
             CREATE FUNCTION old.f(k int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN UPDATE t SET s = 'closed' WHERE id = k; END $$;
             SELECT expiry.create_policy('old.t', 'at', $$s = 'open'$$, 'old.f');
             ALTER SCHEMA old RENAME TO new; ALTER TYPE new.state RENAME TO \"St ate\";
             INSERT INTO new.t VALUES (1, 'open', now())",
        )
        .unwrap();
    wait_for_value(&mut client, "SELECT s::text FROM new.t", "closed".to_owned());
    let predicate = "SELECT predicate FROM expiry.policy".to_owned();
    wait_for_value(&mut client, &predicate, "(s = 'open'::new.\"St ate\")".to_owned());
}

#[test]
fn what_is_gone_stops_a_policy_and_what_comes_back_lets_it_go_on() {
    let mut shop = Shop::new();
    shop.due(1, SECOND);
    shop.settle();
    let body: String = shop.value("SELECT pg_get_functiondef('cancel_order(bigint)'::regprocedure)");

    shop.client.batch_execute("DROP FUNCTION cancel_order(bigint)").unwrap();
    wait_for_state(&mut shop, "stopped", "42883");
    shop.due(2, SECOND);
    shop.client.batch_execute(&body).unwrap();
    shop.settle();
    wait_for_state(&mut shop, "active", "");

    shop.client
        .batch_execute("ALTER TABLE orders RENAME status TO s; ALTER TABLE orders ADD status text")
        .unwrap();
    wait_for_state(&mut shop, "active", "");
    let predicate: String = shop.value("SELECT predicate FROM expiry.policy");
    wait_for_value(&mut shop.client, "SELECT predicate LIKE '(s = %' FROM expiry.policy", true);
    assert!(!predicate.is_empty());
    shop.client
        .batch_execute("ALTER TABLE orders DROP status; ALTER TABLE orders RENAME s TO status")
        .unwrap();

    shop.client.batch_execute("ALTER TABLE orders DROP COLUMN pay_by").unwrap();
    wait_for_state(&mut shop, "stopped", "42703");
    shop.client.batch_execute("ALTER TABLE orders ADD COLUMN pay_by timestamptz DEFAULT 'infinity'").unwrap();
    // Another column of that name is another column: the user says so.
    wait_for_state(&mut shop, "stopped", "42703");
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', deadline => 'pay_by')").unwrap();
    shop.due(3, SECOND);
    shop.settle();
    wait_for_state(&mut shop, "active", "");

    shop.client.batch_execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey").unwrap();
    wait_for_state(&mut shop, "stopped", "42P10");
    shop.client.batch_execute("ALTER TABLE orders ADD PRIMARY KEY (id)").unwrap();
    shop.due(4, SECOND);
    shop.settle();
    shop.assert_invariant();
}

#[test]
fn one_policy_in_trouble_does_not_hold_up_another() {
    let mut shop = Shop::new();
    shop.client
        .batch_execute(
            "CREATE TABLE c (id int PRIMARY KEY, at timestamptz, s text DEFAULT 'pending');
             CREATE TABLE a (LIKE c INCLUDING ALL);
             CREATE FUNCTION f(k int) RETURNS void LANGUAGE sql AS 'SELECT';
             SELECT expiry.create_policy(t, 'at', $$s = 'pending'$$, 'f') FROM (VALUES ('a'::regclass), ('c')) v(t);
             DROP TABLE a; ALTER TABLE c DROP COLUMN at",
        )
        .unwrap();
    let pid: i32 = wait_until("a worker", 10 * SECOND, || {
        shop.client
            .query_opt(
                "SELECT pid FROM expiry.workers WHERE database = current_database() AND pid IS NOT NULL",
                &[],
            )
            .unwrap()
            .map(|row| row.get(0))
    });
    wait_for_value(
        &mut shop.client,
        "SELECT string_agg(name || ' ' || state, ', ' ORDER BY name) FROM expiry.status",
        "c stopped, orders active".to_owned(),
    );
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.policy", 2_i64);
    shop.due(1, SECOND);
    shop.settle();
    shop.assert_invariant();
    wait_for_value(
        &mut shop.client,
        "SELECT pid FROM expiry.workers WHERE database = current_database()",
        pid,
    );
}

#[test]
fn table_that_becomes_a_partition_leaves_its_rows_to_the_parents_policy() {
    let mut shop = Shop::without_policy();
    shop.client
        .batch_execute(
            "CREATE TABLE bills (id int PRIMARY KEY, status text DEFAULT 'pending', pay_by timestamptz) PARTITION BY RANGE (id);
             CREATE TABLE bills_1 PARTITION OF bills FOR VALUES FROM (0) TO (10);
             CREATE TABLE bills_2 (LIKE bills INCLUDING ALL);
             CREATE FUNCTION close_bill(id int) RETURNS void LANGUAGE sql AS
                 $$ UPDATE bills b SET status = 'closed' WHERE b.id = $1 $$;
             SELECT expiry.create_policy(t, 'pay_by', $$status = 'pending'$$, 'close_bill(int)')
                 FROM (VALUES ('bills'::regclass), ('bills_2')) v(t);
             ALTER TABLE bills ATTACH PARTITION bills_2 FOR VALUES FROM (10) TO (20);
             INSERT INTO bills VALUES (1, 'pending', now()), (11, 'pending', now())",
        )
        .unwrap();
    wait_for_value(&mut shop.client, "SELECT count(*) FROM bills WHERE status = 'closed'", 2_i64);
    wait_for_value(
        &mut shop.client,
        "SELECT state || ' ' || substring(reason FROM 'SQLSTATE .....') FROM expiry.status WHERE name = 'bills_2'",
        "stopped SQLSTATE 55000".to_owned(),
    );
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.event WHERE policy = 'bills'", 2_i64);
}

#[test]
fn locked_table_holds_up_no_other_policy() {
    let mut shop = Shop::without_policy();
    let name = shop.db.name.clone();
    // A predicate out of the settings is parsed again at each load, for which the relation is opened.
    shop.client
        .batch_execute(&format!(
            "ALTER DATABASE {name} SET pg_expiry.predicate = $$status = 'pending'$$;
             CREATE TABLE bills (id int PRIMARY KEY, status text DEFAULT 'pending', pay_by timestamptz);
             CREATE FUNCTION close_bill(k int) RETURNS void LANGUAGE sql AS $$ UPDATE bills SET status = 'closed' WHERE id = k $$"
        ))
        .unwrap();
    let mut client = shop.db.connect();
    client
        .batch_execute("SELECT expiry.create_policy('bills', 'pay_by', cancel_function => 'close_bill')")
        .unwrap();
    shop.create_policy("");
    client.batch_execute("INSERT INTO bills VALUES (1, 'pending', now())").unwrap();
    wait_for_value(&mut client, "SELECT status FROM bills", "closed".to_owned());
    client.batch_execute("BEGIN; LOCK TABLE bills; INSERT INTO bills VALUES (2, 'pending', now())").unwrap();
    // Makes the worker load its policies again.
    shop.client.batch_execute("ALTER TABLE orders SET (fillfactor = 90)").unwrap();
    shop.due(1, SECOND);
    shop.settle();
    client.batch_execute("COMMIT").unwrap();
    wait_for_value(&mut client, "SELECT count(*) FROM bills WHERE status = 'closed'", 2_i64);
}
