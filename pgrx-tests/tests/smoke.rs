//! The main job, end to end: an order is cancelled at its deadline and the listener hears of it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use pg_expiry_tests::serde_json::{Value, json};
use pg_expiry_tests::{Shop, launcher_pid, rss_anon_kb, wait_until, worker_pids, workers};

const SECOND: Duration = Duration::from_secs(1);

/// RFC 3339 in UTC, with six digits of microseconds and nothing else.
fn instant(value: &Value) -> DateTime<Utc> {
    let text = value.as_str().unwrap_or_else(|| panic!("not a string: {value}"));
    let instant: DateTime<Utc> = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(instant.format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(), text);
    instant
}

#[test]
fn order_is_cancelled_at_its_deadline_and_the_listener_hears_of_it() {
    let mut shop = Shop::new();
    let mut listener = shop.listen();
    shop.order(42, 2 * SECOND);

    let heard = listener.next(10 * SECOND);
    assert_eq!(heard.channel, "order_expired");
    let fields: Vec<&str> = heard.json.as_object().unwrap().keys().map(String::as_str).collect();
    // In alphabetical order, as serde_json's map keeps them.
    assert_eq!(
        fields,
        ["data", "deadline", "id", "key", "kind", "lateness_ms", "occurred_at", "policy", "v"]
    );
    let event = &heard.json;
    assert_eq!(event["v"], 1);
    assert_eq!(event["policy"], "orders");
    assert_eq!(event["kind"], "cancelled");
    assert_eq!(event["key"], json!({ "id": "42" }));
    assert_eq!(event["data"], Value::Null);

    let pay_by: DateTime<Utc> = shop.value("SELECT pay_by FROM orders WHERE id = 42");
    assert_eq!(instant(&event["deadline"]), pay_by);
    let late = instant(&event["occurred_at"]) - pay_by;
    assert!(late >= chrono::Duration::zero() && late < chrono::Duration::seconds(2), "late by {late}");
    let lateness_ms = event["lateness_ms"].as_f64().expect("a number");
    assert!((lateness_ms - late.as_seconds_f64() * 1000.0).abs() < 1.0, "{lateness_ms} for {late}");

    // The durable record is the same one.
    let row = shop.client.query_one("SELECT * FROM expiry.event", &[]).unwrap();
    assert_eq!(row.get::<_, i64>("id"), event["id"]);
    assert_eq!(row.get::<_, String>("policy"), "orders");
    assert_eq!(row.get::<_, String>("kind"), "cancelled");
    assert_eq!(row.get::<_, Value>("key"), json!({ "id": "42" }));
    assert_eq!(row.get::<_, DateTime<Utc>>("deadline"), pay_by);
    assert_eq!(row.get::<_, DateTime<Utc>>("occurred_at"), instant(&event["occurred_at"]));

    assert_eq!(shop.status(42), "cancelled");
    shop.assert_invariant();
    assert!(listener.drain().is_empty());
}

#[test]
fn paid_order_is_left_alone() {
    let mut shop = Shop::new();
    let mut listener = shop.listen();
    shop.order(1, SECOND);
    shop.order(2, SECOND);
    assert!(shop.pay(1));
    assert_eq!(listener.next(10 * SECOND).json["key"], json!({ "id": "2" }));
    wait_until("order 2 to be cancelled", SECOND, || shop.status(2) == "cancelled");
    assert!(!shop.pay(2), "a payment after the deadline");
    assert_eq!(shop.status(1), "paid");
    shop.assert_invariant();
}

#[test]
fn backlog_is_worked_off() {
    let mut shop = Shop::without_policy();
    shop.fill(1..=1000, "now() - id * interval '1 ms'");
    let mut listener = shop.listen();
    shop.create_policy("");
    let heard = listener.take(1000, 20 * SECOND);
    let ids: std::collections::BTreeSet<_> = heard.iter().map(|heard| heard.json["id"].as_i64()).collect();
    assert_eq!(ids.len(), 1000);
    shop.settle();
    shop.assert_invariant();
    assert!(listener.drain().is_empty());
}

#[test]
fn worker_is_seen_by_the_server_and_by_the_extension() {
    let mut shop = Shop::new();
    let worker = wait_until("a worker that knows of its policy", 10 * SECOND, || {
        let all = workers(&mut shop.client);
        let ours = all.iter().find(|worker| worker.database == shop.db.name && worker.policies == 1);
        ours.cloned().ok_or(all)
    });
    assert_eq!(worker.owner, "postgres");
    let pid = worker.pid.expect("the pid of one that runs");
    assert_eq!(worker_pids(&mut shop.client), [pid]);
    assert!(launcher_pid(&mut shop.client).is_some());
    assert!(rss_anon_kb(pid) > 0);
}
