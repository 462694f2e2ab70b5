//! The record of failing rows, written by a transaction of its own after the batch was rolled back, so
//! that it never rolls back with the failure.

use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

use super::alarm;
use super::event::{self, Outcome};
use super::waiting::{Key, Reason, Wait};
use crate::pg::caught::PgError;
use crate::pg::clock::Timestamp;
use crate::pg::guc::with_settings;
use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::spi::{self, Spi};
use crate::pg::{array, clock, json, xact};
use crate::policy::Policy;
use crate::rules::backoff;

const PATH: &[(&str, &str)] = &[("search_path", "pg_catalog, pg_temp")];

/// Runs `f` in a transaction of its own that writes our tables only.
pub fn in_own_transaction<R>(f: impl FnOnce(&Spi) -> R) -> Result<R, PgError> {
    xact::in_transaction(BOOTSTRAP_SUPERUSER, || with_settings(PATH, || spi::connected(f)))
}

const ATTEMPTS: &str =
    "SELECT attempts FROM expiry.failure WHERE policy = $1 AND md5(key::text) = md5($2::text)";

const UPSERT: &str = "
INSERT INTO expiry.failure AS f (policy, key, attempts, sqlstate, message, detail, hint, failed_at, next_attempt_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (policy, md5(key::text)) DO UPDATE SET
    attempts = excluded.attempts, sqlstate = excluded.sqlstate, message = excluded.message,
    detail = excluded.detail, hint = excluded.hint, failed_at = excluded.failed_at,
    next_attempt_at = excluded.next_attempt_at";

/// Records one more failed attempt of each row. The row that has used up its attempts is quarantined,
/// which is an event, notified if `pushes`. Returns until when each waits.
pub fn record(policy: &Policy, keys: &[Key], error: &PgError, pushes: bool) -> Result<Vec<Wait>, PgError> {
    in_own_transaction(|spi| keys.iter().map(|key| record_one(spi, policy, key, error, pushes)).collect())
}

fn record_one(spi: &Spi, policy: &Policy, key: &[u8], error: &PgError, pushes: bool) -> Wait {
    let name = spi::text(&policy.name);
    let key_json = Some(json::from_bytes(key));
    let known = spi.run_once(ATTEMPTS, &[(pg_sys::TEXTOID, name), (pg_sys::JSONBOID, key_json)]);
    let attempts = if known.is_empty() { 1 } else { known.expect::<i32>(0, 0).saturating_add(1) };
    let attempts = attempts.unsigned_abs();
    let failed_at = clock::now();
    let until = if attempts >= policy.max_attempts {
        Timestamp::INFINITY
    } else {
        let wait_us = backoff::wait_us(policy.retry_delay_ms * 1000, attempts, failed_at.0.unsigned_abs());
        failed_at.plus_micros(wait_us)
    };
    spi.run_once(
        UPSERT,
        &[
            (pg_sys::TEXTOID, name),
            (pg_sys::JSONBOID, key_json),
            (pg_sys::INT4OID, Some(Datum::from(attempts))),
            (pg_sys::TEXTOID, spi::text(&error.sqlstate)),
            (pg_sys::TEXTOID, spi::text(&error.message)),
            (pg_sys::TEXTOID, error.detail.as_deref().and_then(spi::text)),
            (pg_sys::TEXTOID, error.hint.as_deref().and_then(spi::text)),
            (pg_sys::TIMESTAMPTZOID, Some(failed_at.datum())),
            (pg_sys::TIMESTAMPTZOID, until.is_finite().then(|| until.datum())),
        ],
    );
    if until == Timestamp::INFINITY {
        let outcome = Outcome { key: json::from_bytes(key), deadline: None, stated: None, data: None };
        event::record(spi, policy, "quarantined", &[outcome], pushes);
        if pushes {
            alarm::notify_quarantined(&policy.name, key, attempts, error);
        }
    }
    Wait::new(until, Reason::Failed { attempts })
}

const READ: &str = "SELECT key, attempts, next_attempt_at FROM expiry.failure WHERE policy = $1";

/// The failed rows of a policy, as the table has them.
pub fn read(policy: &str) -> Result<Vec<(Key, Wait)>, PgError> {
    in_own_transaction(|spi| {
        let rows = spi.run_once(READ, &[(pg_sys::TEXTOID, spi::text(policy))]);
        (0..rows.count)
            .map(|row| {
                let key = json::bytes(rows.datum(row, 0).expect("key is NOT NULL"));
                let attempts = rows.expect::<i32>(row, 1).unsigned_abs();
                let until = rows.datum(row, 2).map_or(Timestamp::INFINITY, |at| Timestamp(at.value() as i64));
                (key, Wait::new(until, Reason::Failed { attempts }))
            })
            .collect()
    })
}

const FORGET: &str = "
DELETE FROM expiry.failure f USING unnest($2) AS k(key)
WHERE f.policy = $1 AND md5(f.key::text) = md5(k.key::text)";

/// Drops the record of rows that have left the due set: cancelled at last, paid, deleted, extended.
pub fn forget(policy: &str, keys: &[Key]) -> Result<(), PgError> {
    in_own_transaction(|spi| {
        let keys: Vec<Option<Datum>> = keys.iter().map(|key| Some(json::from_bytes(key))).collect();
        spi.run_once(
            FORGET,
            &[
                (pg_sys::TEXTOID, spi::text(policy)),
                (pg_sys::JSONBARRAYOID, Some(array::of(pg_sys::JSONBOID, &keys))),
            ],
        );
    })
}
