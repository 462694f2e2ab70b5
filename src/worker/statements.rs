//! The three statements of a policy: claim, settle, and the look at the next deadline. Their text
//! depends on the policy alone; their plans are kept.
//!
//! They run under the owner's identity with [`settings`]: `pg_catalog` alone on the search path, no
//! session's time zone, and no plan but the walk along the deadline index.

use std::cell::OnceCell;

use pgrx::pg_sys;
use pgrx::pg_sys::Oid;

use crate::pg::guc::with_settings;
use crate::pg::spi::{Argument, Plan, Rows, Spi};
use crate::policy::{Form, KeyColumn, Policy};
use crate::rules::deadline::literal;

/// The name by which the statements call the row; no column may have it.
const ROW: &str = "pg_expiry_row";

/// Columns of a claim before the key columns.
pub const KEY_JSON: usize = 0;
pub const DEADLINE: usize = 1;
pub const STATED: usize = 2;
pub const FIRST_KEY: usize = 3;

/// Which due rows a claim takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// In deadline order.
    All,
    /// In deadline order, passing over rows that wait.
    NotWaiting,
    /// The latest deadline first, passing over rows that wait: to see whether anything works.
    Youngest,
}

pub struct Statements {
    zone: String,
    claim: Kept,
    claim_excluding: Kept,
    probe: Kept,
    next: Kept,
    settle: Kept,
    settle_quickly: Option<Kept>,
    recheck: Kept,
    oldest: Kept,
}

/// A statement whose plan is kept.
pub struct Kept {
    sql: String,
    types: Vec<Oid>,
    plan: OnceCell<Plan>,
}

impl Kept {
    pub fn new(sql: String, types: Vec<Oid>) -> Self {
        Self { sql, types, plan: OnceCell::new() }
    }

    pub fn run<'spi>(&self, spi: &'spi Spi, arguments: &[Argument]) -> Rows<'spi> {
        spi.run(self.plan.get_or_init(|| spi.prepare(&self.sql, &self.types)), arguments)
    }
}

impl Statements {
    pub fn new(policy: &Policy) -> Self {
        let instants = vec![pg_sys::TIMESTAMPTZOID, pg_sys::TIMESTAMPTZOID, pg_sys::INT8OID];
        Self {
            zone: policy.deadline.zone().to_owned(),
            claim: Kept::new(claim_sql(policy, false, "ASC"), instants.clone()),
            claim_excluding: Kept::new(claim_sql(policy, true, "ASC"), instants.clone()),
            probe: Kept::new(claim_sql(policy, true, "DESC"), instants),
            recheck: Kept::new(recheck_sql(policy), vec![pg_sys::TIMESTAMPTZOID, pg_sys::JSONBARRAYOID]),
            next: Kept::new(next_sql(policy), vec![pg_sys::TIMESTAMPTZOID]),
            oldest: Kept::new(oldest_sql(policy), vec![pg_sys::TIMESTAMPTZOID, pg_sys::TIMESTAMPTZOID]),
            settle_quickly: settle_quickly_sql(policy)
                .map(|sql| Kept::new(sql, vec![pg_sys::TIMESTAMPTZOID, policy.key[0].array_oid])),
            settle: Kept::new(
                settle_sql(policy),
                std::iter::once(pg_sys::TIMESTAMPTZOID)
                    .chain(policy.key.iter().map(|column| column.array_oid))
                    .collect(),
            ),
        }
    }

    /// `$1` floor, `$2` now, `$3` most rows. Columns: key as jsonb, deadline, stated deadline, the key
    /// columns, then the function's arguments where they are not the key columns.
    pub fn claim<'spi>(&self, spi: &'spi Spi, which: Which, arguments: &[Argument]) -> Rows<'spi> {
        let statement = match which {
            Which::All => &self.claim,
            Which::NotWaiting => &self.claim_excluding,
            Which::Youngest => &self.probe,
        };
        self.along_the_index(|| statement.run(spi, arguments))
    }

    /// `$1` now, `$2` keys as jsonb. The positions (from 1) of the rows that are due.
    pub fn recheck<'spi>(&self, spi: &'spi Spi, arguments: &[Argument]) -> Rows<'spi> {
        self.along_the_index(|| self.recheck.run(spi, arguments))
    }

    /// `$1` now. The first deadline after it, if any.
    pub fn next<'spi>(&self, spi: &'spi Spi, arguments: &[Argument]) -> Rows<'spi> {
        self.along_the_index(|| self.next.run(spi, arguments))
    }

    /// `$1` floor, `$2` now. The first deadline between the two, of a row that does not wait, if any.
    pub fn oldest<'spi>(&self, spi: &'spi Spi, arguments: &[Argument]) -> Rows<'spi> {
        self.along_the_index(|| self.oldest.run(spi, arguments))
    }

    /// `$1` now, then an array for each key column. The positions (from 1) of the rows that are due.
    pub fn settle<'spi>(&self, spi: &'spi Spi, arguments: &[Argument]) -> Rows<'spi> {
        self.along_the_index(|| self.settle.run(spi, arguments))
    }

    /// `$1` now, `$2` an array of keys. Whether a row is due, without saying which; `None`: the key has more than
    /// one column.
    pub fn settle_quickly(&self, spi: &Spi, arguments: &[Argument]) -> Option<bool> {
        let statement = self.settle_quickly.as_ref()?;
        Some(self.along_the_index(|| !statement.run(spi, arguments).is_empty()))
    }

    fn along_the_index<R>(&self, f: impl FnOnce() -> R) -> R {
        along_the_index(&self.zone, f)
    }
}

/// With the settings that these statements need; `zone` is the deadline rule's.
pub fn along_the_index<R>(zone: &str, f: impl FnOnce() -> R) -> R {
    with_settings(
        &[
            ("search_path", "pg_catalog, pg_temp"),
            ("TimeZone", zone),
            ("row_security", "off"),
            ("plan_cache_mode", "force_generic_plan"),
            ("enable_seqscan", "off"),
            ("enable_bitmapscan", "off"),
            ("enable_sort", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("jit", "off"),
            ("max_parallel_workers_per_gather", "0"),
        ],
        f,
    )
}

/// The row's key as jsonb; 64-bit integers and numerics as strings.
pub fn key_json(key: &[KeyColumn]) -> String {
    let members: Vec<String> = key
        .iter()
        .map(|column| {
            let name = pgrx::spi::quote_identifier(&column.name);
            let value = if column.is_json_string {
                format!("{ROW}.{name}::pg_catalog.text")
            } else {
                format!("{ROW}.{name}")
            };
            format!("{}, {value}", literal(&column.name))
        })
        .collect();
    format!("pg_catalog.jsonb_build_object({})", members.join(", "))
}

/// The relation, under the name `pg_expiry_row`.
pub fn from(policy: &Policy) -> String {
    let only = if policy.is_partitioned { "" } else { "ONLY " };
    format!("{only}{} AS {ROW}", policy.relation_sql)
}

/// The deadline column itself where it is not the deadline, else NULL.
pub fn stated(policy: &Policy) -> String {
    if policy.deadline.timeout.is_zero() {
        "NULL::pg_catalog.timestamptz".to_owned()
    } else {
        policy.deadline.stated()
    }
}

fn claim_sql(policy: &Policy, excluding: bool, direction: &str) -> String {
    let key_json = key_json(&policy.key);
    let mut columns = vec![key_json.clone(), policy.deadline.instant(), stated(policy)];
    for column in &policy.key {
        columns.push(format!("{ROW}.{}", pgrx::spi::quote_identifier(&column.name)));
    }
    match policy.function.form {
        Form::Row => columns.push(ROW.to_owned()),
        Form::Key => columns.extend(policy.key.iter().zip(&policy.function.argument_types).map(
            |(column, type_sql)| format!("{ROW}.{}::{type_sql}", pgrx::spi::quote_identifier(&column.name)),
        )),
        Form::Keys => (),
    }
    let passes_over =
        if excluding { format!(" AND NOT expiry.is_waiting({key_json})") } else { String::new() };
    format!(
        "SELECT {} FROM {} WHERE ({}) AND {}{passes_over} ORDER BY {ROW}.{} {direction} LIMIT $3 FOR UPDATE OF {ROW} SKIP LOCKED",
        columns.join(", "),
        from(policy),
        policy.predicate,
        policy.deadline.is_due("$1", "$2"),
        policy.deadline.column_sql,
    )
}

/// `$1` an instant. The first deadline after it, if any.
pub fn next_sql(policy: &Policy) -> String {
    format!(
        "SELECT {} FROM {} WHERE ({}) AND {} ORDER BY {ROW}.{} LIMIT 1",
        policy.deadline.instant(),
        from(policy),
        policy.predicate,
        policy.deadline.is_later("$1"),
        policy.deadline.column_sql,
    )
}

fn oldest_sql(policy: &Policy) -> String {
    format!(
        "SELECT {} FROM {} WHERE ({}) AND {} AND NOT expiry.is_waiting({}) ORDER BY {ROW}.{} LIMIT 1",
        policy.deadline.instant(),
        from(policy),
        policy.predicate,
        policy.deadline.is_due("$1", "$2"),
        key_json(&policy.key),
        policy.deadline.column_sql,
    )
}

fn settle_sql(policy: &Policy) -> String {
    let arrays: Vec<String> = (0..policy.key.len()).map(|i| format!("${}", i + 2)).collect();
    let names: Vec<String> = (0..policy.key.len()).map(|i| format!("k{i}")).collect();
    let matches: Vec<String> = policy
        .key
        .iter()
        .zip(&names)
        .map(|(column, name)| {
            let column_name = pgrx::spi::quote_identifier(&column.name);
            format!("{ROW}.{column_name} {} pg_expiry_asked.{name}", column.equals_sql)
        })
        .collect();
    let asked = format!("ROWS FROM (unnest({}))", arrays.join(", "));
    due_among(policy, &asked, &names.join(", "), &matches.join(" AND "), "$1")
}

/// For nearly all batches, in which no row is left due: one walk along the key's index.
fn settle_quickly_sql(policy: &Policy) -> Option<String> {
    let [column] = &policy.key[..] else { return None };
    let matches =
        format!("{ROW}.{} {} ANY ($2)", pgrx::spi::quote_identifier(&column.name), column.equals_sql);
    Some(format!("SELECT FROM {} LIMIT 1", found_due(policy, &matches, "$1")))
}

fn recheck_sql(policy: &Policy) -> String {
    due_among(policy, "unnest($2)", "key", &key_matches(policy, "pg_expiry_asked.key"), "$1")
}

/// Whether the row's key is `key`, an SQL expression for what [`key_json`] gives; 64-bit integers may be
/// numbers too.
pub fn key_matches(policy: &Policy, key: &str) -> String {
    let matches: Vec<String> = policy
        .key
        .iter()
        .map(|column| {
            format!(
                "{ROW}.{} {} ({key} OPERATOR(pg_catalog.->>) {})::{}",
                pgrx::spi::quote_identifier(&column.name),
                column.equals_sql,
                literal(&column.name),
                column.type_sql
            )
        })
        .collect();
    matches.join(" AND ")
}

/// The positions (from 1) of those among `asked` whose row is due.
fn due_among(policy: &Policy, asked: &str, columns: &str, matches: &str, now: &str) -> String {
    format!(
        "SELECT pg_expiry_asked.pg_expiry_n FROM {asked} WITH ORDINALITY AS pg_expiry_asked ({columns}, pg_expiry_n), \
         LATERAL {}",
        found_due(policy, matches, now),
    )
}

/// What follows FROM: a row, without columns of use, for each row that `matches` and is due.
///
/// Each is looked up by its key, and only then is it seen whether it is due: a planner who knows the
/// condition in time may think that few rows are due, and walk over all of the backlog for every batch.
/// OFFSET 0 keeps it from him.
fn found_due(policy: &Policy, matches: &str, now: &str) -> String {
    format!(
        "(SELECT ({}) AND {} AS is_due FROM {} WHERE {matches} OFFSET 0) AS pg_expiry_found \
         WHERE pg_expiry_found.is_due",
        policy.predicate,
        policy.deadline.is_due("pg_catalog.timestamptz '-infinity'", now),
        from(policy),
    )
}
