//! Assistants: more workers for one policy, as long as it has a backlog. A worker asks for them; the launcher
//! starts them if there is room, and has them leave when an owner waits for a worker of his own.

use pgrx::pg_sys::Oid;

use super::{ASSISTANTS, Board, NO_BELL, Name, change};
use crate::pg::bells::Bells;
use crate::pg::clock::Timestamp;
use crate::rules::launcher::{Event, Micros, Process};

/// What an assistant is to do.
#[derive(Clone, Debug)]
pub struct Assistance {
    pub owner: Oid,
    pub policy: String,
    /// Where the worker was in the backlog when it asked.
    pub floor: Timestamp,
}

/// A place for an assistant: free, asked for (it has no process), or taken.
#[derive(Clone, Copy)]
pub(super) struct Assistant {
    /// Invalid: free.
    pub database: Oid,
    pub owner: Oid,
    policy: Name,
    floor: Timestamp,
    pub process: Process,
    pub bell: usize,
}

impl Default for Assistant {
    fn default() -> Self {
        Self {
            database: Oid::INVALID,
            owner: Oid::INVALID,
            policy: Name::default(),
            floor: Timestamp::NEGATIVE_INFINITY,
            process: Process::default(),
            bell: NO_BELL,
        }
    }
}

impl Assistant {
    fn is_asked_for(&self) -> bool {
        self.database != Oid::INVALID && !self.process.is_alive()
    }

    /// Frees the place. Its tickets go on counting, so that who comes too late is known.
    pub(super) fn vacate(&mut self) {
        let process = Process { ticket: self.process.ticket, ..Process::default() };
        *self = Self { process, ..Self::default() };
    }

    pub(super) fn assistance(&self) -> Assistance {
        Assistance { owner: self.owner, policy: self.policy.text(), floor: self.floor }
    }
}

impl Board {
    pub(super) fn living_assistants(&self) -> usize {
        self.assistants.iter().filter(|assistant| assistant.process.is_alive()).count()
    }

    /// Those that are to be started now, at most `room`; the worker asks again for the others. With no room
    /// (`None`), or in a database that is not served any more, those that live are to leave.
    pub(super) fn plan_assistants(
        &mut self,
        bells: &Bells,
        mut room: Option<usize>,
        is_served: impl Fn(Oid) -> bool,
        now: Micros,
    ) -> Vec<usize> {
        let mut start = Vec::new();
        for (index, assistant) in self.assistants.iter_mut().enumerate() {
            let may_work = room.is_some() && is_served(assistant.database);
            if assistant.process.is_alive() && !may_work {
                assistant.process.on(Event::Asked, now);
                bells.ask_worker_to_leave(assistant.bell);
            } else if assistant.is_asked_for() {
                match &mut room {
                    Some(places @ 1..) if may_work => {
                        *places -= 1;
                        start.push(index);
                    }
                    _ => assistant.vacate(),
                }
            }
        }
        start
    }

    /// Frees the places of those that never came, or were killed.
    pub(super) fn tidy_assistants(&mut self, now: Micros) {
        self.assistants.iter_mut().filter(|a| a.process.is_lost(now)).for_each(Assistant::vacate);
    }

    fn want_assistants(&mut self, database: Oid, work: &Assistance, most: usize) -> bool {
        let Some(policy) = Name::new(&work.policy) else { return false };
        let is_for_it = |a: &&Assistant| a.database == database && a.policy.text() == work.policy;
        let missing = most.saturating_sub(self.assistants.iter().filter(is_for_it).count());
        let free = self.assistants.iter_mut().filter(|assistant| assistant.database == Oid::INVALID);
        let mut are_new = false;
        for assistant in free.take(missing) {
            let process = assistant.process;
            *assistant =
                Assistant { database, owner: work.owner, policy, floor: work.floor, process, bell: NO_BELL };
            are_new = true;
        }
        are_new
    }
}

/// Asks for assistants, so that there are `most` for this policy, if the cluster has room for them.
pub fn request_assistants(database: Oid, work: &Assistance, most: usize) {
    change(|board, bells| {
        if board.want_assistants(database, work, most.min(ASSISTANTS)) {
            bells.ring_launcher();
        }
    });
}
