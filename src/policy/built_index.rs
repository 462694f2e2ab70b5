//! What is known of the deadline index that we have built for a policy, or are building: kept in
//! `expiry.binding`, where it outlives the policy until the index is gone too.

use pgrx::pg_sys::{self, Oid};

use crate::pg::caught::PgError;
use crate::pg::clock::Timestamp;
use crate::pg::spi::text;
use crate::pg::{catalog, clock};
use crate::rules::backoff;

/// An index of ours that exists.
#[derive(Clone, Debug)]
pub struct BuiltIndex {
    pub oid: Oid,
    /// Qualified and quoted.
    pub sql: String,
    pub is_partitioned: bool,
    /// Whether another policy on the same relation may be using it.
    pub is_shared: bool,
}

/// By its number, or while it is being built by its name.
const OURS: &str = "\
SELECT x.oid, format('%I.%I', n.nspname, x.relname), x.relkind = 'I',
       EXISTS (SELECT FROM expiry.policy o WHERE o.relation = i.indrelid AND o.name <> b.policy)
FROM expiry.binding b LEFT JOIN expiry.policy p ON p.name = b.policy, pg_index i
JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_namespace n ON n.oid = x.relnamespace
WHERE b.policy = $1 AND expiry.is_bound_here(b.database, b.system_identifier, b.server_version)
  AND (i.indexrelid = b.index OR i.indrelid = p.relation AND x.relname = b.index_name)
ORDER BY i.indexrelid = b.index DESC";

fn named(name: &str) -> [(Oid, Option<pg_sys::Datum>); 1] {
    [(pg_sys::TEXTOID, text(name))]
}

/// All indexes of ours that belong to this policy; more than one after the policy has changed.
pub fn all_of(policy: &str) -> Vec<BuiltIndex> {
    catalog::read(OURS, &named(policy), |row, n| BuiltIndex {
        oid: row.expect(n, 0),
        sql: row.expect(n, 1),
        is_partitioned: row.expect(n, 2),
        is_shared: row.expect(n, 3),
    })
}

/// To be written down before a build begins.
pub fn note_begin(policy: &str, index_name: &str) {
    catalog::write(
        "UPDATE expiry.binding SET index_name = $2 WHERE policy = $1",
        &[(pg_sys::TEXTOID, text(policy)), (pg_sys::TEXTOID, text(index_name))],
    );
}

/// `index` is the one that we keep for the policy, if any; nothing is being built any more.
pub fn note_end(policy: &str, index: Option<Oid>) {
    catalog::write(
        "UPDATE expiry.binding SET index = $2, index_name = NULL, build_failures = 0, build_failed_at = NULL, build_error = NULL
         WHERE policy = $1",
        &[(pg_sys::TEXTOID, text(policy)), (pg_sys::OIDOID, index.map(Into::into))],
    );
}

pub fn note_failure(policy: &str, error: &PgError) {
    catalog::write(
        "UPDATE expiry.binding SET build_failures = build_failures + 1, build_failed_at = $2, build_error = $3
         WHERE policy = $1",
        &[
            (pg_sys::TEXTOID, text(policy)),
            (pg_sys::TIMESTAMPTZOID, Some(clock::now().datum())),
            (pg_sys::TEXTOID, text(&format!("{} {}", error.sqlstate, error.message))),
        ],
    );
}

/// The error of the last build, if it is too early for another.
pub fn recent_failure(policy: &str) -> Option<PgError> {
    const FIRST_US: i64 = 5_000_000;
    const FAILURE: &str = "SELECT build_failures, build_failed_at, build_error FROM expiry.binding b
                           WHERE policy = $1 AND build_failures > 0
                             AND expiry.is_bound_here(b.database, b.system_identifier, b.server_version)";
    let failure = catalog::read(FAILURE, &named(policy), |row, n| {
        (row.expect::<i32>(n, 0), Timestamp(row.expect(n, 1)), row.expect::<String>(n, 2))
    });
    let (failures, failed_at, error) = failure.into_iter().next()?;
    let wait_us = backoff::wait_us(FIRST_US, failures.unsigned_abs(), 0);
    let passed_us = clock::now().since(failed_at);
    let (sqlstate, message) = error.split_once(' ')?;
    (0..wait_us).contains(&passed_us).then(|| {
        PgError::new(sqlstate, format!("the deadline index could not be built: {message}"))
            .with_hint("It is tried again by and by; expiry.resume() tries it at once.")
    })
}

/// Leaves an index that others may be using to one of them.
pub fn hand_over(policy: &str, index: Oid) {
    const HAND_OVER: &str = "\
        UPDATE expiry.binding SET index = $2 WHERE policy = (
            SELECT o.name FROM expiry.policy o JOIN expiry.binding b ON b.policy = o.name
            JOIN pg_index i ON i.indrelid = o.relation
            WHERE i.indexrelid = $2 AND o.name <> $1 AND b.index IS NULL
              AND expiry.is_bound_here(b.database, b.system_identifier, b.server_version)
            ORDER BY o.name LIMIT 1)";
    let [policy] = named(policy);
    catalog::write(HAND_OVER, &[policy, (pg_sys::OIDOID, Some(index.into()))]);
}

/// An index of ours and the policy, or former policy, for which it was built.
pub struct Binding {
    pub policy: String,
    pub index: Oid,
    pub has_policy: bool,
}

/// All indexes of ours that exist. Forgets former policies whose index does not.
pub fn bindings() -> Vec<Binding> {
    const GONE: &str = "\
        SELECT b.policy FROM expiry.binding b
        WHERE NOT EXISTS (SELECT FROM expiry.policy p WHERE p.name = b.policy)
          AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indexrelid = b.index
              AND expiry.is_bound_here(b.database, b.system_identifier, b.server_version))";
    const BINDINGS: &str = "\
        SELECT b.policy, b.index, EXISTS (SELECT FROM expiry.policy p WHERE p.name = b.policy)
        FROM expiry.binding b JOIN pg_index i ON i.indexrelid = b.index
        WHERE expiry.is_bound_here(b.database, b.system_identifier, b.server_version)";
    for policy in catalog::read(GONE, &[], |row, n| row.expect::<String>(n, 0)) {
        forget(&policy);
    }
    catalog::read(BINDINGS, &[], |row, n| Binding {
        policy: row.expect(n, 0),
        index: row.expect(n, 1),
        has_policy: row.expect(n, 2),
    })
}

/// Keeps nothing of a dropped policy but its index, if it has one of ours.
pub fn keep_only(policy: &str, index: Option<Oid>) {
    const KEEP: &str = "\
        UPDATE expiry.binding SET index = $2, index_name = NULL, predicate_tree = NULL, predicate_columns = NULL
        WHERE policy = $1";
    match index {
        Some(index) => {
            catalog::write(KEEP, &[(pg_sys::TEXTOID, text(policy)), (pg_sys::OIDOID, Some(index.into()))]);
        }
        None => forget(policy),
    }
}

/// What was kept for the sake of the index. Locked first: somebody may be making a policy of this name, whose
/// binding it is then, and only the next statement sees that.
pub fn forget(policy: &str) {
    const LOCK: &str = "SELECT FROM expiry.binding WHERE policy = $1 FOR UPDATE";
    const FORGET: &str = "\
        DELETE FROM expiry.binding b WHERE policy = $1
        AND NOT EXISTS (SELECT FROM expiry.policy p WHERE p.name = b.policy)";
    let name = [(pg_sys::TEXTOID, text(policy))];
    catalog::read(LOCK, &name, |_, _| ());
    catalog::write(FORGET, &name);
}
