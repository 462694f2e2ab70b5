//! Rows that wait: for an attempt, for a lock, for their turn.

use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, Shop, wait_for_value, wait_until};

use super::{PATIENCE, assert_says, wait_for_answer, why_not};
use crate::tenants::Tenants;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn failing_row_waits_for_its_next_attempt() {
    let mut shop = Shop::without_policy();
    shop.replace_cancel_order("RAISE 'no more \"of this\"'");
    shop.create_policy(", retry_delay => '1 h', max_attempts => 2");
    shop.due(1, SECOND);
    let said = wait_for_answer(&mut shop.client, "1", &["The row waits for attempt 2 of 2 at "]);
    assert_says(&said, &[", in ", ", after: no more \"of this\" (SQLSTATE P0001)."]);

    // The last attempt, at once.
    shop.client
        .batch_execute(
            "SELECT expiry.alter_policy('orders', max_attempts => 1); SELECT expiry.retry('orders')",
        )
        .unwrap();
    let said = wait_for_answer(
        &mut shop.client,
        "1",
        &["The row is quarantined: attempt 1 of 1 failed at ", "P0001"],
    );
    shop.replace_cancel_order("UPDATE orders SET status = 'cancelled' WHERE id = order_id");
    // What it says to do does it.
    let call = said.split_once("SELECT ").unwrap().1.split_once(" lets").unwrap().0;
    assert_eq!(shop.value::<i64>(&format!("SELECT {call}")), 1);
    wait_for_answer(&mut shop.client, "1", &["The row is not pending"]);
}

#[test]
fn declined_row_is_asked_again() {
    let mut shop = Shop::without_policy();
    shop.client
        .batch_execute("CREATE FUNCTION decline(id bigint) RETURNS boolean LANGUAGE sql AS 'SELECT false'")
        .unwrap();
    shop.client
        .batch_execute(
            "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                 cancel_function => 'decline', retry_delay => '2 s')",
        )
        .unwrap();
    shop.due(1, SECOND);
    wait_for_answer(
        &mut shop.client,
        "1",
        &[
            "The row is due, but the cancel function has declined it 2 times, and is asked again at ",
            ", in 1.",
        ],
    );
}

/// The cancel function waits for a stock row that somebody keeps.
#[test]
fn row_whose_function_meets_a_lock_is_tried_again() {
    let mut shop = Shop::new();
    shop.wait_for_index();
    let mut holder = shop.db.connect();
    holder.batch_execute("BEGIN; SELECT FROM stock FOR NO KEY UPDATE").unwrap();
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    shop.due(1, SECOND);
    wait_for_answer(
        &mut shop.client,
        "1",
        &[
            "The row is due, but the cancel function needs something that another transaction has locked, ",
            "tried again in ",
        ],
    );
    // While it waits, the worker has the row.
    wait_for_answer(
        &mut shop.client,
        "1",
        &["but it is locked by its worker (pid ", "), which is cancelling it"],
    );
    holder.batch_execute("ROLLBACK").unwrap();
    wait_for_answer(&mut shop.client, "1", &["The row is not pending"]);

    // A long call: who is in its way is told.
    shop.client.batch_execute("CREATE TABLE gate (); INSERT INTO gate DEFAULT VALUES").unwrap();
    shop.replace_cancel_order("SET LOCAL lock_timeout = 0; LOCK TABLE gate; UPDATE orders SET status = 'cancelled' WHERE id = order_id");
    holder.batch_execute("BEGIN; LOCK TABLE gate").unwrap();
    shop.due(2, SECOND);
    let by = format!("waits for a lock of pid {pid} (in its transaction for ");
    let parts = [
        "but it is locked by its worker (pid ",
        "which has been at one batch for ",
        &by,
        "query: BEGIN; LOCK TABLE gate).",
    ];
    wait_for_answer(&mut shop.client, "2", &parts);
    // And for a row that has not had its turn.
    shop.due(3, SECOND);
    let parts = ["The row is due since ", "but the worker (pid ", "has been at one batch for ", &by];
    wait_for_answer(&mut shop.client, "3", &parts);
    holder.batch_execute("COMMIT").unwrap();
    shop.settle();
}

/// A due row that `way` has locked before the worker could take it; `holder` keeps it.
fn lock(shop: &mut Shop, holder: &mut Client, id: i64, way: &str) {
    shop.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
    shop.due(id, SECOND);
    holder.batch_execute(&format!("BEGIN; {}", way.replace("$id", &id.to_string()))).unwrap();
    shop.client.batch_execute("SELECT expiry.start_workers()").unwrap();
}

/// All ways to hold a row.
#[test]
fn locked_row_is_told_with_its_holder() {
    let cluster = Cluster::builder().setting("max_prepared_transactions", "2").start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.client.batch_execute("CREATE TABLE payment (order_id bigint REFERENCES orders)").unwrap();
    shop.db.create_extension();
    shop.create_policy("");
    shop.wait_for_index();
    let mut holder = shop.db.connect();
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let held = format!("but it is locked by pid {pid} (in its transaction for ");
    let ways = [
        "SELECT FROM orders WHERE id = $id FOR UPDATE",
        "SELECT FROM orders WHERE id = $id FOR KEY SHARE",
        "INSERT INTO payment VALUES ($id)",
        "UPDATE orders SET sku = 1 WHERE id = $id",
        "DELETE FROM orders WHERE id = $id",
        "SAVEPOINT a; SELECT FROM orders WHERE id = $id FOR UPDATE; RELEASE a",
        "SELECT FROM orders WHERE id = $id FOR SHARE; SAVEPOINT a; UPDATE orders SET sku = 1 WHERE id = $id",
    ];
    let mut id = 0;
    for way in ways {
        id += 1;
        lock(&mut shop, &mut holder, id, way);
        let said = wait_for_answer(&mut shop.client, &id.to_string(), &["The row is due since ", &held]);
        assert_says(&said, &[", idle in transaction, query: BEGIN; "]);
        holder.batch_execute("ROLLBACK").unwrap();
        wait_for_answer(&mut shop.client, &id.to_string(), &["The row is not pending"]);
    }

    // Two who share it, and then one of them.
    let share = "SELECT FROM orders WHERE id = $id FOR KEY SHARE";
    id += 1;
    let mut second = shop.db.connect();
    let other: i32 = second.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    lock(&mut shop, &mut holder, id, share);
    second.batch_execute(&format!("BEGIN; {}", share.replace("$id", &id.to_string()))).unwrap();
    let both = [held.as_str(), "and pid ", &other.to_string()];
    wait_for_answer(&mut shop.client, &id.to_string(), &both);
    holder.batch_execute("COMMIT").unwrap();
    let said =
        wait_for_answer(&mut shop.client, &id.to_string(), &[&format!("it is locked by pid {other} (")]);
    assert!(!said.contains(&format!("pid {pid} ")), "{said}");
    // The session that asks.
    let said = why_not(&mut second, &id.to_string());
    assert_says(&said, &["but it is locked by this very transaction."]);
    second.batch_execute("COMMIT").unwrap();

    // Of no session.
    id += 1;
    lock(&mut shop, &mut holder, id, "SELECT FROM orders WHERE id = $id FOR UPDATE");
    holder.batch_execute("PREPARE TRANSACTION 'half way'").unwrap();
    wait_for_answer(
        &mut shop.client,
        &id.to_string(),
        &["it is locked by prepared transaction \"half way\", for "],
    );
    holder.batch_execute("ROLLBACK PREPARED 'half way'").unwrap();
    shop.settle();

    // The whole table.
    holder.batch_execute("BEGIN; LOCK TABLE orders").unwrap();
    let said = why_not(&mut shop.client, "1");
    assert_says(
        &said,
        &[&format!("The table public.orders is locked by pid {pid} ("), "query: BEGIN; LOCK TABLE orders)."],
    );
}

/// Who may not see another's query is told the process, no more.
#[test]
fn query_of_another_role_is_not_told() {
    let mut tenants = Tenants::new(1, "");
    let name = tenants.names[0].clone();
    tenants.superuser.batch_execute("SELECT expiry.stop_workers()").unwrap();
    tenants.fill(0, 1..=1, "now()");
    let mut holder = tenants.db.connect();
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    holder.batch_execute(&format!("BEGIN; SELECT 'secret' FROM {name} FOR UPDATE")).unwrap();
    tenants.superuser.batch_execute("SELECT expiry.start_workers()").unwrap();
    let mut client = tenants.connect(0);
    let ask = format!("SELECT expiry.why_not('{name}', '1')");
    let told = format!("but it is locked by pid {pid}.");
    wait_until(&told, PATIENCE, || {
        let said: String = client.query_one(&ask, &[]).unwrap().get(0);
        if said.ends_with(&told) { Ok(()) } else { Err(said) }
    });
}

#[test]
fn row_behind_a_backlog_is_told_how_long() {
    let mut shop = Shop::without_policy();
    shop.fill(1..=10_100, "now() - interval '1 hour' + id * interval '1 ms'");
    shop.create_policy(", max_rate => 20");
    shop.wait_for_worker();
    let cancelled = "SELECT count(*) FROM orders WHERE status = 'cancelled'";
    wait_until("a start", PATIENCE, || shop.value::<i64>(cancelled) > 0);
    let said = why_not(&mut shop.client, "10099");
    assert_says(
        &said,
        &[
            "The row is due since ",
            ", but 10000+ rows are due before it: at 20 a second that takes at least 8 min 20 s.",
        ],
    );
    let said = why_not(&mut shop.client, "1000");
    let rows: i64 = said.split_once(", but ").unwrap().1.split_once(" rows").unwrap().0.parse().unwrap();
    assert!(rows < 999 && rows > 100, "{said}");
    assert_says(&said, &["rows are due before it: at 20 a second that takes about ", " s."]);

    // As fast as it goes: how fast that is, the last events show.
    shop.replace_cancel_order(
        "PERFORM pg_sleep(0.02); UPDATE orders SET status = 'cancelled' WHERE id = order_id",
    );
    shop.client
        .batch_execute("SELECT expiry.alter_policy('orders', max_rate => 0, batch_size => 5)")
        .unwrap();
    let parts = ["The row is due since ", "rows are due before it: at ", " a second that takes about ", "."];
    let said = wait_for_answer(&mut shop.client, "5000", &parts);
    let rate = said.split_once("it: at ").unwrap().1.split_once(' ').unwrap().0;
    assert!((1..=50).contains(&rate.parse::<i64>().unwrap()), "{said}");
}

/// Due, and nothing is in the way.
#[test]
fn row_that_is_about_to_be_cancelled_says_so() {
    let mut shop = Shop::with_settings(&[("pg_expiry.lookahead", "60s")]);
    shop.create_policy("");
    shop.wait_for_index();
    shop.wait_for_worker();
    let mut id = 0;
    let mut client = shop.db.connect(); // knows the setting
    // It may look at any time, for reasons of its own, and then has taken it.
    wait_until("a row that is not cancelled yet", PATIENCE, || {
        id += 1;
        shop.due(id, SECOND);
        let said = why_not(&mut client, &id.to_string());
        let is_so = said.starts_with("The row is due since 1.")
            && said.contains(" s, and the worker (pid ")
            && said.ends_with(") takes it at its next look, within 1 min.");
        if is_so { Ok(()) } else { Err(said) }
    });
    shop.client.batch_execute("SELECT expiry.wake()").unwrap();
    wait_for_value(&mut shop.client, "SELECT count(*) FROM orders WHERE status = 'pending'", 0_i64);
}
