//! Calls of a user's function, straight through the function manager.

use std::ffi::c_int;
use std::mem::size_of;

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use pgrx::pg_sys::{Datum, Oid};

use super::{guc, timeout};

/// A function looked up for a batch of calls; lives in the memory context it was made in.
pub struct Function {
    call: *mut pg_sys::FunctionCallInfoBaseData,
    /// Holds what one call leaves behind; emptied before the next.
    memory: pg_sys::MemoryContext,
}

impl Function {
    /// Looks `function` up and checks that the current user may execute it (42501).
    pub fn prepare(function: Oid, arguments: usize) -> Self {
        // Whoever commits a row together with a new body of the function means that one: the claim may have
        // seen the row with the old one still in the caches.
        // SAFETY: inside a transaction; what every lock on a relation does too.
        unsafe { pg_sys::AcceptInvalidationMessages() };
        check_execute_right(function);
        // SAFETY: all of it is palloc'd in the current memory context, which outlives `self` (a batch);
        // the call structure is laid out as LOCAL_FCINFO does, with `arguments` slots behind it.
        unsafe {
            let info = pg_sys::palloc0(size_of::<pg_sys::FmgrInfo>()).cast::<pg_sys::FmgrInfo>();
            pg_sys::fmgr_info(function, info);
            let size = size_of::<pg_sys::FunctionCallInfoBaseData>()
                + arguments * size_of::<pg_sys::NullableDatum>();
            let call = pg_sys::palloc0(size).cast::<pg_sys::FunctionCallInfoBaseData>();
            (*call).flinfo = info;
            (*call).fncollation = pg_sys::DEFAULT_COLLATION_OID;
            (*call).nargs = i16::try_from(arguments).expect("at most 100 arguments");
            let memory = pg_sys::AllocSetContextCreateInternal(
                pg_sys::CurrentMemoryContext,
                c"pg_expiry call".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            );
            Self { call, memory }
        }
    }

    /// One call with a snapshot of its own, so that it sees what was committed since the claim; what it
    /// SETs is undone. `limit_ms`: see [`timeout::limited`]. `read` sees the result before it is freed.
    pub fn call<R>(
        &mut self,
        arguments: &[Datum],
        limit_ms: c_int,
        read: impl FnOnce(Option<Datum>) -> R,
    ) -> R {
        // SAFETY: `call` has as many argument slots as `prepare` was told; the snapshot is pushed and
        // popped around the call. On an error the rollback cleans up all of it.
        unsafe {
            assert_eq!(arguments.len(), (*self.call).nargs as usize, "arguments of the cancel function");
            pg_sys::MemoryContextReset(self.memory);
            let slots = (*self.call).args.as_mut_ptr();
            for (i, value) in arguments.iter().enumerate() {
                *slots.add(i) = pg_sys::NullableDatum { value: *value, isnull: false };
            }
            (*self.call).isnull = false;
            pg_sys::CommandCounterIncrement();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let outside = pg_sys::MemoryContextSwitchTo(self.memory);
            let address = (*(*self.call).flinfo).fn_addr.expect("fmgr_info has set it");
            let call = self.call;
            let result = guc::with_settings(&[], || {
                timeout::limited(limit_ms, || pg_guard_ffi_boundary(|| address(call)))
            });
            pg_sys::MemoryContextSwitchTo(outside);
            pg_sys::PopActiveSnapshot();
            read((!(*self.call).isnull).then_some(result))
        }
    }
}

fn check_execute_right(function: Oid) {
    // SAFETY: catalog lookups inside a transaction.
    unsafe {
        #[cfg(feature = "pg15")]
        let right = pg_sys::pg_proc_aclcheck(function, pg_sys::GetUserId(), pg_sys::ACL_EXECUTE);
        #[cfg(not(feature = "pg15"))]
        let right = pg_sys::object_aclcheck(
            pg_sys::ProcedureRelationId,
            function,
            pg_sys::GetUserId(),
            pg_sys::ACL_EXECUTE.into(),
        );
        if right != pg_sys::AclResult::ACLCHECK_OK {
            let name = pg_sys::get_func_name(function);
            if name.is_null() {
                pgrx::ereport!(
                    ERROR,
                    PgSqlErrorCode::ERRCODE_UNDEFINED_FUNCTION,
                    "cancel function does not exist any more"
                );
            }
            pg_sys::aclcheck_error(right, pg_sys::ObjectType::OBJECT_FUNCTION, name);
        }
    }
}

/// What owner code may leave in a session and the next call must not meet: temporary tables, session
/// advisory locks, prepared statements and cursors. For a worker only: a client's session is its own.
pub fn forget_session_state() {
    // SAFETY: what DISCARD ALL does, less what it refuses to do inside a transaction. Each is cheap when
    // there is nothing to forget.
    unsafe {
        pg_sys::PortalHashTableDeleteAll();
        pg_sys::ResetTempTableNamespace();
    }
    forget_what_survives_rollback();
}

/// The part of it that a rollback does not undo either: for after a call that has failed.
pub fn forget_what_survives_rollback() {
    // SAFETY: both need no transaction, and are cheap when there is nothing to forget.
    unsafe {
        pg_sys::DropAllPreparedStatements();
        pg_sys::LockReleaseSession(pg_sys::USER_LOCKMETHOD as pg_sys::LOCKMETHODID);
    }
}
