//! Builds deadline indexes, and drops those that we have built when they are not needed any more. Both
//! happen CONCURRENTLY and outside of any transaction of ours: no statement on the table waits.
//!
//! A partitioned table cannot do that as a whole. Its index is begun on the parent alone, built
//! CONCURRENTLY on each partition, and attached. Beginning and attaching need locks that a checkout would
//! wait for; they are asked for with a timeout of a few milliseconds, again and again.

use pgrx::pg_sys::{self, Oid};
use pgrx::{IntoDatum, PgSqlErrorCode};

use super::trouble::QUERY_CANCELED;
use crate::installed;
use crate::pg::caught::PgError;
use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::spi::text;
use crate::pg::{catalog, guc, latch, log, predicate, utility, wake, xact};
use crate::policy::built_index::{self, BuiltIndex};
use crate::policy::index::{self, IndexState};
use crate::policy::{self, Loaded, Policy};

/// For a lock that nobody who uses the table waits for while we do.
const PATIENT: &[(&str, &str)] = &[("search_path", predicate::PINNED_SEARCH_PATH), ("lock_timeout", "500ms")];
/// For a lock that others wait for behind us.
const BRIEF: &[(&str, &str)] = &[("search_path", predicate::PINNED_SEARCH_PATH), ("lock_timeout", "30ms")];
const ATTEMPTS: u32 = 20;
/// A build waits for older transactions as long as it takes, whatever the server's defaults are; but in a
/// deadlock it gives way.
const OF_THE_PROCESS: &[(&str, &str)] = &[
    ("lock_timeout", "0"),
    ("deadlock_timeout", "10ms"),
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    ("transaction_timeout", "0"),
];

/// What the index builder's process runs: builds the index of this policy, or drops what is left of
/// one that is gone. Connected as a superuser, outside of any transaction.
pub fn build_named(name: &str) {
    for (setting, value) in OF_THE_PROCESS {
        guc::set_for_session(setting, value);
    }
    let result = transaction(|| policy::load(name)).and_then(|loaded| match loaded {
        Some(Loaded::Ready(policy) | Loaded::Indexing(policy)) => build(&policy),
        Some(Loaded::Paused | Loaded::Restored | Loaded::Stopped(_)) => Ok(()),
        None => drop_orphan(name),
    });
    // Whoever wanted it asks again if something was in the way.
    match result {
        Err(error) if error.sqlstate == QUERY_CANCELED => {
            pgrx::log!("pg_expiry: deadline index of policy \"{name}\" gives way, and is tried again");
        }
        Err(error) if !is_busy(&error) && installed::is_served() => log::warning(
            PgSqlErrorCode::ERRCODE_WARNING,
            format!("pg_expiry: deadline index of policy \"{name}\": {error}"),
            Some("It is tried again by and by, and at once by expiry.resume()."),
        ),
        _ => {}
    }
}

/// Sees to it that the policy has a valid deadline index, and no other of ours. Done, or to be asked
/// again if somebody holds a lock; an error is noted, and keeps the policy stopped for a while.
pub fn build(policy: &Policy) -> Result<(), PgError> {
    match build_once(policy) {
        Err(error) if is_busy(&error) => Ok(()),
        Err(error) if error.sqlstate == QUERY_CANCELED => Err(error),
        Err(error) => {
            transaction(|| built_index::note_failure(&policy.name, &error))?;
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

/// Drops the indexes of all policies that have been dropped. For where there is no builder's process.
pub fn drop_orphans() -> Result<(), PgError> {
    let orphans = transaction(|| policy::with_spare_index(&[]))?;
    orphans.iter().try_for_each(|name| drop_orphan(name))
}

/// Drops the index of a policy that has been dropped.
fn drop_orphan(name: &str) -> Result<(), PgError> {
    for index in transaction(|| built_index::all_of(name))? {
        match drop(name, &index) {
            Err(error) if is_busy(&error) => return Ok(()),
            result => result?,
        }
    }
    transaction(|| built_index::forget(name))
}

fn build_once(policy: &Policy) -> Result<(), PgError> {
    let look = || transaction(|| (index::find(policy), built_index::all_of(&policy.name)));
    let (mut state, ours) = look()?;
    for index in ours {
        let is_wanted = match state {
            IndexState::Valid(oid) | IndexState::Building(oid) => oid == index.oid,
            IndexState::Invalid(oid) => oid == index.oid && index.is_partitioned,
            IndexState::Missing => false,
        };
        if !is_wanted {
            drop(&policy.name, &index)?;
        }
    }
    if !matches!(state, IndexState::Building(_) | IndexState::Valid(_)) {
        if policy.is_partitioned {
            build_partitioned(policy)?;
        } else {
            build_plain(policy)?;
        }
        state = look()?.0;
    }
    if let IndexState::Valid(oid) = state {
        transaction(|| {
            let is_ours = built_index::all_of(&policy.name).iter().any(|index| index.oid == oid);
            built_index::note_end(&policy.name, is_ours.then_some(oid));
            wake::at_commit();
        })?;
    }
    Ok(())
}

fn build_plain(policy: &Policy) -> Result<(), PgError> {
    let name = transaction(|| {
        let name = free_name(policy.relation, policy);
        built_index::note_begin(&policy.name, &name);
        name
    })?;
    build_concurrently(policy, policy.relation, &policy.relation_sql, &name)
}

fn build_partitioned(policy: &Policy) -> Result<(), PgError> {
    let begun = transaction(|| index::find(policy))?;
    if !matches!(begun, IndexState::Invalid(_)) {
        let name = transaction(|| {
            let name = free_name(policy.relation, policy);
            built_index::note_begin(&policy.name, &name);
            name
        })?;
        briefly(&create_sql("IF NOT EXISTS", &name, &format!("ONLY {}", policy.relation_sql), policy))?;
    }
    match transaction(|| index::find(policy))? {
        IndexState::Invalid(index) => complete(policy, policy.relation, index),
        // Without partitions it is valid at once.
        _ => Ok(()),
    }
}

/// A partition that has no index attached to `$2`: its number, name, whether it is partitioned itself,
/// and an index that could be attached: one like it, left by an earlier attempt.
const PARTITIONS: &str = "\
SELECT c.oid, format('%I.%I', n.nspname, c.relname), c.relkind = 'p',
       (SELECT format('%I.%I', n.nspname, x.relname) FROM pg_inherits a
        JOIN pg_index i ON i.indexrelid = a.inhrelid JOIN pg_class x ON x.oid = i.indexrelid
        WHERE a.inhparent = $2 AND i.indrelid = c.oid) IS NOT NULL,
       l.oid, l.sql, l.indisvalid
FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN LATERAL (
    SELECT x.oid, format('%I.%I', n.nspname, x.relname) AS sql, i.indisvalid
    FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid, pg_index p
    WHERE i.indrelid = c.oid AND p.indexrelid = $2 AND x.relam = 403 AND NOT i.indisunique AND i.indnatts = 1
      AND pg_get_indexdef(i.indexrelid, 1, false) = pg_get_indexdef(p.indexrelid, 1, false)
      AND i.indoption[0] = p.indoption[0] AND i.indclass[0] = p.indclass[0]
      AND pg_get_expr(i.indpred, i.indrelid) IS NOT DISTINCT FROM pg_get_expr(p.indpred, p.indrelid)
      AND NOT x.relispartition
      AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index s WHERE s.index_relid = i.indexrelid)
    ORDER BY i.indisvalid DESC, x.oid LIMIT 1) l ON true
WHERE h.inhparent = $1 AND c.relkind IN ('r', 'p') AND ($3 IS NULL OR c.oid = $3)
ORDER BY c.oid";

struct Partition {
    oid: Oid,
    sql: String,
    is_partitioned: bool,
    is_attached: bool,
    like: Option<(Oid, String, bool)>,
}

/// All partitions of `table`, or only that one.
fn partitions(table: Oid, index: Oid, only: Option<Oid>) -> Result<Vec<Partition>, PgError> {
    let arguments = [Some(table), Some(index), only].map(|oid| (pg_sys::OIDOID, oid.map(Into::into)));
    transaction(|| {
        catalog::read(PARTITIONS, &arguments, |row, n| Partition {
            oid: row.expect(n, 0),
            sql: row.expect(n, 1),
            is_partitioned: row.expect(n, 2),
            is_attached: row.expect(n, 3),
            like: row.get(n, 4).map(|oid| (oid, row.expect(n, 5), row.expect(n, 6))),
        })
    })
}

/// Builds what is missing below `index`, the index of the partitioned `table`, and attaches it.
fn complete(policy: &Policy, table: Oid, index: Oid) -> Result<(), PgError> {
    let index_sql = name_of(index)?;
    for partition in partitions(table, index, None)? {
        if partition.is_attached {
            continue;
        }
        xact::check_for_interrupts();
        let below = match &partition.like {
            Some((_, sql, true)) => sql.clone(),
            Some((oid, sql, false)) if partition.is_partitioned => {
                complete(policy, partition.oid, *oid)?;
                sql.clone()
            }
            leftover => {
                if let Some((_, sql, _)) = leftover {
                    utility::execute(PATIENT, &format!("DROP INDEX CONCURRENTLY IF EXISTS {sql}"))?;
                }
                build_below(policy, &partition, table, index)?
            }
        };
        briefly(&format!("ALTER INDEX {index_sql} ATTACH PARTITION {below}"))?;
    }
    Ok(())
}

fn build_below(policy: &Policy, partition: &Partition, table: Oid, index: Oid) -> Result<String, PgError> {
    let name = transaction(|| free_name(partition.oid, policy))?;
    if partition.is_partitioned {
        briefly(&create_sql("IF NOT EXISTS", &name, &format!("ONLY {}", partition.sql), policy))?;
    } else {
        build_concurrently(policy, partition.oid, &partition.sql, &name)?;
    }
    let built = partitions(table, index, Some(partition.oid))?.pop();
    let Some((oid, sql, _)) = built.and_then(|partition| partition.like) else {
        return Err(PgError::new("55006", format!("partition {} has changed meanwhile", partition.sql)));
    };
    if partition.is_partitioned {
        complete(policy, partition.oid, oid)?;
    }
    Ok(sql)
}

/// On a table, or on a partition. Giving way to somebody leaves an invalid index, which costs every statement
/// that writes; it is dropped at once, because after a DROP EXTENSION nothing is known of it any more.
fn build_concurrently(policy: &Policy, table: Oid, table_sql: &str, name: &str) -> Result<(), PgError> {
    let built = utility::execute(PATIENT, &create_sql("CONCURRENTLY IF NOT EXISTS", name, table_sql, policy));
    if matches!(&built, Err(error) if is_busy(error))
        && let Some(index) = transaction(|| unfinished(table, name))?
    {
        again_and_again(PATIENT, &format!("DROP INDEX CONCURRENTLY IF EXISTS {index}"))?;
    }
    built
}

/// The invalid index of this name, qualified and quoted.
fn unfinished(table: Oid, name: &str) -> Option<String> {
    const UNFINISHED: &str = "SELECT format('%I.%I', n.nspname, x.relname) FROM pg_index i
                              JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_namespace n ON n.oid = x.relnamespace
                              WHERE i.indrelid = $1 AND x.relname = $2 AND NOT i.indisvalid";
    let arguments = [(pg_sys::OIDOID, Some(table.into())), (pg_sys::TEXTOID, text(name))];
    catalog::read(UNFINISHED, &arguments, |row, n| row.expect(n, 0)).pop()
}

fn create_sql(how: &str, name: &str, on: &str, policy: &Policy) -> String {
    let mut sql = format!("CREATE INDEX {how} {} ON {on} ({})", quoted(name), policy.deadline.column_sql);
    if policy.predicate != "true" {
        sql += &format!(" WHERE {}", policy.predicate);
    }
    sql
}

/// Drops an index of ours, or leaves it to another policy that may be using it.
fn drop(policy: &str, index: &BuiltIndex) -> Result<(), PgError> {
    if index.is_shared {
        return transaction(|| built_index::hand_over(policy, index.oid));
    }
    if index.is_partitioned {
        return briefly(&format!("DROP INDEX IF EXISTS {}", index.sql));
    }
    utility::execute(PATIENT, &format!("DROP INDEX CONCURRENTLY IF EXISTS {}", index.sql))
}

/// A statement that checkouts wait for while it waits: tried often, each time for a moment.
fn briefly(sql: &str) -> Result<(), PgError> {
    again_and_again(BRIEF, sql)
}

fn again_and_again(settings: &[(&str, &str)], sql: &str) -> Result<(), PgError> {
    let mut attempt = 1;
    loop {
        match utility::execute(settings, sql) {
            Err(error) if is_busy(&error) && attempt < ATTEMPTS => {
                latch::pause(i64::from(20 * attempt));
                attempt += 1;
            }
            result => return result,
        }
    }
}

fn is_busy(error: &PgError) -> bool {
    matches!(error.sqlstate.as_str(), "55P03" | "40P01" | "55006")
}

fn transaction<R>(f: impl FnOnce() -> R) -> Result<R, PgError> {
    xact::in_transaction(BOOTSTRAP_SUPERUSER, f)
}

fn name_of(index: Oid) -> Result<String, PgError> {
    const NAME: &str = "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c
                        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1";
    let name = transaction(|| {
        catalog::read(NAME, &[(pg_sys::OIDOID, Some(index.into()))], |row, n| row.expect(n, 0)).pop()
    })?;
    name.ok_or_else(|| PgError::new("55006", "the index has been dropped meanwhile"))
}

/// `orders_pay_by_expiry_idx`, cut to what a name may hold, and numbered if it is taken.
fn free_name(table: Oid, policy: &Policy) -> String {
    const STEM: &str = "SELECT c.relname || '_' || a.attname, c.relnamespace FROM pg_class c, pg_attribute a
                        WHERE c.oid = $1 AND a.attrelid = $2 AND a.attnum = $3";
    const TAKEN: &str = "SELECT FROM pg_class WHERE relnamespace = $1 AND relname = $2";
    const SUFFIX: &str = "_expiry_idx";
    const LONGEST: usize = 63;
    let arguments = [
        (pg_sys::OIDOID, Some(table.into())),
        (pg_sys::OIDOID, Some(policy.relation.into())),
        (pg_sys::INT2OID, policy.deadline_column.into_datum()),
    ];
    let (stem, schema): (String, Oid) =
        catalog::read(STEM, &arguments, |row, n| (row.expect(n, 0), row.expect(n, 1)))
            .pop()
            .unwrap_or_else(|| (policy.name.clone(), Oid::INVALID));
    (0..)
        .map(|number| {
            let suffix = if number == 0 { SUFFIX.to_owned() } else { format!("{SUFFIX}{number}") };
            let mut length = stem.len().min(LONGEST - suffix.len());
            while !stem.is_char_boundary(length) {
                length -= 1;
            }
            format!("{}{suffix}", &stem[..length])
        })
        .find(|name| {
            let arguments = [(pg_sys::OIDOID, Some(schema.into())), (pg_sys::TEXTOID, text(name))];
            catalog::read(TAKEN, &arguments, |_, _| ()).is_empty()
        })
        .expect("numbers do not end")
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
