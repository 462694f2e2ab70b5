//! Which deadlines are to be reminded of, for one interval of a policy.
//!
//! The deadlines that come within the interval are looked at in order and once: up to `reminded_to` they have
//! had their reminder. What turns up below later has begun within the interval, or has been moved there.

/// How far the reminders of one interval have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// The interval: so long before the deadline.
    pub before_us: i64,
    pub reminded_to_us: i64,
}

impl Lead {
    /// What has come within the interval: deadlines after the first and up to the second. Those that have
    /// passed are due and not reminded of any more.
    pub fn coming(self, now_us: i64) -> (i64, i64) {
        (self.reminded_to_us.max(now_us), now_us.saturating_add(self.before_us))
    }

    /// Where rows are that have begun within the interval: deadlines after the first and up to the second.
    pub fn inside(self, now_us: i64) -> (i64, i64) {
        (now_us, self.reminded_to_us.min(now_us.saturating_add(self.before_us)))
    }

    /// When a deadline comes within the interval.
    pub fn instant_of(self, deadline_us: i64) -> i64 {
        deadline_us.saturating_sub(self.before_us)
    }

    /// Never back: a clock that was set back brings no reminder twice.
    #[must_use]
    pub fn advanced(self, to_us: i64) -> Self {
        Self { reminded_to_us: self.reminded_to_us.max(to_us), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::Lead;

    const LEAD: Lead = Lead { before_us: 100, reminded_to_us: 1_100 };

    #[test]
    fn each_deadline_comes_once() {
        assert_eq!(LEAD.coming(1_000), (1_100, 1_100));
        assert_eq!(LEAD.coming(1_005), (1_100, 1_105));
        assert_eq!(LEAD.advanced(1_105).coming(1_005), (1_105, 1_105));
        assert_eq!(LEAD.instant_of(1_105), 1_005);
    }

    #[test]
    fn passed_deadlines_are_left_alone() {
        // The worker was away, for less than the interval and for longer.
        assert_eq!(LEAD.coming(1_050), (1_100, 1_150));
        assert_eq!(LEAD.coming(1_300), (1_300, 1_400));
        assert_eq!(LEAD.inside(1_050), (1_050, 1_100));
        let (after, to) = LEAD.inside(1_300);
        assert!(after >= to);
    }

    #[test]
    fn clock_that_is_set_back_repeats_nothing() {
        assert_eq!(LEAD.advanced(900), LEAD);
        let (after, to) = LEAD.coming(500);
        assert!(after >= to);
        // Nor does it bring late reminders of what is not within the interval any more.
        assert_eq!(LEAD.inside(500), (500, 600));
    }
}
