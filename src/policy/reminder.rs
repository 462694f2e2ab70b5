//! `remind_before`: the intervals of a policy's reminders, from the caller or from the setting.

use pgrx::datum::Interval;
use pgrx::pg_sys;

use super::definition::spelled;
use crate::error::PolicyError;
use crate::pg::{catalog, spi, xact};
use crate::settings;

const MOST: usize = 16;
const RANGE_US: std::ops::RangeInclusive<i64> = 1_000_000..=366 * MICROS_PER_DAY;
const MICROS_PER_DAY: i64 = 86_400_000_000;

/// Microseconds before the deadline, the longest first, each once. A day is 24 hours.
pub fn before_us(given: Option<Vec<Option<Interval>>>) -> Result<Vec<i64>, PolicyError> {
    let intervals = match (given, settings::remind_before()) {
        (Some(given), _) => given,
        (None, Some(text)) => parsed(&text)?,
        (None, None) => Vec::new(),
    };
    if intervals.len() > MOST {
        return Err(invalid(format!("{} intervals", intervals.len())));
    }
    let mut all = intervals.into_iter().map(micros).collect::<Result<Vec<i64>, _>>()?;
    all.sort_unstable_by(|one, other| other.cmp(one));
    all.dedup();
    Ok(all)
}

fn micros(interval: Option<Interval>) -> Result<i64, PolicyError> {
    let interval = interval.ok_or_else(|| invalid("NULL".into()))?;
    let micros = i64::from(interval.days()).saturating_mul(MICROS_PER_DAY).saturating_add(interval.micros());
    if interval.months() == 0 && RANGE_US.contains(&micros) {
        Ok(micros)
    } else {
        Err(invalid(spelled(interval)))
    }
}

fn parsed(text: &str) -> Result<Vec<Option<Interval>>, PolicyError> {
    const PARSE: &str = "SELECT $1::interval[]";
    let braced = if text.trim_start().starts_with('{') { text.to_owned() } else { format!("{{{text}}}") };
    let parse = || {
        catalog::read(PARSE, &[(pg_sys::TEXTOID, spi::text(&braced))], |row, n| {
            row.expect::<Vec<Option<Interval>>>(n, 0)
        })
    };
    match xact::subtransaction(parse) {
        Ok(rows) => Ok(rows.into_iter().flatten().collect()),
        Err(error) if error.is_about_input() => Err(invalid(text.to_owned())),
        Err(error) => error.raise(),
    }
}

fn invalid(value: String) -> PolicyError {
    PolicyError::InvalidValue {
        parameter: "remind_before",
        value,
        hint: "It holds at most 16 intervals from 1 second to 366 days, in days, hours and less: '{1 day,10 min}'. '{}' means no reminders.",
    }
}
