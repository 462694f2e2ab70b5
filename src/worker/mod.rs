//! The processes that the launcher starts: the worker, which serves one owner of one database; the
//! scout, which sees what a database has; the index builder; assistants, which share a backlog.

pub mod alarm;
mod assist;
mod audit;
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
pub mod remind;
pub mod restored;
pub mod run;
mod scout;
pub mod settle;
pub mod statements;
mod trouble;
pub mod waiting;
mod way;

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::Oid;

use self::cycle::Cycle;
use self::duty::UNDEFINED_TABLE;
use crate::board::{self, Assignment, Work};
use crate::installed;
use crate::pg::caught::PgError;
use crate::pg::clock;
use crate::pg::latch::Woken;
use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::{bgworker, catalog, database, inval, latch, log, wake, xact};
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
            if installed::is_served() {
                index::build_named(&policy);
            }
        }
        Work::Assist(work) => {
            bgworker::connect(Some(database), "pg_expiry assistant");
            board::connected();
            show_whom_it_serves(work.owner);
            assist::run(&work);
        }
    }
}

/// However many ask for a look, there is this much time from one to the next.
const BREATH_US: i64 = 5_000;

/// The worker's loop: look, sleep until there is something to see, until it is not needed any more.
fn serve(owner: Oid) {
    let mut cycle = Cycle::new(owner);
    let mut trouble = Trouble::default();
    while !board::is_to_leave() {
        let (generation, looks, started) = (wake::generation(), wake::looks(), clock::now());
        bgworker::report_running("looking for due rows");
        let next_look = match xact::surviving(|| cycle.look()).flatten() {
            Ok(look) if look.policies > 0 => {
                trouble.is_over();
                board::publish(look.next_due, look.policies, looks);
                Some(look.next_look)
            }
            Err(error) if installed::is_served() => {
                trouble.rest_after(&error, generation);
                cycle.want_reload();
                None
            }
            _ => {
                board::retire(generation);
                return;
            }
        };
        // Who has asked for a look meanwhile set a latch that a statement may have waited on, and reset.
        let next_look = next_look.filter(|_| wake::looks() == looks);
        if cycle.is_stale() {
            return;
        }
        bgworker::report_idle("");
        if latch::wait_until(next_look.unwrap_or(started.plus_micros(BREATH_US))) == Woken::Reload {
            cycle.want_reload();
        }
    }
}

/// Statistics of our own tables change without end, and nothing of it matters to a policy.
fn ignore_own_tables() {
    const OWN_TABLES: [&str; 8] =
        ["policy", "binding", "event", "failure", "progress", "reminder", "reminded", "consumer"];
    inval::ignore_only(OWN_TABLES.iter().filter_map(|table| catalog::expiry_relation(table)).collect());
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

    /// Says what happened, once a minute, and waits before the next attempt, longer each time, unless
    /// somebody changes a policy or a setting.
    fn rest_after(&mut self, error: &PgError, generation: u64) {
        let now = clock::now();
        // Dropped in the middle of a look, and perhaps created again: the next one finds what there is.
        let may_be_dropped = self.errors == 0 && error.sqlstate == UNDEFINED_TABLE;
        if !may_be_dropped && self.throttle.allows(&error.message, now.0) {
            log::warning(
                PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                format!("worker could not look for due rows: {error}"),
                error
                    .hint
                    .as_deref()
                    .or(Some("It is tried again by and by, and at once when a policy has changed.")),
            );
        }
        let until = now.plus_micros((1_000_000_i64 << self.errors.min(6)).min(60_000_000));
        self.errors += 1;
        bgworker::report_idle("");
        while !board::is_to_leave() && wake::generation() == generation {
            if latch::wait_until(until) != Woken::Latch {
                return;
            }
        }
    }
}
