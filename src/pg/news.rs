//! Sessions that wait for events: their latches in shared memory, rung when events are committed.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};

use pgrx::pg_sys;

use super::bells::{own_latch, ring};
use super::shmem::Lockless;
use super::wake::own_database;

/// More may wait; those beyond are not woken, and look by themselves.
const WAITERS: usize = 256;

#[derive(Default)]
struct Waiter {
    /// 0: free.
    process: AtomicU32,
    database: AtomicU32,
    latch: AtomicUsize,
}

impl Waiter {
    /// Whether the place was free, or its process is gone (it was killed), and is `process`'s now.
    fn is_taken_by(&self, process: u32) -> bool {
        let before = self.process.load(SeqCst);
        let is_free = before == 0 || !is_alive(before);
        is_free && self.process.compare_exchange(before, process, SeqCst, SeqCst).is_ok()
    }
}

fn is_alive(process: u32) -> bool {
    // SAFETY: signal 0 asks whether the process exists, and does nothing to it.
    i32::try_from(process).is_ok_and(|process| unsafe { libc::kill(process, 0) } == 0)
}

pub struct News([Waiter; WAITERS]);

impl Default for News {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Waiter::default()))
    }
}

pub static NEWS: Lockless<News> = Lockless::new(c"pg_expiry news");

impl News {
    /// Wakes those who wait in this database. Cannot raise.
    pub fn ring(&self) {
        let database = own_database().to_u32();
        for waiter in self.0.iter().filter(|waiter| waiter.database.load(SeqCst) == database) {
            ring(&waiter.latch);
        }
    }

    fn enter(&self) -> Option<&Waiter> {
        // SAFETY: a plain global.
        let process = unsafe { pg_sys::MyProcPid }.unsigned_abs();
        // A place that this process did not leave in order (an error) is its own again.
        let own = self.0.iter().find(|waiter| waiter.process.load(SeqCst) == process);
        let place = own.or_else(|| self.0.iter().find(|waiter| waiter.is_taken_by(process)))?;
        place.latch.store(own_latch(), SeqCst);
        place.database.store(own_database().to_u32(), SeqCst);
        Some(place)
    }
}

/// A place among those who are woken; given up when dropped.
pub struct Place(Option<&'static Waiter>);

impl Place {
    /// Takes a place, if there is one: see [`Place::is_woken`].
    pub fn take() -> Self {
        Self(NEWS.get().and_then(News::enter))
    }

    /// Whether this session is woken; if not, it must look by itself.
    pub fn is_woken(&self) -> bool {
        self.0.is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(waiter) = self.0 {
            waiter.database.store(0, SeqCst);
            waiter.latch.store(0, SeqCst);
            waiter.process.store(0, SeqCst);
        }
    }
}
