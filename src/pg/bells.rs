//! Who is to be woken by whom: latches and counters in shared memory, read and written without a lock,
//! since every transaction that changes a policy or calls expiry.wake() passes here at its commit.
//!
//! Bell n belongs to database n of the launcher's board, which gives bells out and takes them back; a
//! stale look at one that has changed hands wakes somebody in vain, and nothing worse.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

use pgrx::pg_sys;
use pgrx::pg_sys::Oid;

use super::clock::Timestamp;
use super::shmem::Lockless;

pub const DATABASES: usize = 256;
pub const WORKERS: usize = 64;
const CALLERS: usize = 32;

/// One database with the extension, or one that somebody wants for himself.
#[derive(Default)]
pub struct DatabaseBell {
    /// 0: free.
    database: AtomicU32,
    /// Counts changes of policies and failures.
    generation: AtomicU64,
    /// Counts calls to look at the rows, changes included.
    looks: AtomicU64,
    /// No process of ours before then.
    held_until: AtomicI64,
    /// By expiry.stop_workers().
    is_stopped: AtomicBool,
    /// Some owner here has no worker and waits for his turn: the launcher must hear of calls too.
    has_waiting: AtomicBool,
    /// A prepared transaction has changed policies.
    has_prepared: AtomicBool,
}

/// One worker that sleeps or works.
#[derive(Default)]
struct WorkerBell {
    /// 0: free.
    database: AtomicU32,
    latch: AtomicUsize,
    is_to_leave: AtomicBool,
}

pub struct Bells {
    launcher: AtomicUsize,
    /// pg_database must be looked at.
    databases_changed: AtomicBool,
    /// Owners wait for a worker to give up its place: workers tell the launcher when they are idle.
    turns_wanted: AtomicBool,
    /// Databases without a bell of their own that something has changed in; 0: free.
    callers: [AtomicU32; CALLERS],
    /// There were more of them.
    callers_overflowed: AtomicBool,
    databases: [DatabaseBell; DATABASES],
    workers: [WorkerBell; WORKERS],
}

impl Default for Bells {
    fn default() -> Self {
        Self {
            launcher: AtomicUsize::default(),
            databases_changed: AtomicBool::default(),
            turns_wanted: AtomicBool::default(),
            callers: std::array::from_fn(|_| AtomicU32::default()),
            callers_overflowed: AtomicBool::default(),
            databases: std::array::from_fn(|_| DatabaseBell::default()),
            workers: std::array::from_fn(|_| WorkerBell::default()),
        }
    }
}

pub static BELLS: Lockless<Bells> = Lockless::new(c"pg_expiry bells");

/// The latch of this process, which stays where it is as long as the server runs.
pub(super) fn own_latch() -> usize {
    // SAFETY: a process with shared memory has a PGPROC.
    unsafe { &raw mut (*pg_sys::MyProc).procLatch as usize }
}

pub(super) fn ring(latch: &AtomicUsize) {
    let latch = latch.load(SeqCst);
    if latch != 0 {
        // SAFETY: the address of a latch in an entry of the PGPROC array, which all processes have at
        // the same address (they are forked). If the entry has a new owner, he wakes once in vain.
        // SetLatch cannot raise.
        unsafe { pg_sys::SetLatch(latch as *mut pg_sys::Latch) };
    }
}

impl DatabaseBell {
    pub fn generation(&self) -> u64 {
        self.generation.load(SeqCst)
    }

    pub fn looks(&self) -> u64 {
        self.looks.load(SeqCst)
    }

    pub fn held_until(&self) -> Timestamp {
        Timestamp(self.held_until.load(SeqCst))
    }

    pub fn hold_until(&self, instant: Timestamp) {
        self.held_until.store(instant.0, SeqCst);
    }

    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(SeqCst)
    }

    pub fn set_stopped(&self, is_stopped: bool) {
        self.is_stopped.store(is_stopped, SeqCst);
    }

    pub fn set_waiting(&self, has_waiting: bool) {
        self.has_waiting.store(has_waiting, SeqCst);
    }

    pub fn set_prepared(&self) {
        self.has_prepared.store(true, SeqCst);
    }

    pub fn has_prepared(&self) -> bool {
        self.has_prepared.load(SeqCst)
    }
}

impl Bells {
    /// Gives bell `index` to `database`, or to nobody (invalid). Counters go on counting.
    pub fn assign(&self, index: usize, database: Oid) {
        let bell = &self.databases[index];
        bell.set_stopped(false);
        bell.hold_until(Timestamp(0));
        bell.set_waiting(false);
        bell.has_prepared.store(false, SeqCst);
        bell.database.store(database.to_u32(), SeqCst);
    }

    pub fn of(&self, index: usize) -> &DatabaseBell {
        &self.databases[index]
    }

    pub fn find(&self, database: Oid) -> Option<&DatabaseBell> {
        self.databases.iter().find(|bell| bell.database.load(SeqCst) == database.to_u32())
    }

    /// Something in `database` has changed: its deadlines, or if `policies` its policies or failures.
    /// Cannot raise: called after a commit.
    pub fn ring_database(&self, database: Oid, policies: bool) {
        match self.find(database) {
            Some(bell) => {
                if policies {
                    bell.generation.fetch_add(1, SeqCst);
                }
                bell.looks.fetch_add(1, SeqCst);
                if policies || bell.has_waiting.load(SeqCst) {
                    ring(&self.launcher);
                }
            }
            None if policies => {
                let database = database.to_u32();
                let is_noted = self.callers.iter().any(|caller| {
                    caller.load(SeqCst) == database
                        || caller.compare_exchange(0, database, SeqCst, SeqCst).is_ok()
                });
                if !is_noted {
                    self.callers_overflowed.store(true, SeqCst);
                }
                ring(&self.launcher);
            }
            None => {}
        }
        self.ring_workers(database);
    }

    fn workers_of(&self, database: Oid) -> impl Iterator<Item = &WorkerBell> {
        self.workers.iter().filter(move |worker| worker.database.load(SeqCst) == database.to_u32())
    }

    fn ring_workers(&self, database: Oid) {
        self.workers_of(database).for_each(|worker| ring(&worker.latch));
    }

    /// Asks all workers of a database to end as soon as they can.
    pub fn ask_workers_to_leave(&self, database: Oid) {
        for worker in self.workers_of(database) {
            worker.is_to_leave.store(true, SeqCst);
            ring(&worker.latch);
        }
    }

    /// Asks the worker with bell `index` to end as soon as it can.
    pub fn ask_worker_to_leave(&self, index: usize) {
        if let Some(worker) = self.workers.get(index) {
            worker.is_to_leave.store(true, SeqCst);
            ring(&worker.latch);
        }
    }

    pub fn is_worker_to_leave(&self, index: usize) -> bool {
        self.workers[index].is_to_leave.load(SeqCst)
    }

    /// Gives this process the bell `index`.
    pub fn take_worker(&self, index: usize, database: Oid) {
        let worker = &self.workers[index];
        worker.is_to_leave.store(false, SeqCst);
        worker.latch.store(own_latch(), SeqCst);
        worker.database.store(database.to_u32(), SeqCst);
    }

    pub fn free_worker(&self, index: usize) {
        let worker = &self.workers[index];
        worker.database.store(0, SeqCst);
        worker.latch.store(0, SeqCst);
    }

    /// Makes this process the launcher.
    pub fn take_launcher(&self) {
        self.launcher.store(own_latch(), SeqCst);
    }

    pub fn free_launcher(&self) {
        self.launcher.store(0, SeqCst);
    }

    pub fn ring_launcher(&self) {
        ring(&self.launcher);
    }

    /// A database was made, dropped, renamed or altered; the launcher is still to be woken.
    pub fn note_databases_changed(&self) {
        self.databases_changed.store(true, SeqCst);
    }

    /// Whether pg_database has changed since the last call.
    pub fn take_databases_changed(&self) -> bool {
        self.databases_changed.swap(false, SeqCst)
    }

    /// Databases without a bell in which something has changed since the last call; `None`: too many
    /// to know.
    pub fn take_callers(&self) -> Option<Vec<Oid>> {
        let has_overflowed = self.callers_overflowed.swap(false, SeqCst);
        let callers = self.callers.iter().map(|caller| caller.swap(0, SeqCst));
        let callers = callers.filter(|database| *database != 0).map(Oid::from_u32).collect();
        (!has_overflowed).then_some(callers)
    }

    pub fn set_turns_wanted(&self, wanted: bool) {
        self.turns_wanted.store(wanted, SeqCst);
    }

    pub fn are_turns_wanted(&self) -> bool {
        self.turns_wanted.load(SeqCst)
    }
}
