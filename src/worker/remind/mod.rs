//! Reminders: an event of kind `reminder` when the deadline of a pending row comes within an interval of the
//! policy (`remind_before`). For each interval the worker walks along the deadline index ahead of the claims,
//! and sleeps until the next reminder as it does until the next deadline.
//!
//! Rows are read and not locked: nobody who pays or extends waits for a reminder. What makes each one happen
//! once is the row of `expiry.reminder`, which whoever reminds holds until he commits, and `expiry.reminded`,
//! which his transaction fills together with the events.

mod course;
mod look;
mod record;

use pgrx::PgSqlErrorCode;

use self::course::Course;
use self::look::Looks;
use super::duty::Duty;
use super::push::Push;
use crate::pg::caught::PgError;
use crate::pg::clock::{self, Timestamp};
use crate::pg::log;
use crate::policy::Policy;
use crate::rules::backoff;
use crate::rules::fault::{Fault, classify};
use crate::rules::throttle::Throttle;
use crate::settings;

/// How often reminders of deadlines that have passed are forgotten, and how long after: a clock that is set
/// back a little must not bring them again.
const PRUNE_PAUSE_US: i64 = 10_000_000;
const KEPT_US: i64 = 10_000_000;

/// What is under way for the reminders of one policy.
#[derive(Default)]
pub struct Reminders {
    /// `None`: how far others have come is still to be read.
    courses: Option<Vec<Course>>,
    looks: Option<Looks>,
    pauses_until: Timestamp,
    errors: u32,
    pruned_at: Timestamp,
    throttle: Throttle,
}

impl Duty {
    /// A batch of reminders, if it is time for any; whether there may be more at once. In a worker what goes
    /// wrong is told in a warning: it is no reason to cancel nothing.
    pub fn remind(&mut self) -> Result<bool, PgError> {
        if self.progress.is_stopped() {
            return Ok(false);
        }
        let Self { policy, push, reminders, in_worker, looked_at, .. } = self;
        let now = clock::now();
        if reminders.is_pausing(now) {
            return Ok(false);
        }
        match reminders.step(policy, push, *looked_at, now) {
            Ok(goes_on) => {
                reminders.errors = 0;
                Ok(goes_on)
            }
            Err(error) if !*in_worker => Err(error),
            Err(error) => {
                reminders.pause_after(&error, policy, now);
                Ok(false)
            }
        }
    }

    /// When there are reminders to give, as far as is known.
    pub fn next_reminder(&self) -> Option<Timestamp> {
        self.reminders.next_at().filter(|_| !self.progress.is_stopped())
    }

    /// A run by hand ends: the next one is to know how far this one has come.
    pub fn note_reminded(&mut self) -> Result<(), PgError> {
        let now = clock::now();
        let courses = self.reminders.courses.iter_mut().flatten();
        courses.into_iter().try_for_each(|course| course.write(&self.policy, now))
    }
}

impl Reminders {
    /// The next look is at once.
    pub fn want_look(&mut self) {
        self.courses.iter_mut().flatten().for_each(Course::want_look);
    }

    fn next_at(&self) -> Option<Timestamp> {
        let next = self.courses.iter().flatten().filter_map(Course::next_at).min()?;
        Some(next.max(self.pauses_until))
    }

    fn is_pausing(&self, now: Timestamp) -> bool {
        const LONGEST_US: i64 = 60_000_000;
        now < self.pauses_until && self.pauses_until.since(now) <= LONGEST_US
    }

    fn pause_after(&mut self, error: &PgError, policy: &Policy, now: Timestamp) {
        self.errors += 1;
        let pause_us = match classify(&error.sqlstate, false) {
            Fault::Transient => settings::lookahead_ms() * 1000,
            Fault::Row => backoff::wait_us(1_000_000, self.errors, now.0.unsigned_abs()),
        };
        self.pauses_until = now.plus_micros(pause_us.min(60_000_000));
        if classify(&error.sqlstate, false) == Fault::Transient {
            pgrx::debug1!("pg_expiry: policy \"{}\": reminders: {error}", policy.name);
        } else if self.throttle.allows(&error.message, now.0) {
            log::warning(
                PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                format!("policy \"{}\": reminders could not be given: {error}", policy.name),
                error.hint.as_deref(),
            );
        }
    }

    fn step(
        &mut self,
        policy: &Policy,
        push: &mut Push,
        duty_looked_at: Timestamp,
        now: Timestamp,
    ) -> Result<bool, PgError> {
        if self.courses.is_none() {
            let leads = record::load(policy, now)?;
            self.courses = Some(leads.into_iter().map(Course::new).collect());
        }
        let courses = self.courses.as_mut().expect("loaded just now");
        if courses.is_empty() {
            return Ok(false);
        }
        let pushes = push.is_open(policy)?;
        let looks = self.looks.get_or_insert_with(|| Looks::new(policy));
        let mut goes_on = false;
        for course in &mut *courses {
            goes_on |= course.step(policy, looks, pushes, duty_looked_at)?;
        }
        let since = now.since(self.pruned_at);
        if !(0..PRUNE_PAUSE_US).contains(&since) {
            let mut left_some = false;
            for course in courses {
                left_some |= record::forget_passed(policy, course.lead(), now.plus_micros(-KEPT_US))?;
            }
            self.pruned_at = if left_some { Timestamp(0) } else { now };
        }
        Ok(goes_on)
    }
}
