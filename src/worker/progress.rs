//! Counters and state of a policy for `expiry.status`: gathered in memory, written at most once a second, in
//! a transaction that nobody waits for.

use pgrx::pg_sys;

use super::batch::Done;
use super::failure::in_own_transaction;
use crate::pg::array;
use crate::pg::caught::PgError;
use crate::pg::clock::Timestamp;
use crate::pg::spi;
use crate::rules::fault::{Fault, classify};
use crate::rules::lateness::{BUCKETS, bucket};

const PAUSE_US: i64 = 1_000_000;

/// What has happened since the last write.
#[derive(Debug)]
pub struct Progress {
    pub cancelled: i64,
    pub declined: i64,
    pub failed: i64,
    pub last_error: Option<String>,
    lateness_counts: [i64; BUCKETS],
    lateness_max_us: Option<i64>,
    state: &'static str,
    reason: Option<String>,
    is_changed: bool,
    written_at: Timestamp,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            cancelled: 0,
            declined: 0,
            failed: 0,
            last_error: None,
            lateness_counts: [0; BUCKETS],
            lateness_max_us: None,
            state: "active",
            reason: None,
            is_changed: true,
            written_at: Timestamp(0),
        }
    }
}

const WRITE: &str = "
INSERT INTO expiry.progress AS p (policy, state, reason, cancelled, declined, failed, lateness_max_ms, lateness_counts, last_error, last_run)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, clock_timestamp()
WHERE EXISTS (SELECT FROM expiry.policy WHERE name = $1)
ON CONFLICT (policy) DO UPDATE SET
    state = excluded.state, reason = excluded.reason,
    cancelled = p.cancelled + excluded.cancelled, declined = p.declined + excluded.declined,
    failed = p.failed + excluded.failed,
    lateness_max_ms = greatest(p.lateness_max_ms, excluded.lateness_max_ms),
    lateness_counts = ARRAY(SELECT coalesce(a, 0) + coalesce(b, 0)
        FROM ROWS FROM (unnest(p.lateness_counts), unnest(excluded.lateness_counts)) WITH ORDINALITY AS u(a, b, n) ORDER BY n),
    last_error = coalesce(excluded.last_error, p.last_error), last_run = excluded.last_run";

impl Progress {
    /// A batch that has claimed at least one row.
    pub fn committed(&mut self, done: &Done) {
        let rows = |rows: usize| i64::try_from(rows).expect("a batch is far smaller");
        self.cancelled += rows(done.cancelled.len());
        self.declined += rows(done.declined.len());
        for late_us in done.lateness_us().flatten() {
            self.lateness_counts[bucket(late_us)] += 1;
            self.lateness_max_us = self.lateness_max_us.max(Some(late_us));
        }
        self.is_changed = true;
    }

    pub fn failed(&mut self, rows: usize, error: &PgError) {
        self.failed += i64::try_from(rows).expect("a batch is far smaller");
        self.last_error = Some(error.to_string());
        self.is_changed = true;
    }

    /// Something keeps being in the way, which is nobody's fault.
    pub fn trouble(&mut self, error: &PgError) {
        self.last_error = Some(error.to_string());
        self.is_changed = true;
    }

    /// `active`, `tripped` or `stopped`, and why. Returns whether that is news.
    pub fn state(&mut self, state: &'static str, reason: Option<String>) -> bool {
        let is_news = self.state != state || self.reason != reason;
        self.state = state;
        self.reason = reason;
        self.is_changed |= is_news;
        is_news
    }

    pub fn is_stopped(&self) -> bool {
        self.state == "stopped"
    }

    /// When the next write is due, if there is anything to write.
    pub fn next_write(&self) -> Option<Timestamp> {
        self.is_changed.then(|| self.written_at.plus_micros(PAUSE_US))
    }

    /// Writes what there is, if there is anything and the last write was a while ago.
    pub fn write_if_due(&mut self, policy: &str, now: Timestamp) -> Result<(), PgError> {
        match self.next_write() {
            Some(due) if due <= now || now < self.written_at => match self.write(policy, now) {
                // Nobody waits for it.
                Err(error) if classify(&error.sqlstate, false) == Fault::Transient => {
                    self.written_at = now;
                    Ok(())
                }
                written => written,
            },
            _ => Ok(()),
        }
    }

    /// Writes what there is, unless somebody has locked it (`expiry.reset_stats()` in a transaction that
    /// stays open): then by and by.
    pub fn write(&mut self, policy: &str, now: Timestamp) -> Result<(), PgError> {
        match self.write_now(policy, now) {
            Err(error) if error.sqlstate == "55P03" => {
                self.written_at = now;
                Ok(())
            }
            written => written,
        }
    }

    fn write_now(&mut self, policy: &str, now: Timestamp) -> Result<(), PgError> {
        #[allow(clippy::cast_precision_loss)] // for people to look at
        let max_ms = self.lateness_max_us.map(|us| us as f64 / 1000.0);
        let counts = self.lateness_counts.map(|count| Some(count.into()));
        in_own_transaction(|spi| {
            spi.run_once("SET LOCAL synchronous_commit = off", &[]);
            spi.run_once("SET LOCAL lock_timeout = '10ms'", &[]);
            spi.run_once(
                WRITE,
                &[
                    (pg_sys::TEXTOID, spi::text(policy)),
                    (pg_sys::TEXTOID, spi::text(self.state)),
                    (pg_sys::TEXTOID, self.reason.as_deref().and_then(spi::text)),
                    (pg_sys::INT8OID, Some(self.cancelled.into())),
                    (pg_sys::INT8OID, Some(self.declined.into())),
                    (pg_sys::INT8OID, Some(self.failed.into())),
                    (pg_sys::FLOAT8OID, max_ms.and_then(pgrx::IntoDatum::into_datum)),
                    (pg_sys::INT8ARRAYOID, Some(array::of(pg_sys::INT8OID, &counts))),
                    (pg_sys::TEXTOID, self.last_error.as_deref().and_then(spi::text)),
                ],
            );
        })?;
        *self = Self {
            state: self.state,
            reason: self.reason.take(),
            written_at: now,
            is_changed: false,
            ..Self::default()
        };
        Ok(())
    }
}

/// Writes the state of a policy that nobody works on.
pub fn write_state(policy: &str, state: &'static str, reason: Option<String>) -> Result<(), PgError> {
    let mut progress = Progress::default();
    progress.state(state, reason);
    progress.write(policy, Timestamp(0))
}
