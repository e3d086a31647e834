//! The two levels, and what is counted.

use std::collections::HashSet;

use super::PageSize;
use super::array::{Array, Found, Tag};
use super::geometry::{Geometry, PageSizes, SecondLevel, Structure};
use crate::units::VirtAddr;

/// Base pages in an entry that coalesces them.
const COALESCED: u64 = 4;

/// What an access is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The program reads or writes.
    Data,
    /// The processor fetches instructions.
    Code,
}

/// One access to one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where.
    pub addr: VirtAddr,
    /// What for.
    pub kind: Kind,
    /// The size of the page that holds the address.
    pub size: PageSize,
}

/// What accesses of one kind came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All accesses.
    pub accesses: u64,
    /// Accesses to pages larger than a base page.
    pub superpage_accesses: u64,
    /// Those that the first level knew only from an earlier window of the
    /// stream. Whether a machine would have known them is open, so they go no
    /// further and are neither hits nor misses.
    pub l1_open: u64,
    /// Those that the first level did not know. They ask the second level.
    pub l1_misses: u64,
    /// Of these, those that the second level knew only from an earlier window.
    pub l2_open: u64,
    /// Those that the second level did not know either. Each is a page walk.
    pub walks: u64,
    /// Levels of the page table that the walks touch, with nothing cached.
    pub walk_levels: u64,
    /// Walks for pages that the model meets for the first time. A machine that
    /// ran before the model began may have known them.
    pub first_walks: u64,
}

impl Counts {
    /// Share of misses of the first level; nothing where it was not asked.
    #[must_use]
    pub fn l1_miss_ratio(&self) -> Option<f64> {
        share(self.l1_misses, self.accesses - self.l1_open)
    }

    /// Share of misses of the second level; nothing where it was not asked.
    #[must_use]
    pub fn l2_miss_ratio(&self) -> Option<f64> {
        share(self.walks, self.l1_misses - self.l2_open)
    }

    /// Misses of the first level, with their share among the accesses that are
    /// open. Where all of these counts are open, the share is that of `whole`,
    /// the counts that these are a part of.
    #[must_use]
    pub fn l1_misses_estimated(&self, whole: &Counts) -> f64 {
        let ratio = self.l1_miss_ratio().or_else(|| whole.l1_miss_ratio());
        self.accesses as f64 * ratio.unwrap_or(0.0)
    }

    /// Walks, estimated in the same way.
    #[must_use]
    pub fn walks_estimated(&self, whole: &Counts) -> f64 {
        let ratio = self.l2_miss_ratio().or_else(|| whole.l2_miss_ratio());
        self.l1_misses_estimated(whole) * ratio.unwrap_or(0.0)
    }

    /// Adds other counts to these.
    pub fn add(&mut self, other: &Counts) {
        self.accesses += other.accesses;
        self.superpage_accesses += other.superpage_accesses;
        self.l1_open += other.l1_open;
        self.l1_misses += other.l1_misses;
        self.l2_open += other.l2_open;
        self.walks += other.walks;
        self.walk_levels += other.walk_levels;
        self.first_walks += other.first_walks;
    }
}

fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

/// The TLBs of one core, with what they hold.
#[derive(Clone, Debug)]
pub struct Tlb {
    l1_data: Level,
    l1_code: Level,
    l2_data: Level,
    /// Nothing where the second level is for both.
    l2_code: Option<Level>,
    seen: HashSet<Tag>,
    coalesce: bool,
    data: Counts,
    code: Counts,
}

impl Tlb {
    /// Empty TLBs.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Tlb {
        let level = |structures: &[Structure]| Level::new(structures, geometry.coalesce);
        let (l2_data, l2_code) = match &geometry.l2 {
            SecondLevel::Unified(both) => (level(both), None),
            SecondLevel::Split { data, code } => (level(data), Some(level(code))),
        };
        Tlb {
            l1_data: level(&geometry.l1_data),
            l1_code: level(&geometry.l1_code),
            l2_data,
            l2_code,
            seen: HashSet::new(),
            coalesce: geometry.coalesce,
            data: Counts::default(),
            code: Counts::default(),
        }
    }

    /// Feeds one access.
    pub fn access(&mut self, access: Access) {
        let (l1, l2, counts) = match (access.kind, &mut self.l2_code) {
            (Kind::Data, _) => (&mut self.l1_data, &mut self.l2_data, &mut self.data),
            (Kind::Code, None) => (&mut self.l1_code, &mut self.l2_data, &mut self.code),
            (Kind::Code, Some(l2)) => (&mut self.l1_code, l2, &mut self.code),
        };
        counts.accesses += 1;
        counts.superpage_accesses += u64::from(access.size > PageSize::Base);
        match l1.find(access) {
            Found::Now => return,
            Found::Earlier => {
                counts.l1_open += 1;
                return;
            }
            Found::Nothing => counts.l1_misses += 1,
        }
        match l2.find(access) {
            Found::Now => return,
            Found::Earlier => {
                counts.l2_open += 1;
                return;
            }
            Found::Nothing => counts.walks += 1,
        }
        counts.walk_levels += access.size.walk_levels();
        let number = access.size.page_of(access.addr);
        let page = Tag {
            size: access.size,
            number: grouped(number, access.size, self.coalesce),
        };
        counts.first_walks += u64::from(self.seen.insert(page));
    }

    /// Begins another window of the stream: what lies between is not known.
    pub fn begin_window(&mut self) {
        let l2_code = self.l2_code.iter_mut();
        let levels = [&mut self.l1_data, &mut self.l1_code, &mut self.l2_data];
        for level in levels.into_iter().chain(l2_code) {
            level
                .arrays
                .iter_mut()
                .for_each(|(_, array)| array.begin_window());
        }
    }

    /// What was counted since this was last asked, of data and of code. What
    /// the TLBs hold stays.
    pub fn take_counts(&mut self) -> (Counts, Counts) {
        (
            std::mem::take(&mut self.data),
            std::mem::take(&mut self.code),
        )
    }
}

/// The arrays of one level for one kind of access.
#[derive(Clone, Debug)]
struct Level {
    arrays: Vec<(PageSizes, Array)>,
    coalesce: bool,
}

impl Level {
    fn new(structures: &[Structure], coalesce: bool) -> Level {
        let arrays = structures.iter().map(|one| (one.sizes(), one.array()));
        Level {
            arrays: arrays.collect(),
            coalesce,
        }
    }

    /// Whether the level knows the page; from now on it does, where it has a
    /// place for it.
    fn find(&mut self, access: Access) -> Found {
        let Some(tag) = self.tag(access) else {
            return Found::Nothing;
        };
        let arrays = self.arrays.iter_mut();
        let mut able: Vec<&mut Array> = arrays
            .filter(|(sizes, _)| sizes.has(tag.size))
            .map(|(_, array)| array)
            .collect();
        let found = able.iter_mut().map(|array| array.lookup(tag));
        if let Some(found) = found.filter(|found| *found != Found::Nothing).last() {
            return found;
        }
        // Where several arrays hold this size, the page decides which one.
        let chosen = (tag.number % able.len() as u64) as usize;
        able[chosen].fill(tag);
        Found::Nothing
    }

    /// The entry that would hold the page: a page of a size that no array
    /// takes is broken into the largest smaller ones that one does.
    fn tag(&self, access: Access) -> Option<Tag> {
        let is_held = |size: PageSize| self.arrays.iter().any(|(sizes, _)| sizes.has(size));
        let sizes = PageSize::ALL.into_iter().rev();
        let size = sizes
            .filter(|size| *size <= access.size)
            .find(|size| is_held(*size))?;
        let number = grouped(size.page_of(access.addr), size, self.coalesce);
        Some(Tag { size, number })
    }
}

/// The number of the group that shares an entry, for a page of this number.
fn grouped(page: u64, size: PageSize, coalesce: bool) -> u64 {
    match size {
        PageSize::Base if coalesce => page / COALESCED,
        _ => page,
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::units::{BASE_PAGE, SUPERPAGE};

    const MILAN: &str =
        "l1d=64:full:4K+2M+1G,l1i=64:full:4K+2M+1G,l2d=2048:8:4K+2M,l2i=512:4:4K+2M";

    fn tlb(text: &str) -> Tlb {
        Tlb::new(&text.parse().unwrap())
    }

    fn data(addr: u64, size: PageSize) -> Access {
        Access {
            addr: VirtAddr(addr),
            kind: Kind::Data,
            size,
        }
    }

    /// Walks through `addrs` twice and counts the second time.
    fn second_pass(
        tlb: &mut Tlb,
        addrs: impl Iterator<Item = u64> + Clone,
        size: PageSize,
    ) -> Counts {
        addrs.clone().for_each(|addr| tlb.access(data(addr, size)));
        tlb.take_counts();
        addrs.for_each(|addr| tlb.access(data(addr, size)));
        tlb.take_counts().0
    }

    #[test]
    fn consecutive_pages_hit_as_far_as_the_arrays_reach() {
        let pages = |n: u64| (0..n).map(|page| page * BASE_PAGE);
        let misses = |n| {
            let counts = second_pass(&mut tlb(MILAN), pages(n), PageSize::Base);
            assert_eq!(counts.accesses, n);
            (counts.l1_misses, counts.walks)
        };
        assert_eq!(misses(64), (0, 0));
        assert_eq!(misses(65), (65, 0));
        assert_eq!(misses(2048), (2048, 0));
        // One page more than the second level has ways in one set, which has
        // eight ways and so misses nine times.
        assert_eq!(misses(2049), (2049, 9));
        assert_eq!(misses(4096), (4096, 4096));
    }

    #[test]
    fn a_column_of_a_large_matrix_misses_always_and_on_superpages_never() {
        // 2048 rows of 2048 doubles: one page in four, so 64 of 256 sets.
        let column = (0..2048u64).map(|row| row * 2048 * 8);
        let base = second_pass(&mut tlb(MILAN), column.clone(), PageSize::Base);
        assert_eq!((base.l1_misses, base.walks), (2048, 2048));
        assert_eq!((base.walk_levels, base.first_walks), (4 * 2048, 0));
        let superpages = second_pass(&mut tlb(MILAN), column, PageSize::Super);
        assert_eq!((superpages.l1_misses, superpages.walks), (0, 0));
        assert_eq!(superpages.superpage_accesses, 2048);
    }

    #[test]
    fn sizes_share_an_array_or_have_their_own() {
        let own = "l1d=2:full:4K,l1d=1:full:2M,l1i=1:full:4K";
        let shared = "l1d=2:full:4K+2M,l1i=1:full:4K";
        let misses = |text| {
            let mut tlb = tlb(text);
            for _ in 0..2 {
                tlb.take_counts();
                tlb.access(data(0, PageSize::Base));
                tlb.access(data(BASE_PAGE, PageSize::Base));
                tlb.access(data(SUPERPAGE, PageSize::Super));
            }
            tlb.take_counts().0.l1_misses
        };
        assert_eq!((misses(own), misses(shared)), (0, 3));
    }

    #[test]
    fn a_size_without_a_place_is_broken_up() {
        let mut tlb = tlb("l1d=4:full:4K+2M,l1i=1:full:4K");
        let counts = second_pass(&mut tlb, [0, SUPERPAGE].into_iter(), PageSize::Giant);
        assert_eq!(counts.l1_misses, 0);
        tlb.access(data(2 * SUPERPAGE, PageSize::Giant));
        let counts = tlb.take_counts().0;
        assert_eq!(
            (counts.walks, counts.walk_levels, counts.first_walks),
            (1, 2, 0)
        );
    }

    #[test]
    fn coalescing_holds_four_pages_in_an_entry() {
        let pages = (0..256u64).map(|page| page * BASE_PAGE);
        let coalesced = format!("{MILAN},coalesce");
        let counts = second_pass(&mut tlb(&coalesced), pages.clone(), PageSize::Base);
        assert_eq!(counts.l1_misses, 0);
        let counts = second_pass(&mut tlb(MILAN), pages, PageSize::Base);
        assert_eq!(counts.l1_misses, 256);
    }

    #[test]
    fn data_and_code_meet_only_in_a_unified_second_level() {
        let walks = |l2: &str| {
            let mut tlb = tlb(&format!("l1d=1:full:4K,l1i=1:full:4K,{l2}"));
            tlb.access(data(0, PageSize::Base));
            tlb.access(Access {
                kind: Kind::Code,
                ..data(0, PageSize::Base)
            });
            tlb.take_counts().1.walks
        };
        assert_eq!(walks("l2=8:full:4K"), 0);
        assert_eq!(walks("l2d=8:full:4K,l2i=8:full:4K"), 1);
    }

    #[test]
    fn hits_upon_what_an_earlier_window_left_are_open() {
        // A cycle of 96 pages over 64 entries misses always. Windows see a
        // part of it each, and the second one meets what the first one left.
        let mut tlb = tlb("l1d=64:full:4K,l1i=1:full:4K");
        let mut feed = |pages: std::ops::Range<u64>| {
            tlb.begin_window();
            pages.for_each(|page| tlb.access(data(page % 96 * BASE_PAGE, PageSize::Base)));
            tlb.take_counts().0
        };
        assert_eq!(feed(0..48).l1_misses, 48);
        let part = feed(96..96 + 48);
        assert_eq!((part.l1_misses, part.l1_open), (0, 48));
        assert_eq!(part.l1_miss_ratio(), None);
        let counts = feed(96..96 + 192);
        assert_eq!((counts.l1_misses, counts.l1_open), (144, 48));
        assert_eq!(
            (counts.l1_miss_ratio(), counts.l1_misses_estimated(&counts)),
            (Some(1.0), 192.0)
        );
        assert_eq!(counts.walks_estimated(&counts), 192.0);
        assert_eq!(part.walks_estimated(&counts), 48.0);
    }

    /// The naive model: lists of pages, the most recently used at the end.
    #[derive(Default)]
    struct Naive {
        l1: Vec<u64>,
        l2: Vec<u64>,
    }

    impl Naive {
        /// Whether each level knew the page.
        fn access(&mut self, page: u64, sizes: (usize, usize)) -> (bool, bool) {
            let touch = |list: &mut Vec<u64>, size: usize| {
                let known = list.contains(&page);
                list.retain(|held| *held != page);
                list.push(page);
                if list.len() > size {
                    list.remove(0);
                }
                known
            };
            let in_l1 = touch(&mut self.l1, sizes.0);
            // The second level is asked only when the first does not know.
            (in_l1, in_l1 || touch(&mut self.l2, sizes.1))
        }
    }

    proptest! {
        #[test]
        fn it_counts_as_the_naive_model(
            l1 in 1usize..6,
            l2 in 1usize..12,
            pages in vec(0u64..20, 1..300),
        ) {
            let mut tlb = tlb(&format!("l1d={l1}:full:4K,l1i=1:full:4K,l2={l2}:full:4K"));
            let mut naive = Naive::default();
            let mut expected = Counts::default();
            let mut seen = HashSet::new();
            for page in pages {
                let (in_l1, in_l2) = naive.access(page, (l1, l2));
                expected.accesses += 1;
                expected.l1_misses += u64::from(!in_l1);
                expected.walks += u64::from(!in_l2);
                expected.walk_levels += 4 * u64::from(!in_l2);
                expected.first_walks += u64::from(seen.insert(page));
                tlb.access(data(page * BASE_PAGE + 5, PageSize::Base));
            }
            prop_assert_eq!(tlb.take_counts(), (expected, Counts::default()));
        }
    }
}
