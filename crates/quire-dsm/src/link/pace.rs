//! How much a link takes in a moment. What waits in a link is bounded by that, and so in time: a
//! lease must not end because much is on its way, however slow the way is.
//!
//! While the socket takes no more, it takes as much as the way does, and that is measured. While
//! it takes all, the way is at least as fast as what went less what may wait in the socket.

use std::time::{Duration, Instant};

/// About so long lasts what is in one frame, and what a socket has and has not sent.
const MOMENT: Duration = Duration::from_millis(250);

/// It is never less than this, in bytes: as much as goes in it at a megabit a second.
const LEAST: usize = 32 << 10;

/// Before anything was measured.
const FIRST: usize = 64 << 10;

/// Never more, so that the memory that waits is bounded, too.
const MOST: usize = 8 << 20;

/// In a frame, or unsent in a socket, is never more: a way may become slower at any time.
const MOST_AT_ONCE: usize = 1 << 20;

/// It is measured for so long, or for so many times what goes in a moment.
const LOOK: Duration = Duration::from_millis(100);
const MOMENTS: usize = 4;

/// What is known of a link.
#[derive(Debug)]
pub(super) struct Pace {
    /// How much goes in a moment, in bytes.
    moment: usize,
    /// Since when it is measured, and what went since.
    since: Option<Instant>,
    bytes: usize,
    /// The socket takes no more for now.
    is_full: bool,
}

impl Pace {
    pub const fn new() -> Pace {
        Pace {
            moment: FIRST,
            since: None,
            bytes: 0,
            is_full: false,
        }
    }

    /// How much goes in a moment, in bytes.
    pub const fn moment(&self) -> usize {
        self.moment
    }

    /// How much may be in a frame, or in a socket and not sent.
    pub fn at_once(&self) -> usize {
        self.moment.min(MOST_AT_ONCE)
    }

    /// The socket took so much, and whether that was all there was.
    pub fn took(&mut self, now: Instant, bytes: usize, all: bool) {
        let since = *self.since.get_or_insert(now);
        self.bytes += bytes;
        let time = now.saturating_duration_since(since);
        let is_seen = time >= LOOK || self.bytes >= MOMENTS * self.moment;
        if is_seen && self.bytes > 0 {
            self.see(time);
            (self.since, self.bytes) = (Some(now), 0);
        }
        if self.is_full == all {
            // What filled the socket, or is behind what it took last, says nothing.
            (self.since, self.bytes) = ((!all).then_some(now), 0);
        }
        self.is_full = !all;
    }

    /// So much went in this time.
    fn see(&mut self, time: Duration) {
        let (went, least) = match self.is_full {
            true => (self.bytes, LEAST),
            false => (self.bytes.saturating_sub(self.moment), self.moment),
        };
        let moment = went as u128 * MOMENT.as_nanos() / time.as_nanos().max(1);
        let moment = usize::try_from(moment).unwrap_or(usize::MAX);
        // Twice as much at most, as what is between the two sides takes some without sending it.
        let most = (2 * self.moment).min(MOST);
        self.moment = moment.clamp(least, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One side has always more, and the way takes so much in a millisecond.
    fn driven(pace: &mut Pace, mut now: Instant, rate: usize, millis: usize) -> Instant {
        for _ in 0..millis {
            now += Duration::from_millis(1);
            pace.took(now, rate, false);
        }
        now
    }

    #[test]
    fn what_waits_is_bounded_in_time() {
        let mut pace = Pace::new();
        let now = driven(&mut pace, Instant::now(), 125, 1000);
        assert_eq!(pace.moment(), LEAST, "a megabit a second");
        let now = driven(&mut pace, now, 1000, 3000);
        let moment = pace.moment();
        assert!((240_000..260_000).contains(&moment), "{moment}");
        let now = driven(&mut pace, now, 1_000_000, 1000);
        assert_eq!((pace.moment(), pace.at_once()), (MOST, MOST_AT_ONCE));
        driven(&mut pace, now, 1000, 1000);
        let moment = pace.moment();
        assert!((240_000..260_000).contains(&moment), "{moment}");
    }

    #[test]
    fn who_has_little_to_say_makes_no_link_slow() {
        let mut pace = Pace::new();
        let mut now = driven(&mut pace, Instant::now(), 1000, 3000);
        let before = pace.moment();
        now += Duration::from_millis(1);
        pace.took(now, 1000, true);
        for _ in 0..100 {
            now += Duration::from_secs(1);
            pace.took(now, 10, true);
        }
        now += Duration::from_secs(1);
        pace.took(now, 100, false);
        now += Duration::from_millis(1);
        pace.took(now, 0, false);
        assert_eq!(pace.moment(), before);
    }

    #[test]
    fn what_goes_at_once_makes_a_link_fast() {
        let mut pace = Pace::new();
        let mut now = Instant::now();
        for _ in 0..2000 {
            now += Duration::from_micros(100);
            pace.took(now, 32 << 10, true);
        }
        assert_eq!(pace.moment(), MOST);
    }
}
