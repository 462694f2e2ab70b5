//! The predicate of a policy: read as the user, or we ourselves, wrote it, or followed under the names of
//! today by the tree that was kept of it.

use super::definition::Definition;
use super::relation::{Column, Relation};
use super::resolve::{Origin, attempt, reading, text_of};
use super::stored::{Binding, Stored};
use crate::error::{Error, PolicyError};
use crate::pg::caught::PgError;
use crate::pg::predicate as parser;
use crate::pg::{catalog, guc, role};
use crate::settings;

/// How long a predicate that must be read again waits for whoever has locked the relation.
const LOCK_WAIT: &str = "100ms";

/// A predicate as text, and as parsed.
pub struct Predicate {
    pub sql: String,
    pub tree: String,
    /// Names of the columns in it.
    pub columns: Vec<String>,
}

/// The predicate of `stored`, read or followed.
pub fn resolve(
    relation: &Relation,
    stored: &Stored,
    bound: &Binding,
    given: &Definition,
) -> Result<Predicate, PolicyError> {
    let (text, origin) = text_of(
        "predicate",
        given.predicate.as_ref(),
        stored.definition.predicate.as_ref(),
        settings::predicate,
    )?;
    if let (Origin::Stored, true, Some(tree)) = (origin, bound.is_valid, &bound.predicate_tree) {
        return follow_predicate(relation, &text, tree, bound.predicate_columns.as_deref());
    }
    if origin == Origin::Caller {
        catalog::lock_shared(relation.oid);
    } else if !lock_soon(relation) {
        return Err(PolicyError::RelationBusy { relation: relation.sql.clone() });
    }
    parse_predicate(relation, &text, origin)
}

/// Parsing and writing back open the relation. A worker must not wait long for somebody who has
/// locked it, nor could it do anything with the rows.
fn lock_soon(relation: &Relation) -> bool {
    catalog::try_lock_shared(relation.oid)
        || attempt(|| {
            guc::with_settings(&[("lock_timeout", LOCK_WAIT)], || catalog::lock_shared(relation.oid));
        })
        .is_ok()
}

fn parse_predicate(relation: &Relation, text: &str, origin: Origin) -> Result<Predicate, PolicyError> {
    attempt(|| {
        let tree = reading(origin, relation, || parser::parse(relation.oid, text));
        write_predicate(relation, tree)
    })
    .map_err(|error| predicate_error(relation, text, error))
}

fn write_predicate(relation: &Relation, tree: String) -> Predicate {
    let sql = role::looking_as(relation.owner, || parser::deparse(relation.oid, &tree));
    let columns: Vec<&Column> =
        parser::columns_of(&tree).iter().filter_map(|column| relation.column(column.number)).collect();
    if let Some(column) = columns.iter().find(|column| column.is_virtual) {
        Error::from(PolicyError::VirtualColumn { column: column.name.clone() }).raise();
    }
    Predicate { sql, tree, columns: columns.iter().map(|column| column.name.clone()).collect() }
}

/// The predicate that was parsed before, under the names of today.
fn follow_predicate(
    relation: &Relation,
    text: &str,
    tree: &str,
    known_names: Option<&[String]>,
) -> Result<Predicate, PolicyError> {
    let read = attempt(|| parser::columns_of(tree));
    let columns = read.map_err(|error| predicate_error(relation, text, error))?;
    let today: Vec<Option<&Column>> = columns.iter().map(|column| relation.column(column.number)).collect();
    if let Some(gone) = today.iter().position(Option::is_none) {
        let name = known_names.and_then(|names| names.get(gone)).map_or(text, String::as_str);
        return Err(PolicyError::UnknownColumn { relation: relation.sql.clone(), column: name.into() });
    }
    let names: Vec<String> = today.iter().flatten().map(|column| column.name.clone()).collect();
    let has_types =
        columns.iter().zip(today.iter().flatten()).all(|(then, now)| then.type_oid == now.type_oid);
    if !lock_soon(relation) {
        if has_types && known_names == Some(names.as_slice()) {
            return Ok(Predicate { sql: text.into(), tree: tree.into(), columns: names });
        }
        return Err(PolicyError::RelationBusy { relation: relation.sql.clone() });
    }
    match attempt(|| write_predicate(relation, tree.into())) {
        Ok(predicate) if has_types => Ok(predicate),
        Ok(predicate) => parse_predicate(relation, &predicate.sql, Origin::Stored),
        // A function or type in it is gone; perhaps it is there again under its name.
        Err(_) => parse_predicate(relation, text, Origin::Stored),
    }
}

/// What the parser says, in the terms of a predicate: all that an index predicate may not have is one
/// kind of error to us.
fn predicate_error(relation: &Relation, text: &str, mut error: PgError) -> PolicyError {
    // Subqueries and set-returning functions, aggregates, window functions, other tables, parameters.
    if ["0A000", "42803", "42P20", "42P01", "42P02"].contains(&error.sqlstate.as_str()) {
        error.sqlstate = "42P17".into();
    }
    PolicyError::Predicate { relation: relation.sql.clone(), text: text.into(), error: Box::new(error) }
}
