//! Whether a policy's events are notified. A listener that is stuck in a transaction keeps the cluster's
//! notification queue from being emptied, and when it is full, every COMMIT that notifies fails: ours, and
//! everybody's. So notifications are withheld long before, events are recorded all the same, and when the
//! queue has drained, listeners are told from where to catch up.

use pgrx::pg_sys;

use super::failure::in_own_transaction;
use crate::pg::caught::PgError;
use crate::pg::{notify, spi};
use crate::policy::{Notify, Policy};
use crate::rules::payload;
use crate::rules::queue::Queue;

/// The state of one policy's notifications.
#[derive(Debug, Default)]
pub struct Push {
    queue: Queue,
    /// Whether a former worker has withheld any is read once.
    is_known: bool,
}

const READ: &str = "SELECT withheld_after FROM expiry.progress WHERE policy = $1";

impl Push {
    /// Whether the next batch may notify. Tells listeners to catch up when it may again.
    pub fn is_open(&mut self, policy: &Policy) -> Result<bool, PgError> {
        if policy.notify == Notify::Off {
            return Ok(true);
        }
        if !self.is_known {
            self.queue = read(&policy.name)?;
            self.is_known = true;
        }
        let before = self.queue;
        self.queue = before.at_usage(notify::queue_usage());
        match (before, self.queue) {
            (Queue::Open, Queue::Withheld { .. }) => warn(policy),
            (Queue::Withheld { after: Some(after) }, Queue::Open) => {
                pgrx::log!("pg_expiry: policy \"{}\": notifications go on", policy.name);
                let resync = payload::resync(&policy.name, after);
                in_own_transaction(|_| notify::notify(&policy.channel, &resync))?;
            }
            _ => (),
        }
        Ok(self.queue.is_open())
    }

    /// Whether listeners wait for being told to catch up.
    pub fn is_withheld(&self) -> bool {
        !self.queue.is_open()
    }

    /// The event after which nothing was notified, as long as that is so.
    pub fn withheld_after(&self) -> Option<i64> {
        match self.queue {
            Queue::Withheld { after } => after,
            Queue::Open => None,
        }
    }

    /// A batch has recorded events without notifying them, this one first.
    pub fn withheld(&mut self, first: i64) {
        self.queue = self.queue.withholding(first);
    }

    /// The queue was full at a commit.
    pub fn overflowed(&mut self, policy: &Policy) {
        if self.queue.is_open() {
            warn(policy);
        }
        self.queue = self.queue.at_usage(1.0);
    }
}

fn read(policy: &str) -> Result<Queue, PgError> {
    in_own_transaction(|spi| {
        let rows = spi.run_once(READ, &[(pg_sys::TEXTOID, spi::text(policy))]);
        let after: Option<i64> = if rows.is_empty() { None } else { rows.get(0, 0) };
        after.map_or(Queue::Open, |after| Queue::Withheld { after: Some(after) })
    })
}

fn warn(policy: &Policy) {
    pgrx::warning!(
        "pg_expiry: policy \"{}\": notifications are withheld, the notification queue fills up; events are recorded. A session that listens is stuck in a transaction: see pg_stat_activity",
        policy.name
    );
}
