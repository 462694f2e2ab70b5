//! `expiry.why_not()`: one sentence for whoever asks why a row is still there. The questions are asked in
//! the order in which the answers matter: the row itself, its policy, the workers, what is in the way, and
//! who is before it.

mod process;
mod row;

use pgrx::pg_sys::{self, Datum};

use self::row::{Looked, Row};
use crate::error::{Error, PolicyError};
use crate::installed;
use crate::pg::asides::{self, Aside};
use crate::pg::clock::{self, Timestamp};
use crate::pg::{catalog, json, spi};
use crate::policy::{self, Loaded, Policy};
use crate::rules::spell::duration;
use crate::settings;
use crate::worker::due::{self, Count};
use crate::worker::waiting::Key;

#[pgrx::pg_extern(sql = r"
CREATE FUNCTION why_not(name text, key jsonb) RETURNS text
    LANGUAGE c CALLED ON NULL INPUT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION why_not(text, jsonb) IS
    'Why a row has not been cancelled (yet), in one sentence. The key is that of expiry.event, 64-bit integers as numbers or strings, or of a key of one column the bare value. Touches nothing and waits for nobody. Errors: 42704 unknown policy; 42501 not its owner; 22004 name is NULL; 22023 the key does not fit the relation.';
")]
fn why_not(name: Option<&str>, key: Option<pgrx::AnyElement>) -> String {
    installed::check();
    let Some(name) = name else { Error::from(PolicyError::NullName).raise() };
    policy::check_may_act_for(name);
    answer(name, key.map(|key| key.datum())).unwrap_or_else(|error| error.raise())
}

fn answer(name: &str, key: Option<Datum>) -> Result<String, Error> {
    let (loaded, policy) = policy::look(name)?;
    let Some(policy) = policy else {
        let why = of_the_policy(name, &loaded);
        return Ok(format!("The row cannot be looked at: {}.", why.unwrap_or_default()));
    };
    let row = match row::look(&policy, key)? {
        Looked::Found(row) => row,
        Looked::Missing => return Ok(format!("There is no such row in {}.", policy.relation_sql)),
        Looked::TableIsLocked => {
            let who = process::who_locks(policy.relation);
            return Ok(format!("The table {} is locked by {who}.", policy.relation_sql));
        }
        Looked::Fails(error) => {
            return Ok(format!("The predicate {} fails on the row: {error}.", policy.predicate));
        }
    };
    let now = clock::now();
    if let Some(sentence) = is_not_due(&policy, &loaded, &row, now) {
        return Ok(sentence);
    }
    let overdue = match row.deadline {
        Some(deadline) if deadline.is_finite() => format!("since {}", duration(now.since(deadline))),
        _ => "always".into(),
    };
    let because = why_not_yet(&policy, &loaded, &row, now);
    Ok(match because {
        Because::Parked(why) => format!("The row {why}."),
        Because::Hindered(why) => format!("The row is due {overdue}, but {why}."),
        Because::Nothing(when) => format!("The row is due {overdue}, and {when}."),
    })
}

enum Because {
    /// The row itself waits.
    Parked(String),
    /// Something else is in the way.
    Hindered(String),
    Nothing(String),
}

/// What the row itself says.
fn is_not_due(policy: &Policy, loaded: &Loaded, row: &Row, now: Timestamp) -> Option<String> {
    if !row.is_pending {
        let values: Vec<String> =
            row.values.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let values = if values.is_empty() { String::new() } else { format!(": {}", values.join(", ")) };
        return Some(format!(
            "The row is not pending, the predicate {} is not true of it{values}.",
            policy.predicate
        ));
    }
    let column = &policy.deadline.column_sql;
    let Some(deadline) = row.deadline else {
        return Some(format!("The row is never due: its deadline, {column}, is NULL."));
    };
    if deadline == Timestamp::INFINITY {
        return Some(format!("The row is never due: its deadline, {column}, is infinite."));
    }
    if let Some(starts_at) = policy.starts_at.filter(|starts_at| deadline < *starts_at) {
        return Some(format!(
            "The row is left alone: its deadline, {deadline}, is older than the policy's starts_at, {starts_at}."
        ));
    }
    (deadline > now).then(|| {
        let left = duration(deadline.since(now));
        let besides = of_the_policy(&policy.name, loaded);
        let besides = besides.map_or(String::new(), |why| format!("; besides, {why}"));
        format!("The row is not due yet: its deadline is {deadline}, in {left}{besides}.")
    })
}

fn why_not_yet(policy: &Policy, loaded: &Loaded, row: &Row, now: Timestamp) -> Because {
    let failure = Failure::of(&policy.name, &row.key);
    if let Some(failure) = failure.as_ref().filter(|failure| failure.next_attempt_at.is_none()) {
        return Because::Parked(failure.quarantined(policy, &row.key));
    }
    if let Some(why) = of_the_policy(&policy.name, loaded) {
        return Because::Hindered(why);
    }
    let worker = match process::worker_of(policy.owner) {
        Ok(pid) => pid,
        // Somebody may be running it by hand.
        Err(why) => return Because::Hindered(process::who(&row.holders, None).map_or(why, locked)),
    };
    if let Some(failure) = failure.filter(|failure| failure.next_attempt_at > Some(now)) {
        return Because::Parked(failure.waits(policy, now));
    }
    if let Some(holder) = process::who(&row.holders, Some(worker)) {
        return Because::Hindered(locked(holder));
    }
    match asides::find(&policy.name, &row.key) {
        Some((Aside::Declined(times), until)) if until > now => {
            return Because::Parked(format!(
                "is due, but the cancel function has declined it {}, and is asked again at {until}, in {}",
                counted(times),
                duration(until.since(now)),
            ));
        }
        Some((Aside::Collided(times), until)) if until > now => {
            return Because::Parked(format!(
                "is due, but the cancel function needs something that another transaction has locked, {}: \
                 tried again in {}",
                counted(times),
                duration(until.since(now)),
            ));
        }
        _ => (),
    }
    if let Some(busy) = process::busy(worker) {
        return Because::Hindered(format!("the worker (pid {worker}) {busy}"));
    }
    match backlog(policy, row, now) {
        Some(backlog) => Because::Hindered(backlog),
        None => Because::Nothing(format!(
            "the worker (pid {worker}) takes it at its next look, within {}",
            duration(settings::lookahead_ms() * 1000)
        )),
    }
}

fn locked(holder: String) -> String {
    format!("it is locked by {holder}")
}

fn counted(times: u32) -> String {
    if times == 1 { "once".into() } else { format!("{times} times") }
}

/// Why nothing of the policy is cancelled.
fn of_the_policy(name: &str, loaded: &Loaded) -> Option<String> {
    let resume = || format!("SELECT expiry.resume({}) lets it go on", quoted(name));
    let reason = match loaded {
        Loaded::Restored => {
            format!("policy \"{name}\" came with a dump or a cloned database: {}", resume())
        }
        Loaded::Paused => format!("policy \"{name}\" is paused: {}", resume()),
        Loaded::Stopped(error) => {
            let hint = error
                .hint
                .as_ref()
                .map_or(String::new(), |hint| format!(" ({})", hint.trim_end_matches('.')));
            format!("policy \"{name}\" is stopped: {error}{hint}")
        }
        _ if !settings::enabled() => "pg_expiry.enabled is off".into(),
        Loaded::Indexing(policy) => indexing(policy),
        Loaded::Ready(_) => return of_the_progress(name),
    };
    Some(reason)
}

/// What the worker has written of the policy.
fn of_the_progress(name: &str) -> Option<String> {
    const STATE: &str = "SELECT state, reason FROM expiry.progress WHERE policy = $1";
    let state = catalog::read(STATE, &[(pg_sys::TEXTOID, spi::text(name))], |row, n| {
        (row.expect::<String>(n, 0), row.get::<String>(n, 1).unwrap_or_default())
    });
    let (state, reason) = state.into_iter().next()?;
    match state.as_str() {
        "tripped" => Some(format!(
            "policy \"{name}\" has paused itself: {reason}; it tries a few rows by and by, and at once when \
             the function is replaced"
        )),
        "stopped" => Some(format!("policy \"{name}\" is stopped: {reason}")),
        _ => None,
    }
}

fn indexing(policy: &Policy) -> String {
    const BUILD: &str = "\
        SELECT phase, CASE WHEN blocks_total > 0 THEN 100 * blocks_done / blocks_total END,
               nullif(current_locker_pid, 0)::int
        FROM pg_stat_progress_create_index WHERE datname = current_database() AND (relid = $1
            OR relid IN (SELECT relid FROM pg_partition_tree($1)))
        LIMIT 1";
    let build = catalog::read(BUILD, &[(pg_sys::OIDOID, Some(policy.relation.into()))], |row, n| {
        (row.expect::<String>(n, 0), row.get::<i64>(n, 1), row.get::<i32>(n, 2))
    });
    match build.first() {
        None => "its deadline index is still to be built".into(),
        Some((phase, percent, locker)) => {
            let percent = percent.map_or(String::new(), |percent| format!(", {percent} %"));
            let locker = locker.map_or(String::new(), |pid| format!(", waits for pid {pid}"));
            format!("its deadline index is being built: {phase}{percent}{locker}")
        }
    }
}

/// The rows that are due before this one, if they are more than a batch or two.
fn backlog(policy: &Policy, row: &Row, now: Timestamp) -> Option<String> {
    const WAITING: &str = "\
        SELECT count(*) FROM (SELECT FROM expiry.failure WHERE policy = $1
            AND (next_attempt_at IS NULL OR next_attempt_at > clock_timestamp()) LIMIT 10001) waiting";
    const SHORT_S: i64 = 1;
    let waiting = catalog::read(WAITING, &[(pg_sys::TEXTOID, spi::text(&policy.name))], |row, n| {
        row.expect::<i64>(n, 0)
    });
    let until = row.deadline.filter(|deadline| deadline.is_finite())?;
    let (ahead, shown) = match due::along_the_index(|| due::count_until(policy, until)) {
        Count::MoreThanCounted => (due::COUNTED, Count::MoreThanCounted),
        Count::Exactly(count) | Count::About(count) => {
            let ahead = (count - 1 - waiting.first().copied().unwrap_or_default()).max(0);
            (ahead, Count::Exactly(ahead))
        }
    };
    let rate = policy.max_rate.map(i64::from).or_else(|| recent_rate(&policy.name, now));
    let batch = i64::try_from(policy.batch_size).unwrap_or(i64::MAX);
    let is_bounded = shown == Count::MoreThanCounted;
    let Some(rate) = rate else {
        return (is_bounded || ahead > batch).then(|| format!("{shown} rows are due before it"));
    };
    let seconds = ahead / rate.max(1);
    let estimate = match seconds {
        ..SHORT_S if is_bounded => format!(", at {rate} a second"),
        ..SHORT_S => return None,
        _ => {
            let least = if is_bounded { "at least" } else { "about" };
            format!(": at {rate} a second that takes {least} {}", duration(seconds * 1_000_000))
        }
    };
    Some(format!("{shown} rows are due before it{estimate}"))
}

/// Rows a second in the last few seconds, as the latest events show it; the first of them only say since when.
fn recent_rate(policy: &str, now: Timestamp) -> Option<i64> {
    const RECENT: &str = "\
        SELECT count(*) FILTER (WHERE occurred_at > since), min(since)
        FROM (SELECT occurred_at, min(occurred_at) OVER () AS since
              FROM (SELECT policy, occurred_at FROM expiry.event ORDER BY id DESC LIMIT 1000) e
              WHERE policy = $1 AND occurred_at > clock_timestamp() - interval '10 s') recent";
    let recent = catalog::read(RECENT, &[(pg_sys::TEXTOID, spi::text(policy))], |row, n| {
        (row.expect::<i64>(n, 0), row.get(n, 1).map(Timestamp))
    });
    let (rows, since) = recent.into_iter().next().filter(|(rows, _)| *rows > 0)?;
    Some((rows * 1_000_000 / now.since(since?).max(1)).max(1))
}

/// A row of `expiry.failure`.
struct Failure {
    attempts: i32,
    error: String,
    failed_at: Timestamp,
    /// NULL: quarantined.
    next_attempt_at: Option<Timestamp>,
}

impl Failure {
    fn of(policy: &str, key: &Key) -> Option<Self> {
        const FAILURE: &str = "\
            SELECT attempts, message || ' (SQLSTATE ' || sqlstate || ')', failed_at, next_attempt_at
            FROM expiry.failure WHERE policy = $1 AND md5(key::text) = md5($2::text)";
        let arguments =
            [(pg_sys::TEXTOID, spi::text(policy)), (pg_sys::JSONBOID, Some(json::from_bytes(key)))];
        catalog::read(FAILURE, &arguments, |row, n| Self {
            attempts: row.expect(n, 0),
            error: row.expect(n, 1),
            failed_at: Timestamp(row.expect(n, 2)),
            next_attempt_at: row.get(n, 3).map(Timestamp),
        })
        .pop()
    }

    fn quarantined(&self, policy: &Policy, key: &Key) -> String {
        format!(
            "is quarantined: attempt {} of {} failed at {} with: {}; SELECT expiry.retry({}, {}) lets it go again",
            self.attempts,
            policy.max_attempts,
            self.failed_at,
            self.error,
            quoted(&policy.name),
            quoted(&json::text_of(key)),
        )
    }

    fn waits(&self, policy: &Policy, now: Timestamp) -> String {
        let next = self.next_attempt_at.unwrap_or(now);
        format!(
            "waits for attempt {} of {} at {next}, in {}, after: {}",
            self.attempts + 1,
            policy.max_attempts,
            duration(next.since(now)),
            self.error,
        )
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
