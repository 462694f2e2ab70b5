//! Every setting (GUC) of the extension: its static, unit, bounds and default, once, and a typed getter.
//!
//! Defaults of policies can be set in postgresql.conf, with ALTER SYSTEM, or per database with ALTER
//! DATABASE ... SET; by superusers only, since they name functions that run with other roles' rights; and
//! in a session not at all, because no worker would see it.

use std::ffi::{CStr, CString};

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};

use crate::pg::setting_hooks as hooks;

type Text = GucSetting<Option<CString>>;

const fn text(default: &'static CStr) -> Text {
    GucSetting::<Option<CString>>::new(Some(default))
}

static ENABLED: GucSetting<bool> = GucSetting::<bool>::new(true);
static DATABASES: Text = text(c"*");
static MAX_WORKERS: GucSetting<i32> = GucSetting::<i32>::new(4);
static WORKERS: GucSetting<i32> = GucSetting::<i32>::new(1);
static LOOKAHEAD: GucSetting<i32> = GucSetting::<i32>::new(1_000);
static TARGET_BATCH_TIME: GucSetting<i32> = GucSetting::<i32>::new(50);
static CANCEL_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(30_000);
static LOCK_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(500);
static EVENT_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(604_800);
static LOG_CANCELLATIONS: GucSetting<bool> = GucSetting::<bool>::new(false);
static ALERT_CHANNEL: Text = text(c"");
static ALERT_LAG: GucSetting<i32> = GucSetting::<i32>::new(300_000);

static DEADLINE: Text = text(c"");
static PREDICATE: Text = text(c"");
static CANCEL_FUNCTION: Text = text(c"");
static TIMEOUT: GucSetting<f64> = GucSetting::<f64>::new(0.0);
static TIME_ZONE: Text = text(c"");
static EPOCH: Text = text(c"");
static CHANNEL: Text = text(c"order_expired");
static NOTIFY: Text = text(c"row");
static BATCH_SIZE: GucSetting<i32> = GucSetting::<i32>::new(1_000);
static MAX_ATTEMPTS: GucSetting<i32> = GucSetting::<i32>::new(8);
static RETRY_DELAY: GucSetting<i32> = GucSetting::<i32>::new(1_000);
static MAX_RATE: GucSetting<i32> = GucSetting::<i32>::new(0);
static REMIND_BEFORE: Text = text(c"");
static REMIND_LATE: GucSetting<bool> = GucSetting::<bool>::new(false);

/// The largest number of worker processes in one cluster; sizes the slots in shared memory.
pub const WORKER_SLOTS: usize = 64;

/// The setting's value, `None` when it is empty.
fn text_of(setting: &Text) -> Option<String> {
    let value = setting.get()?.into_string().ok()?;
    (!value.is_empty()).then_some(value)
}

/// Off: no worker claims anything; on again: they go on.
pub fn enabled() -> bool {
    ENABLED.get()
}

/// Names of the databases that get workers, comma-separated, or `*`.
pub fn databases() -> String {
    text_of(&DATABASES).unwrap_or_default()
}

pub fn max_workers() -> usize {
    usize::try_from(MAX_WORKERS.get()).unwrap_or(0)
}

/// How many workers share the backlog of one policy.
pub fn workers() -> usize {
    usize::try_from(WORKERS.get()).unwrap_or(1)
}

pub fn lookahead_ms() -> i64 {
    i64::from(LOOKAHEAD.get())
}

pub fn target_batch_time_ms() -> i64 {
    i64::from(TARGET_BATCH_TIME.get())
}

/// How long one call of a cancel function may take; 0: for ever.
pub fn cancel_timeout_ms() -> i32 {
    CANCEL_TIMEOUT.get()
}

/// How long a worker waits for a lock; 0: for ever.
pub fn lock_timeout_ms() -> i32 {
    LOCK_TIMEOUT.get()
}

/// How long events are kept; 0: for ever.
pub fn event_retention_s() -> i64 {
    i64::from(EVENT_RETENTION.get())
}

/// Whether each cancelled row is a line in the server's log.
pub fn log_cancellations() -> bool {
    LOG_CANCELLATIONS.get()
}

/// Where workers notify that something is wrong; `None`: nowhere.
pub fn alert_channel() -> Option<String> {
    text_of(&ALERT_CHANNEL)
}

/// A backlog that is older is something wrong.
pub fn alert_lag_us() -> i64 {
    i64::from(ALERT_LAG.get()) * 1000
}

pub fn deadline() -> Option<String> {
    text_of(&DEADLINE)
}

pub fn predicate() -> Option<String> {
    text_of(&PREDICATE)
}

pub fn cancel_function() -> Option<String> {
    text_of(&CANCEL_FUNCTION)
}

/// Seconds.
pub fn timeout_s() -> f64 {
    TIMEOUT.get()
}

pub fn time_zone() -> Option<String> {
    text_of(&TIME_ZONE)
}

pub fn epoch() -> Option<String> {
    text_of(&EPOCH)
}

pub fn channel() -> Option<String> {
    text_of(&CHANNEL)
}

/// `row`, `batch` or `off`.
pub fn notify() -> Option<String> {
    text_of(&NOTIFY)
}

pub fn batch_size() -> i32 {
    BATCH_SIZE.get()
}

pub fn max_attempts() -> i32 {
    MAX_ATTEMPTS.get()
}

pub fn retry_delay_ms() -> i64 {
    i64::from(RETRY_DELAY.get())
}

/// Rows a second; 0: as fast as it goes.
pub fn max_rate() -> i32 {
    MAX_RATE.get()
}

/// Intervals as in an array literal, `{1 hour,10 min}`, with the braces or without.
pub fn remind_before() -> Option<String> {
    text_of(&REMIND_BEFORE)
}

pub fn remind_late() -> bool {
    REMIND_LATE.get()
}

fn bool(name: &'static CStr, short: &'static CStr, long: &'static CStr, setting: &'static GucSetting<bool>) {
    hooks::define_bool(name, short, long, setting, GucContext::Suset, GucFlags::empty());
}

fn int(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<i32>,
    (min, max): (i32, i32),
    unit: GucFlags,
) {
    hooks::define_int(name, short, long, setting, min, max, GucContext::Suset, unit);
}

fn string(name: &'static CStr, short: &'static CStr, long: &'static CStr, setting: &'static Text) {
    hooks::define_string(name, short, long, setting, GucContext::Suset, GucFlags::empty());
}

const NO_UNIT: GucFlags = GucFlags::empty();

/// Registers all of them and reserves the prefix. Called by `_PG_init`, preloaded or not.
pub fn register() {
    bool(
        c"pg_expiry.enabled",
        c"Whether workers cancel anything.",
        c"Off pauses every policy of the cluster, or with ALTER DATABASE ... SET of one database.",
        &ENABLED,
    );
    GucRegistry::define_string_guc(
        c"pg_expiry.databases",
        c"The databases that get workers.",
        c"Names, separated by commas; * stands for every database with the extension.",
        &DATABASES,
        GucContext::Sighup,
        GucFlags::empty(),
    );
    GucRegistry::define_int_guc(
        c"pg_expiry.max_workers",
        c"The largest number of workers that run at one time in the cluster.",
        c"Each takes one of max_worker_processes. More owners than workers take turns.",
        &MAX_WORKERS,
        0,
        WORKER_SLOTS as i32,
        GucContext::Sighup,
        GucFlags::empty(),
    );
    int(
        c"pg_expiry.workers",
        c"The largest number of workers that share the backlog of one policy.",
        c"They are there while the backlog lasts, within pg_expiry.max_workers. With more than one, the cancel function should take its locks in the same order always.",
        &WORKERS,
        (1, WORKER_SLOTS as i32),
        NO_UNIT,
    );
    int(c"pg_expiry.lookahead", c"How far ahead a worker knows deadlines.", c"Deadlines that are set less than this before they pass may be noticed late by as much; expiry.wake() makes a worker look at once.", &LOOKAHEAD, (10, 60_000), GucFlags::UNIT_MS);
    int(
        c"pg_expiry.target_batch_time",
        c"How long one transaction of a worker should take.",
        c"The batch grows while it is quicker and shrinks when it is slower.",
        &TARGET_BATCH_TIME,
        (1, 60_000),
        GucFlags::UNIT_MS,
    );
    int(
        c"pg_expiry.cancel_timeout",
        c"How long one call of a cancel function may take.",
        c"0 means no limit. The call fails with SQLSTATE 57014.",
        &CANCEL_TIMEOUT,
        (0, i32::MAX),
        GucFlags::UNIT_MS,
    );
    int(
        c"pg_expiry.lock_timeout",
        c"How long a worker waits for a lock.",
        c"At most four fifths of deadlock_timeout are used, so that in a deadlock the worker gives way, and less while waiting is in vain. 0 means no limit.",
        &LOCK_TIMEOUT,
        (0, i32::MAX),
        GucFlags::UNIT_MS,
    );

    int(
        c"pg_expiry.event_retention",
        c"How long events are kept.",
        c"0 means for ever. What a named consumer has not acknowledged is kept up to four times longer.",
        &EVENT_RETENTION,
        (0, i32::MAX),
        GucFlags::UNIT_S,
    );
    bool(
        c"pg_expiry.log_cancellations",
        c"Whether each cancelled row is a line in the server's log.",
        c"Policy, key, deadline and lateness, written when the row's transaction has committed.",
        &LOG_CANCELLATIONS,
    );
    hooks::define_channel(
        c"pg_expiry.alert_channel",
        c"Where workers notify that a policy is in trouble, or out of it.",
        c"A NOTIFY channel, at most 63 bytes. Empty means nowhere.",
        &ALERT_CHANNEL,
        GucContext::Suset,
        GucFlags::empty(),
    );
    int(
        c"pg_expiry.alert_lag",
        c"How old a backlog may become before workers notify pg_expiry.alert_channel.",
        c"The lag is over when it is half as old.",
        &ALERT_LAG,
        (1, i32::MAX),
        GucFlags::UNIT_MS,
    );

    string(
        c"pg_expiry.deadline",
        c"Default of the policies' deadline: the name of a column.",
        c"A timestamptz column; a timestamp or date with time_zone; an integer or bigint with epoch. Empty means that each policy names its own.",
        &DEADLINE,
    );
    string(
        c"pg_expiry.predicate",
        c"Default of the policies' predicate: an SQL condition on the row's own columns.",
        c"As of a partial index; names in it are looked up in the schema of the policy's relation. Empty means that each policy has its own.",
        &PREDICATE,
    );
    string(
        c"pg_expiry.cancel_function",
        c"Default of the policies' cancel function: name and argument types.",
        c"As in cancel_order(bigint), looked up in the schema of the policy's relation. Empty means that each policy names its own.",
        &CANCEL_FUNCTION,
    );
    hooks::define_real(
        c"pg_expiry.timeout",
        c"Default of the policies' timeout: added to the deadline column.",
        c"The wait after a start time, or the grace after a stated deadline. 0 means that the column is the deadline itself.",
        &TIMEOUT,
        0.0,
        3.2e9,
        GucContext::Suset,
        GucFlags::UNIT_S,
    );
    string(
        c"pg_expiry.time_zone",
        c"Default of the policies' time zone, for columns without one.",
        c"A name of pg_timezone_names; for timestamp and date columns, without effect on others. Empty means none.",
        &TIME_ZONE,
    );
    string(
        c"pg_expiry.epoch",
        c"Default of the policies' epoch unit, for integer columns: s or ms.",
        c"Counted since 1970-01-01 00:00 UTC; without effect on columns that are not integers. Empty means none.",
        &EPOCH,
    );
    string(
        c"pg_expiry.channel",
        c"Default of the policies' NOTIFY channel.",
        c"A name of 1 to 63 bytes, as in LISTEN.",
        &CHANNEL,
    );
    string(
        c"pg_expiry.notify",
        c"Default of the policies' notifications: row, batch or off.",
        c"row sends one notification an event, batch as many events in one as fit, off none. Events are recorded in any case.",
        &NOTIFY,
    );
    int(
        c"pg_expiry.batch_size",
        c"Default of the policies' batch size: the most rows in one transaction.",
        c"Batches are smaller as long as they take longer than pg_expiry.target_batch_time.",
        &BATCH_SIZE,
        (1, 100_000),
        NO_UNIT,
    );
    int(
        c"pg_expiry.max_attempts",
        c"Default of the policies' attempts before a failing row is quarantined.",
        c"A quarantined row is left alone until expiry.retry().",
        &MAX_ATTEMPTS,
        (1, 1_000),
        NO_UNIT,
    );
    int(
        c"pg_expiry.retry_delay",
        c"Default of the policies' wait before the second attempt; it doubles with each.",
        c"It grows up to an hour, by 12.5 % more or less. Rows that were declined are asked again after it, undoubled.",
        &RETRY_DELAY,
        (1, 86_400_000),
        GucFlags::UNIT_MS,
    );
    int(
        c"pg_expiry.max_rate",
        c"Default of the policies' rows a second.",
        c"0 means as fast as it goes.",
        &MAX_RATE,
        (0, i32::MAX),
        NO_UNIT,
    );
    string(
        c"pg_expiry.remind_before",
        c"Default of the policies' reminders: how long before the deadline, as in {1 hour,10 min}.",
        c"At most 16 intervals from 1 second to 366 days, without months. Empty means no reminders.",
        &REMIND_BEFORE,
    );
    bool(
        c"pg_expiry.remind_late",
        c"Default of the policies' late reminders: of rows that begin within the interval already.",
        c"Off means that such rows get no reminder of that interval.",
        &REMIND_LATE,
    );
    hooks::reserve_prefix(c"pg_expiry");
}
