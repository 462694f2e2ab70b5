//! Ids of events become visible in order: whoever has read up to N has missed nothing below N.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{DebugPoint, wait_until};

use super::tenants::Tenants;

const PATIENCE: Duration = Duration::from_secs(30);

/// The worker of this tenant, at the debug point.
fn wait_for_held(tenants: &mut Tenants, tenant: usize) -> i32 {
    let sql = format!(
        "SELECT a.pid FROM pg_stat_activity a JOIN expiry.workers w USING (pid)
         WHERE a.{} AND w.owner = '{}'",
        DebugPoint::Recorded.sign(),
        tenants.names[tenant]
    );
    wait_until("a worker that has written its events", PATIENCE, || {
        tenants.superuser.query_opt(&sql, &[]).unwrap().map(|row| row.get(0))
    })
}

/// Somebody wants to draw ids and may not.
fn wait_for_waiter(tenants: &mut Tenants, tenant: usize) {
    let sql = format!(
        "SELECT count(*) FROM pg_locks l JOIN expiry.workers w USING (pid)
         WHERE NOT l.granted AND l.locktype = 'object' AND l.objid = 'expiry.event'::regclass AND w.owner = '{}'",
        tenants.names[tenant]
    );
    wait_until("a worker that waits for its turn to write events", PATIENCE, || {
        tenants.value::<i64>(&sql) == 1
    });
}

fn held(tenants: &Tenants) -> Client {
    let mut holder = tenants.db.connect();
    DebugPoint::Recorded.hold(&mut holder);
    holder
}

fn ids_of(tenants: &mut Tenants, tenant: usize) -> Vec<i64> {
    let sql = "SELECT id FROM expiry.event WHERE policy = $1 ORDER BY id";
    let rows = tenants.superuser.query(sql, &[&tenants.names[tenant]]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// The one who has drawn ids first has not committed: nobody else's event can be seen before.
#[test]
fn nobody_overtakes_who_has_written_his_events() {
    let mut tenants = Tenants::new(2, "");
    // The build of the second's would wait for the first's transaction, which is about to be held.
    let valid = "SELECT count(*) FROM expiry.status WHERE index_state = 'valid'";
    wait_until("both deadline indexes", PATIENCE, || tenants.value::<i64>(valid) == 2);
    let holder = held(&tenants);
    tenants.fill(0, 1..=3, "now()");
    wait_for_held(&mut tenants, 0);
    tenants.fill(1, 1..=3, "now()");
    wait_for_waiter(&mut tenants, 1);
    // His lock_timeout ends the wait; he comes back, and still is not let by.
    let gone = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'object'";
    wait_until("the wait to end", PATIENCE, || tenants.value::<i64>(gone) == 0);
    wait_for_waiter(&mut tenants, 1);
    assert_eq!(tenants.value::<i64>("SELECT count(*) FROM expiry.event"), 0);

    drop(holder);
    let all = "SELECT count(*) FROM expiry.event";
    wait_until("all events", PATIENCE, || tenants.value::<i64>(all) == 6);
    let (first, second) = (ids_of(&mut tenants, 0), ids_of(&mut tenants, 1));
    assert!(first.iter().max() < second.iter().min(), "{first:?} {second:?}");
}

/// The one who has drawn ids first never commits: others go on above his ids, and he comes back above theirs.
#[test]
fn ids_of_a_batch_that_was_rolled_back_are_never_filled_in() {
    let mut tenants = Tenants::new(2, "");
    let holder = held(&tenants);
    tenants.fill(0, 1..=3, "now()");
    let pid = wait_for_held(&mut tenants, 0);
    let lost: i64 = tenants.value("SELECT last_value FROM expiry.event_id_seq");
    assert_eq!(lost, 3);
    // What he has drawn is lost. He waits at the point again: no worker of his before that is let go.
    tenants.superuser.execute("SELECT pg_cancel_backend($1)", &[&pid]).unwrap();
    let next = "SELECT last_value FROM expiry.event_id_seq";
    wait_until("his next attempt", PATIENCE, || tenants.value::<i64>(next) > lost);
    tenants.fill(1, 1..=3, "now()");
    drop(holder);
    let all = "SELECT count(*) FROM expiry.event";
    wait_until("all events", PATIENCE, || tenants.value::<i64>(all) == 6);
    assert_eq!(tenants.value::<i64>("SELECT count(*) FROM expiry.event WHERE id <= 3"), 0);
}

/// Reads what is new again and again, as clients do; all ids in the order in which they were seen.
fn read_until(mut client: Client, ended: &AtomicBool) -> Vec<i64> {
    let mut seen = vec![0];
    loop {
        let is_last = ended.load(Ordering::SeqCst);
        let sql = "SELECT id FROM expiry.event WHERE id > $1 ORDER BY id";
        let rows = client.query(sql, &[seen.last().unwrap()]).unwrap();
        seen.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
        if is_last {
            return seen[1..].to_vec();
        }
    }
}

/// Three workers in small batches, workers that are interrupted in the middle, a long transaction elsewhere.
#[test]
fn readers_under_load_miss_nothing() {
    const EACH: i64 = 3000;
    let mut tenants = Tenants::new(3, ", batch_size => 7");
    tenants.superuser.batch_execute("CREATE TABLE elsewhere (n int)").unwrap();
    let mut long = tenants.db.connect();
    long.batch_execute("BEGIN; INSERT INTO elsewhere VALUES (1)").unwrap();
    for tenant in 0..3 {
        tenants.fill(tenant, 1..=EACH, "now() + id * interval '1 ms'");
    }
    let ended = AtomicBool::new(false);
    let seen: Vec<Vec<i64>> = thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let client = tenants.db.connect();
                scope.spawn(|| read_until(client, &ended))
            })
            .collect();
        let mut interrupted = 0_i64;
        wait_until("all events", 3 * PATIENCE, || {
            // Whoever is at it: his batch rolls back, with the ids that it has drawn.
            let sql = "SELECT count(*) FROM (SELECT pg_cancel_backend(pid) FROM expiry.workers
                           WHERE database = current_database() AND pid IS NOT NULL ORDER BY random() LIMIT 1) c";
            if tenants.value::<bool>("SELECT random() < 0.2") {
                interrupted += tenants.value::<i64>(sql);
            }
            tenants.value::<i64>("SELECT count(*) FROM expiry.event") == 3 * EACH
        });
        println!("{interrupted} interrupted");
        ended.store(true, Ordering::SeqCst);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    let rows = tenants.superuser.query("SELECT id FROM expiry.event ORDER BY id", &[]).unwrap();
    let all: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    for seen in seen {
        assert_eq!(seen.len(), all.len(), "events seen, and events that there are");
        assert!(seen == all, "an event became visible below one that had been read");
    }
    long.batch_execute("COMMIT").unwrap();
    let gaps = all.last().unwrap() - 3 * EACH;
    println!("{gaps} ids lost");
}
