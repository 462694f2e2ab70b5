//! How long to wait for a lock. Many rows may need a lock that somebody holds for minutes; if each of them
//! waited for all of `pg_expiry.lock_timeout`, rows that need no such lock would wait behind them.

/// Halves with each wait that was in vain, and doubles again with time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    halvings: u32,
    since_us: i64,
}

const LEAST_MS: i32 = 10;
const MOST_HALVINGS: u32 = 10;
/// One halving is forgotten after this long.
const RECOVERY_US: i64 = 5_000_000;

impl Patience {
    /// `setting_ms`: the longest wait; 0 is for ever. Else it is over before `deadlock_timeout_ms`, when
    /// somebody who waits for us looks for a deadlock: of two, it is he who would lose.
    pub fn limit_ms(self, setting_ms: i32, deadlock_timeout_ms: i32, now_us: i64) -> i32 {
        let most_ms = setting_ms.min((deadlock_timeout_ms / 5 * 4).max(1));
        (most_ms >> self.halvings_at(now_us)).max(LEAST_MS.min(most_ms))
    }

    /// A wait was in vain.
    pub fn ran_out(&mut self, now_us: i64) {
        *self = Self { halvings: (self.halvings_at(now_us) + 1).min(MOST_HALVINGS), since_us: now_us };
    }

    fn halvings_at(self, now_us: i64) -> u32 {
        let forgotten = now_us.saturating_sub(self.since_us).max(0) / RECOVERY_US;
        self.halvings.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_less_and_less_and_recovers() {
        let mut patience = Patience::default();
        let limits: Vec<i32> = (0..8)
            .map(|_| {
                let limit_ms = patience.limit_ms(500, 1000, 0);
                patience.ran_out(0);
                limit_ms
            })
            .collect();
        assert_eq!(limits, [500, 250, 125, 62, 31, 15, 10, 10]);
        assert_eq!(patience.limit_ms(500, 1000, 4 * RECOVERY_US), 31);
        assert_eq!(patience.limit_ms(500, 1000, 60 * RECOVERY_US), 500);
        assert_eq!((patience.limit_ms(0, 1000, 0), patience.limit_ms(4, 1000, 0)), (0, 4));
    }

    #[test]
    fn is_over_before_anybody_looks_for_a_deadlock() {
        let limits = [1, 10, 100, 600, 1000].map(|timeout| Patience::default().limit_ms(500, timeout, 0));
        assert_eq!(limits, [1, 8, 80, 480, 500]);
    }
}
