//! The reminders of one interval: what has come within it is found, then reminded, batch by batch.

use std::collections::VecDeque;

use super::look::Looks;
use super::record::{self, Batch};
use crate::pg::caught::PgError;
use crate::pg::clock::{self, Timestamp};
use crate::policy::Policy;
use crate::rules::reminder::Lead;
use crate::rules::sweep;
use crate::settings;
use crate::worker::waiting::Key;

/// How far this process has come is written down at most so often, besides with each reminder.
const WRITE_PAUSE_US: i64 = 1_000_000;

pub struct Course {
    lead: Lead,
    /// Rows that are to be reminded, in deadline order.
    found: VecDeque<Key>,
    /// They are all that there are up to this deadline.
    found_to: Timestamp,
    /// They have begun within the interval.
    found_inside: bool,
    /// When the next deadline comes within the interval, as of `looked_at`.
    next_at: Option<Timestamp>,
    looked_at: Timestamp,
    /// `lead.reminded_to_us` as the table has it.
    written_to: Timestamp,
    written_at: Timestamp,
    /// There are rows in between, which another worker would take for new.
    must_write: bool,
    sweep: Sweep,
}

/// The search for rows that have begun within the interval, a page at a time. It takes its share of the time
/// and no more (see `rules::sweep`).
#[derive(Default)]
struct Sweep {
    /// The deadline up to which this one has come; `None`: none is under way.
    position: Option<Timestamp>,
    began_us: i64,
    took_us: i64,
}

impl Course {
    pub fn new(lead: Lead) -> Self {
        Self {
            lead,
            found: VecDeque::new(),
            found_to: Timestamp(0),
            found_inside: false,
            next_at: None,
            looked_at: Timestamp(0),
            written_to: Timestamp(lead.reminded_to_us),
            written_at: Timestamp(0),
            must_write: false,
            sweep: Sweep::default(),
        }
    }

    pub fn lead(&self) -> Lead {
        self.lead
    }

    pub fn want_look(&mut self) {
        self.looked_at = Timestamp(0);
    }

    /// When there is something to do, as far as is known.
    pub fn next_at(&self) -> Option<Timestamp> {
        let is_busy = !self.found.is_empty() || self.sweep.position.is_some();
        if is_busy { Some(Timestamp(0)) } else { self.next_at }
    }

    /// One batch at the most; whether there may be more at once.
    pub fn step(
        &mut self,
        policy: &Policy,
        looks: &Looks,
        pushes: bool,
        duty_looked_at: Timestamp,
    ) -> Result<bool, PgError> {
        let now = clock::now();
        if self.found.is_empty() && self.is_time(now, duty_looked_at) {
            self.look(policy, looks, now)?;
        }
        if self.found.is_empty() && policy.remind_late {
            self.sweep(policy, looks, now)?;
        }
        if !self.found.is_empty() {
            self.remind(policy, looks, pushes)?;
            return Ok(true);
        }
        if self.must_write && !(0..WRITE_PAUSE_US).contains(&now.since(self.written_at)) {
            self.write(policy, now)?;
        }
        Ok(self.sweep.position.is_some())
    }

    /// Looks when the claims do, so that the worker need not wake up for it.
    fn is_time(&self, now: Timestamp, duty_looked_at: Timestamp) -> bool {
        let lookahead_us = settings::lookahead_ms() * 1000;
        duty_looked_at > self.looked_at
            || !(0..lookahead_us).contains(&now.since(self.looked_at))
            || self.next_at.is_some_and(|at| at <= now)
    }

    /// Finds what has come within the interval since the last look. `now` was read before the rows are, so
    /// whoever is seen too late had committed after his reminder was due.
    fn look(&mut self, policy: &Policy, looks: &Looks, now: Timestamp) -> Result<(), PgError> {
        let (after, until) = self.lead.coming(now.0);
        let after = after.max(least(policy));
        let until = Timestamp(until);
        let unwritten = self.written_to.max(now);
        let (found, found_to, next, must_write) = policy.in_transaction(&[], |spi| {
            let (found, found_to) = looks.coming(spi, Timestamp(after), until, policy.batch_size);
            if !found.is_empty() || policy.remind_late {
                return (found, found_to, looks.next(spi, until), false);
            }
            // Usually one look answers both: what is next, and whether there is anything before.
            match looks.next(spi, unwritten.min(until)) {
                Some(deadline) if deadline <= until => (found, found_to, looks.next(spi, until), true),
                next => (found, found_to, next, false),
            }
        })?;
        self.found_inside = false;
        self.found_to = found_to;
        self.next_at = next.map(|deadline| Timestamp(self.lead.instant_of(deadline.0)));
        if found.is_empty() {
            self.looked_at = now;
            self.lead = self.lead.advanced(found_to.0);
            self.must_write = must_write;
        } else {
            // Once they are reminded there is more to see.
            self.looked_at = Timestamp(0);
            self.found = found.into_iter().map(|(key, _)| key).collect();
        }
        Ok(())
    }

    /// Finds a page of rows that have begun within the interval and have not been reminded.
    fn sweep(&mut self, policy: &Policy, looks: &Looks, now: Timestamp) -> Result<(), PgError> {
        let has_looked = self.looked_at == now;
        let position = match self.sweep.position {
            Some(position) => position,
            None if has_looked && sweep::is_due(now.0, self.sweep.began_us, self.sweep.took_us, 0) => {
                self.sweep = Sweep { position: None, began_us: now.0, took_us: 0 };
                Timestamp::NEGATIVE_INFINITY
            }
            None => return Ok(()),
        };
        let (after, until) = self.lead.inside(now.0);
        let after = Timestamp(after.max(least(policy))).max(position);
        let until = Timestamp(until);
        let (found, found_to) = policy.in_transaction(&[], |spi| {
            let (rows, found_to) = looks.coming(spi, after, until, policy.batch_size);
            let is_new = record::are_new(spi, policy, self.lead, &rows);
            let new: VecDeque<Key> =
                rows.into_iter().zip(is_new).filter(|(_, is_new)| *is_new).map(|((key, _), _)| key).collect();
            (new, found_to)
        })?;
        self.found = found;
        self.found_to = found_to;
        self.found_inside = true;
        self.sweep.position = (found_to < until).then_some(found_to);
        self.sweep.took_us += clock::now().since(now);
        Ok(())
    }

    /// Reminds a batch of those that were found, in one transaction.
    fn remind(&mut self, policy: &Policy, looks: &Looks, pushes: bool) -> Result<(), PgError> {
        let rows = self.found.len().min(policy.batch_size);
        let is_last = rows == self.found.len();
        let now = clock::now();
        let (after, _) = if policy.remind_late { self.lead.inside(now.0) } else { self.lead.coming(now.0) };
        let batch = Batch {
            lead: self.lead,
            keys: &self.found.make_contiguous()[..rows],
            after: Timestamp(after.max(least(policy))),
            until: self.found_to,
            advances: is_last && !self.found_inside,
            pushes,
        };
        record::remind(policy, looks, &batch)?;
        if batch.advances {
            self.lead = self.lead.advanced(self.found_to.0);
            self.written_to = self.written_to.max(self.found_to);
            self.written_at = now;
        }
        self.found.drain(..rows);
        Ok(())
    }

    /// Writes down how far this process has come.
    pub fn write(&mut self, policy: &Policy, now: Timestamp) -> Result<(), PgError> {
        record::write(policy, self.lead)?;
        self.written_to = self.written_to.max(Timestamp(self.lead.reminded_to_us));
        self.written_at = now;
        self.must_write = false;
        Ok(())
    }
}

/// Rows with deadlines up to here are left alone.
fn least(policy: &Policy) -> i64 {
    policy.starts_at.map_or(i64::MIN, |at| at.plus_micros(-1).0)
}
