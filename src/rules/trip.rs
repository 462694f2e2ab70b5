//! When a policy pauses itself. One bad row is that row's affair; a broken function is the policy's.
//!
//! ```text
//!           THRESHOLD rows fail,           PROBES of the
//!           none succeeds between          youngest fail too
//!   Working ────────────────────▶ Doubting ────────────────▶ Tripped ──┐ PROBES more fail:
//!      ▲                             │                        │  ▲    │ wait twice as long,
//!      └───── a row succeeds ────────┴────────────────────────┘  └────┘ up to a minute
//! ```
//!
//! The doubt is there because many bad rows, all older than the good ones, look like a broken function
//! until a young row is tried.

/// Different rows that must fail in a row, with no success between, before it may be the function's fault.
pub const THRESHOLD: u32 = 16;
/// Rows that are tried one by one to see whether any call works.
pub const PROBES: u32 = 3;
const FIRST_PAUSE_US: i64 = 1_000_000;
const LONGEST_PAUSE_US: i64 = 60_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trip {
    /// Next: Working, Doubting.
    Working { failures: u32 },
    /// Next: Working, Doubting, Tripped. So many rows are still to be tried.
    Doubting { probes: u32 },
    /// Next: Tripped, Working. So many rows are tried, the first at `probe_at_us`.
    Tripped { probe_at_us: i64, pause_us: i64, probes: u32 },
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
    /// The only place, with [`Self::probed_sooner`], that changes the state.
    #[must_use]
    pub fn after(self, seen: Seen, now_us: i64) -> Self {
        match (self, seen) {
            (_, Seen::Success) => Self::Working { failures: 0 },
            (Self::Working { failures }, Seen::Failures(more)) if failures + more >= THRESHOLD => {
                Self::Doubting { probes: PROBES }
            }
            (Self::Working { failures }, Seen::Failures(more)) => Self::Working { failures: failures + more },
            (Self::Working { failures }, Seen::Repeat) => Self::Working { failures },
            (Self::Doubting { probes }, _) if probes > 1 => Self::Doubting { probes: probes - 1 },
            (Self::Doubting { .. }, _) => Self::tripped(now_us, FIRST_PAUSE_US),
            (Self::Tripped { probes, probe_at_us, pause_us }, _) if probes > 1 => {
                Self::Tripped { probes: probes - 1, probe_at_us, pause_us }
            }
            (Self::Tripped { pause_us, .. }, _) => {
                Self::tripped(now_us, (pause_us * 2).min(LONGEST_PAUSE_US))
            }
        }
    }

    fn tripped(now_us: i64, pause_us: i64) -> Self {
        Self::Tripped { probe_at_us: now_us + pause_us, pause_us, probes: PROBES }
    }

    /// Something has changed that may have been what was wrong.
    #[must_use]
    pub fn probed_sooner(self, at_us: i64) -> Self {
        match self {
            Self::Tripped { probe_at_us, pause_us, probes } => {
                Self::Tripped { probe_at_us: probe_at_us.min(at_us), pause_us, probes }
            }
            other => other,
        }
    }

    /// Whether one row at a time is to be tried, the youngest first.
    pub fn is_probing(self) -> bool {
        !matches!(self, Self::Working { .. })
    }

    pub fn is_tripped(self) -> bool {
        matches!(self, Self::Tripped { .. })
    }

    /// Not before this instant are rows tried that have had their chance; `None`: at any time.
    pub fn pauses_until_us(self) -> Option<i64> {
        match self {
            Self::Working { .. } | Self::Doubting { .. } => None,
            Self::Tripped { probe_at_us, .. } => Some(probe_at_us),
        }
    }
}
