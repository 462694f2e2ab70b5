//! A payment and the worker lock the same two rows in opposite order: it is never the customer who loses.

use std::thread;
use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{DebugPoint, Shop, wait_for_value, wait_until};

const PATIENCE: Duration = Duration::from_secs(20);
const TAKE_STOCK: &str = "BEGIN; UPDATE stock SET qty = qty WHERE sku = 1";
const PAY: &str = "UPDATE orders SET status = 'paid' WHERE id = 1 AND status = 'pending'";

/// A shop whose order 1 is due, with a worker that has claimed it and stops there.
fn claimed_order(settings: &[(&str, &str)]) -> (Shop, Client, i32) {
    let mut shop = Shop::with_settings(settings);
    shop.create_policy("");
    shop.wait_for_index();
    let mut point = shop.db.connect();
    DebugPoint::Claimed.hold(&mut point);
    shop.due(1, Duration::from_secs(1));
    let held = format!(
        "SELECT pid FROM pg_stat_activity
         WHERE backend_type = 'pg_expiry worker' AND datname = current_database() AND {}",
        DebugPoint::Claimed.sign()
    );
    let worker = wait_until("the worker to claim the order", PATIENCE, || {
        shop.client.query_opt(&held, &[]).unwrap().map(|row| row.get(0))
    });
    (shop, point, worker)
}

fn wait_until_blocked(client: &mut Client, who: i32, by: i32) {
    wait_for_value(client, &format!("SELECT {by} = ANY (pg_blocking_pids({who}))"), true);
}

fn pid(client: &mut Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0)
}

/// The payment has its way, the worker comes back and finds a paid order; nothing is counted.
fn check(mut shop: Shop, mut payment: Client, paid: u64) {
    assert_eq!(paid, 1, "the order was cancelled under the payment's hands");
    payment.batch_execute("COMMIT").unwrap();
    assert_eq!(shop.status(1), "paid");
    shop.due(2, Duration::from_secs(1));
    shop.wait_for_cancelled(1);
    assert_eq!(shop.status(2), "cancelled");
    assert_eq!(shop.value::<i64>("SELECT count(*) FROM expiry.failure"), 0);
    shop.assert_invariant();
}

/// The payment waits for the order first, then the worker for the stock.
#[test]
fn worker_that_closes_the_circle_gives_way() {
    let (mut shop, point, worker) = claimed_order(&[]);
    let mut payment = shop.db.connect();
    let payer = pid(&mut payment);
    payment.batch_execute(TAKE_STOCK).unwrap();
    let (payment, paid) = thread::scope(|scope| {
        let paying = scope.spawn(move || {
            let paid = payment.execute(PAY, &[]);
            (payment, paid)
        });
        wait_until_blocked(&mut shop.client, payer, worker);
        drop(point);
        paying.join().unwrap()
    });
    check(shop, payment, paid.unwrap());
}

/// The worker waits for the stock first, and sees no deadlock yet, then the payment for the order.
fn payment_closes_the_circle(settings: &[(&str, &str)]) {
    let (mut shop, point, worker) = claimed_order(settings);
    let mut payment = shop.db.connect();
    let payer = pid(&mut payment);
    payment.batch_execute(TAKE_STOCK).unwrap();
    drop(point);
    wait_until_blocked(&mut shop.client, worker, payer);
    payment.batch_execute("SELECT pg_sleep(0.05)").unwrap();
    let paid = payment.execute(PAY, &[]).unwrap();
    check(shop, payment, paid);
}

#[test]
fn customer_that_closes_the_circle_has_his_way() {
    payment_closes_the_circle(&[]);
}

/// Whoever has a short deadlock_timeout is the first to look for deadlocks, and then the victim.
#[test]
fn customer_has_his_way_also_where_the_server_looks_for_deadlocks_soon() {
    payment_closes_the_circle(&[("deadlock_timeout", "150ms")]);
}

/// In the worker's own order there is no deadlock: who comes second waits, and sees what has become of it.
#[test]
fn payment_in_the_order_of_the_worker_only_waits() {
    let (mut shop, point, worker) = claimed_order(&[]);
    let mut payment = shop.db.connect();
    let payer = pid(&mut payment);
    let paid = thread::scope(|scope| {
        let paying = scope.spawn(move || payment.execute(PAY, &[]));
        wait_until_blocked(&mut shop.client, payer, worker);
        drop(point);
        paying.join().unwrap()
    });
    assert_eq!(paid.unwrap(), 0);
    assert_eq!(shop.status(1), "cancelled");
    shop.assert_invariant();
}
