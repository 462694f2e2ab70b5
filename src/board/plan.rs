//! The launcher's side: what there is, and what is to be done about it.

use std::collections::HashMap;

use pgrx::pg_sys::Oid;

use super::{Board, Post, change};
use crate::pg::bells::{Bells, DATABASES};
use crate::pg::bgworker;
use crate::pg::clock::Timestamp;
use crate::rules::launcher::{Event, Micros, Process, Site, State, plan_site};
use crate::rules::turns::{Candidate, take_turns};

/// A process of the board, in one of its lives: fits the argument of a background worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    pub kind: Kind,
    /// Of the post, or of the database.
    pub index: usize,
    pub ticket: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Worker,
    Scout,
    Builder,
    Assistant,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Worker, Self::Scout, Self::Builder, Self::Assistant];

    /// How pg_stat_activity calls such a process.
    pub fn backend_type(self) -> &'static str {
        match self {
            Self::Worker => "pg_expiry worker",
            Self::Scout => "pg_expiry scout",
            Self::Builder => "pg_expiry index builder",
            Self::Assistant => "pg_expiry assistant",
        }
    }

    /// Whether it has to be there, and does not only make things faster.
    pub fn is_needed(self) -> bool {
        self != Self::Assistant
    }
}

impl Task {
    pub fn encode(self) -> u64 {
        u64::from(self.ticket) << 32 | (self.index as u64) << 8 | self.kind as u64
    }

    pub fn decode(argument: u64) -> Option<Self> {
        let kind = *Kind::ALL.get((argument & 0xff) as usize)?;
        let index = (argument >> 8 & 0xff_ffff) as usize;
        Some(Self { kind, index, ticket: (argument >> 32) as u32 })
    }
}

/// A database is scouted again after this long, even if nobody has said that anything has changed.
const SCOUT_AGAIN_US: Micros = 600_000_000;

/// What the launcher does next.
#[derive(Debug, Default)]
pub struct Plan {
    /// Noted on the board as registered already.
    pub start: Vec<Task>,
    /// When to plan again, if nothing happens before.
    pub again_at: Option<Timestamp>,
}

impl Board {
    pub(super) fn process(&mut self, task: Task) -> Option<&mut Process> {
        match task.kind {
            Kind::Worker => self.posts.get_mut(task.index).map(|post| &mut post.process),
            Kind::Scout => self.databases.get_mut(task.index).map(|database| &mut database.scout),
            Kind::Builder => self.databases.get_mut(task.index).map(|database| &mut database.builder),
            Kind::Assistant => self.assistants.get_mut(task.index).map(|assistant| &mut assistant.process),
        }
    }

    pub(super) fn database_of(&self, task: Task) -> Option<Oid> {
        let database = match task.kind {
            Kind::Worker => self.posts.get(task.index)?.database,
            Kind::Scout | Kind::Builder => self.databases.get(task.index)?.oid,
            Kind::Assistant => self.assistants.get(task.index)?.database,
        };
        (database != Oid::INVALID).then_some(database)
    }

    fn site(&self, bells: &Bells, index: usize, now: Micros) -> Site {
        let database = &self.databases[index];
        let bell = bells.of(index);
        Site {
            is_allowed: database.is_open && !bell.is_stopped(),
            held_until: bell.held_until().0,
            needs_scout: database.scouted != Some(bell.generation())
                || now - database.scouted_at.0 > SCOUT_AGAIN_US,
            scout: database.scout,
            wants_build: database.has_extension && !database.build.is_empty(),
            builder: database.builder,
        }
    }

    fn start(&mut self, kind: Kind, index: usize, now: Micros) -> Option<Task> {
        let process = self.process(Task { kind, index, ticket: 0 })?;
        process.on(Event::Registered, now);
        Some(Task { kind, index, ticket: process.ticket })
    }

    fn plan(&mut self, bells: &Bells, max_workers: usize, now: Micros) -> Plan {
        let mut plan = Plan::default();
        let mut again_at: Option<Micros> = None;
        let mut again = |at: Option<Micros>| {
            again_at = [again_at, at].into_iter().flatten().min();
        };
        let refused = self.databases.iter().flat_map(|database| [&database.scout, &database.builder]);
        let refused = refused.filter(|process| process.state == State::NoSlot).count();
        let mut scouts = self.databases.iter().filter(|database| database.scout.is_alive()).count();
        let mut served = HashMap::new();
        for index in 0..DATABASES {
            if self.databases[index].oid == Oid::INVALID {
                continue;
            }
            let site = plan_site(&self.site(bells, index, now), scouts, now);
            again(site.again_at);
            served.insert(self.databases[index].oid, (index, site.is_served));
            if site.clear {
                self.clear(index, now);
            }
            if site.start_scout {
                scouts += 1;
                plan.start.extend(self.start(Kind::Scout, index, now));
            }
            if site.start_builder {
                plan.start.extend(self.start(Kind::Builder, index, now));
            }
        }

        let mut candidates = Vec::new();
        let mut leave = Vec::new();
        for (index, post) in self.posts.iter().enumerate().filter(|(_, post)| post.owner != Oid::INVALID) {
            match served.get(&post.database) {
                Some((database, true)) if post.is_wanted => candidates.push(Candidate {
                    post: index,
                    process: post.process,
                    next_due: post.next_due.0,
                    is_called: post.looks < bells.of(*database).looks() && post.last_pass.is_some(),
                }),
                _ => leave.push(index),
            }
        }
        let others = leave.iter().filter(|index| self.posts[**index].process.is_alive()).count();
        let turns = take_turns(&candidates, max_workers.saturating_sub(others), refused, now);
        again(turns.again_at);
        bells.set_turns_wanted(turns.are_some_waiting);
        for (index, _) in served.values() {
            bells.of(*index).set_waiting(turns.are_some_waiting);
        }
        for index in leave.into_iter().chain(turns.leave) {
            self.posts[index].process.on(Event::Asked, now);
            bells.ask_worker_to_leave(self.posts[index].bell);
        }
        let alive = self.posts.iter().filter(|post| post.process.is_alive()).count();
        let alive = alive + self.living_assistants();
        let room = max_workers.saturating_sub(alive);
        let wanted = turns.start.len();
        for index in turns.start.into_iter().take(room) {
            plan.start.extend(self.start(Kind::Worker, index, now));
        }
        let is_short = wanted > room || alive > max_workers || refused > 0 || turns.are_some_waiting;
        let room = (!is_short).then(|| room - wanted);
        let is_served = |database: Oid| matches!(served.get(&database), Some((_, true)));
        for index in self.plan_assistants(bells, room, is_served, now) {
            plan.start.extend(self.start(Kind::Assistant, index, now));
        }
        plan.again_at = again_at.map(Timestamp);
        plan
    }

    /// Has scout and builder leave. A scout is done in a moment: it is ended only by who needs the database for
    /// himself and has waited (see `terminate`), since whoever is ended says so in the server's log.
    fn clear(&mut self, index: usize, now: Micros) {
        let database = &mut self.databases[index];
        for process in [&mut database.scout, &mut database.builder] {
            if process.is_alive() {
                process.on(Event::Asked, now);
            }
        }
        if database.builder.is_alive() && database.builder.pid != 0 {
            bgworker::terminate(database.builder.pid);
        }
    }

    /// Clears away what is over: ended owners, finished builds, databases without the extension.
    fn tidy(&mut self, bells: &Bells, now: Micros) {
        for post in &mut self.posts {
            if post.process.is_lost(now) {
                post.process.on(Event::Died, now);
            }
            if post.owner != Oid::INVALID && !post.is_wanted && !post.process.is_alive() {
                *post = Post::default();
            }
        }
        self.tidy_assistants(now);
        for index in 0..DATABASES {
            let database = &mut self.databases[index];
            if database.oid == Oid::INVALID {
                continue;
            }
            for process in [&mut database.scout, &mut database.builder] {
                if process.is_lost(now) {
                    process.on(Event::Died, now);
                }
            }
            let bell = bells.of(index);
            let is_free = !bell.is_stopped() && bell.held_until().0 <= now;
            let is_bare = !database.has_extension && database.scouted == Some(bell.generation());
            if is_free && is_bare && self.is_deserted(index) {
                self.remove(bells, index);
            }
        }
    }
}

/// Decides what to do now; what is to be started is on the board as registered when this returns.
pub fn plan(max_workers: usize, now: Timestamp) -> Plan {
    change(|board, bells| {
        board.tidy(bells, now.0);
        board.plan(bells, max_workers, now.0)
    })
    .unwrap_or_default()
}

/// The server has no free slot for it.
pub fn note_refused(task: Task, now: Timestamp) {
    change(|board, _| {
        if task.kind == Kind::Assistant {
            board.assistants[task.index].vacate();
        } else if let Some(process) = board.process(task) {
            process.on(Event::Refused, now.0);
        }
    });
}

/// The postmaster has seen the process end. Unless the process has said so itself, it never came.
pub fn note_ended(task: Task, now: Timestamp) {
    change(|board, _| {
        if let Some(process) = board.process(task)
            && process.ticket == task.ticket
            && process.pid == 0
            && process.is_alive()
        {
            process.on(Event::Died, now.0);
            if task.kind == Kind::Assistant {
                board.assistants[task.index].vacate();
            }
        }
        let workers = board.posts.iter_mut().map(|post| &mut post.process);
        let others = board.databases.iter_mut();
        let others = others.flat_map(|database| [&mut database.scout, &mut database.builder]);
        workers.chain(others).for_each(|process| process.on(Event::SlotFreed, now.0));
    });
}

/// Whether one of these has left the board: the postmaster is about to see it end.
pub fn is_any_leaving<'a>(mut tasks: impl Iterator<Item = &'a Task>) -> bool {
    change(|board, _| {
        tasks.any(|task| {
            !board.process(*task).is_some_and(|process| process.ticket == task.ticket && process.is_alive())
        })
    })
    .unwrap_or(false)
}

/// Brings the board up to pg_database: `open` are all databases that may have processes, `new` those of
/// them to be scouted. False when some new ones did not fit.
pub fn sync(open: &[Oid], new: &[Oid], existing: &[Oid]) -> bool {
    change(|board, bells| {
        for index in 0..DATABASES {
            let database = board.databases[index].oid;
            if database == Oid::INVALID {
                continue;
            }
            let is_open = open.contains(&database);
            board.databases[index].is_open = is_open;
            let is_kept = is_open || existing.contains(&database) && bells.of(index).is_stopped();
            if !is_kept && board.is_deserted(index) {
                board.remove(bells, index);
            }
        }
        new.iter().all(|database| {
            let index = board.enrol(bells, *database);
            if let Some(index) = index {
                board.databases[index].is_open = true;
                board.databases[index].scouted = None;
            }
            index.is_some()
        })
    })
    .unwrap_or(true)
}
