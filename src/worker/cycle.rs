//! One look at the policies of an owner.

use pgrx::pg_sys::Oid;

use crate::pg::clock::{self, Timestamp};
use crate::pg::role::BOOTSTRAP_SUPERUSER;
use crate::pg::xact;
use crate::{policy, settings};

/// What a look came to.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// When to look again.
    pub next_look: Timestamp,
    /// The earliest deadline that is known.
    pub next_due: Option<Timestamp>,
    /// Live policies of the owner; with none the worker ends.
    pub policies: usize,
}

/// What the worker remembers from one look to the next.
pub struct Cycle {
    owner: Oid,
}

impl Cycle {
    pub fn new(owner: Oid) -> Self {
        Self { owner }
    }

    pub fn look(&mut self) -> Look {
        let owners = match xact::in_transaction(BOOTSTRAP_SUPERUSER, policy::owners) {
            Ok(owners) => owners,
            Err(error) => panic!("{error}"),
        };
        Look {
            next_look: clock::now().plus_micros(settings::lookahead_ms() * 1_000),
            next_due: None,
            policies: owners.iter().filter(|owner| **owner == self.owner).count(),
        }
    }
}
