//! A policy with all that a worker remembers of it from one batch to the next, and what follows from one
//! that was committed; what follows from the others is in `trouble`.
//!
//! The floor is the deadline below which nothing is pending as far as this worker knows: batches of a drain
//! start there, so that they do not walk over the index entries that earlier ones left behind. It is an
//! optimisation, never the truth: sweeps start at -infinity (see `rules::sweep`).

use std::cell::RefCell;
use std::rc::Rc;

use pgrx::PgSqlErrorCode;

use super::alarm::Alarm;
use super::audit;
use super::batch::{self, Done, Order};
use super::failure;
use super::progress::Progress;
use super::push::Push;
use super::remind::Reminders;
use super::statements::Statements;
use super::waiting::{Key, Reason, Wait, Waiting};
use crate::board::{self, Assistance};
use crate::pg::asides::{self, Aside};
use crate::pg::caught::PgError;
use crate::pg::clock::{self, Timestamp};
use crate::pg::{log, timeout, wake};
use crate::policy::Policy;
use crate::rules::alert::Trouble;
use crate::rules::backoff;
use crate::rules::batch_size::BatchSize;
use crate::rules::fault::{Fault, classify};
use crate::rules::patience::Patience;
use crate::rules::sweep;
use crate::rules::throttle::{Quota, Throttle};
use crate::rules::trip::{Seen, Trip};
use crate::settings;

/// Of so many claims and one more, one takes rows that have collided.
const CLAIMS_WITHOUT_COLLIDED: u32 = 3;

/// The extension has just been dropped.
pub const UNDEFINED_TABLE: &str = "42P01";

const WARNING: PgSqlErrorCode = PgSqlErrorCode::ERRCODE_WARNING;

pub struct Duty {
    pub policy: Policy,
    statements: Statements,
    pub(super) waiting: Rc<RefCell<Waiting>>,
    pub progress: Progress,
    pub(super) size: BatchSize,
    pub(super) trip: Trip,
    floor: Timestamp,
    pub(super) last_sweep: Timestamp,
    sweep_us: i64,
    /// The next deadline to come, as of `looked_at`.
    next_deadline: Option<Timestamp>,
    pub(super) looked_at: Timestamp,
    /// Nothing is claimed before this instant: something was in the way, or max_rate.
    pub(super) pauses_until: Timestamp,
    /// One after the other, with no success between.
    pub(super) collisions: u32,
    pub(super) patience: Patience,
    /// Claims since rows that have collided had their turn.
    claims_without_collided: u32,
    /// The last claim was not empty: there may be more.
    pub(super) is_draining: bool,
    /// Full batches one after the other, in which all went well.
    pub(super) full_batches: u32,
    /// Rows that have failed since the last success, for the first time.
    pub(super) streak: Vec<Key>,
    /// The last probe, and how long it took.
    probed_at: Timestamp,
    probe_us: i64,
    checked_at: Timestamp,
    /// So many of the failed rows were looked at, whether they are still due, in this round.
    checked: usize,
    pub(super) push: Push,
    pub(super) alarm: Alarm,
    pub(super) reminders: Reminders,
    /// What is known of `expiry.failure` may be out of date.
    reads_failures: bool,
    pub(super) in_worker: bool,
    complaints: Throttle,
    pub(super) row_complaints: Quota,
}

/// Says once why a policy does nothing, and what to do.
pub(super) fn tell_stopped(policy: &str, error: &PgError) {
    let hint = error.hint.as_deref().unwrap_or("It is tried again by and by; see expiry.status.");
    log::warning(WARNING, format!("pg_expiry: policy \"{policy}\" is stopped: {error}"), Some(hint));
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
    /// This session may not work any more, another may: the worker ends, and is started anew.
    Stale(PgError),
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
            patience: Patience::default(),
            claims_without_collided: 0,
            is_draining: false,
            full_batches: 0,
            streak: Vec::new(),
            probed_at: Timestamp(0),
            probe_us: 0,
            checked_at: Timestamp(0),
            checked: 0,
            push: Push::default(),
            alarm: Alarm::default(),
            reminders: Reminders::default(),
            reads_failures: true,
            in_worker,
            complaints: Throttle::default(),
            row_complaints: Quota::default(),
            policy,
        }
    }

    /// The policy has become another one: only what is to be written down is kept.
    pub fn altered(self, policy: Policy) -> Self {
        Self { progress: self.progress, push: self.push, ..Self::new(policy, self.in_worker) }
    }

    /// Somebody has changed something: the next step reads the failing rows anew and sweeps.
    pub fn want_failures(&mut self) {
        self.reads_failures = true;
        self.push.want_read();
        self.checked_at = Timestamp(0);
        self.want_look();
    }

    /// The next step sweeps, however soon it is.
    pub fn want_look(&mut self) {
        self.looked_at = Timestamp(0);
        self.last_sweep = Timestamp(0);
        self.reminders.want_look();
    }

    /// Something has changed that may have been what was wrong: does not wait as long as it would.
    pub fn reconsider(&mut self) {
        const SOON_US: i64 = 1_000_000;
        let soon = clock::now().plus_micros(SOON_US);
        self.trip = self.trip.probed_sooner(soon.0);
        if self.progress.is_stopped() {
            self.pauses_until = self.pauses_until.min(soon);
        }
    }

    /// The policy does not work as it is; tries again later, and sooner when anything has changed.
    pub fn stop(&mut self, error: &PgError) {
        const FIRST_US: i64 = 1_000_000;
        const LONGEST_US: i64 = 60_000_000;
        let now = clock::now();
        let reason = error.to_string();
        if self.progress.state("stopped", Some(reason.clone())) {
            tell_stopped(&self.policy.name, error);
            self.alarm.note(Trouble::Stopped, true, Some(&error.to_string()));
        }
        self.collisions += 1;
        let wait_us = backoff::wait_us(FIRST_US, self.collisions, now.0.unsigned_abs()).min(LONGEST_US);
        self.pauses_until = now.plus_micros(wait_us);
    }

    fn is_well(&mut self) {
        self.progress.state("active", None);
        self.alarm.note(Trouble::Tripped, false, None);
        self.alarm.note(Trouble::Stopped, false, None);
    }

    /// Says on the channel of alerts, if there is one, what has become wrong or is right again.
    pub fn watch(&mut self, now: Timestamp) {
        let Some(channel) = settings::alert_channel() else { return };
        if let Err(error) = self.watch_for(&channel, now)
            && classify(&error.sqlstate, false) == Fault::Row
            && error.sqlstate != UNDEFINED_TABLE
        {
            self.complain("could not send an alert", &error);
        }
    }

    fn watch_for(&mut self, channel: &str, now: Timestamp) -> Result<(), PgError> {
        self.alarm.read(&self.policy.name)?;
        if self.alarm.wants_look(now) {
            let oldest = batch::oldest(&self.policy, &self.statements, &self.waiting, now);
            self.alarm.looked(oldest, now);
        }
        if !self.reads_failures {
            let has_quarantined = self.waiting.borrow().has_quarantined();
            self.alarm.note(Trouble::Quarantined, has_quarantined, None);
        }
        self.alarm.tell(channel, &self.policy.name)
    }

    /// When the next step is worth taking.
    pub fn next_look(&self) -> Timestamp {
        let earliest = if self.is_draining { Timestamp(0) } else { self.next_interest() };
        self.not_before().map_or(earliest, |pause| earliest.max(pause))
    }

    /// When it is worth trying again what something was in the way of.
    pub fn collided_until(&self) -> Option<Timestamp> {
        let pause = (self.collisions > 0).then_some(self.pauses_until);
        pause.or_else(|| self.waiting.borrow().next_collided())
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
        let tripped = self.trip.pauses_until_us().map(|until| Timestamp(until).min(self.next_fresh_probe()));
        tripped.max((self.pauses_until > Timestamp(0)).then_some(self.pauses_until))
    }

    /// A tripped policy tries rows that have become due since its last probe without waiting for the next:
    /// they may be better than those that fail, and should not be late on their account. Calls that fail
    /// slowly are made more seldom.
    fn next_fresh_probe(&self) -> Timestamp {
        self.probed_at.plus_micros((self.probe_us * 20).max(settings::lookahead_ms() * 1000))
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
                Err(error) => return self.disturbed(error, now),
            }
            self.reads_failures = false;
        }
        let pushes = match self.push.is_open(&self.policy) {
            Ok(pushes) => pushes,
            Err(error) => return self.disturbed(error, now),
        };
        let retry_is_due = self.waiting.borrow().next().is_some_and(|next| next <= now);
        let probes = self.trip.is_probing();
        let is_fresh = self.trip.pauses_until_us().is_some_and(|until| now.0 < until);
        let sweeps = !is_fresh
            && (retry_is_due
                || sweep::is_due(now.0, self.last_sweep.0, self.sweep_us, settings::lookahead_ms() * 1000));
        let floor = match () {
            () if is_fresh => self.probed_at,
            () if sweeps || probes => Timestamp::NEGATIVE_INFINITY,
            () => self.floor,
        };
        let limit = if probes { 1 } else { self.limit().min(most) };
        // They are the oldest, and if there are many, the others would never get their turn.
        let takes_collided = !self.is_draining || self.claims_without_collided >= CLAIMS_WITHOUT_COLLIDED;
        self.claims_without_collided = if takes_collided { 0 } else { self.claims_without_collided + 1 };
        let order = Order {
            policy: &self.policy,
            statements: &self.statements,
            waiting: &self.waiting,
            youngest_first: probes,
            takes_collided,
            floor: floor.max(self.policy.starts_at.unwrap_or(Timestamp::NEGATIVE_INFINITY)),
            now,
            limit,
            lock_timeout_ms: self.patience.limit_ms(
                settings::lock_timeout_ms(),
                timeout::deadlock_timeout_ms(),
                now.0,
            ),
            pushes,
            in_worker: self.in_worker,
        };
        let outcome = batch::run(&order);
        if probes {
            self.probed_at = now;
            self.probe_us = clock::now().since(now);
        }
        match outcome {
            Ok(done) => {
                if sweeps {
                    self.last_sweep = now;
                    self.sweep_us = i64::try_from(done.claim_time.as_micros()).unwrap_or(i64::MAX);
                }
                let left_some = !takes_collided
                    && (sweeps || done.claimed == 0)
                    && self.waiting.borrow().next_collided().is_some_and(|next| next <= now);
                if done.claimed == 0 && left_some {
                    self.claims_without_collided = CLAIMS_WITHOUT_COLLIDED;
                    return Step::Again { cancelled: 0 };
                }
                self.succeeded(done, limit, now, sweeps && !left_some)
            }
            Err(failed) => self.failed(failed, is_fresh, now),
        }
    }

    /// What was planned by the old clock is void.
    fn clock_stepped_back(&mut self) {
        self.probed_at = Timestamp(0);
        self.trip = self.trip.probed_sooner(0);
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
        self.floor = match done.last_deadline {
            // It has jumped over the others.
            _ if self.trip.is_probing() => Timestamp::NEGATIVE_INFINITY,
            Some(last) if done.claimed >= limit => last,
            _ => now,
        };
        if done.claimed == 0 {
            self.collisions = 0;
            if !self.trip.is_tripped() {
                self.is_well();
            }
            self.looked_at = now;
            self.next_deadline = done.next_deadline;
            if swept {
                self.postpone_waiting(now);
                self.forget_gone(now);
            }
            return Step::Rest;
        }
        let is_waiting = |key: &Key| self.waiting.borrow().get(key).is_some();
        if swept && !done.cancelled.iter().chain(&done.declined).any(is_waiting) {
            self.postpone_waiting(now);
        }
        done.teach(&mut self.size, now);
        self.collisions = 0;
        if let Some(rate) = self.policy.max_rate {
            let claimed = i64::try_from(done.claimed).expect("a batch is far smaller");
            self.pauses_until = now.plus_micros(claimed * 1_000_000 / i64::from(rate.max(1)));
        }
        if self.trip.is_tripped() {
            log::info(format!("pg_expiry: policy \"{}\" works again", self.policy.name));
            self.waiting.borrow_mut().acquit(now);
            self.reads_failures = true;
        }
        self.is_well();
        self.trip = self.trip.after(Seen::Success, now.0);
        self.streak.clear();
        self.progress.committed(&done);
        audit::log_cancellations(&self.policy, &done);
        self.full_batches =
            if done.claimed >= limit && done.declined.is_empty() { self.full_batches + 1 } else { 0 };
        self.call_assistants();
        self.forget_failures_of(&done.cancelled);
        for key in done.declined {
            self.decline(key, now);
        }
        Step::Again { cancelled: done.cancelled.len() }
    }

    /// In a backlog, in which all goes well. They are asked for again and again: those that are there may end.
    fn call_assistants(&self) {
        const BACKLOG: u32 = 8;
        let is_wanted = self.full_batches > 0 && self.full_batches.is_multiple_of(BACKLOG);
        let most = settings::workers() - 1;
        if self.in_worker && is_wanted && most > 0 && self.policy.max_rate.is_none() {
            let Policy { owner, ref name, .. } = self.policy;
            let work = Assistance { owner, policy: name.clone(), floor: self.floor };
            board::request_assistants(wake::own_database(), &work, most);
        }
    }

    fn postpone_waiting(&mut self, now: Timestamp) {
        self.waiting.borrow_mut().postpone(now, now.plus_micros(settings::lookahead_ms() * 1000));
    }

    fn decline(&mut self, key: Key, now: Timestamp) {
        let mut waiting = self.waiting.borrow_mut();
        let times = match waiting.get(&key) {
            Some(Wait { reason: Reason::Declined { times }, .. }) => times + 1,
            _ => 1,
        };
        let until = now.plus_micros(self.policy.retry_delay_ms * 1000);
        asides::note(&self.policy.name, &key, Aside::Declined(times), until);
        waiting.set(key, Wait::new(until, Reason::Declined { times }));
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
            self.complain("could not forget rows that have failed before", &error);
        }
    }

    /// What goes wrong beside the cancelling; said once a minute.
    pub(super) fn complain(&mut self, what: &str, error: &PgError) {
        let message = format!("pg_expiry: policy \"{}\" {what}: {error}", self.policy.name);
        if self.complaints.allows(&message, clock::now().0) {
            log::warning(WARNING, message, Some("It is tried again by and by."));
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
        let failed: Vec<Key> =
            self.waiting.borrow().failed().skip(self.checked).take(MOST).cloned().collect();
        if failed.len() < MOST {
            self.checked = 0;
        }
        if failed.is_empty() {
            return;
        }
        let gone = batch::no_longer_due(&self.policy, &self.statements, &failed, now)
            .and_then(|gone| failure::forget(&self.policy.name, &gone).map(|()| gone));
        match gone {
            Ok(gone) => {
                // Those that are still due are not looked at again before all the others were.
                if failed.len() == MOST {
                    self.checked += MOST - gone.len();
                }
                gone.iter().for_each(|key| {
                    self.waiting.borrow_mut().remove(key);
                });
            }
            Err(error) => pgrx::debug1!("pg_expiry: policy \"{}\": {error}", self.policy.name),
        }
    }
}
