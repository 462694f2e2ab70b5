//! A backlog is worked off by each of those that people use.

use std::time::Instant;

use crate::backlog::plot;
use crate::contest::{Contest, Line, Part, Shape};
use crate::peers::Peer;
use crate::scale::Scale;
use crate::shop::{OVERDUE, Shop};

pub fn run(shop: &mut Shop, peers: &mut [Box<dyn Peer>], scale: &Scale) -> Part {
    let orders = scale.backlog_of_peers;
    let mut contest = Contest::new("cancelled", "orders/s", peers.iter().map(|peer| peer.name()));
    let mut lines = Vec::new();
    for round in 0..scale.rounds {
        for (place, peer) in peers.iter_mut().enumerate() {
            peer.forget(shop);
            shop.fill(orders, OVERDUE);
            peer.learn(shop, 1..orders + 1);
            shop.tidy();
            let begun = Instant::now();
            peer.start(shop);
            shop.wait_until_cancelled(orders, || {
                peer.pids();
            });
            let took = begun.elapsed();
            peer.stop(shop);
            shop.assert_exact(orders, peer.has_events());
            contest.push(place, shop.cancelled_per_s(took));
            if round == 0 {
                lines.push(Line { name: peer.name().into(), shape: Shape::Points(shop.progress()) });
            }
        }
    }
    Part {
        title: "A backlog, beside what people use".into(),
        how: format!(
            "{orders} orders are overdue, and everybody has been told of them; then each goes to work. Orders a second \
             from the first commit to the last. pg_cron and the poller run a loop of set-wise batches in SQL; pg_expiry \
             and all others call the function for an order, once for each."
        ),
        contests: vec![contest],
        plots: vec![plot("peers", "A backlog drains", lines)],
        ..Part::default()
    }
}
