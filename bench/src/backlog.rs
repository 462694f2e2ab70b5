//! A backlog is worked off: how many orders a second, by whom.

use pg_expiry_tests::postgres::Client;

use crate::contest::{Contest, Rival};
use crate::scale::Scale;
use crate::shop::Shop;

const BATCH: i32 = 1000;
const OVERDUE: &str = "now() - interval '1 h' + id * interval '1 ms'";

/// Who works it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// pg_expiry with the function for a batch.
    Array,
    /// pg_expiry with the function for an order.
    Row,
    /// A loop in SQL that does what the function for a batch does.
    SqlBatches,
    /// A loop in SQL that calls the function for an order.
    SqlRows,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            By::Array => "pg_expiry, function for a batch",
            By::Row => "pg_expiry, function for an order",
            By::SqlBatches => "SQL loop, batches of 1000",
            By::SqlRows => "SQL loop, batches of 1000, function for each order",
        }
    }

    /// Orders a second.
    fn drain(self, shop: &mut Shop, orders: i64) -> f64 {
        match self {
            By::Array => pg_expiry(shop, "cancel_orders(bigint[])"),
            By::Row => pg_expiry(shop, "cancel_order(bigint)"),
            By::SqlBatches => shop.run(&format!("CALL drain_by_batch({BATCH})")),
            By::SqlRows => shop.run(&format!("CALL drain_by_row({BATCH})")),
        }
        shop.assert_exact(orders, matches!(self, By::Array | By::Row));
        orders as f64 / shop.first_to_last_commit().as_secs_f64()
    }
}

fn pg_expiry(shop: &mut Shop, function: &str) {
    shop.create_policy(function, "");
    shop.wait_until_drained();
    shop.run("SELECT expiry.drop_policy('orders')");
}

/// With nobody else on the server.
pub fn run(shop: &mut Shop, scale: &Scale) -> Contest {
    contest(shop, scale, "Backlog", &[By::Array, By::SqlBatches, By::Row, By::SqlRows], |_| None)
}

/// While a session holds an old snapshot, so that nothing dead can be removed.
pub fn run_under_old_snapshot(shop: &mut Shop, scale: &Scale) -> Contest {
    contest(shop, scale, "Backlog under an old snapshot", &[By::Array, By::SqlBatches], |shop| {
        let mut holder = shop.connect();
        holder.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").expect("a snapshot");
        Some(holder)
    })
}

fn contest(
    shop: &mut Shop,
    scale: &Scale,
    title: &'static str,
    all: &[By],
    disturb: impl Fn(&Shop) -> Option<Client>,
) -> Contest {
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
    for _ in 0..scale.rounds {
        for (by, rates) in all.iter().zip(&mut rates) {
            shop.fill(scale.backlog, OVERDUE);
            let holder = disturb(shop);
            rates.push(by.drain(shop, scale.backlog));
            drop(holder);
            println!("  {}: {:.0} orders/s", by.name(), rates.last().expect("just pushed"));
        }
    }
    let rivals = all.iter().zip(rates).map(|(by, rates)| Rival { name: by.name(), figures: rates });
    Contest { title, unit: "orders/s", rivals: rivals.collect() }
}
