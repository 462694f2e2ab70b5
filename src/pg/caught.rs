//! A PostgreSQL error as a value: what [`super::xact`] hands out after it has rolled back.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;

/// An error that PostgreSQL (or we) raised, after the rollback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PgError {
    /// Five characters.
    pub sqlstate: String,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
}

impl PgError {
    pub fn new(sqlstate: &str, message: impl Into<String>) -> Self {
        Self { sqlstate: sqlstate.into(), message: message.into(), detail: None, hint: None }
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl PgError {
    /// Whether it tells of wrong input (data, syntax, names, rights, limits), and not of the state of
    /// the server or the transaction.
    pub fn is_about_input(&self) -> bool {
        ["0A", "22", "42", "54"].iter().any(|class| self.sqlstate.starts_with(class))
    }

    /// Raises it again, as an ERROR.
    #[track_caller]
    pub fn raise(self) -> ! {
        let code = pgrx::PgSqlErrorCode::from(pack_sqlstate(&self.sqlstate));
        let mut report = pg_sys::panic::ErrorReport::new(code, self.message, "pg_expiry");
        if let Some(detail) = self.detail {
            report = report.set_detail(detail);
        }
        if let Some(hint) = self.hint {
            report = report.set_hint(hint);
        }
        report.report(pgrx::PgLogLevel::ERROR);
        unreachable!("an ERROR does not return")
    }
}

/// PostgreSQL's packed form of five characters.
pub fn pack_sqlstate(sqlstate: &str) -> c_int {
    sqlstate
        .bytes()
        .take(5)
        .enumerate()
        .map(|(i, byte)| c_int::from(byte.wrapping_sub(b'0') & 0x3f) << (6 * i))
        .sum()
}

impl std::fmt::Display for PgError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.sqlstate)
    }
}

thread_local! {
    /// The SQLSTATE of the last message that passed through [`watching_sqlstates`].
    static LAST_SQLSTATE: Cell<c_int> = const { Cell::new(0) };
}

// SAFETY: the signature of elog.h, the same from 15 to 18.
unsafe extern "C-unwind" {
    fn geterrcode() -> c_int;
}

// SAFETY: called by PostgreSQL alone, as an error context callback (elog.c).
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn note_sqlstate(_arg: *mut c_void) {
    // SAFETY: an error context callback is the place where geterrcode() may be called (elog.c).
    LAST_SQLSTATE.set(unsafe { geterrcode() });
}

/// Runs `f` so that an error that escapes from it keeps its own SQLSTATE, also one that a user
/// made up: pgrx turns every code that PostgreSQL does not list into XX000.
pub(super) fn watching_sqlstates<R>(f: impl FnOnce() -> R) -> R {
    struct Pop(*mut pg_sys::ErrorContextCallback);
    impl Drop for Pop {
        fn drop(&mut self) {
            // SAFETY: a plain store; allowed while unwinding. The stack discipline of
            // error_context_stack is that of Rust's frames.
            unsafe { pg_sys::error_context_stack = self.0 };
        }
    }
    LAST_SQLSTATE.set(0);
    // SAFETY: reads and writes a process-global of a single-threaded backend; `frame` outlives
    // `f`, and `Pop` takes it off the stack on every way out.
    let mut frame = unsafe {
        pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(note_sqlstate),
            arg: std::ptr::null_mut(),
        }
    };
    let _pop = Pop(frame.previous);
    // SAFETY: see above.
    unsafe { pg_sys::error_context_stack = &raw mut frame };
    f()
}

/// Five characters from PostgreSQL's packed form (MAKE_SQLSTATE: five six-bit characters).
pub fn unpack_sqlstate(mut code: c_int) -> String {
    let mut state = String::with_capacity(5);
    for _ in 0..5 {
        state.push(char::from((code & 0x3f) as u8 + b'0'));
        code >>= 6;
    }
    state
}

/// Describes a caught error. Calls nothing of PostgreSQL: the transaction is aborted here.
pub(super) fn describe(error: CaughtError) -> PgError {
    let report = match error {
        CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => report,
        CaughtError::RustPanic { ereport, .. } => ereport,
    };
    let mut code = report.sql_error_code() as c_int;
    if code == pgrx::PgSqlErrorCode::ERRCODE_INTERNAL_ERROR as c_int && LAST_SQLSTATE.get() != 0 {
        code = LAST_SQLSTATE.get();
    }
    PgError {
        sqlstate: unpack_sqlstate(code),
        message: report.message().to_owned(),
        detail: report.detail().map(str::to_owned),
        hint: report.hint().map(str::to_owned),
    }
}
