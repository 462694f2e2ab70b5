//! The builder of an index holds a lock on the table while it waits for older transactions, maybe for hours.
//! Whoever wants to change the table must not wait for that, with all readers and writers waiting behind him:
//! the worker looks for him, and has the builder give up. It begins anew in a moment.

use pgrx::pg_sys;

use crate::pg::caught::PgError;
use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::{catalog, xact};

/// Time from one look to the next while anything is being built.
pub const PAUSE_US: i64 = 500_000;

/// Cancels builders in this database that somebody waits for who keeps writers waiting. What waits in
/// the weaker modes (VACUUM, ANALYZE, another CREATE INDEX CONCURRENTLY) is in nobody's way.
const GIVE_WAY: &str = "\
SELECT pg_cancel_backend(b.pid) FROM pg_stat_activity b
WHERE b.datid = $1 AND b.backend_type = 'pg_expiry index builder' AND EXISTS (
    SELECT FROM pg_locks w
    WHERE NOT w.granted AND w.locktype = 'relation' AND w.database = $1
      AND w.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
      AND b.pid = ANY (pg_blocking_pids(w.pid)))";

pub fn give() -> Result<(), PgError> {
    xact::in_transaction(BOOTSTRAP_SUPERUSER, || {
        let database = [(pg_sys::OIDOID, Some(catalog::database().into()))];
        catalog::read(GIVE_WAY, &database, |_, _| ());
    })
}
