//! Waking workers at the commit of this transaction: not earlier, or they would look before there is
//! anything to see, and not at all if it rolls back.

use std::cell::Cell;
use std::ffi::c_void;

use pgrx::pg_guard;
use pgrx::pg_sys;
use pgrx::pg_sys::Oid;

use super::bells::{BELLS, Bells};
use super::clock::Timestamp;
use super::news::{NEWS, News};

/// What is to be done when the transaction ends.
#[derive(Clone, Copy, Default)]
struct Pending {
    deadlines: bool,
    policies: bool,
    databases: bool,
    events: bool,
    /// A database that is held off until then.
    held: Option<Oid>,
    /// A database whose settings have changed.
    altered: Option<Oid>,
}

thread_local! {
    static IS_REGISTERED: Cell<bool> = const { Cell::new(false) };
    static PENDING: Cell<Pending> = const {
        Cell::new(Pending {
            deadlines: false,
            policies: false,
            databases: false,
            events: false,
            held: None,
            altered: None,
        })
    };
}

fn pend(change: impl FnOnce(&mut Pending)) {
    if !IS_REGISTERED.replace(true) {
        // SAFETY: a callback for the life of the process, which cannot raise.
        unsafe { pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut()) };
    }
    let mut pending = PENDING.get();
    change(&mut pending);
    PENDING.set(pending);
}

/// Policies or failures of this database have changed: at the commit its workers load them again.
/// Does nothing when the library is not preloaded.
pub fn at_commit() {
    pend(|pending| pending.policies = true);
}

/// Deadlines have changed: at the commit the workers of this database look at them.
pub fn look_at_commit() {
    pend(|pending| pending.deadlines = true);
}

/// Databases have been made, dropped, renamed or altered.
pub fn launcher_at_commit() {
    pend(|pending| pending.databases = true);
}

/// Events have been written: at the commit those who wait for them look.
pub fn events_at_commit() {
    pend(|pending| pending.events = true);
}

/// Ends the hold on `database` when the transaction ends, one way or the other.
pub fn release_at_end(database: Oid) {
    pend(|pending| pending.held = Some(database));
}

/// At the commit the workers of `database` start anew: its settings count for new sessions only.
pub fn restart_at_commit(database: Oid) {
    pend(|pending| pending.altered = Some(database));
}

/// How often policies or failures of this database have changed since the server started.
pub fn generation() -> u64 {
    BELLS.get().and_then(|bells| bells.find(own_database())).map_or(0, |bell| bell.generation())
}

/// How often somebody has asked this database's workers to look since the server started.
pub fn looks() -> u64 {
    BELLS.get().and_then(|bells| bells.find(own_database())).map_or(0, |bell| bell.looks())
}

/// A transaction that was prepared has been committed by this session.
pub fn at_commit_prepared() {
    if let Some(bells) = BELLS.get() {
        let policies = bells.find(own_database()).is_some_and(|bell| bell.has_prepared());
        bells.ring_database(own_database(), policies);
    }
}

/// The database that this process is connected to.
pub fn own_database() -> Oid {
    // SAFETY: a plain global.
    unsafe { pg_sys::MyDatabaseId }
}

/// Runs when a transaction has ended. At a commit the transaction is already visible to others
/// (xact.c calls after ProcArrayEndTransaction), and an error here would bring the server down.
// SAFETY: called by PostgreSQL alone, as a transaction callback (xact.c).
#[pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_COMMIT => {
            let pending = PENDING.take();
            if let Some(bells) = BELLS.get() {
                ring(bells, pending);
                release(bells, pending);
            }
            if pending.events {
                NEWS.get().into_iter().for_each(News::ring);
            }
        }
        pg_sys::XactEvent::XACT_EVENT_ABORT | pg_sys::XactEvent::XACT_EVENT_PREPARE => {
            let pending = PENDING.take();
            if let Some(bells) = BELLS.get() {
                let is_prepared = event == pg_sys::XactEvent::XACT_EVENT_PREPARE;
                if is_prepared && pending.policies {
                    bells.find(own_database()).into_iter().for_each(|bell| bell.set_prepared());
                }
                release(bells, pending);
            }
        }
        _ => {}
    }
}

fn ring(bells: &Bells, pending: Pending) {
    if pending.policies || pending.deadlines {
        bells.ring_database(own_database(), pending.policies);
    }
    if let Some(database) = pending.altered {
        bells.ask_workers_to_leave(database);
    }
    if pending.databases {
        bells.note_databases_changed();
        bells.ring_launcher();
    }
}

fn release(bells: &Bells, pending: Pending) {
    if let Some(bell) = pending.held.and_then(|database| bells.find(database)) {
        // In this order: the launcher looks at pg_database before it goes there again.
        bells.note_databases_changed();
        bell.hold_until(Timestamp(0));
        bells.ring_launcher();
    }
}
