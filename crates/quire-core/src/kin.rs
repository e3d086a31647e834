//! What regions of one size did, and how the next one of that size begins.
//!
//! A region alone has to show what it does with its memory before anything can
//! be predicted. A program that maps and unmaps buffers never lets one live long
//! enough. So under the adaptive policy regions of one size class are *kin*, and
//! a new one begins with the page size that suited the last ones (paper 001:
//! page sizes that follow the address space, region by region).
//!
//! A prediction is not to cost more than reserving would. So superpages at once
//! are bounded by what the kin used, and base pages are given only to regions
//! whose kin ended soon, because a region that lives pays for its reservations
//! once. One that was left to base pages and became dense ends the agreement,
//! and doubles the number that must agree before the next one is left.
//!
//! What a region with superpages uses does not show, so every [`PROBE`]th begins
//! by reservation even where the kin agree. One that differs from the others
//! ends the agreement at once.

use std::time::Duration;

use crate::policy::WHOLE_PER_DENSE;
use crate::units::{Bytes, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE};

/// How many regions must have been alike before the next one begins like them.
pub const ALIKE: u32 = 3;
/// The most of them that must have been, after some that were left to base pages
/// became dense.
pub const MOST_ALIKE: u32 = 192;
/// One in so many regions of kin that agree on superpages is measured again.
pub const PROBE: u32 = 8;
/// The same for those that agree on base pages, which can be looked at without.
pub const BASE_PROBE: u32 = 64;
/// A region that ended sooner than this gained nothing from a promotion.
pub const SHORT: Duration = Duration::from_millis(50);
/// A region that lived longer than this has paid for its reservations.
pub const LONG: Duration = Duration::from_secs(1);
/// Size classes: each twice as large as the one before.
const CLASSES: usize = 24;

/// How a region begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// By reservation: it shows its density itself.
    #[default]
    Reserve,
    /// With a superpage at each first touch, in so many extents from its start;
    /// behind them by reservation.
    Whole {
        /// How many.
        extents: u64,
    },
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

/// What suits a region, or would have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Verdict {
    #[default]
    Reserve,
    Whole,
    Base,
}

impl Outcome {
    /// What it says about the next one, if anything.
    fn verdict(&self) -> Option<Verdict> {
        let pages = self.extents * PAGES_PER_SUPERPAGE as u64;
        if pages == 0 {
            return None;
        }
        let within = |limit| self.lifetime.is_some_and(|lived| lived < limit);
        Some(match self.populated.0 {
            used if used * 8 >= pages * 7 => Verdict::Whole,
            used if used * 8 < pages && within(LONG) => Verdict::Base,
            used if used * 2 < pages && within(SHORT) => Verdict::Base,
            _ => Verdict::Reserve,
        })
    }
}

/// The regions of one size class.
#[derive(Clone, Copy, Debug)]
struct Kin {
    verdict: Verdict,
    alike: u32,
    /// The least number of extents that one of those alike touched.
    extents: u64,
    since_probe: u32,
    /// How many must be alike before one is left to base pages.
    needed: u32,
    /// How many were rightly left since one was not.
    right: u32,
}

impl Kin {
    const UNKNOWN: Kin = Kin {
        verdict: Verdict::Reserve,
        alike: 0,
        extents: 0,
        since_probe: 0,
        needed: ALIKE,
        right: 0,
    };

    fn start(&mut self) -> Start {
        let (start, needed, probe) = match self.verdict {
            Verdict::Reserve => return Start::Reserve,
            Verdict::Base => (Start::Base, self.needed, BASE_PROBE),
            Verdict::Whole => {
                let extents = self.extents.saturating_mul(WHOLE_PER_DENSE);
                (Start::Whole { extents }, ALIKE, PROBE)
            }
        };
        if self.alike < needed {
            return Start::Reserve;
        }
        self.since_probe += 1;
        if self.since_probe >= probe {
            self.since_probe = 0;
            return Start::Reserve;
        }
        start
    }

    fn note(&mut self, verdict: Verdict, extents: u64) {
        if verdict == self.verdict {
            self.alike = (self.alike + 1).min(MOST_ALIKE);
            self.extents = self.extents.min(extents);
        } else {
            *self = Kin {
                verdict,
                alike: 1,
                extents,
                since_probe: 0,
                ..*self
            };
        }
    }

    fn note_left(&mut self, verdict: Verdict, extents: u64) {
        match verdict {
            Verdict::Base => {
                self.right += 1;
                if self.right >= self.needed {
                    self.needed = ALIKE;
                }
                return;
            }
            Verdict::Whole => self.needed = (self.needed * 2).min(MOST_ALIKE),
            Verdict::Reserve => {}
        }
        self.right = 0;
        self.note(verdict, extents);
    }
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
            classes: [Kin::UNKNOWN; CLASSES],
        }
    }

    /// How a new region of a size begins.
    pub fn start(&mut self, size: Bytes) -> Start {
        self.classes[class_of(size)].start()
    }

    /// Notes what a region did that began by reservation.
    pub fn note(&mut self, size: Bytes, outcome: &Outcome) {
        if let Some(verdict) = outcome.verdict() {
            self.classes[class_of(size)].note(verdict, outcome.extents);
        }
    }

    /// Notes what a region did that was left to base pages, when it ends or as
    /// soon as it is dense.
    pub fn note_left(&mut self, size: Bytes, outcome: &Outcome) {
        if let Some(verdict) = outcome.verdict() {
            self.classes[class_of(size)].note_left(verdict, outcome.extents);
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

    const WHOLE: Start = Start::Whole { extents: 64 };

    #[test]
    fn kin_that_agree_decide_for_the_next() {
        for (eighths, lived, expected) in [
            (8, 10_000, WHOLE),
            (7, 1, WHOLE),
            (6, 1, Start::Reserve),
            (3, 999, Start::Reserve),
            (3, 1, Start::Base),
            (0, 999, Start::Base),
            (0, 1000, Start::Reserve),
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
    fn superpages_are_bounded_by_what_the_kin_used() {
        let mut kinship = Kinship::new();
        for extents in [100, 2, 50] {
            kinship.note(
                Bytes::mib(1 << 20),
                &Outcome {
                    extents,
                    populated: PageCount(extents * PAGES_PER_SUPERPAGE as u64),
                    lifetime: None,
                },
            );
        }
        let start = kinship.start(Bytes::mib(1 << 20));
        assert_eq!(start, Start::Whole { extents: 16 });
    }

    #[test]
    fn one_that_differs_ends_the_agreement() {
        let mut kinship = Kinship::new();
        (0..ALIKE).for_each(|_| kinship.note(SIZE, &outcome(8, None)));
        assert_eq!(kinship.start(SIZE), WHOLE);
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
        kinship.note_left(SIZE, &untouched);
        assert_eq!(kinship.start(SIZE), WHOLE);
    }

    #[test]
    fn one_dense_region_that_was_left_ends_it_and_makes_the_next_agreement_harder() {
        let (sparse, dense) = (outcome(0, Some(1)), outcome(8, Some(1)));
        let mut kinship = Kinship::new();
        for needed in [3, 6, 12, 24, 48, 96, 192, 192] {
            for _ in 0..needed {
                assert_eq!(kinship.start(SIZE), Start::Reserve);
                kinship.note(SIZE, &sparse);
            }
            assert_eq!(kinship.start(SIZE), Start::Base);
            kinship.note_left(SIZE, &dense);
        }
        for _ in 0..MOST_ALIKE {
            kinship.note(SIZE, &sparse);
        }
        for _ in 0..MOST_ALIKE {
            kinship.note_left(SIZE, &sparse);
        }
        kinship.note_left(SIZE, &outcome(4, Some(999)));
        (0..ALIKE).for_each(|_| kinship.note(SIZE, &sparse));
        assert_eq!(
            kinship.start(SIZE),
            Start::Base,
            "what was right is forgiven"
        );
    }

    /// A program whose regions are dense or sparse, one after the other.
    struct Run {
        kinship: Kinship,
        /// Regions that began wrongly, and what the policy cost more than
        /// reserving all of them, in tenths of what it costs to reserve for a
        /// sparse region.
        wrong: usize,
        excess: i64,
    }

    impl Run {
        fn new() -> Run {
            let kinship = Kinship::new();
            Run {
                kinship,
                wrong: 0,
                excess: 0,
            }
        }

        fn region(&mut self, dense: bool) -> Start {
            let outcome = outcome(if dense { 8 } else { 0 }, Some(10));
            let start = self.kinship.start(SIZE);
            match (start, dense) {
                (Start::Reserve, _) => self.kinship.note(SIZE, &outcome),
                (Start::Base, _) => {
                    self.kinship.note_left(SIZE, &outcome);
                    self.excess += if dense { 20 } else { -10 };
                }
                // A superpage at once takes as long as a reservation.
                (Start::Whole { .. }, _) => {}
            }
            self.wrong += usize::from(matches!(
                (start, dense),
                (Start::Base, true) | (Start::Whole { .. }, false)
            ));
            start
        }
    }

    proptest! {
        /// After a change, few regions begin wrongly, and a dense phase is soon
        /// noticed however long the sparse one before it was.
        #[test]
        fn wrong_starts_are_bounded(phases in vec((any::<bool>(), 1usize..300), 1..6)) {
            let mut run = Run::new();
            for (dense, count) in phases {
                run.wrong = 0;
                for n in 0..count {
                    let start = run.region(dense);
                    prop_assert!(!dense || n == 0 || start != Start::Base);
                }
                prop_assert!(run.wrong < PROBE as usize);
                prop_assert!(!dense || run.wrong <= 1);
            }
        }

        /// Whatever comes after what, the predictions never cost much more than
        /// reserving: a fixed amount for what has to be learnt, and a small part
        /// of what reserving for the sparse regions costs.
        #[test]
        fn never_much_worse_than_reserving(
            pattern in vec((any::<bool>(), 1usize..40), 1..8),
            rounds in 1usize..60,
        ) {
            let mut run = Run::new();
            let mut sparse = 0;
            for _ in 0..rounds {
                for (dense, count) in &pattern {
                    (0..*count).for_each(|_| {
                        run.region(*dense);
                    });
                    sparse += if *dense { 0 } else { 10 * *count as i64 };
                }
            }
            prop_assert!(run.excess <= 7 * 20 + sparse / 50, "{} of {sparse}", run.excess);
        }

        #[test]
        fn most_starts_follow_the_kin(count in 20u32..400) {
            let mut run = Run::new();
            let reserved = (0..count).filter(|_| run.region(true) == Start::Reserve).count();
            prop_assert_eq!(reserved as u32, ALIKE + (count - ALIKE) / PROBE);
            let mut run = Run::new();
            let reserved = (0..count).filter(|_| run.region(false) == Start::Reserve).count();
            prop_assert_eq!(reserved as u32, ALIKE + (count - ALIKE) / BASE_PROBE);
        }

        #[test]
        fn every_size_has_a_class(size in any::<u64>()) {
            prop_assert!(class_of(Bytes(size)) < CLASSES);
        }
    }
}
