//! `expiry.restored()`: the event of a row that somebody has put back, in the transaction that does so. What
//! "put back" means is the user's to know; ours is that events tell of it, in order with all others.

use pgrx::pg_sys;

use super::due;
use super::event::{self, Outcome};
use super::push;
use super::statements::{from, key_json, key_matches, stated};
use crate::error::Error;
use crate::pg::clock::Timestamp;
use crate::pg::spi::{self, Argument};
use crate::pg::{json, wake};
use crate::policy::Policy;

/// Records the event of the row with this key, as the row is now.
pub fn record(policy: &Policy, key: Argument, data: Argument) -> Result<(), Error> {
    let sql = format!(
        "SELECT {}, {}, {} FROM {} WHERE {}",
        key_json(&policy.key),
        policy.deadline.instant(),
        stated(policy),
        from(policy),
        key_matches(policy, "$1")
    );
    let rows = due::as_owner(policy, || {
        spi::query(&sql, &[(pg_sys::JSONBOID, key)], |row, n| {
            let key = json::bytes(row.datum(n, 0).expect("a key is never NULL"));
            (key, row.get(n, 1).map(Timestamp), row.get(n, 2).map(Timestamp))
        })
    });
    let Some((key_of_row, deadline, stated)) = rows.into_iter().next() else {
        return Err(Error::NoSuchRow {
            policy: policy.name.clone(),
            key: key.map_or("NULL".into(), json::text),
        });
    };
    let outcome = Outcome { key: json::from_bytes(&key_of_row), deadline, stated, data };
    spi::connected(|spi| {
        let pushes = push::is_open_for_client(spi, policy);
        if !pushes {
            // The workers are to know that something was withheld.
            wake::at_commit();
        }
        event::record(spi, policy, "restored", &[outcome], pushes);
    });
    Ok(())
}
