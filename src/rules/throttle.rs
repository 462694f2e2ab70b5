//! Saying the same thing once a minute, not at every turn of a loop.

/// Remembers what was said last, and when.
#[derive(Debug, Default)]
pub struct Throttle {
    last: Option<(String, i64)>,
}

const INTERVAL: i64 = 60_000_000;

impl Throttle {
    /// Whether to say it: it is new, or was last said a minute ago. `now` in microseconds.
    pub fn allows(&mut self, message: &str, now: i64) -> bool {
        let is_known = self
            .last
            .as_ref()
            .is_some_and(|(last, at)| last == message && (0..INTERVAL).contains(&(now - at)));
        if !is_known {
            self.last = Some((message.to_owned(), now));
        }
        !is_known
    }
}

/// Saying many like things, but not too many: so many a minute, and then how many were kept back.
#[derive(Debug, Default)]
pub struct Quota {
    since: Option<i64>,
    said: u32,
    kept_back: u32,
}

impl Quota {
    const MOST: u32 = 20;

    /// Whether to say it, and how many were kept back before. `now` in microseconds.
    pub fn allows(&mut self, now: i64) -> Option<u32> {
        if !self.since.is_some_and(|since| (0..INTERVAL).contains(&(now - since))) {
            (self.since, self.said) = (Some(now), 0);
        }
        if self.said == Self::MOST {
            self.kept_back = self.kept_back.saturating_add(1);
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.kept_back))
    }
}

#[cfg(test)]
mod tests {
    use super::{Quota, Throttle};

    #[test]
    fn so_many_a_minute() {
        let mut quota = Quota::default();
        let said = (0..100).filter(|now| quota.allows(*now).is_some()).count();
        assert_eq!(said, 20);
        assert_eq!(quota.allows(59_999_999), None);
        assert_eq!(quota.allows(60_000_000), Some(81));
        assert_eq!(quota.allows(60_000_001), Some(0));
        // A clock that was set back.
        assert_eq!(quota.allows(-5), Some(0));
    }

    #[test]
    fn the_same_once_a_minute() {
        let mut throttle = Throttle::default();
        assert!(throttle.allows("a", 0));
        assert!(!throttle.allows("a", 59_999_999));
        assert!(throttle.allows("a", 60_000_000));
        assert!(throttle.allows("b", 60_000_001));
        // A clock that was set back does not silence for long.
        assert!(throttle.allows("b", -5));
    }
}
