//! What running workers follow: calls, settings; and that they do nothing when there is nothing to do.

use std::fs;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, launcher_pid, wait_for_value, wait_until, worker_pids, workers};

use super::common::{SECOND, SOON, other_worker, shop_on, wait_for_index, wait_for_rest, worker};

#[test]
fn wake_makes_the_worker_look_at_the_commit() {
    let cluster = Cluster::builder().setting("pg_expiry.lookahead", "60s").start();
    let mut shop = shop_on(&cluster);
    let last_pass = |client: &mut Client| workers(client)[0].last_pass;
    wait_for_rest(&mut shop);
    let before = last_pass(&mut shop.client);
    shop.client.batch_execute("BEGIN; SELECT expiry.wake(); ROLLBACK").unwrap();
    shop.order(1, SECOND / 5);
    assert_eq!(last_pass(&mut shop.client), before);
    shop.client.batch_execute("SELECT expiry.wake()").unwrap();
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.event", 1_i64);
    let late: f64 = shop.value("SELECT extract(epoch FROM lateness)::float8 FROM expiry.event");
    assert!(late < 1.0, "{late} s");
}

#[test]
fn reloaded_settings_are_followed() {
    let cluster = Cluster::builder().setting("pg_expiry.lookahead", "60s").start();
    let mut shop = shop_on(&cluster);
    wait_for_rest(&mut shop);
    let pid = worker(&mut shop.client);
    cluster.set("pg_expiry.lookahead", "50ms");
    let often = "SELECT last_pass > clock_timestamp() - interval '0.2 s' FROM expiry.workers";
    wait_for_value(&mut shop.client, often, true);
    // A worker that is not wanted here any more leaves, and comes back.
    cluster.set("pg_expiry.databases", "elsewhere, \"else,where\"");
    wait_until("the worker to leave", SOON, || worker_pids(&mut shop.client).is_empty());
    cluster.set("pg_expiry.databases", &format!("elsewhere, {}", shop.db.name));
    wait_until("the worker to come", SOON, || !worker_pids(&mut shop.client).is_empty());
    assert_ne!(worker(&mut shop.client), pid);
    cluster.set("pg_expiry.max_workers", "0");
    wait_until("the worker to leave", SOON, || worker_pids(&mut shop.client).is_empty());
    assert_eq!(workers(&mut shop.client)[0].state, "waiting");
    cluster.reset("pg_expiry.max_workers");
    wait_until("the worker to come", SOON, || !worker_pids(&mut shop.client).is_empty());
}

#[test]
fn busy_worker_follows_settings_too() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    wait_for_index(&mut shop);
    // A backlog that takes minutes, and somebody who asks for a look all the time.
    let slow = "PERFORM pg_sleep(0.01); UPDATE orders SET status = 'cancelled' WHERE id = order_id";
    shop.replace_cancel_order(slow);
    shop.fill(1..=20_000, "now()");
    let mut caller = shop.db.connect();
    let canceller = caller.cancel_token();
    let calling = std::thread::spawn(move || {
        let calls = "DO $$BEGIN LOOP PERFORM expiry.wake(); COMMIT; END LOOP; END$$";
        assert!(caller.batch_execute(calls).is_err(), "to be cancelled");
    });
    let cancelled = "SELECT count(*) > 0 FROM orders WHERE status = 'cancelled'";
    wait_for_value(&mut shop.client, cancelled, true);
    cluster.set("pg_expiry.enabled", "off");
    wait_until("the worker to come to rest", 10 * SECOND, || {
        let cancelled = "SELECT count(*) FROM orders WHERE status = 'cancelled'";
        let before: i64 = shop.value(cancelled);
        let pass = workers(&mut shop.client)[0].last_pass;
        wait_until("two passes", 10 * SECOND, || {
            shop.value::<bool>("SELECT pg_sleep(0.1) IS NOT NULL")
                && workers(&mut shop.client)[0].last_pass > pass
        });
        shop.value::<i64>(cancelled) == before
    });
    canceller.cancel_query(pg_expiry_tests::postgres::NoTls).unwrap();
    calling.join().unwrap();
}

#[test]
fn settings_of_the_database_are_followed() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    let pid = worker(&mut shop.client);
    shop.client
        .batch_execute(&format!("ALTER DATABASE {} SET pg_expiry.enabled = off", shop.db.name))
        .unwrap();
    other_worker(&mut shop.client, pid);
    shop.due(1, SECOND);
    shop.client.batch_execute(&format!("ALTER DATABASE {} RESET pg_expiry.enabled", shop.db.name)).unwrap();
    assert_eq!(shop.status(1), "pending");
    shop.settle();
}

/// Issue 2: an idle worker holds no lock, no transaction, no snapshot, and writes no WAL.
#[test]
fn idle_processes_do_nothing() {
    let quiet = [
        ("wal_level", "minimal"),
        ("max_wal_senders", "0"),
        ("autovacuum", "off"),
        ("bgwriter_lru_maxpages", "0"),
    ];
    let builder =
        quiet.into_iter().fold(Cluster::builder(), |builder, (name, value)| builder.setting(name, value));
    let cluster = builder.setting("pg_expiry.lookahead", "20ms").start();
    let mut shop = shop_on(&cluster);
    shop.order(1, 3600 * SECOND);
    let pid = worker(&mut shop.client);
    let launcher = launcher_pid(&mut shop.client).unwrap();
    let rows = |client: &mut Client, sql: &str| client.query_one(sql, &[]).unwrap().get::<_, i64>(0);
    let passes = |client: &mut Client, n: u32| {
        for _ in 0..n {
            let before = workers(client)[0].last_pass;
            wait_until("a pass", 10 * SECOND, || workers(client)[0].last_pass > before);
        }
    };
    wait_for_index(&mut shop);
    passes(&mut shop.client, 60);
    let lsn = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";
    let before = (rows(&mut shop.client, lsn), cpu_ticks(launcher));
    for _ in 0..20 {
        passes(&mut shop.client, 1);
        let busy =
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'pg_expiry%' AND state = 'idle'
                    AND (xact_start, backend_xid, backend_xmin) IS DISTINCT FROM (NULL, NULL, NULL)";
        assert_eq!(rows(&mut shop.client, busy), 0);
    }
    assert_eq!((rows(&mut shop.client, lsn), cpu_ticks(launcher)), before);
    wait_for_value(
        &mut shop.client,
        &format!("SELECT count(*) FROM pg_locks WHERE pid IN ({pid}, {launcher})"),
        0_i64,
    );
}

/// Hundredths of a second that the process has worked.
fn cpu_ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
