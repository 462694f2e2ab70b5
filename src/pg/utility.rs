//! Utility statements that manage their own transactions, such as CREATE INDEX CONCURRENTLY, run as
//! the client of a session would run them.

use std::ffi::CString;
use std::panic::AssertUnwindSafe;

use pgrx::PgTryBuilder;
use pgrx::pg_sys;

use super::caught::{PgError, describe, watching_sqlstates};
use super::role::BOOTSTRAP_SUPERUSER;
use super::{guc, role, timeout};

/// Runs one utility statement, outside of any transaction, with a superuser's rights (what it evaluates
/// of a table runs with the table owner's, as a security-restricted operation, as always in PostgreSQL). The settings hold for its first
/// transaction only: a `lock_timeout` limits how long it waits for its lock on the table, and not how
/// long it waits for older transactions after that.
pub fn execute(settings: &[(&str, &str)], sql: &str) -> Result<(), PgError> {
    let sql = CString::new(sql).expect("statements have no NUL");
    let before = role::identity();
    // SAFETY: no transaction is open. What PostgresMain and PortalRunUtility do for a statement of a
    // client. The nodes live in a context of their own, because the statement ends transactions while it
    // runs; nothing here frees them but the deletion of that context. The identity is restored by hand:
    // the transactions that the statement opens know only the one that it began with.
    let (result, nodes) = unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let nodes = pg_sys::AllocSetContextCreateInternal(
            context,
            c"pg_expiry utility statement".as_ptr(),
            pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
            pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
        );
        let result = PgTryBuilder::new(AssertUnwindSafe(|| {
            watching_sqlstates(|| {
                pg_sys::SetCurrentStatementStartTimestamp();
                pg_sys::StartTransactionCommand();
                pg_sys::XactIsoLevel = pg_sys::XACT_READ_COMMITTED as i32;
                pg_sys::XactReadOnly = pg_sys::RecoveryInProgress();
                role::assume_across_transactions(BOOTSTRAP_SUPERUSER);
                for (name, value) in settings {
                    guc::set_local(name, value);
                }
                pg_sys::MemoryContextSwitchTo(nodes);
                let raw = pg_sys::pg_parse_query(sql.as_ptr());
                let raw = (*(*raw).elements).ptr_value.cast::<pg_sys::RawStmt>();
                let mut statement =
                    pgrx::PgBox::<pg_sys::PlannedStmt>::alloc_node(pg_sys::NodeTag::T_PlannedStmt);
                statement.commandType = pg_sys::CmdType::CMD_UTILITY;
                statement.canSetTag = true;
                statement.utilityStmt = (*raw).stmt;
                statement.stmt_location = (*raw).stmt_location;
                statement.stmt_len = (*raw).stmt_len;
                pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
                pg_sys::ProcessUtility(
                    statement.into_pg(),
                    sql.as_ptr(),
                    false,
                    pg_sys::ProcessUtilityContext::PROCESS_UTILITY_TOPLEVEL,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    pg_sys::CreateDestReceiver(pg_sys::CommandDest::DestNone),
                    std::ptr::null_mut(),
                );
                if pg_sys::ActiveSnapshotSet() {
                    pg_sys::PopActiveSnapshot();
                }
                pg_sys::CommitTransactionCommand();
                Ok(())
            })
        }))
        .catch_others(|error| Err(describe(error)))
        .execute();
        if result.is_err() {
            timeout::disable_all();
            pg_sys::AbortCurrentTransaction();
        }
        pg_sys::MemoryContextSwitchTo(context);
        (result, nodes)
    };
    role::restore(before);
    // SAFETY: made above, and nobody uses what is in it any more.
    unsafe { pg_sys::MemoryContextDelete(nodes) };
    result
}
