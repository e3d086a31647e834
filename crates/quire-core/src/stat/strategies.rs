//! What each frame strategy of a process gave, and where: two tables of fixed size in
//! the statistics page, however many ranges a program has.
//!
//! Each strategy has a row with its sums. Of the ranges of addresses, those with the
//! most pages have a row of their own; what the others got is in the sums alone. One
//! thread writes, the one that gives the frames; it keeps a [`FrameTally`].

use std::sync::atomic::{AtomicU64, Ordering, fence};

use serde::{Deserialize, Serialize};

use super::{Counter, StatPage, text};
use crate::units::{AddrRange, PageCount, VirtAddr};

/// Strategies that have a row; what further ones give is in the process's sums alone.
pub const MAX_STRATEGIES: usize = 16;
/// Ranges of addresses that have a row.
pub const MAX_PLACED: usize = 64;
/// Words of a name.
const NAME: usize = 6;
/// Kinds of frames, see [`Given`].
const KINDS: usize = 3;

/// Whose frame a page got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Given {
    /// One that the strategy chose.
    Chosen,
    /// Any: the strategy accepted none that was free.
    Other,
    /// The kernel's choice, although there is a strategy.
    Left,
}

impl Given {
    const fn counter(self) -> Counter {
        match self {
            Given::Chosen => Counter::FramesChosen,
            Given::Other => Counter::FramesOther,
            Given::Left => Counter::FramesLeft,
        }
    }
}

/// What a strategy is called in reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrategyName {
    /// The memory that it is for: `default` for all without a hint, or the target of
    /// its hint.
    pub target: String,
    /// The strategy.
    pub strategy: String,
}

/// Pages by whose frame they got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameCounts {
    /// In frames that the strategy chose.
    #[serde(rename = "chosen_pages")]
    pub chosen: PageCount,
    /// In any frames, because the strategy accepted none that was free.
    #[serde(rename = "other_pages")]
    pub other: PageCount,
    /// Left to the kernel.
    #[serde(rename = "left_pages")]
    pub left: PageCount,
}

impl FrameCounts {
    /// All pages.
    #[must_use]
    pub fn pages(self) -> PageCount {
        self.chosen + self.other + self.left
    }

    /// Adds those of others.
    pub fn add(&mut self, other: FrameCounts) {
        self.chosen += other.chosen;
        self.other += other.other;
        self.left += other.left;
    }

    /// What is left without a part of them.
    #[must_use]
    pub fn without(self, part: FrameCounts) -> FrameCounts {
        let rest = |all: PageCount, part: PageCount| PageCount(all.0.saturating_sub(part.0));
        FrameCounts {
            chosen: rest(self.chosen, part.chosen),
            other: rest(self.other, part.other),
            left: rest(self.left, part.left),
        }
    }

    fn load(words: &[AtomicU64; KINDS]) -> FrameCounts {
        let at = |kind: Given| PageCount(words[kind as usize].load(Ordering::Relaxed));
        FrameCounts {
            chosen: at(Given::Chosen),
            other: at(Given::Other),
            left: at(Given::Left),
        }
    }
}

/// A range of addresses whose pages got frames by a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedStat {
    /// One mapping, or several that adjoin, as they were once.
    #[serde(flatten)]
    pub range: AddrRange,
    /// Its pages, since it was met.
    #[serde(flatten)]
    pub counts: FrameCounts,
}

/// What a strategy gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrategyStat {
    /// The memory that it is for, see [`StrategyName`].
    pub target: String,
    /// The strategy; the middle of a long name is left out.
    pub strategy: String,
    /// All pages for which it was asked.
    #[serde(flatten)]
    pub counts: FrameCounts,
    /// Ranges of addresses, those with the most pages, these first.
    pub placed: Vec<PlacedStat>,
}

impl StrategyStat {
    /// Whether it is to leave frames to the kernel, and so never asked.
    #[must_use]
    pub fn is_kernels(&self) -> bool {
        self.strategy == "default"
    }
}

#[repr(C)]
struct StrategyRow {
    target: [AtomicU64; NAME],
    strategy: [AtomicU64; NAME],
    counts: [AtomicU64; KINDS],
}

/// A range. It is read without a lock: the number of its strategy is written last, and
/// is zero while there is none.
#[repr(C)]
struct PlacedRow {
    /// The number of the strategy and one.
    owner: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    counts: [AtomicU64; KINDS],
}

/// The tables.
#[repr(C)]
pub(super) struct StrategyTable {
    count: AtomicU64,
    strategies: [StrategyRow; MAX_STRATEGIES],
    placed: [PlacedRow; MAX_PLACED],
}

impl StrategyTable {
    pub(super) const fn new() -> StrategyTable {
        StrategyTable {
            count: AtomicU64::new(0),
            strategies: [const {
                StrategyRow {
                    target: [const { AtomicU64::new(0) }; NAME],
                    strategy: [const { AtomicU64::new(0) }; NAME],
                    counts: [const { AtomicU64::new(0) }; KINDS],
                }
            }; MAX_STRATEGIES],
            placed: [const {
                PlacedRow {
                    owner: AtomicU64::new(0),
                    start: AtomicU64::new(0),
                    end: AtomicU64::new(0),
                    counts: [const { AtomicU64::new(0) }; KINDS],
                }
            }; MAX_PLACED],
        }
    }

    /// Forgets everything.
    pub(super) fn reset(&self) {
        self.count.store(0, Ordering::Relaxed);
        for row in &self.strategies {
            row.counts
                .iter()
                .for_each(|c| c.store(0, Ordering::Relaxed));
        }
        self.placed.iter().for_each(PlacedRow::clear);
    }

    /// Writes the names of the strategies, in the order of their numbers.
    pub(super) fn set_names(&self, names: &[StrategyName]) {
        for (row, name) in self.strategies.iter().zip(names) {
            for (words, name) in [(&row.target, &name.target), (&row.strategy, &name.strategy)] {
                text::store(words, &text::shortened(name, size_of_val(words)));
            }
        }
        let count = names.len().min(MAX_STRATEGIES) as u64;
        self.count.store(count, Ordering::Release);
    }

    /// Whether there are strategies.
    pub(super) fn are_named(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    pub(super) fn read(&self) -> Vec<StrategyStat> {
        let count = self.count.load(Ordering::Acquire) as usize;
        let rows = self.strategies.iter().take(count);
        let mut strategies: Vec<StrategyStat> = rows
            .map(|row| StrategyStat {
                target: text::load(&row.target),
                strategy: text::load(&row.strategy),
                counts: FrameCounts::load(&row.counts),
                placed: Vec::new(),
            })
            .collect();
        for (which, placed) in self.placed.iter().filter_map(PlacedRow::read) {
            if let Some(strategy) = strategies.get_mut(which) {
                strategy.placed.push(placed);
            }
        }
        for strategy in &mut strategies {
            let order =
                |placed: &PlacedStat| (u64::MAX - placed.counts.pages().0, placed.range.start);
            strategy.placed.sort_by_key(order);
        }
        strategies
    }
}

impl PlacedRow {
    fn clear(&self) {
        self.owner.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.counts
            .iter()
            .for_each(|c| c.store(0, Ordering::Relaxed));
    }

    fn write(&self, which: usize, range: AddrRange) {
        self.start.store(range.start.0, Ordering::Relaxed);
        self.end.store(range.end.0, Ordering::Relaxed);
        self.owner.store(which as u64 + 1, Ordering::Release);
    }

    /// The row and the number of its strategy; nothing where it is free, or was given
    /// to another one meanwhile.
    fn read(&self) -> Option<(usize, PlacedStat)> {
        let owner = self.owner.load(Ordering::Acquire);
        let which = usize::try_from(owner.checked_sub(1)?).ok()?;
        let range = AddrRange {
            start: VirtAddr(self.start.load(Ordering::Relaxed)),
            end: VirtAddr(self.end.load(Ordering::Relaxed)),
        };
        let counts = FrameCounts::load(&self.counts);
        fence(Ordering::Acquire);
        let is_same = self.owner.load(Ordering::Relaxed) == owner;
        is_same.then_some((which, PlacedStat { range, counts }))
    }
}

/// A row as its writer knows it.
#[derive(Clone, Copy, Debug)]
struct Known {
    which: usize,
    range: AddrRange,
    pages: u64,
}

/// What the one thread that gives frames knows of the rows that it writes. It takes no
/// memory but its own.
#[derive(Debug)]
pub struct FrameTally {
    rows: [Option<Known>; MAX_PLACED],
    /// The row of the last page.
    last: usize,
}

impl Default for FrameTally {
    fn default() -> FrameTally {
        FrameTally {
            rows: [None; MAX_PLACED],
            last: 0,
        }
    }
}

impl FrameTally {
    /// Counts `pages` from `at` on, which have the strategy of number `which`, for the
    /// process, for the strategy and for the range that they lie in. `mapping` is asked
    /// for that range only where none of the known ones holds them.
    pub fn count(
        &mut self,
        page: &StatPage,
        (which, at): (usize, VirtAddr),
        (given, pages): (Given, PageCount),
        mapping: impl FnOnce() -> Option<AddrRange>,
    ) {
        page.add(given.counter(), pages.0);
        let table = &page.strategies;
        let Some(strategy) = table.strategies.get(which) else {
            return;
        };
        strategy.counts[given as usize].fetch_add(pages.0, Ordering::Relaxed);
        let pages_at = AddrRange::new(at, pages.to_bytes());
        let known = self.find(which, pages_at);
        let row = known.or_else(|| Some(self.enter(table, which, mapping()?)));
        if let Some(row) = row
            && let Some(known) = &mut self.rows[row]
        {
            known.pages += pages.0;
            table.placed[row].counts[given as usize].fetch_add(pages.0, Ordering::Relaxed);
            self.last = row;
        }
    }

    /// The row that holds the pages.
    fn find(&self, which: usize, pages: AddrRange) -> Option<usize> {
        let holds = |row: &usize| {
            self.rows[*row].is_some_and(|known| known.which == which && known.range.contains(pages))
        };
        let last = Some(self.last).filter(holds);
        last.or_else(|| (0..MAX_PLACED).find(holds))
    }

    /// Makes a row for a range, or lets one grow that touches it.
    fn enter(&mut self, table: &StrategyTable, which: usize, range: AddrRange) -> usize {
        let touches = |known: &Known| {
            known.which == which && known.range.start <= range.end && range.start <= known.range.end
        };
        let mut all = Known {
            which,
            range,
            pages: 0,
        };
        let mut kept = None;
        for row in 0..MAX_PLACED {
            let Some(known) = self.rows[row].filter(touches) else {
                continue;
            };
            all.range.start = all.range.start.min(known.range.start);
            all.range.end = all.range.end.max(known.range.end);
            all.pages += known.pages;
            match kept {
                None => kept = Some(row),
                Some(kept) => self.merge(table, row, kept),
            }
        }
        let row = kept.unwrap_or_else(|| self.free(table));
        self.rows[row] = Some(all);
        table.placed[row].write(which, all.range);
        row
    }

    /// Adds the pages of one row to another one, and frees it.
    fn merge(&mut self, table: &StrategyTable, from: usize, to: usize) {
        let (from_row, to_row) = (&table.placed[from], &table.placed[to]);
        for (from, to) in from_row.counts.iter().zip(&to_row.counts) {
            to.fetch_add(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        from_row.clear();
        self.rows[from] = None;
    }

    /// A row that is free: that of the fewest pages, where none is.
    fn free(&self, table: &StrategyTable) -> usize {
        let fewest = |row: &usize| self.rows[*row].map(|known| known.pages);
        let row = (0..MAX_PLACED).min_by_key(fewest).unwrap_or(0);
        table.placed[row].clear();
        row
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::config::Policy;
    use crate::stat::ProcessStat;
    use crate::units::{BASE_PAGE, Bytes};

    fn range(first: u64, pages: u64) -> AddrRange {
        AddrRange::new(VirtAddr(first * BASE_PAGE), Bytes(pages * BASE_PAGE))
    }

    fn name(target: &str, strategy: &str) -> StrategyName {
        StrategyName {
            target: target.to_owned(),
            strategy: strategy.to_owned(),
        }
    }

    fn page(names: &[StrategyName]) -> Box<StatPage> {
        let page = Box::new(StatPage::default());
        page.identify(1, 1, "x", Policy::Base);
        page.name_strategies(names);
        page
    }

    fn count(tally: &mut FrameTally, page: &StatPage, which: usize, at: u64, mapping: AddrRange) {
        let place = (which, VirtAddr(at * BASE_PAGE));
        tally.count(page, place, (Given::Chosen, PageCount(1)), || Some(mapping));
    }

    fn placed(stat: &ProcessStat, which: usize) -> Vec<(AddrRange, u64)> {
        let placed = stat.strategies[which].placed.iter();
        placed.map(|p| (p.range, p.counts.pages().0)).collect()
    }

    #[test]
    fn names_are_told_and_long_ones_cut() {
        let long = format!("exact:/{}/frames.csv", "d".repeat(99));
        let page = page(&[name("default", "colour"), name("heap", &long)]);
        let stat = page.read().unwrap();
        assert_eq!(stat.strategies.len(), 2);
        assert_eq!(stat.strategies[0].target, "default");
        assert_eq!(stat.strategies[0].strategy, "colour");
        let short = &stat.strategies[1].strategy;
        assert!(
            short.starts_with("exact:/d") && short.ends_with("/frames.csv"),
            "{short}"
        );
        page.reset();
        assert!(page.read().unwrap().strategies.is_empty());
    }

    #[test]
    fn mappings_that_adjoin_are_one_range() {
        let page = page(&[name("default", "colour"), name("heap", "binhop")]);
        let mut tally = FrameTally::default();
        count(&mut tally, &page, 0, 10, range(10, 5));
        count(&mut tally, &page, 0, 20, range(20, 5));
        count(&mut tally, &page, 1, 15, range(15, 5));
        let stat = page.read().unwrap();
        assert_eq!(placed(&stat, 0), [(range(10, 5), 1), (range(20, 5), 1)]);
        assert_eq!(placed(&stat, 1), [(range(15, 5), 1)]);
        count(&mut tally, &page, 0, 15, range(15, 5));
        assert_eq!(placed(&page.read().unwrap(), 0), [(range(10, 15), 3)]);
        assert_eq!(page.read().unwrap().totals.frames_chosen, 4);
    }

    #[test]
    fn small_ranges_yield_to_large_ones() {
        let page = page(&[name("default", "colour")]);
        let mut tally = FrameTally::default();
        for n in 0..10_000u64 {
            let mapping = range(n * 10, 8);
            let touches = if n % 1000 == 0 { 8 } else { 1 };
            (0..touches).for_each(|at| count(&mut tally, &page, 0, n * 10 + at, mapping));
        }
        let stat = page.read().unwrap();
        let placed = placed(&stat, 0);
        assert_eq!(placed.len(), MAX_PLACED);
        let large: Vec<u64> = placed.iter().map(|(_, pages)| *pages).take(11).collect();
        assert_eq!(large, [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 1]);
        let strategy = &stat.strategies[0];
        assert_eq!(strategy.counts.chosen, PageCount(10_070));
    }

    #[test]
    fn strategies_without_a_row_count_for_the_process() {
        let names: Vec<StrategyName> = (0..20).map(|n| name(&n.to_string(), "colour")).collect();
        let page = page(&names);
        let mut tally = FrameTally::default();
        count(&mut tally, &page, 17, 3, range(3, 1));
        let stat = page.read().unwrap();
        assert_eq!(stat.strategies.len(), MAX_STRATEGIES);
        assert!(
            stat.strategies
                .iter()
                .all(|s| s.counts == FrameCounts::default())
        );
        assert_eq!(stat.totals.frames_chosen, 1);
    }

    proptest! {
        /// Against a list of all pages that were given.
        #[test]
        fn sums_are_exact_and_ranges_hold_what_they_say(
            steps in vec((0usize..3, 0u64..24, 0u64..8, 0usize..3), 1..400)
        ) {
            let page = page(&[name("a", "colour"), name("b", "binhop"), name("c", "colour")]);
            let mut tally = FrameTally::default();
            let mut model = Vec::new();
            for (which, mapping, at, given) in steps {
                let given = [Given::Chosen, Given::Other, Given::Left][given];
                // Mappings of one strategy, some of which adjoin.
                let mapping = range(which as u64 * 10_000 + mapping * 8 + mapping / 3, 8);
                let at = mapping.start + Bytes(at * BASE_PAGE);
                tally.count(&page, (which, at), (given, PageCount(1)), || Some(mapping));
                model.push((which, at, given));
            }
            let stat = page.read().unwrap();
            for (which, strategy) in stat.strategies.iter().enumerate() {
                let of = |range: Option<AddrRange>, kind: Given| {
                    let is_inside = |at: VirtAddr| range.is_none_or(|r| r.start <= at && at < r.end);
                    let is_counted = |(w, at, given): &&(usize, VirtAddr, Given)| {
                        *w == which && *given == kind && is_inside(*at)
                    };
                    PageCount(model.iter().filter(is_counted).count() as u64)
                };
                let counts = |range| FrameCounts {
                    chosen: of(range, Given::Chosen),
                    other: of(range, Given::Other),
                    left: of(range, Given::Left),
                };
                prop_assert_eq!(strategy.counts, counts(None));
                for placed in &strategy.placed {
                    let all = counts(Some(placed.range));
                    // Every range has had a row from the start, where there are few.
                    prop_assert_eq!(placed.counts, all);
                }
                let disjoint = strategy.placed.iter().enumerate().all(|(n, a)| {
                    let others = strategy.placed.iter().skip(n + 1);
                    others.clone().all(|b| a.range.intersect(b.range).is_empty())
                });
                prop_assert!(disjoint);
                prop_assert!(strategy.placed.is_sorted_by_key(|p| u64::MAX - p.counts.pages().0));
                let ranges = strategy.placed.iter();
                let rest = ranges.fold(strategy.counts, |rest, p| rest.without(p.counts));
                prop_assert_eq!(rest, FrameCounts::default());
            }
        }
    }
}
