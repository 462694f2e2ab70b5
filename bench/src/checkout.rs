//! What checkouts notice: how many orders a second come in with a policy and without, and how long a checkout
//! takes while a backlog of the same stock drains.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::{Cluster, temporary_directory};

use crate::contest::{Contest, Rival, percentile};
use crate::scale::Scale;
use crate::shop::Shop;

const SCRIPT: &str = "\\set sku random(1, 100)
INSERT INTO orders (id, sku, pay_by) VALUES (nextval('order_id'), :sku, now() + interval '15 min');
";

/// Orders a second of pgbench.
pub fn run(cluster: &Cluster, shop: &mut Shop, scale: &Scale) -> Contest {
    const NAMES: [&str; 2] = ["with a policy", "the same table and index, no policy"];
    let script = temporary_directory().join(format!("pg_expiry_checkout_{}.sql", std::process::id()));
    fs::write(&script, SCRIPT).expect("the script");
    shop.run("CREATE SEQUENCE IF NOT EXISTS order_id CACHE 100");
    let mut rivals = NAMES.map(|name| Rival { name, figures: Vec::new() });
    for _ in 0..scale.rounds {
        for (with_policy, rival) in [true, false].into_iter().zip(&mut rivals) {
            shop.fill(0, "now()");
            if with_policy {
                shop.create_policy("cancel_order(bigint)", "");
                shop.wait_for_worker();
            }
            let seconds = scale.checkout_s.to_string();
            let mut pgbench = cluster.program("pgbench");
            pgbench.args(["-n", "-M", "prepared", "-c", "64", "-j", "2", "-T", &seconds, "-f"]);
            let output = pgbench.arg(&script).arg(&shop.db.name).output().expect("pgbench");
            let said = String::from_utf8_lossy(&output.stdout);
            let rate = said.lines().find_map(|line| line.strip_prefix("tps = "));
            let rate = rate.and_then(|rate| rate.split(' ').next()?.parse().ok());
            rival.figures.push(rate.unwrap_or_else(|| panic!("pgbench: {output:?}")));
            if with_policy {
                shop.run("SELECT expiry.drop_policy('orders')");
            }
        }
    }
    fs::remove_file(script).expect("the script");
    Contest { title: "Checkouts of 64 clients", unit: "orders/s", rivals: rivals.into() }
}

/// The 99th percentile of checkouts that take from the stock, in milliseconds.
pub fn run_beside_a_drain(shop: &mut Shop, scale: &Scale) -> Contest {
    const NAMES: [&str; 3] =
        ["nothing else", "beside a drain, function for a batch", "beside a drain, function for an order"];
    const FUNCTIONS: [Option<&str>; 3] =
        [None, Some("cancel_orders(bigint[])"), Some("cancel_order(bigint)")];
    shop.run("CREATE SEQUENCE IF NOT EXISTS order_id CACHE 100");
    let mut rivals = NAMES.map(|name| Rival { name, figures: Vec::new() });
    for _ in 0..scale.rounds {
        for (function, rival) in FUNCTIONS.into_iter().zip(&mut rivals) {
            shop.fill(scale.backlog, "now() - interval '1 h' + id * interval '1 ms'");
            let is_over = AtomicBool::new(false);
            let customers: Vec<Client> = (0..4).map(|_| shop.connect()).collect();
            let late = thread::scope(|scope| {
                let customers: Vec<_> =
                    customers.into_iter().map(|client| scope.spawn(|| check_out(client, &is_over))).collect();
                match function {
                    Some(function) => {
                        shop.create_policy(function, "");
                        shop.wait_until_drained();
                        shop.run("SELECT expiry.drop_policy('orders')");
                    }
                    None => thread::sleep(Duration::from_secs(scale.checkout_s)),
                }
                is_over.store(true, Ordering::Relaxed);
                customers.into_iter().flat_map(|customer| customer.join().expect("a customer")).collect()
            });
            rival.figures.push(percentile(&sorted(late), 99.0));
        }
    }
    Contest { title: "Checkout, p99", unit: "ms", rivals: rivals.into() }
}

/// A customer every few milliseconds; how long each checkout took, in milliseconds.
fn check_out(mut client: Client, is_over: &AtomicBool) -> Vec<f64> {
    const THINKS: Duration = Duration::from_millis(5);
    let mut took = Vec::new();
    let mut sku = 0;
    while !is_over.load(Ordering::Relaxed) {
        sku = sku % 100 + 1;
        let begun = Instant::now();
        let mut tx = client.transaction().expect("BEGIN");
        tx.execute("UPDATE stock SET qty = qty - 1 WHERE sku = $1", &[&sku]).expect("stock");
        let order =
            "INSERT INTO orders (id, sku, pay_by) VALUES (-nextval('order_id'), $1, now() + interval '1 h')";
        tx.execute(order, &[&sku]).expect("an order");
        tx.commit().expect("COMMIT");
        took.push(begun.elapsed().as_secs_f64() * 1000.0);
        thread::sleep(THINKS);
    }
    took
}

fn sorted(mut figures: Vec<f64>) -> Vec<f64> {
    figures.sort_by(f64::total_cmp);
    figures
}
