//! Settings that hold for a stretch of code and are undone after it, whatever runs inside.

use std::ffi::CString;

use pgrx::pg_sys;

/// Sets one setting for good, in a process of ours and outside of any transaction.
pub fn set_for_session(name: &str, value: &str) {
    set(name, value, pg_sys::GucAction::GUC_ACTION_SET);
}

/// Sets one setting until the end of the transaction, as SET LOCAL does, with the rights of a superuser.
pub fn set_local(name: &str, value: &str) {
    set(name, value, pg_sys::GucAction::GUC_ACTION_LOCAL);
}

/// Sets one setting at the current nest level, with the rights of a superuser.
fn set(name: &str, value: &str, action: pg_sys::GucAction::Type) {
    let name = CString::new(name).expect("setting names have no NUL");
    let value = CString::new(value).expect("setting values have no NUL");
    // SAFETY: set_config_option copies both strings; it may raise, and nothing here needs a
    // destructor that calls PostgreSQL.
    unsafe {
        pg_sys::set_config_option(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_SESSION,
            action,
            true,
            0,
            false,
        );
    }
}

/// Runs `f` with these settings. Whatever `f` itself sets, with SET or SET LOCAL, is undone with
/// them. On an error the rollback of the (sub)transaction undoes all.
pub fn with_settings<R>(settings: &[(&str, &str)], f: impl FnOnce() -> R) -> R {
    // SAFETY: opens a nest level of the running transaction.
    let nest = unsafe { pg_sys::NewGUCNestLevel() };
    for (name, value) in settings {
        set(name, value, pg_sys::GucAction::GUC_ACTION_SAVE);
    }
    let result = f();
    // SAFETY: closes the level opened above; `f` closed those it opened itself.
    unsafe { pg_sys::AtEOXact_GUC(false, nest) };
    result
}
