//! The points at which a test can hold a worker: see `src/pg/debug_point.rs`, which numbers and names them.

use postgres::Client;

#[derive(Clone, Copy, Debug)]
pub enum DebugPoint {
    Claimed = 1,
    Called = 2,
    Recorded = 3,
    Reminded = 4,
    Begun = 5,
}

impl DebugPoint {
    /// Holds whoever comes to it, until [`Self::release`] or the end of this session.
    #[track_caller]
    pub fn hold(self, client: &mut Client) {
        client.execute("SELECT pg_advisory_lock($1)", &[&self.lock()]).unwrap();
    }

    #[track_caller]
    pub fn release(self, client: &mut Client) {
        client.execute("SELECT pg_advisory_unlock($1)", &[&self.lock()]).unwrap();
    }

    /// Is true in `pg_stat_activity` of whoever is held.
    pub fn sign(self) -> String {
        format!("query = 'held at {self:?}'")
    }

    fn lock(self) -> i64 {
        0x6578_7069_7279_0000 + self as i64
    }
}
