//! `CALL expiry.wait_for_events()`: long polling, for clients that cannot LISTEN.
//!
//! A procedure, not a function: while it waits it is outside of any transaction, so it holds neither lock
//! nor snapshot, which a function inside a SELECT could not give up.

use pgrx::datum::Interval;
use pgrx::pg_sys;

use crate::error::Error;
use crate::installed;
use crate::pg::caught::PgError;
use crate::pg::clock::{self, Timestamp};
use crate::pg::latch;
use crate::pg::news::Place;
use crate::pg::{guc, role, spi, xact};

/// How often a session looks by itself; and if nobody wakes it (without preload, or when too many wait).
const LOOK_US: i64 = 1_000_000;
const POLL_US: i64 = 100_000;
const LONGEST_US: i64 = 3_600_000_000;

#[pgrx::pg_extern(sql = r"
CREATE PROCEDURE wait_for_events(id bigint, timeout interval DEFAULT '30 seconds')
    LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON PROCEDURE wait_for_events(bigint, interval) IS
    'Returns as soon as there is an event with a greater id that you may see, or after timeout (at most 1 hour); read it with events_after(). Holds neither lock nor snapshot while it waits, so it runs neither in a transaction block nor in a function. Errors: 25001 in a transaction block; 22023 negative id or timeout, a longer one, or an id that no event has had yet.';
")]
fn wait_for_events(id: Option<i64>, timeout: Option<Interval>, fcinfo: pg_sys::FunctionCallInfo) {
    if !xact::is_top_level_call(fcinfo) {
        Error::InTransactionBlock { procedure: "wait_for_events" }.raise();
    }
    let Some(id) = id.filter(|id| *id >= 0) else {
        Error::OutOfRange { parameter: "id", value: shown(id) }.raise();
    };
    let timeout_us = timeout.map_or(-1, |timeout| timeout.as_micros());
    if !(0..=LONGEST_US.into()).contains(&timeout_us) {
        Error::OutOfRange { parameter: "timeout", value: format!("{} s", timeout_us as f64 / 1e6) }.raise();
    }
    installed::check();
    super::refuse_future(id);
    let until = clock::now().plus_micros(i64::try_from(timeout_us).unwrap_or(LONGEST_US));
    let reader = role::current_user();
    if let Err(error) = xact::leaving_transaction(|| wait(reader, id, until)) {
        error.raise();
    }
}

fn shown(id: Option<i64>) -> String {
    id.map_or("null".into(), |id| id.to_string())
}

fn wait(reader: pg_sys::Oid, id: i64, until: Timestamp) -> Result<(), PgError> {
    let place = Place::take();
    let mut read_up_to = id;
    while let Some(last) = look(reader, read_up_to)? {
        read_up_to = last;
        let now = clock::now();
        if now >= until {
            break;
        }
        let pause_us = if place.is_woken() { LOOK_US } else { POLL_US };
        latch::pause(until.since(now).min(pause_us) / 1000 + 1);
    }
    Ok(())
}

/// `None` when there is an event after `id` that `reader` may see; otherwise the last event of all: ids
/// become visible in order, so nothing up to it will ever be news to him.
fn look(reader: pg_sys::Oid, id: i64) -> Result<Option<i64>, PgError> {
    const LAST: &str = "SELECT max(e.id) FROM expiry.event e";
    const NEWS: &str = "SELECT FROM expiry.event e WHERE e.id > $1 LIMIT 1";
    xact::in_transaction(reader, || {
        guc::with_settings(&[("search_path", "pg_catalog, pg_temp")], || {
            spi::connected(|spi| {
                let last = role::as_superuser(|| spi.run_once(LAST, &[]).get::<i64>(0, 0)).unwrap_or(0);
                if last <= id {
                    return Some(id);
                }
                let news = spi.run_once(NEWS, &[(pg_sys::INT8OID, Some(id.into()))]);
                news.is_empty().then_some(last)
            })
        })
    })
}
