//! What is pushed: channels, packets, payloads under the limit in bytes.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use pg_expiry_tests::postgres::types::Json;
use pg_expiry_tests::serde_json::{Value, json};
use pg_expiry_tests::{Cluster, Heard, Shop, wait_until};

use super::events::assert_refused;

const SECOND: Duration = Duration::from_secs(1);

/// Payloads have fewer bytes than this.
const LIMIT: usize = 8000;

/// The events of packets, as they came.
fn unpacked(heard: &[Heard]) -> Vec<Value> {
    heard.iter().flat_map(|packet| packet.json["events"].as_array().expect("a packet").clone()).collect()
}

#[test]
fn batch_mode_packs_as_many_as_fit() {
    const ROWS: i64 = 1000;
    let mut shop = Shop::without_policy();
    shop.create_policy(", notify => 'batch', paused => true");
    shop.fill(1..=ROWS, "now()");
    let mut listener = shop.listen();
    shop.client.batch_execute("SELECT expiry.resume('orders')").unwrap();
    let all = "SELECT count(*) FROM expiry.event";
    wait_until("the events", 30 * SECOND, || shop.value::<i64>(all) == ROWS);
    let heard = listener.drain();
    for packet in &heard {
        assert_eq!(packet.json["v"], 1);
        assert!(packet.payload.len() < LIMIT, "{} bytes", packet.payload.len());
        let fields: Vec<&String> = packet.json.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["events", "v"]);
    }
    // All events, each once, in the order of their ids; each as `row` would have sent it.
    let events = unpacked(&heard);
    let rows = shop.client.query("SELECT id, key FROM expiry.event ORDER BY id", &[]).unwrap();
    let recorded: Vec<(i64, Value)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let pushed: Vec<(i64, Value)> =
        events.iter().map(|event| (event["id"].as_i64().unwrap(), event["key"].clone())).collect();
    assert_eq!(pushed, recorded);
    assert!(events.iter().all(|event| event["v"] == 1 && event["kind"] == "cancelled"));
    // No packet has room for the first event of the next one of the same transaction.
    let transactions: i64 = shop.value("SELECT count(DISTINCT xmin::text) FROM expiry.event");
    let with_room = heard.windows(2).filter(|pair| {
        let next = pair[1].json["events"][0].to_string().len();
        pair[0].payload.len() + 1 + next < LIMIT - 100
    });
    let with_room = i64::try_from(with_room.count()).unwrap();
    assert!(with_room < transactions, "{with_room} packets with room in {transactions} transactions");
}

#[test]
fn channel_may_be_any_identifier() {
    let channels = ["Order Expired", "Bestellung \"abgelaufen\" é", "select", &"x".repeat(63)];
    for channel in channels {
        let mut shop = Shop::without_policy();
        let quoted = channel.replace('\'', "''");
        shop.create_policy(&format!(", channel => '{quoted}'"));
        let mut listener = shop.db.listen(channel);
        let mut folded = shop.db.listen(&channel.to_lowercase());
        shop.fill(1..=1, "now()");
        let heard = listener.next(10 * SECOND);
        assert_eq!(heard.channel, channel);
        assert_eq!(heard.json["key"], json!({ "id": "1" }));
        // Who listens to what an unquoted name means hears of it only if that is the same name.
        if channel.to_lowercase() == channel {
            assert_eq!(folded.next(10 * SECOND).payload, heard.payload);
        }
        assert!(folded.drain().is_empty(), "{channel}");
    }
}

#[test]
fn notify_off_records_and_pushes_nothing() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", notify => 'off'");
    let mut listener = shop.listen();
    shop.fill(1..=10, "now()");
    shop.settle();
    assert!(listener.drain().is_empty());
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.events_after(0)"), 10);
    assert_eq!(shop.value::<i64>("SELECT withheld_notifications FROM expiry.status"), 0);
    // On again: from then on, and nothing of before.
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', notify => 'row')").unwrap();
    shop.fill(11..=11, "now()");
    assert_eq!(listener.next(10 * SECOND).json["key"], json!({ "id": "11" }));
    assert!(listener.drain().is_empty());
}

/// R40: keys of any length and any characters; the limit is in bytes.
fn over_long_keys(notify: &str) {
    let mut shop = Shop::without_policy();
    shop.client
        .batch_execute(&format!(
            "CREATE TABLE texts (id text PRIMARY KEY, status text NOT NULL DEFAULT 'pending', pay_by timestamptz DEFAULT now());
             CREATE FUNCTION cancel_text(key text) RETURNS jsonb LANGUAGE sql AS
                 $$ UPDATE texts SET status = 'cancelled' WHERE id = key RETURNING jsonb_build_object('text', repeat('ü', 5000)) $$;
             SELECT expiry.create_policy('texts', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                 cancel_function => 'cancel_text(text)', notify => '{notify}')"
        ))
        .unwrap();
    let mut listener = shop.listen();
    // A btree's entry has at most 2704 bytes: longer keys can only be if they compress well.
    let keys = [
        "x".repeat(7990),
        "\u{10348}".repeat(2000),
        "\"quoted\"\n\t\r\u{1}\u{7f}\\ 'it''s' \u{2028}".to_owned(),
        "\u{1}".repeat(2600),
        String::from("short"),
    ];
    for key in &keys {
        shop.client.execute("INSERT INTO texts (id) VALUES ($1)", &[key]).unwrap();
    }
    let all = "SELECT count(*) FROM expiry.event";
    wait_until("the events", 10 * SECOND, || shop.value::<i64>(all) == 5);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM texts WHERE status = 'cancelled'"), 5);
    let heard = listener.drain();
    assert!(heard.iter().all(|heard| heard.payload.len() < LIMIT && heard.json != Value::Null));
    let events = match notify {
        "batch" => unpacked(&heard),
        _ => heard.iter().map(|heard| heard.json.clone()).collect(),
    };
    assert_eq!(events.len(), 5);
    for event in &events {
        // The id stands for what was left out.
        let sql = "SELECT key, data FROM expiry.events_after($1::bigint - 1, 1)";
        let row = shop.client.query_one(sql, &[&event["id"].as_i64()]).unwrap();
        let (Json(key), Json(data)): (Json<Value>, Json<Value>) = (row.get(0), row.get(1));
        let id = key["id"].as_str().unwrap();
        assert!(keys.iter().any(|known| known == id));
        assert_eq!(data["text"].as_str().unwrap().len(), 10_000);
        assert_eq!((&event["data"], &event["data_omitted"]), (&Value::Null, &json!(true)));
        if json!(id).to_string().len() > 7900 {
            assert_eq!((&event["key"], &event["key_omitted"]), (&Value::Null, &json!(true)));
        } else {
            assert_eq!((&event["key"], event.get("key_omitted")), (&key, None));
        }
    }
    let omitted = events.iter().filter(|event| event["key_omitted"] == true).count();
    assert_eq!(omitted, 3, "two long ones, and one that is long in JSON");
}

#[test]
fn over_long_key_is_left_out_and_the_id_stands_for_it() {
    over_long_keys("row");
}

#[test]
fn over_long_key_is_left_out_of_packets() {
    over_long_keys("batch");
}

/// A quarantined row is an event as well, with its key.
#[test]
fn quarantine_is_pushed_as_an_event() {
    let mut shop = Shop::without_policy();
    shop.replace_cancel_order("RAISE EXCEPTION 'no'");
    shop.create_policy(", max_attempts => 1");
    let mut listener = shop.listen();
    shop.fill(7..=7, "now()");
    let heard = listener.next(10 * SECOND);
    assert_eq!((&heard.json["kind"], &heard.json["key"]), (&json!("quarantined"), &json!({ "id": "7" })));
    assert_eq!((&heard.json["deadline"], &heard.json["lateness_ms"]), (&Value::Null, &Value::Null));
    let kind: String = shop.value("SELECT kind FROM expiry.events_after(0)");
    assert_eq!(kind, "quarantined");
}

/// R43 (a): nothing in the writers' path notifies, so their transactions can be prepared; calling wake() too.
#[test]
fn transactions_of_writers_can_be_prepared() {
    let cluster = Cluster::builder().setting("max_prepared_transactions", "5").start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop.wait_for_index();
    let mut listener = shop.listen();
    shop.client
        .batch_execute(
            "BEGIN; INSERT INTO orders (id, pay_by) VALUES (1, now()), (2, now() + interval '1 h'); SELECT expiry.wake();
             PREPARE TRANSACTION 'writer'",
        )
        .unwrap();
    // One that was locked by a prepared transaction is skipped, and the others are not.
    shop.fill(3..=4, "now() + interval '500 ms'");
    shop.client
        .batch_execute("BEGIN; SELECT FROM orders WHERE id = 3 FOR KEY SHARE; PREPARE TRANSACTION 'payment'")
        .unwrap();
    assert_eq!(listener.next(10 * SECOND).json["key"], json!({ "id": "4" }));
    assert_eq!(shop.status(3), "pending");
    shop.client.batch_execute("COMMIT PREPARED 'writer'").unwrap();
    assert_eq!(listener.next(10 * SECOND).json["key"], json!({ "id": "1" }));
    shop.client.batch_execute("ROLLBACK PREPARED 'payment'").unwrap();
    assert_eq!(listener.next(10 * SECOND).json["key"], json!({ "id": "3" }));
    shop.assert_invariant();
    assert!(listener.drain().is_empty());
}

/// R43 (b): notifying transactions commit one after the other, in the whole cluster. Writers need not wait for
/// that: they do not notify.
#[test]
fn writers_do_not_wait_for_notifiers() {
    let cluster = Cluster::start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop.wait_for_index();
    // A notifier in the middle of its commit: it waits for a standby that there is not.
    cluster.set("synchronous_standby_names", "*");
    let mut notifier = shop.db.connect();
    let pid: i32 = notifier.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let sql = "BEGIN; UPDATE stock SET qty = qty; NOTIFY somebody_elses; COMMIT";
    let notifier = thread::spawn(move || notifier.batch_execute(sql));
    let waits = format!("SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = {pid}");
    wait_until("the notifier", 10 * SECOND, || shop.value::<Option<bool>>(&waits) == Some(true));
    let mut writer = shop.db.connect();
    writer.batch_execute("SET synchronous_commit = off; SET lock_timeout = '100ms'").unwrap();
    assert_refused(&mut writer, "NOTIFY somebody_elses", "55P03");
    writer
        .batch_execute(
            "INSERT INTO orders (id, pay_by) VALUES (1, now() + interval '1 h'), (2, now());
             UPDATE orders SET status = 'paid' WHERE id = 1; SELECT expiry.wake()",
        )
        .unwrap();
    cluster.set("synchronous_standby_names", "");
    notifier.join().unwrap().unwrap();
    shop.wait_for_cancelled(1);
    shop.assert_invariant();
}

/// R44: the listener was away; the events after the last one that it has seen are all it has missed.
#[test]
fn listener_that_was_away_catches_up() {
    let mut shop = Shop::new();
    let mut listener = shop.listen();
    shop.fill(1..=3, "now()");
    let last_seen = listener.take(3, 10 * SECOND).last().unwrap().json["id"].as_i64().unwrap();
    let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                     WHERE query LIKE 'LISTEN%' AND datname = current_database()";
    assert_eq!(shop.value::<i64>(terminate), 1);
    shop.fill(11..=15, "now()");
    shop.wait_for_cancelled(8);
    let mut again = shop.listen();
    let rows = shop.client.query("SELECT id, key FROM expiry.events_after($1)", &[&last_seen]).unwrap();
    let keys: BTreeSet<String> =
        rows.iter().map(|row| row.get::<_, Value>(1)["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(rows.len(), 5);
    assert!(rows.is_sorted_by_key(|row| row.get::<_, i64>(0)));
    assert_eq!(keys, (11..=15).map(|id| id.to_string()).collect());
    assert!(again.drain().is_empty());
}

/// R44: LISTEN works after long idleness, though transaction ids have been frozen meanwhile.
#[test]
fn listen_works_after_events_that_nobody_heard() {
    const ROWS: i64 = 10_000;
    let mut shop = Shop::new();
    shop.fill(1..=ROWS, "now()");
    wait_until("the events", 60 * SECOND, || shop.value::<i64>("SELECT count(*) FROM expiry.event") == ROWS);
    shop.client.batch_execute("VACUUM (FREEZE)").unwrap();
    let mut listener = shop.listen();
    assert!(listener.drain().is_empty());
    shop.fill(ROWS + 1..=ROWS + 1, "now()");
    assert_eq!(listener.next(10 * SECOND).json["key"], json!({ "id": (ROWS + 1).to_string() }));
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.events_after(0, 1000000)"), ROWS + 1);
}
