//! Background processes: how they are registered, started, seen and ended.
//!
//! They take PostgreSQL's own signal handlers, not pgrx's: SIGTERM (`die`) must end a process also
//! inside a user's statement, and with exit code 1, or the postmaster would not start it again.

use std::cell::Cell;
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgrx::bgworkers::BackgroundWorkerBuilder;
use pgrx::pg_guard;
use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, Oid};

const LIBRARY: &str = "pg_expiry";
const RESTART_TIME: Duration = Duration::from_secs(2);

thread_local! {
    /// What the processes run; inherited from the postmaster.
    static LAUNCHER: Cell<fn()> = const { Cell::new(|| ()) };
    static TASK: Cell<fn(u64)> = const { Cell::new(|_| ()) };
    static AT_EXIT: Cell<fn(Exit)> = const { Cell::new(|_| ()) };
}

/// Has the postmaster keep one `launcher` process running from the end of recovery on, and notes what
/// processes run that [`start`] starts. Only while shared_preload_libraries are loaded.
pub fn register(launcher: fn(), task: fn(u64)) {
    LAUNCHER.set(launcher);
    TASK.set(task);
    BackgroundWorkerBuilder::new("pg_expiry launcher")
        .set_type("pg_expiry launcher")
        .set_library(LIBRARY)
        .set_function("pg_expiry_launcher_main")
        .enable_spi_access()
        .set_restart_time(Some(RESTART_TIME))
        .load();
}

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn pg_expiry_launcher_main(_argument: Datum) {
    LAUNCHER.get()();
}

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn pg_expiry_task_main(argument: Datum) {
    TASK.get()(argument.value() as u64);
}

/// A process that this process has started.
pub struct Started(*mut pg_sys::BackgroundWorkerHandle);

impl Started {
    /// Whether it has ended, or will never start.
    pub fn has_ended(&self) -> bool {
        let mut pid = 0;
        // SAFETY: a handle of this process; reads shared memory under a lock.
        let status = unsafe { pg_sys::GetBackgroundWorkerPid(self.0, &raw mut pid) };
        status == pg_sys::BgwHandleStatus::BGWH_STOPPED
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: allocated for us in TopMemoryContext, freed once.
            unsafe { pg_sys::pfree(self.0.cast()) };
        }
    }
}

/// Starts a process that runs the task with this argument; it is started once and never again.
/// `None` when all of max_worker_processes are in use. Its start and end set this process's latch.
pub fn start(kind: &str, argument: u64) -> Option<Started> {
    let builder = BackgroundWorkerBuilder::new(kind)
        .set_type(kind)
        .set_library(LIBRARY)
        .set_function("pg_expiry_task_main")
        .enable_spi_access()
        .set_restart_time(None);
    let mut worker = pg_sys::BackgroundWorker::from(&builder);
    worker.bgw_main_arg = Datum::from(argument);
    let mut handle = std::ptr::null_mut();
    // SAFETY: PostgreSQL copies `worker`. The handle must outlive the current memory context.
    unsafe {
        worker.bgw_notify_pid = pg_sys::MyProcPid;
        let context = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
        let is_started = pg_sys::RegisterDynamicBackgroundWorker(&raw mut worker, &raw mut handle);
        pg_sys::MemoryContextSwitchTo(context);
        is_started.then(|| Started(handle))
    }
}

// SAFETY: signatures of postgres.h and interrupt.h, the same from 15 to 18.
unsafe extern "C-unwind" {
    fn die(signal: c_int);
    fn SignalHandlerForConfigReload(signal: c_int);
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, in order.
    Orderly,
    /// Somebody has terminated it.
    Terminated,
    /// By an error.
    Failed,
}

static WAS_TERMINATED: AtomicBool = AtomicBool::new(false);

/// PostgreSQL's own handler, with a note for [`at_exit`].
extern "C-unwind" fn terminate_self(signal: c_int) {
    WAS_TERMINATED.store(true, Ordering::Relaxed);
    // SAFETY: called by the kernel, as `die` expects.
    unsafe { die(signal) };
}

/// From here on the process answers signals; before, they wait.
pub fn unblock_signals() {
    // SAFETY: the main function of a background worker, with PostgreSQL's own handlers. SIGINT keeps
    // the handler that bgworker.c has installed: it cancels the statement.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        {
            pg_sys::pqsignal(pg_sys::SIGTERM as c_int, Some(terminate_self));
            pg_sys::pqsignal(pg_sys::SIGHUP as c_int, Some(SignalHandlerForConfigReload));
        }
        #[cfg(feature = "pg18")]
        {
            pg_sys::pqsignal_be(pg_sys::SIGTERM as c_int, Some(terminate_self));
            pg_sys::pqsignal_be(pg_sys::SIGHUP as c_int, Some(SignalHandlerForConfigReload));
        }
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// Runs `f` at the end of this process, whatever ends it (only SIGKILL is out of reach, and restarts
/// the server). Called before [`connect`], it runs when
/// the transaction is rolled back and the process no longer counts as a session of its database.
pub fn at_exit(f: fn(Exit)) {
    AT_EXIT.set(f);
    // SAFETY: `exit` cannot raise; shared memory is still attached when it runs.
    unsafe { pg_sys::on_shmem_exit(Some(exit), Datum::null()) };
}

// SAFETY: called by PostgreSQL alone, as an exit callback (ipc.c).
#[pg_guard]
unsafe extern "C-unwind" fn exit(code: c_int, _argument: Datum) {
    AT_EXIT.get()(match code {
        0 => Exit::Orderly,
        _ if WAS_TERMINATED.load(Ordering::Relaxed) => Exit::Terminated,
        _ => Exit::Failed,
    });
}

/// Connects to a database, or to none but the shared catalogs, as the bootstrap superuser. Ends the
/// process if the database does not exist.
pub fn connect(database: Option<Oid>, application_name: &str) {
    let name = CString::new(application_name).expect("a name without NUL");
    // SAFETY: called once by the main function of a background worker.
    unsafe {
        match database {
            Some(database) => {
                pg_sys::BackgroundWorkerInitializeConnectionByOid(database, Oid::INVALID, 0);
            }
            None => {
                pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0);
            }
        }
        pg_sys::SetConfigOption(
            c"application_name".as_ptr(),
            name.as_ptr(),
            pg_sys::GucContext::PGC_BACKEND,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
    lift_transaction_timeout();
}

/// The server's limit on transactions, which would end the process, is for clients; our calls have
/// cancel_timeout.
#[cfg(any(feature = "pg17", feature = "pg18"))]
fn lift_transaction_timeout() {
    // SAFETY: a setting of this process; PGC_S_OVERRIDE outranks the configuration.
    unsafe {
        pg_sys::SetConfigOption(
            c"transaction_timeout".as_ptr(),
            c"0".as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}

#[cfg(not(any(feature = "pg17", feature = "pg18")))]
fn lift_transaction_timeout() {}

/// What pg_stat_activity shows while the process works.
pub fn report_running(activity: &str) {
    report(pg_sys::BackendState::STATE_RUNNING, activity);
}

/// What pg_stat_activity shows while the process waits. Flushes its statistics.
pub fn report_idle(activity: &str) {
    // SAFETY: outside of any transaction.
    unsafe { pg_sys::pgstat_report_stat(true) };
    report(pg_sys::BackendState::STATE_IDLE, activity);
}

fn report(state: pg_sys::BackendState::Type, activity: &str) {
    let activity = CString::new(activity).unwrap_or_default();
    // SAFETY: copies the text; cannot raise.
    unsafe { pg_sys::pgstat_report_activity(state, activity.as_ptr()) };
}

/// What `ps` shows behind the process's name.
pub fn set_title(title: &str) {
    let title = CString::new(title).unwrap_or_default();
    // SAFETY: copies the text; cannot raise.
    #[cfg(feature = "pg15")]
    unsafe {
        pg_sys::set_ps_display(title.as_ptr());
    }
    // SAFETY: copies the text; cannot raise.
    #[cfg(not(feature = "pg15"))]
    unsafe {
        pg_sys::set_ps_display_with_len(title.as_ptr(), title.count_bytes());
    }
}

pub fn own_pid() -> i32 {
    // SAFETY: a plain global.
    unsafe { pg_sys::MyProcPid }
}

/// Sends SIGTERM. The caller holds the lock under which the process notes its end, so that the number
/// cannot be another process's by now.
pub fn terminate(pid: i32) {
    // SAFETY: a signal to a process of this server; a pid that is gone is an error that is ignored.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}
