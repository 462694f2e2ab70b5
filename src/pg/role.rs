//! Whose rights are in force.
//!
//! Owner code runs under `SECURITY_LOCAL_USERID_CHANGE`, from which SET ROLE, RESET ROLE and SET
//! SESSION AUTHORIZATION do not escape. On an error the abort of the (sub)transaction restores the
//! identity by itself (xact.c keeps it per level), so the closures restore it only on success.
//!
//! Where the transaction, or the session, is not the owner's, his code (a function in his predicate, an operator or
//! a cast of his) could leave something behind that runs, or counts, when the identity is another again: a
//! trigger deferred to the commit, a setting, a temporary table. So it runs as PostgreSQL's own maintenance does, as
//! a security-restricted operation, and read-only: all of that is refused or undone ([`looking_as`]).

use std::ffi::c_int;

use pgrx::pg_sys;
use pgrx::pg_sys::Oid;

use super::guc;

/// The role that initdb made; it always exists and is a superuser (pg_authid.dat).
pub const BOOTSTRAP_SUPERUSER: Oid = Oid::from_u32(10);

/// The predefined role whose members see all statistics (pg_authid.dat).
pub const PG_MONITOR: Oid = Oid::from_u32(3373);

/// An identity to go back to.
#[derive(Clone, Copy)]
pub struct Identity {
    user: Oid,
    context: c_int,
}

/// The role whose rights are checked now.
pub fn current_user() -> Oid {
    // SAFETY: reads a process-global.
    unsafe { pg_sys::GetUserId() }
}

/// The identity in force.
pub fn identity() -> Identity {
    let mut current = Identity { user: Oid::INVALID, context: 0 };
    // SAFETY: both out-pointers are valid.
    unsafe { pg_sys::GetUserIdAndSecContext(&raw mut current.user, &raw mut current.context) };
    current
}

/// Takes on `user` until [`restore`]: for whole transactions, commit included, since triggers deferred to
/// the commit run with the rights in force then.
pub fn assume(user: Oid) -> Identity {
    change_to(user, pg_sys::SECURITY_LOCAL_USERID_CHANGE)
}

/// [`assume`] for a statement that opens transactions of its own: no transaction may begin with the flag that keeps
/// SET ROLE away (an assertion of xact.c). The statement's own code must see to that.
pub fn assume_across_transactions(user: Oid) -> Identity {
    let before = identity();
    // SAFETY: any role's number will do; whoever calls this restores the identity himself.
    unsafe { pg_sys::SetUserIdAndSecContext(user, 0) };
    before
}

/// Inside a transaction; the flags keep SET ROLE from leaving the identity.
fn change_to(user: Oid, flags: u32) -> Identity {
    let before = identity();
    // SAFETY: any role's number will do; errors restore the identity by themselves, see above.
    unsafe { pg_sys::SetUserIdAndSecContext(user, before.context | flags as c_int) };
    before
}

pub fn restore(before: Identity) {
    // SAFETY: an identity that was in force earlier in this process.
    unsafe { pg_sys::SetUserIdAndSecContext(before.user, before.context) };
}

/// Runs `f`, in which code of `user` may run that only looks, with his rights and so that it leaves nothing behind.
pub fn looking_as<R>(user: Oid, f: impl FnOnce() -> R) -> R {
    // SAFETY: a flag of this transaction. SQL cannot take it off once there is a snapshot; on an error the abort of
    // the (sub)transaction restores it, as it does the identity. It is not set by its name, as a setting, since
    // PostgreSQL 16 refuses that within a transaction.
    let was_read_only = unsafe {
        let before = pg_sys::XactReadOnly;
        pg_sys::XactReadOnly = true;
        before
    };
    let result = restricted(user, || guc::with_settings(&[], f));
    // SAFETY: see above.
    unsafe { pg_sys::XactReadOnly = was_read_only };
    result
}

/// Runs `f`, as who we are now, so that it can defer no trigger and leave no object behind.
pub fn restricted_now<R>(f: impl FnOnce() -> R) -> R {
    restricted(current_user(), f)
}

fn restricted<R>(user: Oid, f: impl FnOnce() -> R) -> R {
    let before =
        change_to(user, pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION);
    let result = f();
    restore(before);
    result
}

/// Runs `f` with a superuser's rights: for statements on our own tables only. No user's code (casts,
/// operators, triggers, index expressions) may run inside.
pub fn as_superuser<R>(f: impl FnOnce() -> R) -> R {
    let before = assume(BOOTSTRAP_SUPERUSER);
    let result = f();
    restore(before);
    result
}

/// [`as_superuser`] with nothing but `pg_catalog` on the search path, whatever it is outside.
pub fn as_superuser_at_home<R>(f: impl FnOnce() -> R) -> R {
    as_superuser(|| guc::with_settings(&[("search_path", "pg_catalog, pg_temp")], f))
}

/// Whether `member` may act for `role`, see [`may_act_for`].
pub fn has_rights_of(member: Oid, role: Oid) -> bool {
    // SAFETY: catalog lookup inside a transaction.
    unsafe { pg_sys::has_privs_of_role(member, role) }
}

/// Whether the current user may act for `role` (is it, is a member with its rights, or a superuser).
pub fn may_act_for(role: Oid) -> bool {
    has_rights_of(current_user(), role)
}

/// Whether the current user may act for the owner of `relation`, as it is now, also in a transaction whose
/// snapshot is older. False if it does not exist any more.
pub fn may_act_for_owner_of(relation: Oid) -> bool {
    let user = current_user();
    // SAFETY: catalog lookups inside a transaction, in the caches, which know no snapshot.
    unsafe {
        if pg_sys::get_rel_relkind(relation) == 0 {
            return false;
        }
        #[cfg(feature = "pg15")]
        let is_owner = pg_sys::pg_class_ownercheck(relation, user);
        #[cfg(not(feature = "pg15"))]
        let is_owner = pg_sys::object_ownercheck(pg_sys::RelationRelationId, relation, user);
        is_owner
    }
}
