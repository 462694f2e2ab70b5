//! Many sessions want the same rows as the worker: everybody gets his, and the books are right.

use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use pg_expiry_tests::{Shop, sqlstate, wait_for_value};

const SECOND: Duration = Duration::from_secs(1);

/// Cancelled orders have an event and a unit of stock each; nothing was counted as a failure.
#[track_caller]
fn assert_books_balance(shop: &mut Shop, orders: i64) {
    wait_for_value(&mut shop.client, "SELECT count(*) FROM orders WHERE status <> 'pending'", orders);
    shop.assert_invariant();
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 0);
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.event WHERE kind <> 'cancelled'"), 0);
}

/// R31: the database's defaults are for its users; the worker claims READ COMMITTED and writes.
#[test]
fn default_isolation_of_the_database_does_not_matter() {
    const ORDERS: i64 = 500;
    const PAYERS: u64 = 10;
    for default in [
        ("default_transaction_isolation", "repeatable read"),
        ("default_transaction_isolation", "serializable"),
        ("default_transaction_read_only", "on"),
        ("default_transaction_deferrable", "on"),
    ] {
        let mut shop = Shop::without_policy();
        shop.set_for_database(default.0, default.1);
        shop.restart_workers();
        shop.create_policy(", batch_size => 20");
        shop.wait_for_index();
        shop.fill(1..=ORDERS, "now() + interval '300 ms' + id * interval '1 ms'");
        let db = &shop.db;
        let paid = AtomicI64::new(0);
        thread::scope(|scope| {
            for payer in 0..PAYERS {
                let paid = &paid;
                scope.spawn(move || {
                    let mut client = db.connect();
                    let set = "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off";
                    client.batch_execute(set).unwrap();
                    for n in 0..40 {
                        let id = ((n * 7919 + payer * 104_729) % ORDERS as u64 + 1) as i64;
                        let sql = "UPDATE orders SET status = 'paid' WHERE id = $1 AND status = 'pending'";
                        paid.fetch_add(client.execute(sql, &[&id]).unwrap() as i64, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_books_balance(&mut shop, ORDERS);
        let marked = shop.value::<i64>("SELECT count(*) FROM orders WHERE status = 'paid'");
        assert_eq!(marked, paid.into_inner(), "{default:?}");
    }
}

/// R33: the payment locks stock and then the order, the worker the order and then stock. In a deadlock
/// the worker gives way, not the customer, and no row loses an attempt by it.
#[test]
fn in_a_deadlock_the_worker_gives_way() {
    const ROUNDS: i64 = 200;
    const PAYERS: i64 = 4;
    let mut shop = Shop::new();
    shop.wait_for_index();
    // So that a payment is in the middle of it when its order becomes due.
    shop.fill(1..=ROUNDS, "now() + interval '300 ms' + id * interval '10 ms'");
    let db = &shop.db;
    let refused: Vec<String> = thread::scope(|scope| {
        let payers = (0..PAYERS).map(|payer| {
            scope.spawn(move || {
                let mut client = db.connect();
                let mut refused = Vec::new();
                for id in (1..=ROUNDS).filter(|id| id % PAYERS == payer) {
                    let sql = format!(
                        "SELECT pg_sleep_until((SELECT pay_by FROM orders WHERE id = {id}) - interval '5 ms');
                         BEGIN; UPDATE stock SET qty = qty WHERE sku = 1; SELECT pg_sleep(0.006);
                         UPDATE orders SET status = 'paid' WHERE id = {id} AND status = 'pending'; COMMIT"
                    );
                    if let Err(error) = client.batch_execute(&sql) {
                        refused.push(sqlstate(&error).to_owned());
                        client.batch_execute("ROLLBACK").unwrap();
                    }
                }
                refused
            })
        });
        let payers: Vec<_> = payers.collect();
        payers.into_iter().flat_map(|payer| payer.join().unwrap()).collect()
    });
    assert!(refused.is_empty(), "payments that failed: {refused:?}");
    assert_books_balance(&mut shop, ROUNDS);
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    println!("{} deadlocks", shop.value::<i64>(sql));
}

/// R33: the same with the lock held for long: lock_timeout ends the worker's waiting, and it comes back.
#[test]
fn stock_that_is_locked_for_long_uses_up_no_attempt() {
    let mut shop = Shop::with_settings(&[("pg_expiry.lock_timeout", "100ms")]);
    shop.create_policy(", max_attempts => 2");
    shop.wait_for_index();
    let mut holder = shop.db.connect();
    holder.batch_execute("BEGIN; SELECT FROM stock FOR NO KEY UPDATE").unwrap();
    shop.fill(1..=20, "now()");
    // That nothing comes of it is the claim: for two seconds, in which the worker tries again and again.
    assert!(shop.listen().try_next(2 * SECOND).is_none());
    shop.assert_untouched(20);
    holder.batch_execute("ROLLBACK").unwrap();
    assert_books_balance(&mut shop, 20);
}
