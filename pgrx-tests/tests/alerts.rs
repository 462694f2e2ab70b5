//! `pg_expiry.alert_channel`: each trouble is said once, and once that it is over.

use std::time::Duration;

use pg_expiry_tests::serde_json::{Value, json};
use pg_expiry_tests::{Cluster, Listener, Shop, db_error, wait_for_value, wait_until};

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);
const ALERTS: &str = "SELECT array_to_string(alerts, ' ') FROM expiry.progress WHERE policy = 'orders'";

/// A shop whose alerts go to the channel "Shop Alerts", and who listens there.
fn shop(alert_lag: &str, more: &str) -> (Shop, Listener) {
    let mut shop = Shop::with_settings(&[
        ("pg_expiry.alert_channel", "Shop Alerts"),
        ("pg_expiry.alert_lag", alert_lag),
    ]);
    let listener = shop.db.listen("Shop Alerts");
    shop.create_policy(more);
    (shop, listener)
}

/// The next alert, of this kind.
#[track_caller]
fn next(listener: &mut Listener, kind: &str) -> Value {
    let heard = listener.next(PATIENCE);
    assert_eq!(heard.json["kind"], kind, "{}", heard.payload);
    assert_eq!((&heard.json["v"], &heard.json["policy"]), (&json!(1), &json!("orders")), "{}", heard.payload);
    assert!(heard.json["at"].as_str().unwrap().ends_with('Z'), "{}", heard.payload);
    heard.json
}

/// A worker has looked at everything, twice, and had nothing to say.
fn assert_silence(shop: &mut Shop, listener: &mut Listener) {
    for _ in 0..2 {
        let pass = "SELECT max(last_pass)::text FROM expiry.workers WHERE database = current_database()";
        let before: Option<String> = shop.value(pass);
        wait_until("a pass", PATIENCE, || shop.value::<Option<String>>(pass) > before);
    }
    let heard: Vec<String> = listener.drain().into_iter().map(|heard| heard.payload).collect();
    assert_eq!(heard, [""; 0]);
}

#[test]
fn tripped_policy_is_said_once_also_by_the_next_worker() {
    let (mut shop, mut listener) = shop("1h", "");
    shop.replace_cancel_order("RAISE 'the \"printer\" burns'");
    shop.fill(1..=40, "now()");
    let alert = next(&mut listener, "tripped");
    assert_eq!(alert["database"], json!(shop.db.name));
    assert!(alert["reason"].as_str().unwrap().contains("the \"printer\" burns (SQLSTATE P0001)"), "{alert}");
    assert_eq!(alert.as_object().unwrap().len(), 6, "{alert}");

    for _ in 0..2 {
        let worker = shop.wait_for_worker();
        shop.client.batch_execute(&format!("SELECT pg_terminate_backend({worker})")).unwrap();
        let failed = "SELECT failed FROM expiry.status";
        let before: i64 = shop.value(failed);
        // The new one has to find out by itself.
        wait_until("the function to fail again", PATIENCE, || shop.value::<i64>(failed) >= before + 19);
        wait_for_value(&mut shop.client, "SELECT state FROM expiry.status", "tripped".to_owned());
        assert_silence(&mut shop, &mut listener);
    }
    assert_eq!(shop.value::<String>(ALERTS), "tripped");

    shop.replace_cancel_order("UPDATE orders SET status = 'cancelled' WHERE id = order_id");
    assert_eq!(next(&mut listener, "recovered")["from"], "tripped");
    shop.wait_for_cancelled(40);
    assert_silence(&mut shop, &mut listener);
    assert_eq!(shop.value::<String>(ALERTS), "");
}

/// Each row that is quarantined is said; that none is any more, once.
#[test]
fn quarantined_rows_are_said() {
    let (mut shop, mut listener) = shop("1h", ", max_attempts => 2, retry_delay => '50 ms'");
    shop.replace_cancel_order(
        "IF order_id < 3 THEN RAISE 'no'; END IF; UPDATE orders SET status = 'cancelled' WHERE id = order_id",
    );
    shop.fill(1..=10, "now()");
    let mut ids: Vec<Value> = Vec::new();
    for _ in 0..2 {
        let alert = next(&mut listener, "quarantined");
        assert_eq!((&alert["attempts"], &alert["reason"]), (&json!(2), &json!("no (SQLSTATE P0001)")));
        ids.push(alert["key"]["id"].clone());
    }
    ids.sort_by_key(Value::to_string);
    assert_eq!(ids, [json!("1"), json!("2")]);
    wait_for_value(&mut shop.client, ALERTS, "quarantined".to_owned());
    // One that is gone is not all that are gone, and a new worker says nothing again.
    shop.client.batch_execute("UPDATE orders SET status = 'paid' WHERE id = 1").unwrap();
    shop.restart_workers();
    shop.wait_for_worker();
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.failure", 1_i64);
    assert_silence(&mut shop, &mut listener);

    shop.replace_cancel_order("UPDATE orders SET status = 'cancelled' WHERE id = order_id");
    shop.client.batch_execute("SELECT expiry.retry('orders')").unwrap();
    assert_eq!(next(&mut listener, "recovered")["from"], "quarantined");
    assert_silence(&mut shop, &mut listener);
    assert_eq!(shop.value::<String>(ALERTS), "");
}

/// A row that is overdue because somebody keeps it; and rows that are nobody's fault.
#[test]
fn backlog_that_is_too_old_is_said() {
    let (mut shop, mut listener) = shop("2s", ", max_attempts => 1");
    shop.wait_for_index();
    // Neither deadlines without a date nor rows that had their chance make a lag.
    shop.replace_cancel_order(
        "IF order_id = 3 THEN RAISE 'no'; END IF; UPDATE orders SET status = 'cancelled' WHERE id = order_id",
    );
    shop.due(3, 100 * SECOND);
    next(&mut listener, "quarantined");
    wait_for_value(&mut shop.client, ALERTS, "quarantined".to_owned());
    let mut holder = shop.db.connect();
    shop.order(1, SECOND);
    holder.batch_execute("BEGIN; SELECT FROM orders WHERE id = 1 FOR UPDATE").unwrap();
    assert_eq!(shop.status(1), "pending", "the machine is too slow for this test");
    let alert = next(&mut listener, "lagging");
    let overdue = alert["overdue_ms"].as_i64().unwrap();
    assert!((2000..20_000).contains(&overdue), "{alert}");
    let deadline: String = shop.value(
        "SELECT to_char(pay_by AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM orders WHERE id = 1",
    );
    assert_eq!(alert["oldest_deadline"], json!(deadline));
    shop.restart_workers();
    shop.wait_for_worker();
    assert_silence(&mut shop, &mut listener);
    holder.batch_execute("COMMIT").unwrap();
    assert_eq!(next(&mut listener, "recovered")["from"], "lagging");
    assert_silence(&mut shop, &mut listener);
}

/// A row that comes with an old deadline, after the worker has looked for such, is not the worker's delay.
#[test]
fn row_that_comes_overdue_is_no_lag() {
    let settings = [
        ("pg_expiry.alert_channel", "Shop Alerts"),
        ("pg_expiry.alert_lag", "1s"),
        ("pg_expiry.lookahead", "3s"),
    ];
    let mut shop = Shop::with_settings(&settings);
    let mut listener = shop.db.listen("Shop Alerts");
    // It comes in the transaction of a batch: right after that the worker looks at how old the backlog is.
    shop.replace_cancel_order(
        "UPDATE orders SET status = 'cancelled' WHERE id = order_id;
         IF order_id = 1 THEN INSERT INTO orders (id, pay_by) VALUES (2, now() - interval '1 h'); END IF",
    );
    shop.create_policy("");
    shop.wait_for_index();
    shop.order(1, 2 * SECOND);
    shop.wait_for_cancelled(2);
    assert_silence(&mut shop, &mut listener);
    assert_eq!(shop.value::<String>(ALERTS), "");
}

/// The backlog of a drain is as old as its oldest row.
#[test]
fn drain_lags_until_it_is_done() {
    let (mut shop, mut listener) = shop("10s", ", max_rate => 40");
    shop.wait_for_index();
    shop.client.batch_execute("SELECT expiry.pause()").unwrap();
    shop.fill(1..=300, "now() - interval '1 min'");
    shop.client.batch_execute("SELECT expiry.resume()").unwrap();
    next(&mut listener, "lagging");
    assert_eq!(next(&mut listener, "recovered")["from"], "lagging");
    let left: i64 = shop.value("SELECT count(*) FROM orders WHERE status = 'pending'");
    assert_eq!(left, 0);
    assert_silence(&mut shop, &mut listener);
}

#[test]
fn stopped_policy_is_said() {
    let (mut shop, mut listener) = shop("1h", "");
    shop.wait_for_index();
    shop.client.batch_execute("ALTER TABLE orders DROP COLUMN pay_by CASCADE").unwrap();
    let alert = next(&mut listener, "stopped");
    assert!(alert["reason"].as_str().unwrap().contains("42703"), "{alert}");
    assert_silence(&mut shop, &mut listener);
    shop.client
        .batch_execute("ALTER TABLE orders ADD pay_by timestamptz; SELECT expiry.alter_policy('orders', deadline => 'pay_by')")
        .unwrap();
    assert_eq!(next(&mut listener, "recovered")["from"], "stopped");
    assert_silence(&mut shop, &mut listener);
}

#[test]
fn nothing_is_said_without_a_channel() {
    let mut shop = Shop::with_settings(&[("pg_expiry.alert_lag", "1s")]);
    let mut listeners = ["pg_expiry", "order_expired", "Shop Alerts"].map(|channel| shop.db.listen(channel));
    shop.replace_cancel_order("RAISE 'broken'");
    shop.create_policy(", notify => 'off'");
    shop.fill(1..=40, "now() - interval '1 h'");
    wait_for_value(&mut shop.client, "SELECT state FROM expiry.status", "tripped".to_owned());
    for listener in &mut listeners {
        assert_silence(&mut shop, listener);
    }
    assert_eq!(shop.value::<String>(ALERTS), "");
}

/// One that NOTIFY would refuse is refused, and a change is followed.
#[test]
fn channel_is_a_name() {
    let cluster = Cluster::start();
    let long = "x".repeat(64);
    let mut client = cluster.connect("postgres");
    let error =
        db_error(client.batch_execute(&format!("ALTER SYSTEM SET pg_expiry.alert_channel = '{long}'")));
    assert_eq!(error.code().code(), "22023");
    cluster.set("pg_expiry.alert_channel", &long[..63]);
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    let mut listeners = [shop.db.listen(&long[..63]), shop.db.listen("second")];
    shop.replace_cancel_order("RAISE 'no'");
    shop.create_policy(", max_attempts => 1");
    shop.due(1, SECOND);
    next(&mut listeners[0], "quarantined");
    cluster.set("pg_expiry.alert_channel", "second");
    wait_until("the worker to follow", PATIENCE, || {
        let id = shop.value::<i64>("SELECT max(id) FROM orders") + 1;
        shop.due(id, SECOND);
        listeners[1].try_next(SECOND)
    });
}

/// Somebody keeps the notification queue from being emptied: what is wrong is said when it is empty again.
#[test]
fn alert_waits_for_the_queue() {
    // 256 KB of the queue's 8 GB count as half: see `pg/debug_point.rs`.
    let cluster = Cluster::builder()
        .setting("pg_expiry_debug.queue_scale", "16384")
        .setting("pg_expiry.alert_channel", "Shop Alerts")
        .start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop.wait_for_index();
    let mut listener = shop.db.listen("Shop Alerts");
    let mut stuck = shop.db.connect();
    stuck.batch_execute("LISTEN spam").unwrap();
    stuck.batch_execute("BEGIN; SELECT 1").unwrap();
    let spam = "SELECT pg_notify('spam', n || repeat('x', 7000)) FROM generate_series(1, 60) n";
    shop.client.batch_execute(spam).unwrap();
    shop.replace_cancel_order("RAISE 'no'");
    shop.fill(1..=40, "now()");
    wait_for_value(&mut shop.client, "SELECT state FROM expiry.status", "tripped".to_owned());
    assert_silence(&mut shop, &mut listener);
    assert_eq!(shop.value::<String>(ALERTS), "");
    stuck.batch_execute("ROLLBACK; UNLISTEN *").unwrap();
    next(&mut listener, "tripped");
    assert_silence(&mut shop, &mut listener);
}
