//! Every error that a caller of the SQL surface can get. Each variant knows its SQLSTATE, its message
//! and what to do about it; a message follows PostgreSQL's error style guide.

mod policy;

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::panic::ErrorReport;

use crate::installed::SERVED;
use crate::pg::caught::{PgError, unpack_sqlstate};
use crate::rules::version::is_older;
pub use policy::PolicyError;

/// What a report consists of: SQLSTATE, message, detail, hint.
type Parts = (PgSqlErrorCode, String, Option<String>, Option<String>);

/// Refusals of the SQL surface. Nothing is stored when one is raised.
#[derive(Debug)]
pub enum Error {
    UnknownPolicy {
        name: String,
    },
    NotPolicyOwner {
        name: String,
        owner: String,
    },
    NoSuchRow {
        policy: String,
        key: String,
    },
    InTransactionBlock {
        procedure: &'static str,
    },
    UnknownConsumer {
        name: String,
    },
    DuplicateConsumer {
        name: String,
    },
    AckBeyondFetched {
        id: i64,
        fetched: i64,
    },
    FutureEvent {
        id: i64,
        last: i64,
    },
    NotPreloaded,
    /// The SQL objects of this database are not those that the library serves.
    OtherVersion {
        version: String,
        database: String,
    },
    OutOfRange {
        parameter: &'static str,
        value: String,
    },
    InvalidKey {
        policy: String,
        /// Those of the relation's key.
        columns: String,
        reason: Option<String>,
    },
    NotDatabaseOwner {
        name: String,
    },
    BoardIsFull,
    WorkersStayed,
    /// A policy that cannot be made, or can no longer work.
    Policy(PolicyError),
}

impl From<PolicyError> for Error {
    fn from(error: PolicyError) -> Self {
        Self::Policy(error)
    }
}

/// The same refusal as a value, for a policy that stops.
impl From<Error> for PgError {
    fn from(error: Error) -> Self {
        let (code, message, detail, hint) = error.parts();
        Self { sqlstate: unpack_sqlstate(code as i32), message, detail, hint }
    }
}

impl Error {
    fn parts(&self) -> Parts {
        use PgSqlErrorCode as Code;
        match self {
            Self::Policy(error) => error.parts(),
            Self::UnknownPolicy { name } => (
                Code::ERRCODE_UNDEFINED_OBJECT,
                format!("policy \"{name}\" does not exist"),
                None,
                Some("SELECT name FROM expiry.policy lists the policies that you may act for.".into()),
            ),
            Self::NotPolicyOwner { name, owner } => (
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("must be owner of the relation of policy \"{name}\""),
                Some(format!("The relation is owned by role \"{owner}\".")),
                None,
            ),
            Self::OutOfRange { parameter, value } => (
                Code::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("{value} is out of range for parameter \"{parameter}\""),
                None,
                None,
            ),
            Self::InvalidKey { policy, columns, reason } => (
                Code::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("invalid key for policy \"{policy}\""),
                Some(reason.as_ref().map_or_else(
                    || format!("The key is of these columns, none of them NULL: {columns}."),
                    |reason| format!("A value is not of its column's type: {reason}."),
                )),
                Some("Give it as in expiry.event, or of a key of one column the value alone.".into()),
            ),
            Self::NoSuchRow { policy, key } => (
                Code::ERRCODE_NO_DATA_FOUND,
                format!("policy \"{policy}\" has no row with key {key}"),
                None,
                Some("A key is a JSON object of the key columns by name, as in expiry.event.".into()),
            ),
            Self::InTransactionBlock { procedure } => (
                Code::ERRCODE_ACTIVE_SQL_TRANSACTION,
                format!("CALL expiry.{procedure}() cannot run inside a transaction block"),
                Some("It ends its transactions by itself.".into()),
                Some("Call it alone, not from a function, a DO block or between BEGIN and COMMIT.".into()),
            ),
            Self::UnknownConsumer { name } => (
                Code::ERRCODE_UNDEFINED_OBJECT,
                format!("consumer \"{name}\" does not exist"),
                None,
                Some("SELECT expiry.subscribe(name) makes one.".into()),
            ),
            Self::DuplicateConsumer { name } => (
                Code::ERRCODE_DUPLICATE_OBJECT,
                format!("consumer \"{name}\" already exists"),
                None,
                None,
            ),
            Self::AckBeyondFetched { id, fetched } => (
                Code::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("event {id} was not fetched yet"),
                Some(format!("The last event that this consumer fetched is {fetched}.")),
                Some("Acknowledge what fetch_events() has returned.".into()),
            ),
            Self::FutureEvent { id, last } => (
                Code::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("there has been no event {id} yet"),
                Some(format!("The last event id that was given out is {last}.")),
                Some("It is an id of another database, or from before this one was restored or failed over: begin with an earlier one.".into()),
            ),
            Self::NotPreloaded => (
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                "pg_expiry is not in shared_preload_libraries".into(),
                Some("Without it the server runs no workers.".into()),
                Some(
                    "Add pg_expiry to shared_preload_libraries and restart the server, or CALL expiry.run() yourself."
                        .into(),
                ),
            ),
            Self::OtherVersion { version, database } => (
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("extension pg_expiry has version {version} in database \"{database}\", but the library that is loaded serves version {SERVED}"),
                Some("Nothing is cancelled in this database until they fit.".into()),
                Some(if is_older(version, SERVED) {
                    "ALTER EXTENSION pg_expiry UPDATE in this database.".into()
                } else {
                    format!("Install version {version} of pg_expiry and restart the server.")
                }),
            ),
            Self::NotDatabaseOwner { name } => (
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("must be owner of database \"{name}\""),
                None,
                None,
            ),
            Self::BoardIsFull => (
                Code::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                "too many databases have the extension pg_expiry".into(),
                None,
                None,
            ),
            Self::WorkersStayed => (
                Code::ERRCODE_OBJECT_IN_USE,
                "workers of pg_expiry have not ended yet".into(),
                Some("They have been told to, and none will be started.".into()),
                Some("Look for them in pg_stat_activity.".into()),
            ),
        }
    }

    /// Raises it as a PostgreSQL ERROR.
    #[track_caller]
    pub fn raise(self) -> ! {
        self.report(pgrx::PgLogLevel::ERROR);
        unreachable!("an ERROR does not return")
    }

    /// Tells the client, and goes on.
    #[track_caller]
    pub fn notice(self) {
        self.report(pgrx::PgLogLevel::NOTICE);
    }

    /// Tells the log, and goes on.
    #[track_caller]
    pub fn warning(self) {
        self.report(pgrx::PgLogLevel::WARNING);
    }

    #[track_caller]
    fn report(self, level: pgrx::PgLogLevel) {
        let (code, message, detail, hint) = self.parts();
        let mut report = ErrorReport::new(code, message, "pg_expiry");
        if let Some(detail) = detail {
            report = report.set_detail(detail);
        }
        if let Some(hint) = hint {
            report = report.set_hint(hint);
        }
        report.report(level);
    }
}
