//! How much is measured: the real thing, ten minutes, or just enough to see that all of it works.

#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub name: &'static str,
    pub rounds: usize,
    /// Orders of a backlog.
    pub backlog: i64,
    /// Of the one that drains under an old snapshot, which takes time that grows with its square.
    pub backlog_under_snapshot: i64,
    /// Of the one that drains beside checkouts.
    pub backlog_beside_checkouts: i64,
    /// Of the one that others work off, some of them a thousandth as quick.
    pub backlog_of_peers: i64,
    /// Orders that are pending and not due, where that matters.
    pub pending: i64,
    /// Deadlines a second of a spread, and how many seconds of them for us and the timer, and for others.
    pub deadlines_per_s: i64,
    pub spread_s: i64,
    pub spread_of_peers_s: i64,
    /// The first of them comes that long after the orders, so that everybody has been told of them.
    pub lead_s: i64,
    /// Orders with one and the same deadline.
    pub instant: i64,
    pub checkout_s: u64,
    /// Of each scheme that is told about an order at checkout.
    pub scheme_s: u64,
    /// How long nothing happens.
    pub idle_s: u64,
    /// How many times it is looked ahead, and the most orders that are pending then, if the disk takes them.
    pub looks: usize,
    pub most_pending: i64,
    /// By one worker, whose memory is watched.
    pub cancellations: i64,
}

impl Scale {
    pub const FULL: Scale = Scale {
        name: "full",
        rounds: 5,
        backlog: 500_000,
        backlog_under_snapshot: 500_000,
        backlog_beside_checkouts: 200_000,
        backlog_of_peers: 10_000,
        pending: 1_000_000,
        deadlines_per_s: 333,
        spread_s: 60,
        spread_of_peers_s: 12,
        lead_s: 5,
        instant: 10_000,
        checkout_s: 10,
        scheme_s: 5,
        idle_s: 8,
        looks: 500,
        most_pending: 100_000_000,
        cancellations: 5_000_000,
    };
    pub const QUICK: Scale = Scale {
        name: "quick",
        rounds: 3,
        backlog: 100_000,
        backlog_under_snapshot: 100_000,
        backlog_beside_checkouts: 100_000,
        backlog_of_peers: 2000,
        pending: 50_000,
        deadlines_per_s: 333,
        spread_s: 6,
        spread_of_peers_s: 3,
        lead_s: 3,
        instant: 10_000,
        checkout_s: 3,
        scheme_s: 1,
        idle_s: 2,
        looks: 200,
        most_pending: 1_000_000,
        cancellations: 200_000,
    };
    pub const TINY: Scale = Scale {
        name: "tiny",
        rounds: 1,
        backlog: 5000,
        backlog_under_snapshot: 5000,
        backlog_beside_checkouts: 5000,
        backlog_of_peers: 2500,
        pending: 2000,
        deadlines_per_s: 50,
        spread_s: 2,
        spread_of_peers_s: 2,
        lead_s: 3,
        instant: 500,
        checkout_s: 1,
        scheme_s: 1,
        idle_s: 1,
        looks: 20,
        most_pending: 20_000,
        cancellations: 20_000,
    };

    pub fn named(name: &str) -> Scale {
        [Scale::FULL, Scale::QUICK, Scale::TINY]
            .into_iter()
            .find(|scale| scale.name == name)
            .unwrap_or_else(|| panic!("SCALE is full, quick or tiny, not {name}"))
    }
}
