//! How much is measured: the real thing, ten minutes, or just enough to see that all of it works.

#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub rounds: usize,
    /// Orders of a backlog.
    pub backlog: i64,
    /// Orders that are pending and not due, where that matters.
    pub pending: i64,
    /// Orders whose deadlines are spread over so many seconds.
    pub deadlines: i64,
    pub deadlines_spread_s: i64,
    /// Orders with one and the same deadline.
    pub instant: i64,
    pub checkout_s: u64,
}

impl Scale {
    pub const FULL: Scale = Scale {
        rounds: 5,
        backlog: 500_000,
        pending: 1_000_000,
        deadlines: 20_000,
        deadlines_spread_s: 60,
        instant: 10_000,
        checkout_s: 10,
    };
    pub const QUICK: Scale = Scale {
        rounds: 3,
        backlog: 100_000,
        pending: 200_000,
        deadlines: 4000,
        deadlines_spread_s: 12,
        instant: 10_000,
        checkout_s: 5,
    };
    pub const TINY: Scale = Scale {
        rounds: 1,
        backlog: 2000,
        pending: 2000,
        deadlines: 100,
        deadlines_spread_s: 2,
        instant: 500,
        checkout_s: 3,
    };
}
