//! Look-ups in the system catalogs.

use std::ffi::CString;

use pgrx::pg_sys;
use pgrx::pg_sys::Oid;

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
