//! Properties of the extension's pure rules. Their source is compiled into this module, so that
//! unit tests of their own would run here too: no server is needed.

#[allow(dead_code)]
#[path = "../../src/rules/mod.rs"]
mod source;

use std::ops::Range;

use pg_expiry_tests::serde_json::{self, Value, json};
use proptest::prelude::*;
use source::batch_size::BatchSize;
use source::lateness::{BUCKETS, bucket};
use source::payload::{Event, LIMIT, one, packed};
use source::trip::{Seen, THRESHOLD, Trip};
use source::{backoff, sweep};

/// A year, beyond which no wait or duration goes.
const YEAR_US: i64 = 366 * 86_400_000_000;

proptest! {
    #[test]
    fn backoff_doubles_until_its_cap(first_us in 0..YEAR_US, attempts in 0..200_u32, noise: u64) {
        let wait = backoff::wait_us(first_us, attempts, noise);
        let doublings = attempts.saturating_sub(1).min(40);
        let nominal = first_us.max(1).saturating_mul(1 << doublings).min(backoff::CAP_US);
        prop_assert!(wait > 0);
        prop_assert!((wait - nominal).abs() <= nominal / 8 + 1, "{wait} for {nominal}");
    }

    #[test]
    fn batch_size_stays_within_its_bounds(
        cap in 0..10_000_usize,
        target_us in 0..10_000_000_i64,
        history in prop::collection::vec((0..5_u8, 0..10_000_usize, 0..10_000_000_i64), 0..100),
    ) {
        let mut size = BatchSize::new(cap);
        for (what, rows, elapsed_us) in history {
            match what {
                0 => size.failed(rows),
                1 => size.found(),
                2 => size.failed_at(rows),
                3 => size.collided(),
                _ => size.succeeded(rows, elapsed_us, target_us),
            }
            prop_assert!((1..=cap.max(1)).contains(&size.next()));
        }
    }

    #[test]
    fn failing_rows_are_found_one_by_one(
        bad in prop::collection::btree_set(0..500_usize, 0..5),
        cap in 1..500_usize,
    ) {
        // Rows in claim order; a batch with a bad row fails without saying which.
        let mut size = BatchSize::new(cap);
        let mut rows: Vec<usize> = (0..500).collect();
        let (mut found, mut calls) = (Vec::new(), 0);
        while !rows.is_empty() {
            let batch = size.next().min(rows.len());
            calls += batch;
            prop_assert!(calls <= 500 + 3 * cap * (bad.len() + 1), "{calls} calls");
            if !rows[..batch].iter().any(|row| bad.contains(row)) {
                rows.drain(..batch);
                size.succeeded(batch, 1, 1_000_000);
            } else if batch == 1 {
                found.push(rows.remove(0));
                size.found();
            } else {
                size.failed(batch);
            }
        }
        prop_assert_eq!(found, bad.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn sweeps_take_two_percent_of_the_time(duration_us in 0..YEAR_US / 100, lookahead_us in 1..10_000_000_i64) {
        let pause = (duration_us * 50).max(lookahead_us);
        let last = 1_000_000_000;
        prop_assert!(!sweep::is_due(last + pause - 1, last, duration_us, lookahead_us));
        prop_assert!(sweep::is_due(last + pause, last, duration_us, lookahead_us));
        // A clock that was set back must not put sweeps off.
        prop_assert!(sweep::is_due(last - 1, last, duration_us, lookahead_us));
    }

    #[test]
    fn a_policy_trips_only_after_different_failures_and_comes_back(failures in 1..100_u32, now_us in 0..YEAR_US) {
        let mut trip = Trip::default();
        for seen in 1..=failures {
            prop_assert_eq!(trip.is_tripped(), seen > THRESHOLD);
            trip = trip.after(Seen::Failures(1), now_us).after(Seen::Repeat, now_us);
        }
        let pause = trip.pauses_until_us().map_or(0, |until| until - now_us);
        prop_assert!((0..=60_000_000).contains(&pause));
        prop_assert!(!trip.after(Seen::Success, now_us).is_tripped());
    }

    #[test]
    fn later_is_never_in_an_earlier_bucket(one_us: i64, other_us: i64) {
        let (early, late) = (one_us.min(other_us), one_us.max(other_us));
        prop_assert!(bucket(early) <= bucket(late));
        prop_assert!(bucket(late) < BUCKETS);
    }

    #[test]
    fn payload_is_json_that_a_notification_can_carry(
        id: i64,
        policy in "\\PC{1,15}|[\\x01-\\x1f]{1,63}",
        key in json_text(0..12_000),
        data in prop::option::of(json_text(0..12_000)),
        deadline_us: Option<i64>,
        occurred_at_us: i64,
    ) {
        let event = Event {
            id,
            policy: &policy,
            kind: "cancelled",
            key: &key,
            deadline_us,
            stated_deadline_us: deadline_us,
            occurred_at_us,
            data: data.as_deref(),
        };
        let text = one(&event);
        prop_assert!(text.len() <= LIMIT);
        let read: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&read["id"], &json!(id));
        prop_assert_eq!(&read["policy"], &json!(policy));
        // Left out and said so, or there as it was.
        if read["key_omitted"] != json!(true) {
            prop_assert_eq!(&read["key"], &serde_json::from_str::<Value>(&key).unwrap());
        }
        if let Some(data) = data.filter(|_| read["data_omitted"] != json!(true)) {
            prop_assert_eq!(&read["data"], &serde_json::from_str::<Value>(&data).unwrap());
        }
        prop_assert_eq!(packed(std::slice::from_ref(&text)).len(), 1);
    }

    #[test]
    fn packets_carry_every_record_in_order(lengths in prop::collection::vec(0..7_000_usize, 0..60)) {
        let records: Vec<String> = lengths.iter().map(|length| json!("x".repeat(*length)).to_string()).collect();
        let packets = packed(&records);
        let mut unpacked = Vec::new();
        for packet in &packets {
            prop_assert!(packet.len() <= LIMIT);
            let mut packet: Value = serde_json::from_str(packet).unwrap();
            prop_assert_eq!(&packet["v"], &json!(1));
            let Value::Array(events) = packet["events"].take() else { panic!("not an array") };
            unpacked.extend(events.iter().map(Value::to_string));
        }
        prop_assert_eq!(unpacked, records);
    }
}

/// Any text as an object's value; control characters grow sixfold when escaped.
fn json_text(length: Range<usize>) -> impl Strategy<Value = String> {
    let text =
        (length, prop::char::any()).prop_map(|(length, c)| c.to_string().repeat(length / c.len_utf8()));
    text.prop_map(|text| json!({ "id": text }).to_string())
}
