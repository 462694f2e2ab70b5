//! Sleeping: until an instant, to the microsecond, or until somebody sets this process's latch.
//!
//! A sleeping process holds nothing, follows a reload of the configuration, answers the barriers that
//! DROP DATABASE waits for, and ends with SIGTERM or with its postmaster.

use std::ffi::{c_int, c_long};

use pgrx::pg_sys;

use super::clock::{self, Timestamp};

/// What ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    Time,
    Latch,
    /// The settings may have changed.
    Reload,
}

/// No sleep is longer, however far the next deadline is: a clock that was set, or a wait that
/// overflows an int of milliseconds, does no harm for longer.
const LONGEST_SLEEP_US: i64 = 60_000_000;

/// Sleeps until `instant`, at most a minute. Whoever set the latch before the call ends it at once.
///
/// Everything that the caller reads afterwards is newer than the event that woke it.
pub fn wait_until(instant: Timestamp) -> Woken {
    let until = instant.min(clock::now().plus_micros(LONGEST_SLEEP_US));
    loop {
        let left_us = until.since(clock::now());
        if left_us <= 0 {
            return if glance() { Woken::Reload } else { Woken::Time };
        }
        // The latch waits in whole milliseconds; the rest is too short for anybody to miss us.
        let is_set = if left_us >= 1_000 { wait_latch(left_us / 1_000) } else { nap(left_us) };
        if answer_signals() {
            return Woken::Reload;
        }
        if is_set {
            return Woken::Latch;
        }
    }
}

/// For a process that has too much to do to sleep: it must notice all the same that the postmaster is
/// gone, that it has been told to end, or (true) that the settings may have changed. Resets the latch.
pub fn glance() -> bool {
    wait_latch(0);
    answer_signals()
}

/// Sleeps in a session that waits for something, between two looks. Its statement can be cancelled.
pub fn pause(milliseconds: i64) {
    wait_latch(milliseconds);
    pg_sys::check_for_interrupts!();
}

/// Whether the latch was set; it is reset then.
fn wait_latch(milliseconds: i64) -> bool {
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: MyLatch is this process's own. The milliseconds fit an int (see LONGEST_SLEEP_US).
    unsafe {
        let happened =
            pg_sys::WaitLatch(pg_sys::MyLatch, events as c_int, milliseconds as c_long, wait_event());
        let is_set = happened as u32 & pg_sys::WL_LATCH_SET != 0;
        if is_set {
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
        is_set
    }
}

fn nap(microseconds: i64) -> bool {
    // SAFETY: sleeps less than a millisecond.
    unsafe { pg_sys::pg_usleep(microseconds as c_long) };
    false
}

/// Whether the configuration was read again. Ends the process if it has been told to end.
fn answer_signals() -> bool {
    // SAFETY: flags that signal handlers set and the main program consumes.
    unsafe {
        // pg_cancel_backend() cancels a statement, and none is running.
        pg_sys::QueryCancelPending = 0;
        pg_sys::check_for_interrupts!();
        let reload = pg_sys::ConfigReloadPending != 0;
        if reload {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
        reload
    }
}

/// What pg_stat_activity shows as wait_event of a sleeping process.
#[cfg(any(feature = "pg15", feature = "pg16"))]
fn wait_event() -> u32 {
    pg_sys::PG_WAIT_EXTENSION
}

#[cfg(any(feature = "pg17", feature = "pg18"))]
fn wait_event() -> u32 {
    use std::cell::Cell;
    thread_local! {
        static EVENT: Cell<u32> = const { Cell::new(0) };
    }
    if EVENT.get() == 0 {
        // SAFETY: shared memory is up: this is a process that waits.
        EVENT.set(unsafe { pg_sys::WaitEventExtensionNew(c"PgExpiryMain".as_ptr()) });
    }
    EVENT.get()
}
