//! `expiry.restored()`: the event of a row that somebody has put back, in the transaction that does so. What
//! "put back" means is the user's to know; ours is that events tell of it, in order with all others. So it is written
//! when that transaction commits: whoever writes events holds up all others until he has.

use pgrx::pg_sys;

use super::due;
use super::event::{self, Outcome};
use super::push;
use super::statements::{from, key_json, key_matches, stated};
use crate::error::Error;
use crate::pg::clock::Timestamp;
use crate::pg::spi::{self, Argument};
use crate::pg::{before_commit, catalog, json, wake};
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
    catalog::prevent_if_read_only(c"restored()");
    let data = data.map(json::bytes);
    let policy = policy.clone();
    before_commit::pend(move || {
        let outcome = Outcome {
            key: json::from_bytes(&key_of_row),
            deadline,
            stated,
            data: data.as_deref().map(json::from_bytes),
        };
        write(&policy, outcome);
    });
    Ok(())
}

fn write(policy: &Policy, outcome: Outcome) {
    spi::connected(|spi| {
        let pushes = push::is_open_for_client(spi, policy);
        if !pushes {
            // The workers are to know that something was withheld.
            wake::at_commit();
        }
        event::record(spi, policy, "restored", &[outcome], pushes);
    });
}
