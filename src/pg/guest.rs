//! An owner's code in a session that is not a worker's. What it leaves there for later would run as whoever
//! comes upon it: a temporary view that hides a table, a prepared statement under a client's name.

use std::ffi::CString;

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::{self, Oid};

use super::catalog;
use super::clock::Timestamp;

/// Objects of this owner in the session's temporary schema.
const TEMPORARY: &str = "
SELECT s.classid, s.objid FROM pg_shdepend s JOIN pg_depend d ON d.classid = s.classid AND d.objid = s.objid
WHERE s.dbid = $2 AND s.refclassid = 'pg_authid'::regclass AND s.refobjid = $1 AND s.deptype = 'o'
  AND d.refclassid = 'pg_namespace'::regclass AND d.refobjid = pg_my_temp_schema()";

const PREPARED: &str = "SELECT name FROM pg_prepared_statement() WHERE prepare_time >= $1";

const HELD: &str = "SELECT FROM pg_cursor() WHERE is_holdable AND creation_time >= now()";

/// Takes away what code of `owner` has left since then in the session of another. Inside a transaction, as a
/// superuser.
pub fn forget_traces(owner: Oid, since: Timestamp) {
    let since = [(pg_sys::TIMESTAMPTZOID, Some(since.datum()))];
    for name in catalog::read(PREPARED, &since, |row, n| row.expect::<String>(n, 0)) {
        let name = CString::new(name).expect("names have no NUL");
        // SAFETY: a name that there was a moment ago; not finding it is no error.
        unsafe { pg_sys::DropPreparedStatement(name.as_ptr(), false) };
    }
    let arguments =
        [(pg_sys::OIDOID, Some(owner.into())), (pg_sys::OIDOID, Some(catalog::database().into()))];
    let objects: Vec<(Oid, Oid)> =
        catalog::read(TEMPORARY, &arguments, |row, n| (row.expect(n, 0), row.expect(n, 1)));
    if objects.is_empty() {
        return;
    }
    // SAFETY: objects that the catalogs have just shown, in the temporary schema, which is ours alone; what hangs
    // on them goes too.
    unsafe {
        let addresses = pg_sys::new_object_addresses();
        for (class, object) in objects {
            let address = pg_sys::ObjectAddress { classId: class, objectId: object, objectSubId: 0 };
            pg_sys::add_exact_object_address(&raw const address, addresses);
        }
        let flags = pg_sys::PERFORM_DELETION_INTERNAL | pg_sys::PERFORM_DELETION_QUIETLY;
        pg_sys::performMultipleDeletions(addresses, pg_sys::DropBehavior::DROP_CASCADE, flags as i32);
        pg_sys::free_object_addresses(addresses);
    }
}

/// Raises if this transaction has opened a cursor WITH HOLD: its query would run at the commit.
pub fn refuse_held_cursors() {
    if !catalog::read(HELD, &[], |_, _| ()).is_empty() {
        pgrx::ereport!(
            ERROR,
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            "a cancel function cannot leave a cursor WITH HOLD open"
        );
    }
}
