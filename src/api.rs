//! The SQL surface that belongs to no other part: bodies of a few lines.

use pgrx::JsonB;
use pgrx::pg_sys;

use crate::error::{Error, PolicyError};
use crate::installed;
use crate::pg::{array, catalog, role, spi, wake};
use crate::policy;
use crate::worker::restored as restored_rows;

const RETRY: &str = "
UPDATE expiry.failure f SET attempts = 0, next_attempt_at = clock_timestamp()
WHERE f.policy = $1 AND ($2 IS NULL OR CASE jsonb_typeof($2)
    WHEN 'object' THEN NOT EXISTS (
        SELECT FROM jsonb_object_keys(f.key || $2) AS k(name)
        WHERE f.key ->> k.name IS DISTINCT FROM $2 ->> k.name)
    ELSE (SELECT array_agg(k.value) FROM jsonb_each_text(f.key) AS k) = ARRAY[$2 #>> '{}']
    END)";

/// A policy without a row has not been worked on yet: it begins to count now, too.
const RESET: &str = "
INSERT INTO expiry.progress AS g (policy) SELECT p.name FROM expiry.policy p WHERE p.name = ANY ($1)
ON CONFLICT (policy) DO UPDATE SET
    cancelled = 0, declined = 0, failed = 0, withheld_notifications = 0, lateness_max_ms = NULL,
    lateness_counts = '{}', stats_since = clock_timestamp()";

/// Begins to count anew.
#[pgrx::pg_extern(sql = r"
CREATE FUNCTION reset_stats(name text DEFAULT NULL) RETURNS void
    LANGUAGE c CALLED ON NULL INPUT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION reset_stats(text) IS
    'Sets the counters in expiry.status and the histogram in expiry.lateness of a policy to zero, or with NULL of all that you may act for; stats_since says when. A worker may add what it has counted in the second before. Errors: 42704 unknown policy; 42501 not its owner.';
")]
fn reset_stats(name: Option<&str>) {
    installed::check();
    let names = match name {
        Some(name) => {
            policy::check_may_act_for(name);
            vec![name.to_owned()]
        }
        None => policy::names_that_one_may_act_for(),
    };
    let names: Vec<spi::Argument> = names.iter().map(|name| spi::text(name)).collect();
    catalog::write(RESET, &[(pg_sys::TEXTARRAYOID, Some(array::of(pg_sys::TEXTOID, &names)))]);
}

/// Lets failing and quarantined rows go again at once, with all their attempts.
#[pgrx::pg_extern(sql = r"
CREATE FUNCTION retry(name text, key jsonb DEFAULT NULL) RETURNS bigint
    LANGUAGE c CALLED ON NULL INPUT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION retry(text, jsonb) IS
    'Lets rows of expiry.failure go again at once, with all their attempts: the one with this key (an object as in the table, or of one column the bare value; 64-bit integers as numbers or strings), or with NULL all of the policy. Returns how many. Errors: 42704 unknown policy; 42501 not its owner.';
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

/// Tells that a row was put back; see `worker::restored`.
#[pgrx::pg_extern(sql = r"
CREATE FUNCTION restored(name text, key jsonb, data jsonb DEFAULT NULL) RETURNS void
    LANGUAGE c CALLED ON NULL INPUT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION restored(text, jsonb, jsonb) IS
    'To be called by whoever puts a cancelled row back, in the same transaction: at its commit, records an event of kind restored for the row with this key (64-bit integers as numbers or strings), as it is now, with data, and notifies it. Changes nothing of the row. Errors: 42704 unknown policy; 42501 not its owner; 22004 name is NULL; P0002 no row has this key; those of create_policy() if something that it needs is gone; 0A000 at PREPARE TRANSACTION.';
")]
fn restored(name: Option<&str>, key: Option<pgrx::AnyElement>, data: Option<pgrx::AnyElement>) {
    installed::check();
    let result = name.ok_or(Error::from(PolicyError::NullName)).and_then(policy::peek).and_then(|policy| {
        restored_rows::record(&policy, key.map(|key| key.datum()), data.map(|data| data.datum()))
    });
    if let Err(error) = result {
        error.raise();
    }
}
