//! What regions of one size did, and how the next one of that size begins.
//!
//! A region alone has to show what it does with its memory before anything can
//! be predicted. A program that maps and unmaps buffers never lets one live long
//! enough. So under the adaptive policy regions of one size class are *kin*, and
//! a new one begins with the page size that suited the last ones (paper 001:
//! page sizes that follow the address space, region by region).
//!
//! Only a region that begins by reservation shows its density, so every
//! [`PROBE`]th does even where the kin agree. One that differs from the others
//! ends the agreement at once.

use std::time::Duration;

use crate::units::{Bytes, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE};

/// How many regions must have been alike before the next one begins like them.
pub const ALIKE: u32 = 3;
/// One in so many regions of kin that agree is measured again.
pub const PROBE: u32 = 8;
/// A region that ended sooner than this gained nothing from a promotion.
pub const SHORT: Duration = Duration::from_millis(50);
/// Size classes: each twice as large as the one before.
const CLASSES: usize = 24;

/// How a region begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// By reservation: it shows its density itself.
    #[default]
    Reserve,
    /// With a superpage at each first touch.
    Whole,
    /// With base pages.
    Base,
}

/// What a region did with its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Extents that were touched.
    pub extents: u64,
    /// Base pages that were touched in them.
    pub populated: PageCount,
    /// How long it lived; `None` while it does.
    pub lifetime: Option<Duration>,
}

impl Outcome {
    /// What it says about the next one, if anything.
    fn verdict(&self) -> Option<Start> {
        let pages = self.extents * PAGES_PER_SUPERPAGE as u64;
        if pages == 0 {
            return None;
        }
        let short = self.lifetime.is_some_and(|lived| lived < SHORT);
        Some(match self.populated.0 {
            used if used * 8 >= pages * 7 => Start::Whole,
            used if used * 8 < pages => Start::Base,
            used if short && used * 2 < pages => Start::Base,
            _ => Start::Reserve,
        })
    }
}

/// The regions of one size class.
#[derive(Clone, Copy, Debug, Default)]
struct Kin {
    verdict: Start,
    alike: u32,
    since_probe: u32,
}

/// All regions of a process, by size.
#[derive(Clone, Debug)]
pub struct Kinship {
    classes: [Kin; CLASSES],
}

impl Default for Kinship {
    fn default() -> Kinship {
        Kinship::new()
    }
}

impl Kinship {
    /// Nothing is known.
    #[must_use]
    pub const fn new() -> Kinship {
        Kinship {
            classes: [Kin {
                verdict: Start::Reserve,
                alike: 0,
                since_probe: 0,
            }; CLASSES],
        }
    }

    /// How a new region of a size begins.
    pub fn start(&mut self, size: Bytes) -> Start {
        let kin = &mut self.classes[class_of(size)];
        if kin.alike < ALIKE {
            return Start::Reserve;
        }
        kin.since_probe += 1;
        if kin.since_probe >= PROBE {
            kin.since_probe = 0;
            return Start::Reserve;
        }
        kin.verdict
    }

    /// Notes what a region did that began by reservation.
    pub fn note(&mut self, size: Bytes, outcome: &Outcome) {
        let Some(verdict) = outcome.verdict() else {
            return;
        };
        let kin = &mut self.classes[class_of(size)];
        if verdict == kin.verdict {
            kin.alike = (kin.alike + 1).min(ALIKE);
        } else {
            *kin = Kin {
                verdict,
                alike: 1,
                since_probe: 0,
            };
        }
    }
}

/// The class of a size: whole superpages, rounded down to a power of two.
fn class_of(size: Bytes) -> usize {
    let superpages = (size.0 / SUPERPAGE).max(1);
    (superpages.ilog2() as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const SIZE: Bytes = Bytes::mib(16);

    fn outcome(eighths: u64, lived_ms: Option<u64>) -> Outcome {
        Outcome {
            extents: 8,
            populated: PageCount(eighths * PAGES_PER_SUPERPAGE as u64),
            lifetime: lived_ms.map(Duration::from_millis),
        }
    }

    #[test]
    fn kin_that_agree_decide_for_the_next() {
        for (eighths, lived, expected) in [
            (8, 1000, Start::Whole),
            (7, 1, Start::Whole),
            (6, 1, Start::Reserve),
            (3, 1000, Start::Reserve),
            (3, 1, Start::Base),
            (0, 1000, Start::Base),
        ] {
            let mut kinship = Kinship::new();
            for _ in 0..ALIKE {
                assert_eq!(kinship.start(SIZE), Start::Reserve);
                kinship.note(SIZE, &outcome(eighths, Some(lived)));
            }
            assert_eq!(kinship.start(SIZE), expected, "{eighths}/8, {lived} ms");
            assert_eq!(kinship.start(Bytes::mib(40)), Start::Reserve);
            assert_eq!(kinship.start(Bytes::mib(31)), expected, "the same class");
        }
    }

    #[test]
    fn one_that_differs_ends_the_agreement() {
        let mut kinship = Kinship::new();
        (0..ALIKE).for_each(|_| kinship.note(SIZE, &outcome(8, None)));
        assert_eq!(kinship.start(SIZE), Start::Whole);
        kinship.note(SIZE, &outcome(1, None));
        assert_eq!(kinship.start(SIZE), Start::Reserve);
    }

    #[test]
    fn a_region_that_was_not_touched_says_nothing() {
        let mut kinship = Kinship::new();
        (0..ALIKE).for_each(|_| kinship.note(SIZE, &outcome(8, None)));
        let untouched = Outcome {
            extents: 0,
            populated: PageCount(0),
            lifetime: None,
        };
        kinship.note(SIZE, &untouched);
        assert_eq!(kinship.start(SIZE), Start::Whole);
    }

    proptest! {
        /// A program whose regions change their density pays for a bounded number
        /// of wrong starts after each change, and is soon right again.
        #[test]
        fn wrong_starts_are_bounded(phases in vec((0u64..=8, 1usize..200), 1..6)) {
            let mut kinship = Kinship::new();
            for (eighths, count) in phases {
                let right = outcome(eighths, Some(1000));
                let mut wrong = 0;
                for n in 0..count {
                    let start = kinship.start(SIZE);
                    if start == Start::Reserve {
                        kinship.note(SIZE, &right);
                    } else if Some(start) != right.verdict() {
                        wrong += 1;
                    }
                    if n as u32 >= PROBE + ALIKE && start != Start::Reserve {
                        prop_assert_eq!(Some(start), right.verdict());
                    }
                }
                prop_assert!(wrong < PROBE);
            }
        }

        #[test]
        fn most_starts_follow_the_kin(count in 20u32..400) {
            let mut kinship = Kinship::new();
            let mut reserved = 0;
            for _ in 0..count {
                if kinship.start(SIZE) == Start::Reserve {
                    reserved += 1;
                    kinship.note(SIZE, &outcome(8, Some(1)));
                }
            }
            prop_assert_eq!(reserved, ALIKE + (count - ALIKE) / PROBE);
        }

        #[test]
        fn every_size_has_a_class(size in any::<u64>()) {
            prop_assert!(class_of(Bytes(size)) < CLASSES);
        }
    }
}
