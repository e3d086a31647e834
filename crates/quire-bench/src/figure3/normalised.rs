//! The figures of the ten programs in relation to another variant, as Figure 3
//! of paper 000 shows them, and their geometric mean.

use quire_stats::{Comparison, mean_ratio_of_medians, ratio_of_medians};
use serde::Serialize;

use crate::results::{Results, SEED};
use crate::spec::Workload;
use crate::variant::Variant;

/// What is normalised: the paper's figure, and what it costs.
pub const METRICS: [&str; 3] = ["wall_s", "cpu_s", "peak_mib"];
/// What it is related to: the same allocator on base pages, and plain programs.
pub const REFERENCES: [Variant; 2] = [Variant::QuireBase, Variant::Kernel4k];
/// Stands for all programs.
pub const MEAN: &str = "geometric mean";

/// One bar of the figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Normalised {
    /// Which figure.
    pub metric: &'static str,
    /// In relation to which variant.
    pub over: Variant,
    /// Of which program, or [`MEAN`].
    pub program: String,
    /// Under which variant.
    pub variant: Variant,
    /// The ratio of the medians; below 1 is better.
    pub value: f64,
    /// Lower end of its 95 % interval.
    pub ci_low: f64,
    /// Upper end of its 95 % interval.
    pub ci_high: f64,
}

/// Every bar: by metric, reference, program and variant, the mean at the end.
pub fn all(results: &Results) -> Vec<Normalised> {
    let each = METRICS.iter().flat_map(|metric| {
        let over = |over: &Variant| of(results, metric, *over);
        REFERENCES.iter().flat_map(over).collect::<Vec<_>>()
    });
    each.collect()
}

/// The bars of one metric in relation to the variant `over`.
pub fn of(results: &Results, metric: &'static str, over: Variant) -> Vec<Normalised> {
    let rows = results.of_metric(Workload::Figure3, metric);
    let mut programs: Vec<&str> = Vec::new();
    for run in &results.runs {
        programs.extend(run.turn.part.filter(|p| !programs.contains(p)));
    }
    let mut variants: Vec<Variant> = rows.iter().map(|r| r.variant).collect();
    variants.sort();
    variants.dedup();
    let series = |program: &str, variant| {
        let key = format!("{metric}@{program}");
        let row = rows
            .iter()
            .find(|r| r.metric == key && r.variant == variant);
        row.map(|r| r.samples.as_slice())
    };
    let pair = |program: &&str, variant| Some((series(program, variant)?, series(program, over)?));
    let bar = |program: &str, variant, ratio: Comparison| Normalised {
        metric,
        over,
        program: program.to_owned(),
        variant,
        value: ratio.value,
        ci_low: ratio.ci_low,
        ci_high: ratio.ci_high,
    };
    let mut bars = Vec::new();
    for program in &programs {
        bars.extend(variants.iter().filter_map(|variant| {
            let (own, other) = pair(program, *variant)?;
            Some(bar(program, *variant, ratio_of_medians(own, other, SEED)?))
        }));
    }
    bars.extend(variants.iter().filter_map(|variant| {
        // A mean over other programs than its neighbours' would mislead.
        let pairs: Option<Vec<_>> = programs.iter().map(|p| pair(p, *variant)).collect();
        Some(bar(MEAN, *variant, mean_ratio_of_medians(&pairs?, SEED)?))
    }));
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Run, Sample, Turn};

    fn run(part: &'static str, variant: Variant, seconds: f64) -> Run {
        let mut sample = Sample::default();
        sample.put(format!("wall_s@{part}"), seconds);
        let turn = Turn {
            workload: Workload::Figure3,
            variant,
            repetition: 0,
            position: 0,
            part: Some(part),
        };
        Run {
            turn,
            seconds,
            sample,
            error: None,
        }
    }

    #[test]
    fn ratios_and_their_mean() {
        let (base, reserve) = (Variant::QuireBase, Variant::QuireReserve);
        let mut runs = vec![
            run("a", base, 2.0),
            run("a", reserve, 1.0),
            run("b", base, 1.0),
        ];
        let value = |runs: &[Run], program: &str, variant| {
            let bars = of(&Results::of(runs.to_vec()), "wall_s", base);
            let bar = bars
                .into_iter()
                .find(|b| b.program == program && b.variant == variant);
            bar.map(|b| b.value)
        };
        assert_eq!(value(&runs, "a", reserve), Some(0.5));
        assert_eq!(value(&runs, MEAN, base), Some(1.0));
        assert_eq!(value(&runs, MEAN, reserve), None, "a program is missing");
        runs.push(run("b", reserve, 2.0));
        assert!((value(&runs, MEAN, reserve).unwrap() - 1.0).abs() < 1e-12);
        let four = of(&Results::of(runs), "wall_s", Variant::Kernel4k);
        assert_eq!(four, [], "nothing to relate to");
    }
}
