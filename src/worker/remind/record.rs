//! What the reminders write: events, `expiry.reminded` and `expiry.reminder`, in one transaction.

use pgrx::datum::Interval;
use pgrx::pg_sys::{self, Oid};
use pgrx::{IntoDatum, JsonB};
use serde_json::json;

use super::look::{Coming, Looks};
use crate::pg::caught::PgError;
use crate::pg::clock::Timestamp;
use crate::pg::debug_point::{self, DebugPoint};
use crate::pg::guc::with_settings;
use crate::pg::spi::{self, Argument, Spi};
use crate::pg::{array, json as jsonb, role};
use crate::policy::Policy;
use crate::rules::reminder::Lead;
use crate::settings;
use crate::worker::event::{self, Outcome};
use crate::worker::failure::in_own_transaction;
use crate::worker::waiting::Key;

/// Rows that were found to have come within the interval, and are to be reminded if they are there still.
pub struct Batch<'a> {
    pub lead: Lead,
    pub keys: &'a [Key],
    /// Deadlines after this one and up to the other.
    pub after: Timestamp,
    pub until: Timestamp,
    /// They are the last up to there.
    pub advances: bool,
    pub pushes: bool,
}

/// The reminders of one interval take turns here.
const LOCK: &str =
    "SELECT reminded_to FROM expiry.reminder WHERE policy = $1 AND remind_before = $2 FOR UPDATE";

const ADVANCE: &str = "UPDATE expiry.reminder SET reminded_to = greatest(reminded_to, $3)
    WHERE policy = $1 AND remind_before = $2 AND reminded_to < $3";

const MARK: &str = "INSERT INTO expiry.reminded (policy, remind_before, deadline, key)
    SELECT $1, $2, r.deadline, r.key FROM unnest($3, $4) AS r(deadline, key)";

/// One by one: many rows may have the same deadline, and a planner without statistics would read them all for
/// each. OFFSET 0 and [`ONE_BY_ONE`] keep it from him.
const KNOWN: &str = "
SELECT a.n FROM unnest($3, $4) WITH ORDINALITY AS a(deadline, key, n),
    LATERAL (SELECT FROM expiry.reminded r
        WHERE r.policy = $1 AND r.remind_before = $2 AND r.deadline = a.deadline
          AND md5(r.key::text) = md5(a.key::text) OFFSET 0) known";
const ONE_BY_ONE: &[(&str, &str)] = &[("enable_seqscan", "off"), ("enable_bitmapscan", "off")];

fn interval(lead: Lead) -> Argument {
    Interval::new(0, 0, lead.before_us).ok().and_then(IntoDatum::into_datum)
}

fn of(policy: &Policy, lead: Lead) -> [(Oid, Argument); 2] {
    [(pg_sys::TEXTOID, spi::text(&policy.name)), (pg_sys::INTERVALOID, interval(lead))]
}

/// Reminds the batch, all of it or nothing. As the owner, whose rows they are, up to the commit.
pub fn remind(policy: &Policy, looks: &Looks, batch: &Batch<'_>) -> Result<(), PgError> {
    let lock_timeout = settings::lock_timeout_ms().to_string();
    policy.in_transaction(&[("lock_timeout", &lock_timeout)], |spi| steps(spi, policy, looks, batch))
}

fn steps(spi: &Spi, policy: &Policy, looks: &Looks, batch: &Batch<'_>) {
    let reminded_to = role::as_superuser_at_home(|| {
        let rows = spi.run_once(LOCK, &of(policy, batch.lead));
        (!rows.is_empty()).then(|| Timestamp(rows.expect(0, 0)))
    });
    // The policy has just been dropped.
    let Some(reminded_to) = reminded_to else { return };
    // Somebody else may have come further meanwhile.
    let after = if policy.remind_late { batch.after } else { batch.after.max(reminded_to) };
    // Nothing of the owner's may be left to the commit: events are written in everybody's turn.
    let coming = role::restricted_now(|| looks.still(spi, after, batch.until, batch.keys));
    let rows: Vec<(Key, Timestamp)> =
        coming.iter().map(|row| (batch.keys[row.position].clone(), row.deadline)).collect();
    let is_new = are_new(spi, policy, batch.lead, &rows);
    let new: Vec<&Coming> =
        coming.iter().zip(is_new).filter(|(_, is_new)| *is_new).map(|(row, _)| row).collect();
    if !new.is_empty() {
        let data = data(batch.lead);
        let outcomes: Vec<Outcome> = new
            .iter()
            .map(|row| Outcome {
                key: jsonb::from_bytes(&batch.keys[row.position]),
                deadline: Some(row.deadline),
                stated: row.stated,
                data,
            })
            .collect();
        role::as_superuser_at_home(|| {
            let [policy, before] = of(policy, batch.lead);
            let deadlines: Vec<Argument> = new.iter().map(|row| Some(row.deadline.datum())).collect();
            let keys: Vec<Argument> = outcomes.iter().map(|outcome| Some(outcome.key)).collect();
            spi.run_once(
                MARK,
                &[
                    policy,
                    before,
                    (pg_sys::TIMESTAMPTZARRAYOID, Some(array::of(pg_sys::TIMESTAMPTZOID, &deadlines))),
                    (pg_sys::JSONBARRAYOID, Some(array::of(pg_sys::JSONBOID, &keys))),
                ],
            );
        });
        event::wait_for_turn(settings::lock_timeout_ms());
        event::record(spi, policy, "reminder", &outcomes, batch.pushes);
    }
    if batch.advances {
        role::as_superuser_at_home(|| advance(spi, policy, batch.lead, batch.until));
    }
    debug_point::reach(DebugPoint::Reminded);
}

/// Which of these rows have not been reminded of that deadline.
pub fn are_new(spi: &Spi, policy: &Policy, lead: Lead, rows: &[(Key, Timestamp)]) -> Vec<bool> {
    let mut is_new = vec![true; rows.len()];
    if rows.is_empty() {
        return is_new;
    }
    let deadlines: Vec<Argument> = rows.iter().map(|(_, deadline)| Some(deadline.datum())).collect();
    let keys: Vec<Argument> = rows.iter().map(|(key, _)| Some(jsonb::from_bytes(key))).collect();
    role::as_superuser_at_home(|| {
        let [policy, before] = of(policy, lead);
        let arguments = [
            policy,
            before,
            (pg_sys::TIMESTAMPTZARRAYOID, Some(array::of(pg_sys::TIMESTAMPTZOID, &deadlines))),
            (pg_sys::JSONBARRAYOID, Some(array::of(pg_sys::JSONBOID, &keys))),
        ];
        let known = with_settings(ONE_BY_ONE, || spi.run_once(KNOWN, &arguments));
        for row in 0..known.count {
            is_new[usize::try_from(known.expect::<i64>(row, 0) - 1).expect("ordinality starts at 1")] = false;
        }
    });
    is_new
}

/// What the event says besides: the interval, in seconds.
fn data(lead: Lead) -> Argument {
    let seconds = match lead.before_us % 1_000_000 {
        0 => json!(lead.before_us / 1_000_000),
        _ => json!(lead.before_us as f64 / 1e6),
    };
    JsonB(json!({ "remind_before_s": seconds })).into_datum()
}

fn advance(spi: &Spi, policy: &Policy, lead: Lead, to: Timestamp) {
    let [policy, before] = of(policy, lead);
    spi.run_once(ADVANCE, &[policy, before, (pg_sys::TIMESTAMPTZOID, Some(to.datum()))]);
}

/// Writes down how far this process has come without finding anything to remind of. What a crash loses of it
/// is a second or so.
pub fn write(policy: &Policy, lead: Lead) -> Result<(), PgError> {
    in_own_transaction(|spi| {
        spi.run_once("SET LOCAL synchronous_commit = off", &[]);
        spi.run_once("SET LOCAL lock_timeout = '100ms'", &[]);
        advance(spi, policy, lead, Timestamp(lead.reminded_to_us));
    })
}

const READ: &str = "
SELECT (b.n - 1)::int8, r.reminded_to
FROM unnest($2) WITH ORDINALITY AS b(remind_before, n)
JOIN expiry.reminder r ON r.policy = $1 AND r.remind_before = b.remind_before";

/// Rows that are within the interval when it is new have begun inside. A policy that is being dropped is
/// waited for, or waits.
const BEGIN: &str = "
INSERT INTO expiry.reminder (policy, remind_before, reminded_to)
SELECT p.name, b.remind_before, $3 + b.remind_before
FROM (SELECT name FROM expiry.policy WHERE name = $1 FOR KEY SHARE) p, unnest($2) AS b(remind_before)
ON CONFLICT DO NOTHING";

/// Where the reminders of each of the policy's intervals are to go on; what is known of former intervals is
/// forgotten.
pub fn load(policy: &Policy, now: Timestamp) -> Result<Vec<Lead>, PgError> {
    let new: Vec<Lead> =
        policy.remind_before_us.iter().map(|&before_us| Lead { before_us, reminded_to_us: 0 }).collect();
    in_own_transaction(|spi| {
        let intervals: Vec<Argument> = new.iter().map(|lead| interval(*lead)).collect();
        let arguments = [
            (pg_sys::TEXTOID, spi::text(&policy.name)),
            (pg_sys::INTERVALARRAYOID, Some(array::of(pg_sys::INTERVALOID, &intervals))),
            (pg_sys::TIMESTAMPTZOID, Some(now.datum())),
        ];
        for table in ["reminder", "reminded"] {
            let forget =
                format!("DELETE FROM expiry.{table} WHERE policy = $1 AND remind_before <> ALL ($2)");
            spi.run_once(&forget, &arguments[..2]);
        }
        let read = || {
            let rows = spi.run_once(READ, &arguments[..2]);
            (0..rows.count)
                .map(|row| {
                    let lead = new[usize::try_from(rows.expect::<i64>(row, 0)).expect("an index")];
                    Lead { reminded_to_us: rows.expect(row, 1), ..lead }
                })
                .collect::<Vec<Lead>>()
        };
        let known = read();
        if known.len() == new.len() {
            return known;
        }
        spi.run_once(BEGIN, &arguments);
        read()
    })
}

/// Forgets the reminders of deadlines before this one, a thousand at a time; whether there may be more.
pub fn forget_passed(policy: &Policy, lead: Lead, before: Timestamp) -> Result<bool, PgError> {
    const MOST: usize = 1000;
    const FORGET: &str = "
        DELETE FROM expiry.reminded WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM expiry.reminded WHERE policy = $1 AND remind_before = $2 AND deadline < $3 LIMIT 1000))";
    in_own_transaction(|spi| {
        let [policy, interval] = of(policy, lead);
        spi.run_once("SET LOCAL synchronous_commit = off", &[]);
        let rows = spi.run_once(FORGET, &[policy, interval, (pg_sys::TIMESTAMPTZOID, Some(before.datum()))]);
        rows.count == MOST
    })
}
