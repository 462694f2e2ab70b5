//! The SQL surface that belongs to no other part: bodies of a few lines.

use pgrx::JsonB;
use pgrx::pg_sys;

use crate::installed;
use crate::pg::{role, spi, wake};
use crate::policy;

const RETRY: &str = "
UPDATE expiry.failure f SET attempts = 0, next_attempt_at = clock_timestamp()
WHERE f.policy = $1 AND ($2 IS NULL OR NOT EXISTS (
    SELECT FROM jsonb_object_keys(f.key || $2) AS k(name)
    WHERE f.key ->> k.name IS DISTINCT FROM $2 ->> k.name))";

/// Lets failing and quarantined rows go again at once, with all their attempts.
#[pgrx::pg_extern(sql = r"
CREATE FUNCTION retry(name text, key jsonb DEFAULT NULL) RETURNS bigint
    LANGUAGE c CALLED ON NULL INPUT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION retry(text, jsonb) IS
    'Lets rows of expiry.failure go again at once, with all their attempts: the one with this key (64-bit integers as numbers or strings), or with NULL all of the policy. Returns how many. Errors: 42704 unknown policy, 42501 not its owner.';
")]
fn retry(name: &str, key: Option<JsonB>) -> i64 {
    installed::check();
    policy::check_may_act_for(name);
    wake::at_commit();
    role::as_superuser_at_home(|| {
        spi::connected(|spi| {
            let key = pgrx::IntoDatum::into_datum(key);
            let arguments = [(pg_sys::TEXTOID, spi::text(name)), (pg_sys::JSONBOID, key)];
            i64::try_from(spi.run_once(RETRY, &arguments).count).unwrap_or(i64::MAX)
        })
    })
}
