//! What a look ahead costs, by how many orders are pending: it must not depend on them.

use std::process::Command;
use std::time::{Duration, Instant};

use pg_expiry_tests::Cluster;

use crate::contest::{Axis, Contest, Line, Part, Plot, Shape, Target, median};
use crate::idle;
use crate::scale::Scale;
use crate::shop::{FAR, FAR_DEADLINE, Shop};

/// The fewest orders; ten times as many each time.
const FEWEST: i64 = 10_000;

pub fn run(cluster: &Cluster, shop: &mut Shop, scale: &Scale) -> Part {
    let sizes: Vec<i64> = sizes(scale.most_pending.min(most_that_fit(cluster)));
    let names =
        || sizes.iter().map(|pending| format!("{} pending", crate::contest::in_words(*pending as f64)));
    let mut took = Contest::new("a look by hand", "ms", names());
    let mut blocks = Contest::new("pages of the index a look", "pages", names());
    let mut idle_cpu = Contest::new("worker's CPU", "% of one processor", names());
    shop.fill(0, "now()");
    let mut pending = 0;
    for (place, size) in sizes.iter().enumerate() {
        println!("  {} more orders come in", size - pending);
        shop.add(FAR + pending, size - pending, FAR_DEADLINE);
        pending = *size;
        shop.tidy();
        for _ in 0..scale.rounds {
            shop.create_policy("cancel_order(bigint)");
            let worker = shop.wait_for_worker();
            let (used, passed) = idle::cpu_while(&[worker], Duration::from_secs(scale.idle_s));
            idle_cpu.push(place, used.as_secs_f64() / passed.as_secs_f64() * 100.0);
            shop.drop_policy();
        }
        // By hand, with no worker beside it.
        cluster.set("pg_expiry.databases", "none");
        shop.create_policy("cancel_order(bigint)");
        for _ in 0..scale.rounds {
            let (look_ms, pages) = looks(shop, scale.looks);
            took.push(place, look_ms);
            blocks.push(place, pages);
        }
        shop.drop_policy();
        cluster.reset("pg_expiry.databases");
    }
    let last = sizes.len() - 1;
    let line = |contest: &Contest| {
        let medians = (0..sizes.len()).map(|place| (sizes[place] as f64, contest.median(place)));
        Line { name: contest.title.clone(), shape: Shape::Points(medians.collect()) }
    };
    let plot = Plot {
        name: "lookahead".into(),
        title: "What a look ahead costs".into(),
        x: Axis::log("orders pending, none due"),
        y: Axis::linear("ms"),
        lines: vec![line(&took)],
    };
    let ratio = took.median(last) / took.median(0);
    let targets = vec![
        Target::at_most(1.2, ratio, &format!("a look with {} pending, × with {FEWEST}", sizes[last])),
        Target::at_most(0.1, idle_cpu.median(last), "CPU of the idle worker, in % of one processor"),
    ];
    Part {
        title: "A look ahead".into(),
        how: format!(
            "So many orders are pending, and none is due. CALL expiry.run() is the pass that the worker makes every \
             second: the median time of {} calls in one session, and the pages of the deadline index that one reads or \
             finds in the cache. The worker's CPU is over {} s.",
            scale.looks, scale.idle_s
        ),
        notes: vec!["Sizes follow one another, and are not interleaved: the table grows.".into()],
        contests: vec![took, blocks, idle_cpu],
        targets,
        plots: vec![plot],
        ..Part::default()
    }
}

/// How many orders the disk takes, rounded down to a power of ten.
fn most_that_fit(cluster: &Cluster) -> i64 {
    const BYTES_OF_ORDER: i64 = 400; // table, two indexes, WAL; and a third of the disk stays free
    let df = Command::new("df").args(["--output=avail", "--block-size=1"]).arg(cluster.data()).output();
    let said = String::from_utf8(df.expect("df").stdout).expect("figures");
    let free: i64 = said.lines().last().and_then(|line| line.trim().parse().ok()).expect("bytes");
    10_i64.pow((free / BYTES_OF_ORDER).ilog10())
}

fn sizes(most: i64) -> Vec<i64> {
    let mut sizes: Vec<i64> =
        std::iter::successors(Some(FEWEST), |size| Some(size * 10)).take_while(|size| *size < most).collect();
    sizes.push(most);
    sizes
}

/// The median time of a look, and how many pages of the index it touches.
fn looks(shop: &mut Shop, looks: usize) -> (f64, f64) {
    let touched = "SELECT (idx_blks_read + idx_blks_hit)::float8 FROM pg_statio_user_indexes
                   WHERE indexrelname = 'orders_deadline'";
    shop.run("CALL expiry.run('orders')");
    shop.run("SELECT pg_stat_force_next_flush()");
    let before: f64 = shop.value(touched);
    let mut took = Vec::new();
    for _ in 0..looks {
        let begun = Instant::now();
        shop.run("CALL expiry.run('orders')");
        took.push(begun.elapsed().as_secs_f64() * 1000.0);
    }
    shop.run("SELECT pg_stat_force_next_flush()");
    let after: f64 = shop.value(touched);
    (median(&took), (after - before) / looks as f64)
}
