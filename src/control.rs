//! The SQL surface of the processes: wake, stop, start, and who is there.

use pgrx::iter::TableIterator;
use pgrx::pg_sys::Oid;
use pgrx::prelude::*;

use crate::board::{self, Row};
use crate::error::Error;
use crate::pg::clock::{self, Timestamp};
use crate::pg::{database, latch, role, shmem, wake};

/// How long `stop_workers()` waits for those that have a batch to finish, and for those that have been
/// terminated.
const GRACE_US: i64 = 250_000;
const PATIENCE_US: i64 = 10_000_000;
const POLL_MS: i64 = 5;
/// A session that renames a database and does not commit keeps the workers away no longer.
const LONGEST_HOLD_US: i64 = 30_000_000;

/// At the commit the workers of this database look at their rows.
#[pg_extern(sql = false)]
fn expiry_wake() {
    wake::look_at_commit();
}

/// Run by CREATE EXTENSION.
#[pg_extern(sql = false)]
fn expiry_announce() {
    if shmem::is_available() {
        wake::at_commit();
    } else {
        Error::NotPreloaded.notice();
    }
}

#[pg_extern(sql = false)]
fn expiry_stop_workers() {
    let database = own_database_to_rule();
    if !board::set_stopped(database, true) {
        Error::BoardIsFull.raise();
    }
    if !vacate(database, PATIENCE_US) {
        Error::WorkersStayed.raise();
    }
}

#[pg_extern(sql = false)]
fn expiry_start_workers() {
    if !board::set_stopped(own_database_to_rule(), false) {
        Error::BoardIsFull.raise();
    }
}

/// This database, if the current user may stop and start what runs in it.
fn own_database_to_rule() -> Oid {
    let database = wake::own_database();
    if !database::is_owner(database) {
        Error::NotDatabaseOwner { name: database::name(database).unwrap_or_default() }.raise();
    }
    if !shmem::is_available() {
        Error::NotPreloaded.raise();
    }
    database
}

/// Has all our processes leave the database: lets a batch end, then ends them. Whether they are gone.
pub fn vacate(database: Oid, patience_us: i64) -> bool {
    board::ask_to_leave(database);
    if wait_until_empty(database, GRACE_US) {
        return true;
    }
    board::terminate(database);
    wait_until_empty(database, patience_us)
}

fn wait_until_empty(database: Oid, patience_us: i64) -> bool {
    let until = clock::now().plus_micros(patience_us);
    while board::processes_of(database) > 0 {
        if clock::now() >= until {
            return false;
        }
        latch::pause(POLL_MS);
    }
    true
}

/// The rows of `expiry.workers` that the current user may see.
#[allow(clippy::type_complexity)] // the shape of the rows, as pgrx wants it
#[pg_extern(sql = false)]
fn expiry_workers() -> TableIterator<
    'static,
    (
        name!(database, Option<String>),
        name!(owner, Option<String>),
        name!(pid, Option<i32>),
        name!(state, &'static str),
        name!(policies, i32),
        name!(started_at, Option<TimestampWithTimeZone>),
        name!(last_pass, Option<TimestampWithTimeZone>),
    ),
> {
    let sees_all = role::may_act_for(role::PG_MONITOR);
    let visible = board::overview().into_iter().filter(move |row| sees_all || role::may_act_for(row.owner));
    TableIterator::new(visible.map(|row: Row| {
        (
            database::name(row.database),
            database::role_name(row.owner),
            row.pid,
            row.state,
            row.policies as i32,
            row.started_at.and_then(shown),
            row.last_pass.and_then(shown),
        )
    }))
}

fn shown(timestamp: Timestamp) -> Option<TimestampWithTimeZone> {
    timestamp.0.try_into().ok()
}

/// Before a statement that needs the database for itself: our processes leave it, and stay away until
/// the transaction ends.
pub fn step_aside(database: Oid) {
    board::hold(database, clock::now().plus_micros(LONGEST_HOLD_US));
    wake::release_at_end(database);
    vacate(database, 0);
}
