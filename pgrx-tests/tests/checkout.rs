//! What a checkout notices of us: nothing.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use pg_expiry_tests::{Cluster, Shop, wait_for_value, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// Issue 2: no insert waits for a lock of ours while a policy comes, gets its index, changes, and goes;
/// not even while the build of the index waits for an order that takes long.
#[test]
fn checkout_waits_for_no_lock_of_ours() {
    let mut shop = Shop::without_policy();
    shop.fill(1..=150_000, "now() + interval '1 day'");
    let (inserted, samples, is_over) = (AtomicI64::new(0), AtomicI64::new(0), AtomicBool::new(false));
    let (db, inserted, samples, is_over) = (&shop.db, &inserted, &samples, &is_over);
    let mut client = db.connect();
    let mut slow = db.connect();
    let blocked = thread::scope(|scope| {
        let mut checkout = db.connect();
        let pid: i32 = checkout.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
        let checkout = scope.spawn(move || {
            for id in 1_000_000_i64.. {
                let sql = "INSERT INTO orders (id, pay_by) VALUES ($1, now() + interval '1 day')";
                checkout.execute(sql, &[&id]).unwrap();
                inserted.fetch_add(1, Ordering::Relaxed);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let sampler = scope.spawn(move || {
            let mut client = db.connect();
            let sql = "SELECT coalesce(string_agg(format('%s %s', a.backend_type, a.query), '; '), '')
                       FROM unnest(pg_blocking_pids($1)) b(pid) LEFT JOIN pg_stat_activity a USING (pid)";
            let sql = client.prepare(sql).unwrap();
            let mut blocked = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let blocker: String = client.query_one(&sql, &[&pid]).unwrap().get(0);
                blocked.extend((!blocker.is_empty()).then_some(blocker));
                samples.fetch_add(1, Ordering::Relaxed);
            }
            blocked
        });
        let valid = |predicate: &str| {
            format!(
                "SELECT count(*) FROM pg_index WHERE indrelid = 'orders'::regclass AND indisvalid
                 AND pg_get_expr(indpred, indrelid) LIKE '%{predicate}%'"
            )
        };
        // The build has to wait for this one, and the others must not wait for the build.
        slow.batch_execute(
            "BEGIN; INSERT INTO orders (id, pay_by) VALUES (900000, now() + interval '1 day')",
        )
        .unwrap();
        client
            .batch_execute(
                "SELECT expiry.create_policy('orders', deadline => 'pay_by', predicate => $$status = 'pending'$$,
                     cancel_function => 'cancel_order')",
            )
            .unwrap();
        let waits = "SELECT count(*) FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting for%'";
        wait_for_value(&mut client, waits, 1_i64);
        let seen = || [inserted, samples].map(|count| count.load(Ordering::Relaxed));
        let before = seen();
        wait_until("inserts beside the build, and looks at them", 60 * SECOND, || {
            seen().iter().zip(before).all(|(now, before)| *now > before + 200)
        });
        slow.batch_execute("COMMIT").unwrap();
        wait_for_value(&mut client, &valid("pending"), 1_i64);
        client
            .batch_execute("SELECT expiry.alter_policy('orders', predicate => $$status = 'new'$$)")
            .unwrap();
        wait_for_value(&mut client, &valid("new"), 1_i64);
        wait_for_value(&mut client, &valid("pending"), 0_i64);
        client.batch_execute("SELECT expiry.drop_policy('orders')").unwrap();
        wait_for_value(&mut client, &valid("new"), 0_i64);
        is_over.store(true, Ordering::Relaxed);
        checkout.join().unwrap();
        sampler.join().unwrap()
    });
    println!("{inserted:?} inserts, {samples:?} samples");
    assert!(blocked.is_empty(), "the checkout waited {} times: {blocked:?}", blocked.len());
}

/// R43: transactions that are prepared work as ever; what they hold is theirs, and what they bring is
/// cancelled on time.
#[test]
fn prepared_transactions_are_no_trouble() {
    let cluster = Cluster::builder().setting("max_prepared_transactions", "10").start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.create_policy("");
    shop.wait_for_index();
    let prepare = |shop: &mut Shop, name: &str, sql: &str| {
        shop.client.batch_execute("BEGIN").unwrap();
        shop.client.batch_execute(sql).unwrap();
        shop.client.batch_execute(&format!("PREPARE TRANSACTION '{name}'")).unwrap();
    };
    prepare(&mut shop, "new", "INSERT INTO orders (id, pay_by) VALUES (1, now())");
    prepare(&mut shop, "woken", "INSERT INTO orders (id, pay_by) VALUES (2, now()); SELECT expiry.wake()");
    shop.fill(3..=4, "now() + interval '300 ms'");
    prepare(&mut shop, "paid", "UPDATE orders SET status = 'paid' WHERE id = 3");
    prepare(&mut shop, "unpaid", "UPDATE orders SET status = 'paid' WHERE id = 4");
    shop.fill(5..=5, "now() + interval '400 ms'");
    wait_for_value(&mut shop.client, "SELECT status FROM orders WHERE id = 5", "cancelled".to_owned());
    let prepared = "SELECT count(*) FROM orders WHERE id IN (3, 4) AND status = 'pending'";
    assert_eq!(shop.value::<i64>(prepared), 2, "the worker has waited for nobody and taken from nobody");
    shop.client
        .batch_execute("COMMIT PREPARED 'new'")
        .and_then(|()| shop.client.batch_execute("COMMIT PREPARED 'woken'"))
        .and_then(|()| shop.client.batch_execute("COMMIT PREPARED 'paid'"))
        .and_then(|()| shop.client.batch_execute("ROLLBACK PREPARED 'unpaid'"))
        .unwrap();
    shop.wait_for_cancelled(4);
    assert_eq!(shop.status(3), "paid");
    shop.assert_invariant();
}

/// R17 (iii): a worker that is busy with itself answers the server's calls all the same.
#[test]
fn database_can_be_dropped_while_a_worker_drains_another() {
    let cluster = Cluster::start();
    let mut shop = Shop::in_database(cluster.create_database());
    shop.db.create_extension();
    shop.fill(1..=30_000, "now()");
    shop.create_policy("");
    wait_for_value(&mut shop.client, "SELECT count(*) > 0 FROM orders WHERE status = 'cancelled'", true);
    let mut other = cluster.connect("postgres");
    other.batch_execute("SET statement_timeout = '5s'").unwrap();
    for _ in 0..3 {
        other.batch_execute("CREATE DATABASE x").unwrap();
        other.batch_execute("DROP DATABASE x").unwrap();
    }
    assert!(
        shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'pending'") > 0,
        "it was over too soon"
    );
    shop.wait_for_cancelled(30_000);
    shop.assert_invariant();
}
