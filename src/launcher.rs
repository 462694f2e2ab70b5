//! The launcher: one process in the cluster. It knows which databases there are, sends scouts to see
//! which of them have the extension and who owns policies there, and keeps a worker running for each
//! owner. It decides by the rules in `rules::launcher` and `rules::turns`, from what the board says.

use std::collections::{HashMap, HashSet};

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::Oid;

use crate::board::{self, Task};
use crate::pg::bells::BELLS;
use crate::pg::bgworker::{self, Started};
use crate::pg::clock::{self, Timestamp};
use crate::pg::database::{self, Database};
use crate::pg::latch::{self, Woken};
use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::{log, xact};
use crate::rules::names::is_listed;
use crate::rules::throttle::Throttle;
use crate::settings;

/// pg_database is read this often, whether or not anything is known to have changed.
const SCAN_INTERVAL_US: i64 = 60_000_000;
/// When the board had no room for a database.
const SCAN_RETRY_US: i64 = 5_000_000;

#[derive(Default)]
struct Launcher {
    /// Databases that were sent a scout, or have been looked at by one.
    seen: HashSet<Oid>,
    /// When to read pg_database next.
    scan_at: Option<Timestamp>,
    started: HashMap<Task, Started>,
    slots: Throttle,
    room: Throttle,
    errors: Throttle,
}

/// What the launcher's process runs.
pub fn run() {
    bgworker::at_exit(|_| BELLS.get().into_iter().for_each(|bells| bells.free_launcher()));
    bgworker::unblock_signals();
    bgworker::connect(None, "pg_expiry launcher");
    BELLS.get().into_iter().for_each(|bells| bells.take_launcher());
    let mut launcher = Launcher::default();
    loop {
        let again_at = launcher.pass();
        bgworker::report_idle("");
        if latch::wait_until(again_at) == Woken::Reload {
            launcher.scan_at = None;
        }
    }
}

impl Launcher {
    /// Looks at everything once; returns when to look again.
    fn pass(&mut self) -> Timestamp {
        let now = clock::now();
        self.hear_calls();
        if self.scan_at.is_none_or(|at| at <= now) {
            self.scan(now);
        }
        self.reap(now);
        let plan = board::plan(settings::max_workers(), now);
        let refused = plan.start.into_iter().filter(|task| !self.start(*task, now)).count();
        let scan_at = self.scan_at.unwrap_or(now);
        // Somebody may have to make room.
        let again_at = if refused > 0 { Some(now) } else { plan.again_at };
        again_at.map_or(scan_at, |at| at.min(scan_at))
    }

    /// Takes note of the databases in which something has changed that nobody was there to hear.
    fn hear_calls(&mut self) {
        let Some(bells) = BELLS.get() else { return };
        match bells.take_callers() {
            Some(callers) => {
                for caller in callers {
                    self.seen.remove(&caller);
                    self.scan_at = None;
                }
            }
            None => {
                self.seen.clear();
                self.scan_at = None;
            }
        }
        if bells.take_databases_changed() {
            self.scan_at = None;
        }
    }

    /// Reads pg_database.
    fn scan(&mut self, now: Timestamp) {
        self.scan_at = Some(now.plus_micros(SCAN_INTERVAL_US));
        let databases = match xact::in_transaction(BOOTSTRAP_SUPERUSER, database::all) {
            Ok(databases) => databases,
            Err(error) => {
                if self.errors.allows(&error.message, now.0) {
                    log::warning(
                        PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                        format!("launcher could not read the list of databases: {error}"),
                        Some("It is tried again within a minute."),
                    );
                }
                return;
            }
        };
        let list = settings::databases();
        let is_open = |database: &&Database| database.is_open && is_listed(&list, &database.name);
        let open: Vec<Oid> = databases.iter().filter(is_open).map(|database| database.oid).collect();
        let existing: Vec<Oid> = databases.iter().map(|database| database.oid).collect();
        self.seen.retain(|database| open.contains(database));
        let new: Vec<Oid> = open.iter().copied().filter(|database| !self.seen.contains(database)).collect();
        if board::sync(&open, &new, &existing) {
            self.seen.extend(new);
            return;
        }
        // Some will have left the board when the next scan comes: those without the extension.
        self.scan_at = Some(now.plus_micros(SCAN_RETRY_US));
        if self.room.allows("full", now.0) {
            log::info("too many databases for pg_expiry to look at all at once");
        }
    }

    /// False: the server has no slot for it.
    fn start(&mut self, task: Task, now: Timestamp) -> bool {
        if let Some(started) = bgworker::start(task.kind.backend_type(), task.encode()) {
            self.started.insert(task, started);
            return true;
        }
        board::note_refused(task, now);
        if !task.kind.is_needed() {
            return true;
        }
        // One that is just ending will give its slot back in a moment.
        if !board::is_any_leaving(self.started.keys()) && self.slots.allows("no slot", now.0) {
            log::warning(
                PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                "no free background worker slot for pg_expiry",
                Some("You might need to increase \"max_worker_processes\"."),
            );
        }
        false
    }

    /// Forgets processes that have ended.
    fn reap(&mut self, now: Timestamp) {
        self.started.retain(|task, started| {
            let has_ended = started.has_ended();
            if has_ended {
                board::note_ended(*task, now);
            }
            !has_ended
        });
    }
}
