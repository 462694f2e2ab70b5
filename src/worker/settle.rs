//! After the calls: a row that is still due, although the function said that it was done, was not
//! cancelled. Without this check it would be claimed again at once, for ever.

use pgrx::pg_sys::Datum;

use super::cancel::Verdict;
use super::statements::{FIRST_KEY, KEY_JSON, Statements};
use super::waiting::Key;
use crate::pg::clock::Timestamp;
use crate::pg::spi::{Rows, Spi};
use crate::pg::{array, json};
use crate::policy::Policy;

/// The keys of rows that the function left due.
pub fn left_due(
    spi: &Spi,
    policy: &Policy,
    statements: &Statements,
    claimed: &Rows<'_>,
    verdicts: &[Verdict],
    now: Timestamp,
) -> Vec<Key> {
    let done: Vec<usize> = (0..claimed.count).filter(|row| verdicts[*row].is_done()).collect();
    if done.is_empty() {
        return Vec::new();
    }
    let mut arguments = vec![Some(now.datum())];
    for (i, column) in policy.key.iter().enumerate() {
        let keys: Vec<Option<Datum>> = done.iter().map(|row| claimed.datum(*row, FIRST_KEY + i)).collect();
        arguments.push(Some(array::of(column.type_oid, &keys)));
    }
    if statements.settle_quickly(spi, &arguments) == Some(false) {
        return Vec::new();
    }
    let due = statements.settle(spi, &arguments);
    (0..due.count)
        .map(|i| {
            let position: i64 = due.expect(i, 0);
            let row = done[usize::try_from(position - 1).expect("ordinality starts at 1")];
            json::bytes(claimed.datum(row, KEY_JSON).expect("a key is never NULL"))
        })
        .collect()
}
