//! The population map: which base pages of one extent the program has in use.
//!
//! An extent may become a superpage when its map is full, and a reservation
//! that is preempted loses exactly the pages that its map lacks (POPMAP of
//! paper 000, sections 3.3 and 3.5). The map is consulted at every fault, so
//! it works on whole words and never allocates.

use std::ops::Range;

use crate::level::Level;
use crate::units::{PAGES_PER_SUPERPAGE, PageCount};

const WORD: usize = u64::BITS as usize;
const WORDS: usize = PAGES_PER_SUPERPAGE / WORD;

/// Which of the 512 base pages of one extent are populated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Popmap([u64; WORDS]);

impl Popmap {
    /// A map with no page populated.
    #[must_use]
    pub const fn new() -> Popmap {
        Popmap([0; WORDS])
    }

    /// A map with every page populated.
    #[must_use]
    pub const fn full() -> Popmap {
        Popmap([u64::MAX; WORDS])
    }

    /// Marks `pages` populated. What lies past the extent is ignored (and
    /// asserted against in debug builds).
    pub fn set(&mut self, pages: Range<usize>) {
        for (word, mask) in masks(pages) {
            self.0[word] |= mask;
        }
    }

    /// Marks `pages` unpopulated. What lies past the extent is ignored (and
    /// asserted against in debug builds).
    pub fn clear(&mut self, pages: Range<usize>) {
        for (word, mask) in masks(pages) {
            self.0[word] &= !mask;
        }
    }

    /// Whether `page` is populated; false past the extent.
    #[must_use]
    pub fn contains(&self, page: usize) -> bool {
        debug_assert!(page < PAGES_PER_SUPERPAGE, "page {page} is past the extent");
        self.0
            .get(page / WORD)
            .is_some_and(|word| word >> (page % WORD) & 1 == 1)
    }

    /// How many pages are populated.
    #[must_use]
    pub fn count(&self) -> PageCount {
        PageCount(self.0.iter().map(|w| u64::from(w.count_ones())).sum())
    }

    /// Whether every page is populated, so that the extent may be promoted
    /// (paper 000, section 3.5).
    #[must_use]
    pub fn is_full(&self) -> bool {
        *self == Popmap::full()
    }

    /// Whether no page is populated.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Popmap::new()
    }

    /// The maximal runs of populated pages, in order. They are those of the
    /// map at the time of the call: the iterator does not borrow it.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        self.stretches(true)
    }

    /// The maximal runs of unpopulated pages, in order. They are those of the
    /// map at the time of the call: the iterator does not borrow it.
    pub fn gaps(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        self.stretches(false)
    }

    /// The populated pages as superpages: aligned pieces of which every page is
    /// populated, each as large as can be, in order (paper 000, section 3.4:
    /// reservations of several sizes). Populated pages that fill no piece of the
    /// smallest level are left out.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, Level)> + use<> {
        self.runs().flat_map(|run| {
            let smallest = Level::SMALLEST.pages().0 as usize;
            let mut at = run.start.next_multiple_of(smallest);
            std::iter::from_fn(move || {
                let fits = |level: &Level| {
                    let pages = level.pages().0 as usize;
                    at.is_multiple_of(pages) && at + pages <= run.end
                };
                let level = Level::all().rev().find(fits)?;
                let first = at;
                at += level.pages().0 as usize;
                Some((first, level))
            })
        })
    }

    /// The pages populated in either map.
    #[must_use]
    pub fn union(&self, other: &Popmap) -> Popmap {
        Popmap(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    /// The pages populated in both maps.
    #[must_use]
    pub fn intersect(&self, other: &Popmap) -> Popmap {
        Popmap(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    fn stretches(&self, populated: bool) -> impl Iterator<Item = Range<usize>> + use<> {
        let map = *self;
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = map.find(at, populated)?;
            at = map.find(start, !populated).unwrap_or(PAGES_PER_SUPERPAGE);
            Some(start..at)
        })
    }

    /// The first page from `from` on that is populated, or that is not.
    fn find(&self, from: usize, populated: bool) -> Option<usize> {
        let flip = if populated { 0 } else { u64::MAX };
        let mut keep = u64::MAX << (from % WORD);
        for (index, word) in self.0.iter().enumerate().skip(from / WORD) {
            let found = (word ^ flip) & keep;
            if found != 0 {
                return Some(index * WORD + found.trailing_zeros() as usize);
            }
            keep = u64::MAX;
        }
        None
    }
}

/// The words that `pages` touches, each with the bits that it touches there.
fn masks(pages: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    debug_assert!(
        pages.end <= PAGES_PER_SUPERPAGE,
        "pages {pages:?} reach past the extent"
    );
    let end = pages.end.min(PAGES_PER_SUPERPAGE);
    let start = pages.start.min(end);
    (start / WORD..end.div_ceil(WORD)).map(move |word| {
        let base = word * WORD;
        let low = start.max(base) - base;
        let high = end.min(base + WORD) - base;
        let width = (high - low) as u32;
        let ones = u64::MAX.checked_shr(u64::BITS - width).unwrap_or(0);
        (word, ones << low)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn ranges(map: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
        map.collect()
    }

    #[test]
    fn whole_and_nothing() {
        let (full, empty) = (Popmap::full(), Popmap::new());
        assert!(full.is_full() && !full.is_empty());
        assert!(empty.is_empty() && !empty.is_full());
        assert_eq!(full.count(), PageCount(512));
        assert_eq!(ranges(full.runs()), [Range { start: 0, end: 512 }]);
        assert_eq!(ranges(empty.gaps()), [Range { start: 0, end: 512 }]);
        assert_eq!(ranges(full.gaps()).len() + ranges(empty.runs()).len(), 0);
    }

    #[test]
    fn ranges_across_words() {
        let mut map = Popmap::new();
        map.set(60..130);
        map.set(511..512);
        map.set(200..200);
        map.clear(64..128);
        assert_eq!(ranges(map.runs()), [60..64, 128..130, 511..512]);
        assert_eq!(ranges(map.gaps()), [0..60, 64..128, 130..511]);
        assert!(map.contains(63) && !map.contains(64) && map.contains(511));
    }

    #[test]
    fn a_map_may_change_while_its_runs_are_walked() {
        let mut map = Popmap::new();
        map.set(10..20);
        for run in map.runs() {
            map.clear(run);
        }
        assert!(map.is_empty());
    }

    fn pages() -> impl Strategy<Value = Range<usize>> {
        (0usize..=512, 0usize..=512).prop_map(|(a, b)| a.min(b)..a.max(b))
    }

    fn build(steps: &[(bool, Range<usize>)]) -> (Popmap, HashSet<usize>) {
        let (mut map, mut model) = (Popmap::new(), HashSet::new());
        for (set, range) in steps {
            if *set {
                map.set(range.clone());
                model.extend(range.clone());
            } else {
                map.clear(range.clone());
                model.retain(|page| !range.contains(page));
            }
        }
        (map, model)
    }

    /// The maximal runs of pages for which `holds`, found page by page.
    fn naive(holds: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = Vec::new();
        for page in (0..512).filter(|p| holds(*p)) {
            match found.last_mut() {
                Some(last) if last.end == page => last.end = page + 1,
                _ => found.push(page..page + 1),
            }
        }
        found
    }

    fn same(map: &Popmap, model: &HashSet<usize>) -> bool {
        (0..512).all(|page| map.contains(page) == model.contains(&page))
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(steps in vec((any::<bool>(), pages()), 0..12)) {
            let (map, model) = build(&steps);
            prop_assert!(same(&map, &model));
            prop_assert_eq!(map.count(), PageCount(model.len() as u64));
            prop_assert_eq!(map.is_full(), model.len() == 512);
            prop_assert_eq!(map.is_empty(), model.is_empty());
            prop_assert_eq!(ranges(map.runs()), naive(|p| model.contains(&p)));
            prop_assert_eq!(ranges(map.gaps()), naive(|p| !model.contains(&p)));
        }

        #[test]
        fn pieces_are_the_largest_that_are_full(
            steps in vec((any::<bool>(), pages()), 0..12),
        ) {
            let (map, model) = build(&steps);
            let full = |first: usize, pages: usize| {
                (first..first + pages).all(|page| model.contains(&page))
            };
            let mut expected = Vec::new();
            for page in (0..512).step_by(4).filter(|page| full(*page, 4)) {
                let around = |level: &Level| {
                    let pages = level.pages().0 as usize;
                    full(page / pages * pages, pages)
                };
                let level = Level::all().rev().find(around).unwrap();
                expected.push((page / level.pages().0 as usize * level.pages().0 as usize, level));
            }
            expected.dedup();
            prop_assert_eq!(map.pieces().collect::<Vec<_>>(), expected);
        }

        #[test]
        fn joins_agree_with_sets(
            a in vec((any::<bool>(), pages()), 0..8),
            b in vec((any::<bool>(), pages()), 0..8),
        ) {
            let ((a, model_a), (b, model_b)) = (build(&a), build(&b));
            prop_assert!(same(&a.union(&b), &(&model_a | &model_b)));
            prop_assert!(same(&a.intersect(&b), &(&model_a & &model_b)));
        }
    }
}
