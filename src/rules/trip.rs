//! When a policy pauses itself. One bad row is that row's affair; a broken function is the policy's.
//!
//! ```text
//!            THRESHOLD rows fail, none succeeds between
//!   Working ───────────────────────────────────────────▶ Tripped ──┐ a probe fails:
//!      ▲                                                    │  ▲   │ wait twice as long,
//!      └──────────────── a probe succeeds ──────────────────┘  └───┘ up to a minute
//! ```

/// Different rows that must fail in a row, with no success between, before it is the function's fault.
pub const THRESHOLD: u32 = 16;
const FIRST_PAUSE_US: i64 = 1_000_000;
const LONGEST_PAUSE_US: i64 = 60_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trip {
    /// Next: Working, Tripped.
    Working { failures: u32 },
    /// Next: Tripped, Working. One row is tried at `probe_at_us`.
    Tripped { probe_at_us: i64, pause_us: i64 },
}

impl Default for Trip {
    fn default() -> Self {
        Self::Working { failures: 0 }
    }
}

/// What happened to calls of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// At least one call succeeded or declined.
    Success,
    /// That many rows failed that had not failed before.
    Failures(u32),
    /// A row failed that had failed before.
    Repeat,
}

impl Trip {
    /// The only place that changes the state.
    #[must_use]
    pub fn after(self, seen: Seen, now_us: i64) -> Self {
        match (self, seen) {
            (_, Seen::Success) => Self::Working { failures: 0 },
            (Self::Working { failures }, Seen::Failures(more)) if failures + more >= THRESHOLD => {
                Self::Tripped { probe_at_us: now_us + FIRST_PAUSE_US, pause_us: FIRST_PAUSE_US }
            }
            (Self::Working { failures }, Seen::Failures(more)) => Self::Working { failures: failures + more },
            (Self::Working { failures }, Seen::Repeat) => Self::Working { failures },
            (Self::Tripped { pause_us, .. }, Seen::Failures(_) | Seen::Repeat) => {
                let pause_us = (pause_us * 2).min(LONGEST_PAUSE_US);
                Self::Tripped { probe_at_us: now_us + pause_us, pause_us }
            }
        }
    }

    pub fn is_tripped(self) -> bool {
        matches!(self, Self::Tripped { .. })
    }

    /// Not before this instant may the policy claim; `None`: at any time.
    pub fn pauses_until_us(self) -> Option<i64> {
        match self {
            Self::Working { .. } => None,
            Self::Tripped { probe_at_us, .. } => Some(probe_at_us),
        }
    }
}
