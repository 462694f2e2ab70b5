//! How a policy is at this moment, for `expiry.status`. Never waits for a lock on the user's table, and
//! never reads it without an index: a look at the status must always answer.

use super::due::{self, Count};
use crate::error::Error;
use crate::pg::clock::Timestamp;
use crate::pg::{catalog, clock, xact};
use crate::policy::index::{self, IndexState};
use crate::policy::{self, Loaded, Policy};
use crate::settings;

pub struct Probe {
    /// `active` leaves it to what the worker has written.
    pub state: &'static str,
    pub reason: Option<String>,
    pub backlog: Option<Count>,
    pub oldest_overdue_us: Option<i64>,
    pub next_deadline: Option<Timestamp>,
    pub index_state: &'static str,
}

pub fn of(name: &str) -> Result<Probe, Error> {
    let (loaded, policy) = policy::look(name)?;
    let (state, reason) = match &loaded {
        Loaded::Restored => ("restored", None),
        Loaded::Paused => ("paused", None),
        Loaded::Stopped(error) => ("stopped", Some(error.to_string())),
        _ if !settings::enabled() => ("disabled", None),
        Loaded::Indexing(_) => ("indexing", None),
        Loaded::Ready(_) => ("active", None),
    };
    let mut probe = Probe {
        state,
        reason,
        backlog: None,
        oldest_overdue_us: None,
        next_deadline: None,
        index_state: IndexState::Missing.name(),
    };
    if let Some(policy) = policy {
        let index_state = index::find(&policy);
        probe.index_state = index_state.name();
        if matches!(index_state, IndexState::Valid(_)) && catalog::try_lock_shared(policy.relation) {
            look_at_rows(&policy, &mut probe);
        }
    }
    Ok(probe)
}

fn look_at_rows(policy: &Policy, probe: &mut Probe) {
    let looked =
        xact::subtransaction(|| due::along_the_index(|| (due::count(policy), due::deadlines(policy))));
    match looked {
        Ok((backlog, (oldest, next))) => {
            probe.backlog = Some(backlog);
            probe.oldest_overdue_us =
                oldest.filter(|deadline| deadline.is_finite()).map(|deadline| clock::now().since(deadline));
            probe.next_deadline = next.filter(|deadline| deadline.is_finite());
        }
        // Whoever looks has cancelled his statement, or is told to end.
        Err(error) if error.sqlstate.starts_with("57") => error.raise(),
        // One policy must not keep the others from being seen.
        Err(error) => {
            probe.reason.get_or_insert_with(|| error.to_string());
        }
    }
}
