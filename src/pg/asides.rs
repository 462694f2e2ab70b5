//! Why a worker passes over a row for a while, where only its own memory knows: left in shared memory for
//! whoever asks. A small table that forgets the older of two rows that fall into one place.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::SeqCst};

use super::clock::Timestamp;
use super::shmem::Lockless;
use super::wake::own_database;

const PLACES: usize = 4096;

/// Why, and how often in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aside {
    /// The cancel function said no.
    Declined(u32),
    /// A lock or a deadlock was in the way.
    Collided(u32),
}

#[derive(Default)]
struct Place {
    /// 0: free, or just being written.
    row: AtomicU64,
    until: AtomicI64,
    /// Twice the number of times, and one more if it collided.
    why: AtomicU32,
}

pub struct Asides([Place; PLACES]);

impl Default for Asides {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Place::default()))
    }
}

pub static ASIDES: Lockless<Asides> = Lockless::new(c"pg_expiry asides");

fn number_of(policy: &str, key: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (own_database().to_u32(), policy, key).hash(&mut hasher);
    hasher.finish().max(1)
}

fn place_of(row: u64) -> Option<&'static Place> {
    ASIDES.get().map(|asides| &asides.0[(row % PLACES as u64) as usize])
}

/// The row with this key waits until then.
pub fn note(policy: &str, key: &[u8], why: Aside, until: Timestamp) {
    let row = number_of(policy, key);
    let Some(place) = place_of(row) else { return };
    place.row.store(0, SeqCst);
    place.until.store(until.0, SeqCst);
    place.why.store(
        match why {
            Aside::Declined(times) => times << 1,
            Aside::Collided(times) => times << 1 | 1,
        },
        SeqCst,
    );
    place.row.store(row, SeqCst);
}

/// What was noted last of the row, if it is still known; its time may be over.
pub fn find(policy: &str, key: &[u8]) -> Option<(Aside, Timestamp)> {
    let row = number_of(policy, key);
    let place = place_of(row)?;
    let is_it = || place.row.load(SeqCst) == row;
    let was_it = is_it();
    let (until, why) = (place.until.load(SeqCst), place.why.load(SeqCst));
    let times = why >> 1;
    let why = if why & 1 == 0 { Aside::Declined(times) } else { Aside::Collided(times) };
    (was_it && is_it()).then_some((why, Timestamp(until)))
}
