//! The scout: sees whether a database has the extension, and who owns policies there, and is gone.

use pgrx::PgSqlErrorCode;

use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::{database, log, wake, xact};
use crate::{board, policy};

pub fn run() {
    let generation = wake::generation();
    let look = || {
        xact::in_transaction(BOOTSTRAP_SUPERUSER, || {
            database::has_extension(c"pg_expiry").then(policy::owners)
        })
    };
    // The extension may be dropped in the middle of a look; the next one then sees that it is gone.
    match look().or_else(|_| look()) {
        Ok(owners) => {
            if !board::report(owners.as_deref(), generation) {
                log::warning(
                    PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                    "too many roles own policies of pg_expiry",
                    None,
                );
            }
        }
        // It dies, so the launcher waits before it sends the next.
        Err(error) => panic!("scout could not see who owns policies: {error}"),
    }
}
