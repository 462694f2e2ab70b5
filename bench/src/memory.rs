//! The memory of a worker over very many cancellations.

use std::thread;
use std::time::Duration;

use crate::contest::{Axis, Contest, Line, Part, Plot, Shape, Target};
use crate::idle::memory_kb;
use crate::scale::Scale;
use crate::shop::{OVERDUE, Shop};

/// What came before has made the worker as large as it is.
const WARMED_UP: f64 = 0.05;

pub fn run(shop: &mut Shop, scale: &Scale) -> Part {
    let total = scale.cancellations;
    println!("  {total} orders come in");
    shop.fill(total, OVERDUE);
    let begun: i64 =
        shop.value("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM expiry.event_id_seq");
    shop.create_policy("cancel_orders(bigint[])");
    let worker = shop.wait_for_worker();
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut next = 0.1;
    loop {
        let id: i64 = shop.value("SELECT last_value FROM expiry.event_id_seq");
        let done = (id - begun) as f64;
        points.push((done, memory_kb(worker, "Anonymous:") as f64 / 1024.0));
        let pending = "SELECT EXISTS (SELECT FROM orders WHERE status = 'pending')";
        if done >= total as f64 && !shop.value::<bool>(pending) {
            break;
        }
        if done > next * total as f64 {
            println!("    {done:.0} orders cancelled, the worker has {:.1} MB", points[points.len() - 1].1);
            next += 0.1;
        }
        thread::sleep(Duration::from_millis(50));
    }
    shop.drop_policy();
    shop.assert_exact(total, true);

    let warm = points.iter().position(|(done, _)| *done >= WARMED_UP * total as f64).expect("the end");
    let mut contest = Contest::new("anonymous memory", "MB", ["after 5 %", "at the end", "at most"]);
    let most = points[warm..].iter().map(|(_, mb)| *mb).fold(0.0, f64::max);
    for (place, mb) in [points[warm].1, points[points.len() - 1].1, most].into_iter().enumerate() {
        contest.push(place, mb);
    }
    let grown = contest.median(1) - contest.median(0);
    let plot = Plot {
        name: "memory".into(),
        title: "Memory of the worker".into(),
        x: Axis::linear("orders cancelled"),
        y: Axis::linear("MB"),
        lines: vec![Line { name: "anonymous memory".into(), shape: Shape::Points(points) }],
    };
    Part {
        title: "Memory of a worker".into(),
        how: format!(
            "One worker cancels {total} orders in a row, with the function for a batch; its anonymous memory, by \
             /proc/PID/smaps_rollup. One round."
        ),
        targets: vec![Target::at_most(2.0, grown.abs(), "growth from 5 % of the orders to the last, in MB")],
        contests: vec![contest],
        plots: vec![plot],
        ..Part::default()
    }
}
