//! What the launcher decides: which processes to start, and which to ask to leave.
//!
//! Each process that the launcher wants or has, has one of these states; [`Process::on`] is the only
//! place that changes it.
//!
//! ```text
//!            Registered            Connected            Asked
//!     Idle ─────────────▶ Starting ─────────▶ Running ─────────▶ Leaving
//!      ▲                   │  │                │  │               │
//!      ├────── Ended ──────┼──┼────────────────┘  │               │
//!      ├────── Ended, Died ┼──┼───────────────────┼───────────────┘
//!      │           Refused │  │ Died              │ Died
//!      │                   ▼  └────▶ Resting ◀────┘
//!      │                NoSlot          │
//!      │                   └────────────┴──── Registered ──▶ Starting
//! ```

/// Microseconds since whenever: this file has no clock.
pub type Micros = i64;

const SECOND: Micros = 1_000_000;
/// A process that lived longer than this before it died has no history of dying.
const STEADY: Micros = 60 * SECOND;
/// Longest wait before a process that keeps dying is started again.
const LONGEST_REST: Micros = 60 * SECOND;
/// When all of max_worker_processes are in use, ask again after.
const SLOT_RETRY: Micros = 5 * SECOND;
/// A process that was registered this long ago, and did not come, will not.
const START_TIMEOUT: Micros = 60 * SECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum State {
    /// No process. → Starting
    #[default]
    Idle,
    /// Handed to the postmaster, perhaps connecting. → Running, Idle, Resting, NoSlot
    Starting,
    /// → Leaving, Idle, Resting
    Running,
    /// Asked to end, not because anything is wrong with it. → Idle
    Leaving,
    /// The server had no free process slot. → Starting
    NoSlot,
    /// The last one died. → Starting
    Resting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Registered,
    /// The server has no slot for it.
    Refused,
    Connected,
    Asked,
    /// It ended by itself, in order.
    Ended,
    /// It ended by an error or a signal, or never came.
    Died,
}

/// One process: of an owner, a scout, or an index builder.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process {
    pub state: State,
    /// Counts registrations: a process that comes with an old number came too late.
    pub ticket: u32,
    /// 0: it has not come yet, or there is none.
    pub pid: i32,
    /// When the state changed.
    pub since: Micros,
    /// Not to be started before.
    pub not_before: Micros,
    /// One after the other, each soon after its start.
    pub deaths: u32,
}

impl Process {
    pub fn on(&mut self, event: Event, now: Micros) {
        let next = match (self.state, event) {
            (State::Idle | State::NoSlot | State::Resting, Event::Registered) => {
                self.ticket = self.ticket.wrapping_add(1);
                State::Starting
            }
            (State::Starting, Event::Refused) => {
                self.not_before = now + SLOT_RETRY;
                State::NoSlot
            }
            (State::Starting, Event::Connected) => State::Running,
            (State::Starting | State::Running, Event::Asked) => State::Leaving,
            (State::Starting | State::Running | State::Leaving, Event::Ended)
            | (State::Leaving, Event::Died) => State::Idle,
            (State::Starting, Event::Died) => {
                // It will not connect the next time either: one line in the log a minute is enough.
                self.deaths += 1;
                self.not_before = now + if self.deaths == 1 { 5 * SECOND } else { LONGEST_REST };
                State::Resting
            }
            (State::Running, Event::Died) => {
                self.deaths = if now - self.since > STEADY { 1 } else { self.deaths + 1 };
                self.not_before = now + rest(self.deaths);
                State::Resting
            }
            // Too late to matter: a process that was asked connects, one that is gone is asked.
            (state, _) => state,
        };
        if next != self.state {
            self.state = next;
            self.since = now;
        }
        if matches!(next, State::Idle | State::NoSlot | State::Resting) {
            self.pid = 0;
        }
    }

    /// Whether there is one, or will be in a moment.
    pub fn is_alive(&self) -> bool {
        matches!(self.state, State::Starting | State::Running | State::Leaving)
    }

    fn can_start(&self, now: Micros) -> bool {
        !self.is_alive() && self.not_before <= now
    }

    /// Whether it was registered and will not come any more.
    pub fn is_lost(&self, now: Micros) -> bool {
        self.is_alive() && self.pid == 0 && now - self.since > START_TIMEOUT
    }
}

/// The wait after so many deaths: half a second, doubled with each.
fn rest(deaths: u32) -> Micros {
    (SECOND / 2).saturating_mul(1 << deaths.saturating_sub(1).min(20)).min(LONGEST_REST)
}

/// A database, as far as this file is concerned.
#[derive(Clone, Copy, Debug, Default)]
pub struct Site {
    /// Open for connections, listed, and not stopped.
    pub is_allowed: bool,
    /// Somebody has the database for himself until then.
    pub held_until: Micros,
    /// What it has installed, and who owns policies, is not known or has changed.
    pub needs_scout: bool,
    pub scout: Process,
    pub wants_build: bool,
    pub builder: Process,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SitePlan {
    /// Workers may be there.
    pub is_served: bool,
    pub start_scout: bool,
    pub start_builder: bool,
    /// Scout and builder have to leave.
    pub clear: bool,
    /// When to decide again, if nothing happens before.
    pub again_at: Option<Micros>,
}

/// One database is not scouted more often than this.
const SCOUT_INTERVAL: Micros = SECOND / 2;
/// So many scouts at one time.
pub const SCOUTS: usize = 2;

/// `scouts`: how many are out, in all databases.
pub fn plan_site(site: &Site, scouts: usize, now: Micros) -> SitePlan {
    if !site.is_allowed || site.held_until > now {
        let again_at = (site.is_allowed).then_some(site.held_until);
        return SitePlan { clear: true, again_at, ..SitePlan::default() };
    }
    let mut plan = SitePlan { is_served: true, ..SitePlan::default() };
    if site.needs_scout && !site.scout.is_alive() {
        let rested = if site.scout.ticket == 0 { 0 } else { site.scout.since + SCOUT_INTERVAL };
        let at = site.scout.not_before.max(rested);
        plan.start_scout = at <= now && scouts < SCOUTS;
        if at > now {
            plan.again_at = Some(at);
        }
    }
    if site.wants_build && !site.builder.is_alive() {
        plan.start_builder = site.builder.can_start(now);
        if !plan.start_builder {
            let at = site.builder.not_before;
            plan.again_at = Some(plan.again_at.map_or(at, |other| other.min(at)));
        }
    }
    plan
}
