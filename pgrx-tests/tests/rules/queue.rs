//! When notifications are withheld.

use proptest::prelude::*;

use super::decisions::queue::{Queue, RESUME_BELOW, STOP_AT};

proptest! {
    /// Whatever the usage does: open never above half, withheld never below a quarter, and no change between.
    #[test]
    fn notifications_stop_at_half_and_resume_below_a_quarter(usages in prop::collection::vec(0.0_f64..=1.0, 0..200)) {
        let mut queue = Queue::default();
        for usage in usages {
            let before = queue;
            queue = before.at_usage(usage);
            prop_assert!(queue == Queue::Withheld || usage <= STOP_AT);
            prop_assert!(queue == Queue::Open || usage >= RESUME_BELOW);
            prop_assert!(queue == before || !(RESUME_BELOW..=STOP_AT).contains(&usage));
            prop_assert_eq!(queue.at_usage(usage), queue);
        }
    }

    /// A queue that goes up and down around one of the bounds does not make anybody flutter.
    #[test]
    fn small_changes_of_usage_change_nothing_twice(
        base in 0.0_f64..0.8, changes in prop::collection::vec(0.0_f64..STOP_AT - RESUME_BELOW, 1..100), is_open: bool,
    ) {
        let mut queue = if is_open { Queue::Open } else { Queue::Withheld };
        let mut turns = 0;
        for change in changes {
            let before = queue;
            queue = before.at_usage(base + change);
            turns += usize::from(queue != before);
        }
        prop_assert!(turns <= 1, "{turns} turns");
    }
}

#[test]
fn bounds_are_a_half_and_a_quarter() {
    assert_eq!(
        [0.5, 0.500_001, 1.0].map(|usage| Queue::Open.at_usage(usage)),
        [Queue::Open, Queue::Withheld, Queue::Withheld]
    );
    assert_eq!(
        [0.25, 0.249_999, 0.0].map(|usage| Queue::Withheld.at_usage(usage)),
        [Queue::Withheld, Queue::Open, Queue::Open]
    );
}
