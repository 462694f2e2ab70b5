//! The SQL surface of policies: make, change, pause, look.

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::iter::TableIterator;
use pgrx::name;
use pgrx::pg_sys::Oid;

use crate::error::{Error, PolicyError};
use crate::installed;
use crate::pg::clock::Timestamp;
use crate::pg::json::Jsonb;
use crate::pg::{log, shmem};
use crate::policy::definition::Definition;
use crate::policy::{self, Policy, change};
use crate::worker::due::{self, Count};
use crate::worker::probe;

/// What `timeout` is when it is not given: NULL must not pass for that, since somebody who passes NULL
/// has lost a value.
const NOT_GIVEN_MONTHS: i32 = -178_000_000 * 12;

fn given_timeout(timeout: Option<Interval>) -> Result<Option<Interval>, Error> {
    match timeout {
        None => Err(PolicyError::NullArgument { parameter: "timeout" }.into()),
        Some(interval) if interval.months() == NOT_GIVEN_MONTHS => Ok(None),
        given => Ok(given),
    }
}

fn or_raise<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| error.raise())
}

/// A policy on an old table would cancel its last ten years in its first second.
fn tell_what_is_due(policy: &Policy, is_paused: bool) {
    let count = due::count_or_estimate(policy);
    if matches!(count, Count::Exactly(0) | Count::About(0)) {
        return;
    }
    let when = if is_paused { "when it is resumed" } else { "as soon as its deadline index is valid" };
    log::notice(
        format!("{count} rows of {} are due already under policy \"{}\"", policy.relation_sql, policy.name),
        format!("They are cancelled {when}. With starts_at, rows whose deadline is older are left alone."),
    );
}

fn timestamp(value: Option<TimestampWithTimeZone>) -> Option<Timestamp> {
    value.map(|value| Timestamp(value.into()))
}

#[pgrx::pg_extern(sql = r"
CREATE FUNCTION create_policy(
    relation regclass,
    deadline text DEFAULT NULL,
    predicate text DEFAULT NULL,
    cancel_function text DEFAULT NULL,
    name text DEFAULT NULL,
    timeout interval DEFAULT '-178000000 years',
    time_zone text DEFAULT NULL,
    epoch text DEFAULT NULL,
    channel text DEFAULT NULL,
    notify text DEFAULT NULL,
    batch_size int DEFAULT NULL,
    max_attempts int DEFAULT NULL,
    retry_delay interval DEFAULT NULL,
    max_rate int DEFAULT NULL,
    remind_before interval[] DEFAULT NULL,
    remind_late boolean DEFAULT NULL,
    starts_at timestamptz DEFAULT NULL,
    paused boolean DEFAULT false
) RETURNS text
    LANGUAGE c CALLED ON NULL INPUT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION create_policy(regclass, text, text, text, text, interval, text, text, text, text, int, int, interval, int, interval[], boolean, timestamptz, boolean) IS
    'Makes a policy: rows of relation that satisfy predicate are due when their deadline has passed; then cancel_function is called as the owner of the relation. Returns its name. For the owner of the relation. Says in a NOTICE how many rows are due already. Column, predicate and function are looked up by the search path of the caller, and stored qualified. What is not given follows the setting pg_expiry.<parameter>; the default of timeout stands for not given, NULL is refused, so that a value that got lost does not mean at once. After an error nothing is stored. Errors: 22004 relation or timeout is NULL, or deadline, predicate or cancel_function is neither given nor set; 22023 a value out of range, time_zone or epoch missing or not for this column; 42501 not the owner of the relation, or the owner lacks a right, or FORCE ROW LEVEL SECURITY hides rows from him; 42703 no such column; 42710 the name is taken; 42725 more than one function fits; 42804 the column''s type cannot be a deadline; 42809 not a permanent table, or not a plain function; 42883 no such function, or its arguments do not fit the key; 42P01 no such relation; 42P10 the relation has no usable key; 42P13 the function returns another type; 42P17 a virtual generated column; 55000 the rows are under another policy of a partition or parent; 55P03 the relation is locked by another transaction; 42601, 42703, 42883 or another, as PostgreSQL raises it, for a predicate that cannot be that of an index.';
")]
#[allow(clippy::too_many_arguments)] // those of the SQL function
fn create_policy(
    relation: Option<Oid>,
    deadline: Option<String>,
    predicate: Option<String>,
    cancel_function: Option<String>,
    name: Option<String>,
    timeout: Option<Interval>,
    time_zone: Option<String>,
    epoch: Option<String>,
    channel: Option<String>,
    notify: Option<String>,
    batch_size: Option<i32>,
    max_attempts: Option<i32>,
    retry_delay: Option<Interval>,
    max_rate: Option<i32>,
    remind_before: Option<Vec<Option<Interval>>>,
    remind_late: Option<bool>,
    starts_at: Option<TimestampWithTimeZone>,
    paused: Option<bool>,
) -> String {
    installed::check();
    or_raise(given_timeout(timeout).and_then(|timeout| {
        let definition = Definition {
            deadline,
            predicate,
            cancel_function,
            timeout,
            time_zone,
            epoch,
            channel,
            notify,
            batch_size,
            max_attempts,
            retry_delay,
            max_rate,
            remind_before,
            remind_late,
            starts_at: timestamp(starts_at),
        };
        let is_paused = paused.unwrap_or(false);
        let policy = change::create(relation, name, definition, is_paused)?;
        tell_what_is_due(&policy, is_paused);
        if !shmem::is_available() {
            Error::NotPreloaded.notice();
        }
        Ok(policy.name)
    }))
}

#[pgrx::pg_extern(sql = r"
CREATE FUNCTION alter_policy(
    name text,
    deadline text DEFAULT NULL,
    predicate text DEFAULT NULL,
    cancel_function text DEFAULT NULL,
    timeout interval DEFAULT '-178000000 years',
    time_zone text DEFAULT NULL,
    epoch text DEFAULT NULL,
    channel text DEFAULT NULL,
    notify text DEFAULT NULL,
    batch_size int DEFAULT NULL,
    max_attempts int DEFAULT NULL,
    retry_delay interval DEFAULT NULL,
    max_rate int DEFAULT NULL,
    remind_before interval[] DEFAULT NULL,
    remind_late boolean DEFAULT NULL,
    starts_at timestamptz DEFAULT NULL,
    paused boolean DEFAULT NULL
) RETURNS void
    LANGUAGE c CALLED ON NULL INPUT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION alter_policy(text, text, text, text, interval, text, text, text, text, int, int, interval, int, interval[], boolean, timestamptz, boolean) IS
    'Changes the parameters that are given of a policy and leaves the others; the default of timeout stands for not given, NULL is refused. Workers follow when the transaction commits. paused => false also lets a restored policy go on. Errors: 42704 unknown policy; 42501 not its owner; those of create_policy().';
")]
#[allow(clippy::too_many_arguments)] // those of the SQL function
fn alter_policy(
    name: Option<&str>,
    deadline: Option<String>,
    predicate: Option<String>,
    cancel_function: Option<String>,
    timeout: Option<Interval>,
    time_zone: Option<String>,
    epoch: Option<String>,
    channel: Option<String>,
    notify: Option<String>,
    batch_size: Option<i32>,
    max_attempts: Option<i32>,
    retry_delay: Option<Interval>,
    max_rate: Option<i32>,
    remind_before: Option<Vec<Option<Interval>>>,
    remind_late: Option<bool>,
    starts_at: Option<TimestampWithTimeZone>,
    paused: Option<bool>,
) {
    installed::check();
    or_raise(given_timeout(timeout).and_then(|timeout| {
        let given = Definition {
            deadline,
            predicate,
            cancel_function,
            timeout,
            time_zone,
            epoch,
            channel,
            notify,
            batch_size,
            max_attempts,
            retry_delay,
            max_rate,
            remind_before,
            remind_late,
            starts_at: timestamp(starts_at),
        };
        change::alter(required(name)?, &given, paused)
    }));
}

/// A name that must be given.
fn required(name: Option<&str>) -> Result<&str, Error> {
    name.ok_or_else(|| PolicyError::NullName.into())
}

#[pgrx::pg_extern(sql = r"
CREATE FUNCTION drop_policy(name text) RETURNS void
    LANGUAGE c CALLED ON NULL INPUT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION drop_policy(text) IS
    'Removes a policy, its failures and counters; its events stay. A deadline index that pg_expiry has built goes too, after the commit, one that you have built stays. Errors: 42704 unknown policy; 42501 not its owner; 22004 name is NULL.';
")]
fn drop_policy(name: Option<&str>) {
    installed::check();
    or_raise(required(name).and_then(change::drop));
}

#[pgrx::pg_extern(sql = r"
CREATE FUNCTION pause(name text DEFAULT NULL) RETURNS void
    LANGUAGE c CALLED ON NULL INPUT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION pause(text) IS
    'Pauses a policy, or with NULL all that you may act for: nothing is cancelled until expiry.resume(). Survives restarts and dumps. Errors: 42704 unknown policy; 42501 not its owner.';
")]
fn pause(name: Option<&str>) {
    installed::check();
    or_raise(change::pause(name));
}

#[pgrx::pg_extern(sql = r"
CREATE FUNCTION resume(name text DEFAULT NULL) RETURNS void
    LANGUAGE c CALLED ON NULL INPUT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION resume(text) IS
    'Lets a policy go on that was paused or that came out of a dump or with a cloned database, or with NULL all that you may act for. Errors: 42704 unknown policy; 42501 not its owner; those of create_policy() if something that it needs is gone.';
")]
fn resume(name: Option<&str>) {
    installed::check();
    or_raise(change::resume(name));
}

#[allow(clippy::type_complexity)] // the shape of the rows, as pgrx wants it
#[pgrx::pg_extern(sql = false)]
fn preview(
    name: Option<&str>,
    max_rows: Option<i64>,
) -> TableIterator<
    'static,
    (name!(key, Jsonb), name!(deadline, Option<TimestampWithTimeZone>), name!(overdue, Option<Interval>)),
> {
    installed::check();
    let max_rows = max_rows.unwrap_or(100);
    if max_rows < 0 {
        Error::OutOfRange { parameter: "max_rows", value: max_rows.to_string() }.raise();
    }
    let policy = or_raise(required(name).and_then(policy::peek));
    TableIterator::new(
        due::rows(&policy, max_rows)
            .into_iter()
            .map(|row| (row.key, row.deadline.and_then(shown), row.overdue_us.and_then(interval))),
    )
}

#[allow(clippy::type_complexity)] // the shape of the row, as pgrx wants it
#[pgrx::pg_extern(sql = false)]
fn probe(
    name: &str,
) -> TableIterator<
    'static,
    (
        name!(state, &'static str),
        name!(reason, Option<String>),
        name!(backlog, Option<String>),
        name!(oldest_overdue, Option<Interval>),
        name!(next_deadline, Option<TimestampWithTimeZone>),
        name!(index_state, &'static str),
    ),
> {
    installed::check();
    let probe = match probe::of(name) {
        Err(Error::UnknownPolicy { .. }) => None,
        result => Some(or_raise(result)),
    };
    TableIterator::new(probe.into_iter().map(|probe| {
        (
            probe.state,
            probe.reason,
            probe.backlog.map(|count| count.to_string()),
            probe.oldest_overdue_us.and_then(interval),
            probe.next_deadline.and_then(shown),
            probe.index_state,
        )
    }))
}

fn shown(timestamp: Timestamp) -> Option<TimestampWithTimeZone> {
    timestamp.0.try_into().ok()
}

/// Hours beyond 24 stay hours, as when PostgreSQL extracts an epoch: a day is not always 24 of them.
fn interval(micros: i64) -> Option<Interval> {
    Interval::new(0, 0, micros).ok()
}
