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

#[cfg(test)]
mod tests {
    use super::Throttle;

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
