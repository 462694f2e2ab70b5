//! Retention: old events are deleted in small batches by the workers.
//!
//! A pass walks over the events from the least id on, as far as they are old, and begins again by and by:
//! what it has kept for a consumer it meets again, so passes take at most 2 % of the time.

use pgrx::{PgSqlErrorCode, pg_sys};

use super::failure::in_own_transaction;
use crate::pg::caught::PgError;
use crate::pg::clock::{self, Timestamp};
use crate::pg::log;
use crate::rules::sweep;
use crate::rules::throttle::Throttle;
use crate::settings;

/// How often a worker looks whether there is anything old.
const PAUSE_US: i64 = 10_000_000;
/// Between two batches while there is.
const BREATH_US: i64 = 10_000;
const BATCH: i64 = 1_000;
/// Events that a named consumer has not acknowledged are kept so many times longer.
const CONSUMER_PATIENCE: i64 = 4;

/// Ids and times ascend together, so the oldest events are those with the least ids. `$1` is where the
/// last batch ended: what was deleted below is not walked over again.
const DELETE: &str = "
WITH oldest AS (
    SELECT id, policy, owner, occurred_at FROM expiry.event WHERE id > $1 ORDER BY id LIMIT $2
), old AS (
    SELECT * FROM oldest WHERE occurred_at < $3
), deleted AS (
    DELETE FROM expiry.event e USING old o
    WHERE e.id = o.id AND (o.occurred_at < $4 OR NOT EXISTS (
        SELECT FROM expiry.consumer c
        WHERE c.acked < o.id AND (c.policy IS NULL OR c.policy = o.policy) AND pg_has_role(c.owner, o.owner, 'USAGE')))
)
SELECT max(id), count(*) FROM old";

#[derive(Debug, Default)]
pub struct Prune {
    next_at: Option<Timestamp>,
    /// Where this pass is, when it began, and how long it has taken.
    floor: i64,
    began_us: i64,
    took_us: i64,
    throttle: Throttle,
}

impl Prune {
    /// When there is something to do again.
    pub fn next_at(&self, now: Timestamp) -> Timestamp {
        self.next_at.unwrap_or(now)
    }

    /// Deletes a batch of old events, if it is time to. What goes wrong here is no reason to cancel nothing.
    pub fn step(&mut self, now: Timestamp) {
        if self.next_at.is_some_and(|at| at > now && at.since(now) <= PAUSE_US) {
            return;
        }
        self.next_at = Some(now.plus_micros(PAUSE_US));
        let retention_us = settings::event_retention_s() * 1_000_000;
        if retention_us == 0 {
            return;
        }
        match delete(
            self.floor,
            now.plus_micros(-retention_us),
            now.plus_micros(-retention_us * CONSUMER_PATIENCE),
        ) {
            Ok((last, walked)) => {
                let ended = clock::now();
                self.took_us += ended.since(now);
                self.floor = last.unwrap_or(self.floor);
                if walked == BATCH {
                    self.next_at = Some(ended.plus_micros(BREATH_US));
                } else if sweep::is_due(ended.0, self.began_us, self.took_us, PAUSE_US) {
                    (self.floor, self.began_us, self.took_us) = (0, ended.0, 0);
                }
            }
            // Another worker is at it, or the extension has just been dropped.
            Err(error) if matches!(error.sqlstate.as_str(), "55P03" | "42P01") => (),
            Err(error) if self.throttle.allows(&error.message, now.0) => {
                let message = format!("pg_expiry: old events could not be deleted: {error}");
                log::warning(PgSqlErrorCode::ERRCODE_WARNING, message, Some("It is tried again by and by."));
            }
            Err(_) => (),
        }
    }
}

/// Walks over a batch of events that are older than `before` and deletes those that no consumer waits for,
/// or that are older than `long_before`. Returns the last event walked over, and how many there were.
fn delete(floor: i64, before: Timestamp, long_before: Timestamp) -> Result<(Option<i64>, i64), PgError> {
    in_own_transaction(|spi| {
        spi.run_once("SET LOCAL synchronous_commit = off", &[]);
        spi.run_once("SET LOCAL lock_timeout = '100ms'", &[]);
        let walked = spi.run_once(
            DELETE,
            &[
                (pg_sys::INT8OID, Some(floor.into())),
                (pg_sys::INT8OID, Some(BATCH.into())),
                (pg_sys::TIMESTAMPTZOID, Some(before.datum())),
                (pg_sys::TIMESTAMPTZOID, Some(long_before.datum())),
            ],
        );
        (walked.get(0, 0), walked.expect(0, 1))
    })
}
