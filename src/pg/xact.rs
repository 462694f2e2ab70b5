//! Transactions and subtransactions: the only places that catch a PostgreSQL error, and both roll
//! back before they hand it out.

use std::panic::AssertUnwindSafe;

use pgrx::PgTryBuilder;
use pgrx::pg_sys;
use pgrx::pg_sys::Oid;

use super::caught::{PgError, describe, watching_sqlstates};
use super::{role, timeout};

/// Runs `f` in a transaction of its own, READ COMMITTED and READ WRITE whatever the defaults of the
/// database are, with the rights of `user` up to and including the commit: triggers that are deferred
/// to the commit run with the rights in force then.
///
/// Only outside of any transaction: in the worker, or within [`leaving_transaction`].
pub fn in_transaction<R>(user: Oid, f: impl FnOnce() -> R) -> Result<R, PgError> {
    // SAFETY: no transaction is open (see above), so one can be started, and on an error aborted.
    // A FATAL (die) ends the process inside `f`; PostgreSQL rolls back in that case.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let result = PgTryBuilder::new(AssertUnwindSafe(|| {
            watching_sqlstates(|| {
                pg_sys::SetCurrentStatementStartTimestamp();
                pg_sys::StartTransactionCommand();
                pg_sys::XactIsoLevel = pg_sys::XACT_READ_COMMITTED as i32;
                pg_sys::XactReadOnly = pg_sys::RecoveryInProgress();
                pg_sys::XactDeferrable = false;
                let before = role::assume(user);
                pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
                let result = f();
                pg_sys::PopActiveSnapshot();
                pg_sys::CommitTransactionCommand();
                role::restore(before);
                Ok(result)
            })
        }))
        .catch_others(|error| Err(describe(error)))
        .execute();
        if result.is_err() {
            timeout::disable_all();
            pg_sys::AbortCurrentTransaction();
        }
        pg_sys::MemoryContextSwitchTo(context);
        result
    }
}

/// Runs `f`, the work of a process that is in no transaction, so that the process outlives an error
/// that escapes from it: everything that `f` may have left open is rolled back and let go.
pub fn surviving<R>(f: impl FnOnce() -> R) -> Result<R, PgError> {
    // SAFETY: what the main loops of PostgreSQL's own processes do after an error (autovacuum.c). A
    // FATAL (die) ends the process inside `f`.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let result = PgTryBuilder::new(AssertUnwindSafe(|| watching_sqlstates(|| Ok(f()))))
            .catch_others(|error| Err(describe(error)))
            .execute();
        if result.is_err() {
            timeout::disable_all();
            pg_sys::LWLockReleaseAll();
            pg_sys::ConditionVariableCancelSleep();
            *pg_sys::my_wait_event_info = 0;
            pg_sys::AbortOutOfAnyTransaction();
        }
        pg_sys::MemoryContextSwitchTo(context);
        result
    }
}

/// Runs `f` in a subtransaction; an error is rolled back to here and handed out.
pub fn subtransaction<R>(f: impl FnOnce() -> R) -> Result<R, PgError> {
    // SAFETY: the recipe of plpgsql's exception blocks (pl_exec.c): same memory context and resource
    // owner before and after, release on success, rollback on an error. The handler calls nothing of
    // PostgreSQL.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        let result = PgTryBuilder::new(AssertUnwindSafe(|| {
            watching_sqlstates(|| {
                let result = f();
                pg_sys::ReleaseCurrentSubTransaction();
                Ok(result)
            })
        }))
        .catch_others(|error| Err(describe(error)))
        .execute();
        if result.is_err() {
            pg_sys::MemoryContextSwitchTo(context);
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        result
    }
}

/// Whether a procedure was called at the top level, outside of a transaction block: only then may it use
/// [`leaving_transaction`].
pub fn is_top_level_call(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: `fcinfo` is the running call's; CALL puts a CallContext there (functioncmds.c).
    unsafe {
        let context = (*fcinfo).context;
        !context.is_null()
            && (*context).type_ == pg_sys::NodeTag::T_CallContext
            && !(*context.cast::<pg_sys::CallContext>()).atomic
            && !pg_sys::SPI_inside_nonatomic_context()
    }
}

/// Where a loop of ours lets itself be cancelled or terminated.
pub fn check_for_interrupts() {
    pg_sys::check_for_interrupts!();
}

/// For a procedure that manages its own transactions, as VACUUM does: commits the transaction that
/// CALL has opened, runs `f` outside of any, and opens a new one for CALL to end. Whoever calls it has
/// seen to it that this is a top-level CALL outside of a transaction block.
pub fn leaving_transaction<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: what SPI_commit does, without SPI: the active portal of the CALL survives a commit, its
    // snapshot is forgotten first. If `f` raises, the main loop aborts, which needs no transaction.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        pg_sys::HoldPinnedPortals();
        pg_sys::ForgetPortalSnapshots();
        pg_sys::CommitTransactionCommand();
        pg_sys::MemoryContextSwitchTo(context);
        let result = f();
        pg_sys::StartTransactionCommand();
        pg_sys::MemoryContextSwitchTo(context);
        result
    }
}

/// How many subtransactions of this transaction have written something and are not rolled back; when they
/// are more than a backend can cache, more than that.
pub fn subtransactions() -> usize {
    // SAFETY: our own PGPROC, which nobody else writes to; its fields were set by xact.c in this process.
    let cache = unsafe { (*pg_sys::MyProc).subxidStatus };
    let cached = usize::from(cache.count);
    if cache.overflowed { cached * 4 } else { cached }
}

/// Runs all constraint triggers that were deferred, now.
pub fn check_deferred_constraints() {
    // SAFETY: the statement SET CONSTRAINTS ALL IMMEDIATE, built as the parser builds it; a node in
    // the current memory context.
    unsafe {
        let mut statement =
            pgrx::PgBox::<pg_sys::ConstraintsSetStmt>::alloc_node(pg_sys::NodeTag::T_ConstraintsSetStmt);
        statement.constraints = std::ptr::null_mut();
        statement.deferred = false;
        pg_sys::AfterTriggerSetState(statement.into_pg());
    }
}
