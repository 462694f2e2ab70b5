//! Named points at which a test can hold the process, to kill it there or to make a race a plain test.
//! Behind the cargo feature `debug_points`; nothing of it is in a release.
//!
//! A test holds a point by holding the advisory lock 0x6578706972790000 + the point's number exclusively;
//! the process waits at the point until it is given up, and says so in `pg_stat_activity.query`.

#[derive(Clone, Copy, Debug)]
pub enum DebugPoint {
    /// The batch is claimed, nothing is called yet.
    Claimed = 1,
    /// All calls are done and settled, nothing is recorded yet.
    Called = 2,
    /// Events and notifications are written; next is the commit.
    Recorded = 3,
    /// Reminders are written; next is the commit.
    Reminded = 4,
    /// A transaction of a policy has begun, and nothing is read yet.
    Begun = 5,
}

#[cfg(not(feature = "debug_points"))]
pub fn reach(_point: DebugPoint) {}

/// Waits while some test holds the point.
#[cfg(feature = "debug_points")]
pub fn reach(point: DebugPoint) {
    use pgrx::pg_sys;
    use pgrx::pg_sys::{Datum, InvalidOid, Oid};

    use super::bgworker::report_running;
    use super::latch;

    /// `pg_try_advisory_lock_shared(bigint)` and `pg_advisory_unlock_shared(bigint)` of pg_proc.dat.
    const TRY_LOCK: Oid = Oid::from_u32(2883);
    const UNLOCK: Oid = Oid::from_u32(2885);
    let key = Datum::from(0x6578_7069_7279_0000_i64 + point as i64);
    let mut has_waited = false;
    // SAFETY: plain function calls inside a transaction; the pause ends with the postmaster.
    unsafe {
        while pg_sys::OidFunctionCall1Coll(TRY_LOCK, InvalidOid, key).value() == 0 {
            if !std::mem::replace(&mut has_waited, true) {
                report_running(&format!("held at {point:?}"));
            }
            latch::pause(2);
        }
        pg_sys::OidFunctionCall1Coll(UNLOCK, InvalidOid, key);
    }
    if has_waited {
        report_running("goes on");
    }
}

#[cfg(not(feature = "debug_points"))]
pub fn queue_scale() -> f64 {
    1.0
}

/// By how much the notification queue seems smaller than it is: its 8 GB cannot be filled in a test before
/// PostgreSQL 17, which has max_notify_queue_pages. Set as `pg_expiry_debug.queue_scale`.
#[cfg(feature = "debug_points")]
pub fn queue_scale() -> f64 {
    use pgrx::pg_sys;

    // SAFETY: a look-up by name that is allowed to find nothing; the text is copied at once.
    unsafe {
        let scale = pg_sys::GetConfigOption(c"pg_expiry_debug.queue_scale".as_ptr(), true, false);
        let scale = (!scale.is_null()).then(|| std::ffi::CStr::from_ptr(scale));
        scale.and_then(|scale| scale.to_str().ok()?.parse().ok()).unwrap_or(1.0)
    }
}
