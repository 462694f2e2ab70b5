//! A backlog is worked off: how many orders a second, by whom.

use std::thread;
use std::time::Instant;

use pg_expiry_tests::Cluster;
use pg_expiry_tests::postgres::Client;

use crate::contest::{Axis, Contest, Line, Part, Plot, Shape, Target};
use crate::scale::Scale;
use crate::shop::{OVERDUE, Shop};

/// Who works it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// pg_expiry with the function for a batch.
    Array,
    /// The same in larger batches, as large as the target time of a batch allows.
    LargeArray,
    /// pg_expiry with the function for an order.
    Row,
    /// A loop in SQL that does what the function for a batch does.
    SqlBatches,
    /// The same, which also tells of each order.
    SqlBatchesTold,
    /// The former in so much larger batches.
    SqlLargeBatches,
    /// A loop in SQL that calls the function for an order.
    SqlRows,
    /// The same, which also tells of each order.
    SqlRowsTold,
    /// One statement for all of it.
    SqlAtOnce,
    /// pg_expiry with a worker and an assistant.
    TwoWorkers,
    /// Two sessions with a loop in SQL.
    TwoLoops,
    /// The same, which also tell of each order.
    TwoLoopsTold,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            By::Array => "pg_expiry, function for a batch",
            By::LargeArray => "pg_expiry, function for a batch, batch_size => 10000",
            By::Row => "pg_expiry, function for an order",
            By::SqlBatches => "SQL loop, batches of 1000",
            By::SqlLargeBatches => "SQL loop, batches of 10000",
            By::SqlRows => "SQL loop, batches of 1000, function for each order",
            By::SqlAtOnce => "SQL, one statement for all",
            By::TwoWorkers => "pg_expiry, two workers",
            By::TwoLoops => "two SQL loops at once, batches of 1000",
            By::SqlBatchesTold | By::SqlRowsTold | By::TwoLoopsTold => {
                "the same, with an event and a notification for each order"
            }
        }
    }

    fn has_events(self) -> bool {
        matches!(self, By::Array | By::LargeArray | By::Row | By::TwoWorkers)
    }

    fn drain(self, shop: &mut Shop, orders: i64) {
        match self {
            By::Array => pg_expiry(shop, orders, "cancel_orders(bigint[])", ""),
            By::LargeArray => pg_expiry(shop, orders, "cancel_orders(bigint[])", "batch_size => 10000"),
            By::Row => pg_expiry(shop, orders, "cancel_order(bigint)", ""),
            By::TwoWorkers => pg_expiry(shop, orders, "cancel_orders_in_turn(bigint[])", ""),
            By::SqlBatches => shop.run("CALL drain_by_batch(1000, false)"),
            By::SqlBatchesTold => shop.run("CALL drain_by_batch(1000, true)"),
            By::SqlLargeBatches => shop.run("CALL drain_by_batch(10000, false)"),
            By::SqlRows => shop.run("CALL drain_by_row(1000, false)"),
            By::SqlRowsTold => shop.run("CALL drain_by_row(1000, true)"),
            By::SqlAtOnce => shop.run("CALL drain_at_once()"),
            By::TwoLoops => two_loops(shop, "CALL drain_in_turn(1000, false)"),
            By::TwoLoopsTold => two_loops(shop, "CALL drain_in_turn(1000, true)"),
        }
    }
}

fn pg_expiry(shop: &mut Shop, orders: i64, function: &str, options: &str) {
    shop.create_policy_with(function, options);
    shop.wait_until_cancelled(orders, || ());
    shop.drop_policy();
}

fn two_loops(shop: &Shop, call: &'static str) {
    let drain = |mut session: Client| move || session.batch_execute(call);
    let loops = [shop.connect(), shop.connect()].map(|session| thread::spawn(drain(session)));
    loops.into_iter().for_each(|each| each.join().expect("a loop").expect("a loop"));
}

/// With nobody else on the server.
pub fn run(shop: &mut Shop, scale: &Scale) -> Part {
    const ALL: [By; 9] = [
        By::Array,
        By::LargeArray,
        By::SqlBatches,
        By::SqlBatchesTold,
        By::SqlLargeBatches,
        By::SqlAtOnce,
        By::Row,
        By::SqlRows,
        By::SqlRowsTold,
    ];
    let (contest, lines) = contest(shop, scale, scale.backlog, &ALL, |_| None);
    let targets = vec![
        Target::at_least(0.8, contest.ratio(0, 2), "function for a batch, × the SQL loop in batches of 1000"),
        Target::at_least(0.8, contest.ratio(6, 7), "function for an order, × the SQL loop that calls it"),
    ];
    Part {
        title: "A backlog, beside plain SQL".into(),
        how: format!(
            "{} orders are overdue; how many are cancelled a second, from the first commit to the last. pg_expiry \
             writes an event and a notification for each order, the SQL does not, unless it says so. One statement \
             for all is one transaction: it holds the lock of each order and each stock row until the last one is done.",
            scale.backlog
        ),
        plots: vec![plot("backlog", "A backlog drains", lines)],
        contests: vec![contest],
        targets,
        ..Part::default()
    }
}

/// By two at once, if this pg_expiry can.
pub fn run_shared(cluster: &Cluster, shop: &mut Shop, scale: &Scale) -> Part {
    let title = "A backlog, shared by two".to_owned();
    if shop.value("SELECT NOT EXISTS (SELECT FROM pg_settings WHERE name = 'pg_expiry.workers')") {
        let notes = vec!["Not measured: this version has no pg_expiry.workers.".into()];
        return Part { title, notes, ..Part::default() };
    }
    cluster.set("pg_expiry.workers", "2");
    let (contest, _) =
        contest(shop, scale, scale.backlog, &[By::TwoWorkers, By::TwoLoops, By::TwoLoopsTold], |_| None);
    cluster.reset("pg_expiry.workers");
    Part {
        title,
        how: format!(
            "{} orders are overdue. The function for a batch locks the stock rows in the order of their key first, \
             so that two never wait for each other in a circle; it holds them until its commit.",
            scale.backlog
        ),
        targets: vec![Target::at_least(0.8, contest.ratio(0, 1), "two workers, × two SQL loops at once")],
        contests: vec![contest],
        ..Part::default()
    }
}

/// While a session holds an old snapshot, so that nothing dead can be removed.
pub fn run_under_old_snapshot(shop: &mut Shop, scale: &Scale) -> Part {
    const ALL: [By; 4] = [By::Array, By::LargeArray, By::SqlBatches, By::SqlLargeBatches];
    let orders = scale.backlog_under_snapshot;
    let (contest, lines) = contest(shop, scale, orders, &ALL, |shop| {
        let mut holder = shop.connect();
        holder.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").expect("a snapshot");
        Some(holder)
    });
    Part {
        title: "A backlog under an old snapshot".into(),
        how: format!(
            "{orders} orders are overdue, and a session holds a snapshot from before, as a long report or a forgotten \
             transaction does: no dead version of a row can be removed. Each batch leaves a version of each stock row \
             behind, and who wants the newest one passes them all; so fewer and larger batches win, and the time \
             grows with the square of the backlog. batch_size is the most rows of a batch; pg_expiry takes as many of \
             them as it can cancel within pg_expiry.target_batch_time."
        ),
        plots: vec![plot("snapshot", "A backlog drains under an old snapshot", lines)],
        targets: vec![
            Target::at_least(
                2.0,
                contest.ratio(0, 2),
                "function for a batch, × the SQL loop in batches of 1000",
            ),
            Target::at_least(
                2.0,
                contest.ratio(1, 2),
                "function for a batch, batch_size => 10000, × the SQL loop in batches of 1000",
            ),
        ],
        contests: vec![contest],
        ..Part::default()
    }
}

/// And the first round of each as a line.
fn contest(
    shop: &mut Shop,
    scale: &Scale,
    orders: i64,
    all: &[By],
    disturb: impl Fn(&Shop) -> Option<Client>,
) -> (Contest, Vec<Line>) {
    let mut contest = Contest::new("cancelled", "orders/s", all.iter().map(|by| by.name()));
    let mut lines = Vec::new();
    for round in 0..scale.rounds {
        for (place, by) in all.iter().enumerate() {
            shop.fill(orders, OVERDUE);
            let holder = disturb(shop);
            let begun = Instant::now();
            by.drain(shop, orders);
            let took = begun.elapsed();
            drop(holder);
            shop.assert_exact(orders, by.has_events());
            contest.push(place, shop.cancelled_per_s(took));
            if round == 0 && *by != By::SqlAtOnce {
                lines.push(Line { name: by.name().into(), shape: Shape::Points(shop.progress()) });
            }
        }
    }
    (contest, lines)
}

pub fn plot(name: &str, title: &str, lines: Vec<Line>) -> Plot {
    Plot {
        name: name.into(),
        title: format!("{title}, first round"),
        x: Axis::linear("seconds since the first commit"),
        y: Axis::linear("orders cancelled"),
        lines,
    }
}
