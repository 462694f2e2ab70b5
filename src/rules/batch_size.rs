//! How many rows the next batch claims: as many as fit the target time, and fewer while a failing row
//! is hunted down.
//!
//! A batch that fails without naming its row is rolled back and halved. The suspects are then the rows of
//! that batch, in claim order; each success clears some, each failure narrows them down, until a batch of
//! one fails: that is the row. About twice the work of the batch, whatever its size.

/// Decides sizes from what happened.
#[derive(Clone, Debug)]
pub struct BatchSize {
    cap: usize,
    /// What fits the target time, as far as is known.
    fitting: usize,
    /// Rows among which one makes the batch fail; 0: none known.
    suspects: usize,
    /// Rows whose subtransactions a backend can cache, as far as is known.
    roomy: usize,
    /// When another session was last seen waiting, in microseconds.
    awaited_us: Option<i64>,
}

/// Subtransactions that a batch should do with. A backend caches 64 (PGPROC_MAX_CACHED_SUBXIDS); beyond
/// them every session that reads the rows becomes slow.
const ROOM: usize = 48;

/// By how much a batch should be shorter while customers wait for what it has locked.
const SHORTER: i64 = 20;

/// For how long after one has waited others are expected: those who were held up together come again together,
/// and between them is time for a batch as long as their absence.
const EXPECTED_US: i64 = 1_000_000;

/// A first guess that even a slow function finishes in the target time.
const FIRST: usize = 32;

impl BatchSize {
    pub fn new(cap: usize) -> Self {
        let cap = cap.max(1);
        Self { cap, fitting: FIRST.min(cap), suspects: 0, roomy: usize::MAX, awaited_us: None }
    }

    /// The size of the next batch, at least 1.
    pub fn next(&self) -> usize {
        let size = match self.suspects {
            0 => self.fitting,
            1 => 1,
            suspects => (suspects / 2).min(self.fitting),
        };
        size.min(self.roomy)
    }

    /// How long a batch should take, after one of `rows` that ended at `now_us` and was awaited by another session
    /// or was not. A small one takes its time for the commit: to be smaller would make it no shorter.
    pub fn fair_time(&mut self, rows: usize, target_us: i64, is_awaited: bool, now_us: i64) -> i64 {
        if is_awaited {
            self.awaited_us = Some(now_us);
        }
        let is_expected = self.awaited_us.is_some_and(|then| (0..EXPECTED_US).contains(&(now_us - then)));
        if is_expected && rows > FIRST { target_us / SHORTER } else { target_us }
    }

    /// A batch of `rows` took `elapsed_us` and committed.
    pub fn succeeded(&mut self, rows: usize, elapsed_us: i64, target_us: i64) {
        if self.suspects > 0 {
            self.suspects = self.suspects.saturating_sub(rows.max(1));
            return;
        }
        if elapsed_us > target_us {
            self.fitting = (self.fitting / 2).max(1);
        } else if rows >= self.fitting && elapsed_us <= target_us / 2 {
            self.fitting = (self.fitting * 2).min(self.cap);
        }
    }

    /// The calls for a batch of `rows` left so many subtransactions: a cancel function that catches errors
    /// has one or more a row.
    pub fn left_subtransactions(&mut self, rows: usize, subtransactions: usize) {
        self.roomy = match subtransactions {
            0 => usize::MAX,
            some => (ROOM * rows / some).max(1),
        };
    }

    /// A batch of `rows` failed and nobody knows which row it was.
    pub fn failed(&mut self, rows: usize) {
        self.suspects = rows.max(1);
    }

    /// The failing row is known (and will not be claimed again soon): the hunt is over.
    pub fn found(&mut self) {
        self.suspects = 0;
    }

    /// A row failed as number `position` (from 0) of its batch: those before it are known to work.
    pub fn failed_at(&mut self, position: usize) {
        self.suspects = 0;
        self.fitting = self.fitting.min(position.max(1));
    }

    /// The batch met a lock or a deadlock: claim less at a time, so that checkouts wait less.
    pub fn collided(&mut self) {
        self.suspects = 0;
        self.fitting = (self.fitting / 2).max(1);
    }
}
