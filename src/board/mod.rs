//! The board: what launcher and processes know of each other, in shared memory. Which databases have
//! the extension, who owns policies there, which process serves whom, and how it is.
//!
//! `plan` is the launcher's side, `attendance` that of the processes it starts, `control` that of
//! sessions, which stop, hold off and look.

mod assistants;
mod attendance;
mod control;
mod plan;

pub use assistants::{Assistance, request_assistants};
pub use attendance::{
    Assignment, Found, Work, attach, connected, detach, is_to_leave, may_renew, publish, report, retire,
};
pub use control::{
    Row, ask_to_leave, hold, is_stopped, overview, processes_of, request_index_build, set_stopped, terminate,
};
pub use plan::{Task, is_any_leaving, note_ended, note_refused, plan, sync};

use pgrx::pg_sys::Oid;

use self::assistants::Assistant;

use crate::pg::asides::ASIDES;
use crate::pg::bells::{BELLS, Bells, DATABASES, WORKERS};
use crate::pg::clock::Timestamp;
use crate::pg::news::NEWS;
use crate::pg::shmem::{Area, Locked};
use crate::rules::launcher::Process;
use crate::settings;

const _: () = assert!(WORKERS == settings::WORKER_SLOTS, "a bell for every worker");

/// Owners with policies, in all databases.
const POSTS: usize = 1024;
/// Each has a worker's bell.
const ASSISTANTS: usize = WORKERS;

static BOARD: Locked<Board> = Locked::new(c"pg_expiry board");

/// What `_PG_init` has to ask shared memory for.
pub static AREAS: [&dyn Area; 4] = [&BOARD, &BELLS, &NEWS, &ASIDES];

/// A name of at most 63 bytes.
#[derive(Clone, Copy)]
pub struct Name {
    length: u8,
    bytes: [u8; 63],
}

impl Default for Name {
    fn default() -> Self {
        Self { length: 0, bytes: [0; 63] }
    }
}

impl Name {
    /// `None` when it is too long.
    fn new(name: &str) -> Option<Self> {
        let mut bytes = [0; 63];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(Self { length: name.len() as u8, bytes })
    }

    fn is_empty(self) -> bool {
        self.length == 0
    }

    fn text(self) -> String {
        String::from_utf8_lossy(&self.bytes[..usize::from(self.length)]).into_owned()
    }
}

/// A database that has the extension, or may have it, or is held off. Its bell has the same number.
#[derive(Clone, Copy)]
struct Database {
    /// Invalid: free.
    oid: Oid,
    /// Exists, takes connections, is listed in pg_expiry.databases; false until the launcher has seen it.
    is_open: bool,
    has_extension: bool,
    /// In a version that this library does not serve: it has no workers.
    has_other_version: bool,
    /// The generation of its policies when a scout last looked; `None`: another must.
    scouted: Option<u64>,
    scouted_at: Timestamp,
    scout: Process,
    /// The policy whose index is to be built next, or is being built.
    build: Name,
    builder: Process,
}

impl Default for Database {
    fn default() -> Self {
        Self {
            oid: Oid::INVALID,
            is_open: false,
            has_extension: false,
            has_other_version: false,
            scouted: None,
            scouted_at: Timestamp(0),
            scout: Process::default(),
            build: Name::default(),
            builder: Process::default(),
        }
    }
}

/// An owner with policies in a database: there is, or should be, a worker for him.
#[derive(Clone, Copy)]
struct Post {
    database: Oid,
    /// Invalid: free.
    owner: Oid,
    /// He has live policies, as far as is known.
    is_wanted: bool,
    /// The generation of the policies when a scout last found him.
    generation: u64,
    process: Process,
    /// The worker's bell.
    bell: usize,
    started_at: Timestamp,
    last_pass: Option<Timestamp>,
    /// The earliest deadline that the worker knows of.
    next_due: Timestamp,
    /// The calls to look that its last pass has answered.
    looks: u64,
    policies: u32,
    /// When a worker last made way for a new one.
    renewed_at: Timestamp,
}

const NO_BELL: usize = usize::MAX;

impl Default for Post {
    fn default() -> Self {
        Self {
            database: Oid::INVALID,
            owner: Oid::INVALID,
            is_wanted: false,
            generation: 0,
            process: Process::default(),
            bell: NO_BELL,
            started_at: Timestamp(0),
            last_pass: None,
            next_due: Timestamp::NEGATIVE_INFINITY,
            looks: 0,
            policies: 0,
            renewed_at: Timestamp(0),
        }
    }
}

#[derive(Clone, Copy)]
struct Board {
    databases: [Database; DATABASES],
    posts: [Post; POSTS],
    assistants: [Assistant; ASSISTANTS],
}

impl Default for Board {
    fn default() -> Self {
        Self {
            databases: [Database::default(); DATABASES],
            posts: [Post::default(); POSTS],
            assistants: [Assistant::default(); ASSISTANTS],
        }
    }
}

impl Board {
    fn find(&self, database: Oid) -> Option<usize> {
        self.databases.iter().position(|known| known.oid == database)
    }

    /// Finds the database or puts it on the board; `None` when the board is full.
    fn enrol(&mut self, bells: &Bells, database: Oid) -> Option<usize> {
        if let Some(index) = self.find(database) {
            return Some(index);
        }
        let index = self.find(Oid::INVALID)?;
        self.databases[index] = Database { oid: database, ..Database::default() };
        bells.assign(index, database);
        Some(index)
    }

    /// Takes the database off the board, and its owners.
    fn remove(&mut self, bells: &Bells, index: usize) {
        let database = self.databases[index].oid;
        for post in self.posts.iter_mut().filter(|post| post.database == database) {
            *post = Post::default();
        }
        self.assistants.iter_mut().filter(|a| a.database == database).for_each(Assistant::vacate);
        self.databases[index] = Database::default();
        bells.assign(index, Oid::INVALID);
    }

    fn is_deserted(&self, index: usize) -> bool {
        let database = &self.databases[index];
        let mut posts = self.posts.iter().filter(|post| post.database == database.oid);
        !database.scout.is_alive()
            && !database.builder.is_alive()
            && posts.all(|post| !post.process.is_alive())
            && !self.assistants.iter().any(|a| a.database == database.oid && a.process.is_alive())
    }
}

/// With the bells, which are there whenever the board is; `None` without preload.
fn change<R>(f: impl FnOnce(&mut Board, &Bells) -> R) -> Option<R> {
    BELLS.get().map(|bells| BOARD.change(|board| f(board, bells)))
}

fn look<R>(f: impl FnOnce(&Board, &Bells) -> R) -> Option<R> {
    BELLS.get().map(|bells| BOARD.look(|board| f(board, bells)))
}
