//! What makes launcher and workers come, what ends them, and that they come back.

use std::time::Instant;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{
    Cluster, Db, Mode, Shop, Signal, db_error, launcher_pid, signal, wait_for_value, wait_until, worker_pids,
    workers,
};

use super::common::{
    SECOND, SOON, complaints, is_ended, other_worker, shop_on, sleep_in_cancel_function, wait_for_rest,
    wake_from_cancel_function, worker,
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
    let worker = wait_until("the worker to say how it is", SOON, || {
        let all = workers(&mut shop.client);
        all.into_iter().find(|worker| worker.database == shop.db.name && worker.policies == 1)
    });
    assert_eq!((&*worker.owner, &*worker.state), ("postgres", "running"));
    assert_eq!(worker.pid, Some(worker_pids(&mut shop.client)[0]));
    assert!(worker.last_pass > worker.started_at);
    shop.assert_invariant();
}

/// R26 (a, b, c): a schema of our name, and an extension that was rolled back.
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

/// R26 (d).
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

/// R19 (a).
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

/// R09: deadlines are in the table and nowhere else.
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

/// R61 (a, b, d); (c) is with the databases.
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
    wake_from_cancel_function(&mut shop);
    wait_for_value(&mut shop.client, "SELECT count(*) FROM expiry.event", 1_i64);
}

/// R19 (c): stopping the workers in a long call stops nobody else.
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
        let complaints: Vec<_> =
            complaints(&cluster, log).into_iter().filter(|line| !is_ended(line)).collect();
        assert_eq!(complaints, [""; 0], "{drop}");
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
