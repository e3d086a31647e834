//! Reservations of a memory file: extents that have memory, in a few folios, before all of it is
//! wanted (paper 000, section 3.1). Pages that come there together need no memory of their own, and
//! what is taken from all mappings stays until it is filled again, or until the extent is
//! preempted: then what is not in use is freed (section 3.6).
//!
//! Here is only what is where. A base page that came to a reservation is *fresh*, and holds zeros,
//! until it is filled; then it is *in use*; and *stale* when no mapping may show it any more. What
//! an extent lacks is not told from what is in use: nobody asks for that.

use std::collections::BTreeMap;
use std::ops::Range;

use quire_core::dsm::message::PageNumber;
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

    /// An extent, reserved or not, has got zeros in some pages.
    pub(super) fn add(&mut self, extent: Extent, zeros: &Popmap) {
        let reservation = self.extents.entry(extent).or_insert(Reservation {
            fresh: Popmap::new(),
            stale: Popmap::new(),
            since: 0,
        });
        reservation.fresh = reservation.fresh.union(zeros);
    }

    /// How much is stale.
    pub(super) const fn stale(&self) -> PageCount {
        self.stale
    }

    /// What a page finds, if it is one of a reservation and not in use.
    pub(super) fn find(&self, page: PageNumber) -> Found {
        let (extent, range) = self.place(page);
        self.find_at(extent, range.start)
    }

    /// The same for a base page of an extent.
    pub(super) fn find_at(&self, extent: Extent, page: usize) -> Found {
        match self.extents.get(&extent) {
            Some(it) if it.fresh.contains(page) => Found::Zeros,
            Some(it) if it.stale.contains(page) => Found::Old,
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
        let it = self.extents.remove(&extent)?;
        self.stale.0 -= it.stale.count().0;
        Some((extent, it.fresh.union(&it.stale)))
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
            all.add(Extent(extent), &Popmap::full());
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
        assert_eq!(all.find(PageNumber(64)), Found::Zeros);
    }

    /// What is done to them.
    #[derive(Clone, Debug)]
    enum Step {
        /// An extent, and which of its pages it gets, as bits, if it has nothing of them.
        Add(u64, u8),
        Fill(u64),
        Leave(u64),
        /// A page that is in use is freed: nothing is said of that.
        Free(u64),
        Preempt,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4u64, any::<u8>()).prop_map(|(extent, bits)| Step::Add(extent, bits)),
            (0..32u64).prop_map(Step::Fill),
            (0..32u64).prop_map(Step::Leave),
            (0..32u64).prop_map(Step::Free),
            Just(Step::Preempt),
        ]
    }

    /// What a page of the file is to the model.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Is {
        /// It came with a reservation, and was not filled, or left since.
        Unused(Found),
        InUse,
        Nothing,
    }

    proptest! {
        /// Against a list of pages: pages of 256 KiB, 8 to an extent.
        #[test]
        fn pages_are_where_a_list_says(steps in prop::collection::vec(step(), 0..200)) {
            let mut all = Reservations::new(Bytes(256 * KIB));
            let mut model = [Is::Nothing; 32];
            let mut reserved = [false; 4];
            for step in steps {
                match step {
                    Step::Add(extent, bits) => {
                        let mut zeros = Popmap::new();
                        for page in (0..8).filter(|page| bits & (1 << page) != 0) {
                            let at = extent as usize * 8 + page;
                            if model[at] == Is::Nothing {
                                zeros.set(page * 64..page * 64 + 64);
                                model[at] = Is::Unused(Found::Zeros);
                            }
                        }
                        all.add(Extent(extent), &zeros);
                        reserved[extent as usize] = true;
                    }
                    Step::Fill(page) => {
                        all.fill(PageNumber(page));
                        model[page as usize] = Is::InUse;
                    }
                    Step::Leave(page) if model[page as usize] == Is::InUse => {
                        let is_reserved = reserved[page as usize / 8];
                        prop_assert_eq!(all.leave(PageNumber(page)), is_reserved);
                        model[page as usize] = match is_reserved {
                            true => Is::Unused(Found::Old),
                            false => Is::Nothing,
                        };
                    }
                    Step::Free(page) if model[page as usize] == Is::InUse => {
                        model[page as usize] = Is::Nothing;
                    }
                    Step::Leave(_) | Step::Free(_) => {}
                    Step::Preempt => if let Some((extent, unused)) = all.preempt() {
                        reserved[extent.0 as usize] = false;
                        for page in 0..8 {
                            let at = extent.0 as usize * 8 + page;
                            let is_unused = matches!(model[at], Is::Unused(_));
                            prop_assert_eq!(unused.contains(page * 64), is_unused);
                            prop_assert_eq!(unused.contains(page * 64 + 63), is_unused);
                            if is_unused {
                                model[at] = Is::Nothing;
                            }
                        }
                    }
                }
                for (page, is) in model.iter().enumerate() {
                    let expected = match is {
                        Is::Unused(found) => *found,
                        Is::InUse | Is::Nothing => Found::Nothing,
                    };
                    prop_assert_eq!(all.find(PageNumber(page as u64)), expected);
                }
                let stale = model.iter().filter(|it| **it == Is::Unused(Found::Old)).count();
                prop_assert_eq!(all.stale(), PageCount(stale as u64 * 64));
            }
        }
    }
}
