//! Which memory of a run has frames by strategy, and which is on superpages: a region
//! is one or the other.

use std::fmt::Display;

use quire_core::stat::{FrameCounts, PlacedStat, ProcessStat, SuperpageRegion};
use serde::Serialize;

use super::report::count;
use crate::stat::{frames, printable};

/// Ranges of a strategy, and regions on superpages, that have a line of their own.
const SHOWN: usize = 4;

/// What a strategy gave in all processes.
#[derive(Debug, Serialize)]
pub struct Strategy {
    target: String,
    strategy: String,
    #[serde(flatten)]
    counts: FrameCounts,
    /// The ranges of all processes, those with the most pages first; they are told with
    /// their processes.
    #[serde(skip)]
    placed: Vec<Of<PlacedStat>>,
}

/// Something of a process.
#[derive(Clone, Debug)]
struct Of<T> {
    pid: u32,
    what: T,
}

/// What each strategy gave, in the order in which they were asked for.
pub fn strategies(processes: &[ProcessStat]) -> Vec<Strategy> {
    let mut sums: Vec<Strategy> = Vec::new();
    for stat in processes {
        for strategy in frames::strategies(stat) {
            let of_process = |what: &PlacedStat| Of {
                pid: stat.pid,
                what: *what,
            };
            let placed = strategy.placed.iter().map(of_process);
            let same = |sum: &&mut Strategy| {
                (&sum.target, &sum.strategy) == (&strategy.target, &strategy.strategy)
            };
            match sums.iter_mut().find(same) {
                Some(sum) => {
                    sum.counts.add(strategy.counts);
                    sum.placed.extend(placed);
                }
                None => sums.push(Strategy {
                    target: strategy.target.clone(),
                    strategy: strategy.strategy.clone(),
                    counts: strategy.counts,
                    placed: placed.collect(),
                }),
            }
        }
    }
    for sum in &mut sums {
        let pages = |placed: &Of<PlacedStat>| placed.what.counts.pages();
        sum.placed
            .sort_by_key(|placed| std::cmp::Reverse(pages(placed)));
    }
    sums
}

/// What has which, line by line; nothing where no strategy was asked.
pub fn lines(processes: &[ProcessStat], strategies: &[Strategy]) -> Vec<String> {
    if strategies.is_empty() {
        return Vec::new();
    }
    let mut lines: Vec<String> = strategies.iter().flat_map(|s| s.lines(processes)).collect();
    lines.extend(superpages(processes));
    lines
}

impl Strategy {
    fn lines(&self, processes: &[ProcessStat]) -> Vec<String> {
        let name = printable(&format!("{}={}", self.target, self.strategy));
        let placed = self.placed.iter();
        let ranges = placed.map(|Of { pid, what }| {
            let place = place(processes, *pid, what.range);
            (place, what.counts)
        });
        let places = frames::places(self.counts, ranges, SHOWN);
        let line = |(n, (place, counts))| {
            let head = if n == 0 {
                format!("{name}:")
            } else {
                " ".to_owned()
            };
            format!("frames: {head} {place}: {}", frames::counts(counts))
        };
        places.into_iter().enumerate().map(line).collect()
    }
}

/// The regions that had superpages.
fn superpages(processes: &[ProcessStat]) -> Vec<String> {
    let mut regions: Vec<Of<SuperpageRegion>> = processes
        .iter()
        .flat_map(|stat| stat.superpage_regions.iter().map(|what| (stat.pid, *what)))
        .map(|(pid, what)| Of { pid, what })
        .collect();
    regions.sort_by_key(|region| std::cmp::Reverse(region.what.superpages_peak));
    let (shown, rest) = regions.split_at(regions.len().min(SHOWN));
    let line = |Of { pid, what }: &Of<SuperpageRegion>| {
        let place = place(processes, *pid, what.range);
        let (kind, policy) = (what.kind.name(), what.policy);
        let pages = count(what.superpages_peak, "superpage");
        format!("superpages: {place}: {kind}, {policy}: {pages} at the peak")
    };
    let mut lines: Vec<String> = shown.iter().map(line).collect();
    if !rest.is_empty() {
        let regions = count(rest.len() as u64, "smaller region");
        lines.push(format!("superpages: and {regions}"));
    }
    lines
}

/// Addresses, with their process where there are several.
fn place(processes: &[ProcessStat], pid: u32, range: impl Display) -> String {
    match processes {
        [_] => range.to_string(),
        _ => format!("{range} of process {pid}"),
    }
}

#[cfg(test)]
mod tests {
    use quire_core::config::Policy;
    use quire_core::stat::{FrameTally, Given, RegionKind, RegionStat, StatPage, StrategyName};
    use quire_core::units::{AddrRange, Bytes, PageCount, VirtAddr};

    use super::*;

    fn range(mib: u64, len: u64) -> AddrRange {
        AddrRange::new(VirtAddr(mib << 20), Bytes::mib(len))
    }

    fn region(range: AddrRange, superpages: u64) -> RegionStat {
        RegionStat {
            superpages,
            ..RegionStat::untouched(range, RegionKind::Anon, Policy::Reserve)
        }
    }

    /// A process whose heap is coloured, page by page of ranges of as many MiB, and
    /// which has regions of as many superpages.
    fn process(pid: u32, heap: &[u64], superpages: &[u64]) -> ProcessStat {
        let page = Box::new(StatPage::default());
        page.identify(pid, 1, "solver", Policy::Reserve);
        let name = |target: &str, strategy: &str| StrategyName {
            target: target.to_owned(),
            strategy: strategy.to_owned(),
        };
        page.name_strategies(&[name("default", "default"), name("heap", "colour")]);
        let mut tally = FrameTally::default();
        for (n, mib) in heap.iter().enumerate() {
            let range = range(100 * (n as u64 + 1), *mib);
            let pages = range.len().to_pages();
            tally.count(&page, (1, range.start), (Given::Chosen, pages), || {
                Some(range)
            });
            let last = (Given::Other, PageCount(1));
            tally.count(&page, (1, range.start), last, || None);
        }
        let regions = superpages.iter().enumerate();
        page.set_regions(regions.map(|(n, pages)| {
            let start = 4096 + 100 * n as u64;
            region(range(start, 90), *pages)
        }));
        // All of it is given back before the end.
        page.set_regions([]);
        page.read().unwrap()
    }

    #[test]
    fn a_region_is_on_one_side_or_the_other() {
        let one = [process(7, &[1], &[0, 30])];
        let strategies = strategies(&one);
        assert_eq!(
            lines(&one, &strategies),
            [
                "frames: heap=colour: 000006400000-000006500000: 256 chosen, 1 other, 0 left",
                "superpages: 000106400000-00010be00000: anon, reserve: 30 superpages at the peak",
            ]
        );
        let json = serde_json::to_value(&strategies).unwrap();
        let wanted = serde_json::json!([{
            "target": "heap", "strategy": "colour",
            "chosen_pages": 256, "other_pages": 1, "left_pages": 0,
        }]);
        assert_eq!(json, wanted);
    }

    #[test]
    fn what_is_small_is_summed_over_all_processes() {
        let two = [
            process(7, &[1, 2, 3], &[1, 2, 3]),
            process(8, &[4, 5, 6], &[4, 5, 6]),
        ];
        let lines = lines(&two, &strategies(&two));
        assert_eq!(lines.len(), 6 + 5, "{lines:?}");
        assert_eq!(
            lines[0],
            "frames: heap=colour: all: 5376 chosen, 6 other, 0 left"
        );
        assert!(
            lines[1].ends_with(" of process 8: 1536 chosen, 1 other, 0 left"),
            "{}",
            lines[1]
        );
        assert_eq!(lines[5], "frames:   elsewhere: 768 chosen, 2 other, 0 left");
        assert!(lines[6].contains(" of process 8: anon, reserve: 6 superpages"));
        assert_eq!(lines[10], "superpages: and 2 smaller regions");
    }

    #[test]
    fn without_strategies_nothing_is_said() {
        let page = Box::new(StatPage::default());
        page.identify(1, 1, "x", Policy::Eager);
        let stat = [page.read().unwrap()];
        assert!(lines(&stat, &strategies(&stat)).is_empty());
        let coloured = [process(7, &[1], &[])];
        assert_eq!(lines(&coloured, &strategies(&coloured)).len(), 1);
    }
}
