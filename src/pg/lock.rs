//! Heavyweight locks of our own, released at the end of the transaction.

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
