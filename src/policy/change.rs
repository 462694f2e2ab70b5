//! Making, changing and removing policies: the rules behind the SQL functions. Whatever is refused is
//! refused before anything is written.

use pgrx::pg_sys::Oid;

use super::Policy;
use super::definition::Definition;
use super::index::{self, IndexState};
use super::load::{authorized, names_that_one_may_act_for};
use super::relation::Relation;
use super::resolve::resolve;
use super::stored::{self, Binding, Stored};
use crate::error::{Error, PolicyError};
use crate::pg::{catalog, role, wake};

/// Makes a policy; returns it, with the deadline index if there is one already.
pub fn create(
    relation: Option<Oid>,
    name: Option<String>,
    definition: Definition,
    is_paused: bool,
) -> Result<Policy, Error> {
    let oid = relation.ok_or(PolicyError::MissingRelation)?;
    let relation = Relation::find(oid).ok_or(PolicyError::UnknownRelation)?;
    relation.check_kind()?;
    relation.check_inheritance()?;
    check_ownership(&relation)?;
    // From here on nobody changes the relation under us, nor gives it to another.
    catalog::lock_shared(oid);
    let relation = Relation::find(oid).ok_or(PolicyError::UnknownRelation)?;
    check_ownership(&relation)?;
    relation.check_partitions(true)?;
    stored::forget_dropped();
    let stored = Stored {
        name: chosen_name(name, &relation)?,
        relation: oid,
        owner_name: relation.owner_name.clone(),
        definition: definition.clone(),
        is_paused,
        binding: Some(Binding::default()),
    };
    let resolved = resolve(&relation, stored, &definition)?;
    if !stored::insert(&resolved.stored) {
        return Err(PolicyError::DuplicateName { name: resolved.policy.name }.into());
    }
    wake::at_commit();
    let index = match index::find(&resolved.policy) {
        IndexState::Valid(index) => Some(index),
        _ => None,
    };
    Ok(Policy { index, ..resolved.policy })
}

fn check_ownership(relation: &Relation) -> Result<(), PolicyError> {
    if role::may_act_for_owner_of(relation.oid) {
        return Ok(());
    }
    Err(PolicyError::NotRelationOwner { relation: relation.sql.clone(), owner: relation.owner_name.clone() })
}

/// The name that was given, else the relation's, else, if a policy on another relation has that, the
/// qualified one.
fn chosen_name(given: Option<String>, relation: &Relation) -> Result<String, PolicyError> {
    let taken_by = |name: &str| stored::named(name).map(|stored| stored.relation);
    let name = match given {
        Some(name) => name,
        None if taken_by(&relation.name).is_some_and(|other| other != relation.oid) => {
            format!("{}.{}", relation.schema, relation.name)
        }
        None => relation.name.clone(),
    };
    if !(1..=63).contains(&name.len()) {
        return Err(PolicyError::InvalidValue {
            parameter: "name",
            value: name,
            hint: "The name of a policy has 1 to 63 bytes.",
        });
    }
    match taken_by(&name) {
        Some(_) => Err(PolicyError::DuplicateName { name }),
        None => Ok(name),
    }
}

/// Changes what is given, leaves the rest. A restored policy stays so unless it is unpaused with it.
pub fn alter(name: &str, given: &Definition, pause: Option<bool>) -> Result<(), Error> {
    stored::lock(name);
    if given.says_what_runs() {
        // As in `create`.
        catalog::lock_shared(authorized(name)?.1.oid);
    }
    let (mut stored, relation) = authorized(name)?;
    let is_restored = stored.binding.is_none();
    stored.definition = stored.definition.altered_by(given.clone());
    stored.is_paused = pause.unwrap_or(stored.is_paused);
    let mut stored = resolve(&relation, stored, given)?.stored;
    if is_restored {
        if pause == Some(false) {
            stored::continue_event_ids();
        } else {
            stored.binding = None;
        }
    }
    stored::update(&stored);
    wake::at_commit();
    Ok(())
}

/// Removes a policy; what it has recorded in `expiry.event` stays.
pub fn drop(name: &str) -> Result<(), Error> {
    stored::lock(name);
    authorized(name)?;
    stored::remove(name);
    wake::at_commit();
    Ok(())
}

/// Pauses one policy, or all that the current user may act for.
pub fn pause(name: Option<&str>) -> Result<(), Error> {
    for name in names(name) {
        stored::lock(&name);
        let (mut stored, _) = authorized(&name)?;
        stored.is_paused = true;
        stored::update(&stored);
    }
    wake::at_commit();
    Ok(())
}

/// Lets one policy go on, or all that the current user may act for; a restored one is tied to this
/// database. Of several, those that cannot work are told in a warning.
pub fn resume(name: Option<&str>) -> Result<(), Error> {
    let is_one = name.is_some();
    for name in names(name) {
        stored::lock(&name);
        let (mut stored, relation) = authorized(&name)?;
        stored.is_paused = false;
        if stored.binding.is_none() {
            stored::continue_event_ids();
        }
        match resolve(&relation, stored, &Definition::default()) {
            Ok(resolved) => stored::update(&resolved.stored),
            Err(error) if is_one => return Err(error.into()),
            Err(error) => {
                let error = crate::pg::caught::PgError::from(Error::from(error));
                pgrx::warning!("policy \"{name}\" cannot be resumed: {error}");
            }
        }
    }
    wake::at_commit();
    Ok(())
}

fn names(name: Option<&str>) -> Vec<String> {
    name.map_or_else(names_that_one_may_act_for, |name| vec![name.to_owned()])
}
