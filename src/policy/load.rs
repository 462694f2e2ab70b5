//! Loading: what the engine gets. Renames are followed here, and written down.

use pgrx::pg_sys::Oid;

use super::built_index;
use super::definition::Definition;
use super::index::{self, IndexState};
use super::relation::Relation;
use super::resolve::resolve;
use super::stored::{self, Stored};
use super::{Loaded, Policy};
use crate::error::{Error, PolicyError};
use crate::pg::caught::PgError;
use crate::pg::{catalog, role, wake, xact};

/// The policy of this name; `None`: there is none, or its relation is gone.
pub fn load(name: &str) -> Option<Loaded> {
    stored::named(name).map(|stored| load_stored(stored, !catalog::is_read_only()))
}

/// Every policy on relations of this owner. Forgets those whose relation has been dropped.
pub fn load_all_of(owner: Oid) -> Vec<(String, Loaded)> {
    stored::forget_dropped();
    stored::forget_leftovers();
    if stored::pass_on(owner) {
        // The new owner may need a worker.
        wake::at_commit();
    }
    stored::all_of(Some(owner))
        .into_iter()
        .map(|stored| (stored.name.clone(), load_stored(stored, !catalog::is_read_only())))
        .collect()
}

/// Owners of relations with a policy that is neither paused nor restored, or with an index of a dropped
/// policy that is still to be dropped.
pub fn owners() -> Vec<Oid> {
    const OWNERS: &str = "\
        SELECT DISTINCT c.relowner FROM expiry.policy p JOIN pg_class c ON c.oid = p.relation
        WHERE NOT p.paused AND EXISTS (
            SELECT FROM expiry.binding b
            WHERE b.policy = p.name AND expiry.is_bound_here(b.database, b.system_identifier, b.server_version))
        UNION
        SELECT c.relowner FROM expiry.binding b JOIN pg_class c ON c.oid = b.index
        WHERE expiry.is_bound_here(b.database, b.system_identifier, b.server_version) AND NOT EXISTS (SELECT FROM expiry.policy p WHERE p.name = b.policy)";
    catalog::read(OWNERS, &[], |row, n| row.expect(n, 0))
}

/// What loading `stored` comes to; with `follows`, names of today are written down.
pub(super) fn load_stored(stored: Stored, follows: bool) -> Loaded {
    if stored.binding.is_none() {
        return Loaded::Restored;
    }
    if stored.is_paused {
        return Loaded::Paused;
    }
    // One policy in trouble is its own trouble.
    let loaded = xact::subtransaction(|| ready(stored, follows));
    match loaded {
        Ok(Ok((policy, IndexState::Valid(index)))) => {
            Loaded::Ready(Box::new(Policy { index: Some(index), ..policy }))
        }
        Ok(Ok((policy, _))) => match built_index::recent_failure(&policy.name) {
            Some(error) => Loaded::Stopped(error),
            None => Loaded::Indexing(Box::new(policy)),
        },
        Ok(Err(error)) => Loaded::Stopped(PgError::from(Error::from(error))),
        Err(error) if error.is_about_input() || error.sqlstate == "XX000" => Loaded::Stopped(error),
        Err(error) => error.raise(),
    }
}

fn ready(stored: Stored, follows: bool) -> Result<(Policy, IndexState), PolicyError> {
    let relation = Relation::find(stored.relation).ok_or(PolicyError::UnknownRelation)?;
    relation.check_partitions(false)?;
    let resolved = resolve(&relation, stored.clone(), &Definition::default())?;
    if follows && resolved.stored.names_differ_from(&stored) {
        stored::update_names(&resolved.stored);
    }
    let state = index::find(&resolved.policy);
    Ok((resolved.policy, state))
}

/// Names of policies, or of former ones, with an index of ours that they do not use any more: to be
/// passed to the index builder, which drops it.
pub fn with_spare_index(loaded: &[(String, Loaded)]) -> Vec<String> {
    let is_spare = |built: &built_index::Binding| {
        !built.has_policy
            || loaded.iter().any(|(name, loaded)| {
                *name == built.policy
                    && matches!(loaded, Loaded::Ready(policy) if policy.index != Some(built.index))
            })
    };
    built_index::bindings().into_iter().filter(is_spare).map(|built| built.policy).collect()
}

/// The policy as it would be worked on, paused and restored ones too; changes nothing.
pub fn peek(name: &str) -> Result<Policy, Error> {
    let (stored, relation) = authorized(name)?;
    Ok(resolve(&relation, stored, &Definition::default())?.policy)
}

/// What loading would come to, and the policy as far as it can be had; changes nothing. For whoever may
/// act for the owner, and for pg_monitor.
pub fn look(name: &str) -> Result<(Loaded, Option<Policy>), Error> {
    let (stored, relation) = match authorized(name) {
        Err(Error::NotPolicyOwner { .. }) if role::may_act_for(role::PG_MONITOR) => found(name)?,
        result => result?,
    };
    match load_stored(stored.clone(), false) {
        Loaded::Ready(policy) => Ok((Loaded::Ready(policy.clone()), Some(*policy))),
        Loaded::Indexing(policy) => Ok((Loaded::Indexing(policy.clone()), Some(*policy))),
        loaded => {
            let resolved = xact::subtransaction(|| resolve(&relation, stored, &Definition::default()));
            Ok((loaded, resolved.ok().and_then(Result::ok).map(|resolved| resolved.policy)))
        }
    }
}

/// Raises unless the policy exists and the current user may act for the owner of its relation.
pub fn check_may_act_for(name: &str) {
    if let Err(error) = authorized(name) {
        error.raise();
    }
}

/// The policy, if the current user may act for the owner of its relation.
pub(super) fn authorized(name: &str) -> Result<(Stored, Relation), Error> {
    let (stored, relation) = found(name)?;
    if !role::may_act_for_owner_of(relation.oid) {
        return Err(Error::NotPolicyOwner { name: name.into(), owner: relation.owner_name });
    }
    Ok((stored, relation))
}

fn found(name: &str) -> Result<(Stored, Relation), Error> {
    let unknown = || Error::UnknownPolicy { name: name.into() };
    let stored = stored::named(name).ok_or_else(unknown)?;
    let relation = Relation::find(stored.relation).ok_or_else(unknown)?;
    Ok((stored, relation))
}

/// Every policy whose owner the current user may act for, by name.
pub fn names_that_one_may_act_for() -> Vec<String> {
    stored::all_of(None)
        .into_iter()
        .filter(|stored| role::may_act_for_owner_of(stored.relation))
        .map(|stored| stored.name)
        .collect()
}
