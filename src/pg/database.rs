//! Databases of the cluster, as pg_database has them.

use std::ffi::CStr;

use pgrx::pg_sys;
use pgrx::pg_sys::Oid;

use super::role;

/// A row of pg_database.
#[derive(Clone, Debug)]
pub struct Database {
    pub oid: Oid,
    pub name: String,
    /// Neither a template, nor closed to connections, nor left behind by a DROP that failed.
    pub is_open: bool,
}

/// `datconnlimit` of a database whose DROP was interrupted (DATCONNLIMIT_INVALID_DB).
const INVALID: i32 = -2;

/// All databases. Needs a transaction but no database to be connected to.
pub fn all() -> Vec<Database> {
    let mut databases = Vec::new();
    // SAFETY: inside a transaction; every row of pg_database begins with FormData_pg_database (its
    // columns are NOT NULL), and is valid until the next systable_getnext. On an error the abort of the
    // transaction ends the scan and closes the relation.
    unsafe {
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let relation = pg_sys::table_open(pg_sys::DatabaseRelationId, lock);
        let (no_snapshot, no_keys) = (std::ptr::null_mut(), std::ptr::null_mut());
        let scan = pg_sys::systable_beginscan(relation, Oid::INVALID, false, no_snapshot, 0, no_keys);
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let header = (*tuple).t_data;
            let row = header.byte_add(usize::from((*header).t_hoff)).cast::<pg_sys::FormData_pg_database>();
            databases.push(Database {
                oid: (*row).oid,
                name: text((*row).datname.data.as_ptr()),
                is_open: (*row).datallowconn && !(*row).datistemplate && (*row).datconnlimit != INVALID,
            });
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, lock);
    }
    databases
}

/// The text of a C string that is not null; bytes that are not UTF-8 (SQL_ASCII has no rule) are
/// replaced.
fn text(value: *const std::ffi::c_char) -> String {
    // SAFETY: the callers pass NUL-terminated strings of PostgreSQL.
    unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned()
}

fn text_or_none(value: *const std::ffi::c_char) -> Option<String> {
    (!value.is_null()).then(|| text(value))
}

pub fn name(database: Oid) -> Option<String> {
    // SAFETY: catalog lookup inside a transaction; null when there is none.
    text_or_none(unsafe { pg_sys::get_database_name(database) })
}

pub fn role_name(role: Oid) -> Option<String> {
    // SAFETY: catalog lookup inside a transaction; null when there is none.
    text_or_none(unsafe { pg_sys::GetUserNameFromId(role, true) })
}

pub fn extension_name(extension: Oid) -> Option<String> {
    // SAFETY: catalog lookup inside a transaction; null when there is none.
    text_or_none(unsafe { pg_sys::get_extension_name(extension) })
}

/// The database of that name, if the current user owns it or is a superuser.
pub fn owned(name: &CStr) -> Option<Oid> {
    // SAFETY: catalog lookup inside a transaction.
    let database = unsafe { pg_sys::get_database_oid(name.as_ptr(), true) };
    (database != Oid::INVALID && is_owner(database)).then_some(database)
}

/// Whether the current user owns the database, which exists, or is a superuser.
pub fn is_owner(database: Oid) -> bool {
    // SAFETY: catalog lookup inside a transaction.
    #[cfg(feature = "pg15")]
    let is_owner = unsafe { pg_sys::pg_database_ownercheck(database, role::current_user()) };
    // SAFETY: catalog lookup inside a transaction.
    #[cfg(not(feature = "pg15"))]
    let is_owner =
        unsafe { pg_sys::object_ownercheck(pg_sys::DatabaseRelationId, database, role::current_user()) };
    is_owner
}
