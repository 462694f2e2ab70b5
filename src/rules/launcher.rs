//! What the launcher decides: which processes to start, and which to ask to leave.
//!
//! Each process that the launcher wants or has, has one of these states; [`Process::on`] is the only
//! place that changes it.
//!
//! ```text
//!            Registered            Connected            Asked
//!     Idle ─────────────▶ Starting ─────────▶ Running ─────────▶ Leaving
//!      ▲                   │  │                │  │               │
//!      ├──── done ─────────┼──┼────────────────┘  │               │
//!      ├──── done, gone ───┼──┼───────────────────┼───────────────┘
//!      │           Refused │  │ gone              │ gone
//!      │                   ▼  └────▶ Resting ◀────┘
//!      │                NoSlot          │
//!      │                   └────────────┴──── Registered ──▶ Starting
//! ```
//!
//! done: Ended, Retired; gone: Died, Terminated. Called changes no state, but ends the wait in Idle and in
//! Resting; SlotFreed the one in NoSlot.

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
    /// It ended by itself, in order: its work is done.
    Ended,
    /// A worker ended by itself: it had nothing to do.
    Retired,
    /// Somebody has ended it with a signal, which is no fault of its own.
    Terminated,
    /// It ended by an error, or never came.
    Died,
    /// What it failed at, or had to do, has changed.
    Called,
    /// Another of our processes has ended.
    SlotFreed,
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
    /// Ends that nobody asked for, one after the other, each soon after the start.
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
            (State::Running, Event::Retired) => {
                // If it is wanted again, and again, it need not hurry.
                self.count_death(now);
                State::Idle
            }
            (State::Starting | State::Running | State::Leaving, Event::Ended)
            | (State::Starting | State::Leaving, Event::Retired)
            | (State::Leaving, Event::Died) => State::Idle,
            (State::Starting, Event::Died) => {
                // It will not connect the next time either: one line in the log a minute is enough.
                self.deaths += 1;
                self.not_before = now + if self.deaths == 1 { 5 * SECOND } else { LONGEST_REST };
                State::Resting
            }
            (State::Running, Event::Died) => {
                self.count_death(now);
                State::Resting
            }
            (State::Idle | State::Resting, Event::Called) | (State::NoSlot, Event::SlotFreed) => {
                (self.deaths, self.not_before) = (0, 0);
                self.state
            }
            (State::Starting | State::Running, Event::Terminated) => {
                self.not_before = now + rest(1);
                State::Resting
            }
            (State::Leaving, Event::Terminated) => State::Idle,
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

    fn count_death(&mut self, now: Micros) {
        self.deaths = if now - self.since > STEADY { 1 } else { self.deaths + 1 };
        self.not_before = now + rest(self.deaths);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn process(events: &[(Event, Micros)]) -> Process {
        let mut process = Process::default();
        for (event, at) in events {
            process.on(*event, *at);
        }
        process
    }

    #[test]
    fn a_worker_comes_and_goes() {
        let mut process = process(&[(Event::Registered, 1)]);
        assert_eq!((process.state, process.ticket), (State::Starting, 1));
        process.pid = 42;
        process.on(Event::Connected, 2);
        assert_eq!(process.state, State::Running);
        process.on(Event::Asked, 3);
        assert_eq!((process.state, process.pid, process.since), (State::Leaving, 42, 3));
        process.on(Event::Ended, 4);
        assert_eq!((process.state, process.pid, process.not_before), (State::Idle, 0, 0));
    }

    #[test]
    fn one_that_was_asked_may_die() {
        for events in
            [&[Event::Registered, Event::Asked][..], &[Event::Registered, Event::Connected, Event::Asked]]
        {
            let events: Vec<_> = events.iter().chain([&Event::Died]).map(|event| (*event, 1)).collect();
            let process = process(&events);
            assert_eq!((process.state, process.deaths, process.not_before), (State::Idle, 0, 0));
        }
    }

    #[test]
    fn one_that_keeps_dying_waits_longer_and_longer() {
        let mut process = Process::default();
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..9 {
            process.on(Event::Registered, now);
            process.on(Event::Connected, now);
            process.on(Event::Died, now + 1);
            assert_eq!(process.state, State::Resting);
            waits.push((process.not_before - now - 1) * 2 / SECOND);
            now = process.not_before;
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 120, 120]);
        process.on(Event::Registered, now);
        process.on(Event::Connected, now);
        process.on(Event::Died, now + STEADY + 1);
        assert_eq!(process.deaths, 1, "it has lived for a while");
    }

    #[test]
    fn one_that_is_terminated_is_back_soon_every_time() {
        let mut process = Process::default();
        let mut now = 0;
        for _ in 0..9 {
            process.on(Event::Registered, now);
            process.on(Event::Connected, now);
            process.on(Event::Terminated, now + 1);
            assert_eq!((process.state, process.not_before), (State::Resting, now + 1 + SECOND / 2));
            now = process.not_before;
        }
    }

    #[test]
    fn one_that_cannot_connect_is_tried_once_a_minute() {
        let mut process = process(&[(Event::Registered, 0), (Event::Died, 0)]);
        assert_eq!(process.not_before, 5 * SECOND);
        process.on(Event::Registered, 0);
        process.on(Event::Died, 0);
        assert_eq!(process.not_before, 60 * SECOND);
    }

    #[test]
    fn no_slot_is_asked_for_again() {
        let mut process = process(&[(Event::Registered, 0), (Event::Refused, 0)]);
        assert_eq!((process.state, process.can_start(SLOT_RETRY - 1)), (State::NoSlot, false));
        assert!(process.can_start(SLOT_RETRY));
        let mut freed = process;
        freed.on(Event::SlotFreed, 1);
        assert!(freed.can_start(1));
        process.on(Event::Registered, SLOT_RETRY);
        assert_eq!((process.state, process.ticket), (State::Starting, 2));
    }

    #[test]
    fn a_change_is_answered_at_once() {
        for event in [Event::Retired, Event::Died] {
            let mut process = process(&[(Event::Registered, 0), (Event::Connected, 0), (event, 0)]);
            assert!(!process.can_start(1));
            process.on(Event::Called, 1);
            assert!(process.can_start(1));
        }
    }

    #[test]
    fn nothing_stays_starting_for_ever() {
        let mut process = process(&[(Event::Registered, 0)]);
        assert!(!process.is_lost(START_TIMEOUT));
        assert!(process.is_lost(START_TIMEOUT + 1));
        process.pid = 1;
        assert!(!process.is_lost(START_TIMEOUT + 1));
    }

    #[test]
    fn a_database_is_left_alone_while_it_is_held() {
        let site = Site { is_allowed: true, held_until: 10, needs_scout: true, ..Site::default() };
        let plan = plan_site(&site, 0, 5);
        assert_eq!(plan, SitePlan { clear: true, again_at: Some(10), ..SitePlan::default() });
        let plan = plan_site(&site, 0, 10);
        assert!(plan.is_served && plan.start_scout && !plan.clear);
    }

    #[test]
    fn scouts_are_few_and_far_between() {
        let mut site = Site { is_allowed: true, needs_scout: true, ..Site::default() };
        assert!(!plan_site(&site, SCOUTS, 0).start_scout);
        site.scout = process(&[(Event::Registered, 0), (Event::Connected, 1), (Event::Ended, 2)]);
        let plan = plan_site(&site, 0, 3);
        assert_eq!((plan.start_scout, plan.again_at), (false, Some(2 + SCOUT_INTERVAL)));
        assert!(plan_site(&site, 0, 2 + SCOUT_INTERVAL).start_scout);
    }
}
