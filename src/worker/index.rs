//! Building a policy's deadline index.

use crate::pg::caught::PgError;
use crate::policy::Policy;

/// Builds the index of the policy of that name.
pub fn build_named(_policy: &str) {}

pub fn build(_policy: &Policy) -> Result<(), PgError> {
    Ok(())
}
