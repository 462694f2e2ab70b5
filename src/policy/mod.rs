//! A policy as a Rust value: loaded from `expiry.policy`, with every default filled in and every name
//! resolved, so that the engine asks the catalog nothing.

pub mod built_index;
pub mod change;
mod deadline;
pub mod definition;
mod function;
pub mod index;
mod key;
mod load;
mod predicate;
mod relation;
mod reminder;
mod resolve;
mod stored;

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::Oid;

use crate::pg::caught::PgError;
use crate::pg::clock::Timestamp;
use crate::pg::debug_point::{self, DebugPoint};
use crate::pg::guc::with_settings;
use crate::pg::spi::{self, Spi};
use crate::pg::{catalog, xact};
use crate::rules::deadline::DeadlineRule;

/// A policy that can be worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub name: String,
    pub relation: Oid,
    /// Qualified and quoted, as SQL needs it: `public.orders`, `"My Shop"."Order;Items"`.
    pub relation_sql: String,
    pub is_partitioned: bool,
    /// The relation's owner, with whose rights everything runs.
    pub owner: Oid,
    /// `search_path` of a call: the schemas of relation and function, quoted, and `pg_temp` last.
    pub search_path: String,
    pub deadline: DeadlineRule,
    /// Number of the deadline column.
    pub deadline_column: i16,
    /// Canonical: means the same wherever `search_path` is [`crate::pg::predicate::PINNED_SEARCH_PATH`].
    pub predicate: String,
    /// The predicate as parsed (pg_node_tree).
    pub predicate_tree: String,
    pub key: Vec<KeyColumn>,
    pub function: CancelFunction,
    pub channel: String,
    pub notify: Notify,
    pub batch_size: usize,
    pub max_attempts: u32,
    pub retry_delay_ms: i64,
    /// Rows a second; `None`: no limit.
    pub max_rate: Option<u32>,
    /// How long before the deadline reminders are given, the longest first.
    pub remind_before_us: Vec<i64>,
    /// Whether rows are reminded that begin within the interval already.
    pub remind_late: bool,
    pub starts_at: Option<Timestamp>,
    /// The deadline index, once it is valid.
    pub index: Option<Oid>,
}

impl Policy {
    /// Runs `f` in a transaction of its own, with the owner's rights and these settings, as all that runs statements
    /// of the policy does: none of them meets another table.
    pub fn in_transaction<R>(
        &self,
        settings: &[(&str, &str)],
        f: impl FnOnce(&Spi) -> R,
    ) -> Result<R, PgError> {
        xact::in_transaction(self.owner, || {
            with_settings(settings, || {
                debug_point::reach(DebugPoint::Begun);
                self.hold_name();
                spi::connected(f)
            })
        })
    }

    /// Keeps the relation's name until the end of the transaction. The statements know it by the name, which may be
    /// another table's since the policy was loaded: 40001, nobody's fault; it is loaded anew in a moment.
    fn hold_name(&self) {
        catalog::lock_shared(self.relation);
        if catalog::qualified_name(self.relation).as_deref() != Some(&self.relation_sql) {
            pgrx::ereport!(
                ERROR,
                PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
                format!("{} is not the relation of policy \"{}\" any more", self.relation_sql, self.name)
            );
        }
    }
}

/// A column of the relation's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyColumn {
    pub name: String,
    pub type_oid: Oid,
    /// The array type over `type_oid`.
    pub array_oid: Oid,
    /// The type as SQL needs it: `bigint`, `public.citext`.
    pub type_sql: String,
    /// The equality operator of the key's index, qualified: `OPERATOR(pg_catalog.=)`.
    pub equals_sql: String,
    /// Whether JSON carries it as a string: 64-bit integers and numerics, which JavaScript would round.
    pub is_json_string: bool,
}

/// The user's function, checked against the relation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CancelFunction {
    pub oid: Oid,
    /// Qualified name and argument types, as stored.
    pub identity: String,
    pub form: Form,
    pub returns: Returns,
    /// Types of the arguments as SQL needs them; a key column that has another type is cast to it.
    pub argument_types: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `f(relation%rowtype)`
    Row,
    /// `f(key columns...)`
    Key,
    /// `f(key[])`, once for the batch; only for keys of one column.
    Keys,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// void: done.
    Nothing,
    /// boolean: true is done; false and NULL are declined.
    Verdict,
    /// jsonb: done, and the event's data.
    Data,
    /// `key[]`, of the array form: the keys that it cancelled.
    Keys,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    Row,
    Batch,
    Off,
}

/// What loading a policy came to.
#[derive(Clone, Debug)]
pub enum Loaded {
    Ready(Box<Policy>),
    /// By `expiry.pause()`.
    Paused,
    /// It came out of a dump or with a cloned database, and nobody has resumed it yet.
    Restored,
    /// Its deadline index is not valid yet.
    Indexing(Box<Policy>),
    /// Something that it needs is gone: SQLSTATE and what to do.
    Stopped(PgError),
}

pub use load::{
    check_may_act_for, load, load_all_of, look, names_that_one_may_act_for, owners, peek, with_spare_index,
};
