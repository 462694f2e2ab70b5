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

/// `most`: how many workers there may be at one time.
pub fn take_turns(candidates: &[Candidate], most: usize, now: Micros) -> Turns {
    let mut turns = Turns::default();
    let alive = candidates.iter().filter(|c| c.process.is_alive()).count();
    let has_slots = candidates.iter().all(|c| c.process.state != State::NoSlot);
    // The server has fewer processes for us than the setting allows: those that we have take turns.
    let places = if has_slots { most } else { most.min(alive.max(1)) };

    let mut waiting: Vec<&Candidate> = candidates.iter().filter(|c| !c.process.is_alive()).collect();
    let again = |turns: &mut Turns, at: Micros| {
        turns.again_at = Some(turns.again_at.map_or(at, |other: Micros| other.min(at)));
    };
    let free = most.saturating_sub(alive);
    let is_crowded = alive + waiting.len() > places;
    turns.are_some_waiting = is_crowded && !waiting.is_empty();
    let round = ROUND.max(PER_WAITING * waiting.len() as Micros);
    waiting.sort_by_key(|c| (needed_at(c, round), c.process.since));

    let mut unserved = 0_usize;
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
