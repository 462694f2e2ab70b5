//! What is due, looked at and not touched: the rows of `expiry.preview()`, the backlog that
//! `expiry.status` shows, the number that `create_policy()` tells. All with the owner's rights.

use pgrx::IntoDatum;
use pgrx::pg_sys;

use super::statements::{from, key_json};
use crate::pg::clock::{self, Timestamp};
use crate::pg::guc::with_settings;
use crate::pg::json::{self, Jsonb};
use crate::pg::spi::{self, Argument};
use crate::pg::{predicate, role};
use crate::policy::Policy;

/// A row that is due.
pub struct DueRow {
    pub key: Jsonb,
    /// NULL: -infinity, which is always due.
    pub deadline: Option<Timestamp>,
    pub overdue_us: Option<i64>,
}

/// The backlog counts to here and no further.
pub const COUNTED: i64 = 10_000;

/// How many rows are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Exactly(i64),
    MoreThanCounted,
    /// The planner's estimate.
    About(i64),
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(count) => write!(f, "{count}"),
            Self::MoreThanCounted => write!(f, "{COUNTED}+"),
            Self::About(count) => write!(f, "about {count}"),
        }
    }
}

/// The earliest deadlines among the rows that are due.
pub fn rows(policy: &Policy, max_rows: i64) -> Vec<DueRow> {
    let now = clock::now();
    let sql = format!(
        "SELECT {}, {} FROM {} WHERE {} ORDER BY pg_expiry_row.{} LIMIT $3",
        key_json(&policy.key),
        policy.deadline.instant(),
        from(policy),
        is_due(policy),
        policy.deadline.column_sql
    );
    let [floor, until] = bounds(policy, now);
    as_owner(policy, || {
        spi::query(&sql, &[floor, until, (pg_sys::INT8OID, max_rows.into_datum())], |row, n| {
            let deadline = row.get(n, 1).map(Timestamp).filter(|deadline| deadline.is_finite());
            DueRow {
                key: Jsonb(json::bytes(row.datum(n, 0).expect("a key is never NULL"))),
                deadline,
                overdue_us: deadline.map(|deadline| now.since(deadline)),
            }
        })
    })
}

/// Counts the rows that are due, [`COUNTED`] at most. Walks along the deadline index if there is one.
pub fn count(policy: &Policy) -> Count {
    count_until(policy, clock::now())
}

/// Counts the rows whose deadline is not later than `until`, as [`count`] does.
pub fn count_until(policy: &Policy, until: Timestamp) -> Count {
    let sql = format!(
        "SELECT pg_catalog.count(*) FROM (SELECT FROM {} WHERE {} LIMIT {}) AS pg_expiry_due",
        from(policy),
        is_due(policy),
        COUNTED + 1
    );
    let count =
        as_owner(policy, || spi::query(&sql, &bounds(policy, until), |row, n| row.expect::<i64>(n, 0)));
    match count.first().copied().unwrap_or_default() {
        count if count > COUNTED => Count::MoreThanCounted,
        count => Count::Exactly(count),
    }
}

/// [`count`] where that is quick, else what the planner thinks.
pub fn count_or_estimate(policy: &Policy) -> Count {
    /// A table that is read from memory in the blink of an eye.
    const SMALL_BYTES: i64 = 32 << 20;
    const SIZE: &str = "SELECT pg_catalog.sum(pg_catalog.pg_relation_size(t.relid))::pg_catalog.int8 \
                        FROM (SELECT $1 UNION SELECT p.relid FROM pg_catalog.pg_partition_tree($1) AS p) AS t (relid)";
    let relation = [(pg_sys::OIDOID, Some(policy.relation.into()))];
    let size =
        || spi::query(SIZE, &relation, |row, n| row.get::<i64>(n, 0)).into_iter().flatten().sum::<i64>();
    if policy.index.is_some() || as_owner(policy, size) < SMALL_BYTES {
        return count(policy);
    }
    let sql = format!("EXPLAIN (FORMAT JSON) SELECT FROM {} WHERE {}", from(policy), is_due(policy));
    let plan = as_owner(policy, || {
        spi::query(&sql, &bounds(policy, clock::now()), |row, n| row.expect::<pgrx::Json>(n, 0).0)
    });
    let rows = plan.first().and_then(|plan| plan.pointer("/0/Plan/Plan Rows")?.as_i64());
    Count::About(rows.unwrap_or_default())
}

/// The earliest deadline that has passed, and the next one to come. Without a valid index this reads
/// the whole table.
pub fn deadlines(policy: &Policy) -> (Option<Timestamp>, Option<Timestamp>) {
    let passed = format!(
        "SELECT {} FROM {} WHERE {} ORDER BY pg_expiry_row.{} LIMIT 1",
        policy.deadline.instant(),
        from(policy),
        is_due(policy),
        policy.deadline.column_sql
    );
    let next = format!(
        "SELECT {} FROM {} WHERE ({}) AND {} ORDER BY pg_expiry_row.{} LIMIT 1",
        policy.deadline.instant(),
        from(policy),
        policy.predicate,
        policy.deadline.is_later("$1"),
        policy.deadline.column_sql
    );
    let [floor, now] = bounds(policy, clock::now());
    as_owner(policy, || {
        let first = |sql: &str, arguments: &[(pg_sys::Oid, Argument)]| {
            spi::query(sql, arguments, |row, n| row.get::<i64>(n, 0)).pop().flatten().map(Timestamp)
        };
        (first(&passed, &[floor, now]), first(&next, &[now]))
    })
}

fn is_due(policy: &Policy) -> String {
    format!("({}) AND {}", policy.predicate, policy.deadline.is_due("$1", "$2"))
}

fn bounds(policy: &Policy, now: Timestamp) -> [(pg_sys::Oid, Argument); 2] {
    let floor = policy.starts_at.unwrap_or(Timestamp::NEGATIVE_INFINITY);
    [floor, now].map(|instant| (pg_sys::TIMESTAMPTZOID, Some(instant.datum())))
}

/// Runs `f` so that the statements above walk along the deadline index, which exists, whatever the planner
/// thinks: statistics may be old, and the table large.
pub fn along_the_index<R>(f: impl FnOnce() -> R) -> R {
    with_settings(&[("enable_seqscan", "off"), ("enable_bitmapscan", "off"), ("enable_sort", "off")], f)
}

/// As the worker's own statements run, but with any plan.
pub fn as_owner<R>(policy: &Policy, f: impl FnOnce() -> R) -> R {
    let settings = [
        ("search_path", predicate::PINNED_SEARCH_PATH),
        ("TimeZone", policy.deadline.zone()),
        ("row_security", "off"),
    ];
    with_settings(&settings, || role::looking_as(policy.owner, f))
}
