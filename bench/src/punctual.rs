//! How late after its deadline an order is cancelled: from the deadline to the commit, by the server's own
//! commit timestamps, whoever cancelled it.

use std::thread;
use std::time::{Duration, Instant};

use pg_expiry_tests::postgres::Client;

use crate::contest::{Contest, Rival, percentile};
use crate::scale::Scale;
use crate::shop::Shop;

/// Who watches the deadlines.
#[derive(Clone, Copy, Debug)]
enum By {
    PgExpiry,
    /// A process that has all deadlines in memory, sleeps to the next and calls the function. A restart
    /// empties it.
    Timer,
    /// A loop that looks once a second.
    Poller,
}

/// The order of the contest's rivals: a percentile of each.
const ALL: [By; 3] = [By::PgExpiry, By::Timer, By::Poller];
const POLL: Duration = Duration::from_secs(1);

/// Deadlines begin that long after the last preparation.
const LEAD_S: i64 = 5;

impl By {
    fn name(self) -> &'static str {
        match self {
            By::PgExpiry => "pg_expiry",
            By::Timer => "timer in memory",
            By::Poller => "poller, each second",
        }
    }

    /// Cancels orders at their deadlines until none of the first `orders` is pending.
    fn watch(self, shop: &mut Shop, orders: i64) {
        match self {
            By::PgExpiry => shop.wait_until_cancelled(orders),
            By::Timer => Timer::load(shop, orders).run(),
            By::Poller => {
                let mut client = shop.connect();
                while shop.pending(orders) {
                    client.batch_execute("CALL drain_by_row(1000)").expect("a look");
                    thread::sleep(POLL);
                }
            }
        }
    }
}

/// All deadlines in memory, the next one first.
struct Timer {
    client: Client,
    /// By the clock of this process, which is the server's: it is the same machine.
    deadlines: Vec<(Instant, i64)>,
}

impl Timer {
    fn load(shop: &Shop, orders: i64) -> Timer {
        let mut client = shop.connect();
        let sql = "SELECT extract(epoch FROM pay_by - $2)::float8, id FROM orders
                   WHERE status = 'pending' AND id <= $1 ORDER BY pay_by";
        let (start, now) = (Instant::now(), std::time::SystemTime::now());
        let rows = client.query(sql, &[&orders, &now]).expect("deadlines");
        let at = |left_s: f64| start + Duration::from_secs_f64(left_s.max(0.0));
        Timer { client, deadlines: rows.iter().map(|row| (at(row.get(0)), row.get(1))).collect() }
    }

    fn run(&mut self) {
        let cancel = self.client.prepare("SELECT cancel_order($1)").expect("the function");
        for (deadline, id) in &self.deadlines {
            thread::sleep(deadline.saturating_duration_since(Instant::now()));
            self.client.execute(&cancel, &[id]).expect("a cancellation");
        }
    }
}

/// Percentiles of the lateness in milliseconds, each a contest of its own. `beside` runs all the time.
pub fn run(shop: &mut Shop, scale: &Scale) -> Vec<Contest> {
    let spread = format!(
        "now() + interval '{LEAD_S} s' + interval '{} s' * id / {}",
        scale.deadlines_spread_s, scale.deadlines
    );
    let mut figures: [Vec<Vec<f64>>; 3] = std::array::from_fn(|_| vec![Vec::new(); ALL.len()]);
    shop.fill(0, "now()");
    shop.add(10_000_000, scale.pending, "now() + interval '1 day' + id * interval '1 ms'");
    shop.run("VACUUM (ANALYZE) orders");
    for _ in 0..scale.rounds {
        for (place, by) in ALL.into_iter().enumerate() {
            shop.run("DELETE FROM orders WHERE id < 10000000; TRUNCATE expiry.event; UPDATE stock SET qty = 1000000");
            shop.run("VACUUM orders");
            shop.run("VACUUM FULL stock");
            if matches!(by, By::PgExpiry) {
                shop.create_policy("cancel_order(bigint)", "");
                shop.wait_for_worker();
            }
            shop.add(1, scale.deadlines, &spread);
            by.watch(shop, scale.deadlines);
            if matches!(by, By::PgExpiry) {
                shop.run("SELECT expiry.drop_policy('orders')");
            }
            shop.assert_exact(scale.deadlines, matches!(by, By::PgExpiry));
            let late = shop.lateness_ms(scale.deadlines);
            assert!(late[0] >= 0.0, "{}: cancelled {} ms early", by.name(), -late[0]);
            for (figures, percent) in figures.iter_mut().zip([50.0, 99.0, 100.0]) {
                figures[place].push(percentile(&late, percent));
            }
        }
    }
    let titles = ["Lateness, p50", "Lateness, p99", "Lateness, max"];
    let contest = |(title, figures): (&'static str, Vec<Vec<f64>>)| Contest {
        title,
        unit: "ms",
        rivals: ALL.iter().zip(figures).map(|(by, figures)| Rival { name: by.name(), figures }).collect(),
    };
    titles.into_iter().zip(figures).map(contest).collect()
}

/// Many orders with one and the same deadline: until the last of them is cancelled, in milliseconds.
pub fn run_one_instant(shop: &mut Shop, scale: &Scale) -> Contest {
    const NAMES: [(&str, &str); 2] = [
        ("pg_expiry, function for an order", "cancel_order(bigint)"),
        ("pg_expiry, function for a batch", "cancel_orders(bigint[])"),
    ];
    let mut rivals: Vec<Rival> = NAMES.iter().map(|(name, _)| Rival { name, figures: Vec::new() }).collect();
    for _ in 0..scale.rounds {
        for (rival, (_, function)) in rivals.iter_mut().zip(NAMES) {
            shop.fill(0, "now()");
            shop.create_policy(function, "");
            shop.wait_for_worker();
            shop.add(1, scale.instant, "now() + interval '3 s'");
            shop.wait_until_cancelled(scale.instant);
            shop.run("SELECT expiry.drop_policy('orders')");
            shop.assert_exact(scale.instant, true);
            rival.figures.push(percentile(&shop.lateness_ms(scale.instant), 100.0));
        }
    }
    Contest { title: "Orders with one deadline, until the last is cancelled", unit: "ms", rivals }
}
