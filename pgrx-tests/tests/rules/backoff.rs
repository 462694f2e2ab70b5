//! The wait before the next attempt.

use proptest::prelude::*;

use super::decisions::backoff::{CAP_US, wait_us};

/// The longest `retry_delay` that the setting allows.
const LONGEST_FIRST_US: i64 = 86_400_000_000;

/// What the wait is without the jitter.
fn middle_us(first_us: i64, attempts: u32) -> i64 {
    let doubled = first_us.saturating_mul(1_i64 << (attempts - 1).min(40));
    doubled.min(CAP_US.max(first_us))
}

proptest! {
    #[test]
    fn wait_is_within_an_eighth_of_the_doubled_delay(
        first_us in 1..=LONGEST_FIRST_US, attempts in 1..=u32::MAX, noise: u64,
    ) {
        let middle = middle_us(first_us, attempts);
        let wait = wait_us(first_us, attempts, noise);
        prop_assert!(wait > 0);
        prop_assert!((wait - middle).abs() <= middle / 8 + 1, "{wait} is far from {middle}");
    }

    #[test]
    fn wait_grows_with_each_attempt_until_the_cap(
        first_us in 1..=LONGEST_FIRST_US, attempts in 1_u32..50, noise: u64, later_noise: u64,
    ) {
        let (now, next) = (middle_us(first_us, attempts), middle_us(first_us, attempts + 1));
        let (wait, later) = (wait_us(first_us, attempts, noise), wait_us(first_us, attempts + 1, later_noise));
        if next == now * 2 {
            prop_assert!(later > wait, "{later} after {wait}");
        } else {
            prop_assert!(later >= CAP_US - CAP_US / 8 - 1, "{later} is under the cap");
        }
    }

    #[test]
    fn senseless_delay_is_no_busy_loop(first_us in i64::MIN..=0, attempts: u32, noise: u64) {
        prop_assert!(wait_us(first_us, attempts, noise) > 0);
    }

    /// The noise is the time of the failure: rows of one batch fail microseconds apart.
    #[test]
    fn rows_that_failed_together_do_not_come_back_together(
        first_us in 10_000_i64..=LONGEST_FIRST_US, failed_at_us in 0..i64::MAX / 2, apart_us in 1_i64..5_000,
    ) {
        const ROWS: i64 = 200;
        let waits: Vec<i64> = (0..ROWS)
            .map(|row| wait_us(first_us, 1, (failed_at_us + row * apart_us).unsigned_abs()))
            .collect();
        let spread_us = middle_us(first_us, 1) / 4;
        let crowded = (0..8)
            .map(|eighth| {
                let from = middle_us(first_us, 1) - spread_us / 2 + spread_us * eighth / 8;
                waits.iter().filter(|wait| (from..from + spread_us / 8 + 1).contains(*wait)).count()
            })
            .max();
        prop_assert!(crowded < Some(ROWS as usize / 3), "{crowded:?} of {ROWS} come back in the same eighth");
    }
}
