//! Heavyweight locks of our own, released at the end of the transaction, and who waits for them.

use pgrx::pg_sys;
use pgrx::pg_sys::Oid;

/// Holds off every other transaction that takes the same lock, until this one has ended. The lock
/// is on "column 1 of the object", which nothing else locks: it conflicts with no DDL, no vacuum and
/// no statement on the table. Raises 55P03 after `lock_timeout`.
pub fn exclusively(relation: Oid) {
    // SAFETY: inside a transaction; PostgreSQL releases the lock at its end.
    unsafe {
        pg_sys::LockDatabaseObject(
            pg_sys::RelationRelationId,
            relation,
            1,
            pg_sys::ExclusiveLock as pg_sys::LOCKMODE,
        );
    }
}

/// Whether a session waits for this transaction to end, which it does for a row that is locked or changed here.
pub fn is_transaction_awaited() -> bool {
    // SAFETY: reads a variable of this process.
    let xid = unsafe { pg_sys::GetTopTransactionIdIfAny() };
    if xid == pg_sys::TransactionId::INVALID {
        return false;
    }
    // What SET_LOCKTAG_TRANSACTION of lock.h makes.
    let tag = pg_sys::LOCKTAG {
        locktag_field1: xid.into_inner(),
        locktag_field2: 0,
        locktag_field3: 0,
        locktag_field4: 0,
        locktag_type: pg_sys::LockTagType::LOCKTAG_TRANSACTION as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
    };
    // SAFETY: a transaction with an id holds this lock on itself in this mode.
    unsafe { pg_sys::LockHasWaiters(&raw const tag, pg_sys::ExclusiveLock as pg_sys::LOCKMODE, false) }
}
