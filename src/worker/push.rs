//! Whether a policy's events are notified. A listener that is stuck in a transaction keeps the cluster's
//! notification queue from being emptied, and when it is full, every COMMIT that notifies fails: ours, and
//! everybody's. So notifications are withheld long before, events are recorded all the same, and when the
//! queue has drained, listeners are told from where to catch up.
//!
//! From where is written by the transaction that withholds (see `event`), so that it is known whoever
//! withheld, a worker that was killed or a `CALL expiry.run()`.

use pgrx::{PgSqlErrorCode, pg_sys};

use super::failure::in_own_transaction;
use crate::pg::caught::PgError;
use crate::pg::spi::Spi;
use crate::pg::{log, notify, role, spi};
use crate::policy::{Notify, Policy};
use crate::rules::payload;
use crate::rules::queue::Queue;

/// The state of one policy's notifications.
#[derive(Debug, Default)]
pub struct Push {
    /// `None`: whether somebody has withheld any is still to be read.
    queue: Option<Queue>,
}

const READ: &str = "SELECT FROM expiry.progress WHERE policy = $1 AND withheld_after IS NOT NULL";

/// Waits for whoever is withholding just now.
const TAKE: &str = "
UPDATE expiry.progress p SET withheld_after = NULL
FROM (SELECT withheld_after FROM expiry.progress WHERE policy = $1 AND withheld_after IS NOT NULL FOR UPDATE) before
WHERE p.policy = $1 RETURNING before.withheld_after";

impl Push {
    /// Whether the next batch may notify. Tells listeners to catch up when it may again.
    pub fn is_open(&mut self, policy: &Policy) -> Result<bool, PgError> {
        if policy.notify == Notify::Off {
            return Ok(true);
        }
        let before = match self.queue {
            Some(queue) => queue,
            None => read(&policy.name)?,
        };
        let queue = before.at_usage(notify::queue_usage());
        match (before, queue) {
            (Queue::Open, Queue::Withheld) => warn(policy),
            (Queue::Withheld, Queue::Open) => resync(policy)?,
            _ => (),
        }
        // Only now: after an error all of it is to be done again.
        self.queue = Some(queue);
        Ok(queue == Queue::Open)
    }

    /// Whether listeners wait for being told to catch up.
    pub fn is_withheld(&self) -> bool {
        self.queue == Some(Queue::Withheld)
    }

    /// Somebody else may have withheld some: it is read again.
    pub fn want_read(&mut self) {
        if !self.is_withheld() {
            self.queue = None;
        }
    }

    /// The queue was full at a commit.
    pub fn overflowed(&mut self, policy: &Policy) {
        if !self.is_withheld() {
            warn(policy);
        }
        self.queue = Some(Queue::Withheld);
    }
}

fn read(policy: &str) -> Result<Queue, PgError> {
    in_own_transaction(|spi| queue_of(spi, policy))
}

fn queue_of(spi: &Spi, policy: &str) -> Queue {
    let withheld = spi.run_once(READ, &[(pg_sys::TEXTOID, spi::text(policy))]);
    if withheld.is_empty() { Queue::Open } else { Queue::Withheld }
}

/// Whether a client's own transaction may notify. It leaves it to the workers to tell listeners to catch up.
pub fn is_open_for_client(spi: &Spi, policy: &Policy) -> bool {
    let before = role::as_superuser_at_home(|| queue_of(spi, &policy.name));
    before == Queue::Open && before.at_usage(notify::queue_usage()) == Queue::Open
}

fn resync(policy: &Policy) -> Result<(), PgError> {
    in_own_transaction(|spi| {
        let before = spi.run_once(TAKE, &[(pg_sys::TEXTOID, spi::text(&policy.name))]);
        if !before.is_empty() {
            notify::notify(&policy.channel, &payload::resync(&policy.name, before.expect(0, 0)));
        }
    })?;
    log::info(format!("pg_expiry: policy \"{}\": notifications go on", policy.name));
    Ok(())
}

fn warn(policy: &Policy) {
    let message = format!(
        "pg_expiry: policy \"{}\": notifications are withheld, the notification queue fills up; events are recorded",
        policy.name
    );
    let hint = "A session that listens is stuck in a transaction: see pg_stat_activity.";
    log::warning(PgSqlErrorCode::ERRCODE_WARNING, message, Some(hint));
}
