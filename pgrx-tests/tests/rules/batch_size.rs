//! How many rows the next batch claims.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::decisions::batch_size::BatchSize;

const TARGET_US: i64 = 50_000;

/// A size that has grown to its cap, as in the middle of a drain.
fn grown(cap: usize) -> BatchSize {
    let mut size = BatchSize::new(cap);
    while size.next() < cap {
        size.succeeded(size.next(), 0, TARGET_US);
    }
    size
}

/// What draining a queue in which some rows fail their batch, without being named, came to.
#[derive(Debug, Default)]
struct Hunt {
    /// Rows in all batches, also those that were rolled back.
    work: usize,
    failures: usize,
    found: BTreeSet<usize>,
}

/// Drains `rows` rows as the worker does: in order, found rows set aside.
fn drain(size: &mut BatchSize, rows: usize, bad: &BTreeSet<usize>, row_us: i64) -> Hunt {
    let mut queue: VecDeque<usize> = (0..rows).collect();
    let mut hunt = Hunt::default();
    while !queue.is_empty() {
        let claimed = size.next().min(queue.len());
        assert!(claimed > 0, "a claim of nothing");
        hunt.work += claimed;
        assert!(hunt.work < 100 * (rows + 10) * (bad.len() + 1), "it goes on for ever");
        if queue.iter().take(claimed).any(|row| bad.contains(row)) {
            hunt.failures += 1;
            if claimed == 1 {
                hunt.found.extend(queue.pop_front());
                size.found();
            } else {
                size.failed(claimed);
            }
        } else {
            queue.drain(..claimed);
            size.succeeded(claimed, row_us * claimed as i64, TARGET_US);
        }
    }
    hunt
}

fn log2(rows: usize) -> usize {
    rows.next_power_of_two().trailing_zeros() as usize
}

#[derive(Clone, Copy, Debug)]
enum Happened {
    Succeeded { claims_all: bool, elapsed_us: i64 },
    Failed,
    Found,
    FailedAt(usize),
    Collided,
    LeftSubtransactions(usize),
}

fn happened() -> impl Strategy<Value = Happened> {
    prop_oneof![
        (any::<bool>(), 0..TARGET_US * 3)
            .prop_map(|(claims_all, elapsed_us)| Happened::Succeeded { claims_all, elapsed_us }),
        Just(Happened::Failed),
        Just(Happened::Found),
        (0_usize..2000).prop_map(Happened::FailedAt),
        Just(Happened::Collided),
        (0_usize..500).prop_map(Happened::LeftSubtransactions),
    ]
}

proptest! {
    #[test]
    fn failing_row_is_found_with_twice_the_work_of_its_batch(n in 1_usize..5000, position in 0.0_f64..1.0) {
        let position = (n as f64 * position) as usize;
        let hunt = drain(&mut grown(n), n, &BTreeSet::from([position]), 1);
        prop_assert_eq!(&hunt.found, &BTreeSet::from([position]));
        prop_assert!(hunt.failures <= log2(n) + 1, "{hunt:?}");
        // The batch itself, the hunt, and the rows behind the failing one.
        prop_assert!(hunt.work <= n + n + log2(n) + (n - position), "{hunt:?}");
    }

    #[test]
    fn each_of_several_failing_rows_is_found(
        n in 1_usize..600, batch in 1_usize..400, bad in prop::collection::btree_set(0_usize..600, 0..12),
    ) {
        let bad: BTreeSet<usize> = bad.into_iter().filter(|row| *row < n).collect();
        let hunt = drain(&mut grown(batch), n, &bad, 1);
        prop_assert_eq!(&hunt.found, &bad);
        prop_assert!(hunt.failures <= bad.len() * (log2(batch) + 1), "{hunt:?}");
        prop_assert!(hunt.work <= n + bad.len() * (2 * batch + log2(batch)), "{hunt:?}");
    }

    #[test]
    fn size_is_neither_zero_nor_above_the_cap(
        cap in 0_usize..5000, history in prop::collection::vec(happened(), 0..200),
    ) {
        let mut size = BatchSize::new(cap);
        for happened in history {
            let next = size.next();
            prop_assert!((1..=cap.max(1)).contains(&next), "{next} of {cap}");
            match happened {
                Happened::Succeeded { claims_all, elapsed_us } => {
                    size.succeeded(if claims_all { next } else { next / 2 }, elapsed_us, TARGET_US);
                }
                Happened::Failed => size.failed(next),
                Happened::Found => size.found(),
                Happened::FailedAt(position) => size.failed_at(position % next),
                Happened::Collided => size.collided(),
                Happened::LeftSubtransactions(n) => size.left_subtransactions(next, n),
            }
        }
    }

    /// Whatever a row costs, a long drain ends up near the target time and stays there.
    #[test]
    fn size_settles_where_a_batch_takes_about_the_target_time(cap in 1_usize..20_000, row_us in 1_i64..200_000) {
        let mut size = BatchSize::new(cap);
        for _ in 0..40 {
            size.succeeded(size.next(), size.next() as i64 * row_us, TARGET_US);
        }
        let settled = size.next();
        let elapsed_us = settled as i64 * row_us;
        prop_assert!(elapsed_us <= TARGET_US || settled == 1, "{settled} rows take {elapsed_us} us");
        prop_assert!(elapsed_us > TARGET_US / 2 || settled == cap, "only {settled} rows, {elapsed_us} us");
        size.succeeded(settled, elapsed_us, TARGET_US);
        prop_assert_eq!(size.next(), settled);
    }

    #[test]
    fn size_comes_back_after_a_hunt_and_after_collisions(cap in 1_usize..5000, collisions in 0_usize..30) {
        let mut size = grown(cap);
        drain(&mut size, cap, &BTreeSet::from([cap / 2]), 1);
        for _ in 0..collisions {
            size.collided();
        }
        for _ in 0..=log2(cap) {
            size.succeeded(size.next(), 1, TARGET_US);
        }
        prop_assert_eq!(size.next(), cap);
    }

    #[test]
    fn collision_makes_the_next_batch_smaller(cap in 2_usize..5000) {
        let mut size = grown(cap);
        size.collided();
        prop_assert_eq!(size.next(), cap / 2);
    }

    /// The function named its row, so those before it can go at once.
    #[test]
    fn row_that_is_named_costs_one_rollback(n in 1_usize..2000, position in 0.0_f64..1.0) {
        let position = (n as f64 * position) as usize;
        let mut size = grown(n);
        size.failed_at(position);
        prop_assert_eq!(size.next(), position.max(1));
    }

    /// R69: whatever a row leaves, from the second batch on a batch leaves no more than a backend caches.
    #[test]
    fn batch_has_room_for_its_subtransactions(a_row in 0_usize..64, cap in 1_usize..5000) {
        let mut size = BatchSize::new(cap);
        for batch in 0..20 {
            let rows = size.next();
            prop_assert!(rows * a_row <= 64 || batch == 0 || rows == 1, "{rows} rows in batch {batch}");
            size.succeeded(rows, 1, TARGET_US);
            size.left_subtransactions(rows, rows * a_row);
        }
        // A function without them takes over.
        size.left_subtransactions(1, 0);
        for _ in 0..20 {
            size.succeeded(size.next(), 1, TARGET_US);
        }
        prop_assert_eq!(size.next(), cap);
    }

    /// Customers wait for each batch, later now and then: it takes a twentieth of the time, or is as small as the
    /// first one.
    #[test]
    fn batch_that_is_awaited_is_short(
        cap in 1_usize..20_000, row_us in 1_i64..1000, commit_us in 0_i64..5000, every_us in 0_i64..800_000,
    ) {
        let mut size = grown(cap);
        let (mut now_us, mut awaited_us) = (0, 0);
        for batch in 0..400 {
            let rows = size.next();
            let elapsed_us = commit_us + rows as i64 * row_us;
            now_us += elapsed_us;
            let is_awaited = batch < 20 || now_us - awaited_us > every_us;
            if is_awaited {
                awaited_us = now_us;
            }
            if batch >= 20 {
                prop_assert!(rows <= 64 || elapsed_us <= TARGET_US / 20, "{rows} rows take {elapsed_us} us");
                prop_assert!(rows >= 16.min(cap), "{rows} rows");
            }
            let target_us = size.fair_time(rows, TARGET_US, is_awaited, now_us);
            size.succeeded(rows, elapsed_us, target_us);
        }
        // Nobody has waited for a second.
        prop_assert_eq!(size.fair_time(1000, TARGET_US, false, awaited_us + 1_000_000), TARGET_US);
    }
}
