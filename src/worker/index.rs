use crate::pg::caught::PgError;
use crate::policy::Policy;
pub fn build(_policy: &Policy) -> Result<(), PgError> {
    Ok(())
}
