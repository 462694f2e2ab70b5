//! Work that belongs to a transaction and is done last of all, when it commits: after its deferred triggers and its
//! cursors, so that no code of anybody's comes after it. What a rolled-back savepoint had asked for is not done.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};

use pgrx::{PgSqlErrorCode, pg_guard, pg_sys};

type Work = Box<dyn FnOnce()>;

thread_local! {
    static IS_REGISTERED: Cell<bool> = const { Cell::new(false) };
    /// Each with the nesting level of the subtransaction that it hangs on.
    static WORK: RefCell<Vec<(c_int, Work)>> = const { RefCell::new(Vec::new()) };
}

/// Does this when the transaction commits; an error then is one of the commit.
pub fn pend(work: impl FnOnce() + 'static) {
    if !IS_REGISTERED.replace(true) {
        // SAFETY: callbacks for the life of the process.
        unsafe {
            pg_sys::RegisterXactCallback(Some(at_transaction), std::ptr::null_mut());
            pg_sys::RegisterSubXactCallback(Some(at_subtransaction), std::ptr::null_mut());
        }
    }
    // SAFETY: reads the state of the running transaction.
    let level = unsafe { pg_sys::GetCurrentTransactionNestLevel() };
    WORK.with_borrow_mut(|all| all.push((level, Box::new(work))));
}

// SAFETY: called by PostgreSQL alone, as a transaction callback (xact.c).
#[pg_guard]
unsafe extern "C-unwind" fn at_transaction(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => {
            let all = WORK.take();
            if !all.is_empty() {
                // SAFETY: the transaction is still open, and may raise errors (xact.c); its portals are gone, so
                // statements need a snapshot of ours.
                unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot()) };
                all.into_iter().for_each(|(_, work)| work());
                // SAFETY: the one pushed above.
                unsafe { pg_sys::PopActiveSnapshot() };
            }
        }
        // The locks that the work takes would be held until somebody commits it.
        pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE if !WORK.with_borrow(Vec::is_empty) => {
            pgrx::ereport!(
                ERROR,
                PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
                "cannot PREPARE a transaction that has recorded events"
            );
        }
        pg_sys::XactEvent::XACT_EVENT_ABORT => drop(WORK.take()),
        _ => (),
    }
}

/// Called while the subtransaction that ends is the current one.
// SAFETY: called by PostgreSQL alone, as a subtransaction callback (xact.c).
#[pg_guard]
unsafe extern "C-unwind" fn at_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    _own: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut c_void,
) {
    // SAFETY: reads the state of the running transaction.
    let level = unsafe { pg_sys::GetCurrentTransactionNestLevel() };
    WORK.with_borrow_mut(|all| match event {
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => all.retain(|(of, _)| *of < level),
        pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => {
            all.iter_mut().for_each(|(of, _)| *of = (*of).min(level - 1));
        }
        _ => (),
    });
}
