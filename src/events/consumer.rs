//! Named consumers: the server keeps their place. `fetch_events()` itself is SQL (events.sql), so that it
//! reads events with the caller's rights; what is here writes the consumer's row for it.

use pgrx::pg_sys;
use pgrx::pg_sys::Oid;

use crate::error::Error;
use crate::installed;
use crate::pg::role;
use crate::pg::spi::{self, Spi};
use crate::policy;

struct Consumer {
    acked: i64,
    fetched: i64,
}

fn at_home<R>(f: impl FnOnce(&Spi) -> R) -> R {
    role::as_superuser_at_home(|| spi::connected(f))
}

/// The consumer, locked until the transaction ends; raises if there is none that the caller may act for.
fn locked(name: &str) -> Consumer {
    installed::check();
    const LOCK: &str = "SELECT owner, acked, fetched FROM expiry.consumer WHERE name = $1 FOR UPDATE";
    let found = at_home(|spi| {
        let rows = spi.run_once(LOCK, &[(pg_sys::TEXTOID, spi::text(name))]);
        (!rows.is_empty()).then(|| {
            let consumer = Consumer { acked: rows.expect(0, 1), fetched: rows.expect(0, 2) };
            (rows.expect::<Oid>(0, 0), consumer)
        })
    });
    match found {
        Some((owner, consumer)) if role::may_act_for(owner) => consumer,
        _ => Error::UnknownConsumer { name: name.into() }.raise(),
    }
}

#[pgrx::pg_extern(sql = r"
CREATE FUNCTION subscribe(consumer text, policy text DEFAULT NULL, after bigint DEFAULT NULL) RETURNS bigint
    LANGUAGE c CALLED ON NULL INPUT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION subscribe(text, text, bigint) IS
    'Makes a named consumer of the events of one policy (NULL: of all that you may act for), which begins after the event with this id (NULL: with the next event). Returns that id. Errors: 42710 the name is taken; 42704 unknown policy; 42501 not its owner; 22023 bad name or id.';
")]
fn subscribe(consumer: Option<&str>, policy: Option<&str>, after: Option<i64>) -> i64 {
    const INSERT: &str = "
        INSERT INTO expiry.consumer (name, owner, policy, acked, fetched)
        SELECT $1, $2, $3, a.id, a.id
        FROM (SELECT coalesce($4, (SELECT max(id) FROM expiry.event), 0) AS id) a
        ON CONFLICT DO NOTHING RETURNING acked";
    installed::check();
    let Some(name) = consumer.filter(|name| (1..64).contains(&name.len())) else {
        Error::OutOfRange { parameter: "consumer", value: format!("{consumer:?}") }.raise();
    };
    if let Some(policy) = policy {
        policy::check_may_act_for(policy);
    }
    if let Some(id) = after.filter(|id| *id < 0) {
        Error::OutOfRange { parameter: "after", value: id.to_string() }.raise();
    }
    after.into_iter().for_each(super::refuse_future);
    let owner = role::current_user();
    let begins = at_home(|spi| {
        let rows = spi.run_once(
            INSERT,
            &[
                (pg_sys::TEXTOID, spi::text(name)),
                (pg_sys::OIDOID, Some(owner.into())),
                (pg_sys::TEXTOID, policy.and_then(spi::text)),
                (pg_sys::INT8OID, after.map(Into::into)),
            ],
        );
        (!rows.is_empty()).then(|| rows.expect(0, 0))
    });
    begins.unwrap_or_else(|| Error::DuplicateConsumer { name: name.into() }.raise())
}

#[pgrx::pg_extern(sql = r"
CREATE FUNCTION unsubscribe(consumer text) RETURNS void
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION unsubscribe(text) IS
    'Forgets a named consumer. Errors: 42704 unknown consumer, or not yours.';
")]
fn unsubscribe(consumer: &str) {
    locked(consumer);
    at_home(|spi| {
        let name = (pg_sys::TEXTOID, spi::text(consumer));
        spi.run_once("DELETE FROM expiry.consumer WHERE name = $1", &[name]);
    });
}

#[pgrx::pg_extern(sql = r"
CREATE FUNCTION ack_events(consumer text, id bigint) RETURNS void
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION ack_events(text, bigint) IS
    'The consumer has dealt with the events up to this id; fetch_events() goes on after it. Acknowledging less than before does nothing. Errors: 42704 unknown consumer, or not yours; 22023 the event was not fetched yet.';
")]
fn ack_events(consumer: &str, id: i64) {
    const ACK: &str = "
        UPDATE expiry.consumer SET acked = $2, acked_at = clock_timestamp() WHERE name = $1";
    let Consumer { acked, fetched } = locked(consumer);
    if id > fetched {
        Error::AckBeyondFetched { id, fetched }.raise();
    }
    if id > acked {
        at_home(|spi| {
            let id = (pg_sys::INT8OID, Some(id.into()));
            spi.run_once(ACK, &[(pg_sys::TEXTOID, spi::text(consumer)), id]);
        });
    }
}

#[pgrx::pg_extern(sql = r"
CREATE FUNCTION consumer_position(consumer text) RETURNS bigint
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION consumer_position(text) IS
    'Internal, for fetch_events(): locks the consumer and returns the last event that it has acknowledged.';
")]
fn consumer_position(consumer: &str) -> i64 {
    locked(consumer).acked
}

#[pgrx::pg_extern(sql = r"
CREATE FUNCTION consumer_fetched(consumer text, id bigint) RETURNS void
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION consumer_fetched(text, bigint) IS
    'Internal, for fetch_events(): notes the last event that the consumer was given.';
")]
fn consumer_fetched(consumer: &str, id: i64) {
    const FETCHED: &str = "
        UPDATE expiry.consumer SET fetched = greatest(fetched, $2), fetched_at = clock_timestamp() WHERE name = $1";
    locked(consumer);
    at_home(|spi| {
        let id = (pg_sys::INT8OID, Some(id.into()));
        spi.run_once(FETCHED, &[(pg_sys::TEXTOID, spi::text(consumer)), id]);
    });
}
