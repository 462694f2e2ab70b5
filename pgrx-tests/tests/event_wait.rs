//! `CALL expiry.wait_for_events()`: long polling without LISTEN.

use std::thread;
use std::time::{Duration, Instant};

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, Db, Mode, Shop, db_error, wait_for_value, wait_until};

use super::events::assert_refused;
use super::tenants::Tenants;

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);

/// A session that waits; what it ends with.
struct Waiting {
    pid: i32,
    session: thread::JoinHandle<(Client, Result<(), pg_expiry_tests::postgres::Error>)>,
}

impl Waiting {
    fn start(mut client: Client, call: &str) -> Waiting {
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
        let call = call.to_owned();
        let session = thread::spawn(move || {
            let result = client.batch_execute(&call);
            (client, result)
        });
        Waiting { pid, session }
    }

    fn end(self) -> Client {
        let (client, result) = self.session.join().unwrap();
        result.unwrap();
        client
    }
}

/// Waits until that session sleeps, and holds nothing while it does.
fn wait_until_it_holds_nothing(observer: &mut Client, pid: i32) {
    let sql = format!(
        "SELECT state, wait_event, xact_start IS NULL, backend_xid IS NULL AND backend_xmin IS NULL,
                (SELECT count(*) FROM pg_locks l WHERE l.pid = a.pid)
         FROM pg_stat_activity a WHERE pid = {pid}"
    );
    wait_until("a session that waits and holds nothing", PATIENCE, || {
        let row = observer.query_one(&sql, &[]).unwrap();
        let state: (Option<String>, Option<String>) = (row.get(0), row.get(1));
        let (no_transaction, no_snapshot, locks): (bool, bool, i64) = (row.get(2), row.get(3), row.get(4));
        let sleeps = state == (Some("active".into()), Some("Extension".into()))
            || state.1.as_deref() == Some("PgExpiryMain");
        if sleeps && no_transaction && no_snapshot && locks == 0 { Ok(()) } else { Err((state, locks)) }
    });
}

#[test]
fn wait_returns_at_once_when_there_is_something() {
    let mut shop = Shop::new();
    shop.fill(1..=2, "now()");
    shop.settle();
    // Would be ended by the statement_timeout of all tests' sessions, in a minute.
    shop.client.batch_execute("CALL expiry.wait_for_events(0, '1 hour')").unwrap();
    shop.client.execute("CALL expiry.wait_for_events(1)", &[]).unwrap();
}

#[test]
fn wait_ends_when_it_happens() {
    let mut shop = Shop::new();
    shop.wait_for_index();
    let mut took = Duration::ZERO;
    for id in 1..=10 {
        let last: i64 = shop.value("SELECT coalesce(max(id), 0) FROM expiry.event");
        let waiting =
            Waiting::start(shop.db.connect(), &format!("CALL expiry.wait_for_events({last}, '1 hour')"));
        wait_until_it_holds_nothing(&mut shop.client, waiting.pid);
        let begun = Instant::now();
        shop.client
            .batch_execute(&format!(
                "INSERT INTO orders (id, pay_by) VALUES ({id}, now()); SELECT expiry.wake()"
            ))
            .unwrap();
        let mut client = waiting.end();
        took += begun.elapsed();
        let sql = format!("SELECT count(*) FROM expiry.events_after({last})");
        assert_eq!(client.query_one(&sql, &[]).unwrap().get::<_, i64>(0), 1);
    }
    // Woken, that is; a session that nobody wakes looks once a second, which would come to five seconds.
    assert!(took < 3 * SECOND, "{took:?}");
}

#[test]
fn wait_ends_at_its_timeout() {
    let mut shop = Shop::new();
    let begun = Instant::now();
    shop.client.batch_execute("CALL expiry.wait_for_events(0, '300 ms')").unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(300));
    shop.client.batch_execute("CALL expiry.wait_for_events(0, '0')").unwrap();
    // The session is as it was.
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.events_after(0)"), 0);
    shop.client.batch_execute("BEGIN; SELECT 1; COMMIT").unwrap();
}

#[test]
fn wait_refuses_what_makes_no_sense() {
    let mut shop = Shop::new();
    shop.client
        .batch_execute(
            "CREATE FUNCTION in_a_function() RETURNS void LANGUAGE plpgsql AS
                 $$ BEGIN CALL expiry.wait_for_events(0, '1 ms'); END $$;
             CREATE PROCEDURE in_a_procedure() LANGUAGE plpgsql AS
                 $$ BEGIN CALL expiry.wait_for_events(0, '1 ms'); END $$",
        )
        .unwrap();
    for (sql, sqlstate) in [
        ("CALL expiry.wait_for_events(-1)", "22023"),
        ("CALL expiry.wait_for_events(NULL)", "22023"),
        ("CALL expiry.wait_for_events(1)", "22023"),
        ("CALL expiry.wait_for_events(0, '-1 s')", "22023"),
        ("CALL expiry.wait_for_events(0, NULL)", "22023"),
        ("CALL expiry.wait_for_events(0, '61 min')", "22023"),
        ("CALL expiry.wait_for_events(0, '1000000 years')", "22023"),
        ("BEGIN; CALL expiry.wait_for_events(0, '1 ms')", "25001"),
        ("ROLLBACK; SELECT 1; CALL expiry.wait_for_events(0, '1 ms')", "25001"),
        ("DO $$ BEGIN CALL expiry.wait_for_events(0, '1 ms'); END $$", "25001"),
        ("SELECT in_a_function()", "25001"),
        ("CALL in_a_procedure()", "25001"),
        ("SELECT expiry.wait_for_events(0)", "42809"),
    ] {
        assert_refused(&mut shop.client, sql, sqlstate);
        shop.client.batch_execute("ROLLBACK").unwrap();
    }
    shop.client.batch_execute("CALL expiry.wait_for_events(0, '1 ms')").unwrap();
}

/// Neither lock nor snapshot: what waits for all transactions does not wait for it.
#[test]
fn wait_holds_nothing() {
    let mut shop = Shop::new();
    let waiting = Waiting::start(shop.db.connect(), "CALL expiry.wait_for_events(0, '1 hour')");
    wait_until_it_holds_nothing(&mut shop.client, waiting.pid);
    shop.client.batch_execute("CREATE INDEX CONCURRENTLY ON stock (qty)").unwrap();
    shop.client.batch_execute("BEGIN; LOCK TABLE expiry.consumer, expiry.event; ROLLBACK").unwrap();
    wait_until_it_holds_nothing(&mut shop.client, waiting.pid);

    // pg_cancel_backend ends the wait, and the session goes on.
    shop.client.execute("SELECT pg_cancel_backend($1)", &[&waiting.pid]).unwrap();
    let (mut client, result) = waiting.session.join().unwrap();
    assert_eq!(db_error(result).code().code(), "57014");
    client.batch_execute("CALL expiry.wait_for_events(0, '1 ms')").unwrap();
    client.batch_execute("SET statement_timeout = 200").unwrap();
    assert_refused(&mut client, "CALL expiry.wait_for_events(0, '1 hour')", "57014");

    client.batch_execute("RESET statement_timeout").unwrap();
    let waiting = Waiting::start(client, "CALL expiry.wait_for_events(0, '1 hour')");
    wait_until_it_holds_nothing(&mut shop.client, waiting.pid);
    shop.client.execute("SELECT pg_terminate_backend($1)", &[&waiting.pid]).unwrap();
    let (_, result) = waiting.session.join().unwrap();
    // 57P01, unless the client has seen the end of the connection first.
    assert!(result.is_err());
    let gone = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {}", waiting.pid);
    wait_for_value(&mut shop.client, &gone, 0_i64);
}

/// DROP EXTENSION does not wait for it; it ends with an error then, not with the server.
#[test]
fn wait_does_not_keep_the_extension() {
    let mut shop = Shop::new();
    let waiting = Waiting::start(shop.db.connect(), "CALL expiry.wait_for_events(0, '1 hour')");
    wait_until_it_holds_nothing(&mut shop.client, waiting.pid);
    shop.client.batch_execute("DROP EXTENSION pg_expiry").unwrap();
    let (mut client, result) = waiting.session.join().unwrap();
    assert_eq!(db_error(result).code().code(), "42P01");
    client.batch_execute("SELECT 1").unwrap();
}

/// An event that one may not see wakes one, and does not end the wait; one's own does.
#[test]
fn wait_is_for_what_one_may_see() {
    let mut tenants = Tenants::new(2, "");
    let waiting = Waiting::start(tenants.connect(1), "CALL expiry.wait_for_events(0, '1 hour')");
    tenants.fill(0, 1..=100, "now()");
    wait_until("events of another", PATIENCE, || {
        tenants.value::<i64>("SELECT count(*) FROM expiry.event") == 100
    });
    wait_until_it_holds_nothing(&mut tenants.superuser, waiting.pid);
    assert!(!waiting.session.is_finished());
    tenants.fill(1, 1..=1, "now()");
    let mut client = waiting.end();
    let seen = client.query_one("SELECT count(*) FROM expiry.events_after(0)", &[]).unwrap();
    assert_eq!(seen.get::<_, i64>(0), 1);
}

#[test]
fn wait_ends_with_the_server() {
    let cluster = Cluster::start();
    for end in [|cluster: &Cluster| cluster.stop(Mode::Fast), Cluster::kill9_postmaster] {
        let db = Db::on(cluster.endpoint());
        db.create_extension();
        let waiting = Waiting::start(db.connect(), "CALL expiry.wait_for_events(0, '1 hour')");
        wait_until_it_holds_nothing(&mut db.connect(), waiting.pid);
        // Waits for all processes of the server, this session among them.
        end(&cluster);
        assert!(waiting.session.join().unwrap().1.is_err());
        cluster.start_again();
    }
}

/// Without preload nobody wakes anybody; `CALL expiry.run()` makes the events.
#[test]
fn wait_works_without_preload() {
    let cluster = Cluster::builder().preload(false).start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    let waiting = Waiting::start(shop.db.connect(), "CALL expiry.wait_for_events(0, '1 hour')");
    wait_until_it_holds_nothing(&mut shop.client, waiting.pid);
    shop.fill(1..=1, "now()");
    shop.client.batch_execute("CALL expiry.run()").unwrap();
    waiting.end();
}

/// More than there are places (256): the others look by themselves. Those who were killed leave theirs.
#[test]
fn any_number_may_wait() {
    let many = Cluster::builder().setting("max_connections", "300").start();
    let mut shop = Shop::in_database(many.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop.wait_for_index();
    let waiting: Vec<Waiting> = (0..270)
        .map(|_| Waiting::start(shop.db.connect(), "CALL expiry.wait_for_events(0, '1 hour')"))
        .collect();
    let asleep = "SELECT count(*) FROM pg_stat_activity
                  WHERE query LIKE 'CALL expiry.wait%' AND state = 'active' AND xact_start IS NULL";
    wait_until("all to wait", 3 * PATIENCE, || {
        let seen: i64 = shop.value(asleep);
        if seen == 270 { Ok(()) } else { Err(seen) }
    });
    shop.fill(1..=1, "now()");
    for one in waiting {
        one.end();
    }
}
