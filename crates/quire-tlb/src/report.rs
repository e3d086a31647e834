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
    /// Page walks for each 1000 instructions, data and code together.
    pub walks_per_1000: Pair<f64>,
    /// Levels of the page table that the walks touch, for each 1000
    /// instructions.
    pub walk_levels_per_1000: Pair<f64>,
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
    /// What it did not know.
    pub misses: Pair<u64>,
    /// Misses over accesses; nothing where it was not asked.
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
        let first: fn(&Counts) -> (u64, u64) = |counts| (counts.accesses, counts.l1_misses);
        let second: fn(&Counts) -> (u64, u64) = |counts| (counts.l1_misses, counts.walks);
        let instructions = windows.iter().map(|window| window.instructions).sum();
        let data_sum = sum(windows, data);
        let total = |of: fn(&Counts) -> u64| {
            let code_sum = sum(windows, code);
            Pair {
                base: of(&data_sum.base) + of(&code_sum.base),
                real: of(&data_sum.real) + of(&code_sum.real),
            }
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
                Level::new("L1 data", windows, data, first),
                Level::new("L2 data", windows, data, second),
                Level::new("L1 code", windows, code, first),
                Level::new("L2 code", windows, code, second),
            ],
            walks_per_1000: total(|counts| counts.walks).per_1000(instructions),
            walk_levels_per_1000: total(|counts| counts.walk_levels).per_1000(instructions),
            first_walks: total(|counts| counts.first_walks),
        }
    }
}

impl Pair<u64> {
    fn per_1000(self, instructions: u64) -> Pair<f64> {
        let rate = |n: u64| share(n, instructions).unwrap_or(0.0) * 1000.0;
        Pair {
            base: rate(self.base),
            real: rate(self.real),
        }
    }
}

impl Level {
    fn new(
        name: &'static str,
        windows: &[Window],
        part: impl Fn(&Window) -> Pair<Counts> + Copy,
        level: fn(&Counts) -> (u64, u64),
    ) -> Level {
        let sums = sum(windows, part);
        let (base, real) = (level(&sums.base), level(&sums.real));
        let misses = windows.iter().map(|window| {
            let counts = part(window);
            (level(&counts.real).1 as f64, level(&counts.base).1 as f64)
        });
        Level {
            name,
            accesses: Pair {
                base: base.0,
                real: real.0,
            },
            misses: Pair {
                base: base.1,
                real: real.1,
            },
            miss_ratio: Pair {
                base: share(base.1, base.0),
                real: share(real.1, real.0),
            },
            reduction_percent: ratio_of_sums(&misses.collect::<Vec<_>>(), SEED).map(Reduction::of),
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
            l1_misses,
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
