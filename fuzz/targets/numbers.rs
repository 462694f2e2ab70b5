//! Times and settings as far as PostgreSQL's types reach: no rule overflows, and what comes out is in its range.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use pg_expiry_fuzz::rules::alert::is_lagging;
use pg_expiry_fuzz::rules::batch_size::BatchSize;
use pg_expiry_fuzz::rules::patience::Patience;
use pg_expiry_fuzz::rules::reminder::Lead;
use pg_expiry_fuzz::rules::throttle::{Quota, Throttle};
use pg_expiry_fuzz::rules::trip::{Seen, Trip};
use pg_expiry_fuzz::rules::{backoff, lateness, payload, spell, sweep};

#[derive(Arbitrary, Debug)]
struct Input {
    times: [i64; 4],
    setting: i64,
    limit_ms: i32,
    deadlock_timeout_ms: i32,
    attempts: u32,
    steps: Vec<(u8, u16, i64)>,
}

/// `timestamptz` ends with the year 294276; the clock of a server is never near.
const LATEST_US: i64 = 9_223_371_331_200_000_000 - 1;
const CLOCK_US: i64 = 1 << 60;
/// No interval that a policy takes is longer than a leap year; some may be negative.
const LONGEST_US: i64 = 366 * 86_400_000_000;

fuzz_target!(|input: Input| {
    let deadline_us = input.times[0] % LATEST_US;
    let [one_us, other_us] = [input.times[1] % CLOCK_US, input.times[2] % CLOCK_US];

    if let Some(text) = payload::rfc3339(input.times[3]) {
        assert_eq!(text.len(), "2026-11-30T17:00:00.000000Z".len(), "{text}");
    }
    assert!(spell::duration(input.times[3]).len() < 20);
    assert!(lateness::bucket(input.times[3]) < lateness::BUCKETS);

    let setting = input.setting % (LONGEST_US + 1);
    let wait_us = backoff::wait_us(setting, input.attempts, input.times[3].unsigned_abs());
    assert!(wait_us > 0 && wait_us / 9 * 8 <= backoff::CAP_US.max(setting) + 8, "{wait_us}");
    assert!(backoff::wait_us(setting, input.attempts.saturating_add(20), 0) >= wait_us / 9 * 7 - 8);

    let lead = Lead { before_us: setting.max(0), reminded_to_us: deadline_us };
    let (coming, inside) = (lead.coming(one_us), lead.inside(one_us));
    assert!(coming.0 >= one_us && inside.0 == one_us && inside.1 <= coming.0);
    assert!(lead.advanced(other_us).reminded_to_us >= lead.reminded_to_us);
    assert!(lead.instant_of(deadline_us) <= deadline_us);

    let _ = sweep::is_due(one_us, other_us, input.times[3], setting);
    let _ = is_lagging(input.attempts.is_multiple_of(2), Some(input.times[3]), setting);

    let (mut batch, mut patience, mut trip) =
        (BatchSize::new(input.attempts as usize), Patience::default(), Trip::default());
    let (mut throttle, mut quota) = (Throttle::default(), Quota::default());
    let (limit_ms, deadlock_timeout_ms) = (input.limit_ms.max(0), input.deadlock_timeout_ms.max(1));
    for (what, rows, time_us) in input.steps {
        let (rows, now_us) = (usize::from(rows), time_us % CLOCK_US);
        match what % 7 {
            0 => batch.succeeded(rows, time_us, setting),
            1 => batch.failed(rows),
            2 => batch.found(),
            3 => batch.failed_at(rows),
            4 => batch.collided(),
            5 => batch.left_subtransactions(rows, usize::from(what)),
            _ => patience.ran_out(now_us),
        }
        let most = (input.attempts as usize).max(1);
        assert!((1..=most).contains(&batch.next()), "{batch:?}");
        let limit = patience.limit_ms(limit_ms, deadlock_timeout_ms, now_us);
        assert!(limit <= limit_ms && (limit > 0) == (limit_ms > 0), "{limit}");
        assert!(limit < deadlock_timeout_ms.max(2), "{limit} ms of {deadlock_timeout_ms}");
        trip = trip.after([Seen::Success, Seen::Failures(u32::from(what)), Seen::Repeat][rows % 3], now_us);
        throttle.allows("the same", now_us);
        quota.allows(now_us);
    }
});
