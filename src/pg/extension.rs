//! The locks of DROP and ALTER EXTENSION. PostgreSQL drops the members of an extension one after the other and
//! locks each when it comes to it; who reads and writes our tables locks them in an order of his own. Each could
//! wait for the other for ever. So all are locked before the statement begins, with nothing in hand while it waits.

use std::ffi::CStr;

use pgrx::pg_sys;
use pgrx::pg_sys::Oid;

use super::{catalog, role};

/// The extension of that name in this database, if the current user may drop it.
pub fn owned(name: &CStr) -> Option<Oid> {
    // SAFETY: catalog lookups inside a transaction.
    unsafe {
        let extension = pg_sys::get_extension_oid(name.as_ptr(), true);
        if extension == Oid::INVALID {
            return None;
        }
        let user = role::current_user();
        #[cfg(feature = "pg15")]
        let is_owner = pg_sys::pg_extension_ownercheck(extension, user);
        #[cfg(not(feature = "pg15"))]
        let is_owner = pg_sys::object_ownercheck(pg_sys::ExtensionRelationId, extension, user);
        is_owner.then_some(extension)
    }
}

const RELATIONS: &str = "\
SELECT objid FROM pg_depend WHERE refclassid = 'pg_extension'::regclass AND refobjid = $1
AND classid = 'pg_class'::regclass AND deptype = 'e' ORDER BY objid";

/// Takes ACCESS EXCLUSIVE on all relations of the extension, until the end of the transaction.
pub fn lock_relations(extension: Oid) {
    let mut relations = catalog::read(RELATIONS, &[(pg_sys::OIDOID, Some(extension.into()))], |row, n| {
        row.expect::<Oid>(n, 0)
    });
    let mode = pg_sys::AccessExclusiveLock as pg_sys::LOCKMODE;
    let Some(mut first) = relations.first().copied() else { return };
    loop {
        // The one that was in the way is waited for, with no other lock; the rest is taken or left.
        relations.sort_by_key(|relation| *relation != first);
        // SAFETY: inside a transaction, which releases what it holds at its end. Only what was taken here is
        // given back: the lock manager counts.
        unsafe {
            pg_sys::LockRelationOid(first, mode);
            let taken = relations[1..]
                .iter()
                .take_while(|relation| pg_sys::ConditionalLockRelationOid(**relation, mode))
                .count();
            let Some(busy) = relations.get(1 + taken) else { return };
            relations[..=taken].iter().for_each(|relation| pg_sys::UnlockRelationOid(*relation, mode));
            first = *busy;
        }
    }
}
