//! The scout: sees whether a database has the extension, and who owns policies there, and is gone.

use pgrx::PgSqlErrorCode;

use crate::board::{self, Found};
use crate::installed::{self, Installed};
use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::{log, wake, xact};
use crate::policy;

pub fn run() {
    let generation = wake::generation();
    let look = || {
        xact::in_transaction(BOOTSTRAP_SUPERUSER, || match installed::look() {
            Installed::Nothing => (Found::Nothing, None),
            Installed::Served => (Found::Owners(policy::owners()), None),
            Installed::Other(error) => (Found::OtherVersion, Some(error)),
        })
    };
    // The extension may be dropped, or updated, in the middle of a look; the next one then sees that.
    match look().or_else(|_| look()) {
        Ok((found, error)) => {
            let outcome = board::report(&found, generation);
            if !outcome.has_room {
                log::warning(
                    PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                    "too many roles own policies of pg_expiry",
                    Some("Some have no worker. Let fewer roles own the tables."),
                );
            }
            if outcome.is_news {
                error.into_iter().for_each(|error| error.warning());
            }
        }
        // It dies, so the launcher waits before it sends the next.
        Err(error) => panic!("scout could not see who owns policies: {error}"),
    }
}
