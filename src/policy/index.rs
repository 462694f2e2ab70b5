//! Which deadline index a policy has: a btree whose first column is the deadline column and whose
//! predicate says the same as the policy's, made by anybody.

use pgrx::IntoDatum;
use pgrx::pg_sys::{self, Oid};

use super::Policy;
use crate::pg::{catalog, predicate, role};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexState {
    Valid(Oid),
    /// Somebody is building it at this moment.
    Building(Oid),
    /// A build was interrupted.
    Invalid(Oid),
    Missing,
}

impl IndexState {
    /// As `expiry.status` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Valid(_) => "valid",
            Self::Building(_) => "building",
            Self::Invalid(_) => "invalid",
            Self::Missing => "missing",
        }
    }
}

/// Indexes in the order of the deadline column, those that can be used first. Ascending or descending
/// is the same; the place of NULLs is not.
const CANDIDATES: &str = "\
SELECT i.indexrelid, i.indisvalid,
       EXISTS (SELECT FROM pg_stat_progress_create_index s WHERE s.index_relid = i.indexrelid),
       i.indpred::text
FROM pg_index i
JOIN pg_class x ON x.oid = i.indexrelid AND x.relam = 403
JOIN pg_opclass c ON c.oid = i.indclass[0] AND c.opcdefault
WHERE i.indrelid = $1 AND i.indkey[0] = $2 AND i.indoption[0] IN (0, 3)
ORDER BY i.indisvalid DESC, i.indexrelid";

/// Takes no lock.
pub fn find(policy: &Policy) -> IndexState {
    let arguments = [
        (pg_sys::OIDOID, Some(policy.relation.into())),
        (pg_sys::INT2OID, policy.deadline_column.into_datum()),
    ];
    let indexes: Vec<(Oid, bool, bool, Option<String>)> = catalog::read(CANDIDATES, &arguments, |row, n| {
        (row.expect(n, 0), row.expect(n, 1), row.expect(n, 2), row.get(n, 3))
    });
    let fitting = indexes.into_iter().filter(|(_, _, _, condition)| {
        // Proofs evaluate operators, which may be a user's.
        role::looking_as(policy.owner, || {
            predicate::is_equivalent(Some(&policy.predicate_tree), condition.as_deref())
        })
    });
    fitting
        .map(|(index, is_valid, is_in_progress, _)| match (is_valid, is_in_progress) {
            (true, _) => IndexState::Valid(index),
            (false, true) => IndexState::Building(index),
            (false, false) => IndexState::Invalid(index),
        })
        .next()
        .unwrap_or(IndexState::Missing)
}
