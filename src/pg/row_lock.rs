//! Who holds the lock on a row, without asking for it: the row's header is read, so nothing waits, nothing
//! is written and no transaction id is assigned.

use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, Oid, TransactionId};

/// A transaction that has locked, updated or deleted a row and has not ended yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The transaction that asks.
    Ourselves,
    /// Of this process.
    Process(i32),
    /// Of no process: it is prepared, or it has ended at this moment.
    Transaction(TransactionId),
}

/// Those that hold the row at `tid` (a datum of type tid) of `relation`, on which the caller has a lock.
/// None, too, if the relation's storage is not PostgreSQL's own.
pub fn holders(relation: Oid, tid: Datum) -> Vec<Holder> {
    raw_holders(relation, tid).into_iter().filter_map(holder).collect()
}

/// All transactions that the row's header tells of, whatever has become of them.
fn raw_holders(relation: Oid, tid: Datum) -> Vec<TransactionId> {
    const INVALID: u16 = (pg_sys::HEAP_XMAX_INVALID | pg_sys::HEAP_XMAX_COMMITTED) as u16;
    const IS_MULTI: u16 = pg_sys::HEAP_XMAX_IS_MULTI as u16;
    // SAFETY: inside a transaction, on a relation that is locked. The row cannot be pruned away: our
    // snapshot has seen it. Its header is read under the share lock of its buffer, which is given back with
    // the pin; nothing between the two can raise.
    let (flags, raw) = unsafe {
        let opened = pg_sys::table_open(relation, pg_sys::AccessShareLock as _);
        let mut tuple = pg_sys::HeapTupleData { t_self: *tid.cast_mut_ptr(), ..Default::default() };
        let mut buffer: pg_sys::Buffer = 0;
        let found = std::ptr::eq((*opened).rd_tableam, pg_sys::GetHeapamTableAmRoutine())
            && pg_sys::heap_fetch(
                opened,
                &raw mut pg_sys::SnapshotAnyData,
                &raw mut tuple,
                &raw mut buffer,
                false,
            );
        let mut read = (INVALID, TransactionId::default());
        if found {
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as _);
            read = ((*tuple.t_data).t_infomask, (*tuple.t_data).t_choice.t_heap.t_xmax);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as _);
            pg_sys::ReleaseBuffer(buffer);
        }
        pg_sys::table_close(opened, pg_sys::NoLock as _);
        read
    };
    match flags {
        _ if flags & INVALID != 0 || raw == pg_sys::InvalidTransactionId => Vec::new(),
        _ if flags & IS_MULTI == 0 => vec![raw],
        _ => members(flags, raw),
    }
}

/// The transactions that share a lock.
fn members(flags: u16, multi: TransactionId) -> Vec<TransactionId> {
    const LOCK_ONLY: u16 = pg_sys::HEAP_XMAX_LOCK_ONLY as u16;
    const MODES: u16 = pg_sys::HEAP_LOCK_MASK as u16;
    let is_lock_only = flags & LOCK_ONLY != 0;
    // HEAP_LOCKED_UPGRADED of htup_details.h: from before a pg_upgrade, and nobody's any more.
    if is_lock_only && flags & MODES == 0 {
        return Vec::new();
    }
    let mut members = std::ptr::null_mut();
    // SAFETY: the number of a MultiXact that was in a row's header a moment ago; the members are palloc'd,
    // as many as are returned.
    unsafe {
        let count = pg_sys::GetMultiXactIdMembers(multi, &raw mut members, false, is_lock_only);
        (0..usize::try_from(count).unwrap_or(0)).map(|n| (*members.add(n)).xid).collect()
    }
}

/// `None`: the transaction is over.
fn holder(id: TransactionId) -> Option<Holder> {
    // SAFETY: reads of shared memory and of pg_subtrans, of an id that is in use; one that is in progress
    // is not older than any snapshot of this session.
    unsafe {
        if pg_sys::TransactionIdIsCurrentTransactionId(id) {
            return Some(Holder::Ourselves);
        }
        if !pg_sys::TransactionIdIsInProgress(id) {
            return None;
        }
        let top = pg_sys::SubTransGetTopmostTransaction(id);
        Some(match pg_sys::BackendXidGetPid(top) {
            0 => Holder::Transaction(top),
            pid => Holder::Process(pid),
        })
    }
}
