//! How late after its deadline an order is cancelled: from the deadline to the commit, by the server's own
//! commit timestamps, whoever cancelled it. And what those who wait for deadlines cost meanwhile.

use std::ops::Range;
use std::thread;
use std::time::Duration;

use pg_expiry_tests::Cluster;

use crate::contest::{Axis, Contest, Line, Part, Plot, Shape, Target, median, percentile};
use crate::idle;
use crate::peers::Peer;
use crate::pgbench::Pgbench;
use crate::scale::Scale;
use crate::shop::{FAR, FAR_DEADLINE, Shop};

const PERCENTILES: [(&str, f64); 3] = [("p50", 50.0), ("p99", 99.0), ("max", 100.0)];

/// The parts on lateness, and on what waiting costs.
pub fn run(cluster: &Cluster, shop: &mut Shop, peers: &mut [Box<dyn Peer>], scale: &Scale) -> [Part; 2] {
    let names: Vec<&str> = peers.iter().map(|peer| peer.name()).collect();
    let mut lateness =
        PERCENTILES.map(|(title, percent)| (Contest::new(title, "ms", names.clone()), percent));
    let mut costs = idle::Costs::new(&names);
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); peers.len()];

    shop.fill(0, "now()");
    shop.add(FAR, scale.pending, FAR_DEADLINE);
    for peer in peers.iter_mut() {
        println!("  {} is told of {} orders that are far from due", peer.name(), scale.pending);
        peer.learn(shop, FAR..FAR + scale.pending);
    }
    for _ in 0..scale.rounds {
        shop.keep_far_orders();
        costs.push_server_alone(cluster, shop, scale);
        for (place, peer) in peers.iter_mut().enumerate() {
            shop.keep_far_orders();
            peer.start(shop);
            costs.push(place, cluster, shop, peer.as_mut(), scale);
            let seconds = spread_of(peer.as_ref(), scale);
            let late = watch(shop, peer.as_mut(), seconds, scale);
            peer.stop(shop);
            for (contest, percent) in &mut lateness {
                contest.push(place, percentile(&late, *percent));
            }
            samples[place].extend(late.iter().map(|late| (late * 1000.0).round() / 1000.0));
        }
    }
    peers.iter_mut().for_each(|peer| peer.forget(shop));

    let contests = lateness.map(|(contest, _)| contest);
    let timer = names.iter().position(|name| *name == "timer in memory").expect("the timer");
    let targets = vec![
        Target::at_most(1.5, contests[0].ratio(0, timer), "p50, × that of the timer in memory"),
        Target::at_most(3.0, contests[1].ratio(0, timer), "p99, × that of the timer in memory"),
    ];
    let shapes = samples.into_iter().map(Shape::Distribution);
    let lines = names.iter().zip(shapes).map(|(name, shape)| Line { name: (*name).into(), shape });
    let plot = Plot {
        name: "lateness".into(),
        title: "How late orders are cancelled, all rounds".into(),
        x: Axis::log("lateness in ms"),
        y: Axis::linear("% of the orders"),
        lines: lines.collect(),
    };
    let part = Part {
        title: "Lateness".into(),
        how: format!(
            "{} deadlines a second for {} s (pg_expiry and the timer) or {} s (the others, at the same rate), among {} \
             pending orders that are not due, of which everybody has been told as well. Lateness is the time stamp of \
             the commit minus the deadline, both by the server's clock; none was early. The flush to disk comes after \
             that stamp, for everybody.",
            scale.deadlines_per_s, scale.spread_s, scale.spread_of_peers_s, scale.pending
        ),
        contests: contests.into(),
        targets,
        plots: vec![plot],
        ..Part::default()
    };
    [part, costs.part(scale)]
}

fn spread_of(peer: &dyn Peer, scale: &Scale) -> i64 {
    let is_compared = matches!(peer.name(), "pg_expiry" | "timer in memory");
    if is_compared { scale.spread_s } else { scale.spread_of_peers_s }
}

/// Orders come in whose deadlines are spread over so many seconds; how late each was cancelled, sorted.
fn watch(shop: &mut Shop, peer: &mut dyn Peer, seconds: i64, scale: &Scale) -> Vec<f64> {
    let orders = scale.deadlines_per_s * seconds;
    let pay_by = format!("now() + interval '{} s' + interval '{seconds} s' * id / {orders}", scale.lead_s);
    shop.add(1, orders, &pay_by);
    peer.learn(shop, Range { start: 1, end: orders + 1 });
    shop.wait_until_cancelled(orders, || {
        peer.pids();
    });
    shop.assert_exact(orders, peer.has_events());
    let late = shop.lateness_ms(orders);
    assert!(late[0] >= 0.0, "{}: cancelled {} ms early", peer.name(), -late[0]);
    late
}

/// While checkouts keep all processors busy.
pub fn run_busy(cluster: &Cluster, shop: &mut Shop, peers: &mut [Box<dyn Peer>], scale: &Scale) -> Part {
    const CLIENTS: usize = 16;
    const RUN_UP: Duration = Duration::from_millis(500);
    // pg_expiry and the timer.
    let peers = &mut peers[..2];
    let names: Vec<&str> = peers.iter().map(|peer| peer.name()).collect();
    let mut contests =
        PERCENTILES.map(|(title, percent)| (Contest::new(title, "ms", names.clone()), percent));
    for _ in 0..scale.rounds {
        for (place, peer) in peers.iter_mut().enumerate() {
            shop.fill(0, "now()");
            peer.start(shop);
            let customers = Pgbench::start(cluster, shop, CLIENTS, 24 * 3600);
            thread::sleep(RUN_UP);
            let late = watch(shop, peer.as_mut(), scale.spread_of_peers_s, scale);
            drop(customers);
            peer.stop(shop);
            for (contest, percent) in &mut contests {
                contest.push(place, percentile(&late, *percent));
            }
        }
    }
    let contests = contests.map(|(contest, _)| contest);
    Part {
        title: "Lateness on a busy machine".into(),
        how: format!(
            "{} deadlines a second for {} s, while pgbench checks out as fast as it can, with {CLIENTS} clients: more \
             than there are processors, which are busy all the time.",
            scale.deadlines_per_s, scale.spread_of_peers_s
        ),
        targets: vec![Target::at_most(50.0, contests[1].median(0), "p99 of pg_expiry, in ms")],
        contests: contests.into(),
        ..Part::default()
    }
}

/// Many orders with one and the same deadline: until the last of them is cancelled, in milliseconds.
pub fn run_one_instant(shop: &mut Shop, scale: &Scale) -> Part {
    const FORMS: [(&str, &str, f64); 2] = [
        ("pg_expiry, function for an order", "cancel_order(bigint)", 500.0),
        ("pg_expiry, function for a batch", "cancel_orders(bigint[])", 200.0),
    ];
    let mut contest = Contest::new("the last one after", "ms", FORMS.map(|(name, ..)| name));
    for _ in 0..scale.rounds {
        for (place, (_, function, _)) in FORMS.into_iter().enumerate() {
            shop.fill(0, "now()");
            shop.create_policy(function);
            shop.wait_for_worker();
            shop.add(1, scale.instant, "now() + interval '3 s'");
            shop.wait_until_cancelled(scale.instant, || ());
            shop.drop_policy();
            shop.assert_exact(scale.instant, true);
            contest.push(place, percentile(&shop.lateness_ms(scale.instant), 100.0));
        }
    }
    let target = |(place, (name, _, limit)): (usize, (&str, &str, f64))| {
        Target::at_most(limit, median(&contest.rivals[place].figures), &format!("{name}, in ms"))
    };
    Part {
        title: "Many deadlines in one instant".into(),
        how: format!(
            "{} orders have one and the same deadline: how long until the last is cancelled.",
            scale.instant
        ),
        targets: FORMS.into_iter().enumerate().map(target).collect(),
        contests: vec![contest],
        ..Part::default()
    }
}
