//! How much is measured: the real thing, ten minutes, or just enough to see that all of it works.

#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub rounds: usize,
    /// Orders of a backlog.
    pub backlog: i64,
}

impl Scale {
    pub const FULL: Scale = Scale { rounds: 5, backlog: 500_000 };
    pub const QUICK: Scale = Scale { rounds: 3, backlog: 200_000 };
    pub const TINY: Scale = Scale { rounds: 1, backlog: 2000 };
}
