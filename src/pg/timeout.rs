//! The statement timeout of one call. In a background worker the setting `statement_timeout` has no
//! effect by itself: the main loop of a client backend arms it, so here it is armed by hand.

use std::ffi::c_int;

use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

/// `STATEMENT_TIMEOUT` of utils/timeout.h, the same from 15 to 18.
const STATEMENT_TIMEOUT: c_int = 3;

// SAFETY: signatures of timeout.h, the same from 15 to 18.
unsafe extern "C-unwind" {
    fn enable_timeout_after(id: c_int, delay_ms: c_int);
    fn disable_timeout(id: c_int, keep_indicator: bool);
    fn disable_all_timeouts(keep_indicators: bool);
    fn get_timeout_active(id: c_int) -> bool;
}

/// Runs `f`; what it runs is cancelled (57014) after `limit_ms`. 0 means no limit. A statement timeout
/// that is running already, of the session that called us, stays as it is.
pub fn limited<R>(limit_ms: c_int, f: impl FnOnce() -> R) -> R {
    // SAFETY: the process has registered its timeouts (InitPostgres); none of the calls keeps a
    // pointer. On an error the caller's rollback disables all timeouts.
    unsafe {
        let armed = limit_ms > 0 && !get_timeout_active(STATEMENT_TIMEOUT);
        if armed {
            pg_guard_ffi_boundary(|| enable_timeout_after(STATEMENT_TIMEOUT, limit_ms));
        }
        let result = f();
        if armed {
            pg_guard_ffi_boundary(|| disable_timeout(STATEMENT_TIMEOUT, false));
        }
        result
    }
}

/// After an error: whatever was armed must not fire later.
pub(super) fn disable_all() {
    // SAFETY: see above.
    unsafe { pg_guard_ffi_boundary(|| disable_all_timeouts(false)) };
}

/// After so long a wait for a lock, sessions like this one look whether it is a deadlock.
pub fn deadlock_timeout_ms() -> c_int {
    // SAFETY: a setting's variable.
    unsafe { pg_sys::DeadlockTimeout }
}
