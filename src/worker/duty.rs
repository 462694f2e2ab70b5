//! A policy with all that a worker remembers of it from one batch to the next, and what follows from the
//! outcome of each.
//!
//! The floor is the deadline below which nothing is pending as far as this worker knows: batches of a drain
//! start there, so that they do not walk over the index entries that earlier ones left behind. It is an
//! optimisation, never the truth: sweeps start at -infinity (see `rules::sweep`).

use std::cell::RefCell;
use std::rc::Rc;

use super::batch::{self, Done, Failed, Order, Stage};
use super::failure;
use super::progress::Progress;
use super::push::Push;
use super::statements::Statements;
use super::waiting::{Key, Reason, Wait, Waiting};
use crate::pg::caught::PgError;
use crate::pg::clock::{self, Timestamp};
use crate::pg::json;
use crate::policy::Policy;
use crate::rules::backoff;
use crate::rules::batch_size::BatchSize;
use crate::rules::fault::{Fault, classify};
use crate::rules::sweep;
use crate::rules::trip::{Seen, Trip};
use crate::settings;

const QUERY_CANCELED: &str = "57014";
const PROGRAM_LIMIT_EXCEEDED: &str = "54000";

/// The first wait after a lock or a deadlock was in the way.
const COLLISION_US: i64 = 20_000;

pub struct Duty {
    pub policy: Policy,
    statements: Statements,
    waiting: Rc<RefCell<Waiting>>,
    pub progress: Progress,
    size: BatchSize,
    trip: Trip,
    floor: Timestamp,
    last_sweep: Timestamp,
    sweep_us: i64,
    /// The next deadline to come, as of `looked_at`.
    next_deadline: Option<Timestamp>,
    looked_at: Timestamp,
    /// Nothing is claimed before this instant: something was in the way, or max_rate.
    pauses_until: Timestamp,
    collisions: u32,
    /// The last claim was not empty: there may be more.
    is_draining: bool,
    /// Rows that have failed since the last success, for the first time.
    streak: Vec<Key>,
    checked_at: Timestamp,
    push: Push,
    /// What is known of `expiry.failure` may be out of date.
    reads_failures: bool,
    in_worker: bool,
}

/// What one step came to.
#[derive(Debug)]
pub enum Step {
    /// Another step may find more to do at once.
    Again { cancelled: usize },
    /// Nothing to do before [`Duty::next_look`].
    Rest,
    /// The policy itself does not work.
    Broken(PgError),
}

impl Duty {
    /// `in_worker`: see [`Order`].
    pub fn new(policy: Policy, in_worker: bool) -> Self {
        Self {
            statements: Statements::new(&policy),
            waiting: Rc::default(),
            progress: Progress::default(),
            size: BatchSize::new(policy.batch_size),
            trip: Trip::default(),
            floor: Timestamp::NEGATIVE_INFINITY,
            last_sweep: Timestamp(0),
            sweep_us: 0,
            next_deadline: None,
            looked_at: Timestamp(0),
            pauses_until: Timestamp(0),
            collisions: 0,
            is_draining: false,
            streak: Vec::new(),
            checked_at: Timestamp(0),
            push: Push::default(),
            reads_failures: true,
            in_worker,
            policy,
        }
    }

    /// Somebody has changed something: the next step reads the failing rows anew and sweeps.
    /// The policy has become another one: only what is to be written down is kept.
    pub fn altered(self, policy: Policy) -> Self {
        Self { progress: self.progress, push: self.push, ..Self::new(policy, self.in_worker) }
    }

    pub fn want_failures(&mut self) {
        self.reads_failures = true;
        self.want_look();
    }

    /// The next step sweeps, however soon it is.
    pub fn want_look(&mut self) {
        self.looked_at = Timestamp(0);
        self.last_sweep = Timestamp(0);
    }

    /// The policy does not work as it is; tries again later, and sooner when it is loaded anew.
    pub fn stop(&mut self, error: &PgError) {
        const FIRST_US: i64 = 1_000_000;
        const LONGEST_US: i64 = 60_000_000;
        let now = clock::now();
        let reason = error.to_string();
        if self.progress.state("stopped", Some(reason.clone())) {
            pgrx::warning!("pg_expiry: policy \"{}\" is stopped: {reason}", self.policy.name);
        }
        self.collisions += 1;
        let wait_us = backoff::wait_us(FIRST_US, self.collisions, now.0.unsigned_abs()).min(LONGEST_US);
        self.pauses_until = now.plus_micros(wait_us);
    }

    /// When the next step is worth taking.
    pub fn next_look(&self) -> Timestamp {
        let earliest = if self.is_draining { Timestamp(0) } else { self.next_interest() };
        self.not_before().map_or(earliest, |pause| earliest.max(pause))
    }

    fn next_interest(&self) -> Timestamp {
        let lookahead = self.looked_at.plus_micros(settings::lookahead_ms() * 1000);
        [self.next_deadline, self.waiting.borrow().next()]
            .into_iter()
            .flatten()
            .fold(lookahead, Timestamp::min)
    }

    /// The next deadline to come, as far as is known.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.next_deadline
    }

    fn not_before(&self) -> Option<Timestamp> {
        let tripped = self.trip.pauses_until_us().map(Timestamp);
        tripped.max((self.pauses_until > Timestamp(0)).then_some(self.pauses_until))
    }

    /// One batch of at most `most` rows, if there is anything to do.
    pub fn step(&mut self, most: usize) -> Step {
        let now = clock::now();
        if now < self.looked_at {
            self.clock_stepped_back();
        } else if self.next_look() > now {
            return Step::Rest;
        }
        if self.reads_failures {
            match failure::read(&self.policy.name) {
                Ok(rows) => self.waiting.borrow_mut().replace_failed(rows),
                Err(error) => return Step::Broken(error),
            }
            self.reads_failures = false;
        }
        let pushes = match self.push.is_open(&self.policy) {
            Ok(pushes) => pushes,
            Err(error) => return Step::Broken(error),
        };
        self.progress.withheld_after(self.push.withheld_after());
        let retry_is_due = self.waiting.borrow().next().is_some_and(|next| next <= now);
        let sweeps = retry_is_due
            || sweep::is_due(now.0, self.last_sweep.0, self.sweep_us, settings::lookahead_ms() * 1000);
        let probes = self.trip.is_tripped();
        let limit = if probes { 1 } else { self.limit().min(most) };
        let order = Order {
            policy: &self.policy,
            statements: &self.statements,
            waiting: &self.waiting,
            youngest_first: probes,
            floor: if sweeps || probes { Timestamp::NEGATIVE_INFINITY } else { self.floor }
                .max(self.policy.starts_at.unwrap_or(Timestamp::NEGATIVE_INFINITY)),
            now,
            limit,
            pushes,
            in_worker: self.in_worker,
        };
        match batch::run(&order) {
            Ok(done) => {
                if sweeps {
                    self.last_sweep = now;
                    self.sweep_us = i64::try_from(done.claim_time.as_micros()).unwrap_or(i64::MAX);
                }
                self.succeeded(done, limit, now, sweeps)
            }
            Err(failed) => self.failed(failed, now),
        }
    }

    /// What was planned by the old clock is void.
    fn clock_stepped_back(&mut self) {
        self.floor = Timestamp::NEGATIVE_INFINITY;
        self.last_sweep = Timestamp(0);
        self.looked_at = Timestamp(0);
        self.pauses_until = Timestamp(0);
    }

    fn limit(&self) -> usize {
        match self.policy.max_rate {
            // A twentieth of a second's worth at a time keeps the rate smooth.
            Some(rate) => self.size.next().min((rate as usize / 20).max(1)),
            None => self.size.next(),
        }
    }

    fn succeeded(&mut self, done: Done, limit: usize, now: Timestamp, swept: bool) -> Step {
        self.is_draining = done.claimed > 0;
        if done.claimed == 0 {
            self.collisions = 0;
            if !self.trip.is_tripped() {
                self.progress.state("active", None);
            }
            self.floor = now;
            self.looked_at = now;
            self.next_deadline = done.next_deadline;
            if swept {
                self.waiting.borrow_mut().postpone(now, now.plus_micros(settings::lookahead_ms() * 1000));
                self.forget_gone(now);
            }
            return Step::Rest;
        }
        let elapsed_us = clock::now().since(now);
        self.size.succeeded(done.claimed, elapsed_us, settings::target_batch_time_ms() * 1000);
        self.collisions = 0;
        if let Some(rate) = self.policy.max_rate {
            let claimed = i64::try_from(done.claimed).expect("a batch is far smaller");
            self.pauses_until = now.plus_micros(claimed * 1_000_000 / i64::from(rate.max(1)));
        }
        self.floor = match done.last_deadline {
            Some(last) if done.claimed >= limit => last,
            _ => now,
        };
        if self.trip.is_tripped() {
            pgrx::log!("pg_expiry: policy \"{}\" works again", self.policy.name);
        }
        self.progress.state("active", None);
        self.trip = self.trip.after(Seen::Success, now.0);
        self.streak.clear();
        self.progress.cancelled(done.cancelled.len(), &done.lateness_us);
        self.progress.declined(done.declined.len());
        if let Some(first) = done.first_withheld {
            self.push.withheld(first);
            self.progress.withheld(done.cancelled.len(), self.push.withheld_after());
        }
        self.forget_failures_of(&done.cancelled);
        for key in done.declined {
            self.decline(key, now);
        }
        Step::Again { cancelled: done.cancelled.len() }
    }

    fn decline(&mut self, key: Key, now: Timestamp) {
        let mut waiting = self.waiting.borrow_mut();
        let times = match waiting.get(&key) {
            Some(Wait { reason: Reason::Declined { times }, .. }) => times + 1,
            _ => 1,
        };
        let until = now.plus_micros(self.policy.retry_delay_ms * 1000);
        waiting.set(key, Wait { until, reason: Reason::Declined { times } });
    }

    fn forget_failures_of(&mut self, cancelled: &[Key]) {
        if self.waiting.borrow().is_empty() {
            return;
        }
        let mut waiting = self.waiting.borrow_mut();
        let recorded: Vec<Key> = cancelled
            .iter()
            .filter(|key| {
                waiting.remove(key).is_some_and(|wait| matches!(wait.reason, Reason::Failed { .. }))
            })
            .cloned()
            .collect();
        drop(waiting);
        if !recorded.is_empty()
            && let Err(error) = failure::forget(&self.policy.name, &recorded)
        {
            pgrx::warning!("pg_expiry: policy \"{}\": {error}", self.policy.name);
        }
    }

    /// Drops the record of failing rows that are not due any more: paid, deleted, extended. Looks every few
    /// seconds, after a sweep that found nothing.
    fn forget_gone(&mut self, now: Timestamp) {
        const PAUSE_US: i64 = 5_000_000;
        const MOST: usize = 1000;
        if now.since(self.checked_at) < PAUSE_US {
            return;
        }
        self.checked_at = now;
        let failed: Vec<Key> = self.waiting.borrow().failed().take(MOST).cloned().collect();
        if failed.is_empty() {
            return;
        }
        let gone = batch::no_longer_due(&self.policy, &self.statements, &failed, now)
            .and_then(|gone| failure::forget(&self.policy.name, &gone).map(|()| gone));
        match gone {
            Ok(gone) => gone.iter().for_each(|key| {
                self.waiting.borrow_mut().remove(key);
            }),
            Err(error) => pgrx::debug1!("pg_expiry: policy \"{}\": {error}", self.policy.name),
        }
    }

    fn failed(&mut self, failed: Failed, now: Timestamp) -> Step {
        let Failed { stage, error, timed_out, at_commit } = failed;
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
        if classify(&error.sqlstate, timed_out) == Fault::Transient {
            return self.collided(stage, &error, now);
        }
        match stage {
            Stage::Claiming => Step::Broken(error),
            Stage::Calling { key, position } => {
                self.size.failed_at(position);
                self.rows_failed(&[key], &error, now)
            }
            Stage::Batch { key, rows: 1 } => {
                self.size.found();
                self.rows_failed(&[key], &error, now)
            }
            Stage::Batch { rows, .. } => {
                self.size.failed(rows);
                Step::Again { cancelled: 0 }
            }
            Stage::LeftDue { keys } => self.rows_failed(&keys, &error, now),
        }
    }

    /// Something that is nobody's fault was in the way: later again, and nothing is counted.
    fn collided(&mut self, stage: Stage, error: &PgError, now: Timestamp) -> Step {
        self.size.collided();
        self.collisions += 1;
        let wait_us = backoff::wait_us(COLLISION_US, self.collisions, now.0.unsigned_abs())
            .min(settings::lookahead_ms() * 1000);
        match stage {
            Stage::Calling { key, .. } | Stage::Batch { key, rows: 1 } => {
                let mut waiting = self.waiting.borrow_mut();
                let kept = waiting.get(&key);
                // A row that has failed before keeps its attempts.
                let reason = match kept {
                    Some(Wait { reason: Reason::Failed { attempts }, .. }) => Reason::Failed { attempts },
                    Some(Wait { reason: Reason::Collided { times }, .. }) => {
                        Reason::Collided { times: times + 1 }
                    }
                    _ => Reason::Collided { times: 1 },
                };
                waiting.set(key, Wait { until: now.plus_micros(wait_us), reason });
                Step::Again { cancelled: 0 }
            }
            Stage::Batch { .. } | Stage::LeftDue { .. } | Stage::Claiming => {
                pgrx::debug1!("pg_expiry: policy \"{}\": {error}", self.policy.name);
                self.pauses_until = now.plus_micros(wait_us);
                self.looked_at = now;
                self.last_sweep = Timestamp(0);
                self.is_draining = false;
                Step::Rest
            }
        }
    }

    fn rows_failed(&mut self, keys: &[Key], error: &PgError, now: Timestamp) -> Step {
        self.is_draining = true;
        self.progress.failed(keys.len(), error);
        if self.trip.is_tripped() {
            self.trip = self.trip.after(Seen::Repeat, now.0);
            self.pass_over(keys);
            return Step::Rest;
        }
        let waits = match failure::record(&self.policy, keys, error, !self.push.is_withheld()) {
            Ok(waits) => waits,
            Err(unrecorded) => {
                pgrx::warning!("pg_expiry: policy \"{}\": {unrecorded}", self.policy.name);
                self.pauses_until = now.plus_micros(settings::lookahead_ms() * 1000);
                return Step::Rest;
            }
        };
        let mut new = 0;
        for (key, wait) in keys.iter().zip(waits) {
            self.warn_of_row(key, wait, error);
            if wait.reason == (Reason::Failed { attempts: 1 }) {
                self.streak.push(key.clone());
                new += 1;
            }
            self.waiting.borrow_mut().set(key.clone(), wait);
        }
        let seen = if new > 0 { Seen::Failures(new) } else { Seen::Repeat };
        self.trip = self.trip.after(seen, now.0);
        if self.trip.is_tripped() {
            self.tripped(error);
        }
        Step::Again { cancelled: 0 }
    }

    /// The next probes take other rows than these.
    fn pass_over(&mut self, keys: &[Key]) {
        let Trip::Tripped { probe_at_us, pause_us } = self.trip else { return };
        let until = Timestamp(probe_at_us).plus_micros(pause_us * 8);
        for key in keys {
            let mut waiting = self.waiting.borrow_mut();
            if !matches!(waiting.get(key), Some(Wait { reason: Reason::Failed { .. }, .. })) {
                waiting.set(key.clone(), Wait { until, reason: Reason::Collided { times: 1 } });
            }
        }
    }

    fn warn_of_row(&self, key: &[u8], wait: Wait, error: &PgError) {
        let Reason::Failed { attempts } = wait.reason else { return };
        let next = if wait.until.is_finite() { "will be tried again" } else { "is quarantined" };
        pgrx::warning!(
            "pg_expiry: policy \"{}\": attempt {attempts} of {} for row {} failed, the row {next}: {error}",
            self.policy.name,
            self.policy.max_attempts,
            json::text_of(key),
        );
    }

    /// It is the function's fault, not the rows': they get their attempts back.
    fn tripped(&mut self, error: &PgError) {
        self.progress.state("tripped", Some(format!("every call fails, the last with: {error}")));
        pgrx::warning!(
            "pg_expiry: policy \"{}\" pauses itself, every call of {} fails, the last with: {error}",
            self.policy.name,
            self.policy.function.identity,
        );
        let streak = std::mem::take(&mut self.streak);
        if let Err(error) = failure::forget(&self.policy.name, &streak) {
            pgrx::warning!("pg_expiry: policy \"{}\": {error}", self.policy.name);
        }
        for key in &streak {
            self.waiting.borrow_mut().remove(key);
        }
    }
}
