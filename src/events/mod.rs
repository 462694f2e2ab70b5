//! Reading events: waiting for them, and named consumers whose place the server keeps.

mod consumer;
mod wait;

use crate::error::Error;
use crate::pg::catalog;

#[pgrx::pg_extern(sql = r"
CREATE FUNCTION refuse_future_event(id bigint) RETURNS void
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION refuse_future_event(bigint) IS
    'Internal, for events_after(): raises 22023 if no event has had this id yet.';
")]
fn refuse_future_event(id: i64) {
    refuse_future(id);
}

/// Raises if no event can have had this id yet: whoever asks for what came after it has it from another
/// database, or from before a restore, and would wait for long while events go by. A standby may lag behind
/// the server that the id is from.
fn refuse_future(id: i64) {
    const LAST: &str = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM expiry.event_id_seq";
    if catalog::is_in_recovery() {
        return;
    }
    let last = catalog::read(LAST, &[], |rows, row| rows.expect::<i64>(row, 0));
    if let Some(last) = last.first().copied().filter(|last| id > *last) {
        Error::FutureEvent { id, last }.raise();
    }
}
