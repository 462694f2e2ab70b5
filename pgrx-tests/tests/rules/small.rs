//! Sweeps, trips, fault classes and lateness buckets.

use proptest::prelude::*;

use super::decisions::fault::{Fault, classify};
use super::decisions::lateness::{BUCKETS, bucket};
use super::decisions::sweep;
use super::decisions::trip::{PROBES, Seen, THRESHOLD, Trip};

const SECOND_US: i64 = 1_000_000;

proptest! {
    /// A worker that looks every `look_us` for as long as it takes to sweep a few dozen times.
    #[test]
    fn sweeps_take_at_most_a_fiftieth_of_the_time(
        durations in prop::collection::vec(0_i64..5 * SECOND_US, 2..40),
        lookahead_us in 10_000_i64..60 * SECOND_US, look_us in 1_000_i64..SECOND_US, start_us in 0_i64..1 << 60,
    ) {
        let (mut now, mut last, mut last_duration) = (start_us, start_us - 1, 0);
        let mut swept = 0;
        let mut begun = None;
        for duration in &durations {
            while !sweep::is_due(now, last, last_duration, lookahead_us) {
                now += look_us.max(last_duration / 10);
            }
            let begun = *begun.get_or_insert(now);
            prop_assert!(swept * 50 <= now - begun, "{swept} us in {} us", now - begun);
            (last, last_duration) = (now, *duration);
            swept += duration;
            now += duration;
        }
    }

    #[test]
    fn cheap_sweep_is_due_at_each_look_ahead(
        now_us in 0_i64..1 << 60, lookahead_us in 10_000_i64..60 * SECOND_US, share in 0.0_f64..1.0,
    ) {
        let duration_us = (lookahead_us as f64 / 50.0 * share) as i64;
        prop_assert!(sweep::is_due(now_us + lookahead_us, now_us, duration_us, lookahead_us));
        prop_assert!(!sweep::is_due(now_us + lookahead_us - 1, now_us, duration_us, lookahead_us));
    }

    #[test]
    fn clock_that_steps_back_makes_a_sweep_due(
        one_us: i64, other_us: i64, duration_us: i64, lookahead_us in 10_000_i64..60 * SECOND_US,
    ) {
        let (now_us, last_us) = (one_us.min(other_us), one_us.max(other_us));
        prop_assume!(now_us < last_us);
        prop_assert!(sweep::is_due(now_us, last_us, duration_us, lookahead_us));
    }

    #[test]
    fn first_claim_of_all_is_a_sweep(now_us in SECOND_US * 60..i64::MAX, lookahead_us in 10_000_i64..60 * SECOND_US) {
        prop_assert!(sweep::is_due(now_us, 0, 0, lookahead_us));
    }

    /// Whatever happens, in any order: a policy is in doubt exactly when THRESHOLD rows have failed for the
    /// first time since the last success, and trips when PROBES more have failed.
    #[test]
    fn policy_trips_when_different_rows_fail_in_a_row_and_not_before(
        history in prop::collection::vec(prop_oneof![
            1 => Just(Seen::Success),
            8 => (1_u32..6).prop_map(Seen::Failures),
            8 => Just(Seen::Repeat),
        ], 0..200),
    ) {
        let mut trip = Trip::default();
        let (mut failed, mut probed) = (0, 0);
        for (at, seen) in history.into_iter().enumerate() {
            trip = trip.after(seen, at as i64);
            match seen {
                Seen::Success => (failed, probed) = (0, 0),
                _ if failed >= THRESHOLD => probed += 1,
                Seen::Failures(more) => failed += more,
                Seen::Repeat => (),
            }
            prop_assert_eq!(trip.is_probing(), failed >= THRESHOLD);
            prop_assert_eq!(trip.is_tripped(), probed >= PROBES);
            prop_assert_eq!(trip.pauses_until_us().is_some(), trip.is_tripped());
        }
    }

    #[test]
    fn pause_of_a_tripped_policy_doubles_up_to_a_minute(rounds in 1_usize..100, start_us in 0_i64..1 << 60) {
        let mut now_us = start_us;
        let mut trip = Trip::default().after(Seen::Failures(THRESHOLD), now_us);
        let mut pause_us = SECOND_US;
        for round in 0..rounds {
            for _ in 0..PROBES {
                prop_assert!(trip.is_probing());
                prop_assert!(trip.pauses_until_us().is_none_or(|until_us| until_us <= now_us));
                trip = trip.after(if round % 2 == 0 { Seen::Failures(1) } else { Seen::Repeat }, now_us);
            }
            let until_us = trip.pauses_until_us().expect("it is tripped");
            prop_assert_eq!(until_us - now_us, pause_us);
            now_us = until_us;
            pause_us = (pause_us * 2).min(60 * SECOND_US);
        }
        prop_assert_eq!(trip.probed_sooner(now_us - 1).pauses_until_us(), Some(now_us - 1));
        prop_assert_eq!(trip.probed_sooner(now_us + 1), trip);
        prop_assert!(!trip.after(Seen::Success, now_us).is_probing());
    }

    #[test]
    fn lateness_falls_into_the_first_bucket_that_holds_it(late_us: i64) {
        let n = bucket(late_us);
        prop_assert!(n < BUCKETS);
        let end_us = |n: usize| 2_f64.powi(i32::try_from(n).unwrap() - 4) * 1000.0;
        prop_assert!(late_us as f64 <= end_us(n) || n == BUCKETS - 1);
        prop_assert!(n == 0 || late_us as f64 > end_us(n - 1));
    }

    #[test]
    fn usual_lateness_falls_into_the_first_bucket_that_holds_it(late_us in 0_i64..10_000_000, more_us in 0_i64..1_000_000) {
        prop_assert!(bucket(late_us) <= bucket(late_us + more_us));
    }
}

#[test]
fn ends_of_lateness_buckets_are_powers_of_two() {
    assert_eq!([i64::MIN, -1, 0, 62].map(bucket), [0; 4]);
    assert_eq!([63, 125, 126, 250].map(bucket), [1, 1, 2, 2]);
    assert_eq!([1_000, 1_001, 16_000, 16_001].map(bucket), [4, 5, 8, 9]);
    let last_ms = 1_i64 << 32;
    assert_eq!(
        [last_ms * 1000 / 2, last_ms * 1000 / 2 + 1, last_ms * 1000, i64::MAX].map(bucket),
        [35, 36, 36, 36]
    );
}

#[test]
fn errors_that_are_nobodys_fault_use_up_no_attempt() {
    let transient = [
        "40001", "40P01", "55P03", "57P01", "57P02", "57P03", "25006", "53000", "53100", "53200", "53300",
        "53400", "58000", "58030", "58P01",
    ];
    for sqlstate in transient {
        for timed_out in [false, true] {
            assert_eq!(classify(sqlstate, timed_out), Fault::Transient, "{sqlstate}");
        }
    }
    assert_eq!(classify("57014", false), Fault::Transient, "somebody's pg_cancel_backend()");
}

#[test]
fn errors_of_the_call_use_up_an_attempt() {
    let of_the_row = [
        "P0001", "P0002", "22012", "22003", "22P02", "23502", "23503", "23505", "23514", "23P01", "2D000",
        "25001", "38000", "39000", "42501", "42703", "42883", "42P01", "44000", "0A000", "XX000", "XX001",
        "54001",
    ];
    for sqlstate in of_the_row {
        for timed_out in [false, true] {
            assert_eq!(classify(sqlstate, timed_out), Fault::Row, "{sqlstate}");
        }
    }
    assert_eq!(classify("57014", true), Fault::Row, "it has used up cancel_timeout");
}
