//! What is known of one extent from earlier looks. There is one for each extent that holds something, in every process
//! that is advised, so it is kept small: 24 bytes.

use std::time::Duration;

use quire_core::advise::Seen;
use quire_core::attach::{Extent, LEAST_UNUSED};
use quire_core::units::{PAGES_PER_SUPERPAGE, PageCount, Slot};

const FULL: PageCount = PageCount(PAGES_PER_SUPERPAGE as u64);
/// How long an extent is left alone that the kernel refused: at first, and at most. In seconds.
const REFUSED: (u16, u16) = (1, 600);

/// Nanoseconds in a second.
const NANOS: u128 = 1_000_000_000;

/// A time on the clock of the looks, in sixteenths of a second, of which eight years are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Moment(u32);

impl Moment {
    const NEVER: Moment = Moment(u32::MAX);

    /// The moment at that time, or right before it: what is so since then is so now.
    fn before(time: Duration) -> Moment {
        Moment::of((time.as_nanos() * 16) / NANOS)
    }

    /// The moment at that time, or right after it.
    fn after(time: Duration) -> Moment {
        Moment::of((time.as_nanos() * 16).div_ceil(NANOS))
    }

    fn of(sixteenths: u128) -> Moment {
        Moment(u32::try_from(sixteenths).unwrap_or(u32::MAX - 1))
    }

    fn time(self) -> Option<Duration> {
        (self != Moment::NEVER).then(|| Duration::from_secs(u64::from(self.0)) / 16)
    }
}

/// What an extent is and was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flags(u8);

impl Flags {
    const HUGE: u8 = 1;
    const PRIVATE: u8 = 2;
    const ADVISED: u8 = 4;
    const WAS_HUGE: u8 = 8;
    const MADE: u8 = 16;

    const fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    fn set(&mut self, flag: u8, on: bool) {
        self.0 = if on { self.0 | flag } else { self.0 & !flag };
    }
}

/// An extent, and what is known of it from earlier looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    slot: Slot,
    /// Since when it has been full, or as full as the region asks for.
    full_since: Moment,
    /// When it may be tried again, after the kernel refused it.
    retry_at: Moment,
    /// For how many seconds it was left alone after the last refusal.
    refused_for: u16,
    /// Pages that it held at the last look, or since something was done to it.
    populated: u16,
    /// With fewer pages it stays on base pages: its superpage was given up.
    least: u16,
    flags: Flags,
}

impl Seen for Known {
    fn slot(&self) -> Slot {
        self.slot
    }

    fn is_full(&self) -> bool {
        self.populated() >= FULL
    }
}

fn pages(count: PageCount) -> u16 {
    count.0.min(FULL.0) as u16
}

impl Known {
    /// One that holds something for the first time; whether it was advised before, so that being full proves nothing.
    #[must_use]
    pub fn new(extent: Extent, advised: bool) -> Known {
        let mut known = Known {
            slot: extent.slot,
            full_since: Moment::NEVER,
            retry_at: Moment::default(),
            refused_for: 0,
            populated: 0,
            least: 0,
            flags: Flags::default(),
        };
        known.flags.set(Flags::ADVISED, advised);
        known.set(extent);
        known
    }

    fn set(&mut self, extent: Extent) {
        self.populated = pages(extent.populated);
        self.flags.set(Flags::HUGE, extent.huge);
        self.flags.set(Flags::PRIVATE, extent.private);
    }

    /// The extent, as it was at the last look.
    #[must_use]
    pub fn extent(&self) -> Extent {
        Extent {
            slot: self.slot,
            populated: self.populated(),
            huge: self.is_huge(),
            private: self.flags.has(Flags::PRIVATE),
        }
    }

    /// The pages that it holds.
    #[must_use]
    pub fn populated(&self) -> PageCount {
        PageCount(u64::from(self.populated))
    }

    /// Whether it is a superpage.
    #[must_use]
    pub fn is_huge(&self) -> bool {
        self.flags.has(Flags::HUGE)
    }

    /// Whether it was advised when nothing was in it.
    #[must_use]
    pub fn is_advised(&self) -> bool {
        self.flags.has(Flags::ADVISED)
    }

    /// Whether it was a superpage at some time.
    #[must_use]
    pub fn was_huge(&self) -> bool {
        self.flags.has(Flags::WAS_HUGE)
    }

    /// Whether it was made a superpage by a copy, and still is one.
    #[must_use]
    pub fn is_made(&self) -> bool {
        self.flags.has(Flags::MADE)
    }

    /// Since when it has been full, to a sixteenth of a second.
    #[must_use]
    pub fn full_since(&self) -> Option<Duration> {
        self.full_since.time()
    }

    /// When it may become a superpage, as far as the last look tells: not before it has been full for `lived`,
    /// unless it was a superpage before, which is known to live. Nothing where it is one, or holds too little.
    #[must_use]
    pub fn due_at(&self, lived: Duration) -> Option<Duration> {
        let full = self.full_since()?;
        if self.is_huge() || self.populated < self.least {
            return None;
        }
        let lives = if self.was_huge() { full } else { full + lived };
        Some(lives.max(self.retry_at.time()?))
    }

    /// Takes over a new look, in which an extent with `enough` pages counts as full, and the page table tells what is
    /// a superpage, or does not.
    pub fn look(&mut self, extent: Extent, enough: PageCount, now: Duration, tells: bool) {
        self.set(extent);
        // Where the page table does not tell, what was made and is full still is one.
        let is_huge = extent.huge || (!tells && self.is_made() && self.is_full());
        self.flags.set(Flags::HUGE, is_huge);
        self.flags.set(Flags::MADE, is_huge && self.is_made());
        self.flags.set(Flags::WAS_HUGE, is_huge || self.was_huge());
        if extent.populated < enough {
            self.full_since = Moment::NEVER;
        } else if self.full_since == Moment::NEVER {
            self.full_since = Moment::before(now);
        }
    }

    /// Notes that it is a superpage now, or is none.
    pub fn set_made(&mut self, made: bool) {
        self.flags.set(Flags::HUGE, made);
        self.flags.set(Flags::MADE, made);
        self.flags.set(Flags::WAS_HUGE, made || self.was_huge());
        if made {
            self.refused_for = 0;
            self.least = 0;
        }
    }

    /// Notes that its superpage was given up, of which `used` pages are left. It becomes one again only with clearly
    /// more of them.
    pub fn given_up(&mut self, used: PageCount) {
        self.set_made(false);
        self.flags.set(Flags::WAS_HUGE, false);
        self.populated = pages(used);
        self.least = pages(used + LEAST_UNUSED);
    }

    /// Notes that the kernel refused it: it is left alone, each time twice as long.
    pub fn refused(&mut self, now: Duration) {
        self.refused_for = (self.refused_for * 2).clamp(REFUSED.0, REFUSED.1);
        self.retry_at(now + Duration::from_secs(self.refused_for.into()));
    }

    /// Leaves it alone until then.
    pub fn retry_at(&mut self, at: Duration) {
        self.retry_at = Moment::after(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_small_and_loses_nothing() {
        assert_eq!(size_of::<Known>(), 24);
        let extent = Extent {
            slot: Slot(u64::MAX >> 21),
            populated: FULL,
            huge: true,
            private: true,
        };
        assert_eq!(Known::new(extent, false).extent(), extent);
        let late = Duration::from_secs(200 * 365 * 86_400);
        assert!(Moment::after(late) < Moment::NEVER);
        let between = Duration::from_millis(1001);
        let times = [Moment::before, Moment::after].map(|round| round(between).time());
        let expected = [1_000_000, 1_062_500].map(|micros| Some(Duration::from_micros(micros)));
        assert_eq!(times, expected);
    }
}
