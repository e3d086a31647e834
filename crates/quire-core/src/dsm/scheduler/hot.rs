//! Which pages of an object have the most faults, known at any time without a look at all pages.
//!
//! A page has one fault after the other. So it is enough to note it when it comes to have one more
//! than a *floor*: whoever has more is noted by then, and a fault costs a comparison. When many are
//! noted, the hottest stay, and the floor is what the first of the others has. It rises each time,
//! and no more often than so many faults take.

use std::cmp::Reverse;

use crate::dsm::message::PageNumber;

/// The hottest pages that are known, at most.
pub const HOTTEST: usize = 512;

/// So many pages are noted before most of them are forgotten. A page is noted twice at most until
/// then, so that there are enough of them, and an object with fewer pages is spared all that.
const NOTED: usize = 8 * HOTTEST;

/// The pages that may be the hottest.
#[derive(Clone, Debug, Default)]
pub(super) struct Hot {
    /// What is not noted has had so many faults at most.
    floor: u64,
    noted: Vec<PageNumber>,
}

impl Hot {
    /// A page has had a fault; it is the `faults`th.
    #[inline]
    pub fn count(&mut self, page: PageNumber, faults: u64) {
        if faults == self.floor + 1 {
            self.noted.push(page);
        }
    }

    /// Forgets pages, if it is time. `heat` says how many faults a page has had.
    #[inline]
    pub fn look(&mut self, heat: impl Fn(PageNumber) -> u64) {
        if self.noted.len() >= NOTED {
            self.forget(heat);
        }
    }

    /// The pages with the most faults, those with more first; [`HOTTEST`] at most. Of pages with
    /// as many faults as the last of them, any.
    pub fn hottest(&mut self, heat: impl Fn(PageNumber) -> u64) -> Vec<PageNumber> {
        self.forget(&heat);
        self.noted
            .sort_by_cached_key(|page| (Reverse(heat(*page)), *page));
        self.noted.clone()
    }

    /// Forgets all but the hottest.
    fn forget(&mut self, heat: impl Fn(PageNumber) -> u64) {
        self.noted.sort_unstable();
        self.noted.dedup();
        if self.noted.len() <= HOTTEST {
            return;
        }
        let heat = |page: &PageNumber| (Reverse(heat(*page)), *page);
        let mut all: Vec<_> = self.noted.iter().map(heat).collect();
        let (hottest, (Reverse(next), _), _) = all.select_nth_unstable(HOTTEST);
        self.floor = *next;
        self.noted.clear();
        self.noted.extend(hottest.iter().map(|(_, page)| *page));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Pages, their faults, and what was asked for that.
    #[derive(Default)]
    struct World {
        faults: BTreeMap<PageNumber, u64>,
        hot: Hot,
        looks: Cell<u64>,
    }

    impl World {
        fn fault(&mut self, page: u64) {
            let page = PageNumber(page);
            let faults = self.faults.entry(page).or_default();
            *faults += 1;
            self.hot.count(page, *faults);
            let (faults, looks) = (&self.faults, &self.looks);
            self.hot.look(|page| {
                looks.set(looks.get() + 1);
                faults[&page]
            });
        }

        /// Whether it knows what a look at all pages finds.
        fn is_right(&mut self) -> Result<(), TestCaseError> {
            let faults = &self.faults;
            let found = self.hot.hottest(|page| faults[&page]);
            let heat = |page: &PageNumber| faults[page];
            let mut all: Vec<u64> = faults.values().copied().collect();
            all.sort_unstable_by_key(|faults| Reverse(*faults));
            all.truncate(HOTTEST);
            prop_assert_eq!(found.iter().map(heat).collect::<Vec<_>>(), all);
            let mut pages = found;
            pages.sort_unstable();
            pages.dedup();
            prop_assert_eq!(pages.len(), faults.len().min(HOTTEST), "each once");
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Whatever is faulted on in which order, and whenever somebody asks: in rounds over parts
        /// of the object, which overlap, and more often where a page's number says so.
        #[test]
        fn it_knows_what_a_look_at_all_pages_finds(
            rounds in vec((0u64..6000, 1u64..9000, 1u64..4, any::<bool>()), 1..12),
        ) {
            let mut world = World::default();
            for (first, count, times, asks) in rounds {
                for page in first..first + count {
                    for _ in 0..1 + page.wrapping_mul(0x9E37_79B9) % times {
                        world.fault(page);
                    }
                }
                prop_assert!(world.hot.noted.len() < NOTED);
                if asks {
                    world.is_right()?;
                }
            }
            world.is_right()?;
        }
    }

    /// Where all pages are as hot, which is the most to do, pages are looked at so seldom that a
    /// fault costs little; and a question is about few, however many there are.
    #[test]
    fn few_pages_are_looked_at() {
        let (mut world, rounds, pages) = (World::default(), 5, 100_000);
        for _ in 0..rounds {
            (0..pages).for_each(|page| world.fault(page));
        }
        let looks = world.looks.get();
        assert!(looks <= rounds * NOTED as u64, "{looks} looks");
        let looks = Cell::new(0);
        let heat = |_| {
            looks.set(looks.get() + 1);
            rounds
        };
        assert_eq!(world.hot.hottest(heat).len(), HOTTEST);
        assert!(looks.get() <= 2 * NOTED, "{} looks", looks.get());
    }
}
