//! When to connect again: soon after a link broke, then less and less often, until one stands.

use std::time::{Duration, Instant};

/// When the next attempt at something is due.
#[derive(Debug)]
pub(crate) struct Again {
    due: Instant,
    /// Before the attempt after the next.
    pause: Duration,
    /// Between two attempts, at first and at most.
    pauses: [Duration; 2],
}

impl Again {
    /// The first attempt is due now. Between two are these pauses, at first and at most.
    pub fn new(now: Instant, pauses: [Duration; 2]) -> Again {
        Again {
            due: now,
            pause: pauses[0],
            pauses,
        }
    }

    /// When the next attempt is due.
    pub fn due(&self) -> Instant {
        self.due
    }

    /// An attempt is made or has failed: the next is a pause away, and each pause is twice as
    /// long as the one before.
    pub fn later(&mut self, now: Instant) {
        self.due = now + self.pause;
        self.pause = (2 * self.pause).min(self.pauses[1]);
    }

    /// An attempt has succeeded. The next pause is the first one.
    pub fn succeeded(&mut self) {
        self.pause = self.pauses[0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_something_succeeds() {
        let start = Instant::now();
        let [first, most] = [Duration::from_millis(100), Duration::from_millis(350)];
        let mut again = Again::new(start, [first, most]);
        assert_eq!(again.due(), start);
        for pause in [first, 2 * first, most, most] {
            again.later(start);
            assert_eq!(again.due(), start + pause);
        }
        again.succeeded();
        again.later(start);
        assert_eq!(again.due(), start + first);
    }
}
