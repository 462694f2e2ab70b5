//! What follows from a batch that was rolled back: whose fault it was, and who waits how long.

use pgrx::PgSqlErrorCode;

use super::batch::{Failed, Stage};
use super::duty::{Duty, Step};
use super::failure;
use super::waiting::{Key, Reason, Wait};
use crate::board;
use crate::installed;
use crate::pg::asides::{self, Aside};
use crate::pg::caught::PgError;
use crate::pg::clock::{self, Timestamp};
use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::{catalog, inval, json, log, xact};
use crate::rules::alert::Trouble;
use crate::rules::backoff;
use crate::rules::fault::{Fault, classify};
use crate::rules::trip::{Seen, THRESHOLD, Trip};
use crate::settings;

const LOCK_NOT_AVAILABLE: &str = "55P03";
/// Somebody has cancelled a statement.
pub(super) const QUERY_CANCELED: &str = "57014";
const PROGRAM_LIMIT_EXCEEDED: &str = "54000";

/// The first and the longest wait of a row that a lock or a deadlock was in the way of.
const COLLISION_US: i64 = 20_000;
const LONGEST_COLLISION_US: i64 = 1_000_000;

/// After every so many collisions with no success between, the worker pauses for once more as long as the
/// collision took, up to so many times as long.
const STREAK: u32 = 16;
const LONGEST_PAUSE: i64 = 5;

/// After so many, `expiry.status` says what keeps being in the way.
const TROUBLING_COLLISIONS: u32 = 5;

impl Duty {
    /// `is_fresh`: it was a probe of a row that has just become due.
    pub(super) fn failed(&mut self, failed: Failed, is_fresh: bool, now: Timestamp) -> Step {
        let Failed { stage, error, timed_out, at_commit } = failed;
        self.full_batches = 0;
        if at_commit && error.sqlstate == PROGRAM_LIMIT_EXCEEDED && !self.push.is_withheld() {
            // The queue of notifications is full: again, without.
            self.push.overflowed(&self.policy);
            self.is_draining = true;
            return Step::Again { cancelled: 0 };
        }
        if error.sqlstate == QUERY_CANCELED && !timed_out && !self.in_worker {
            // The client has cancelled its own CALL.
            return Step::Broken(error);
        }
        let is_in_call = !matches!(stage, Stage::Claiming);
        if classify(&error.sqlstate, timed_out) == Fault::Transient
            || is_in_call && self.has_no_function()
            || matches!(stage, Stage::LeftDue { .. }) && self.may_have_met_a_change()
        {
            return self.collided(stage, &error, now);
        }
        if !installed::is_served() {
            // DROP or ALTER EXTENSION has come in between: not the row's fault. The worker's next look ends it.
            return if self.in_worker { Step::Rest } else { Step::Broken(error) };
        }
        if is_in_call && self.may_be_stale(&error) && board::may_renew() {
            return Step::Stale(error);
        }
        match stage {
            Stage::Claiming => return Step::Broken(error),
            Stage::Calling { key, position } => {
                self.size.failed_at(position);
                self.rows_failed(&[key], false, is_fresh, &error, now);
            }
            Stage::Batch { key, rows: 1 } => {
                self.size.found();
                self.rows_failed(&[key], false, is_fresh, &error, now);
            }
            Stage::Batch { rows, .. } => self.size.failed(rows),
            Stage::LeftDue { mut keys, of } => {
                let works_for_others = keys.len() < of;
                if !works_for_others {
                    keys.truncate(THRESHOLD as usize);
                }
                self.rows_failed(&keys, works_for_others, is_fresh, &error, now);
            }
        }
        Step::Again { cancelled: 0 }
    }

    /// Somebody has dropped the function in the middle of the batch; the policy is loaded anew in a moment.
    fn has_no_function(&self) -> bool {
        let has_function = || catalog::has_function(self.policy.function.oid);
        !xact::in_transaction(BOOTSTRAP_SUPERUSER, has_function).unwrap_or(true)
    }

    /// Whether claim, call and check may not have seen the same: a partition that is being detached is there for the
    /// older of two snapshots only. Known since [`Self::has_no_function`] has looked; believed a few times.
    fn may_have_met_a_change(&self) -> bool {
        const BELIEVED: u32 = 3;
        self.in_worker && self.collisions < BELIEVED && inval::is_change_pending()
    }

    /// Whether the error may come from what the session remembers of how things were before: PL/pgSQL keeps
    /// the types that a record had. A client would connect anew.
    fn may_be_stale(&self, error: &PgError) -> bool {
        const FROM_MEMORY: [&str; 3] = ["42804", "0A000", "XX000"];
        self.in_worker && FROM_MEMORY.contains(&error.sqlstate.as_str()) && inval::may_remember_wrongly()
    }

    /// An error outside of any batch.
    pub(super) fn disturbed(&mut self, error: PgError, now: Timestamp) -> Step {
        if classify(&error.sqlstate, false) == Fault::Transient && self.in_worker {
            self.collided(Stage::Claiming, &error, now)
        } else {
            Step::Broken(error)
        }
    }

    /// Something that is nobody's fault was in the way: later again, and nothing is counted.
    fn collided(&mut self, stage: Stage, error: &PgError, now: Timestamp) -> Step {
        let ended_at = clock::now();
        self.is_draining = true;
        self.size.collided();
        self.collisions += 1;
        if error.sqlstate == LOCK_NOT_AVAILABLE {
            self.patience.ran_out(ended_at.0);
        }
        let took_us = ended_at.since(now).max(0);
        let noise = ended_at.0.unsigned_abs();
        let wait = |times| backoff::wait_us(COLLISION_US, times, noise).min(LONGEST_COLLISION_US);
        let mut troubles = self.collisions;
        let pause_us = match stage {
            Stage::Calling { key, .. } | Stage::Batch { key, rows: 1 } => {
                let mut waiting = self.waiting.borrow_mut();
                let known = waiting.get(&key);
                let collisions = known.map_or(0, |wait| wait.collisions) + 1;
                let reason = match known {
                    // A row that has failed before keeps its attempts.
                    Some(Wait { reason: Reason::Failed { attempts }, .. }) => Reason::Failed { attempts },
                    _ => Reason::Collided,
                };
                let until = ended_at.plus_micros(wait(collisions));
                asides::note(&self.policy.name, &key, Aside::Collided(collisions), until);
                waiting.set(key, Wait { until, reason, collisions });
                troubles = troubles.max(collisions);
                took_us * i64::from(self.collisions / STREAK).min(LONGEST_PAUSE)
            }
            Stage::Batch { .. } | Stage::LeftDue { .. } | Stage::Claiming => {
                self.last_sweep = Timestamp(0);
                wait(self.collisions)
            }
        };
        pgrx::debug1!("pg_expiry: policy \"{}\": {error}", self.policy.name);
        if troubles >= TROUBLING_COLLISIONS {
            self.progress.trouble(error);
        }
        if pause_us == 0 {
            return Step::Again { cancelled: 0 };
        }
        self.pauses_until = ended_at.plus_micros(pause_us);
        Step::Rest
    }

    fn rows_failed(
        &mut self,
        keys: &[Key],
        works_for_others: bool,
        is_fresh: bool,
        error: &PgError,
        now: Timestamp,
    ) {
        self.is_draining = true;
        self.progress.failed(keys.len(), error);
        if self.trip.is_tripped() {
            if !is_fresh {
                self.trip = self.trip.after(Seen::Repeat, now.0);
            }
            self.pass_over(keys);
            return;
        }
        let waits = match failure::record(&self.policy, keys, error, !self.push.is_withheld()) {
            Ok(waits) => waits,
            Err(unrecorded) => {
                self.complain("could not record a failure", &unrecorded);
                self.pauses_until = now.plus_micros(settings::lookahead_ms() * 1000);
                return;
            }
        };
        let mut new = 0;
        for (key, wait) in keys.iter().zip(waits) {
            self.warn_of_row(key, wait, error);
            let mut waiting = self.waiting.borrow_mut();
            // What was taken for the function's fault once is not taken for it again.
            let is_suspected = waiting.get(key).is_some_and(|known| known.reason == Reason::Suspected);
            if wait.reason == (Reason::Failed { attempts: 1 }) && !is_suspected {
                self.streak.push(key.clone());
                new += 1;
            }
            waiting.set(key.clone(), wait);
        }
        let seen = match new {
            _ if works_for_others => Seen::Success,
            0 => Seen::Repeat,
            _ => Seen::Failures(new),
        };
        self.trip = self.trip.after(seen, now.0);
        if works_for_others {
            self.streak.clear();
        }
        if self.trip.is_tripped() {
            self.tripped(error, now);
        }
    }

    /// The next probes take other rows than these.
    fn pass_over(&mut self, keys: &[Key]) {
        let Trip::Tripped { probe_at_us, pause_us, .. } = self.trip else { return };
        let until = Timestamp(probe_at_us).plus_micros(pause_us * 8);
        let mut waiting = self.waiting.borrow_mut();
        for key in keys {
            let reason = match waiting.get(key) {
                Some(Wait { reason: Reason::Failed { attempts }, .. }) => Reason::Failed { attempts },
                _ => Reason::Suspected,
            };
            waiting.set(key.clone(), Wait::new(until, reason));
        }
    }

    /// A line an attempt, as long as they are few.
    fn warn_of_row(&mut self, key: &[u8], wait: Wait, error: &PgError) {
        let Reason::Failed { attempts } = wait.reason else { return };
        let Some(kept_back) = self.row_complaints.allows(clock::now().0) else { return };
        let (next, hint) = if wait.until.is_finite() {
            ("will be tried again", "See expiry.failure.")
        } else {
            ("is quarantined", "See expiry.failure; expiry.retry() lets it go again when the cause is gone.")
        };
        let kept_back = match kept_back {
            0 => String::new(),
            rows => format!(" ({rows} failures before it were not logged)"),
        };
        let message = format!(
            "pg_expiry: policy \"{}\": attempt {attempts} of {} for row {} failed, the row {next}: {error}{kept_back}",
            self.policy.name,
            self.policy.max_attempts,
            json::text_of(key),
        );
        log::warning(PgSqlErrorCode::ERRCODE_WARNING, message, Some(hint));
    }

    /// It is the function's fault, not the rows': they get their attempts back.
    fn tripped(&mut self, error: &PgError, now: Timestamp) {
        let reason = format!("every call fails, the last with: {error}");
        self.alarm.note(Trouble::Tripped, true, Some(&reason));
        self.progress.state("tripped", Some(reason));
        let message = format!(
            "pg_expiry: policy \"{}\" pauses itself, every call of {} fails, the last with: {error}",
            self.policy.name, self.policy.function.identity,
        );
        let hint = "Mend the function, or what it needs: a few rows are tried by and by, and at once after it was replaced.";
        log::warning(PgSqlErrorCode::ERRCODE_WARNING, message, Some(hint));
        let streak = std::mem::take(&mut self.streak);
        if let Err(error) = failure::forget(&self.policy.name, &streak) {
            self.complain("could not forget rows that have failed before", &error);
        }
        let mut waiting = self.waiting.borrow_mut();
        for key in streak {
            waiting.set(key, Wait::new(now, Reason::Suspected));
        }
    }
}
