//! Whether anything in the catalogs has changed that a policy may depend on.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;

use pgrx::pg_guard;
use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, Oid, SysCacheIdentifier as Cache};

thread_local! {
    static IS_REGISTERED: Cell<bool> = const { Cell::new(false) };
    static HAS_CHANGED: Cell<bool> = const { Cell::new(true) };
    static REMEMBERS: Cell<bool> = const { Cell::new(false) };
    static HAS_CHANGED_SINCE: Cell<bool> = const { Cell::new(false) };
    static IGNORED: RefCell<Vec<Oid>> = const { RefCell::new(Vec::new()) };
}

/// True at the first call, and once after anything was changed: a relation, function, operator, type,
/// role, membership or schema. Changes become known when a transaction starts or locks a relation.
pub fn catalog_changed() -> bool {
    if !IS_REGISTERED.replace(true) {
        register();
    }
    HAS_CHANGED.replace(false)
}

/// Whether [`catalog_changed`] would say so, as far as is known.
pub fn is_change_pending() -> bool {
    HAS_CHANGED.get()
}

/// Users' code is about to run: from the first time on the session may remember how things are now.
pub fn begin_to_remember() {
    if !REMEMBERS.replace(true) {
        HAS_CHANGED_SINCE.set(false);
    }
}

/// Whether the session may remember things as they are no more.
pub fn may_remember_wrongly() -> bool {
    REMEMBERS.get() && HAS_CHANGED_SINCE.get()
}

/// From now on changes of these relations (statistics, mostly) do not count.
pub fn ignore_only(relations: Vec<Oid>) {
    IGNORED.set(relations);
}

fn register() {
    // SAFETY: callbacks for the life of the process that only set a flag.
    unsafe {
        pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), Datum::null());
        for cache in [
            Cache::PROCOID,
            Cache::OPEROID,
            Cache::TYPEOID,
            Cache::AUTHOID,
            Cache::AUTHMEMROLEMEM,
            Cache::NAMESPACEOID,
        ] {
            pg_sys::CacheRegisterSyscacheCallback(cache as c_int, Some(object_changed), Datum::null());
        }
    }
}

// SAFETY: called by PostgreSQL alone, as a relcache callback (inval.c).
#[pg_guard]
unsafe extern "C-unwind" fn relation_changed(_arg: Datum, relation: Oid) {
    if !IGNORED.with_borrow(|ignored| ignored.contains(&relation)) {
        note_change();
    }
}

// SAFETY: called by PostgreSQL alone, as a syscache callback (inval.c).
#[pg_guard]
unsafe extern "C-unwind" fn object_changed(_arg: Datum, _cache: c_int, _hash: u32) {
    note_change();
}

fn note_change() {
    HAS_CHANGED.set(true);
    HAS_CHANGED_SINCE.set(true);
}
