//! `expiry.restored()`: the event of a row that was put back. How it is used is a recipe (docs/recipes.md).

use std::time::Duration;

use pg_expiry_tests::serde_json::json;
use pg_expiry_tests::{Cluster, Shop, wait_for_value, wait_until};

use super::events::assert_refused;
use super::tenants::Tenants;

const SECOND: Duration = Duration::from_secs(1);
const PUT_BACK: &str =
    "UPDATE orders SET status = 'pending', pay_by = now() + interval '1 h' WHERE status = 'cancelled'";

/// It is a record as all others, of the row as it is now, and comes with the caller's commit or not at all.
#[test]
fn restored_row_is_an_event_of_its_own_transaction() {
    let mut shop = Shop::without_policy();
    shop.create_policy(", timeout => '90 s'");
    let mut listener = shop.listen();
    // Beyond what JavaScript can count to.
    let id: i64 = 9_007_199_254_740_993;
    shop.fill(id..=id, "now() - interval '90 s'");
    let cancelled = listener.next(10 * SECOND);
    assert_eq!(cancelled.json["kind"], "cancelled");

    let restored = format!("SELECT expiry.restored('orders', '{{\"id\": {id}}}', '{{\"by\": 12.50}}')");
    shop.client.batch_execute(&format!("BEGIN; {PUT_BACK}; {restored}; ROLLBACK")).unwrap();
    assert_eq!(shop.status(id), "cancelled");
    shop.client.batch_execute(&format!("BEGIN; {PUT_BACK}; {restored}; SAVEPOINT s; {restored}")).unwrap();
    shop.client.batch_execute("ROLLBACK TO s; COMMIT").unwrap();
    let heard = listener.next(10 * SECOND).json;
    assert_eq!(heard["kind"], "restored");
    assert_eq!(heard["key"], json!({ "id": id.to_string() }));
    assert_eq!(heard["data"].to_string(), r#"{"by":12.5}"#);
    assert!(heard["lateness_ms"].as_f64().unwrap() < -3_500_000.0, "{heard}");
    let same = "SELECT count(*) FROM expiry.event JOIN orders ON pay_by = stated_deadline
                WHERE kind = 'restored' AND deadline = pay_by + interval '90 s' AND data::text = '{\"by\": 12.50}'";
    assert_eq!(shop.value::<i64>(same), 1);
    assert_eq!(shop.value::<i64>("SELECT max(id) FROM expiry.event"), heard["id"].as_i64().unwrap());
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), 2);
    // Its new time is kept, and is a time as any other.
    assert_eq!(shop.status(id), "pending");
    shop.client.batch_execute("UPDATE orders SET pay_by = now() - interval '90 s'").unwrap();
    assert_eq!(listener.next(10 * SECOND).json["kind"], "cancelled");
}

/// Ids stay in order, and an open transaction holds up nobody: its event is written when it commits.
#[test]
fn open_transaction_holds_up_no_other_events() {
    let mut shop = Shop::new();
    shop.fill(1..=1, "now()");
    shop.settle();
    let mut other = shop.db.connect();
    other.batch_execute("BEGIN; SELECT expiry.restored('orders', '{\"id\": \"1\"}')").unwrap();
    shop.fill(2..=2, "now()");
    shop.settle();
    other.batch_execute("COMMIT").unwrap();
    let kinds = "SELECT string_agg(kind || ' ' || (key->>'id'), ', ' ORDER BY id) FROM expiry.event";
    assert_eq!(shop.value::<String>(kinds), "cancelled 1, cancelled 2, restored 1");
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 0);
}

/// What a savepoint has asked for goes or stays with it, whatever is nested; and what a transaction that fails at
/// its commit has asked for is not there.
#[test]
fn savepoints_keep_or_take_back_their_events() {
    let mut shop = Shop::new();
    shop.fill(1..=6, "now() + interval '1 h'");
    shop.client
        .batch_execute(
            "CREATE TABLE late (x int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO late VALUES (1)",
        )
        .unwrap();
    let restored = |id: i64| format!("SELECT expiry.restored('orders', '{{\"id\": {id}}}')");
    let [one, two, three, four, five, six] = std::array::from_fn(|n| restored(n as i64 + 1));
    shop.client
        .batch_execute(&format!(
            "BEGIN; {one}; SAVEPOINT a; {two}; SAVEPOINT b; {three}; RELEASE b; SAVEPOINT c; {four}; ROLLBACK TO c; RELEASE a;
             SAVEPOINT d; SAVEPOINT e; {five}; RELEASE e; ROLLBACK TO d; {six}"
        ))
        .unwrap();
    shop.client.batch_execute("COMMIT").unwrap();
    let keys = "SELECT string_agg(key->>'id', ' ' ORDER BY id) FROM expiry.event";
    assert_eq!(shop.value::<String>(keys), "1 2 3 6");
    // It fails, and the next transaction of the session begins with nothing.
    assert_refused(&mut shop.client, &format!("BEGIN; {one}; INSERT INTO late VALUES (1); COMMIT"), "23505");
    shop.client.batch_execute("BEGIN; SELECT 1; COMMIT").unwrap();
    assert_eq!(shop.value::<String>(keys), "1 2 3 6");
    shop.client
        .batch_execute(&format!("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT 1; {two}; COMMIT"))
        .unwrap();
    shop.client
        .batch_execute(&format!(
            "DO $$ BEGIN PERFORM 1 / 0; EXCEPTION WHEN OTHERS THEN PERFORM ({four}); END $$"
        ))
        .unwrap();
    assert_eq!(shop.value::<String>(keys), "1 2 3 6 2 4");
}

/// Prepared, it would hold up all other events until somebody commits it.
#[test]
fn transaction_that_is_prepared_is_refused() {
    let cluster = Cluster::builder().setting("max_prepared_transactions", "2").start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop.fill(1..=1, "now() + interval '1 h'");
    let restored = "SELECT expiry.restored('orders', '{\"id\": 1}')";
    assert_refused(&mut shop.client, &format!("BEGIN; {restored}; PREPARE TRANSACTION 'p'"), "0A000");
    shop.client
        .batch_execute(&format!("BEGIN; SAVEPOINT s; {restored}; ROLLBACK TO s; PREPARE TRANSACTION 'p'"))
        .unwrap();
    shop.client.batch_execute("COMMIT PREPARED 'p'").unwrap();
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), 0);
    shop.client.batch_execute(restored).unwrap();
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), 1);
}

/// Whoever may not act for the owner may tell nothing in his name.
#[test]
fn strangers_and_nonsense_are_refused() {
    let mut tenants = Tenants::new(2, "");
    let name = tenants.names[0].clone();
    tenants.fill(0, 1..=1, "now()");
    wait_for_value(&mut tenants.superuser, "SELECT count(*) FROM expiry.event", 1_i64);
    let call = format!("SELECT expiry.restored('{name}', '{{\"id\": 1}}')");
    assert_refused(&mut tenants.connect(1), &call, "42501");
    let mut owner = tenants.connect(0);
    for (arguments, sqlstate) in [
        ("'nonesuch', '{\"id\": 1}'".to_owned(), "42704"),
        ("NULL, '{\"id\": 1}'".to_owned(), "22004"),
        (format!("'{name}', NULL"), "P0002"),
        (format!("'{name}', '{{\"id\": 2}}'"), "P0002"),
        (format!("'{name}', '{{\"no\": 1}}'"), "P0002"),
        (format!("'{name}', '[1]'"), "P0002"),
        (format!("'{name}', '{{\"id\": \"one\"}}'"), "22P02"),
    ] {
        assert_refused(&mut owner, &format!("SELECT expiry.restored({arguments})"), sqlstate);
    }
    assert_refused(&mut owner, &format!("BEGIN READ ONLY; {call}; COMMIT"), "25006");
    owner.batch_execute("ROLLBACK").unwrap();
    assert_eq!(tenants.value::<i64>("SELECT count(*) FROM expiry.event"), 1);
    owner.batch_execute(&call).unwrap();
    // It is the owner's event, whoever has called.
    tenants.superuser.batch_execute(&call).unwrap();
    let seen = owner.query("SELECT FROM expiry.event WHERE kind = 'restored'", &[]).unwrap();
    assert_eq!(seen.len(), 2);
    assert_eq!(tenants.connect(1).query("SELECT FROM expiry.event", &[]).unwrap().len(), 0);
}

/// No worker, no preload: it is the caller's transaction that writes.
#[test]
fn works_without_preload_and_without_notifications() {
    let cluster = Cluster::builder().preload(false).start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy(", notify => 'off', paused => true");
    shop.fill(1..=1, "now() + interval '1 h'");
    let mut listener = shop.listen();
    shop.client.batch_execute("SELECT expiry.restored('orders', '{\"id\": 1}')").unwrap();
    let event = "SELECT kind || ' ' || policy || ' ' || key::text FROM expiry.event";
    assert_eq!(shop.value::<String>(event), "restored orders {\"id\": \"1\"}");
    assert!(listener.drain().is_empty());
}

/// R39: with the notification queue filling up it is recorded, not notified, and listeners are told later.
#[test]
fn withheld_while_the_notification_queue_is_full() {
    let cluster = Cluster::builder().setting("pg_expiry_debug.queue_scale", "16384").start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop.fill(1..=1, "now() + interval '1 h'");
    shop.wait_for_index();
    let mut listener = shop.listen();
    let mut stuck = shop.db.connect();
    stuck.batch_execute("LISTEN order_expired").unwrap();
    stuck.batch_execute("BEGIN; SELECT 1").unwrap();
    let fill =
        "SELECT count(pg_notify('somebody_elses', repeat('x', 7000) || n)) FROM generate_series(1, 100) n";
    shop.client.batch_execute(fill).unwrap();
    shop.client.batch_execute("SELECT expiry.restored('orders', '{\"id\": 1}')").unwrap();
    let withheld = "SELECT withheld_notifications FROM expiry.progress";
    assert_eq!(shop.value::<i64>(withheld), 1);
    assert!(listener.drain().is_empty());
    stuck.batch_execute("ROLLBACK; UNLISTEN *").unwrap();
    let resync = wait_until("the resync", 60 * SECOND, || {
        // Somebody else's commit moves the queue on.
        shop.client.batch_execute("SELECT pg_notify('somebody_elses', repeat('x', 7000))").unwrap();
        listener.drain().pop()
    });
    assert_eq!(resync.json["kind"], "resync");
    let caught_up = format!("SELECT kind FROM expiry.events_after({})", resync.json["after"]);
    assert_eq!(shop.value::<String>(&caught_up), "restored");
}
