//! `CALL expiry.run()` where something is wrong: what could be done is done, and the caller is told.

use std::thread;
use std::time::Duration;

use pg_expiry_tests::{Cluster, Shop, db_error, wait_for_value, wait_until};

const PATIENCE: Duration = Duration::from_secs(20);
const FAILURES: &str = "SELECT count(*) FROM expiry.failure";

/// A shop on a server without workers, which must outlive it.
fn shop_without_workers() -> (Cluster, Shop) {
    let cluster = Cluster::builder().preload(false).start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.client.batch_execute("CREATE INDEX ON orders (pay_by) WHERE status = 'pending'").unwrap();
    shop.create_policy("");
    (cluster, shop)
}

#[test]
fn policy_that_does_not_work_is_its_own_trouble() {
    let (_cluster, mut shop) = shop_without_workers();
    // "aside" comes before "orders".
    shop.client
        .batch_execute(
            "CREATE TABLE aside (id int PRIMARY KEY, pay_by timestamptz, status text);
             CREATE FUNCTION is_open(text) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN true; END $$;
             INSERT INTO aside VALUES (1, '-infinity', 'pending');
             CREATE FUNCTION expire(aside_id int) RETURNS void LANGUAGE sql AS $$ $$;
             CREATE INDEX ON aside (pay_by) WHERE is_open(status);
             SELECT expiry.create_policy('aside', deadline => 'pay_by', predicate => 'is_open(status)',
                 cancel_function => 'expire(int)');
             CREATE OR REPLACE FUNCTION is_open(text) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS $$
                 BEGIN RETURN 1 / 0; END $$",
        )
        .unwrap();
    shop.fill(1..=50, "now()");
    let error = db_error(shop.client.batch_execute("CALL expiry.run()"));
    assert_eq!(error.code().code(), "22012", "{error:?}");
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'cancelled'"), 50);
    assert_eq!(shop.value::<i64>("SELECT cancelled FROM expiry.progress WHERE policy = 'orders'"), 50);
    shop.assert_invariant();
}

#[test]
fn run_waits_for_who_is_in_the_way_and_not_for_ever() {
    let (_cluster, mut shop) = shop_without_workers();
    shop.fill(1..=20, "now()");
    let mut holder = shop.db.connect();
    let lock = "BEGIN; SELECT FROM stock FOR NO KEY UPDATE";
    holder.batch_execute(lock).unwrap();
    shop.client.batch_execute("CALL expiry.run()").unwrap();
    shop.assert_untouched(20);
    thread::scope(|scope| {
        scope.spawn(|| shop.client.batch_execute("CALL expiry.run()").unwrap());
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL%' AND wait_event_type = 'Lock'";
        let mut watcher = shop.db.connect();
        wait_until("the run to wait", PATIENCE, || {
            watcher.query_one(waiting, &[]).unwrap().get::<_, i64>(0) > 0
        });
        holder.batch_execute("COMMIT").unwrap();
    });
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'cancelled'"), 20);
    assert_eq!(shop.value::<i64>(FAILURES), 0);
    shop.assert_invariant();
}

#[test]
fn run_that_is_cancelled_keeps_what_it_has_done() {
    let (_cluster, mut shop) = shop_without_workers();
    shop.replace_cancel_order(
        "IF order_id = 100 THEN PERFORM pg_sleep(600); END IF;
         UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
         UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id",
    );
    shop.fill(1..=200, "now() - interval '1 min' + id * interval '1 ms'");
    let mut watcher = shop.db.connect();
    let error = thread::scope(|scope| {
        let running = scope.spawn(|| db_error(shop.client.batch_execute("CALL expiry.run()")));
        let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        wait_until("the run to be cancelled", PATIENCE, || watcher.execute(cancel, &[]).unwrap() > 0);
        running.join().unwrap()
    });
    assert_eq!(error.code().code(), "57014");
    let done: i64 = shop.value("SELECT count(*) FROM orders WHERE status = 'cancelled'");
    assert!((32..100).contains(&done), "{done}");
    assert_eq!(shop.value::<i64>("SELECT cancelled FROM expiry.progress"), done);
    assert_eq!(shop.value::<i64>(FAILURES), 0);
    shop.client.batch_execute("UPDATE orders SET pay_by = 'infinity' WHERE id >= 100").unwrap();
    shop.client.batch_execute("CALL expiry.run()").unwrap();
    wait_for_value(&mut shop.client, "SELECT count(*) FROM orders WHERE status = 'cancelled'", 99_i64);
    shop.assert_invariant();
}

#[test]
fn run_of_a_broken_function_ends_and_says_so() {
    let (_cluster, mut shop) = shop_without_workers();
    shop.replace_cancel_order("RAISE 'broken'");
    shop.fill(1..=1000, "now()");
    let (mut client, notices) = shop.db.connect_with_notices("postgres");
    client.batch_execute("CALL expiry.run()").unwrap();
    let warnings = notices.take("WARNING");
    assert!(warnings.last().unwrap().message().contains("pauses itself"), "{warnings:?}");
    assert_eq!(shop.value::<String>("SELECT state FROM expiry.progress"), "tripped");
    assert_eq!(shop.value::<i64>(FAILURES), 0);
}

/// Rows that take a while each, and a function that can be told from afar to stop being slow.
const SLOWLY: &str = "PERFORM pg_sleep(0.05);
     UPDATE stock SET qty = qty + 1 WHERE sku = (SELECT sku FROM orders WHERE id = order_id);
     UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = order_id";

#[test]
fn long_run_says_how_far_it_is() {
    let (_cluster, mut shop) = shop_without_workers();
    shop.replace_cancel_order(SLOWLY);
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', batch_size => 2)").unwrap();
    shop.fill(1..=150, "now()");
    let (mut client, notices) = shop.db.connect_with_notices("postgres");
    client.batch_execute("CALL expiry.run('orders')").unwrap();
    let notices = notices.take("NOTICE");
    assert!(!notices.is_empty());
    for notice in notices {
        let numbers: Vec<i64> =
            notice.message().split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        let [done, rate, left] = numbers[..] else { panic!("{notice:?}") };
        assert_eq!(done + left, 150, "{notice:?}");
        assert!(notice.message().ends_with(" left") && rate <= 20, "{notice:?}");
    }
    shop.assert_invariant();
}

/// The client cancels its CALL while it waits for somebody, between two batches.
#[test]
fn run_that_waits_can_be_cancelled() {
    let (_cluster, mut shop) = shop_without_workers();
    shop.client.batch_execute("INSERT INTO stock VALUES (2, 0)").unwrap();
    shop.fill(1..=5, "now()");
    shop.client.batch_execute("INSERT INTO orders (id, sku, pay_by) VALUES (100, 2, now())").unwrap();
    let mut holder = shop.db.connect();
    holder.batch_execute("BEGIN; SELECT FROM stock WHERE sku = 2 FOR NO KEY UPDATE").unwrap();
    let mut watcher = shop.db.connect();
    let error = thread::scope(|scope| {
        let pid: i32 = shop.value("SELECT pg_backend_pid()");
        let running = scope.spawn(|| db_error(shop.client.batch_execute("CALL expiry.run()")));
        let cancelled = "SELECT count(*) FROM orders WHERE status = 'cancelled'";
        wait_for_value(&mut watcher, cancelled, 5_i64);
        wait_until("the call to end", PATIENCE, || {
            // Not by a cancel request, which may come as late as for the next statement.
            watcher.execute("SELECT pg_cancel_backend($1)", &[&pid]).unwrap();
            running.is_finished()
        });
        running.join().unwrap()
    });
    assert_eq!(error.code().code(), "57014");
    // In the session nothing is left of it, and what it had done is counted.
    holder.batch_execute("ROLLBACK").unwrap();
    assert_eq!(shop.value::<i64>("SELECT cancelled FROM expiry.status"), 5);
    shop.client.batch_execute("CALL expiry.run()").unwrap();
    assert_eq!(shop.value::<i64>("SELECT cancelled FROM expiry.status"), 6);
    assert_eq!(shop.value::<i64>(FAILURES), 0);
}

/// The client is gone, or its session was ended: what was done is done, and counted but for a second's worth.
#[test]
fn run_whose_client_is_gone_ends_without_loss() {
    for how in ["gone", "terminated"] {
        let (cluster, mut shop) = shop_without_workers();
        shop.replace_cancel_order(SLOWLY);
        shop.client.batch_execute("SELECT expiry.alter_policy('orders', batch_size => 2)").unwrap();
        shop.fill(1..=2000, "now() - interval '1 min' + id * interval '1 ms'");
        let mut psql = cluster.program("psql");
        psql.args(["-X", "-d", &shop.db.name, "-c", "CALL expiry.run()"]);
        let mut psql =
            psql.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
        let counted = "SELECT coalesce(sum(cancelled), 0)::bigint FROM expiry.progress";
        wait_until("a part to be counted", PATIENCE, || shop.value::<i64>(counted) > 0);
        let run = "pg_stat_activity WHERE query = 'CALL expiry.run()' AND pid <> pg_backend_pid()";
        if how == "gone" {
            psql.kill().unwrap();
        } else {
            shop.client.batch_execute(&format!("SELECT pg_terminate_backend(pid) FROM {run}")).unwrap();
        }
        psql.wait().unwrap();
        wait_until("the session to end", PATIENCE, || {
            shop.value::<i64>(&format!("SELECT count(*) FROM {run}")) == 0
        });
        let done: i64 = shop.value("SELECT count(*) FROM orders WHERE status = 'cancelled'");
        assert!((1..2000).contains(&done), "{done}");
        let counted: i64 = shop.value(counted);
        assert!(counted <= done && done - counted <= 40, "{counted} of {done} counted");
        assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event"), done);
        shop.client.batch_execute("DELETE FROM orders WHERE status = 'pending'").unwrap();
        shop.assert_invariant();
    }
}
