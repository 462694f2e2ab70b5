//! The row that somebody asks about: found by its key, looked at as it is now, and left as it is.

use pgrx::pg_sys::{self, Datum, Oid};

use crate::error::Error;
use crate::pg::caught::PgError;
use crate::pg::clock::Timestamp;
use crate::pg::guc::with_settings;
use crate::pg::row_lock::{self, Holder};
use crate::pg::spi::{self, Argument};
use crate::pg::{array, catalog, json, predicate, xact};
use crate::policy::Policy;
use crate::rules::deadline::literal;
use crate::worker::due::as_owner;
use crate::worker::statements::{from, key_json};
use crate::worker::waiting::Key;

/// A question must not wait for an answer: how long for a lock on a partition.
const LOCK_WAIT: &str = "100ms";

pub struct Row {
    /// As in `expiry.event`.
    pub key: Key,
    pub is_pending: bool,
    /// NULL: none.
    pub deadline: Option<Timestamp>,
    /// The columns that the predicate speaks of, and what they hold, as SQL spells it.
    pub values: Vec<(String, String)>,
    pub holders: Vec<Holder>,
}

pub enum Looked {
    Found(Row),
    Missing,
    /// The relation, or a partition of it.
    TableIsLocked,
    /// The predicate cannot be evaluated.
    Fails(PgError),
}

/// The key as an object, whatever of its two forms it was given in; NULL if it is none of this relation.
const AS_OBJECT: &str = "\
SELECT CASE WHEN NOT EXISTS (SELECT FROM jsonb_object_keys(o.key) AS k(name) WHERE k.name <> ALL ($2))
             AND NOT EXISTS (SELECT FROM unnest($2) AS c(name) WHERE o.key ->> c.name IS NULL)
            THEN o.key END
FROM (SELECT CASE WHEN jsonb_typeof($1) = 'object' THEN $1
                  WHEN cardinality($2) = 1 THEN jsonb_build_object($2[1], $1) END AS key) o";

/// Finds the row with this key, a jsonb: the object of `expiry.event`, or of one column the bare value.
pub fn look(policy: &Policy, key: Option<Datum>) -> Result<Looked, Error> {
    let columns: Vec<Argument> = policy.key.iter().map(|column| spi::text(&column.name)).collect();
    let arguments =
        [(pg_sys::JSONBOID, key), (pg_sys::TEXTARRAYOID, Some(array::of(pg_sys::TEXTOID, &columns)))];
    let object = catalog::read(AS_OBJECT, &arguments, |row, n| row.datum(n, 0).map(json::bytes));
    let invalid = |reason: Option<String>| {
        let columns: Vec<&str> = policy.key.iter().map(|column| column.name.as_str()).collect();
        Error::InvalidKey { policy: policy.name.clone(), columns: columns.join(", "), reason }
    };
    let object = object.into_iter().next().flatten().ok_or_else(|| invalid(None))?;
    if !catalog::try_lock_shared(policy.relation) {
        return Ok(Looked::TableIsLocked);
    }
    let values: Vec<String> = policy
        .key
        .iter()
        .map(|column| format!("($1 OPERATOR(pg_catalog.->>) {})::{}", literal(&column.name), column.type_sql))
        .collect();
    // Input functions and casts may be a user's: as the owner.
    let read = xact::subtransaction(|| {
        as_owner(policy, || {
            let key = Some(json::from_bytes(&object));
            spi::query(&format!("SELECT {}", values.join(", ")), &[(pg_sys::JSONBOID, key)], |_, _| ());
        });
    });
    match read {
        Err(error) if error.is_about_input() || error.sqlstate.starts_with("23") => {
            return Err(invalid(Some(error.message)));
        }
        Err(error) => error.raise(),
        Ok(()) => (),
    }
    let columns = predicate_columns(policy);
    let found = xact::subtransaction(|| {
        with_settings(&[("lock_timeout", LOCK_WAIT)], || {
            as_owner(policy, || find(policy, &object, &values, columns))
        })
    });
    match found {
        Ok(Some(row)) => Ok(Looked::Found(row)),
        Ok(None) => Ok(Looked::Missing),
        Err(error) if error.sqlstate == "55P03" => Ok(Looked::TableIsLocked),
        Err(error) if error.is_about_input() => Ok(Looked::Fails(error)),
        Err(error) => error.raise(),
    }
}

fn find(policy: &Policy, key: &[u8], values: &[String], columns: Vec<String>) -> Option<Row> {
    let columns: Vec<String> = columns.iter().map(pgrx::spi::quote_identifier).collect();
    let spelled: Vec<String> = columns
        .iter()
        .map(|column| {
            format!("pg_catalog.quote_nullable(pg_catalog.left(pg_expiry_row.{column}::pg_catalog.text, 60))")
        })
        .collect();
    let matches: Vec<String> = policy
        .key
        .iter()
        .zip(values)
        .map(|(column, value)| {
            let name = pgrx::spi::quote_identifier(&column.name);
            format!("pg_expiry_row.{name} {} {value}", column.equals_sql)
        })
        .collect();
    let sql = format!(
        "SELECT {}, ({}) IS TRUE, {}, pg_expiry_row.ctid, pg_expiry_row.tableoid, ARRAY[{}]::pg_catalog.text[] FROM {} WHERE {}",
        key_json(&policy.key),
        policy.predicate,
        policy.deadline.instant(),
        spelled.join(", "),
        from(policy),
        matches.join(" AND "),
    );
    let key = Some(json::from_bytes(key));
    spi::query(&sql, &[(pg_sys::JSONBOID, key)], |row, n| {
        let tid = row.datum(n, 3).expect("a row of a table has a place");
        Row {
            key: json::bytes(row.datum(n, 0).expect("a key is never NULL")),
            is_pending: row.expect(n, 1),
            deadline: row.get(n, 2).map(Timestamp),
            values: columns.iter().cloned().zip(row.expect::<Vec<String>>(n, 5)).collect(),
            holders: row_lock::holders(row.expect::<Oid>(n, 4), tid),
        }
    })
    .pop()
}

fn predicate_columns(policy: &Policy) -> Vec<String> {
    const NAMES: &str = "\
        SELECT attname::text FROM pg_attribute WHERE attrelid = $1 AND attnum = ANY ($2) ORDER BY attnum";
    let numbers: Vec<Argument> = predicate::columns_of(&policy.predicate_tree)
        .iter()
        .map(|column| Some(Datum::from(column.number)))
        .collect();
    let arguments = [
        (pg_sys::OIDOID, Some(policy.relation.into())),
        (pg_sys::INT2ARRAYOID, Some(array::of(pg_sys::INT2OID, &numbers))),
    ];
    catalog::read(NAMES, &arguments, |row, n| row.expect(n, 0))
}
