//! What an error means: the row's fault, nobody's, or the end.

/// Three classes; one match decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call failed: an attempt of its row is used up.
    Row,
    /// Nobody's fault (deadlock, lock timeout, shutdown, disk full): again, and nothing is counted.
    Transient,
}

/// Classifies an error by its SQLSTATE. `timed_out`: the call had used up cancel_timeout, so that 57014
/// is the row's own doing and not somebody's pg_cancel_backend().
pub fn classify(sqlstate: &str, timed_out: bool) -> Fault {
    match sqlstate {
        "57014" if timed_out => Fault::Row,
        // serialization_failure (also a row that moved to another partition), deadlock_detected
        "40001" | "40P01"
        // lock_not_available
        | "55P03"
        // query_canceled, and admin_shutdown, crash_shutdown, cannot_connect_now
        | "57014" | "57P01" | "57P02" | "57P03"
        // read_only_sql_transaction: a standby, or a read-only server
        | "25006" => Fault::Transient,
        // insufficient_resources, and system_error (I/O)
        state if state.starts_with("53") || state.starts_with("58") => Fault::Transient,
        _ => Fault::Row,
    }
}
