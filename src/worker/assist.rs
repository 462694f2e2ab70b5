//! The assistant: takes part in the backlog of one policy, and leaves when it is over. It does only what goes
//! well: whatever is in its way, or fails, is rolled back and left to the worker, who finds it in a sweep.

use std::cell::RefCell;
use std::rc::Rc;

use super::audit;
use super::batch::{self, Done, Order};
use super::failure;
use super::ignore_own_tables;
use super::progress::Progress;
use super::push::Push;
use super::statements::Statements;
use super::waiting::{Wait, Waiting};
use crate::board::{self, Assistance};
use crate::installed;
use crate::pg::caught::PgError;
use crate::pg::clock::{self, Timestamp};
use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::{bgworker, inval, latch, timeout, wake, xact};
use crate::policy::{self, Loaded, Policy};
use crate::rules::batch_size::BatchSize;
use crate::rules::patience::Patience;
use crate::settings;

struct Assistant {
    policy: Policy,
    statements: Statements,
    /// Rows that have failed: all of them are the worker's.
    waiting: Rc<RefCell<Waiting>>,
    size: BatchSize,
    push: Push,
    progress: Progress,
    floor: Timestamp,
}

/// Works until the backlog is over, or anything has changed: the worker will ask for another one.
pub fn run(work: &Assistance) {
    let generation = wake::generation();
    inval::catalog_changed();
    let assistant = match Assistant::prepare(work) {
        Ok(assistant) => assistant,
        Err(error) => return pgrx::debug1!("pg_expiry: assistant of policy \"{}\": {error}", work.policy),
    };
    let Some(mut assistant) = assistant else { return };
    bgworker::report_running(&format!("cancelling rows of policy \"{}\"", work.policy));
    let is_as_before = || {
        !board::is_to_leave()
            && settings::enabled()
            && !latch::glance()
            && wake::generation() == generation
            && !inval::catalog_changed()
    };
    let mut goes_on = true;
    while goes_on && is_as_before() {
        goes_on = assistant.batch().unwrap_or_else(|error| {
            pgrx::debug1!("pg_expiry: assistant of policy \"{}\": {error}", work.policy);
            false
        });
    }
    // Counters only: the rows are cancelled, and recorded as events.
    if let Err(error) = assistant.progress.write(&work.policy, clock::now()) {
        pgrx::debug1!("pg_expiry: assistant of policy \"{}\": {error}", work.policy);
    }
}

impl Assistant {
    /// `None`: the policy wants no assistant any more.
    fn prepare(work: &Assistance) -> Result<Option<Self>, PgError> {
        let loaded = xact::in_transaction(BOOTSTRAP_SUPERUSER, || {
            installed::check();
            ignore_own_tables();
            policy::load(&work.policy)
        })?;
        let Some(Loaded::Ready(policy)) = loaded else { return Ok(None) };
        if policy.owner != work.owner || policy.max_rate.is_some() {
            return Ok(None);
        }
        let mut waiting = Waiting::default();
        let for_good = |wait: Wait| Wait::new(Timestamp::INFINITY, wait.reason);
        waiting.replace_failed(
            failure::read(&work.policy)?.into_iter().map(|(key, wait)| (key, for_good(wait))),
        );
        Ok(Some(Self {
            statements: Statements::new(&policy),
            waiting: Rc::new(RefCell::new(waiting)),
            size: BatchSize::new(policy.batch_size),
            push: Push::default(),
            progress: Progress::default(),
            floor: work.floor,
            policy: *policy,
        }))
    }

    /// One batch. False: that is all.
    fn batch(&mut self) -> Result<bool, PgError> {
        let now = clock::now();
        let limit = self.size.next();
        let lock_timeout_ms =
            Patience::default().limit_ms(settings::lock_timeout_ms(), timeout::deadlock_timeout_ms(), now.0);
        let order = Order {
            policy: &self.policy,
            statements: &self.statements,
            waiting: &self.waiting,
            youngest_first: false,
            takes_collided: true,
            floor: self.floor,
            now,
            limit,
            lock_timeout_ms,
            pushes: self.push.is_open(&self.policy)?,
            in_worker: true,
        };
        let done = batch::run(&order).map_err(|failed| failed.error)?;
        self.note(&done, limit, now);
        self.progress.write_if_due(&self.policy.name, now)?;
        Ok(done.claimed >= limit && done.declined.is_empty())
    }

    fn note(&mut self, done: &Done, limit: usize, now: Timestamp) {
        done.teach(&mut self.size, now);
        if let Some(last) = done.last_deadline.filter(|_| done.claimed >= limit) {
            self.floor = last;
        }
        self.progress.committed(done);
        audit::log_cancellations(&self.policy, done);
    }
}
