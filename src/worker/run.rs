//! `CALL expiry.run()`: the worker's pass, by hand, in the caller's session. Needs no preload.

use std::time::{Duration, Instant};

use pgrx::pg_sys;

use super::due;
use super::duty::{Duty, Step};
use super::index;
use super::trouble::QUERY_CANCELED;
use crate::error::Error;
use crate::installed;
use crate::pg::caught::PgError;
use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::{clock, guest, latch, role, shmem, xact};
use crate::policy::{self, Loaded, Policy};

/// So long after the last success a run gives up what others are in the way of.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often a long run says how far it is.
const NOTICE_PAUSE: Duration = Duration::from_secs(5);

/// The body of the procedure; commits each batch by itself.
#[pgrx::pg_extern(sql = r"
CREATE PROCEDURE run(name text DEFAULT NULL, max_rows bigint DEFAULT NULL)
    LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON PROCEDURE run(text, bigint) IS
    'Cancels what is due now, as the worker does, in this session: at most max_rows rows (NULL: all) of one policy (NULL: of all that you may act for). Commits each batch, so it runs neither in a transaction block nor in a function. Of several policies, an error of one is raised when the others are done. Rows that another transaction is in the way of are tried again for two seconds. max_rate does not apply. Reminders that are due are given too. Errors: 25001 in a transaction block; 42704 unknown policy; 42501 not its owner; 22023 negative max_rows; 55000 the policy is paused, restored or stopped, or its deadline index is being built.';
")]
fn run(name: Option<&str>, max_rows: Option<i64>, fcinfo: pg_sys::FunctionCallInfo) {
    if !xact::is_top_level_call(fcinfo) {
        Error::InTransactionBlock { procedure: "run" }.raise();
    }
    if max_rows.is_some_and(|rows| rows < 0) {
        Error::OutOfRange { parameter: "max_rows", value: max_rows.unwrap_or_default().to_string() }.raise();
    }
    installed::check();
    let names = match name {
        Some(name) => {
            policy::check_may_act_for(name);
            vec![name.to_owned()]
        }
        None => policy::names_that_one_may_act_for(),
    };
    let is_all = name.is_none();
    let mut left = max_rows.map_or(usize::MAX, |rows| usize::try_from(rows).unwrap_or(usize::MAX));
    let result = xact::leaving_transaction(|| {
        run_policies(&names, is_all, &mut left)?;
        if is_all && !shmem::is_available() { index::drop_orphans() } else { Ok(()) }
    });
    if let Err(error) = result {
        error.raise();
    }
}

/// One policy in trouble is its own trouble: the others are worked on, and then its error is raised.
fn run_policies(names: &[String], is_all: bool, left: &mut usize) -> Result<(), PgError> {
    let mut first_error = Ok(());
    for name in names {
        match run_policy(name, is_all, left) {
            Err(error) if error.sqlstate == QUERY_CANCELED => return Err(error),
            result => first_error = first_error.and(result),
        }
    }
    first_error
}

fn run_policy(name: &str, is_all: bool, left: &mut usize) -> Result<(), PgError> {
    let Some(policy) = ready(name, is_all)? else { return Ok(()) };
    let owner = policy.owner;
    let since = clock::now();
    let result = cancel_due(name, policy, left);
    if owner != role::current_user() {
        xact::in_transaction(BOOTSTRAP_SUPERUSER, || guest::forget_traces(owner, since))?;
    }
    result
}

fn cancel_due(name: &str, policy: Policy, left: &mut usize) -> Result<(), PgError> {
    let mut duty = Duty::new(Policy { max_rate: None, ..policy }, false);
    let begun = Instant::now();
    let mut said = begun;
    let mut last_success = begun;
    let mut done = 0;
    let mut outcome = Ok(());
    while *left > 0 && outcome.is_ok() {
        match duty.step(*left) {
            Step::Again { cancelled } => {
                *left -= cancelled.min(*left);
                done += cancelled;
                if cancelled > 0 {
                    last_success = Instant::now();
                }
            }
            Step::Rest => match duty.collided_until() {
                Some(until) if last_success.elapsed() < PATIENCE => {
                    let milliseconds = (until.since(clock::now()) / 1000).clamp(1, 1000);
                    outcome = xact::surviving(|| latch::pause(milliseconds));
                }
                _ => break,
            },
            Step::Broken(error) | Step::Stale(error) => outcome = Err(error),
        }
        // Whoever is terminated between two batches gets no further than this.
        outcome = outcome.and_then(|()| xact::surviving(xact::check_for_interrupts));
        let now = clock::now();
        if duty.progress.next_write().is_some_and(|due| due <= now) {
            outcome = outcome.and(duty.progress.write(name, now));
        }
        if said.elapsed() >= NOTICE_PAUSE && outcome.is_ok() {
            said = Instant::now();
            outcome = tell_progress(&duty.policy, done, begun);
        }
    }
    while outcome.is_ok() {
        xact::check_for_interrupts();
        match duty.remind() {
            Ok(true) => (),
            Ok(false) => break,
            Err(error) => outcome = Err(error),
        }
    }
    if outcome.is_ok() {
        outcome = duty.note_reminded();
    }
    // What was done was done, also if there is an error now.
    let written = duty.progress.write(name, clock::now());
    outcome.and(written)
}

/// For who waits: how far it is. What fails here is the policy's trouble, and met by the next batch too.
fn tell_progress(policy: &Policy, done: usize, begun: Instant) -> Result<(), PgError> {
    let rate = done as u128 * 1000 / begun.elapsed().as_millis().max(1);
    let left = xact::in_transaction(BOOTSTRAP_SUPERUSER, || due::along_the_index(|| due::count(policy)))?;
    pgrx::notice!("policy \"{}\": {done} rows cancelled so far, {rate} a second, {left} left", policy.name);
    Ok(())
}

/// The policy, when it can be worked on; of several, those that cannot are passed over.
fn ready(name: &str, is_all: bool) -> Result<Option<Policy>, PgError> {
    let load = || xact::in_transaction(BOOTSTRAP_SUPERUSER, || policy::load(name));
    let mut loaded = load()?;
    if let Some(Loaded::Indexing(policy)) = &loaded {
        index::build(policy)?;
        loaded = load()?;
    }
    let refusal = match loaded {
        Some(Loaded::Ready(policy)) => return Ok(Some(*policy)),
        None => return Ok(None),
        Some(Loaded::Stopped(error)) => error,
        Some(Loaded::Paused) => PgError::new("55000", format!("policy \"{name}\" is paused"))
            .with_hint("SELECT expiry.resume(name) first."),
        Some(Loaded::Restored) => {
            PgError::new("55000", format!("policy \"{name}\" came from a dump or a cloned database"))
                .with_hint("SELECT expiry.resume(name) if this database is to cancel rows.")
        }
        Some(Loaded::Indexing(_)) => {
            PgError::new("55000", format!("the deadline index of policy \"{name}\" is still being built"))
                .with_hint("SELECT index_state FROM expiry.status shows when it is done.")
        }
    };
    if is_all { Ok(None) } else { Err(refusal) }
}
