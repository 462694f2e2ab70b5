//! `expiry.why_not()`: each of its sentences, of a row that is what the sentence says.

mod policy;
mod row;
mod waits;
mod workers;

use std::time::Duration;

use pg_expiry_tests::postgres::Client;
use pg_expiry_tests::wait_until;

const PATIENCE: Duration = Duration::from_secs(20);

/// What it says of a row of policy "orders".
#[track_caller]
fn why_not(client: &mut Client, key: &str) -> String {
    let sql = format!("SELECT expiry.why_not('orders', '{key}')");
    client.query_one(&sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// Waits until it says so; the parts of the sentence in their order.
#[track_caller]
fn wait_for_answer(client: &mut Client, key: &str, parts: &[&str]) -> String {
    wait_until(format_args!("{parts:?}"), PATIENCE, || {
        let said = why_not(client, key);
        if has_parts(&said, parts) { Ok(said) } else { Err(said) }
    })
}

#[track_caller]
fn assert_says(said: &str, parts: &[&str]) {
    assert!(has_parts(said, parts), "{said:?} instead of {parts:?}");
}

fn has_parts(said: &str, parts: &[&str]) -> bool {
    parts.iter().try_fold(said, |rest, part| rest.split_once(part).map(|(_, rest)| rest)).is_some()
}
