//! Alerts: what is wrong with a policy, when that is said, and the JSON that says it.

use serde::Serialize;
use serde_json::value::RawValue;

use super::payload::rfc3339;

/// What can be wrong. Each is said once, and once more when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Every call fails: the policy has paused itself.
    Tripped,
    /// Something that the policy needs is gone.
    Stopped,
    /// The backlog is older than it may be.
    Lagging,
    /// Rows have used up their attempts.
    Quarantined,
}

impl Trouble {
    pub const ALL: [Self; 4] = [Self::Tripped, Self::Stopped, Self::Lagging, Self::Quarantined];

    /// As in payloads and in `expiry.progress`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tripped => "tripped",
            Self::Stopped => "stopped",
            Self::Lagging => "lagging",
            Self::Quarantined => "quarantined",
        }
    }
}

/// Whether a backlog counts as lagging: it begins at `limit_us`, and is over at half of that, so that one
/// near the limit is not said again and again.
pub fn is_lagging(was_lagging: bool, overdue_us: Option<i64>, limit_us: i64) -> bool {
    let limit_us = if was_lagging { limit_us / 2 } else { limit_us };
    overdue_us.is_some_and(|overdue_us| overdue_us > limit_us)
}

/// What a notification says; what does not apply is left out.
#[derive(Debug, Default, Serialize)]
pub struct Alert<'a> {
    pub v: u8,
    pub kind: &'a str,
    pub database: &'a str,
    pub policy: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Of `recovered`: from what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_deadline: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overdue_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
}

/// Texts and keys beyond this are cut, or left out: all together must fit a notification, escaped.
const LONGEST: usize = 1000;

impl<'a> Alert<'a> {
    /// `kind` is a [`Trouble`]'s name, or `recovered`; `at_us` as in `timestamptz`.
    pub fn new(kind: &'a str, database: &'a str, policy: &'a str, at_us: i64) -> Self {
        Self { v: 1, kind, database, policy, at: rfc3339(at_us), ..Self::default() }
    }

    pub fn because(mut self, reason: Option<&'a str>) -> Self {
        self.reason = reason.map(|reason| {
            let end = (0..=LONGEST.min(reason.len())).rev().find(|end| reason.is_char_boundary(*end));
            &reason[..end.unwrap_or(0)]
        });
        self
    }

    /// `key` is JSON text; one that is too long is left out.
    pub fn of_row(mut self, key: &'a str, attempts: u32) -> Self {
        self.key = (key.len() <= LONGEST).then(|| serde_json::from_str(key).ok()).flatten();
        self.attempts = Some(attempts);
        self
    }

    pub fn lagging(mut self, deadline_us: i64, overdue_us: i64) -> Self {
        (self.oldest_deadline, self.overdue_ms) = (rfc3339(deadline_us), Some(overdue_us / 1000));
        self
    }

    pub fn payload(&self) -> String {
        serde_json::to_string(self).expect("an alert is always JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_near_the_limit_is_said_once() {
        let mut was = false;
        let states: Vec<bool> = [Some(9), Some(11), Some(9), Some(11), Some(6), Some(5), Some(9), None]
            .into_iter()
            .map(|overdue| {
                was = is_lagging(was, overdue, 10);
                was
            })
            .collect();
        assert_eq!(states, [false, true, true, true, true, false, false, false]);
    }

    #[test]
    fn payload_fits_whatever_is_in_it() {
        let long = "\u{1}ü".repeat(3000);
        let key = serde_json::json!({ "id": "\u{1}".repeat(900) }).to_string();
        for key in [key.as_str(), "{\"id\":\"1\"}"] {
            let alert =
                Alert::new("quarantined", &long[..63], &long[..63], 0).because(Some(&long)).of_row(key, 8);
            let payload = alert.payload();
            assert!(payload.len() < 8000, "{}", payload.len());
            let value: serde_json::Value = serde_json::from_str(&payload).expect("JSON");
            assert_eq!(value["attempts"], 8);
        }
    }
}
