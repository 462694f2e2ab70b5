//! Each cancelled row as a line in the server's log, for who has asked for that.

use super::batch::Done;
use crate::pg::{json, log};
use crate::policy::Policy;
use crate::rules::payload::rfc3339;
use crate::settings;

/// What is in the log has been committed.
pub fn log_cancellations(policy: &Policy, done: &Done) {
    if !settings::log_cancellations() {
        return;
    }
    let rows = done.cancelled.iter().zip(&done.deadlines).zip(done.lateness_us());
    for ((key, deadline), lateness_us) in rows {
        let deadline = deadline.filter(|deadline| deadline.is_finite()).and_then(|d| rfc3339(d.0));
        let late = lateness_us.map_or(String::new(), |us| format!(", {} ms late", us / 1000));
        log::info(format!(
            "pg_expiry: policy \"{}\" has cancelled row {}, deadline {}{late}",
            policy.name,
            json::text_of(key),
            deadline.as_deref().unwrap_or("-infinity"),
        ));
    }
}
