//! Who gets a worker when there are more owners than workers.
//!
//! Owners take turns: those whose next deadline is near go first, and a worker with nothing due soon
//! gives up its place. Nobody waits longer than the round takes: a waiting owner counts as due when he
//! has not been looked after for a while, since rows may have come that nobody knows of.

use super::launcher::{Micros, Process, State};

const SECOND: Micros = 1_000_000;
/// A worker is started, or a place freed for it, this long before it is needed.
const LEAD: Micros = SECOND / 5;
/// No turn is shorter, or starting processes would be all that happens.
const SHORTEST_TURN: Micros = SECOND / 4;
/// A worker whose next deadline is further away than this has nothing to do.
const SOON: Micros = SECOND;
/// A worker that always has something to do gives up its place after.
const LONGEST_TURN: Micros = 5 * SECOND;
/// An owner without a worker is looked after at least this often, if ...
const ROUND: Micros = 5 * SECOND;
/// ... there are not too many of them for so many starts of a process.
const PER_WAITING: Micros = SECOND / 5;

/// An owner who wants a worker, as far as this file is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// His number among the posts.
    pub post: usize,
    pub process: Process,
    /// The earliest deadline that his worker knew of; the far future: none.
    pub next_due: Micros,
    /// Somebody has asked to look at his rows.
    pub is_called: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    pub start: Vec<usize>,
    pub leave: Vec<usize>,
    /// Owners without a worker, who would like one.
    pub are_some_waiting: bool,
    /// When to decide again, if nothing happens before.
    pub again_at: Option<Micros>,
}

/// When a candidate without a worker needs one.
fn needed_at(candidate: &Candidate, round: Micros) -> Micros {
    if candidate.is_called || candidate.process.ticket == 0 {
        return Micros::MIN;
    }
    (candidate.next_due.saturating_sub(LEAD)).min(candidate.process.since + round)
}

/// `most`: how many workers there may be at one time. `refused`: how many other processes of ours, which
/// are not to wait long, the server has refused a slot.
pub fn take_turns(candidates: &[Candidate], most: usize, refused: usize, now: Micros) -> Turns {
    let mut turns = Turns::default();
    let alive = candidates.iter().filter(|c| c.process.is_alive()).count();
    let has_slots = refused == 0 && candidates.iter().all(|c| c.process.state != State::NoSlot);
    // The server has fewer processes for us than the setting allows: those that we have take turns.
    let places = if has_slots { most } else { most.min(alive.max(1)) };

    let mut waiting: Vec<&Candidate> = candidates.iter().filter(|c| !c.process.is_alive()).collect();
    let again = |turns: &mut Turns, at: Micros| {
        turns.again_at = Some(turns.again_at.map_or(at, |other: Micros| other.min(at)));
    };
    let free = most.saturating_sub(alive);
    let is_crowded = alive + waiting.len() + refused > places;
    turns.are_some_waiting = is_crowded && !waiting.is_empty();
    let round = ROUND.max(PER_WAITING * waiting.len() as Micros);
    waiting.sort_by_key(|c| (needed_at(c, round), c.process.since));

    let mut unserved = refused;
    for candidate in waiting {
        let needed_at = if is_crowded { needed_at(candidate, round) } else { Micros::MIN };
        let at = needed_at.max(candidate.process.not_before);
        let can_start = at <= now && turns.start.len() < free;
        if can_start {
            turns.start.push(candidate.post);
        } else if at > now {
            again(&mut turns, at);
        }
        // One that the server refused keeps asking; meanwhile somebody makes room.
        let is_refused = candidate.process.state == State::NoSlot;
        if needed_at <= now && (is_refused || at <= now && !can_start) {
            unserved += 1;
        }
    }
    let leaving = candidates.iter().filter(|c| c.process.state == State::Leaving).count();
    let mut room = unserved.saturating_sub(leaving);

    let mut running: Vec<&Candidate> =
        candidates.iter().filter(|c| c.process.state == State::Running).collect();
    running.sort_by_key(|c| (std::cmp::Reverse(c.next_due.max(now + SOON)), c.process.since));
    for candidate in running {
        if room == 0 {
            break;
        }
        let is_idle = candidate.next_due > now + SOON && !candidate.is_called;
        let ends_at = candidate.process.since + if is_idle { SHORTEST_TURN } else { LONGEST_TURN };
        if ends_at <= now {
            turns.leave.push(candidate.post);
            room -= 1;
        } else {
            again(&mut turns, ends_at);
        }
    }
    // With more workers than there may be (the setting was lowered), some leave whatever they do.
    let surplus = alive.saturating_sub(leaving + turns.leave.len()).saturating_sub(most);
    let others = candidates.iter().filter(|c| c.process.state == State::Running);
    let others: Vec<usize> = others.map(|c| c.post).filter(|post| !turns.leave.contains(post)).collect();
    turns.leave.extend(others.into_iter().take(surplus));
    turns
}

#[cfg(test)]
mod tests {
    use super::super::launcher::Event;
    use super::*;

    const NEVER: Micros = Micros::MAX;

    fn candidate(post: usize, events: &[(Event, Micros)], next_due: Micros) -> Candidate {
        let mut process = Process::default();
        for (event, at) in events {
            process.on(*event, *at);
        }
        Candidate { post, process, next_due, is_called: false }
    }

    fn running(post: usize, since: Micros, next_due: Micros) -> Candidate {
        candidate(post, &[(Event::Registered, since), (Event::Connected, since)], next_due)
    }

    fn left(post: usize, at: Micros, next_due: Micros) -> Candidate {
        candidate(
            post,
            &[(Event::Registered, at), (Event::Connected, at), (Event::Asked, at), (Event::Ended, at)],
            next_due,
        )
    }

    #[test]
    fn everybody_gets_a_worker_while_there_are_enough() {
        let candidates = [running(0, 0, NEVER), candidate(1, &[], Micros::MIN), left(2, 0, NEVER)];
        let turns = take_turns(&candidates, 3, 0, 1);
        assert_eq!(turns, Turns { start: vec![1, 2], ..Turns::default() });
    }

    #[test]
    fn the_most_urgent_goes_first() {
        let now = 100 * SECOND;
        let candidates = [left(0, now, now), left(1, now, now - SECOND), candidate(2, &[], Micros::MIN)];
        assert_eq!(take_turns(&candidates, 1, 0, now).start, [2]);
        assert_eq!(take_turns(&candidates[..2], 1, 0, now).start, [1]);
    }

    #[test]
    fn an_idle_worker_makes_room() {
        let now = 100 * SECOND;
        let candidates = [
            running(0, 0, now),
            running(1, 0, now + 20 * SECOND),
            running(2, 0, NEVER),
            candidate(3, &[], Micros::MIN),
        ];
        let turns = take_turns(&candidates, 3, 0, now);
        assert_eq!((turns.leave, turns.start, turns.are_some_waiting), (vec![2], vec![], true));
    }

    #[test]
    fn a_busy_worker_makes_room_after_its_turn() {
        let candidates = [running(0, 0, 0), candidate(1, &[], Micros::MIN)];
        let turns = take_turns(&candidates, 1, 0, LONGEST_TURN - 1);
        assert_eq!((turns.leave.len(), turns.again_at), (0, Some(LONGEST_TURN)));
        assert_eq!(take_turns(&candidates, 1, 0, LONGEST_TURN).leave, [0]);
    }

    #[test]
    fn one_leaves_for_one_who_waits() {
        let now = 100 * SECOND;
        let mut leaving = running(0, 0, NEVER);
        leaving.process.on(Event::Asked, now);
        let candidates = [leaving, running(1, 0, NEVER), candidate(2, &[], Micros::MIN)];
        assert!(take_turns(&candidates, 2, 0, now).leave.is_empty());
    }

    #[test]
    fn who_waits_with_nothing_due_is_looked_after_once_a_round() {
        let candidates = [running(0, 0, NEVER), left(1, 0, NEVER)];
        let turns = take_turns(&candidates, 1, 0, SECOND);
        assert_eq!((turns.leave.len(), turns.again_at), (0, Some(ROUND)));
        assert_eq!(take_turns(&candidates, 1, 0, ROUND).leave, [0]);
    }

    #[test]
    fn a_call_brings_his_turn_forward() {
        let mut called = left(1, 0, NEVER);
        called.is_called = true;
        assert_eq!(take_turns(&[running(0, 0, NEVER), called], 1, 0, SECOND).leave, [0]);
    }

    #[test]
    fn a_known_deadline_is_met() {
        let due = 3 * SECOND;
        let candidates = [running(0, 0, NEVER), left(1, 0, due)];
        assert_eq!(take_turns(&candidates, 1, 0, SECOND).again_at, Some(due - LEAD));
        assert_eq!(take_turns(&candidates, 1, 0, due - LEAD).leave, [0]);
    }

    #[test]
    fn without_slots_those_that_run_take_turns() {
        let now = 100 * SECOND;
        let refused = candidate(1, &[(Event::Registered, now), (Event::Refused, now)], Micros::MIN);
        let turns = take_turns(&[running(0, 0, NEVER), refused], 4, 0, now);
        assert_eq!((turns.leave, turns.start), (vec![0], vec![]));
        assert_eq!(turns.again_at, Some(refused.process.not_before));
        // Alone it just keeps asking.
        let turns = take_turns(&[refused], 4, 0, refused.process.not_before);
        assert_eq!(turns.start, [1]);
    }

    #[test]
    fn a_scout_without_a_slot_gets_one() {
        let now = 100 * SECOND;
        let turns = take_turns(&[running(0, 0, NEVER)], 4, 1, now);
        assert_eq!((turns.leave, turns.are_some_waiting), (vec![0], false));
    }

    #[test]
    fn a_lowered_limit_is_followed() {
        let candidates = [running(0, 0, 0), running(1, 0, 0), running(2, 0, 0)];
        assert_eq!(take_turns(&candidates, 1, 0, 1).leave.len(), 2);
        assert_eq!(take_turns(&candidates, 0, 0, 1).leave.len(), 3);
    }

    /// The whole game: a hundred owners, four workers, no deadline known to anybody.
    #[test]
    fn nobody_starves() {
        let mut candidates: Vec<_> = (0..100).map(|post| candidate(post, &[], Micros::MIN)).collect();
        let mut last_served = vec![0; 100];
        let mut longest_wait = 0;
        let mut starts = 0;
        let mut now = 0;
        while now < 120 * SECOND {
            let turns = take_turns(&candidates, 4, 0, now);
            for post in turns.start {
                let process = &mut candidates[post].process;
                process.on(Event::Registered, now);
                process.on(Event::Connected, now);
                candidates[post].next_due = NEVER;
                longest_wait = longest_wait.max(now - last_served[post]);
                last_served[post] = now;
                starts += 1;
            }
            for post in turns.leave {
                candidates[post].process.on(Event::Asked, now);
                candidates[post].process.on(Event::Ended, now);
                last_served[post] = now;
            }
            assert!(candidates.iter().filter(|c| c.process.is_alive()).count() <= 4);
            now += SECOND / 100;
        }
        assert!(longest_wait <= 21 * SECOND, "{longest_wait}");
        assert!(starts <= 120 * 5 + 100, "{starts}");
    }
}
