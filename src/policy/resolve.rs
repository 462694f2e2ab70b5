//! From what is stored, or asked for, to a policy that works: every name looked up, everything checked.
//!
//! Where a name stands decides how it is read. The caller's own words: by the caller's search path.
//! What we have stored: by number if its binding is of this database, so that renames are followed,
//! else by its qualified name. A setting: in the relation's schema.

use pgrx::pg_sys::Oid;

use super::definition::Definition;
use super::key;
use super::relation::{Column, Relation};
use super::stored::{Binding, Stored};
use super::{CancelFunction, KeyColumn, Policy, deadline, function, predicate};
use crate::error::PolicyError;
use crate::pg::caught::PgError;
use crate::pg::predicate::PINNED_SEARCH_PATH;
use crate::pg::{guc, role, xact};
use crate::settings;

/// A policy that has been checked, and the row that belongs to it: names of today, and the binding.
pub struct Resolved {
    pub policy: Policy,
    pub stored: Stored,
}

/// Where a text comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Caller,
    Stored,
    Setting,
}

/// Resolves `stored`. What the caller has said in this very call is in `given`, and stored already.
pub fn resolve(relation: &Relation, mut stored: Stored, given: &Definition) -> Result<Resolved, PolicyError> {
    relation.check_kind()?;
    relation.check_owner_rights()?;
    let values = stored.definition.values()?;
    let key = key::find(relation)?;
    let bound = stored.binding.take().unwrap_or_default();

    let column = resolve_deadline(relation, &stored, &bound, given)?;
    let rule = deadline::rule(column, &values, given)?;
    let predicate = predicate::resolve(relation, &stored, &bound, given)?;
    let (function, function_owner, function_schema) =
        resolve_function(relation, &key, &stored, &bound, given)?;

    let binding = Binding {
        deadline_column: stored.definition.deadline.as_ref().map(|_| column.number),
        predicate_tree: stored.definition.predicate.as_ref().map(|_| predicate.tree.clone()),
        predicate_columns: stored.definition.predicate.as_ref().map(|_| predicate.columns),
        function: stored.definition.cancel_function.as_ref().map(|_| function.oid),
        function_owner: stored.definition.cancel_function.as_ref().map(|_| function_owner),
        is_valid: true,
    };
    let names = &mut stored.definition;
    set_if_given(&mut names.deadline, &column.name);
    set_if_given(&mut names.predicate, &predicate.sql);
    set_if_given(&mut names.cancel_function, &function.identity);
    stored.owner_name.clone_from(&relation.owner_name);
    stored.binding = Some(binding);

    let policy = Policy {
        name: stored.name.clone(),
        relation: relation.oid,
        relation_sql: relation.sql.clone(),
        is_partitioned: relation.is_partitioned(),
        owner: relation.owner,
        search_path: search_path(&relation.schema, &function_schema),
        deadline: rule,
        deadline_column: column.number,
        predicate: predicate.sql,
        predicate_tree: predicate.tree,
        key,
        function,
        channel: values.channel,
        notify: values.notify,
        batch_size: values.batch_size,
        max_attempts: values.max_attempts,
        retry_delay_ms: values.retry_delay_ms,
        max_rate: values.max_rate,
        remind_before_us: values.remind_before_us,
        remind_late: values.remind_late,
        starts_at: values.starts_at,
        index: None,
    };
    Ok(Resolved { policy, stored })
}

/// The schemas of relation and function; the temporary one last, so that nothing in it hides them.
fn search_path(relation_schema: &str, function_schema: &str) -> String {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    if relation_schema == function_schema {
        return format!("{}, pg_temp", quoted(relation_schema));
    }
    format!("{}, {}, pg_temp", quoted(relation_schema), quoted(function_schema))
}

fn set_if_given(name: &mut Option<String>, today: &str) {
    if let Some(name) = name {
        today.clone_into(name);
    }
}

/// The text of a parameter that every policy must have, and where it comes from.
pub(super) fn text_of(
    parameter: &'static str,
    given: Option<&String>,
    stored: Option<&String>,
    setting: fn() -> Option<String>,
) -> Result<(String, Origin), PolicyError> {
    match (stored, given) {
        (Some(text), Some(_)) => Ok((text.clone(), Origin::Caller)),
        (Some(text), None) => Ok((text.clone(), Origin::Stored)),
        (None, _) => {
            setting().map(|text| (text, Origin::Setting)).ok_or(PolicyError::MissingArgument { parameter })
        }
    }
}

/// Runs `f` with the search path that texts of this origin are read by, and with the rights of the
/// owner: what he may not see is not found, and what is evaluated on the way is evaluated as he.
pub(super) fn reading<R>(origin: Origin, relation: &Relation, f: impl FnOnce() -> R) -> R {
    let path = match origin {
        Origin::Caller => return role::looking_as(relation.owner, f),
        Origin::Stored => PINNED_SEARCH_PATH.to_owned(),
        Origin::Setting => search_path(&relation.schema, &relation.schema),
    };
    // In whatever session it is read, it means the same.
    let settings = [
        ("search_path", path.as_str()),
        ("TimeZone", "UTC"),
        ("DateStyle", "ISO, YMD"),
        ("IntervalStyle", "postgres"),
    ];
    guc::with_settings(&settings, || role::looking_as(relation.owner, f))
}

fn resolve_deadline<'a>(
    relation: &'a Relation,
    stored: &Stored,
    bound: &Binding,
    given: &Definition,
) -> Result<&'a Column, PolicyError> {
    let (text, origin) = text_of(
        "deadline",
        given.deadline.as_ref(),
        stored.definition.deadline.as_ref(),
        settings::deadline,
    )?;
    match (origin, bound.deadline_column) {
        // Column numbers survive pg_upgrade.
        (Origin::Stored, Some(number)) => relation
            .column(number)
            .ok_or(PolicyError::UnknownColumn { relation: relation.sql.clone(), column: text }),
        _ => deadline::column(relation, &text),
    }
}

/// Runs what the parser may refuse; trouble of the server itself is raised on.
pub(super) fn attempt<R>(f: impl FnOnce() -> R) -> Result<R, PgError> {
    xact::subtransaction(f).map_err(|error| {
        // XX000: "cache lookup failed" for what has just been dropped. 55P03: locked by another.
        if error.is_about_input() || ["XX000", "55P03"].contains(&error.sqlstate.as_str()) {
            return error;
        }
        error.raise()
    })
}

/// The function, its owner, and its schema.
fn resolve_function(
    relation: &Relation,
    key: &[KeyColumn],
    stored: &Stored,
    bound: &Binding,
    given: &Definition,
) -> Result<(CancelFunction, Oid, String), PolicyError> {
    let (text, origin) = text_of(
        "cancel_function",
        given.cancel_function.as_ref(),
        stored.definition.cancel_function.as_ref(),
        settings::cancel_function,
    )?;
    let is_bound = origin == Origin::Stored && bound.is_valid;
    if let (true, Some(oid)) = (is_bound, bound.function)
        && let Some(candidate) = function::candidates(vec![oid], relation.owner).pop()
    {
        let function = candidate.check(relation, key)?;
        return Ok((function, candidate.owner, candidate.schema));
    }
    let (candidate, function) = reading(origin, relation, || function::look_up(&text, relation, key))?;
    // Made anew under its name: by somebody who could replace it before, or could run as the owner
    // anyway, or else by a stranger who may create functions in that schema.
    let is_trusted = || {
        Some(candidate.owner) == bound.function_owner
            || candidate.owner == relation.owner
            || role::has_rights_of(candidate.owner, relation.owner)
    };
    if is_bound && bound.function.is_some() && !is_trusted() {
        return Err(PolicyError::FunctionReplaced {
            identity: candidate.identity,
            function_owner: candidate.owner_name,
        });
    }
    Ok((function, candidate.owner, candidate.schema))
}
