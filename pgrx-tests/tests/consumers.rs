//! Named consumers: the server keeps their place.

use std::thread;
use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Shop, wait_until};

use super::events::assert_refused;
use super::tenants::Tenants;

const SECOND: Duration = Duration::from_secs(1);

fn fetch(client: &mut Client, consumer: &str, max_rows: i32) -> Vec<i64> {
    let sql = "SELECT id FROM expiry.fetch_events($1, $2)";
    let rows = client.query(sql, &[&consumer, &max_rows]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn ack(client: &mut Client, consumer: &str, id: i64) {
    client.execute("SELECT expiry.ack_events($1, $2)", &[&consumer, &id]).unwrap();
}

/// A shop with so many events, and their ids.
fn shop_with_events(count: i64) -> (Shop, Vec<i64>) {
    let mut shop = Shop::new();
    shop.fill(1..=count, "now()");
    wait_until("the events", 10 * SECOND, || shop.value::<i64>("SELECT count(*) FROM expiry.event") == count);
    let rows = shop.client.query("SELECT id FROM expiry.event ORDER BY id", &[]).unwrap();
    let ids = rows.iter().map(|row| row.get(0)).collect();
    (shop, ids)
}

#[test]
fn what_was_not_acknowledged_comes_again() {
    let (mut shop, ids) = shop_with_events(10);
    let client = &mut shop.client;
    client.batch_execute("SELECT expiry.subscribe('refunds', after => 0)").unwrap();
    assert_eq!(fetch(client, "refunds", 4), ids[..4]);
    assert_eq!(fetch(client, "refunds", 4), ids[..4]);
    ack(client, "refunds", ids[1]);
    assert_eq!(fetch(client, "refunds", 4), ids[2..6]);
    // A fetch that was rolled back, and an acknowledgement that was.
    client.batch_execute("BEGIN").unwrap();
    assert_eq!(fetch(client, "refunds", 100), ids[2..]);
    ack(client, "refunds", ids[9]);
    client.batch_execute("ROLLBACK").unwrap();
    assert_refused(client, &format!("SELECT expiry.ack_events('refunds', {})", ids[9]), "22023");
    assert_eq!(fetch(client, "refunds", 4), ids[2..6]);
    // Less than before does nothing.
    ack(client, "refunds", ids[5]);
    ack(client, "refunds", ids[0]);
    assert_eq!(fetch(client, "refunds", 100), ids[6..]);
    ack(client, "refunds", ids[9]);
    assert_eq!(fetch(client, "refunds", 100), [0; 0]);

    // Where one begins: behind all there is, or where one says.
    assert_eq!(client.query_one("SELECT expiry.subscribe('new')", &[]).unwrap().get::<_, i64>(0), ids[9]);
    assert_eq!(fetch(client, "new", 100), [0; 0]);
    let sql = format!("SELECT expiry.subscribe('third', 'orders', {})", ids[2]);
    client.batch_execute(&sql).unwrap();
    assert_eq!(fetch(client, "third", 100), ids[3..]);
    client.batch_execute("SELECT expiry.unsubscribe('third')").unwrap();
    assert_refused(client, "SELECT expiry.fetch_events('third')", "42704");
}

#[test]
fn consumers_refuse_what_makes_no_sense() {
    let (mut shop, ids) = shop_with_events(3);
    let client = &mut shop.client;
    client.batch_execute("SELECT expiry.subscribe('c', after => 0)").unwrap();
    let future = ids[2] + 1;
    for (sql, sqlstate) in [
        ("SELECT expiry.subscribe('c')", "42710"),
        ("SELECT expiry.subscribe(NULL)", "22023"),
        ("SELECT expiry.subscribe('')", "22023"),
        (&format!("SELECT expiry.subscribe('{}')", "x".repeat(64)), "22023"),
        ("SELECT expiry.subscribe('d', 'nonesuch')", "42704"),
        ("SELECT expiry.subscribe('d', after => -1)", "22023"),
        (&format!("SELECT expiry.subscribe('d', after => {future})"), "22023"),
        ("SELECT expiry.unsubscribe('d')", "42704"),
        ("SELECT * FROM expiry.fetch_events('d')", "42704"),
        ("SELECT * FROM expiry.fetch_events(NULL)", "22004"),
        ("SELECT * FROM expiry.fetch_events('c', -1)", "22023"),
        ("SELECT * FROM expiry.fetch_events('c', NULL)", "22023"),
        ("SELECT expiry.ack_events('d', 1)", "42704"),
        // Nothing was fetched yet.
        (&format!("SELECT expiry.ack_events('c', {})", ids[0]), "22023"),
    ] {
        assert_refused(client, sql, sqlstate);
    }
    assert_eq!(fetch(client, "c", 2), ids[..2]);
    assert_refused(client, &format!("SELECT expiry.ack_events('c', {})", ids[2]), "22023");
    ack(client, "c", ids[1]);
}

#[test]
fn consumers_of_others_are_unknown() {
    let mut tenants = Tenants::new(2, "");
    tenants.fill(0, 1..=2, "now()");
    tenants.fill(1, 1..=3, "now()");
    wait_until("the events", 10 * SECOND, || tenants.value::<i64>("SELECT count(*) FROM expiry.event") == 5);
    let (mut mine, mut other) = (tenants.connect(0), tenants.connect(1));
    mine.batch_execute("SELECT expiry.subscribe('mine', after => 0)").unwrap();
    for sql in [
        "SELECT * FROM expiry.fetch_events('mine')",
        "SELECT expiry.ack_events('mine', 0)",
        "SELECT expiry.unsubscribe('mine')",
        "SELECT expiry.consumer_position('mine')",
        "SELECT expiry.consumer_fetched('mine', 1)",
    ] {
        assert_refused(&mut other, sql, "42704");
    }
    assert!(other.query("SELECT FROM expiry.consumers", &[]).unwrap().is_empty());
    assert!(other.query("SELECT FROM expiry.consumer", &[]).unwrap().is_empty());
    assert_refused(&mut mine, "UPDATE expiry.consumer SET acked = 5", "42501");
    // The name is taken all the same: names are the database's.
    assert_refused(&mut other, "SELECT expiry.subscribe('mine')", "42710");
    assert_eq!(fetch(&mut mine, "mine", 10).len(), 2);
    let policy = tenants.names[0].clone();
    let all = tenants.superuser.query_one("SELECT owner::text, lag FROM expiry.consumers", &[]).unwrap();
    assert_eq!((all.get::<_, &str>(0), all.get::<_, &str>(1)), (policy.as_str(), "2"));
}

#[test]
fn view_shows_how_far_each_lags_behind() {
    let (mut shop, ids) = shop_with_events(3);
    let client = &mut shop.client;
    client.batch_execute("SELECT expiry.subscribe('c', 'orders', 0)").unwrap();
    let sql = "SELECT policy, acked, fetched, lag, oldest > interval '0' AND oldest < interval '1 min',
                      fetched_at IS NULL, acked_at IS NULL FROM expiry.consumers";
    let seen = |client: &mut Client| {
        let row = client.query_one(sql, &[]).unwrap();
        let lag: String = row.get(3);
        (
            row.get::<_, i64>(1),
            row.get::<_, i64>(2),
            lag,
            row.get::<_, Option<bool>>(4),
            row.get::<_, bool>(5),
            row.get::<_, bool>(6),
        )
    };
    assert_eq!(seen(client), (0, 0, "3".into(), Some(true), true, true));
    fetch(client, "c", 2);
    assert_eq!(seen(client), (0, ids[1], "3".into(), Some(true), false, true));
    ack(client, "c", ids[0]);
    assert_eq!(seen(client), (ids[0], ids[1], "2".into(), Some(true), false, false));
    fetch(client, "c", 2);
    ack(client, "c", ids[2]);
    assert_eq!(seen(client), (ids[2], ids[2], "0".into(), None, false, false));
}

/// The second waits until the first has committed, and goes on where the first has acknowledged.
#[test]
fn sessions_of_one_consumer_take_turns() {
    let (mut shop, ids) = shop_with_events(10);
    shop.client.batch_execute("SELECT expiry.subscribe('c', after => 0)").unwrap();
    let (mut first, mut second) = (shop.db.connect(), shop.db.connect());
    let pid: i32 = second.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    first.batch_execute("BEGIN").unwrap();
    assert_eq!(fetch(&mut first, "c", 4), ids[..4]);
    let other = thread::spawn(move || fetch(&mut second, "c", 4));
    let waits = format!("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {pid}");
    wait_until("the second to wait", 10 * SECOND, || shop.value::<Option<bool>>(&waits) == Some(true));
    ack(&mut first, "c", ids[3]);
    first.batch_execute("COMMIT").unwrap();
    assert_eq!(other.join().unwrap(), ids[4..8]);
}

/// Many sessions, each fetching and acknowledging in one transaction: each event is dealt with once.
#[test]
fn many_sessions_share_one_consumer() {
    let (mut shop, ids) = shop_with_events(500);
    shop.client
        .batch_execute(
            "SELECT expiry.subscribe('c', after => 0); CREATE TABLE done (n bigserial, event_id bigint)",
        )
        .unwrap();
    thread::scope(|scope| {
        for _ in 0..6 {
            let mut client = shop.db.connect();
            scope.spawn(move || {
                loop {
                    client.batch_execute("BEGIN").unwrap();
                    let some = fetch(&mut client, "c", 7);
                    for id in &some {
                        client.execute("INSERT INTO done (event_id) VALUES ($1)", &[id]).unwrap();
                    }
                    if let Some(last) = some.last() {
                        ack(&mut client, "c", *last);
                    }
                    client.batch_execute("COMMIT").unwrap();
                    if some.is_empty() {
                        break;
                    }
                }
            });
        }
    });
    let rows = shop.client.query("SELECT event_id FROM done ORDER BY n", &[]).unwrap();
    let done: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(done, ids);
}
