//! Rows that wait for their next attempt. They stay due and at the left edge of the index, so the claim
//! itself passes over them, before it locks or counts: they hold up nobody, and cost only a sweep.
//!
//! Failed rows are also in `expiry.failure`; declined and collided ones are known here only, so that a
//! new worker asks them at once.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use crate::pg::clock::Timestamp;
use crate::pg::json;

/// A row's key: the bytes of its jsonb form.
pub type Key = Vec<u8>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Calls failed so often; in `expiry.failure`.
    Failed { attempts: u32 },
    /// The function said no, so often in a row.
    Declined { times: u32 },
    /// A lock or a deadlock was in the way.
    Collided,
    /// It failed while the function was taken for broken, and this was not counted.
    Suspected,
}

#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Infinity: quarantined.
    pub until: Timestamp,
    pub reason: Reason,
    /// Whatever the reason: so often in a row a lock or a deadlock was in the way.
    pub collisions: u32,
}

impl Wait {
    pub fn new(until: Timestamp, reason: Reason) -> Self {
        Self { until, reason, collisions: 0 }
    }
}

/// The waiting rows of one policy.
#[derive(Debug, Default)]
pub struct Waiting {
    rows: HashMap<Key, Wait>,
    /// What [`Self::next`] has found, until something changes.
    next: Cell<Option<Option<Timestamp>>>,
    /// What [`Self::has_quarantined`] has found, until something changes.
    has_quarantined: Cell<Option<bool>>,
}

impl Waiting {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn changing(&mut self) -> &mut HashMap<Key, Wait> {
        self.next.set(None);
        self.has_quarantined.set(None);
        &mut self.rows
    }

    pub fn set(&mut self, key: Key, wait: Wait) {
        self.changing().insert(key, wait);
    }

    pub fn get(&self, key: &[u8]) -> Option<Wait> {
        self.rows.get(key).copied()
    }

    pub fn remove(&mut self, key: &[u8]) -> Option<Wait> {
        self.changing().remove(key)
    }

    /// The earliest instant at which a row may be asked again.
    pub fn next(&self) -> Option<Timestamp> {
        let found = self.next.get().unwrap_or_else(|| {
            self.rows.values().map(|wait| wait.until).filter(|until| until.is_finite()).min()
        });
        self.next.set(Some(found));
        found
    }

    /// The earliest instant at which a row that something was in the way of may be asked again.
    pub fn next_collided(&self) -> Option<Timestamp> {
        self.rows.values().filter(|wait| wait.collisions > 0).map(|wait| wait.until).min()
    }

    /// Keys of the rows in `expiry.failure`.
    pub fn failed(&self) -> impl Iterator<Item = &Key> {
        self.rows.iter().filter(|(_, wait)| matches!(wait.reason, Reason::Failed { .. })).map(|(key, _)| key)
    }

    /// Whether any row has used up its attempts.
    pub fn has_quarantined(&self) -> bool {
        let found = self
            .has_quarantined
            .get()
            .unwrap_or_else(|| self.rows.values().any(|wait| wait.until == Timestamp::INFINITY));
        self.has_quarantined.set(Some(found));
        found
    }

    /// Replaces the failed rows by those of the table.
    pub fn replace_failed(&mut self, rows: impl IntoIterator<Item = (Key, Wait)>) {
        let known = self.changing();
        known.retain(|_, wait| !matches!(wait.reason, Reason::Failed { .. }));
        known.extend(rows);
    }

    /// After a sweep that has claimed none of them: rows whose time had come are locked, or not due any
    /// more. Those known here only are forgotten, the others looked at again after `later`.
    pub fn postpone(&mut self, now: Timestamp, later: Timestamp) {
        if self.next().is_none_or(|next| next > now) {
            return;
        }
        let rows = self.changing();
        rows.retain(|_, wait| {
            let had_its_chance = wait.until <= now;
            if had_its_chance {
                wait.until = later;
            }
            !had_its_chance || matches!(wait.reason, Reason::Failed { .. })
        });
        rows.shrink_to(rows.len() * 2);
    }

    /// The function works: rows that failed with it may go at once.
    pub fn acquit(&mut self, now: Timestamp) {
        for wait in self.changing().values_mut().filter(|wait| wait.reason == Reason::Suspected) {
            wait.until = now;
        }
    }
}

/// Which rows a claim passes over.
struct Claiming {
    waiting: Rc<RefCell<Waiting>>,
    now: Timestamp,
    passing: Passing,
}

/// Which of the rows that wait are passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// By a claim: all whose time has not come, and if `takes_collided` is not so, those that collided.
    Claim { takes_collided: bool },
    /// By who wants to know how old the backlog is: those that have had their chance.
    Parked,
}

thread_local! {
    /// What `expiry.is_waiting()` looks into while a claim runs.
    static CLAIMING: RefCell<Option<Claiming>> = const { RefCell::new(None) };
}

/// Lets `expiry.is_waiting()` answer for these rows from now on.
pub fn exclude(waiting: &Rc<RefCell<Waiting>>, now: Timestamp, passing: Passing) {
    CLAIMING.set(Some(Claiming { waiting: Rc::clone(waiting), now, passing }));
}

/// For the claim's own WHERE. False in every session that is not claiming.
#[pgrx::pg_extern(sql = r"
CREATE FUNCTION is_waiting(key jsonb) RETURNS boolean
    LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';
COMMENT ON FUNCTION is_waiting(jsonb) IS
    'Internal: whether the running claim must pass over the row with this key, because it waits for its next attempt. False outside of a claim.';
")]
fn is_waiting(key: pgrx::AnyElement) -> bool {
    CLAIMING.with_borrow(|claiming| {
        claiming.as_ref().is_some_and(|claiming| {
            let wait = claiming.waiting.borrow().get(&json::bytes(key.datum()));
            wait.is_some_and(|wait| match claiming.passing {
                Passing::Claim { takes_collided } => {
                    wait.until > claiming.now || wait.collisions > 0 && !takes_collided
                }
                Passing::Parked => {
                    wait.until > claiming.now
                        && matches!(wait.reason, Reason::Failed { .. } | Reason::Declined { .. })
                }
            })
        })
    })
}
