//! When notifications are withheld. The queue is the cluster's: a listener that sits in a transaction keeps
//! it from being emptied, and when it is full every COMMIT that notifies fails. So we stop at half of it and
//! begin again below a quarter, when listeners are told to catch up.

/// Shares of the queue in use.
pub const STOP_AT: f64 = 0.5;
pub const RESUME_BELOW: f64 = 0.25;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queue {
    /// Next: Withheld.
    #[default]
    Open,
    /// Next: Open.
    Withheld,
}

impl Queue {
    /// What the queue's usage (its share in use, 0 to 1) makes of the state.
    #[must_use]
    pub fn at_usage(self, usage: f64) -> Self {
        match self {
            Self::Open if usage > STOP_AT => Self::Withheld,
            Self::Withheld if usage < RESUME_BELOW => Self::Open,
            state => state,
        }
    }
}
