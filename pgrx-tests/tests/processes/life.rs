//! What makes launcher and workers come, what ends them, and that they come back.

use std::fs;
use std::time::Instant;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{
    Cluster, Db, Mode, Shop, Signal, db_error, launcher_pid, signal, wait_for_value, wait_until, worker_pids,
    workers,
};

use super::common::{
    SECOND, SOON, complaints, other_worker, shop_on, sleep_in_cancel_function, wait_for_index, wait_for_rest,
    worker,
};

#[test]
fn extension_is_found_without_a_restart() {
    let mut shop = Shop::in_database(Db::new());
    assert_eq!(worker_pids(&mut shop.client), [0; 0]);
    shop.client.batch_execute("CREATE INDEX ON orders (pay_by) WHERE status = 'pending'").unwrap();
    shop.db.create_extension();
    shop.create_policy("");
    shop.due(1, SECOND);
    let start = Instant::now();
    shop.settle();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let [worker] = &workers(&mut shop.client)[..] else { panic!("one worker") };
    assert_eq!((&*worker.database, &*worker.owner, &*worker.state), (&*shop.db.name, "postgres", "running"));
    assert_eq!((worker.policies, worker.pid), (1, Some(worker_pids(&mut shop.client)[0])));
    assert!(worker.last_pass > worker.started_at);
    shop.assert_invariant();
}

#[test]
fn nothing_is_taken_for_the_extension_that_is_not() {
    let cluster = Cluster::start();
    let mut shop = Shop::in_database(cluster.create_database());
    let launcher = launcher_pid(&mut shop.client).unwrap();
    let fakes = [
        "SELECT 1",
        "CREATE SCHEMA expiry; CREATE TABLE expiry.config (x int); CREATE TABLE expiry.policy (x int)",
        "DROP SCHEMA expiry CASCADE",
        "BEGIN; CREATE EXTENSION pg_expiry; ROLLBACK",
    ];
    for fake in fakes {
        shop.client.batch_execute(fake).unwrap();
        // A launcher that starts looks at every database.
        let before = launcher_pid(&mut shop.client).unwrap();
        let log = cluster.log().len();
        signal(before, Signal::TERM);
        wait_until("the launcher to come back and sleep", 10 * SECOND, || {
            let idle = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'pg_expiry%'
                        AND backend_type <> 'pg_expiry launcher'";
            let is_alone = shop.client.query_one(idle, &[]).unwrap().get::<_, i64>(0) == 0;
            is_alone && launcher_pid(&mut shop.client).is_some_and(|pid| pid != before)
        });
        let complaints = complaints(&cluster, log);
        assert_eq!(complaints.len(), 1, "only the launcher's own end: {complaints:?}");
    }
    assert_ne!(launcher_pid(&mut shop.client), Some(launcher));
    shop.db.create_extension();
    shop.create_policy("");
    shop.due(1, SECOND);
    shop.settle();
}

#[test]
fn without_preload_the_user_is_told() {
    let cluster = Cluster::builder().preload(false).start();
    let db = cluster.create_database();
    let (mut client, notices) = db.connect_with_notices("postgres");
    client.batch_execute("CREATE EXTENSION pg_expiry").unwrap();
    let notices = notices.take("NOTICE");
    assert_eq!(notices[0].message(), "pg_expiry is not in shared_preload_libraries");
    assert!(notices[0].hint().unwrap().contains("restart the server"));
    client.batch_execute("SELECT expiry.wake()").unwrap();
    assert!(workers(&mut client).is_empty());
    let error = db_error(client.batch_execute("SELECT expiry.stop_workers()"));
    assert_eq!(error.code().code(), "55000");
}

#[test]
fn cancelled_worker_and_launcher_stay() {
    let cluster = Cluster::builder().setting("pg_expiry.lookahead", "60s").start();
    let mut shop = shop_on(&cluster);
    wait_for_rest(&mut shop);
    let (launcher, pid) = (launcher_pid(&mut shop.client).unwrap(), worker(&mut shop.client));
    let log = cluster.log().len();
    for pid in [launcher, pid] {
        signal(pid, Signal::INT);
        shop.client.execute("SELECT pg_cancel_backend($1)", &[&pid]).unwrap();
    }
    shop.due(1, SECOND);
    shop.client.batch_execute("SELECT expiry.wake()").unwrap();
    shop.settle();
    assert_eq!((launcher_pid(&mut shop.client), worker_pids(&mut shop.client)), (Some(launcher), vec![pid]));
    assert_eq!(complaints(&cluster, log), [""; 0]);
}

#[test]
fn terminated_worker_comes_back() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    let mut pid = worker(&mut shop.client);
    for _ in 0..2 {
        shop.client.execute("SELECT pg_terminate_backend($1)", &[&pid]).unwrap();
        pid = other_worker(&mut shop.client, pid);
    }
    shop.due(1, SECOND);
    shop.settle();
}

#[test]
fn terminated_launcher_comes_back_and_workers_do_not_notice() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    let (launcher, pid) = (launcher_pid(&mut shop.client).unwrap(), worker(&mut shop.client));
    shop.client.execute("SELECT pg_terminate_backend($1)", &[&launcher]).unwrap();
    wait_until("another launcher", 10 * SECOND, || {
        launcher_pid(&mut shop.client).is_some_and(|pid| pid != launcher)
    });
    assert_eq!(worker(&mut shop.client), pid);
    signal(pid, Signal::TERM);
    other_worker(&mut shop.client, pid);
}

#[test]
fn server_crash_is_survived() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    let pid_of: [fn(&mut Client) -> i32; 2] = [worker, |client| launcher_pid(client).unwrap()];
    let mut id = 0;
    for pid_of in pid_of {
        for how in [Signal::KILL, Signal::QUIT] {
            let launcher = launcher_pid(&mut shop.client);
            signal(pid_of(&mut shop.client), how);
            shop.client = wait_until("the server to be back", 20 * SECOND, || {
                let mut client =
                    shop.db.endpoint.try_connect(&shop.db.name, "postgres").map_err(|e| e.to_string())?;
                let another = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_expiry launcher'";
                let pid = client.query_one(another, &[]).map_err(|e| e.to_string())?.get(0);
                if launcher == Some(pid) { Err("no other launcher".to_owned()) } else { Ok(client) }
            });
            id += 1;
            shop.due(id, SECOND);
            shop.settle();
        }
    }
    shop.assert_invariant();
}

#[test]
fn orders_that_fell_due_while_the_server_was_down_are_cancelled() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    worker(&mut shop.client);
    shop.fill(1..=100, "now() + interval '300 ms' + id * interval '1 ms'");
    cluster.stop(Mode::Immediate);
    cluster.start_again();
    shop.client = shop.db.connect();
    shop.settle();
    wait_for_value(&mut shop.client, "SELECT count(*) FROM orders WHERE status = 'cancelled'", 100_i64);
    shop.assert_invariant();
}

#[test]
fn busy_worker_ends_at_once_when_told_to() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    let pid = worker(&mut shop.client);
    sleep_in_cancel_function(&mut shop);
    signal(pid, Signal::TERM);
    let next = other_worker(&mut shop.client, pid);
    assert_eq!(shop.status(1), "pending");

    let start = Instant::now();
    cluster.stop(Mode::Fast);
    assert!(start.elapsed() < 5 * SECOND, "{:?}", start.elapsed());
    cluster.start_again();
    shop.client = shop.db.connect();
    assert_ne!(worker(&mut shop.client), next);

    // Waits until no process of the server is left, or fails.
    cluster.kill9_postmaster();
    cluster.start_again();
    shop.client = shop.db.connect();
    assert_eq!(shop.status(1), "pending");
    shop.replace_cancel_order("UPDATE orders SET status = 'cancelled' WHERE id = order_id");
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.event", 1_i64);
}

#[test]
fn stopped_workers_stay_away() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    let started: String = shop.value("SELECT pg_postmaster_start_time()::text");
    let mut bystander = shop.db.connect();
    worker(&mut shop.client);
    sleep_in_cancel_function(&mut shop);
    let start = Instant::now();
    shop.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_eq!(worker_pids(&mut shop.client), [0; 0]);
    assert_eq!((&*workers(&mut shop.client)[0].state, workers(&mut shop.client)[0].pid), ("stopped", None));

    // Not even a new launcher starts any.
    let launcher = launcher_pid(&mut shop.client).unwrap();
    signal(launcher, Signal::TERM);
    wait_until("another launcher", 10 * SECOND, || {
        launcher_pid(&mut shop.client).is_some_and(|pid| pid != launcher)
    });
    shop.replace_cancel_order("UPDATE orders SET status = 'cancelled' WHERE id = order_id");
    assert_eq!(shop.status(1), "pending");
    assert_eq!(worker_pids(&mut shop.client), [0; 0]);

    shop.client.batch_execute("SELECT expiry.start_workers()").unwrap();
    shop.settle();
    assert_eq!(shop.value::<String>("SELECT pg_postmaster_start_time()::text"), started);
    bystander.batch_execute("SELECT 1").unwrap();
}

#[test]
fn workers_are_stopped_by_the_databases_owner() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    worker(&mut shop.client);
    shop.client.batch_execute("CREATE ROLE stranger LOGIN; CREATE ROLE landlord LOGIN").unwrap();
    shop.client.batch_execute(&format!("ALTER DATABASE {} OWNER TO landlord", shop.db.name)).unwrap();
    let mut stranger = shop.db.connect_as("stranger");
    for call in ["stop_workers", "start_workers"] {
        let error = db_error(stranger.batch_execute(&format!("SELECT expiry.{call}()")));
        assert_eq!(error.code().code(), "42501");
    }
    let mut landlord = shop.db.connect_as("landlord");
    landlord.batch_execute("SELECT expiry.stop_workers()").unwrap();
    assert_eq!(worker_pids(&mut shop.client), [0; 0]);
    landlord.batch_execute("SELECT expiry.start_workers()").unwrap();
    worker(&mut shop.client);
}

#[test]
fn one_sees_the_workers_of_those_one_may_act_for() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    worker(&mut shop.client);
    shop.client
        .batch_execute("CREATE ROLE stranger LOGIN; CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
        .unwrap();
    assert_eq!(workers(&mut shop.db.connect_as("stranger")).len(), 0);
    assert_eq!(workers(&mut shop.db.connect_as("watcher")).len(), 1);
}

#[test]
fn dropped_extension_takes_its_workers_along() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    let drops = [
        "DROP EXTENSION pg_expiry",
        "DROP SCHEMA expiry CASCADE",
        "BEGIN; DROP EXTENSION pg_expiry; CREATE EXTENSION pg_expiry; COMMIT; DROP EXTENSION pg_expiry CASCADE",
    ];
    for drop in drops {
        worker(&mut shop.client);
        let log = cluster.log().len();
        shop.client.batch_execute(drop).unwrap();
        wait_until("the worker to leave", SOON, || worker_pids(&mut shop.client).is_empty());
        assert_eq!(complaints(&cluster, log), [""; 0], "{drop}");
        shop.db.create_extension();
        shop.create_policy("");
    }
    shop.due(1, SECOND);
    shop.settle();
}

#[test]
fn worker_leaves_with_the_last_policy() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    worker(&mut shop.client);
    for (leave, come) in [
        ("SELECT expiry.pause('orders')", "SELECT expiry.resume('orders')"),
        ("SELECT expiry.pause()", "SELECT expiry.resume()"),
    ] {
        shop.client.batch_execute(leave).unwrap();
        wait_until("the worker to leave", SOON, || worker_pids(&mut shop.client).is_empty());
        shop.client.batch_execute(come).unwrap();
        wait_until("the worker to come", SOON, || !worker_pids(&mut shop.client).is_empty());
    }
}

#[test]
fn policy_is_served_for_whoever_owns_the_table() {
    let cluster = Cluster::start();
    let mut shop = shop_on(&cluster);
    worker(&mut shop.client);
    shop.client.batch_execute("CREATE ROLE ann; CREATE ROLE \"Bob's\" NOLOGIN").unwrap();
    let mut id = 0;
    for owner in ["ann", "\"Bob's\"", "postgres", "ann"] {
        shop.client
            .batch_execute(&format!(
                "ALTER TABLE orders OWNER TO {owner}; ALTER TABLE stock OWNER TO {owner};
                 ALTER FUNCTION cancel_order OWNER TO {owner}"
            ))
            .unwrap();
        id += 1;
        shop.due(id, SECOND);
        shop.settle();
        wait_until("one worker, the owner's", SOON, || {
            let workers = workers(&mut shop.client);
            matches!(&workers[..], [worker] if worker.owner == owner.trim_matches('"'))
                .then_some(())
                .ok_or(workers)
        });
    }
    shop.assert_invariant();
}

#[test]
fn prepared_policy_is_served_when_it_is_committed() {
    let cluster = Cluster::builder().setting("max_prepared_transactions", "5").start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.client.batch_execute("CREATE INDEX ON orders (pay_by) WHERE status = 'pending'").unwrap();
    shop.db.create_extension();
    shop.due(1, SECOND);
    shop.client.batch_execute("BEGIN").unwrap();
    shop.create_policy("");
    shop.client.batch_execute("PREPARE TRANSACTION 'p'; SELECT 1; SELECT 2").unwrap();
    assert_eq!(worker_pids(&mut shop.client), [0; 0]);
    shop.client.batch_execute("COMMIT PREPARED 'p'").unwrap();
    shop.settle();
}

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
