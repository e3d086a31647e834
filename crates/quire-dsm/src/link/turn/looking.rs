//! How long a loop that polls looks in vain, where others want its processor.
//!
//! Between two looks it lets others have the processor. One of them that computes keeps it until
//! the next tick of the kernel, milliseconds; it may be the program with the page that all wait for,
//! and what waits behind it the loop that is to take the page away. No other processor takes that
//! over as long as loops look in vain there, too. So a loop whose processor others have for much of
//! the time sleeps when it has looked for a millisecond: what comes then wakes it, and it goes
//! before who computes.

use std::time::{Duration, Instant};

/// So long at least it looks in any case.
const LEAST: Duration = Duration::from_millis(1);

/// Only who has looked for so long is watched: to ask how long a thread has run takes a call.
const AT_ONCE: Duration = Duration::from_micros(50);

/// A loop looks again and again, and finds nothing.
pub(super) struct Looking {
    since: Instant,
    /// How long its thread had run then, if it is watched.
    ran: Option<Duration>,
}

impl Looking {
    /// From now on.
    pub(super) const fn new(now: Instant) -> Looking {
        Looking {
            since: now,
            ran: None,
        }
    }

    /// Whether it is to look once more. `ran` says how long its thread has run.
    pub(super) fn goes_on(&mut self, now: Instant, ran: impl FnOnce() -> Duration) -> bool {
        let time = now - self.since;
        let due = if self.ran.is_none() { AT_ONCE } else { LEAST };
        if time < due {
            return true;
        }
        let ran = ran();
        let is_others = match self.ran {
            // One look has taken so long.
            None => time >= LEAST,
            Some(before) => 4 * ran.saturating_sub(before) < 3 * time,
        };
        (self.since, self.ran) = (now, Some(ran));
        !is_others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop that looks every so many microseconds, of which its thread has some: how long it looks.
    fn looks_for(step: u64, has: u64) -> Duration {
        let begin = Instant::now();
        let mut looking = Looking::new(begin);
        for number in 1..=10_000_000 / step {
            let now = begin + Duration::from_micros(number * step);
            if !looking.goes_on(now, || Duration::from_micros(number * has)) {
                return now - begin;
            }
        }
        Duration::MAX
    }

    #[test]
    fn it_looks_for_ever_where_it_has_a_processor() {
        assert_eq!(looks_for(1, 1), Duration::MAX);
        assert_eq!(looks_for(10, 8), Duration::MAX, "the host has some");
    }

    #[test]
    fn it_sleeps_where_others_have_the_processor() {
        for (step, has) in [(3, 1), (4, 2), (10, 7), (90, 1)] {
            let looked = looks_for(step, has);
            let most = LEAST + AT_ONCE + 2 * Duration::from_micros(step);
            assert!((LEAST..most).contains(&looked), "{step} {has}: {looked:?}");
        }
        // Somebody had it for a tick.
        let tick = 4000;
        assert_eq!(looks_for(tick, 1), Duration::from_micros(tick));
    }

    #[test]
    fn what_is_found_at_once_asks_for_no_time() {
        let begin = Instant::now();
        let mut looking = Looking::new(begin);
        let now = begin + AT_ONCE / 2;
        assert!(looking.goes_on(now, || unreachable!("nobody is to be asked")));
    }
}
