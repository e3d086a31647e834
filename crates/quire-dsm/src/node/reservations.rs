//! Reservations of a memory file: extents that have all of their memory, in a few folios, before
//! all of their pages are wanted (paper 000, section 3.1). Pages that come there together need no
//! memory of their own, and what is taken from all mappings stays until it is filled again, or
//! until the extent is preempted: then what is not in use is freed (section 3.6).
//!
//! Here is only what is where. A base page of a reservation is *fresh*, and holds zeros, until
//! it is filled; then it is *in use*; and *stale* when no mapping may show it any more.

use std::collections::BTreeMap;
use std::ops::Range;

use quire_core::dsm::message::{PageNumber, Pages};
use quire_core::popmap::Popmap;
use quire_core::units::{
    BASE_PAGE, Bytes, ObjectOffset, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE,
};

use super::Part;

/// A superpage-sized, aligned part of a file, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Extent(pub(super) u64);

impl Extent {
    /// The extents that a part has a share in.
    pub(super) fn of(part: Part) -> impl Iterator<Item = Extent> + use<> {
        let end = (part.start + part.len).0.div_ceil(SUPERPAGE);
        (part.start.0 / SUPERPAGE..end).map(Extent)
    }

    /// Where it starts.
    pub(super) const fn start(self) -> ObjectOffset {
        ObjectOffset(self.0 * SUPERPAGE)
    }

    /// Some base pages of it.
    pub(super) fn part(self, pages: &Range<usize>) -> Part {
        Part {
            start: self.start() + PageCount(pages.start as u64).to_bytes(),
            len: PageCount(pages.len() as u64).to_bytes(),
        }
    }
}

/// What a page of the object finds in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing: there is no such page.
    Nothing,
    /// Zeros: nobody has used it.
    Zeros,
    /// Something old.
    Old,
}

/// What is known of the base pages of a reservation.
#[derive(Debug)]
struct Reservation {
    fresh: Popmap,
    stale: Popmap,
    /// Its pages became stale last after so many others.
    since: u64,
}

/// The reservations of a file, for pages of some size.
#[derive(Debug)]
pub(super) struct Reservations {
    page: Bytes,
    extents: BTreeMap<Extent, Reservation>,
    stale: PageCount,
    clock: u64,
}

impl Reservations {
    /// None at first. A page is a power of two of base pages, and a superpage at most.
    pub(super) const fn new(page: Bytes) -> Reservations {
        Reservations {
            page,
            extents: BTreeMap::new(),
            stale: PageCount(0),
            clock: 0,
        }
    }

    /// An extent has got zeros in all pages but those that it had.
    pub(super) fn add(&mut self, extent: Extent, had: &Popmap) {
        let mut fresh = Popmap::full();
        had.runs().for_each(|pages| fresh.clear(pages));
        let reservation = Reservation {
            fresh,
            stale: Popmap::new(),
            since: 0,
        };
        self.extents.insert(extent, reservation);
    }

    /// Whether an extent is reserved.
    pub(super) fn contains(&self, extent: Extent) -> bool {
        self.extents.contains_key(&extent)
    }

    /// How much is stale.
    pub(super) const fn stale(&self) -> PageCount {
        self.stale
    }

    /// What a page finds, if it is one of a reservation and not in use.
    pub(super) fn find(&self, page: PageNumber) -> Found {
        let (extent, range) = self.place(page);
        match self.extents.get(&extent) {
            Some(it) if it.fresh.contains(range.start) => Found::Zeros,
            Some(it) if it.stale.contains(range.start) => Found::Old,
            _ => Found::Nothing,
        }
    }

    /// A page is filled: it is in use.
    pub(super) fn fill(&mut self, page: PageNumber) {
        let (extent, range) = self.place(page);
        if let Some(it) = self.extents.get_mut(&extent) {
            if it.stale.contains(range.start) {
                self.stale.0 -= range.len() as u64;
                it.stale.clear(range.clone());
            }
            it.fresh.clear(range);
        }
    }

    /// A page that is in use becomes stale. Whether it is one of a reservation.
    pub(super) fn leave(&mut self, page: PageNumber) -> bool {
        let (extent, range) = self.place(page);
        let Some(it) = self.extents.get_mut(&extent) else {
            return false;
        };
        self.clock += 1;
        it.since = self.clock;
        self.stale.0 += range.len() as u64;
        it.stale.set(range);
        true
    }

    /// Ends the reservation that has had stale pages for longest. What is not in use there is
    /// the caller's, to be freed.
    pub(super) fn preempt(&mut self) -> Option<(Extent, Popmap)> {
        let with_stale = self.extents.iter().filter(|(_, it)| !it.stale.is_empty());
        let oldest = with_stale.min_by_key(|(_, it)| it.since);
        let extent = *oldest?.0;
        self.end(extent).map(|unused| (extent, unused))
    }

    /// Ends the reservations of which pages are freed otherwise. What else is not in use there
    /// is the caller's, to be freed.
    pub(super) fn end_all_of(&mut self, pages: Pages) -> Vec<(Extent, Popmap)> {
        let part = super::bytes_of(pages, self.page);
        let ended = Extent::of(part).filter_map(|it| Some((it, self.end(it)?)));
        ended.collect()
    }

    fn end(&mut self, extent: Extent) -> Option<Popmap> {
        let it = self.extents.remove(&extent)?;
        self.stale.0 -= it.stale.count().0;
        Some(it.fresh.union(&it.stale))
    }

    /// All pages are freed by the caller.
    pub(super) fn clear(&mut self) {
        self.extents.clear();
        self.stale = PageCount(0);
    }

    /// In which extent a page is, and which of its base pages it has.
    fn place(&self, page: PageNumber) -> (Extent, Range<usize>) {
        let count = (self.page.0 / BASE_PAGE) as usize;
        let in_extent = PAGES_PER_SUPERPAGE / count;
        let first = page.0 as usize % in_extent * count;
        (Extent(page.0 / in_extent as u64), first..first + count)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn extents_are_those_that_a_part_touches() {
        let part = |start, len| Part {
            start: ObjectOffset(start),
            len: Bytes(len),
        };
        let of = |part| Extent::of(part).map(|it| it.0).collect::<Vec<_>>();
        assert_eq!(of(part(0, SUPERPAGE)), [0]);
        assert_eq!(of(part(SUPERPAGE - BASE_PAGE, 2 * BASE_PAGE)), [0, 1]);
        assert_eq!(of(part(2 * SUPERPAGE, 1)), [2]);
        let pages = Extent(3).part(&(2..5));
        assert_eq!(pages.start, ObjectOffset(3 * SUPERPAGE + 2 * BASE_PAGE));
        assert_eq!(pages.len, Bytes(3 * BASE_PAGE));
    }

    #[test]
    fn who_has_had_stale_pages_for_longest_is_preempted() {
        let mut all = Reservations::new(Bytes(64 * KIB));
        for extent in 0..3 {
            all.add(Extent(extent), &Popmap::new());
        }
        assert!(all.preempt().is_none(), "nothing is stale");
        for page in [32, 0, 33] {
            all.fill(PageNumber(page));
            assert!(all.leave(PageNumber(page)));
        }
        all.fill(PageNumber(1));
        assert!(!all.leave(PageNumber(96)), "not reserved");
        let (extent, unused) = all.preempt().unwrap();
        assert_eq!(extent, Extent(0));
        assert_eq!(unused.count(), PageCount(512 - 16));
        assert!((16..32).all(|page| !unused.contains(page)));
        assert_eq!(all.stale(), PageCount(32));
        assert_eq!(all.preempt().unwrap().0, Extent(1));
        assert!(all.preempt().is_none());
        assert!(all.contains(Extent(2)));
    }

    /// What is done to them.
    #[derive(Clone, Debug)]
    enum Step {
        /// An extent, and those of its pages that it has, as bits.
        Add(u64, u8),
        Fill(u64),
        Leave(u64),
        Preempt,
        End(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4u64, any::<u8>()).prop_map(|(extent, had)| Step::Add(extent, had)),
            (0..32u64).prop_map(Step::Fill),
            (0..32u64).prop_map(Step::Leave),
            Just(Step::Preempt),
            (0..32u64).prop_map(Step::End),
        ]
    }

    proptest! {
        /// Against a map of pages: pages of 256 KiB, 8 to an extent.
        #[test]
        fn pages_are_where_a_map_says(steps in prop::collection::vec(step(), 0..200)) {
            let mut all = Reservations::new(Bytes(256 * KIB));
            // What is found; none where it is in use.
            let mut model: BTreeMap<u64, Option<Found>> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Add(extent, had) if !all.contains(Extent(extent)) => {
                        let mut pages = Popmap::new();
                        let is_had = |page: usize| had & (1 << page) != 0;
                        for page in (0..8).filter(|page| is_had(*page)) {
                            pages.set(page * 64..page * 64 + 64);
                        }
                        all.add(Extent(extent), &pages);
                        model.extend((0..8).map(|page| {
                            let found = (!is_had(page)).then_some(Found::Zeros);
                            (extent * 8 + page as u64, found)
                        }));
                    }
                    Step::Add(..) => {}
                    Step::Fill(page) => {
                        all.fill(PageNumber(page));
                        model.entry(page).and_modify(|it| *it = None);
                    }
                    Step::Leave(page) => {
                        if model.get(&page).is_some_and(Option::is_some) {
                            continue;
                        }
                        prop_assert_eq!(all.leave(PageNumber(page)), model.contains_key(&page));
                        model.entry(page).and_modify(|it| *it = Some(Found::Old));
                    }
                    Step::Preempt | Step::End(_) => {
                        let ended = match step {
                            Step::End(page) => all.end_all_of(Pages::one(PageNumber(page))),
                            _ => all.preempt().into_iter().collect(),
                        };
                        for (extent, unused) in ended {
                            for page in extent.0 * 8..extent.0 * 8 + 8 {
                                let found = model.remove(&page).unwrap();
                                let first = page as usize % 8 * 64;
                                prop_assert_eq!(unused.contains(first), found.is_some());
                                prop_assert_eq!(unused.contains(first + 63), found.is_some());
                            }
                        }
                    }
                }
                for page in 0..32 {
                    let expected = model.get(&page).copied().flatten();
                    prop_assert_eq!(all.find(PageNumber(page)), expected.unwrap_or(Found::Nothing));
                }
                let stale = model.values().filter(|it| **it == Some(Found::Old)).count();
                prop_assert_eq!(all.stale(), PageCount(stale as u64 * 64));
            }
        }
    }
}
