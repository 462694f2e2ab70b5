//! Which version of the extension's SQL objects a database has, and whether this library serves it. They
//! differ between the installation of another version and the restart of the server, or ALTER EXTENSION.
//! Then nobody touches the SQL objects: they may be others than this library knows.

use crate::error::Error;
use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::xact;
use crate::pg::{catalog, database};

/// The version of the SQL objects that this library serves.
pub const SERVED: &str = env!("CARGO_PKG_VERSION");

/// The version that this database has; `None`: it has not got the extension. Inside a transaction.
fn version() -> Option<String> {
    const VERSION: &str = "SELECT extversion FROM pg_extension WHERE extname = 'pg_expiry'";
    catalog::read(VERSION, &[], |row, n| row.expect(n, 0)).pop()
}

/// What this database has.
#[derive(Debug)]
pub enum Installed {
    Nothing,
    Served,
    /// Another version than this library serves.
    Other(Error),
}

/// Inside a transaction.
pub fn look() -> Installed {
    match version() {
        None => Installed::Nothing,
        Some(version) if version == SERVED => Installed::Served,
        Some(version) => {
            let database = database::name(catalog::database()).unwrap_or_default();
            Installed::Other(Error::OtherVersion { version, database })
        }
    }
}

/// Raises if the SQL objects, one of which was called, are not those that this library serves.
pub fn check() {
    if let Installed::Other(error) = look() {
        error.raise();
    }
}

/// Whether this database has what this library serves; yes if that cannot be found out. Outside of any
/// transaction.
pub fn is_served() -> bool {
    let served = xact::in_transaction(BOOTSTRAP_SUPERUSER, || matches!(look(), Installed::Served));
    served.unwrap_or(true)
}
