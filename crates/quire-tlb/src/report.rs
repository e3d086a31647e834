//! What the windows come to.

use quire_core::tlb::{Counts, Geometry};
use quire_stats::{Comparison, ratio_of_sums};
use serde::Serialize;

use crate::window::Window;

/// Seed of the intervals, so that a report can be repeated.
const SEED: u64 = 1;

/// Everything that is known of a run's TLB misses.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The TLBs of the model, as `--tlb` takes them.
    pub tlb: String,
    /// The places of it that the machine does not describe.
    pub assumed: Vec<&'static str>,
    /// Windows that the counts are from.
    pub windows: usize,
    /// Windows that were taken, the dropped ones included.
    pub windows_taken: usize,
    /// Instructions in the windows that the counts are from, without warm-up.
    pub instructions: u64,
    /// Of these, those that could not be decoded.
    pub undecoded: u64,
    /// Share of the accesses to data that went to superpages.
    pub superpage_share: f64,
    /// The levels, data before code.
    pub levels: Vec<Level>,
    /// Page walks for each 1000 instructions, data and code together, the
    /// accesses that are open estimated.
    pub walks_per_1000: Pair<f64>,
    /// Levels of the page table that the counted walks touch, with nothing
    /// cached.
    pub walk_levels: Pair<u64>,
    /// Walks to pages that the model met for the first time. They may be hits
    /// on a machine that has run before.
    pub first_walks: Pair<u64>,
}

/// A figure at either mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pair<T> {
    /// With base pages only.
    pub base: T,
    /// With the pages that the process had.
    pub real: T,
}

/// One level of the TLBs, for data or for code.
#[derive(Clone, Debug, Serialize)]
pub struct Level {
    /// Its name.
    pub name: &'static str,
    /// What it was asked.
    pub accesses: Pair<u64>,
    /// Of these, what it knew only from an earlier window: hits or misses.
    pub open: Pair<u64>,
    /// What it did not know.
    pub misses: Pair<u64>,
    /// Misses over accesses that are not open; nothing where there are none.
    pub miss_ratio: Pair<Option<f64>>,
    /// By how many percent the misses are fewer than with base pages; nothing
    /// where those are none.
    pub reduction_percent: Option<Reduction>,
}

/// A reduction in percent with its 95 % interval over the windows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reduction {
    /// The reduction; below zero where there are more misses.
    pub value: f64,
    /// Lower end of the interval.
    pub ci_low: f64,
    /// Upper end of the interval.
    pub ci_high: f64,
}

impl Reduction {
    fn of(ratio: Comparison) -> Reduction {
        let percent = |ratio: f64| (1.0 - ratio) * 100.0;
        Reduction {
            value: percent(ratio.value),
            ci_low: percent(ratio.ci_high),
            ci_high: percent(ratio.ci_low),
        }
    }
}

impl Report {
    /// Sums windows up.
    #[must_use]
    pub fn new(
        geometry: &Geometry,
        assumed: Vec<&'static str>,
        windows: &[Window],
        windows_taken: usize,
    ) -> Report {
        let data = |window: &Window| Pair {
            base: window.base.0,
            real: window.real.0,
        };
        let code = |window: &Window| Pair {
            base: window.base.1,
            real: window.real.1,
        };
        let instructions = windows
            .iter()
            .map(|window| window.instructions)
            .sum::<u64>();
        let (data_sum, code_sum) = (sum(windows, data), sum(windows, code));
        let total = |of: fn(&Counts) -> u64| Pair {
            base: of(&data_sum.base) + of(&code_sum.base),
            real: of(&data_sum.real) + of(&code_sum.real),
        };
        let walks = |data: &Counts, code: &Counts| {
            let walks = data.walks_estimated(data) + code.walks_estimated(code);
            walks * 1000.0 / (instructions as f64).max(1.0)
        };
        Report {
            tlb: geometry.to_string(),
            assumed,
            windows: windows.len(),
            windows_taken,
            instructions,
            undecoded: windows.iter().map(|window| window.undecoded).sum(),
            superpage_share: share(data_sum.real.superpage_accesses, data_sum.real.accesses)
                .unwrap_or(0.0),
            levels: vec![
                Level::new("L1 data", windows, data, &FIRST),
                Level::new("L2 data", windows, data, &SECOND),
                Level::new("L1 code", windows, code, &FIRST),
                Level::new("L2 code", windows, code, &SECOND),
            ],
            walks_per_1000: Pair {
                base: walks(&data_sum.base, &code_sum.base),
                real: walks(&data_sum.real, &code_sum.real),
            },
            walk_levels: total(|counts| counts.walk_levels),
            first_walks: total(|counts| counts.first_walks),
        }
    }
}

/// Where the figures of a level are in the counts.
struct Place {
    accesses: fn(&Counts) -> u64,
    open: fn(&Counts) -> u64,
    misses: fn(&Counts) -> u64,
    ratio: fn(&Counts) -> Option<f64>,
    /// The misses of a part of the counts, given all of them.
    estimated: fn(&Counts, &Counts) -> f64,
}

const FIRST: Place = Place {
    accesses: |counts| counts.accesses,
    open: |counts| counts.l1_open,
    misses: |counts| counts.l1_misses,
    ratio: Counts::l1_miss_ratio,
    estimated: Counts::l1_misses_estimated,
};

const SECOND: Place = Place {
    accesses: |counts| counts.l1_misses,
    open: |counts| counts.l2_open,
    misses: |counts| counts.walks,
    ratio: Counts::l2_miss_ratio,
    estimated: Counts::walks_estimated,
};

impl Level {
    fn new(
        name: &'static str,
        windows: &[Window],
        part: impl Fn(&Window) -> Pair<Counts> + Copy,
        place: &Place,
    ) -> Level {
        let sums = sum(windows, part);
        let misses = windows.iter().map(|window| {
            let counts = part(window);
            (
                (place.estimated)(&counts.real, &sums.real),
                (place.estimated)(&counts.base, &sums.base),
            )
        });
        Level {
            name,
            accesses: sums.map(place.accesses),
            open: sums.map(place.open),
            misses: sums.map(place.misses),
            miss_ratio: sums.map(place.ratio),
            reduction_percent: ratio_of_sums(&misses.collect::<Vec<_>>(), SEED).map(Reduction::of),
        }
    }
}

impl Pair<Counts> {
    fn map<T>(&self, of: fn(&Counts) -> T) -> Pair<T> {
        Pair {
            base: of(&self.base),
            real: of(&self.real),
        }
    }
}

fn sum(windows: &[Window], part: impl Fn(&Window) -> Pair<Counts>) -> Pair<Counts> {
    let mut sums = Pair::<Counts>::default();
    for counts in windows.iter().map(part) {
        sums.base.add(&counts.base);
        sums.real.add(&counts.real);
    }
    sums
}

fn share(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(accesses: u64, l1_misses: u64, walks: u64) -> Counts {
        Counts {
            accesses,
            superpage_accesses: accesses / 4,
            l1_open: 0,
            l1_misses,
            l2_open: 0,
            walks,
            walk_levels: 4 * walks,
            first_walks: 1,
        }
    }

    #[test]
    fn windows_are_summed_up() {
        let window = Window {
            instructions: 1000,
            undecoded: 1,
            base: (counts(400, 100, 50), counts(200, 2, 0)),
            real: (counts(400, 10, 0), counts(200, 2, 1)),
        };
        let mut open = window;
        open.base.0.l1_open = 200;
        let report = Report::new(&Geometry::assumed(), vec![], &[open], 1);
        assert_eq!(report.levels[0].miss_ratio.base, Some(0.5));
        let reduction = report.levels[0].reduction_percent.unwrap();
        assert!((reduction.value - 95.0).abs() < 1e-9, "{reduction:?}");
        let report = Report::new(&Geometry::assumed(), vec!["l2"], &[window; 4], 7);
        assert_eq!((report.windows, report.windows_taken), (4, 7));
        assert_eq!((report.instructions, report.undecoded), (4000, 4));
        assert_eq!(report.superpage_share, 0.25);
        let l1 = &report.levels[0];
        assert_eq!((l1.accesses.base, l1.misses.base), (1600, 400));
        assert_eq!(l1.miss_ratio.real, Some(10.0 / 400.0));
        let reduction = l1.reduction_percent.unwrap();
        assert!((reduction.value - 90.0).abs() < 1e-9, "{reduction:?}");
        assert_eq!(reduction.value, reduction.ci_low);
        assert_eq!(report.levels[1].reduction_percent.unwrap().value, 100.0);
        assert_eq!(report.levels[3].reduction_percent, None);
        assert_eq!(
            report.walks_per_1000,
            Pair {
                base: 50.0,
                real: 1.0
            }
        );
        assert_eq!(report.first_walks, Pair { base: 8, real: 8 });
    }

    #[test]
    fn no_window_gives_no_figures() {
        let report = Report::new(&Geometry::assumed(), vec![], &[], 0);
        assert_eq!(report.levels[0].miss_ratio.base, None);
        assert_eq!(report.levels[0].reduction_percent, None);
    }
}
