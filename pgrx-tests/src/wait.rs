//! Waiting for a condition, never for a time: the only place of the tests that sleeps.

use std::fmt::{Debug, Display};
use std::thread::sleep;
use std::time::{Duration, Instant};

use postgres::Client;
use postgres::types::FromSqlOwned;

const POLL: Duration = Duration::from_millis(10);

/// What one look at a condition can say: `bool`, `Option<T>`, or `Result<T, E>` whose error is
/// the state that was seen instead.
pub trait Probe {
    type Found;
    /// The value waited for, or a description of the present state.
    fn found(self) -> Result<Self::Found, String>;
}

impl Probe for bool {
    type Found = ();
    fn found(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("false".into()) }
    }
}

impl<T> Probe for Option<T> {
    type Found = T;
    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing".into())
    }
}

impl<T, E: Debug> Probe for Result<T, E> {
    type Found = T;
    fn found(self) -> Result<T, String> {
        self.map_err(|state| format!("{state:?}"))
    }
}

/// Looks again and again until the probe finds what it is after; panics, with what was waited
/// for and what was last seen, when it does not within `timeout`.
///
/// The probe must look from outside any transaction, or it sees the same for ever.
#[track_caller]
pub fn wait_until<P: Probe>(what: impl Display, timeout: Duration, mut probe: impl FnMut() -> P) -> P::Found {
    let start = Instant::now();
    loop {
        match probe().found() {
            Ok(found) => return found,
            Err(state) if start.elapsed() > timeout => {
                panic!("waited {timeout:?} for {what}; last seen: {state}")
            }
            Err(_) => sleep(POLL),
        }
    }
}

/// Waits (10 s) until a query of one value gives `expected`.
#[track_caller]
pub fn wait_for_value<T: FromSqlOwned + PartialEq + Debug>(client: &mut Client, sql: &str, expected: T) {
    wait_within(Duration::from_secs(10), client, sql, expected);
}

/// The same for a minute: for what takes several processes and a good deal of work.
#[track_caller]
pub fn eventually<T: FromSqlOwned + PartialEq + Debug>(client: &mut Client, sql: &str, expected: T) {
    wait_within(Duration::from_secs(60), client, sql, expected);
}

#[track_caller]
fn wait_within<T: FromSqlOwned + PartialEq + Debug>(
    timeout: Duration,
    client: &mut Client,
    sql: &str,
    expected: T,
) {
    wait_until(format_args!("{sql} to give {expected:?}"), timeout, || match client.query_opt(sql, &[]) {
        Ok(Some(row)) => match row.get::<_, Option<T>>(0) {
            Some(value) if value == expected => Ok(()),
            other => Err(format!("{other:?}")),
        },
        Ok(None) => Err("no row".into()),
        Err(error) => Err(format!("{error:?}")),
    });
}
