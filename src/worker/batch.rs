//! One batch, in one transaction: claim, cancel, settle, record, notify, commit; all of it or nothing.
//!
//! When anything fails the whole transaction is rolled back, which also gives up the claim. What is known
//! about the failure comes out as a value, and is recorded by a transaction of its own.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pgrx::{PgSqlErrorCode, pg_sys};

use super::cancel::{self, Verdict};
use super::event::{self, Outcome};
use super::settle;
use super::statements::{DEADLINE, KEY_JSON, STATED, Statements, Which};
use super::waiting::{self, Key, Passing, Waiting};
use crate::pg::call::{forget_session_state, forget_what_survives_rollback};
use crate::pg::caught::PgError;
use crate::pg::clock::{self, Timestamp};
use crate::pg::debug_point::{self, DebugPoint};
use crate::pg::spi::{Rows, Spi};
use crate::pg::{array, guest, inval, json, lock, role, xact};
use crate::policy::Policy;
use crate::rules::batch_size::BatchSize;
use crate::settings;

/// When a worker that waits for a lock looks for a deadlock: sooner than the customer, so that it is the
/// worker who gives way.
const DEADLOCK_TIMEOUT: &str = "20ms";

/// What a batch is to do.
pub struct Order<'a> {
    pub policy: &'a Policy,
    pub statements: &'a Statements,
    pub waiting: &'a Rc<RefCell<Waiting>>,
    /// A probe: see [`Which::Youngest`].
    pub youngest_first: bool,
    /// Whether rows that something was in the way of, and whose wait is over, are taken as well.
    pub takes_collided: bool,
    pub floor: Timestamp,
    pub now: Timestamp,
    pub limit: usize,
    /// How long to wait for a lock; 0: for ever.
    pub lock_timeout_ms: i32,
    /// Whether events are notified; false while notifications are withheld.
    pub pushes: bool,
    /// A worker's session keeps nothing between calls; a client's is its own.
    pub in_worker: bool,
}

/// What a committed batch did.
#[derive(Debug, Default)]
pub struct Done {
    pub claimed: usize,
    pub cancelled: Vec<Key>,
    /// Of each cancelled row.
    pub deadlines: Vec<Option<Timestamp>>,
    /// When they were cancelled.
    pub occurred_at: Option<Timestamp>,
    pub declined: Vec<Key>,
    /// The deadline of the last row claimed.
    pub last_deadline: Option<Timestamp>,
    /// When nothing was claimed: the next deadline to come.
    pub next_deadline: Option<Timestamp>,
    /// How long the claim alone took.
    pub claim_time: Duration,
    /// Those that the calls left in the transaction.
    pub subtransactions: usize,
    /// Whether another session, which is no assistant, was waiting at its end for what it had locked.
    pub is_awaited: bool,
}

impl Done {
    /// Of each cancelled row, in microseconds; `None` without a finite deadline.
    pub fn lateness_us(&self) -> impl Iterator<Item = Option<i64>> {
        self.deadlines.iter().map(|deadline| {
            let deadline = deadline.filter(|deadline| deadline.is_finite());
            Some(self.occurred_at?.since(deadline?))
        })
    }

    /// What the next batches of `size` can learn from this one, which was begun at `since`.
    pub fn teach(&self, size: &mut BatchSize, since: Timestamp) {
        // Not the walk to the first row, which locks nothing and gets no shorter with a smaller batch.
        let claim_us = i64::try_from(self.claim_time.as_micros()).unwrap_or(i64::MAX);
        let now = clock::now();
        let target_us = settings::target_batch_time_ms() * 1000;
        let target_us = size.fair_time(self.claimed, target_us, self.is_awaited, now.0);
        size.succeeded(self.claimed, now.since(since) - claim_us, target_us);
        size.left_subtransactions(self.claimed, self.subtransactions);
    }
}

/// What a batch that was rolled back was doing.
#[derive(Clone, Debug)]
pub enum Stage {
    /// Not the fault of any row: the policy itself does not work.
    Claiming,
    /// The call for this row, number `position` of the batch.
    Calling { key: Key, position: usize },
    /// Somewhere in a batch of that many rows; `key` is the row if there was but one.
    Batch { key: Key, rows: usize },
    /// The function said that it was done with so many, and these are still due.
    LeftDue { keys: Vec<Key>, of: usize },
}

#[derive(Debug)]
pub struct Failed {
    pub stage: Stage,
    pub error: PgError,
    /// The failing call had used up cancel_timeout.
    pub timed_out: bool,
    /// All was done and recorded: it is the commit that failed.
    pub at_commit: bool,
}

/// Notes where a batch is, outside of what a rollback undoes.
pub struct Trace {
    stage: RefCell<Stage>,
    since: Cell<Instant>,
    is_recorded: Cell<bool>,
}

impl Trace {
    fn new() -> Self {
        Self {
            stage: RefCell::new(Stage::Claiming),
            since: Cell::new(Instant::now()),
            is_recorded: Cell::new(false),
        }
    }

    /// The call for row `position` begins.
    pub fn calling(&self, position: usize, key: &[u8]) {
        self.since.set(Instant::now());
        let mut stage = self.stage.borrow_mut();
        if let Stage::Calling { key: old, position: at } = &mut *stage {
            old.clear();
            old.extend_from_slice(key);
            *at = position;
        } else {
            *stage = Stage::Calling { key: key.to_vec(), position };
        }
    }

    /// Something begins that may fail on account of any of the `rows`.
    pub fn calling_batch(&self, rows: usize, first_key: impl FnOnce() -> Key) {
        self.since.set(Instant::now());
        self.set(Stage::Batch { key: if rows == 1 { first_key() } else { Key::new() }, rows });
    }

    fn set(&self, stage: Stage) {
        *self.stage.borrow_mut() = stage;
    }
}

/// Runs one batch to its commit.
pub fn run(order: &Order<'_>) -> Result<Done, Failed> {
    let trace = Trace::new();
    let lock_timeout = order.lock_timeout_ms.to_string();
    let settings = [
        ("search_path", order.policy.search_path.as_str()),
        ("lock_timeout", &lock_timeout),
        ("deadlock_timeout", DEADLOCK_TIMEOUT),
    ];
    let result = order.policy.in_transaction(&settings, |spi| steps(spi, order, &trace));
    if result.is_err() && order.in_worker {
        forget_what_survives_rollback();
    }
    let limit_ms = settings::cancel_timeout_ms();
    result.map_err(|error| Failed {
        at_commit: trace.is_recorded.get(),
        stage: trace.stage.into_inner(),
        error,
        timed_out: limit_ms > 0
            && trace.since.get().elapsed() >= Duration::from_millis(u64::from(limit_ms.unsigned_abs())),
    })
}

fn steps(spi: &Spi, order: &Order<'_>, trace: &Trace) -> Done {
    let Order { policy, statements, .. } = order;
    let which = match order.waiting.borrow().is_empty() {
        _ if order.youngest_first => Which::Youngest,
        true => Which::All,
        false => Which::NotWaiting,
    };
    waiting::exclude(order.waiting, order.now, Passing::Claim { takes_collided: order.takes_collided });
    let begun = Instant::now();
    let limit = i64::try_from(order.limit).unwrap_or(i64::MAX);
    let claimed = statements.claim(
        spi,
        which,
        &[Some(order.floor.datum()), Some(order.now.datum()), Some(limit.into())],
    );
    let claim_time = begun.elapsed();
    if claimed.is_empty() {
        let next = statements.next(spi, &[Some(order.now.datum())]);
        let next_deadline = (!next.is_empty()).then(|| Timestamp(instant(&next, 0, 0)));
        return Done { claim_time, next_deadline, ..Done::default() };
    }

    debug_point::reach(DebugPoint::Claimed);
    let key = |row| claimed.datum(row, KEY_JSON).expect("a key is never NULL");
    inval::begin_to_remember();
    let verdicts = cancel::call(policy, &claimed, order.in_worker, trace);
    trace.calling_batch(claimed.count, || json::bytes(key(0)));
    let left = settle::left_due(spi, policy, statements, &claimed, &verdicts, order.now);
    if !left.is_empty() {
        let of = verdicts.iter().filter(|verdict| verdict.is_done()).count();
        trace.set(Stage::LeftDue { keys: left, of });
        pgrx::ereport!(
            ERROR,
            PgSqlErrorCode::ERRCODE_SQL_ROUTINE_EXCEPTION,
            "the cancel function left the row due"
        );
    }
    fire_what_was_deferred(order.in_worker);
    debug_point::reach(DebugPoint::Called);

    let outcomes: Vec<Outcome> = (0..claimed.count)
        .filter_map(|row| {
            let Verdict::Done { data } = verdicts[row] else { return None };
            Some(Outcome {
                key: key(row),
                deadline: claimed.datum(row, DEADLINE).map(|at| Timestamp(at.value() as i64)),
                stated: claimed.datum(row, STATED).map(|at| Timestamp(at.value() as i64)),
                data,
            })
        })
        .collect();
    if !outcomes.is_empty() {
        event::wait_for_turn(settings::lock_timeout_ms());
    }
    let occurred_at = event::record(spi, policy, "cancelled", &outcomes, order.pushes);
    trace.is_recorded.set(true);

    debug_point::reach(DebugPoint::Recorded);

    let keys_where = |wanted: bool| -> Vec<Key> {
        (0..claimed.count)
            .filter(|row| verdicts[*row].is_done() == wanted)
            .map(|row| json::bytes(key(row)))
            .collect()
    };
    Done {
        claimed: claimed.count,
        declined: keys_where(false),
        cancelled: keys_where(true),
        deadlines: outcomes.iter().map(|outcome| outcome.deadline).collect(),
        occurred_at: Some(occurred_at),
        last_deadline: claimed.datum(claimed.count - 1, DEADLINE).map(|at| Timestamp(at.value() as i64)),
        next_deadline: None,
        claim_time,
        subtransactions: xact::subtransactions(),
        is_awaited: settings::workers() == 1 && lock::is_transaction_awaited(),
    }
}

/// Runs now what the calls have left to the commit. Whoever writes events holds up all others who do until his
/// commit, so nothing of an owner's may run in between: what triggers leave behind in their turn is refused.
fn fire_what_was_deferred(in_worker: bool) {
    xact::check_deferred_constraints();
    if in_worker {
        forget_session_state();
    } else {
        guest::refuse_held_cursors();
    }
    role::restricted_now(xact::check_deferred_constraints);
}

fn instant(rows: &Rows<'_>, row: usize, column: usize) -> i64 {
    rows.datum(row, column).map_or(i64::MAX, |at| at.value() as i64)
}

/// The oldest deadline of the backlog, without rows that have had their chance and wait for another.
pub fn oldest(
    policy: &Policy,
    statements: &Statements,
    waiting: &Rc<RefCell<Waiting>>,
    now: Timestamp,
) -> Result<Option<Timestamp>, PgError> {
    /// The year 3000 BC: whose deadline is -infinity has none that could have passed.
    const FIRST: Timestamp = Timestamp(-157_754_736_000_000_000);
    let floor = policy.starts_at.map_or(FIRST, |starts_at| starts_at.max(FIRST));
    policy.in_transaction(&[], |spi| {
        waiting::exclude(waiting, now, Passing::Parked);
        let rows = statements.oldest(spi, &[Some(floor.datum()), Some(now.datum())]);
        (!rows.is_empty()).then(|| rows.get(0, 0).map(Timestamp)).flatten()
    })
}

/// Which of these keys are of rows that are not due any more.
pub fn no_longer_due(
    policy: &Policy,
    statements: &Statements,
    keys: &[Key],
    now: Timestamp,
) -> Result<Vec<Key>, PgError> {
    policy.in_transaction(&[], |spi| {
        let asked: Vec<_> = keys.iter().map(|key| Some(json::from_bytes(key))).collect();
        let asked = array::of(pg_sys::JSONBOID, &asked);
        let due = statements.recheck(spi, &[Some(now.datum()), Some(asked)]);
        let due: HashSet<i64> = (0..due.count).map(|row| due.expect(row, 0)).collect();
        (1..).zip(keys).filter(|(n, _)| !due.contains(n)).map(|(_, key)| key.clone()).collect()
    })
}
