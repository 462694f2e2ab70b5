//! Whose rights are in force.
//!
//! Owner code runs under `SECURITY_LOCAL_USERID_CHANGE`, from which SET ROLE, RESET ROLE and SET
//! SESSION AUTHORIZATION do not escape. On an error the abort of the (sub)transaction restores the
//! identity by itself (xact.c keeps it per level), so the closures restore it only on success.

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

/// Takes on `user` until [`restore`]; prefer [`as_user`]. For commits, which must still run under
/// the owner: triggers deferred to the commit run with the rights in force then.
pub fn assume(user: Oid) -> Identity {
    let before = identity();
    // SAFETY: inside a transaction; the flag keeps SET ROLE from leaving the identity.
    unsafe {
        pg_sys::SetUserIdAndSecContext(user, before.context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as c_int);
    }
    before
}

pub fn restore(before: Identity) {
    // SAFETY: an identity that was in force earlier in this process.
    unsafe { pg_sys::SetUserIdAndSecContext(before.user, before.context) };
}

/// Runs `f` with the rights of `user`.
pub fn as_user<R>(user: Oid, f: impl FnOnce() -> R) -> R {
    let before = assume(user);
    let result = f();
    restore(before);
    result
}

/// Runs `f` with a superuser's rights: for statements on our own tables only. No user's code (casts,
/// operators, triggers, index expressions) may run inside.
pub fn as_superuser<R>(f: impl FnOnce() -> R) -> R {
    as_user(BOOTSTRAP_SUPERUSER, f)
}

/// [`as_superuser`] with nothing but `pg_catalog` on the search path, whatever it is outside.
pub fn as_superuser_at_home<R>(f: impl FnOnce() -> R) -> R {
    as_superuser(|| guc::with_settings(&[("search_path", "pg_catalog, pg_temp")], f))
}

/// Whether the current user may act for `role` (is it, is a member with its rights, or a superuser).
pub fn may_act_for(role: Oid) -> bool {
    // SAFETY: catalog lookup inside a transaction.
    unsafe { pg_sys::has_privs_of_role(current_user(), role) }
}
