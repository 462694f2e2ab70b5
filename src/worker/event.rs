//! Writes the durable record of outcomes, and the notifications that push the same records.
//!
//! Ids become visible in order: whoever writes events takes one lock before the first id is drawn and
//! holds it until his transaction has ended, so ids of a later transaction are always greater, and a
//! reader that has seen N has missed nothing below N. The lock is held for the insert and the commit
//! only, not while cancel functions run.

use std::cell::OnceCell;

use pgrx::pg_sys;
use pgrx::pg_sys::{Datum, Oid};

use crate::pg::clock::{Timestamp, now};
use crate::pg::guc::with_settings;
use crate::pg::spi::{self, Argument, Plan, Spi};
use crate::pg::{array, catalog, json, lock, notify, role, wake};
use crate::policy::{Notify, Policy};
use crate::rules::payload;

/// An outcome that is to be recorded. The values live as long as the batch.
pub struct Outcome {
    pub key: Datum,
    pub deadline: Option<Timestamp>,
    pub stated: Option<Timestamp>,
    pub data: Option<Datum>,
}

/// In the order of the arrays, which nothing in it changes: the ids come back in that order.
const INSERT: &str = r"
INSERT INTO expiry.event (id, policy, owner, key, kind, deadline, stated_deadline, occurred_at, lateness, data)
SELECT pg_catalog.nextval('expiry.event_id_seq'), $1, $2, o.key, $3, o.deadline, o.stated, $4,
       $4 - o.deadline, o.data
FROM (SELECT unnest($5) AS key, unnest($6) AS deadline, unnest($7) AS stated, unnest($8) AS data) AS o
RETURNING id";

thread_local! {
    /// Planned once a process; never freed, since the process ends without unwinding.
    static INSERT_PLAN: OnceCell<&'static Plan> = const { OnceCell::new() };
}

fn insert_plan(spi: &Spi) -> &'static Plan {
    INSERT_PLAN.with(|plan| {
        *plan.get_or_init(|| {
            let types = [
                pg_sys::TEXTOID,
                pg_sys::OIDOID,
                pg_sys::TEXTOID,
                pg_sys::TIMESTAMPTZOID,
                pg_sys::JSONBARRAYOID,
                pg_sys::TIMESTAMPTZARRAYOID,
                pg_sys::TIMESTAMPTZARRAYOID,
                pg_sys::JSONBARRAYOID,
            ];
            Box::leak(Box::new(spi.prepare(INSERT, &types)))
        })
    })
}

/// Notifications that are withheld are counted, and from where listeners are to catch up is noted, in the
/// transaction itself: whatever happens to this process, they will be told.
const WITHHOLD: &str = "
INSERT INTO expiry.progress AS p (policy, withheld_notifications, withheld_after) VALUES ($1, $2, $3)
ON CONFLICT (policy) DO UPDATE SET
    withheld_notifications = p.withheld_notifications + excluded.withheld_notifications,
    withheld_after = coalesce(p.withheld_after, excluded.withheld_after)";

/// Waits for the others who are writing events, at most `lock_timeout_ms` (0: for ever). They are few and
/// quick, and all of the batch is done: giving up as soon as for a lock of a customer's would waste it.
pub fn wait_for_turn(lock_timeout_ms: i32) {
    if let Some(events) = catalog::expiry_relation("event") {
        let limit = lock_timeout_ms.to_string();
        with_settings(&[("lock_timeout", &limit)], || lock::exclusively(events));
    }
}

/// Records outcomes of one kind and, if `pushes`, queues their notifications; to be called inside the
/// transaction that brought them about, under any identity. Returns their `occurred_at`.
pub fn record(spi: &Spi, policy: &Policy, kind: &str, outcomes: &[Outcome], pushes: bool) -> Timestamp {
    role::as_superuser_at_home(|| {
        let (Some(events), Some(_)) = (catalog::expiry_relation("event"), outcomes.first()) else {
            return now();
        };
        lock::exclusively(events);
        let occurred_at = now();
        // A column without a value at all is NULL itself: as many NULLs as there are keys.
        let column = |element: Oid, value: fn(&Outcome) -> Argument| {
            let values: Vec<Argument> = outcomes.iter().map(value).collect();
            values.iter().any(Option::is_some).then(|| array::of(element, &values))
        };
        let rows = spi.run(
            insert_plan(spi),
            &[
                spi::text(&policy.name),
                Some(Datum::from(policy.owner)),
                spi::text(kind),
                Some(occurred_at.datum()),
                column(pg_sys::JSONBOID, |o| Some(o.key)),
                column(pg_sys::TIMESTAMPTZOID, |o| finite(o.deadline).map(Timestamp::datum)),
                column(pg_sys::TIMESTAMPTZOID, |o| finite(o.stated).map(Timestamp::datum)),
                column(pg_sys::JSONBOID, |o| o.data),
            ],
        );
        wake::events_at_commit();
        let mut ids = (0..rows.count).map(|row| rows.expect::<i64>(row, 0));
        if policy.notify == Notify::Off {
            return occurred_at;
        }
        if pushes {
            push(policy, kind, outcomes, ids, occurred_at);
        } else if let Some(first) = ids.next() {
            withhold(spi, policy, rows.count, first);
        }
        occurred_at
    })
}

fn withhold(spi: &Spi, policy: &Policy, events: usize, first: i64) {
    let events = i64::try_from(events).expect("a batch is far smaller");
    spi.run_once(
        WITHHOLD,
        &[
            (pg_sys::TEXTOID, spi::text(&policy.name)),
            (pg_sys::INT8OID, Some(events.into())),
            (pg_sys::INT8OID, Some((first - 1).into())),
        ],
    );
}

/// No instant to count from; readers of `expiry.event` need not know of infinities.
fn finite(instant: Option<Timestamp>) -> Option<Timestamp> {
    instant.filter(|instant| instant.is_finite())
}

fn push(
    policy: &Policy,
    kind: &str,
    outcomes: &[Outcome],
    ids: impl Iterator<Item = i64>,
    occurred_at: Timestamp,
) {
    let micros = |instant| finite(instant).map(|t| t.0);
    let records = outcomes.iter().zip(ids).map(|(outcome, id)| {
        let data = outcome.data.map(json::text);
        payload::one(&payload::Event {
            id,
            policy: &policy.name,
            kind,
            key: &json::text(outcome.key),
            deadline_us: micros(outcome.deadline),
            stated_deadline_us: micros(outcome.stated),
            occurred_at_us: occurred_at.0,
            data: data.as_deref(),
        })
    });
    if policy.notify == Notify::Batch {
        for packet in payload::packed(&records.collect::<Vec<_>>()) {
            notify::notify(&policy.channel, &packet);
        }
    } else {
        for record in records {
            notify::notify(&policy.channel, &record);
        }
    }
}
