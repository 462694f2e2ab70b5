//! The side of the processes that the launcher starts: they come, say how they are, and go.

use std::cell::Cell;

use pgrx::pg_sys::Oid;

use super::assistants::Assistance;
use super::plan::{Kind, Task};
use super::{Board, NO_BELL, Name, Post, change};
use crate::pg::bells::{BELLS, Bells, WORKERS};
use crate::pg::bgworker::{self, Exit};
use crate::pg::clock::{self, Timestamp};
use crate::rules::launcher::{Event, State};

/// What a process was started for.
#[derive(Clone, Debug)]
pub struct Assignment {
    pub database: Oid,
    pub work: Work,
}

#[derive(Clone, Debug)]
pub enum Work {
    /// Serve this owner.
    Serve(Oid),
    /// See what the database has.
    Scout,
    /// Build the index of the policy of that name.
    BuildIndex(String),
    /// Take part in the backlog of a policy.
    Assist(Assistance),
}

thread_local! {
    static MINE: Cell<Option<Task>> = const { Cell::new(None) };
    static BELL: Cell<usize> = const { Cell::new(NO_BELL) };
    static IS_RENEWED: Cell<bool> = const { Cell::new(false) };
}

impl Board {
    fn take_bell(&self) -> Option<usize> {
        let taken = |bell| {
            self.posts.iter().any(|post| post.bell == bell) || self.assistants.iter().any(|a| a.bell == bell)
        };
        (0..WORKERS).find(|bell| !taken(*bell))
    }

    fn come(&mut self, bells: &Bells, task: Task) -> Option<Assignment> {
        let now = clock::now();
        let process = *self.process(task)?;
        if process.ticket != task.ticket || process.pid != 0 || !process.is_alive() {
            return None; // too late: it was given up
        }
        let database = self.database_of(task)?;
        let index = self.find(database)?;
        let bell = bells.of(index);
        let is_refused = process.state != State::Starting || bell.is_stopped() || bell.held_until() > now;
        let work = match task.kind {
            Kind::Worker => Work::Serve(self.posts[task.index].owner),
            Kind::Scout => Work::Scout,
            Kind::Builder => Work::BuildIndex(self.databases[index].build.text()),
            Kind::Assistant => Work::Assist(self.assistants[task.index].assistance()),
        };
        let has_bell = matches!(task.kind, Kind::Worker | Kind::Assistant);
        let own_bell = if has_bell { self.take_bell() } else { Some(NO_BELL) };
        let (false, Some(own_bell)) = (is_refused, own_bell) else {
            self.process(task)?.on(Event::Ended, now.0);
            if task.kind == Kind::Assistant {
                self.assistants[task.index].vacate();
            }
            return None;
        };
        self.process(task)?.pid = bgworker::own_pid();
        if has_bell {
            bells.take_worker(own_bell, database);
            BELL.set(own_bell);
        }
        match task.kind {
            Kind::Worker => {
                let post = &mut self.posts[task.index];
                post.bell = own_bell;
                post.started_at = now;
                post.next_due = Timestamp::NEGATIVE_INFINITY; // busy, as long as it has not said otherwise
            }
            Kind::Assistant => self.assistants[task.index].bell = own_bell,
            Kind::Scout | Kind::Builder => {}
        }
        MINE.set(Some(task));
        Some(Assignment { database, work })
    }

    /// Policies may have gone to another owner, who has no worker yet.
    fn want_scout(&mut self, database: Oid) {
        if let Some(index) = self.find(database) {
            self.databases[index].scouted = None;
        }
    }

    /// The own post, if this process is a worker.
    fn mine(&mut self) -> Option<&mut Post> {
        let task = MINE.get().filter(|task| task.kind == Kind::Worker)?;
        Some(&mut self.posts[task.index])
    }
}

/// Takes up the task that this process was started for; `None`: nobody wants it any more.
pub fn attach(argument: u64) -> Option<Assignment> {
    let task = Task::decode(argument)?;
    change(|board, bells| board.come(bells, task)).flatten()
}

/// It is connected to its database.
pub fn connected() {
    if let Some(task) = MINE.get() {
        change(|board, _| board.process(task).map(|process| process.on(Event::Connected, clock::now().0)));
    }
}

/// Notes the end of this process, for whatever reason. Cannot raise: runs while the process exits.
pub fn detach(exit: Exit) {
    let Some(task) = MINE.take() else { return };
    change(|board, bells| {
        let event = match exit {
            Exit::Orderly if task.kind == Kind::Worker && !IS_RENEWED.get() => Event::Retired,
            Exit::Orderly => Event::Ended,
            Exit::Terminated => Event::Terminated,
            Exit::Failed => Event::Died,
        };
        if let Some(process) = board.process(task) {
            process.on(event, clock::now().0);
        }
        match task.kind {
            Kind::Worker => {
                let post = &mut board.posts[task.index];
                bells.free_worker(post.bell);
                post.bell = NO_BELL;
            }
            // If it failed, the worker asks again; the state of the process makes it wait.
            Kind::Builder => board.databases[task.index].build = Name::default(),
            Kind::Assistant => {
                let assistant = &mut board.assistants[task.index];
                bells.free_worker(assistant.bell);
                assistant.vacate();
            }
            Kind::Scout => {}
        }
        bells.ring_launcher();
    });
}

/// Whether this worker, or assistant, should end, as soon as its batch is done.
pub fn is_to_leave() -> bool {
    let bell = BELL.get();
    bell != NO_BELL && BELLS.get().is_some_and(|bells| bells.is_worker_to_leave(bell))
}

/// How this worker is after a pass. `looks`: the calls that it had seen before the pass.
pub fn publish(next_due: Option<Timestamp>, policies: usize, looks: u64) {
    change(|board, bells| {
        let Some(post) = board.mine() else { return };
        let policies = u32::try_from(policies).unwrap_or(u32::MAX);
        let has_changed = post.last_pass.is_some() && post.policies != policies;
        post.last_pass = Some(clock::now());
        post.next_due = next_due.unwrap_or(Timestamp::INFINITY);
        post.policies = policies;
        post.looks = looks;
        let database = post.database;
        if has_changed {
            board.want_scout(database);
        }
        if has_changed || bells.are_turns_wanted() {
            bells.ring_launcher();
        }
    });
}

/// This worker's owner has no live policies; it will end. `generation`: of the policies it has seen.
pub fn retire(generation: u64) {
    change(|board, bells| {
        let Some(post) = board.mine() else { return };
        let database = post.database;
        let is_current = bells.find(database).is_some_and(|bell| bell.generation() == generation);
        // If they have changed since, a scout is on its way and says whether he is wanted.
        post.is_wanted &= !is_current;
        post.policies = 0;
        board.want_scout(database);
    });
}

/// Whether this worker, whose session has gone stale, may end so that another begins at once: not more often
/// than every ten seconds.
pub fn may_renew() -> bool {
    const PAUSE_US: i64 = 10_000_000;
    let now = clock::now();
    change(|board, _| {
        let Some(post) = board.mine().filter(|post| now.since(post.renewed_at) >= PAUSE_US) else { return };
        post.renewed_at = now;
        IS_RENEWED.set(true);
    });
    IS_RENEWED.get()
}

/// What a scout has found.
#[derive(Clone, Debug)]
pub enum Found {
    /// No extension.
    Nothing,
    /// The extension in a version that this library does not serve.
    OtherVersion,
    /// The owners of live policies.
    Owners(Vec<Oid>),
}

/// What follows from what a scout has found.
pub struct Outcome {
    /// There are no more owners than the board has room for.
    pub has_room: bool,
    /// The last scout has found something else.
    pub is_news: bool,
}

/// Takes down what a scout has found. `generation`: of the policies, before it looked.
pub fn report(found: &Found, generation: u64) -> Outcome {
    let nothing_new = Outcome { has_room: true, is_news: false };
    let Some(task) = MINE.get() else { return nothing_new };
    let now = clock::now();
    change(|board, _| {
        let database = board.databases.get_mut(task.index)?;
        database.has_extension = !matches!(found, Found::Nothing);
        (database.scouted, database.scouted_at) = (Some(generation), now);
        let is_other = matches!(found, Found::OtherVersion);
        let is_news = std::mem::replace(&mut database.has_other_version, is_other) != is_other;
        let database = database.oid;
        let owners: &[Oid] = if let Found::Owners(owners) = found { owners } else { &[] };
        for post in board.posts.iter_mut().filter(|post| post.database == database) {
            post.is_wanted = owners.contains(&post.owner);
            if post.generation != generation {
                post.generation = generation;
                post.process.on(Event::Called, now.0);
            }
        }
        let mut has_room = true;
        for owner in owners {
            if board.posts.iter().any(|post| post.database == database && post.owner == *owner) {
                continue;
            }
            match board.posts.iter_mut().find(|post| post.owner == Oid::INVALID) {
                Some(free) => {
                    *free = Post { database, owner: *owner, is_wanted: true, generation, ..Post::default() };
                }
                None => has_room = false,
            }
        }
        Some(Outcome { has_room, is_news })
    })
    .flatten()
    .unwrap_or(nothing_new)
}
