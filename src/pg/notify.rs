//! NOTIFY, without the detour over SQL.

use std::ffi::{CString, c_char};

use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;

use super::debug_point;

// SAFETY: the signature of async.h, the same from 15 to 18.
unsafe extern "C-unwind" {
    fn Async_Notify(channel: *const c_char, payload: *const c_char);
}

/// Queues a notification that listeners get when this transaction commits. Raises 22023 when the
/// channel has more than 63 bytes or the payload more than 7999.
pub fn notify(channel: &str, payload: &str) {
    let channel = CString::new(channel).expect("channels have no NUL");
    let payload = CString::new(payload).expect("JSON text has no NUL");
    let (channel, payload) = (channel.as_c_str(), payload.as_c_str());
    // SAFETY: Async_Notify copies both strings into the transaction's memory; the closure holds
    // nothing that needs a destructor.
    unsafe { pg_guard_ffi_boundary(|| Async_Notify(channel.as_ptr(), payload.as_ptr())) };
}

/// How much of the notification queue is in use, 0 to 1.
pub fn queue_usage() -> f64 {
    // SAFETY: the SQL function takes no arguments and looks at none; it returns a float8.
    let usage = unsafe { pg_sys::OidFunctionCall0Coll(PG_NOTIFICATION_QUEUE_USAGE, pg_sys::InvalidOid) };
    f64::from_bits(usage.value() as u64) * debug_point::queue_scale()
}

/// `pg_notification_queue_usage()` of pg_proc.dat.
const PG_NOTIFICATION_QUEUE_USAGE: pg_sys::Oid = pg_sys::Oid::from_u32(3296);
