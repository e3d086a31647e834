//! What is known of each page of an object, for objects of which few pages were touched, and for
//! those of which all were. Pages that are neighbours mostly come together, so 64 of them share
//! a leaf: a bit for each says whether it is known, and what is known lies side by side, in
//! their order. A leaf has room for those that it holds, and is gone with the last of them.
//!
//! A `BTreeMap` of single pages takes nearly twice as much where pages come in their order, as
//! its nodes stay half full, and is as many times as deep for each that is looked up.

use std::collections::BTreeMap;
use std::ops::Range;

use super::message::PageNumber;

/// So many pages share a leaf: as many as a word has bits.
const WIDTH: u64 = u64::BITS as u64;

/// The map, in the order of the pages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PerPage<T> {
    /// By what the numbers of their pages are without the last bits. None is empty.
    leaves: BTreeMap<u64, Leaf<T>>,
    /// How many pages they hold.
    count: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Leaf<T> {
    /// Which pages are known.
    known: u64,
    /// What is known of them, in their order.
    values: Vec<T>,
}

/// The leaf of a page, and its bit there.
const fn place(page: PageNumber) -> (u64, u32) {
    (page.0 / WIDTH, (page.0 % WIDTH) as u32)
}

/// The bits below this one.
const fn below(bit: u32) -> u64 {
    (1 << bit) - 1
}

impl<T> Leaf<T> {
    const fn new() -> Leaf<T> {
        Leaf {
            known: 0,
            values: Vec::new(),
        }
    }

    /// Where the page of a bit is among the others, or would be.
    const fn rank(&self, bit: u32) -> usize {
        (self.known & below(bit)).count_ones() as usize
    }

    const fn has(&self, bit: u32) -> bool {
        self.known >> bit & 1 == 1
    }

    /// Which bits of a leaf are in a range of pages, and where their pages are among the others.
    fn part(&self, leaf: u64, pages: &Range<PageNumber>) -> (u64, Range<usize>) {
        let base = leaf * WIDTH;
        let first = pages.start.0.saturating_sub(base) as u32;
        let before_end = match pages.end.0 - base {
            WIDTH.. => u64::MAX,
            end => below(end as u32),
        };
        let bits = self.known & before_end & !below(first);
        let start = self.rank(first);
        (bits, start..start + bits.count_ones() as usize)
    }
}

/// The pages of the bits of a leaf, in order.
fn pages_of(leaf: u64, bits: u64) -> impl Iterator<Item = PageNumber> {
    let rest = |bits: &u64| Some(bits & (bits - 1)).filter(|bits| *bits != 0);
    let all = std::iter::successors(Some(bits).filter(|bits| *bits != 0), rest);
    all.map(move |bits| PageNumber(leaf * WIDTH + u64::from(bits.trailing_zeros())))
}

impl<T> PerPage<T> {
    /// Nothing is known of any page.
    #[must_use]
    pub const fn new() -> PerPage<T> {
        PerPage {
            leaves: BTreeMap::new(),
            count: 0,
        }
    }

    /// How many pages it holds.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// What is known of a page.
    #[must_use]
    pub fn get(&self, page: PageNumber) -> Option<&T> {
        let (leaf, bit) = place(page);
        let leaf = self.leaves.get(&leaf).filter(|leaf| leaf.has(bit))?;
        leaf.values.get(leaf.rank(bit))
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, page: PageNumber) -> Option<&mut T> {
        let (leaf, bit) = place(page);
        let leaf = self.leaves.get_mut(&leaf).filter(|leaf| leaf.has(bit))?;
        let rank = leaf.rank(bit);
        leaf.values.get_mut(rank)
    }

    /// Whether anything is known of a page.
    #[must_use]
    pub fn contains(&self, page: PageNumber) -> bool {
        self.get(page).is_some()
    }

    /// What is known of a page; where nothing is, this is from now on.
    pub fn get_or_insert_with(&mut self, page: PageNumber, make: impl FnOnce() -> T) -> &mut T {
        let (leaf, bit) = place(page);
        let leaf = self.leaves.entry(leaf).or_insert_with(Leaf::new);
        let rank = leaf.rank(bit);
        if !leaf.has(bit) {
            if leaf.values.capacity() == 0 {
                leaf.values.reserve_exact(1);
            }
            leaf.values.insert(rank, make());
            leaf.known |= 1 << bit;
            self.count += 1;
        }
        &mut leaf.values[rank]
    }

    /// This is known of a page from now on. What was known before.
    pub fn insert(&mut self, page: PageNumber, value: T) -> Option<T> {
        if let Some(known) = self.get_mut(page) {
            return Some(std::mem::replace(known, value));
        }
        self.get_or_insert_with(page, || value);
        None
    }

    /// Nothing is known of a page from now on. What was known before.
    pub fn remove(&mut self, page: PageNumber) -> Option<T> {
        let (number, bit) = place(page);
        let leaf = self.leaves.get_mut(&number).filter(|leaf| leaf.has(bit))?;
        let value = leaf.values.remove(leaf.rank(bit));
        leaf.known &= !(1 << bit);
        self.count -= 1;
        if leaf.known == 0 {
            self.leaves.remove(&number);
        }
        Some(value)
    }

    /// Nothing is known of those pages of which a function says no.
    pub fn retain(&mut self, mut keep: impl FnMut(PageNumber, &mut T) -> bool) {
        self.count = 0;
        self.leaves.retain(|number, leaf| {
            let mut pages = pages_of(*number, leaf.known);
            let mut known = 0;
            leaf.values.retain_mut(|value| {
                // There is a page for each value.
                pages.next().is_some_and(|page| {
                    let keeps = keep(page, value);
                    known |= u64::from(keeps) << place(page).1;
                    keeps
                })
            });
            leaf.known = known;
            self.count += leaf.values.len();
            known != 0
        });
    }

    /// Nothing is known of any page.
    pub fn clear(&mut self) {
        self.leaves.clear();
        self.count = 0;
    }

    /// All that is known.
    pub fn iter(&self) -> impl Iterator<Item = (PageNumber, &T)> {
        let leaves = self.leaves.iter();
        leaves.flat_map(|(number, leaf)| pages_of(*number, leaf.known).zip(&leaf.values))
    }

    /// All that is known, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (PageNumber, &mut T)> {
        let leaves = self.leaves.iter_mut();
        leaves.flat_map(|(number, leaf)| pages_of(*number, leaf.known).zip(&mut leaf.values))
    }

    /// The pages of which anything is known.
    pub fn keys(&self) -> impl Iterator<Item = PageNumber> {
        let leaves = self.leaves.iter();
        leaves.flat_map(|(number, leaf)| pages_of(*number, leaf.known))
    }

    /// What is known, without the pages.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.leaves.values().flat_map(|leaf| &leaf.values)
    }

    /// What is known of some pages.
    pub fn range(&self, pages: Range<PageNumber>) -> impl Iterator<Item = (PageNumber, &T)> {
        let leaves = self.leaves.range(leaves_of(&pages));
        leaves.flat_map(move |(number, leaf)| {
            let (bits, part) = leaf.part(*number, &pages);
            pages_of(*number, bits).zip(&leaf.values[part])
        })
    }

    /// What is known of some pages, to be changed.
    pub fn range_mut(
        &mut self,
        pages: Range<PageNumber>,
    ) -> impl Iterator<Item = (PageNumber, &mut T)> {
        let leaves = self.leaves.range_mut(leaves_of(&pages));
        leaves.flat_map(move |(number, leaf)| {
            let (bits, part) = leaf.part(*number, &pages);
            pages_of(*number, bits).zip(&mut leaf.values[part])
        })
    }
}

/// The leaves in which a range of pages lies.
fn leaves_of(pages: &Range<PageNumber>) -> Range<u64> {
    match pages.is_empty() {
        true => 0..0,
        false => place(pages.start).0..place(PageNumber(pages.end.0 - 1)).0 + 1,
    }
}

impl<T> Default for PerPage<T> {
    fn default() -> PerPage<T> {
        PerPage::new()
    }
}

impl<T> FromIterator<(PageNumber, T)> for PerPage<T> {
    fn from_iter<I: IntoIterator<Item = (PageNumber, T)>>(all: I) -> PerPage<T> {
        let mut map = PerPage::new();
        for (page, value) in all {
            map.insert(page, value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        GetOrInsert(u64),
        Change(u64),
        Remove(u64),
        Retain(u64),
        ChangeRange(u64, u64),
        ChangeAll,
        Clear,
    }

    /// Pages at both ends of leaves, and of what pages there can be.
    fn page() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..200, Just(u64::MAX - 1), u64::MAX - 70..u64::MAX - 1]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            9 => page().prop_map(Step::Insert),
            9 => page().prop_map(Step::GetOrInsert),
            3 => page().prop_map(Step::Change),
            9 => page().prop_map(Step::Remove),
            1 => (2u64..5).prop_map(Step::Retain),
            3 => (page(), page()).prop_map(|(from, to)| Step::ChangeRange(from, to)),
            1 => Just(Step::ChangeAll),
            1 => Just(Step::Clear),
        ]
    }

    type Model = BTreeMap<PageNumber, u64>;

    fn same(map: &PerPage<u64>, model: &Model) -> Result<(), TestCaseError> {
        let all: Vec<(PageNumber, u64)> = map.iter().map(|(page, value)| (page, *value)).collect();
        let wanted: Vec<(PageNumber, u64)> =
            model.iter().map(|(&page, &value)| (page, value)).collect();
        prop_assert_eq!(all, wanted.clone());
        prop_assert!(map.keys().eq(model.keys().copied()));
        prop_assert!(map.values().eq(model.values()));
        prop_assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
        // However it came to be, it is the same.
        prop_assert_eq!(&wanted.into_iter().rev().collect::<PerPage<u64>>(), map);
        Ok(())
    }

    proptest! {
        /// It is as a map of the standard library.
        #[test]
        fn it_is_a_map(
            steps in prop::collection::vec(step(), 0..120),
            (from, to) in (page(), page()),
        ) {
            let (mut map, mut model) = (PerPage::new(), Model::new());
            for (value, step) in (0u64..).zip(steps) {
                match step {
                    Step::Insert(page) => {
                        let page = PageNumber(page);
                        prop_assert_eq!(map.insert(page, value), model.insert(page, value));
                    }
                    Step::GetOrInsert(page) => {
                        let page = PageNumber(page);
                        let known = *map.get_or_insert_with(page, || value);
                        prop_assert_eq!(known, *model.entry(page).or_insert(value));
                    }
                    Step::Change(page) => {
                        let page = PageNumber(page);
                        let both = (map.get_mut(page), model.get_mut(&page));
                        prop_assert_eq!(both.0.is_some(), both.1.is_some());
                        both.0.into_iter().chain(both.1).for_each(|it| *it = value);
                    }
                    Step::Remove(page) => {
                        let page = PageNumber(page);
                        prop_assert_eq!(map.remove(page), model.remove(&page));
                    }
                    Step::Retain(by) => {
                        map.retain(|page, value| { *value ^= 1; (page.0 ^ *value) % by != 0 });
                        model.retain(|page, value| { *value ^= 1; (page.0 ^ *value) % by != 0 });
                    }
                    Step::ChangeRange(from, to) => {
                        let pages = PageNumber(from)..PageNumber(to);
                        map.range_mut(pages.clone()).for_each(|(page, it)| *it = it.wrapping_add(page.0));
                        let theirs = model.iter_mut().filter(|(page, _)| pages.contains(page));
                        theirs.for_each(|(page, it)| *it = it.wrapping_add(page.0));
                    }
                    Step::ChangeAll => {
                        map.iter_mut().for_each(|(page, it)| *it ^= page.0);
                        model.iter_mut().for_each(|(page, it)| *it ^= page.0);
                    }
                    Step::Clear => {
                        map.clear();
                        model.clear();
                    }
                }
                same(&map, &model)?;
            }
            let pages = PageNumber(from)..PageNumber(to);
            let theirs = model.iter().filter(|(page, _)| pages.contains(page));
            prop_assert!(map.range(pages.clone()).eq(theirs.map(|(page, it)| (*page, it))));
            for page in (0..200).chain(u64::MAX - 70..u64::MAX).map(PageNumber) {
                prop_assert_eq!(map.get(page), model.get(&page));
                prop_assert_eq!(map.contains(page), model.contains_key(&page));
            }
        }
    }

    #[test]
    fn pages_that_come_in_their_order_take_no_room_that_is_empty() {
        let map: PerPage<[u64; 8]> = (0..64).map(|page| (PageNumber(page), [0; 8])).collect();
        let leaves: Vec<&Leaf<[u64; 8]>> = map.leaves.values().collect();
        assert_eq!((leaves.len(), leaves[0].values.capacity()), (1, 64));
        let mut map = PerPage::new();
        map.insert(PageNumber(1000), [0u64; 8]);
        assert_eq!(
            map.leaves[&15].values.capacity(),
            1,
            "a lonely one has no room for others"
        );
    }
}
