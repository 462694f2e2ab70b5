//! The side of sessions: they look, stop workers, hold a database for themselves, ask for an index.

use pgrx::pg_sys::Oid;

use super::assistants::Assistant;
use super::{Board, Name, change, look};
use crate::pg::bgworker;
use crate::pg::clock::{self, Timestamp};
use crate::rules::launcher::{Event, State};

/// A row of `expiry.workers`.
#[derive(Clone, Debug)]
pub struct Row {
    pub database: Oid,
    pub owner: Oid,
    pub pid: Option<i32>,
    pub state: &'static str,
    pub policies: u32,
    pub started_at: Option<Timestamp>,
    pub last_pass: Option<Timestamp>,
}

/// All owners with policies and their workers.
pub fn overview() -> Vec<Row> {
    let now = clock::now();
    look(|board, bells| {
        let posts = board.posts.iter().filter(|post| post.owner != Oid::INVALID);
        let workers = posts.map(|post| {
            let bell = bells.find(post.database);
            let process = &post.process;
            let has_come = process.pid != 0;
            Row {
                database: post.database,
                owner: post.owner,
                pid: has_come.then_some(process.pid),
                state: match process.state {
                    State::Starting => "starting",
                    State::Running => "running",
                    State::Leaving => "leaving",
                    _ if bell.is_some_and(|bell| bell.is_stopped()) => "stopped",
                    _ if bell.is_some_and(|bell| bell.held_until() > now) => "held off",
                    State::NoSlot => "no slot",
                    State::Resting => "restarting",
                    State::Idle => "waiting",
                },
                policies: post.policies,
                started_at: has_come.then_some(post.started_at),
                last_pass: post.last_pass,
            }
        });
        let assistants = board.assistants.iter().filter(|assistant| assistant.process.pid != 0);
        workers.chain(assistants.map(assistant_row)).collect()
    })
    .unwrap_or_default()
}

/// An assistant is a row too, as long as it is there.
fn assistant_row(assistant: &Assistant) -> Row {
    Row {
        database: assistant.database,
        owner: assistant.owner,
        pid: Some(assistant.process.pid),
        state: "assisting",
        policies: 1,
        started_at: Some(Timestamp(assistant.process.since)),
        last_pass: None,
    }
}

impl Board {
    /// Pids of our processes in `database`, after asking each to end.
    fn ask(&mut self, database: Oid) -> Vec<i32> {
        let now = clock::now().0;
        let workers = self.posts.iter_mut().filter(|post| post.database == database);
        let processes = workers.map(|post| &mut post.process);
        let known = self.databases.iter_mut().filter(|known| known.oid == database);
        let others = known.flat_map(|known| [&mut known.scout, &mut known.builder]);
        let assistants = self.assistants.iter_mut().filter(|assistant| assistant.database == database);
        let assistants = assistants.map(|assistant| &mut assistant.process);
        let alive = processes.chain(others).chain(assistants).filter(|process| process.is_alive());
        alive
            .map(|process| {
                process.on(Event::Asked, now);
                process.pid
            })
            .filter(|pid| *pid != 0)
            .collect()
    }
}

/// How many of our processes are in `database`.
pub fn processes_of(database: Oid) -> usize {
    look(|board, _| {
        let workers = board.posts.iter().filter(|post| post.database == database).map(|post| &post.process);
        let known = board.databases.iter().filter(|known| known.oid == database);
        let others = known.flat_map(|known| [&known.scout, &known.builder]);
        let assistants = board.assistants.iter().filter(|assistant| assistant.database == database);
        let assistants = assistants.map(|assistant| &assistant.process);
        workers.chain(others).chain(assistants).filter(|process| process.pid != 0).count()
    })
    .unwrap_or(0)
}

/// Asks all our processes in `database` to end as soon as their batch is done.
pub fn ask_to_leave(database: Oid) {
    change(|board, bells| {
        board.ask(database);
        bells.ask_workers_to_leave(database);
    });
}

/// Ends all our processes in `database`, whatever they are doing.
pub fn terminate(database: Oid) {
    // Under the lock no process can leave the board: none of the pids is somebody else's by now.
    change(|board, _| board.ask(database).into_iter().for_each(bgworker::terminate));
}

/// Keeps all our processes out of `database` until then; those that are in it stay.
pub fn hold(database: Oid, until: Timestamp) {
    change(|board, bells| {
        if let Some(index) = board.enrol(bells, database) {
            bells.of(index).hold_until(until);
        }
    });
}

/// Keeps all our processes out of `database`, or lets them in again. False: the board is full.
pub fn set_stopped(database: Oid, is_stopped: bool) -> bool {
    change(|board, bells| {
        let index = board.enrol(bells, database);
        if let Some(index) = index {
            bells.of(index).set_stopped(is_stopped);
            bells.note_databases_changed();
            bells.ring_launcher();
        }
        index.is_some()
    })
    .unwrap_or(false)
}

/// Whether `expiry.stop_workers()` keeps our processes out of `database`.
pub fn is_stopped(database: Oid) -> bool {
    look(|_, bells| bells.find(database).is_some_and(|bell| bell.is_stopped())).unwrap_or(false)
}

/// Has a process of its own build the index of this policy: soon, if no other is being built in this
/// database. False: ask again.
pub fn request_index_build(database: Oid, policy: &str) -> bool {
    change(|board, bells| {
        let (Some(index), Some(name)) = (board.find(database), Name::new(policy)) else { return false };
        let known = &mut board.databases[index];
        let is_free = known.build.is_empty() && !known.builder.is_alive();
        if is_free {
            known.build = name;
            bells.ring_launcher();
        }
        is_free
    })
    .unwrap_or(false)
}
