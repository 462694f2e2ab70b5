//! Loading: what the engine gets. Renames are followed here, and written down.

use pgrx::pg_sys::Oid;

use super::definition::Definition;
use super::index::{self, IndexState};
use super::relation::Relation;
use super::resolve::resolve;
use super::stored::{self, Stored};
use super::{Loaded, Policy};
use crate::error::{Error, PolicyError};
use crate::pg::caught::PgError;
use crate::pg::{catalog, role, xact};

/// The policy of this name; `None`: there is none, or its relation is gone.
pub fn load(name: &str) -> Option<Loaded> {
    stored::named(name).map(|stored| load_stored(stored, !catalog::is_read_only()))
}

/// Every policy on relations of this owner. Forgets those whose relation has been dropped.
pub fn load_all_of(owner: Oid) -> Vec<(String, Loaded)> {
    stored::forget_dropped();
    stored::all_of(Some(owner))
        .into_iter()
        .map(|stored| (stored.name.clone(), load_stored(stored, !catalog::is_read_only())))
        .collect()
}

/// Owners of relations with a policy that is neither paused nor restored.
pub fn owners() -> Vec<Oid> {
    const OWNERS: &str = "\
        SELECT DISTINCT c.relowner FROM expiry.policy p JOIN pg_class c ON c.oid = p.relation
        WHERE NOT p.paused AND EXISTS (SELECT FROM expiry.binding b WHERE b.policy = p.name AND b.database = $1)";
    let arguments = [(pgrx::pg_sys::OIDOID, Some(catalog::database().into()))];
    catalog::read(OWNERS, &arguments, |row, n| row.expect(n, 0))
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
        Ok(Ok((policy, IndexState::Valid(_)))) => Loaded::Ready(Box::new(policy)),
        Ok(Ok((policy, _))) => Loaded::Indexing(Box::new(policy)),
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

/// Raises unless the policy exists and the current user may act for the owner of its relation.
pub fn check_may_act_for(name: &str) {
    if let Err(error) = authorized(name) {
        error.raise();
    }
}

/// The policy, if the current user may act for the owner of its relation.
pub(super) fn authorized(name: &str) -> Result<(Stored, Relation), Error> {
    let unknown = || Error::UnknownPolicy { name: name.into() };
    let stored = stored::named(name).ok_or_else(unknown)?;
    let relation = Relation::find(stored.relation).ok_or_else(unknown)?;
    if !role::may_act_for(relation.owner) {
        return Err(Error::NotPolicyOwner { name: name.into(), owner: relation.owner_name });
    }
    Ok((stored, relation))
}

/// Every policy whose owner the current user may act for, by name.
pub fn names_that_one_may_act_for() -> Vec<String> {
    stored::all_of(None)
        .into_iter()
        .filter(|stored| Relation::find(stored.relation).is_some_and(|r| role::may_act_for(r.owner)))
        .map(|stored| stored.name)
        .collect()
}
