//! Retention: old events are deleted in small batches, by the workers, when nothing else is to be done.

use pgrx::pg_sys;

use super::failure::in_own_transaction;
use crate::pg::caught::PgError;
use crate::pg::clock::Timestamp;
use crate::settings;

/// How often a worker looks whether there is anything old.
const PAUSE_US: i64 = 10_000_000;
/// Between two batches while there is.
const BREATH_US: i64 = 10_000;
const BATCH: i64 = 1_000;
/// Events that a named consumer has not acknowledged are kept so many times longer.
pub const CONSUMER_PATIENCE: i64 = 4;

/// Ids and times ascend together, so the oldest events are those with the least ids. `$1` is where the
/// last batch ended: what was deleted below is not walked over again.
const DELETE: &str = "
WITH oldest AS (
    SELECT id, occurred_at FROM expiry.event WHERE id > $1 ORDER BY id LIMIT $2
), old AS (
    SELECT id FROM oldest
    WHERE occurred_at < $3
      AND (occurred_at < $4 OR id <= coalesce((SELECT min(acked) FROM expiry.consumer), 9223372036854775807))
)
DELETE FROM expiry.event e USING old WHERE e.id = old.id RETURNING e.id";

#[derive(Debug, Default)]
pub struct Prune {
    next_at: Option<Timestamp>,
    floor: i64,
}

impl Prune {
    /// When there is something to do again.
    pub fn next_at(&self, now: Timestamp) -> Timestamp {
        self.next_at.unwrap_or(now)
    }

    /// Deletes a batch of old events, if it is time to.
    pub fn step(&mut self, now: Timestamp) -> Result<(), PgError> {
        let retention_us = settings::event_retention_s() * 1_000_000;
        if self.next_at.is_some_and(|at| at > now && at.since(now) <= PAUSE_US) {
            return Ok(());
        }
        self.next_at = Some(now.plus_micros(PAUSE_US));
        if retention_us == 0 {
            return Ok(());
        }
        let deleted = in_own_transaction(|spi| {
            spi.run_once("SET LOCAL synchronous_commit = off", &[]);
            spi.run_once("SET LOCAL lock_timeout = '100ms'", &[]);
            let rows = spi.run_once(
                DELETE,
                &[
                    (pg_sys::INT8OID, Some(self.floor.into())),
                    (pg_sys::INT8OID, Some(BATCH.into())),
                    (pg_sys::TIMESTAMPTZOID, Some(now.plus_micros(-retention_us).datum())),
                    (
                        pg_sys::TIMESTAMPTZOID,
                        Some(now.plus_micros(-retention_us * CONSUMER_PATIENCE).datum()),
                    ),
                ],
            );
            let ids: Vec<i64> = (0..rows.count).map(|row| rows.expect(row, 0)).collect();
            ids
        });
        match deleted {
            // Another worker is at it.
            Err(error) if error.sqlstate == "55P03" => Ok(()),
            Err(error) => Err(error),
            Ok(ids) if ids.is_empty() => {
                self.floor = 0;
                Ok(())
            }
            Ok(ids) => {
                self.floor = ids.into_iter().max().unwrap_or(self.floor);
                self.next_at = Some(now.plus_micros(BREATH_US));
                Ok(())
            }
        }
    }
}
