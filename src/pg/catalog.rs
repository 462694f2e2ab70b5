//! Look-ups in the system catalogs: with SQL, and for small facts without it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::rc::Rc;

use pgrx::pg_sys::{self, Oid};

use super::predicate::PINNED_SEARCH_PATH;
use super::spi::{self, Argument, Plan, Rows};
use super::{guc, role};

thread_local! {
    /// The plan of each statement that this process has run before: most take longer to plan than to run.
    static PLANS: RefCell<HashMap<&'static str, Rc<Plan>>> = RefCell::default();
}

/// Reads catalogs or our own tables: with a superuser's rights and a search path under which every
/// unqualified name is of pg_catalog. No user's code may run inside.
pub fn read<T>(
    sql: &'static str,
    arguments: &[(Oid, Argument)],
    mut map: impl FnMut(&Rows<'_>, usize) -> T,
) -> Vec<T> {
    run(sql, arguments, |rows| (0..rows.count).map(|row| map(rows, row)).collect())
}

/// Runs a statement on our own tables, as [`read`] does; returns how many rows it touched.
pub fn write(sql: &'static str, arguments: &[(Oid, Argument)]) -> usize {
    run(sql, arguments, |rows| rows.count)
}

fn run<R>(sql: &'static str, arguments: &[(Oid, Argument)], f: impl FnOnce(&Rows<'_>) -> R) -> R {
    role::as_superuser(|| {
        let pinned = [("search_path", PINNED_SEARCH_PATH), ("quote_all_identifiers", "off")];
        guc::with_settings(&pinned, || {
            spi::connected(|spi| {
                let known = PLANS.with_borrow(|plans| plans.get(sql).cloned());
                let plan = known.unwrap_or_else(|| {
                    let types: Vec<Oid> = arguments.iter().map(|(type_oid, _)| *type_oid).collect();
                    let plan = Rc::new(spi.prepare(sql, &types));
                    PLANS.with_borrow_mut(|plans| plans.insert(sql, plan.clone()));
                    plan
                });
                let values: Vec<Argument> = arguments.iter().map(|(_, value)| *value).collect();
                f(&spi.run(&plan, &values))
            })
        })
    })
}

/// The relation `expiry.name`, if the extension's schema has it.
pub fn expiry_relation(name: &str) -> Option<Oid> {
    let name = CString::new(name).expect("names have no NUL");
    // SAFETY: catalog look-ups inside a transaction; both return InvalidOid for what is missing.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"expiry".as_ptr(), true);
        if schema == Oid::INVALID {
            return None;
        }
        let relation = pg_sys::get_relname_relid(name.as_ptr(), schema);
        (relation != Oid::INVALID).then_some(relation)
    }
}

/// Whether there is a function of this number.
pub fn has_function(function: Oid) -> bool {
    // SAFETY: a catalog lookup inside a transaction; null for what is missing.
    unsafe { !pg_sys::get_func_name(function).is_null() }
}

/// The type under all domains.
pub fn base_type(type_oid: Oid) -> Oid {
    // SAFETY: a catalog lookup inside a transaction; so are all below.
    unsafe { pg_sys::getBaseType(type_oid) }
}

/// The element type of a true array type.
pub fn element_type(type_oid: Oid) -> Option<Oid> {
    // SAFETY: see above.
    let element = unsafe { pg_sys::get_element_type(type_oid) };
    (element != Oid::INVALID).then_some(element)
}

/// Whether every value of `from` becomes one of `to` by itself: by an implicit cast, or as a string.
pub fn is_convertible(from: Oid, to: Oid) -> bool {
    // SAFETY: see above; one input and one target.
    unsafe {
        let how = if pg_sys::TypeCategory(to) == pg_sys::TYPCATEGORY_STRING as c_char {
            pg_sys::CoercionContext::COERCION_ASSIGNMENT
        } else {
            pg_sys::CoercionContext::COERCION_IMPLICIT
        };
        pg_sys::can_coerce_type(1, &raw const from, &raw const to, how)
    }
}

/// Whether values of `from` are values of `to` without any conversion.
pub fn is_same_representation(from: Oid, to: Oid) -> bool {
    // SAFETY: see above.
    unsafe { pg_sys::IsBinaryCoercible(from, to) }
}

/// Whether row-level security would hide rows of `relation` from `user`.
pub fn is_row_security_active(relation: Oid, user: Oid) -> bool {
    // SAFETY: see above.
    let result = unsafe { pg_sys::check_enable_rls(relation, user, true) };
    result == pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32
}

/// Whether `SET TimeZone` would accept it.
pub fn is_time_zone(name: &str) -> bool {
    let Ok(name) = CString::new(name) else { return false };
    // SAFETY: reads the time zone files; the result lives in a cache of the process.
    unsafe {
        let zone = pg_sys::pg_tzset(name.as_ptr());
        !zone.is_null() && pg_sys::pg_tz_acceptable(zone)
    }
}

/// Takes ACCESS SHARE on the relation, until the end of the transaction, if nobody is in the way.
pub fn try_lock_shared(relation: Oid) -> bool {
    // SAFETY: inside a transaction; the lock manager takes any number.
    unsafe { pg_sys::ConditionalLockRelationOid(relation, pg_sys::AccessShareLock as _) }
}

/// Takes ACCESS SHARE on the relation, until the end of the transaction.
pub fn lock_shared(relation: Oid) {
    // SAFETY: see above.
    unsafe { pg_sys::LockRelationOid(relation, pg_sys::AccessShareLock as _) };
}

/// Qualified and quoted, as `format('%I.%I')` has it; `None`: there is no such relation any more.
pub fn qualified_name(relation: Oid) -> Option<String> {
    // SAFETY: look-ups in the catalog caches inside a transaction; the texts are copied at once.
    unsafe {
        let name = pg_sys::get_rel_name(relation);
        let schema = pg_sys::get_namespace_name(pg_sys::get_rel_namespace(relation));
        if name.is_null() || schema.is_null() {
            return None;
        }
        let qualified = pg_sys::quote_qualified_identifier(schema, name);
        Some(std::ffi::CStr::from_ptr(qualified).to_string_lossy().into_owned())
    }
}

/// The database that we are connected to.
pub fn database() -> Oid {
    // SAFETY: a process-global, set when the process connects.
    unsafe { pg_sys::MyDatabaseId }
}

/// What tells this cluster from every other.
pub fn system_identifier() -> i64 {
    // SAFETY: reads shared memory that is there in every process with a connection.
    unsafe { pg_sys::GetSystemIdentifier() as i64 }
}

/// The major version of PostgreSQL.
pub fn server_version() -> i32 {
    pg_sys::PG_VERSION_NUM as i32 / 10_000
}

/// Whether this server is a standby.
pub fn is_in_recovery() -> bool {
    // SAFETY: reads shared memory.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// Whether this transaction, or the whole server in recovery, refuses to write.
pub fn is_read_only() -> bool {
    // SAFETY: reads a process-global and shared memory.
    unsafe { pg_sys::XactReadOnly || pg_sys::RecoveryInProgress() }
}

/// Raises (25006) if this transaction refuses to write; `command` is named in the error.
pub fn prevent_if_read_only(command: &std::ffi::CStr) {
    // SAFETY: a C string, which is only read.
    unsafe { pg_sys::PreventCommandIfReadOnly(command.as_ptr()) };
}
