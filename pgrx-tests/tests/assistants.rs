//! More workers than one for a policy, while it has a backlog.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, Db, Shop, Signal, signal, wait_for_value, wait_until};

use super::processes::turns::more_owners;

const PATIENCE: Duration = Duration::from_secs(60);
const ORDERS: i64 = 20_000;

/// Takes its locks in the same order always. A call takes at least 20 ms, so that there is time for assistants.
const CANCEL_MANY: &str = "
    CREATE TABLE calls (pid int, orders bigint[]);
    CREATE FUNCTION cancel_orders(ids bigint[]) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO calls VALUES (pg_backend_pid(), ids);
        PERFORM pg_sleep(0.02);
        PERFORM FROM stock WHERE sku IN (SELECT sku FROM orders WHERE id = ANY (ids)) ORDER BY sku FOR UPDATE;
        UPDATE stock s SET qty = qty + n
            FROM (SELECT sku, count(*) AS n FROM orders WHERE id = ANY (ids) GROUP BY sku) o WHERE o.sku = s.sku;
        UPDATE orders SET status = 'cancelled', cancelled_at = clock_timestamp() WHERE id = ANY (ids);
    END $$";

const ASSISTANTS: &str = "SELECT pid FROM pg_stat_activity
    WHERE backend_type = 'pg_expiry assistant' AND datname = current_database()";

/// A shop with a backlog, in batches of a hundred, that nobody works on until the policy is made.
fn shop_in(db: Db) -> Shop {
    let mut shop = Shop::in_database(db);
    shop.set_for_database("pg_expiry.workers", "3");
    shop.set_for_database("pg_expiry.batch_size", "100");
    shop.db.create_extension();
    shop.client.batch_execute(CANCEL_MANY).unwrap();
    shop.fill(1..=ORDERS, &format!("now() - interval '1 ms' * (1 + {ORDERS} - id)"));
    shop
}

fn shop() -> Shop {
    shop_in(Db::new())
}

fn open(shop: &mut Shop, more: &str) {
    let sql = format!(
        "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
             cancel_function => 'cancel_orders(bigint[])'{more})"
    );
    shop.client.batch_execute(&sql).unwrap();
}

#[track_caller]
fn wait_for_assistants(client: &mut Client, count: usize) -> Vec<i32> {
    wait_until(format_args!("{count} assistants"), PATIENCE, || {
        let pids: Vec<i32> = client.query(ASSISTANTS, &[]).unwrap().iter().map(|row| row.get(0)).collect();
        if pids.len() == count { Ok(pids) } else { Err(pids) }
    })
}

#[track_caller]
fn wait_until_cancelled(shop: &mut Shop, orders: i64) {
    let sql = "SELECT count(*) FROM expiry.event WHERE kind = 'cancelled'";
    wait_until(format_args!("{orders} cancelled orders"), PATIENCE, || match shop.value::<i64>(sql) {
        found if found >= orders => Ok(()),
        found => Err(found),
    });
    assert_eq!(shop.value::<i64>(sql), orders);
}

#[test]
fn backlog_is_shared_and_each_row_cancelled_once() {
    let mut shop = shop();
    open(&mut shop, "");
    wait_for_assistants(&mut shop.client, 2);
    let shown =
        "SELECT count(*) FROM expiry.workers WHERE state = 'assisting' AND policies = 1 AND pid IS NOT NULL
                 AND started_at <= now() AND database = current_database()";
    wait_for_value(&mut shop.client, shown, 2_i64);
    wait_until_cancelled(&mut shop, ORDERS);
    wait_for_assistants(&mut shop.client, 0);
    assert!(shop.value::<i64>("SELECT count(DISTINCT pid) FROM calls") >= 3);
    let twice =
        "SELECT count(*) FROM (SELECT FROM calls, unnest(orders) id GROUP BY id HAVING count(*) > 1) t";
    assert_eq!(shop.value::<i64>(twice), 0, "calls that were rolled back leave no trace");
    let counted = "SELECT cancelled FROM expiry.status";
    wait_for_value(&mut shop.client, counted, ORDERS);
    shop.assert_invariant();
    // Once there is nothing left, one worker is enough.
    shop.due(ORDERS + 1, Duration::from_secs(1));
    shop.wait_for_cancelled(ORDERS + 1);
    wait_for_assistants(&mut shop.client, 0);
}

/// Failures are the worker's: an attempt is counted once, whoever met the row first.
#[test]
fn bad_rows_are_tried_by_one_worker_only() {
    let mut shop = shop();
    shop.client
        .batch_execute(
            "ALTER TABLE orders ADD CHECK (id % 2000 <> 1000 OR status <> 'cancelled');
             CREATE INDEX ON orders (pay_by) WHERE status = 'pending'",
        )
        .unwrap();
    open(&mut shop, ", retry_delay => '1 hour'");
    wait_for_assistants(&mut shop.client, 2);
    wait_until_cancelled(&mut shop, ORDERS - 10);
    let failures = "SELECT count(*) FROM expiry.failure WHERE sqlstate = '23514' AND attempts = 1";
    wait_for_value(&mut shop.client, failures, 10_i64);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 10);
    shop.assert_invariant();
}

/// Payments of orders anywhere in the backlog, while it is worked off from several sides.
#[test]
fn orders_are_paid_or_cancelled_never_both() {
    let mut shop = shop();
    open(&mut shop, "");
    wait_for_assistants(&mut shop.client, 2);
    let pay = |nth: i64| {
        let mut client = shop.db.connect();
        // From the end, where the backlog is still to be worked off.
        let ids = (1..=ORDERS).rev().skip(nth as usize).step_by(40);
        let sql = "UPDATE orders SET status = 'paid' WHERE id = $1 AND status = 'pending'";
        ids.filter(|id| client.execute(sql, &[id]).unwrap() == 1).count()
    };
    let told: usize = thread::scope(|scope| {
        let pay = &pay;
        let customers: Vec<_> = (0..4).map(|n| scope.spawn(move || pay(10 * n))).collect();
        customers.into_iter().map(|customer| customer.join().expect("a customer")).sum()
    });
    let left = "SELECT count(*) FROM orders WHERE status = 'pending'";
    wait_for_value(&mut shop.client, left, 0_i64);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'paid'"), told as i64);
    assert!(told > 0);
    shop.assert_invariant();
}

/// Whoever reads up to an id has missed nothing below it.
#[test]
fn ids_become_visible_in_order() {
    let mut shop = shop();
    let mut reader = shop.db.connect();
    open(&mut shop, "");
    wait_for_assistants(&mut shop.client, 2);
    let (mut last, mut seen) = (0_i64, 0);
    wait_until("all events, read on from the last", PATIENCE, || {
        let rows = reader.query("SELECT id FROM expiry.events_after($1, 100000)", &[&last]).unwrap();
        last = rows.last().map_or(last, |row| row.get(0));
        seen += rows.len();
        if seen >= ORDERS as usize { Ok(()) } else { Err(seen) }
    });
    wait_until_cancelled(&mut shop, ORDERS);
    shop.assert_invariant();
}

#[test]
fn assistants_leave_when_they_are_told_to() {
    let mut shop = shop();
    open(&mut shop, "");
    let cancelled = "SELECT count(*) FROM orders WHERE status = 'cancelled'";

    wait_for_assistants(&mut shop.client, 2);
    shop.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
    assert_eq!(shop.client.query(ASSISTANTS, &[]).unwrap().len(), 0);
    let before: i64 = shop.value(cancelled);
    assert!(before < ORDERS, "{before}");
    shop.client.batch_execute("SELECT expiry.start_workers()").unwrap();

    wait_for_assistants(&mut shop.client, 2);
    shop.client.batch_execute("SELECT expiry.pause('orders')").unwrap();
    wait_for_assistants(&mut shop.client, 0);
    // The worker has nothing left to serve.
    let workers =
        "SELECT count(*) FROM expiry.workers WHERE pid IS NOT NULL AND database = current_database()";
    wait_for_value(&mut shop.client, workers, 0_i64);
    let paused: i64 = shop.value(cancelled);
    assert!(before < paused && paused < ORDERS, "{before} {paused}");
    shop.client.batch_execute("SELECT expiry.resume('orders')").unwrap();

    let [first, _] = wait_for_assistants(&mut shop.client, 2)[..] else { unreachable!("two") };
    signal(first, Signal::TERM);
    wait_until_cancelled(&mut shop, ORDERS);
    shop.assert_invariant();
}

#[test]
fn database_can_be_dropped_under_assistants() {
    let cluster = Cluster::start();
    let mut admin = cluster.connect("postgres");
    let mut shop = shop_in(cluster.create_database());
    open(&mut shop, "");
    wait_for_assistants(&mut shop.client, 2);
    let name = shop.db.name.clone();
    drop(shop.client);
    wait_until("the client to be gone", PATIENCE, || {
        let sql = "SELECT FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'";
        admin.query(sql, &[&name]).unwrap().is_empty()
    });
    admin.batch_execute(&format!("DROP DATABASE {name}")).unwrap();
}

#[test]
fn killed_assistant_leaves_nothing_half_done() {
    let cluster = Cluster::start();
    let mut shop = shop_in(cluster.create_database());
    open(&mut shop, "");
    let pid = wait_for_assistants(&mut shop.client, 2)[0];
    signal(pid, Signal::KILL);
    wait_until("the server to end all sessions", PATIENCE, || shop.client.batch_execute("SELECT 1").is_err());
    wait_until("the server to be back", PATIENCE, || {
        cluster.endpoint().try_connect(&shop.db.name, "postgres").map(|client| shop.client = client).ok()
    });
    wait_until_cancelled(&mut shop, ORDERS);
    shop.assert_invariant();
}

/// Assistants take no place that an owner waits for, and there are never more than max_workers processes.
#[test]
fn owners_go_before_assistants() {
    let cluster = Cluster::builder().setting("pg_expiry.max_workers", "2").start();
    let mut shop = shop_in(cluster.create_database());
    let mut watcher = shop.db.connect();
    open(&mut shop, "");
    wait_for_assistants(&mut shop.client, 1);
    more_owners(&mut shop, 1);
    shop.client.batch_execute("INSERT INTO s0.orders VALUES (1, 'pending', now())").unwrap();
    let placed_at = Instant::now();
    let mut most = BTreeSet::new();
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('pg_expiry worker', 'pg_expiry assistant')";
    wait_until("the other owner's order to be cancelled", PATIENCE, || {
        most.insert(watcher.query_one(sql, &[]).unwrap().get::<_, i64>(0));
        let status: String = watcher.query_one("SELECT status FROM s0.orders", &[]).unwrap().get(0);
        status == "cancelled"
    });
    println!("the other owner's order was cancelled after {:?}", placed_at.elapsed());
    assert!(
        shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'") > 0,
        "the backlog is over"
    );
    assert!(most.iter().all(|processes| *processes <= 2), "{most:?}");
    wait_until_cancelled(&mut shop, ORDERS + 1);
}
