//! What the user has said about a policy: the columns of `expiry.policy` that may be NULL. A parameter
//! that is `None` follows the setting of the same name.

use pgrx::datum::Interval;

use crate::error::PolicyError;
use crate::pg::catalog;
use crate::pg::clock::Timestamp;
use crate::rules::deadline::{EpochUnit, Timeout};
use crate::settings;

use super::{Notify, reminder};

#[derive(Clone, Debug, Default)]
pub struct Definition {
    pub deadline: Option<String>,
    pub predicate: Option<String>,
    pub cancel_function: Option<String>,
    pub timeout: Option<Interval>,
    pub time_zone: Option<String>,
    pub epoch: Option<String>,
    pub channel: Option<String>,
    pub notify: Option<String>,
    pub batch_size: Option<i32>,
    pub max_attempts: Option<i32>,
    pub retry_delay: Option<Interval>,
    pub max_rate: Option<i32>,
    pub remind_before: Option<Vec<Option<Interval>>>,
    pub remind_late: Option<bool>,
    pub starts_at: Option<Timestamp>,
}

impl Definition {
    /// Whether it names code, or columns that have code.
    pub fn says_what_runs(&self) -> bool {
        self.deadline.is_some() || self.predicate.is_some() || self.cancel_function.is_some()
    }

    /// What `given` says, and where it is silent, what `self` said.
    pub fn altered_by(self, given: Self) -> Self {
        Self {
            deadline: given.deadline.or(self.deadline),
            predicate: given.predicate.or(self.predicate),
            cancel_function: given.cancel_function.or(self.cancel_function),
            timeout: given.timeout.or(self.timeout),
            time_zone: given.time_zone.or(self.time_zone),
            epoch: given.epoch.or(self.epoch),
            channel: given.channel.or(self.channel),
            notify: given.notify.or(self.notify),
            batch_size: given.batch_size.or(self.batch_size),
            max_attempts: given.max_attempts.or(self.max_attempts),
            retry_delay: given.retry_delay.or(self.retry_delay),
            max_rate: given.max_rate.or(self.max_rate),
            remind_before: given.remind_before.or(self.remind_before),
            remind_late: given.remind_late.or(self.remind_late),
            starts_at: given.starts_at.or(self.starts_at),
        }
    }

    /// The plain values, settings filled in, each checked. Names of columns and functions are not
    /// plain: `resolve` looks them up.
    pub fn values(&self) -> Result<Values, PolicyError> {
        Ok(Values {
            timeout: timeout(self.timeout)?,
            time_zone: self.time_zone.clone().or_else(settings::time_zone).map(time_zone).transpose()?,
            epoch: self.epoch.clone().or_else(settings::epoch).as_deref().map(epoch).transpose()?,
            channel: channel(self.channel.clone().or_else(settings::channel).unwrap_or_default())?,
            notify: notify(&self.notify.clone().or_else(settings::notify).unwrap_or_default())?,
            batch_size: within(
                "batch_size",
                self.batch_size.unwrap_or_else(settings::batch_size),
                1..=100_000,
                "It is the most rows in one transaction, from 1 to 100000.",
            )?,
            max_attempts: within(
                "max_attempts",
                self.max_attempts.unwrap_or_else(settings::max_attempts),
                1..=1_000,
                "It is the number of failing calls before a row is quarantined, from 1 to 1000.",
            )?,
            retry_delay_ms: retry_delay(self.retry_delay)?,
            max_rate: match within(
                "max_rate",
                self.max_rate.unwrap_or_else(settings::max_rate),
                0..=i32::MAX,
                "It is a number of rows a second; 0 means no limit.",
            )? {
                0 => None,
                rate => Some(rate),
            },
            remind_before_us: reminder::before_us(self.remind_before.clone())?,
            remind_late: self.remind_late.unwrap_or_else(settings::remind_late),
            starts_at: self.starts_at.filter(|&at| at != Timestamp::NEGATIVE_INFINITY),
        })
    }
}

/// See [`Definition::values`].
pub struct Values {
    pub timeout: Timeout,
    pub time_zone: Option<String>,
    pub epoch: Option<EpochUnit>,
    pub channel: String,
    pub notify: Notify,
    pub batch_size: usize,
    pub max_attempts: u32,
    pub retry_delay_ms: i64,
    pub max_rate: Option<u32>,
    pub remind_before_us: Vec<i64>,
    pub remind_late: bool,
    pub starts_at: Option<Timestamp>,
}

const MICROS_PER_DAY: i64 = 86_400_000_000;
/// Far enough from the ends of `timestamptz` for any deadline to be computed.
const MAX_TIMEOUT_DAYS: i64 = 366_000;

fn timeout(given: Option<Interval>) -> Result<Timeout, PolicyError> {
    let Some(interval) = given else {
        return Ok(Timeout { micros: (settings::timeout_s() * 1e6).round() as i64, ..Timeout::default() });
    };
    let timeout = Timeout { months: interval.months(), days: interval.days(), micros: interval.micros() };
    let days = i64::from(timeout.months) * 31 + i64::from(timeout.days) + timeout.micros / MICROS_PER_DAY;
    if timeout.months < 0 || timeout.days < 0 || timeout.micros < 0 || days > MAX_TIMEOUT_DAYS {
        return Err(PolicyError::InvalidValue {
            parameter: "timeout",
            value: spelled(interval),
            hint: "It is added to the deadline column: an interval from 0 to 1000 years, no part of it negative.",
        });
    }
    Ok(timeout)
}

fn retry_delay(given: Option<Interval>) -> Result<i64, PolicyError> {
    let Some(interval) = given else { return Ok(settings::retry_delay_ms()) };
    let ms = interval.as_micros() / 1000;
    match i64::try_from(ms) {
        Ok(ms) if (1..=86_400_000).contains(&ms) => Ok(ms),
        _ => Err(PolicyError::InvalidValue {
            parameter: "retry_delay",
            value: spelled(interval),
            hint: "It is the wait before the second attempt, from 1 millisecond to 1 day.",
        }),
    }
}

pub(super) fn spelled(interval: Interval) -> String {
    let parts = [(interval.months(), "months"), (interval.days(), "days")];
    let mut text: String =
        parts.iter().filter(|(n, _)| *n != 0).map(|(n, unit)| format!("{n} {unit} ")).collect();
    text += &format!("{} seconds", interval.micros() as f64 / 1e6);
    text
}

fn time_zone(name: String) -> Result<String, PolicyError> {
    if catalog::is_time_zone(&name) {
        return Ok(name);
    }
    Err(PolicyError::InvalidValue {
        parameter: "time_zone",
        value: name,
        hint: "pg_catalog.pg_timezone_names lists the names.",
    })
}

fn epoch(unit: &str) -> Result<EpochUnit, PolicyError> {
    match unit {
        "s" => Ok(EpochUnit::Seconds),
        "ms" => Ok(EpochUnit::Milliseconds),
        _ => Err(PolicyError::InvalidValue {
            parameter: "epoch",
            value: unit.into(),
            hint: "It is the unit of an integer column since 1970-01-01 00:00 UTC: s or ms.",
        }),
    }
}

fn channel(name: String) -> Result<String, PolicyError> {
    if (1..=63).contains(&name.len()) {
        return Ok(name);
    }
    Err(PolicyError::InvalidValue {
        parameter: "channel",
        value: name,
        hint: "A channel is a name of 1 to 63 bytes. notify => 'off' turns notifications off.",
    })
}

fn notify(how: &str) -> Result<Notify, PolicyError> {
    match how {
        "row" => Ok(Notify::Row),
        "batch" => Ok(Notify::Batch),
        "off" => Ok(Notify::Off),
        _ => Err(PolicyError::InvalidValue {
            parameter: "notify",
            value: how.into(),
            hint: "It is row (one notification an event), batch (several in one) or off.",
        }),
    }
}

fn within<T: TryFrom<i32>>(
    parameter: &'static str,
    value: i32,
    range: std::ops::RangeInclusive<i32>,
    hint: &'static str,
) -> Result<T, PolicyError> {
    match T::try_from(value) {
        Ok(wanted) if range.contains(&value) => Ok(wanted),
        _ => Err(PolicyError::InvalidValue { parameter, value: value.to_string(), hint }),
    }
}
