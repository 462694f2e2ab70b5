//! What can be wrong with a policy: refused by `create_policy` and `alter_policy`, and shown as the
//! reason when a policy that was right has stopped.

use pgrx::PgSqlErrorCode as Code;

use super::Parts;
use crate::pg::caught::{PgError, pack_sqlstate};

#[derive(Debug)]
pub enum PolicyError {
    MissingRelation,
    UnknownRelation,
    NullName,
    MissingArgument {
        parameter: &'static str,
    },
    /// The name is given as NULL.
    NullArgument {
        parameter: &'static str,
    },
    InvalidValue {
        parameter: &'static str,
        value: String,
        hint: &'static str,
    },
    DoesNotApply {
        parameter: &'static str,
        column: String,
        column_type: String,
        applies_to: &'static str,
    },
    DuplicateName {
        name: String,
    },
    WrongKind {
        relation: String,
        kind: &'static str,
    },
    HasInheritanceChildren {
        relation: String,
    },
    PartitionHasPolicy {
        relation: String,
        other: String,
        policy: String,
    },
    NotRelationOwner {
        relation: String,
        owner: String,
    },
    OwnerLacksRight {
        owner: String,
        right: &'static str,
        object: String,
    },
    RowSecurityForced {
        relation: String,
        owner: String,
    },
    UnknownColumn {
        relation: String,
        column: String,
    },
    ColumnType {
        column: String,
        column_type: String,
    },
    VirtualColumn {
        column: String,
    },
    NeedsTimeZone {
        column: String,
        column_type: String,
    },
    NeedsEpoch {
        column: String,
        column_type: String,
    },
    NoKey {
        relation: String,
    },
    Predicate {
        relation: String,
        text: String,
        error: Box<PgError>,
    },
    RelationBusy {
        relation: String,
    },
    UnknownFunction {
        text: String,
        detail: Option<String>,
        forms: String,
    },
    FunctionDoesNotFit {
        identity: String,
        forms: String,
    },
    AmbiguousFunction {
        text: String,
        candidates: String,
    },
    NotAFunction {
        identity: String,
        kind: &'static str,
    },
    TemporaryFunction {
        identity: String,
    },
    ReturnType {
        identity: String,
        returned: String,
        allowed: &'static str,
    },
    FunctionReplaced {
        identity: String,
        function_owner: String,
    },
}

impl PolicyError {
    pub(super) fn parts(&self) -> Parts {
        let (code, message) = self.primary();
        (code, message, self.detail(), self.hint())
    }

    fn primary(&self) -> (Code, String) {
        match self {
            Self::MissingRelation => {
                (Code::ERRCODE_NULL_VALUE_NOT_ALLOWED, "a policy needs a relation".into())
            }
            Self::NullName => {
                (Code::ERRCODE_NULL_VALUE_NOT_ALLOWED, "the name of a policy must not be NULL".into())
            }
            Self::UnknownRelation => (Code::ERRCODE_UNDEFINED_TABLE, "the relation does not exist".into()),
            Self::MissingArgument { parameter } => {
                (Code::ERRCODE_NULL_VALUE_NOT_ALLOWED, format!("a policy needs a {}", words(parameter)))
            }
            Self::NullArgument { parameter } => {
                (Code::ERRCODE_NULL_VALUE_NOT_ALLOWED, format!("{parameter} must not be NULL"))
            }
            Self::InvalidValue { parameter, value, .. } => {
                (Code::ERRCODE_INVALID_PARAMETER_VALUE, format!("invalid value for {parameter}: \"{value}\""))
            }
            Self::DoesNotApply { parameter, column, column_type, .. } => (
                Code::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("{parameter} does not apply to column \"{column}\" of type {column_type}"),
            ),
            Self::DuplicateName { name } => {
                (Code::ERRCODE_DUPLICATE_OBJECT, format!("policy \"{name}\" already exists"))
            }
            Self::WrongKind { relation, kind } => {
                (Code::ERRCODE_WRONG_OBJECT_TYPE, format!("{relation} is a {kind}, not a permanent table"))
            }
            Self::HasInheritanceChildren { relation } => {
                (Code::ERRCODE_WRONG_OBJECT_TYPE, format!("{relation} has tables that inherit from it"))
            }
            Self::PartitionHasPolicy { relation, .. } => (
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("rows of {relation} are under another policy already"),
            ),
            Self::NotRelationOwner { relation, .. } => {
                (Code::ERRCODE_INSUFFICIENT_PRIVILEGE, format!("must be owner of {relation}"))
            }
            Self::OwnerLacksRight { owner, right, object } => (
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("role \"{owner}\" lacks the right {right} on {object}"),
            ),
            Self::RowSecurityForced { relation, .. } => (
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("row-level security of {relation} hides rows from its owner"),
            ),
            Self::UnknownColumn { relation, column } => {
                (Code::ERRCODE_UNDEFINED_COLUMN, format!("column \"{column}\" of {relation} does not exist"))
            }
            Self::ColumnType { column, column_type } => (
                Code::ERRCODE_DATATYPE_MISMATCH,
                format!("column \"{column}\" of type {column_type} cannot be a deadline"),
            ),
            Self::VirtualColumn { column } => (
                Code::ERRCODE_INVALID_OBJECT_DEFINITION,
                format!("column \"{column}\" is a virtual generated column"),
            ),
            Self::NeedsTimeZone { column, column_type } => (
                Code::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("column \"{column}\" of type {column_type} needs a time_zone"),
            ),
            Self::NeedsEpoch { column, column_type } => (
                Code::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("column \"{column}\" of type {column_type} needs an epoch"),
            ),
            Self::NoKey { relation } => {
                (Code::ERRCODE_INVALID_COLUMN_REFERENCE, format!("{relation} has no usable key"))
            }
            Self::Predicate { error, .. } => {
                (Code::from(pack_sqlstate(&error.sqlstate)), format!("invalid predicate: {}", error.message))
            }
            Self::RelationBusy { relation } => {
                (Code::ERRCODE_LOCK_NOT_AVAILABLE, format!("{relation} is locked by another transaction"))
            }
            Self::UnknownFunction { text, .. } => {
                (Code::ERRCODE_UNDEFINED_FUNCTION, format!("cancel function \"{text}\" does not exist"))
            }
            Self::FunctionDoesNotFit { identity, .. } => (
                Code::ERRCODE_UNDEFINED_FUNCTION,
                format!("arguments of cancel function {identity} do not fit the relation's key"),
            ),
            Self::AmbiguousFunction { text, .. } => {
                (Code::ERRCODE_AMBIGUOUS_FUNCTION, format!("cancel function \"{text}\" is not unique"))
            }
            Self::NotAFunction { identity, kind } => {
                (Code::ERRCODE_WRONG_OBJECT_TYPE, format!("{identity} is {kind}, not a plain function"))
            }
            Self::TemporaryFunction { identity } => {
                (Code::ERRCODE_WRONG_OBJECT_TYPE, format!("{identity} is a temporary function"))
            }
            Self::ReturnType { identity, returned, .. } => (
                Code::ERRCODE_INVALID_FUNCTION_DEFINITION,
                format!("cancel function {identity} must not return {returned}"),
            ),
            Self::FunctionReplaced { identity, .. } => (
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("cancel function {identity} has been replaced by another role's"),
            ),
        }
    }

    fn detail(&self) -> Option<String> {
        match self {
            Self::PartitionHasPolicy { other, policy, .. } => {
                Some(format!("Policy \"{policy}\" is on {other}, which has the same rows."))
            }
            Self::NotRelationOwner { owner, .. } => {
                Some(format!("The relation is owned by role \"{owner}\"."))
            }
            Self::RowSecurityForced { owner, .. } => Some(format!(
                "FORCE ROW LEVEL SECURITY applies to role \"{owner}\", as whom the policy runs."
            )),
            Self::Predicate { text, error, .. } => {
                let detail = error.detail.as_deref().map_or(String::new(), |detail| format!("{detail} "));
                Some(format!("{detail}The predicate is: {text}"))
            }
            Self::UnknownFunction { detail, .. } => detail.clone(),
            Self::AmbiguousFunction { candidates, .. } => Some(format!("Candidates: {candidates}.")),
            Self::FunctionReplaced { function_owner, .. } => {
                Some(format!("It is owned by role \"{function_owner}\" now."))
            }
            _ => None,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::MissingRelation => "Give the table as first argument, as in create_policy('orders').".into(),
            Self::MissingArgument { parameter } => format!(
                "Give {parameter} => '...' or set pg_expiry.{parameter} with ALTER SYSTEM or ALTER DATABASE ... SET."
            ),
            Self::NullArgument { parameter } => format!(
                "Leave {parameter} out to follow the setting pg_expiry.{parameter}, or to leave it as it is."
            ),
            Self::InvalidValue { hint, .. } => (*hint).into(),
            Self::DoesNotApply { parameter, applies_to, .. } => {
                format!("Leave {parameter} out: it applies to {applies_to} columns only.")
            }
            Self::DuplicateName { .. } => {
                "Give another name, or change the policy with expiry.alter_policy().".into()
            }
            Self::WrongKind { .. } => {
                "A policy is made on the table that holds the rows, plain or partitioned.".into()
            }
            Self::HasInheritanceChildren { .. } => {
                "Its key does not reach into them. Make a policy on each of them, or use declarative partitioning."
                    .into()
            }
            Self::PartitionHasPolicy { .. } => {
                "Drop that policy first, or leave the rows to it: a partitioned table's policy serves all its partitions."
                    .into()
            }
            Self::RowSecurityForced { relation, owner } => {
                format!("ALTER TABLE {relation} NO FORCE ROW LEVEL SECURITY, or ALTER ROLE {owner} BYPASSRLS.")
            }
            Self::OwnerLacksRight { owner, right, object } => format!("GRANT {right} ON {object} TO {owner}."),
            Self::ColumnType { .. } => {
                "A deadline is a timestamptz, or a timestamp or date with time_zone, or a bigint or integer with epoch."
                    .into()
            }
            Self::VirtualColumn { .. } => "No index can have it. A stored generated column can serve.".into(),
            Self::NeedsTimeZone { .. } => {
                "Give time_zone => 'Europe/Berlin' or the like, or set pg_expiry.time_zone. A date means the end of that day."
                    .into()
            }
            Self::NeedsEpoch { .. } => {
                "Give epoch => 's' or epoch => 'ms', or set pg_expiry.epoch: the unit since 1970-01-01 00:00 UTC.".into()
            }
            Self::NoKey { .. } => {
                "Add a primary key, or a unique index on NOT NULL columns that is neither partial nor deferrable nor on expressions."
                    .into()
            }
            Self::Predicate { relation, .. } => format!(
                "A predicate is a condition on the columns of {relation} alone, as for a partial index, such as status = 'pending'. What other tables say is the cancel function's to check."
            ),
            Self::UnknownFunction { forms, .. } | Self::FunctionDoesNotFit { forms, .. } => {
                format!("A cancel function is one of: {forms}.")
            }
            Self::AmbiguousFunction { .. } => "Give the argument types too, as in 'cancel_order(bigint)'.".into(),
            Self::NotAFunction { kind, .. } if *kind == "a procedure" => {
                "A procedure could commit in between. Make it a function; a function may call others.".into()
            }
            Self::TemporaryFunction { .. } => "Workers are other sessions. Create it in another schema.".into(),
            Self::ReturnType { allowed, .. } => format!("It may return {allowed}."),
            Self::FunctionReplaced { .. } => {
                "Check it, then name it again with expiry.alter_policy().".into()
            }
            Self::NotRelationOwner { .. }
            | Self::UnknownRelation
            | Self::NullName
            | Self::UnknownColumn { .. }
            | Self::RelationBusy { .. }
            | Self::NotAFunction { .. } => return None,
        };
        Some(hint)
    }
}

/// `cancel_function` as words.
fn words(parameter: &str) -> String {
    parameter.replace('_', " ")
}
