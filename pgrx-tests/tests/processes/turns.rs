//! More owners than workers, and servers without a free process slot.

use std::time::{Duration, Instant};

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, Shop, wait_for_value, wait_until, worker_pids, workers};

use super::common::{SECOND, complaints, shop_on, worker};

/// A server with room for so many processes of ours, the launcher included.
fn cluster_with(processes: usize) -> Cluster {
    let builder = Cluster::builder().setting("max_worker_processes", &processes.to_string());
    builder.setting("max_logical_replication_workers", "0").start()
}

/// A session that keeps a process slot until the server is told to cancel it.
pub fn occupy_a_slot(cluster: &Cluster) -> std::thread::JoinHandle<()> {
    let mut watcher = cluster.connect("postgres");
    let version: i32 =
        watcher.query_one("SELECT current_setting('server_version_num')::int", &[]).unwrap().get(0);
    let parallel = if version < 160000 { "force_parallel_mode" } else { "debug_parallel_query" };
    // It does without its worker when there is no slot just now, and has to begin anew.
    wait_until("a slot", 60 * SECOND, || {
        let mut client = cluster.connect("postgres");
        client.batch_execute(&format!("SET statement_timeout = 0; SET {parallel} = on")).unwrap();
        let thread = std::thread::spawn(move || {
            assert!(client.batch_execute("SELECT pg_sleep(600) AS occupied").is_err(), "to be cancelled");
        });
        let sleeping = "SELECT count(*) FROM pg_stat_activity
                        WHERE query LIKE '%AS occupied' AND wait_event = 'PgSleep'";
        wait_for_value(&mut watcher, sleeping, 1_i64);
        let worker = "SELECT FROM pg_stat_activity WHERE backend_type = 'parallel worker'";
        if watcher.query(worker, &[]).unwrap().is_empty() {
            vacate_the_slot(&mut watcher);
            thread.join().unwrap();
            return None;
        }
        Some(thread)
    })
}

pub fn vacate_the_slot(client: &mut Client) {
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
                  WHERE query LIKE '%AS occupied' AND backend_type = 'client backend'";
    client.batch_execute(cancel).unwrap();
}

#[test]
fn one_slot_is_enough_for_everything() {
    let cluster = cluster_with(2);
    let mut shop = shop_on(&cluster);
    shop.due(1, SECOND);
    // Scout, worker and index builder, one after the other.
    wait_until("the order to be cancelled", 20 * SECOND, || shop.status(1) == "cancelled");
    shop.assert_invariant();
}

/// R25.
#[test]
fn no_slot_is_said_once_and_shown_and_over_when_it_is_over() {
    let cluster = cluster_with(2);
    let mut shop = shop_on(&cluster);
    shop.due(1, SECOND);
    wait_until("the order to be cancelled", 20 * SECOND, || shop.status(1) == "cancelled");
    shop.client.batch_execute("SELECT expiry.stop_workers()").unwrap();
    let occupier = occupy_a_slot(&cluster);
    shop.due(2, SECOND);
    shop.client.batch_execute("SELECT expiry.start_workers()").unwrap();
    let state = |client: &mut Client| workers(client)[0].state.clone();
    wait_until("the state to say so", 5 * SECOND, || match state(&mut shop.client) {
        state if state == "no slot" => Ok(()),
        state => Err(state),
    });
    // Many attempts, those before included: one line a minute.
    let tried_at = Instant::now();
    wait_until("two more attempts", 20 * SECOND, || tried_at.elapsed() > 11 * SECOND);
    let complaints = complaints(&cluster, 0);
    let complaints: Vec<_> = complaints.iter().filter(|line| !line.contains("starting up")).collect();
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    assert!(complaints[0].contains("no free background worker slot"), "{complaints:?}");
    assert_eq!((shop.status(2), state(&mut shop.client)), ("pending".to_owned(), "no slot".to_owned()));

    vacate_the_slot(&mut shop.client);
    occupier.join().unwrap();
    wait_until("the order to be cancelled", 20 * SECOND, || shop.status(2) == "cancelled");
    assert_eq!(state(&mut shop.client), "running");
}

/// A table, a policy and a cancel function for each of so many owners, in the shop's database.
pub fn more_owners(shop: &mut Shop, owners: usize) {
    for n in 0..owners {
        shop.client
            .batch_execute(&format!(
                "CREATE ROLE owner{n}; CREATE SCHEMA s{n} AUTHORIZATION owner{n}; SET ROLE owner{n};
                 CREATE TABLE s{n}.orders (id bigint PRIMARY KEY, status text DEFAULT 'pending', pay_by timestamptz);
                 CREATE INDEX ON s{n}.orders (pay_by) WHERE status = 'pending';
                 CREATE FUNCTION s{n}.cancel(order_id bigint) RETURNS void LANGUAGE sql
                     AS $$UPDATE s{n}.orders SET status = 'cancelled' WHERE id = order_id$$;
                 SELECT expiry.create_policy('s{n}.orders', name => 'p{n}', deadline => 'pay_by',
                     predicate => $$status = 'pending'$$, cancel_function => 's{n}.cancel(bigint)');
                 RESET ROLE"
            ))
            .unwrap();
    }
}

/// How many orders of all owners are still pending.
pub fn pending(client: &mut Client, owners: usize) -> i64 {
    let counts = (0..owners).map(|n| format!("SELECT FROM s{n}.orders WHERE status = 'pending'"));
    let sql = format!("SELECT count(*) FROM ({}) x", counts.collect::<Vec<_>>().join(" UNION ALL "));
    client.query_one(&sql, &[]).unwrap().get(0)
}

pub fn order_of_each(client: &mut Client, owners: usize, id: i64, pay_by: &str) {
    for n in 0..owners {
        client.batch_execute(&format!("INSERT INTO s{n}.orders VALUES ({id}, 'pending', {pay_by})")).unwrap();
    }
}

#[test]
fn owners_take_turns() {
    const OWNERS: usize = 6;
    let cluster = Cluster::builder().setting("pg_expiry.max_workers", "2").start();
    let mut shop = shop_on(&cluster);
    shop.client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
    more_owners(&mut shop, OWNERS);
    let all_served = |client: &mut Client, within: Duration| {
        wait_until("all orders to be cancelled", within, || {
            let running = worker_pids(client).len();
            assert!(running <= 2, "{running} workers");
            match pending(client, OWNERS) {
                0 => Ok(()),
                left => Err(left),
            }
        });
    };
    order_of_each(&mut shop.client, OWNERS, 1, "now()");
    all_served(&mut shop.client, 20 * SECOND);
    // Nobody has been told of these.
    order_of_each(&mut shop.client, OWNERS, 2, "now()");
    all_served(&mut shop.client, 20 * SECOND);
    // Of these the launcher hears.
    order_of_each(&mut shop.client, OWNERS, 3, "now()");
    shop.client.batch_execute("SELECT expiry.wake()").unwrap();
    all_served(&mut shop.client, 10 * SECOND);
    let states: Vec<String> = workers(&mut shop.client).into_iter().map(|worker| worker.state).collect();
    assert_eq!(states.len(), OWNERS, "{states:?}");

    cluster.set("pg_expiry.max_workers", "48");
    cluster.set("max_parallel_workers", "8");
    let enough = "SELECT count(*) FROM expiry.workers WHERE state IN ('running', 'no slot')";
    wait_for_value(&mut shop.client, enough, OWNERS as i64);
}

#[test]
fn slow_owner_does_not_keep_the_others_out() {
    let cluster = Cluster::builder().setting("pg_expiry.max_workers", "1").start();
    let mut shop = shop_on(&cluster);
    worker(&mut shop.client);
    more_owners(&mut shop, 1);
    // The shop's worker is never done: each of its orders takes a while.
    shop.replace_cancel_order(
        "PERFORM pg_sleep(0.2); UPDATE orders SET status = 'cancelled' WHERE id = order_id",
    );
    shop.client.batch_execute("SELECT expiry.alter_policy('orders', batch_size => 1)").unwrap();
    shop.fill(1..=200, "now()");
    order_of_each(&mut shop.client, 1, 1, "now()");
    wait_until("the other owner's order", 30 * SECOND, || pending(&mut shop.client, 1) == 0);
    let left: i64 = shop.value("SELECT count(*) FROM orders WHERE status = 'pending'");
    assert!(left > 0, "the shop's worker was not busy for long enough");
    let done = 200 - left;
    wait_until("the shop to be served again", 30 * SECOND, || {
        200 - shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'") > done
    });
}
