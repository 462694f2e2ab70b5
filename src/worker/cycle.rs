//! One look over all policies of an owner: the worker's pass. The worker is a loop around it; what SQL runs
//! by hand (`run.rs`) takes the same steps.

use std::collections::HashMap;

use pgrx::pg_sys::Oid;

use super::alarm;
use super::duty::{Duty, Step, tell_stopped};
use super::prune::Prune;
use super::{ignore_own_tables, progress, way};
use crate::board;
use crate::installed;
use crate::pg::caught::PgError;
use crate::pg::clock::{self, Timestamp};
use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::{bgworker, inval, latch, wake, xact};
use crate::policy::{self, Loaded};
use crate::settings;

/// Policies are loaded anew after this long at the latest, whatever else happens.
const RELOAD_US: i64 = 60_000_000;

pub struct Cycle {
    owner: Oid,
    duties: Vec<Duty>,
    /// Policies that cannot be worked on now, with the state written last.
    idle: HashMap<String, (&'static str, Option<String>)>,
    /// Policies that are neither paused nor restored.
    live: usize,
    reloads_at_next_look: bool,
    /// An index is being built, or dropped; when it was last seen to it that this is in nobody's way.
    has_builder: bool,
    gave_way_at: Timestamp,
    generation: Option<u64>,
    looks: u64,
    loaded_at: Timestamp,
    is_reload_due: bool,
    prune: Prune,
    is_stale: bool,
}

/// What a look came to.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// When to look again, unless woken.
    pub next_look: Timestamp,
    /// The earliest deadline to come, as far as is known.
    pub next_due: Option<Timestamp>,
    /// Policies that want a worker; with none the worker may go.
    pub policies: usize,
}

impl Cycle {
    pub fn new(owner: Oid) -> Self {
        Self {
            owner,
            duties: Vec::new(),
            idle: HashMap::new(),
            live: 0,
            reloads_at_next_look: false,
            has_builder: false,
            gave_way_at: Timestamp(0),
            generation: None,
            looks: 0,
            loaded_at: Timestamp(0),
            is_reload_due: true,
            prune: Prune::default(),
            is_stale: false,
        }
    }

    /// The configuration was read again: defaults of policies may have changed.
    pub fn want_reload(&mut self) {
        self.is_reload_due = true;
    }

    /// This session is of no use any more.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Cancels what is due, until nothing is.
    pub fn look(&mut self) -> Result<Look, PgError> {
        let lookahead_us = settings::lookahead_ms() * 1000;
        let looks = wake::looks();
        if std::mem::replace(&mut self.looks, looks) != looks {
            self.duties.iter_mut().for_each(Duty::want_look);
        }
        // An empty transaction: at its start changes of catalogs become known, also while no policy claims.
        xact::in_transaction(BOOTSTRAP_SUPERUSER, || ())?;
        if self.must_reload() || self.reloads_at_next_look {
            self.reload()?;
        }
        if !settings::enabled() {
            let next_look = clock::now().plus_micros(lookahead_us);
            return Ok(Look { next_look, next_due: None, policies: self.live });
        }
        while !board::is_to_leave() && self.round()? && !self.must_reload() {
            // Here too: there may be no end to what is due.
            self.prune.step(clock::now());
            self.give_way()?;
        }
        let now = clock::now();
        for duty in &mut self.duties {
            duty.progress.write_if_due(&duty.policy.name, now)?;
        }
        self.prune.step(now);
        self.give_way()?;
        let next_look = self
            .duties
            .iter()
            .flat_map(|duty| [Some(duty.next_look()), duty.next_reminder(), duty.progress.next_write()])
            .chain([Some(self.prune.next_at(now))])
            .chain([self.has_builder.then(|| self.gave_way_at.plus_micros(way::PAUSE_US))])
            .flatten()
            .fold(now.plus_micros(lookahead_us), Timestamp::min);
        let next_look = if self.is_reload_due { now } else { next_look };
        let next_due =
            self.duties.iter().flat_map(|duty| [duty.next_deadline(), duty.next_reminder()]).flatten().min();
        Ok(Look { next_look, next_due, policies: self.live })
    }

    fn give_way(&mut self) -> Result<(), PgError> {
        let now = clock::now();
        if self.has_builder && !(0..way::PAUSE_US).contains(&now.since(self.gave_way_at)) {
            self.gave_way_at = now;
            way::give()?;
        }
        Ok(())
    }

    /// One batch for each policy that has something to do, the latest first; so a backlog of one makes no
    /// other wait for more than a batch. False when there is nothing to do for any.
    fn round(&mut self) -> Result<bool, PgError> {
        self.duties.sort_by_key(|duty| duty.next_deadline().unwrap_or(Timestamp::INFINITY));
        let mut goes_on = false;
        for duty in &mut self.duties {
            if duty.next_look() <= clock::now() {
                bgworker::report_running(&format!("cancelling rows of policy \"{}\"", duty.policy.name));
            }
            match duty.step(usize::MAX) {
                Step::Again { .. } => goes_on = true,
                Step::Rest => (),
                Step::Stale(error) => {
                    pgrx::log!("pg_expiry: worker starts a new session after: {error}");
                    self.is_stale = true;
                }
                Step::Broken(error) => {
                    duty.stop(&error);
                    self.is_reload_due = true;
                }
            }
            goes_on |= duty.remind()?;
            let now = clock::now();
            duty.watch(now);
            duty.progress.write_if_due(&duty.policy.name, now)?;
        }
        Ok(goes_on && !self.is_stale)
    }

    fn must_reload(&mut self) -> bool {
        self.is_reload_due |= latch::glance();
        let generation = wake::generation();
        let changed_by_users = self.generation.replace(generation) != Some(generation);
        if changed_by_users {
            for duty in &mut self.duties {
                duty.want_failures();
            }
        }
        let has_changed = inval::catalog_changed() || changed_by_users;
        if has_changed {
            self.duties.iter_mut().for_each(Duty::reconsider);
        }
        self.is_reload_due |= has_changed;
        self.is_reload_due |= clock::now().since(self.loaded_at) >= RELOAD_US;
        self.is_reload_due
    }

    fn reload(&mut self) -> Result<(), PgError> {
        let owner = self.owner;
        let (loaded, spare) = xact::in_transaction(BOOTSTRAP_SUPERUSER, || {
            installed::check();
            ignore_own_tables();
            let loaded = policy::load_all_of(owner);
            let spare = policy::with_spare_index(&loaded);
            (loaded, spare)
        })?;
        self.has_builder = !spare.is_empty();
        for name in spare {
            board::request_index_build(wake::own_database(), &name);
        }
        self.loaded_at = clock::now();
        self.reloads_at_next_look = false;
        self.live = 0;
        let mut known: HashMap<String, Duty> =
            self.duties.drain(..).map(|duty| (duty.policy.name.clone(), duty)).collect();
        for (name, loaded) in loaded {
            if let Loaded::Ready(policy) = loaded {
                self.live += 1;
                self.idle.remove(&name);
                self.duties.push(match known.remove(&name) {
                    Some(duty) if duty.policy == *policy => duty,
                    Some(duty) => duty.altered(*policy),
                    None => Duty::new(*policy, true),
                });
            } else {
                if let Some(mut duty) = known.remove(&name) {
                    duty.progress.write(&name, self.loaded_at)?;
                }
                self.set_aside(name, loaded)?;
            }
        }
        // Only now: after an error all of it is to be done again.
        self.is_reload_due = false;
        Ok(())
    }

    fn set_aside(&mut self, name: String, loaded: Loaded) -> Result<(), PgError> {
        let (state, error) = match loaded {
            Loaded::Paused | Loaded::Restored => return Ok(()),
            Loaded::Indexing(policy) => {
                self.reloads_at_next_look = true;
                self.has_builder = true;
                board::request_index_build(wake::own_database(), &policy.name);
                ("active", None)
            }
            Loaded::Stopped(error) => {
                // Somebody has locked the relation while it had to be looked at: that passes.
                self.reloads_at_next_look |= error.sqlstate == "55P03";
                ("stopped", Some(error))
            }
            Loaded::Ready(_) => unreachable!("has a duty"),
        };
        self.live += 1;
        let shown = (state, error.as_ref().map(PgError::to_string));
        if self.idle.get(&name) != Some(&shown) {
            if let Some(error) = &error {
                tell_stopped(&name, error);
                if error.sqlstate != "55P03" {
                    alarm::tell_stopped(&name, error);
                }
            }
            progress::write_state(&name, shown.0, shown.1.clone())?;
            self.idle.insert(name, shown);
        }
        Ok(())
    }
}
