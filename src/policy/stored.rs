//! Rows of `expiry.policy` and `expiry.binding`: reading and writing them, nothing more.

use pgrx::IntoDatum;
use pgrx::datum::Interval;
use pgrx::pg_sys::{self, Oid};

use super::built_index;
use super::definition::Definition;
use crate::pg::clock::Timestamp;
use crate::pg::spi::{Argument, Rows, text};
use crate::pg::{catalog, lock};

/// A policy as it is stored.
#[derive(Clone, Debug)]
pub struct Stored {
    pub name: String,
    pub relation: Oid,
    pub owner_name: String,
    pub definition: Definition,
    pub is_paused: bool,
    pub binding: Option<Binding>,
}

/// A row of `expiry.binding` that is of this database, see [`is_bound_here`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Binding {
    pub deadline_column: Option<i16>,
    pub predicate_tree: Option<String>,
    /// The columns in it, as the stored text spells them.
    pub predicate_columns: Option<Vec<String>>,
    pub function: Option<Oid>,
    pub function_owner: Option<Oid>,
    /// Of this cluster too: the numbers are valid. pg_upgrade keeps the database's number only.
    pub is_valid: bool,
}

const SELECT: &str = "\
SELECT p.name, p.relation::oid, p.owner::text, p.paused,
       p.deadline, p.predicate, p.cancel_function, p.timeout, p.time_zone, p.epoch, p.channel, p.notify,
       p.batch_size, p.max_attempts, p.retry_delay, p.max_rate, p.starts_at,
       b.policy IS NOT NULL, b.system_identifier = $1, b.deadline_column, b.predicate_tree,
       b.function, b.function_owner, b.predicate_columns, p.remind_before, p.remind_late
FROM expiry.policy p
JOIN pg_class c ON c.oid = p.relation
LEFT JOIN expiry.binding b
    ON b.policy = p.name AND expiry.is_bound_here(b.database, b.system_identifier, b.server_version)
WHERE ($2 IS NULL OR p.name = $2) AND ($3 IS NULL OR c.relowner = $3)
ORDER BY p.name";

fn select(name: Option<&str>, owner: Option<Oid>) -> Vec<Stored> {
    let arguments = [
        (pg_sys::INT8OID, catalog::system_identifier().into_datum()),
        (pg_sys::TEXTOID, name.and_then(text)),
        (pg_sys::OIDOID, owner.map(Into::into)),
    ];
    catalog::read(SELECT, &arguments, stored)
}

fn stored(row: &Rows<'_>, n: usize) -> Stored {
    Stored {
        name: row.expect(n, 0),
        relation: row.expect(n, 1),
        owner_name: row.expect(n, 2),
        is_paused: row.expect(n, 3),
        definition: Definition {
            deadline: row.get(n, 4),
            predicate: row.get(n, 5),
            cancel_function: row.get(n, 6),
            timeout: row.get(n, 7),
            time_zone: row.get(n, 8),
            epoch: row.get(n, 9),
            channel: row.get(n, 10),
            notify: row.get(n, 11),
            batch_size: row.get(n, 12),
            max_attempts: row.get(n, 13),
            retry_delay: row.get(n, 14),
            max_rate: row.get(n, 15),
            remind_before: row.get(n, 24),
            remind_late: row.get(n, 25),
            starts_at: row.get(n, 16).map(Timestamp),
        },
        binding: row.expect::<bool>(n, 17).then(|| Binding {
            is_valid: row.expect(n, 18),
            deadline_column: row.get(n, 19),
            predicate_tree: row.get(n, 20),
            function: row.get(n, 21),
            function_owner: row.get(n, 22),
            predicate_columns: row.get(n, 23),
        }),
    }
}

/// The policy of this name, if its relation still exists.
pub fn named(name: &str) -> Option<Stored> {
    select(Some(name), None).pop()
}

/// All policies on relations of this owner, or all there are.
pub fn all_of(owner: Option<Oid>) -> Vec<Stored> {
    select(None, owner)
}

/// Removes policies whose relation has been dropped. Writes nothing if there are none, and waits for
/// nobody: a worker calls it.
pub fn forget_dropped() {
    const DROPPED: &str = "SELECT name FROM expiry.policy p \
                           WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = p.relation) \
                           FOR UPDATE SKIP LOCKED";
    if catalog::is_read_only() {
        return;
    }
    for name in catalog::read(DROPPED, &[], |row, n| row.expect::<String>(n, 0)) {
        remove(&name);
    }
}

/// Removes what is kept about policies that are gone: a worker may have written it while they were being
/// dropped. A probe for each name, however many rows there are.
pub fn forget_leftovers() {
    const LEFTOVERS: &str = "\
        WITH RECURSIVE named (policy) AS (
            (SELECT policy FROM expiry.failure ORDER BY policy LIMIT 1)
            UNION ALL
            SELECT (SELECT f.policy FROM expiry.failure f WHERE f.policy > n.policy ORDER BY f.policy LIMIT 1)
            FROM named n WHERE n.policy IS NOT NULL)
        SELECT n.policy FROM (SELECT policy FROM named UNION SELECT policy FROM expiry.progress) n
        WHERE n.policy IS NOT NULL AND NOT EXISTS (SELECT FROM expiry.policy p WHERE p.name = n.policy)";
    if catalog::is_read_only() {
        return;
    }
    for name in catalog::read(LEFTOVERS, &[], |row, n| row.expect::<String>(n, 0)) {
        for table in TABLES_BESIDE {
            catalog::write(table, &[(pg_sys::TEXTOID, text(&name))]);
        }
    }
}

/// Only rows that nobody else is at.
const TABLES_BESIDE: [&str; 2] = [
    "DELETE FROM expiry.failure WHERE ctid = ANY (ARRAY(
         SELECT ctid FROM expiry.failure WHERE policy = $1 LIMIT 1000 FOR UPDATE SKIP LOCKED))",
    "DELETE FROM expiry.progress WHERE policy = (
         SELECT policy FROM expiry.progress WHERE policy = $1 FOR UPDATE SKIP LOCKED)",
];

/// Writes down who owns relations now that were this owner's; whether there are any.
pub fn pass_on(owner: Oid) -> bool {
    const PASSED_ON: &str = "\
        SELECT p.name, pg_get_userbyid(c.relowner)::text
        FROM expiry.policy p JOIN pg_class c ON c.oid = p.relation
        WHERE c.relowner <> $1 AND p.owner = pg_get_userbyid($1)
        FOR NO KEY UPDATE OF p SKIP LOCKED";
    if catalog::is_read_only() {
        return false;
    }
    let passed_on: Vec<(String, String)> =
        catalog::read(PASSED_ON, &[(pg_sys::OIDOID, Some(owner.into()))], |row, n| {
            (row.expect(n, 0), row.expect(n, 1))
        });
    for (name, owner) in &passed_on {
        let arguments = [(pg_sys::TEXTOID, text(name)), (pg_sys::TEXTOID, text(owner))];
        catalog::write("UPDATE expiry.policy SET owner = $2 WHERE name = $1", &arguments);
    }
    !passed_on.is_empty()
}

/// Removes a policy with all that is kept about it; its events stay, and an index of ours until it is
/// dropped too. Failures first, as the worker writes them.
pub fn remove(name: &str) {
    let index = built_index::all_of(name).first().map(|index| index.oid);
    for statement in [
        "DELETE FROM expiry.policy WHERE name = $1",
        "DELETE FROM expiry.failure WHERE policy = $1",
        "DELETE FROM expiry.progress WHERE policy = $1",
        "DELETE FROM expiry.reminder WHERE policy = $1",
        "DELETE FROM expiry.reminded WHERE policy = $1",
    ] {
        catalog::write(statement, &[(pg_sys::TEXTOID, text(name))]);
    }
    built_index::keep_only(name, index);
}

fn values(definition: &Definition) -> Vec<(Oid, Argument)> {
    let d = definition.clone();
    let string = |value: Option<String>| (pg_sys::TEXTOID, value.into_datum());
    let interval = |value: Option<Interval>| (pg_sys::INTERVALOID, value.into_datum());
    let number = |value: Option<i32>| (pg_sys::INT4OID, value.into_datum());
    vec![
        string(d.deadline),
        string(d.predicate),
        string(d.cancel_function),
        interval(d.timeout),
        string(d.time_zone),
        string(d.epoch),
        string(d.channel),
        string(d.notify),
        number(d.batch_size),
        number(d.max_attempts),
        interval(d.retry_delay),
        number(d.max_rate),
        (pg_sys::TIMESTAMPTZOID, d.starts_at.map(Timestamp::datum)),
        (pg_sys::INTERVALARRAYOID, d.remind_before.into_datum()),
        (pg_sys::BOOLOID, d.remind_late.into_datum()),
    ]
}

/// Stores a new policy; `false`: the name is taken, perhaps by a transaction that committed just now.
pub fn insert(policy: &Stored) -> bool {
    let mut arguments = vec![
        (pg_sys::TEXTOID, text(&policy.name)),
        (pg_sys::OIDOID, Some(policy.relation.into())),
        (pg_sys::TEXTOID, text(&policy.owner_name)),
        (pg_sys::BOOLOID, Some(policy.is_paused.into())),
    ];
    arguments.extend(values(&policy.definition));
    let is_new = catalog::write(
        "INSERT INTO expiry.policy (name, relation, owner, paused, deadline, predicate, cancel_function, timeout,
                time_zone, epoch, channel, notify, batch_size, max_attempts, retry_delay, max_rate, starts_at,
                remind_before, remind_late)
         VALUES ($1, $2::regclass, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
         ON CONFLICT DO NOTHING",
        &arguments,
    ) == 1;
    if is_new && let Some(binding) = &policy.binding {
        bind(&policy.name, binding);
    }
    is_new
}

/// Writes definition, owner and pause of a policy. A row that another transaction is just changing is
/// waited for.
pub fn update(policy: &Stored) {
    let mut arguments = vec![
        (pg_sys::TEXTOID, text(&policy.name)),
        (pg_sys::TEXTOID, text(&policy.owner_name)),
        (pg_sys::BOOLOID, Some(policy.is_paused.into())),
    ];
    arguments.extend(values(&policy.definition));
    catalog::write(
        "UPDATE expiry.policy SET owner = $2, paused = $3, deadline = $4, predicate = $5, cancel_function = $6,
                timeout = $7, time_zone = $8, epoch = $9, channel = $10, notify = $11, batch_size = $12,
                max_attempts = $13, retry_delay = $14, max_rate = $15, starts_at = $16,
                remind_before = $17, remind_late = $18
         WHERE name = $1",
        &arguments,
    );
    if let Some(binding) = &policy.binding {
        bind(&policy.name, binding);
    }
}

/// Writes down the names that a policy's objects have today. Left for the next time if somebody else
/// is just changing the policy.
pub fn update_names(policy: &Stored) {
    let arguments = [
        (pg_sys::TEXTOID, text(&policy.name)),
        (pg_sys::TEXTOID, text(&policy.owner_name)),
        (pg_sys::TEXTOID, policy.definition.deadline.clone().into_datum()),
        (pg_sys::TEXTOID, policy.definition.predicate.clone().into_datum()),
        (pg_sys::TEXTOID, policy.definition.cancel_function.clone().into_datum()),
    ];
    let is_ours = catalog::write(
        "UPDATE expiry.policy SET owner = $2, deadline = $3, predicate = $4, cancel_function = $5
         WHERE name = (SELECT name FROM expiry.policy WHERE name = $1 FOR NO KEY UPDATE SKIP LOCKED)",
        &arguments,
    ) == 1;
    if is_ours && let Some(binding) = &policy.binding {
        bind(&policy.name, binding);
    }
}

/// Whether a row of `expiry.binding` is of this database, and not of another with the same number in
/// another cluster, which logical replication may have brought. Of an older server it came by pg_upgrade.
#[pgrx::pg_extern(sql = r"
CREATE FUNCTION is_bound_here(database oid, system_identifier bigint, server_version int) RETURNS boolean
    LANGUAGE c STRICT STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION is_bound_here(oid, bigint, int) IS
    'Internal: whether a row of expiry.binding is of this database in this cluster, or came with it by pg_upgrade.';
")]
fn is_bound_here(database: Oid, system_identifier: i64, server_version: i32) -> bool {
    database == catalog::database()
        && (system_identifier == catalog::system_identifier() || server_version < catalog::server_version())
}

/// Events that have come with a copy of the tables may be ahead of the sequence of their ids.
pub fn continue_event_ids() {
    const AHEAD: &str = "\
        SELECT e.id FROM (SELECT max(id) AS id FROM expiry.event) e, expiry.event_id_seq s
        WHERE e.id >= CASE WHEN s.is_called THEN s.last_value + 1 ELSE s.last_value END";
    let ahead = || catalog::read(AHEAD, &[], |row, n| row.expect::<i64>(n, 0)).pop();
    // Whoever draws ids holds this lock.
    if ahead().is_some()
        && let Some(events) = catalog::expiry_relation("event")
    {
        lock::exclusively(events);
        if let Some(last) = ahead() {
            let last = [(pg_sys::INT8OID, Some(last.into()))];
            catalog::read("SELECT setval('expiry.event_id_seq', $1)", &last, |_, _| ());
        }
    }
}

/// Ties a policy to this database and cluster. An index of ours stays, also of a policy of this name that
/// was dropped just now: whether it fits is the index builder's to see.
fn bind(name: &str, binding: &Binding) {
    catalog::write(
        "INSERT INTO expiry.binding AS b (policy, database, system_identifier, deadline_column, predicate_tree,
                predicate_columns, function, function_owner, server_version)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT (policy) DO UPDATE SET database = $2, system_identifier = $3, deadline_column = $4,
                predicate_tree = $5, predicate_columns = $6, function = $7, function_owner = $8, server_version = $9,
                index = CASE WHEN expiry.is_bound_here(b.database, b.system_identifier, b.server_version)
                             THEN b.index END,
                build_failures = 0, build_failed_at = NULL, build_error = NULL",
        &[
            (pg_sys::TEXTOID, text(name)),
            (pg_sys::OIDOID, Some(catalog::database().into())),
            (pg_sys::INT8OID, catalog::system_identifier().into_datum()),
            (pg_sys::INT2OID, binding.deadline_column.into_datum()),
            (pg_sys::TEXTOID, binding.predicate_tree.clone().into_datum()),
            (pg_sys::TEXTARRAYOID, binding.predicate_columns.clone().into_datum()),
            (pg_sys::OIDOID, binding.function.map(Into::into)),
            (pg_sys::OIDOID, binding.function_owner.map(Into::into)),
            (pg_sys::INT4OID, catalog::server_version().into_datum()),
        ],
    );
}

impl Stored {
    /// Whether names, or the numbers behind them, have changed since `other` was written.
    pub fn names_differ_from(&self, other: &Self) -> bool {
        let (one, two) = (&self.definition, &other.definition);
        self.owner_name != other.owner_name
            || self.binding != other.binding
            || one.deadline != two.deadline
            || one.predicate != two.predicate
            || one.cancel_function != two.cancel_function
    }
}

/// Makes other changes of this policy wait for the end of this transaction, and this one for theirs.
pub fn lock(name: &str) {
    const LOCK: &str = "SELECT FROM expiry.policy WHERE name = $1 FOR NO KEY UPDATE";
    catalog::read(LOCK, &[(pg_sys::TEXTOID, text(name))], |_, _| ());
}
