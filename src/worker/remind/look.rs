//! What the reminders read of the user's rows, along the deadline index, as the owner and without a lock.

use pgrx::pg_sys;

use crate::pg::clock::Timestamp;
use crate::pg::spi::{Rows, Spi};
use crate::pg::{array, json};
use crate::policy::Policy;
use crate::worker::statements::{Kept, along_the_index, from, key_json, key_matches, next_sql, stated};
use crate::worker::waiting::Key;

pub struct Looks {
    zone: String,
    coming: Kept,
    next: Kept,
    still: Kept,
}

/// A row that is still pending, with a deadline that is still to come.
pub struct Coming {
    /// Its place among the keys that were asked for.
    pub position: usize,
    pub deadline: Timestamp,
    pub stated: Option<Timestamp>,
}

impl Looks {
    pub fn new(policy: &Policy) -> Self {
        let instants = [pg_sys::TIMESTAMPTZOID, pg_sys::TIMESTAMPTZOID];
        let with = |more| instants.iter().copied().chain([more]).collect();
        Self {
            zone: policy.deadline.zone().to_owned(),
            coming: Kept::new(coming_sql(policy), with(pg_sys::INT8OID)),
            next: Kept::new(next_sql(policy), vec![pg_sys::TIMESTAMPTZOID]),
            still: Kept::new(still_sql(policy), with(pg_sys::JSONBARRAYOID)),
        }
    }

    /// Pending rows with a deadline after the one instant and up to the other; and up to which deadline they
    /// are all. When there are more than `limit`, it is an earlier one: of rows with one and the same
    /// deadline it is all or none.
    pub fn coming(
        &self,
        spi: &Spi,
        after: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> (Vec<(Key, Timestamp)>, Timestamp) {
        if after >= until {
            return (Vec::new(), until);
        }
        let read = |until: Timestamp, limit: i64| {
            let from = after.plus_micros(1);
            let arguments = [Some(from.datum()), Some(until.datum()), Some(limit.into())];
            let rows = along_the_index(&self.zone, || self.coming.run(spi, &arguments));
            let row = |n| (json::bytes(rows.datum(n, 0).expect("a key is never NULL")), instant(&rows, n, 1));
            (0..rows.count).map(row).collect::<Vec<_>>()
        };
        let rows = read(until, i64::try_from(limit + 1).expect("a batch is far smaller"));
        if rows.len() <= limit {
            return (rows, until);
        }
        // Where the column is not in the order of the deadlines (see `rules::deadline`), others may be earlier.
        let until = rows[limit - 1].1;
        (read(until, i64::MAX), until)
    }

    /// The first deadline after this one, if any.
    pub fn next(&self, spi: &Spi, after: Timestamp) -> Option<Timestamp> {
        let rows = along_the_index(&self.zone, || self.next.run(spi, &[Some(after.datum())]));
        let next = (!rows.is_empty()).then(|| instant(&rows, 0, 0));
        next.filter(|deadline| deadline.is_finite())
    }

    /// Those of the keys whose row is pending with a deadline after the one instant and up to the other.
    pub fn still(&self, spi: &Spi, after: Timestamp, until: Timestamp, keys: &[Key]) -> Vec<Coming> {
        let keys: Vec<_> = keys.iter().map(|key| Some(json::from_bytes(key))).collect();
        let keys = array::of(pg_sys::JSONBOID, &keys);
        let arguments = [Some(after.plus_micros(1).datum()), Some(until.datum()), Some(keys)];
        let rows = along_the_index(&self.zone, || self.still.run(spi, &arguments));
        (0..rows.count)
            .map(|n| Coming {
                position: usize::try_from(rows.expect::<i64>(n, 0) - 1).expect("ordinality starts at 1"),
                deadline: instant(&rows, n, 1),
                stated: rows.datum(n, 2).map(|at| Timestamp(at.value() as i64)),
            })
            .collect()
    }
}

fn instant(rows: &Rows<'_>, row: usize, column: usize) -> Timestamp {
    rows.datum(row, column).map_or(Timestamp::INFINITY, |at| Timestamp(at.value() as i64))
}

fn coming_sql(policy: &Policy) -> String {
    format!(
        "SELECT {}, {} FROM {} WHERE ({}) AND {} ORDER BY pg_expiry_row.{} LIMIT $3",
        key_json(&policy.key),
        policy.deadline.instant(),
        from(policy),
        policy.predicate,
        policy.deadline.is_due("$1", "$2"),
        policy.deadline.column_sql,
    )
}

/// By the key, and only then by the rest: see `due_among` in `statements`.
fn still_sql(policy: &Policy) -> String {
    format!(
        "SELECT pg_expiry_asked.pg_expiry_n, pg_expiry_found.deadline, pg_expiry_found.stated \
         FROM unnest($3) WITH ORDINALITY AS pg_expiry_asked (key, pg_expiry_n), \
         LATERAL (SELECT ({}) AND {} AS is_coming, {} AS deadline, {} AS stated FROM {} WHERE {} OFFSET 0) AS pg_expiry_found \
         WHERE pg_expiry_found.is_coming",
        policy.predicate,
        policy.deadline.is_due("$1", "$2"),
        policy.deadline.instant(),
        stated(policy),
        from(policy),
        key_matches(policy, "pg_expiry_asked.key"),
    )
}
