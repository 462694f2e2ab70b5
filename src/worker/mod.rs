//! The processes that the launcher starts: the worker, which serves one owner of one database; the
//! scout, which sees what a database has; the index builder.

pub mod batch;
pub mod cancel;
pub mod cycle;
pub mod due;
pub mod duty;
pub mod event;
pub mod failure;
pub mod index;
pub mod probe;
pub mod progress;
pub mod prune;
pub mod push;
pub mod run;
mod scout;
pub mod settle;
pub mod statements;
mod trouble;
pub mod waiting;

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::Oid;

use self::cycle::{Cycle, Look};
use crate::board::{self, Assignment, Work};
use crate::pg::caught::PgError;
use crate::pg::clock::{self, Timestamp};
use crate::pg::latch::Woken;
use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::{bgworker, database, latch, log, wake, xact};
use crate::rules::throttle::Throttle;

/// What a process runs that the launcher has started. Returning ends it in order.
pub fn run(argument: u64) {
    bgworker::at_exit(board::detach);
    bgworker::unblock_signals();
    let Some(Assignment { database, work }) = board::attach(argument) else { return };
    match work {
        Work::Serve(owner) => {
            bgworker::connect(Some(database), "pg_expiry worker");
            board::connected();
            show_whom_it_serves(owner);
            serve(owner);
        }
        Work::Scout => {
            bgworker::connect(Some(database), "pg_expiry scout");
            board::connected();
            scout::run();
        }
        Work::BuildIndex(policy) => {
            bgworker::connect(Some(database), "pg_expiry index builder");
            board::connected();
            if has_extension() {
                index::build_named(&policy);
            }
        }
    }
}

/// The worker's loop: look, sleep until there is something to see, until it is not needed any more.
fn serve(owner: Oid) {
    let mut cycle = Cycle::new(owner);
    let mut trouble = Trouble::default();
    loop {
        if board::is_to_leave() {
            return;
        }
        let (generation, looks) = (wake::generation(), wake::looks());
        bgworker::report_running("looking for due rows");
        let next_look = match xact::surviving(|| cycle.look()).flatten() {
            Ok(Look { policies: 0, .. }) => {
                board::retire(generation);
                return;
            }
            Ok(look) => {
                trouble.is_over();
                board::publish(look.next_due, look.policies, looks);
                look.next_look
            }
            Err(_) if !has_extension() => {
                board::retire(generation);
                return;
            }
            Err(error) => trouble.wait_after(&error),
        };
        bgworker::report_idle("");
        // What came in during the look may have been taken for something else by a statement that
        // waited on the same latch.
        if wake::looks() == looks && latch::wait_until(next_look) == Woken::Reload {
            cycle.want_reload();
        }
    }
}

fn has_extension() -> bool {
    xact::in_transaction(BOOTSTRAP_SUPERUSER, || database::has_extension(c"pg_expiry")).unwrap_or(true)
}

fn show_whom_it_serves(owner: Oid) {
    let names = xact::in_transaction(BOOTSTRAP_SUPERUSER, || {
        (database::name(wake::own_database()), database::role_name(owner))
    });
    if let Ok((Some(database), Some(owner))) = names {
        bgworker::set_title(&format!("{database} {owner}"));
    }
}

/// Errors that escape from a look: none should, and none may end the worker.
#[derive(Default)]
struct Trouble {
    throttle: Throttle,
    errors: u32,
}

impl Trouble {
    fn is_over(&mut self) {
        self.errors = 0;
    }

    /// Says what happened, once a minute; returns when to try again.
    fn wait_after(&mut self, error: &PgError) -> Timestamp {
        let now = clock::now();
        if self.throttle.allows(&error.message, now.0) {
            log::warning(
                PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                format!("worker could not look for due rows: {error}"),
                error.hint.as_deref(),
            );
        }
        let wait_us = 1_000_000_i64 << self.errors.min(6);
        self.errors += 1;
        now.plus_micros(wait_us.min(60_000_000))
    }
}
