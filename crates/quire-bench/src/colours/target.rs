//! What strategies for frames have to reach, and whether they do.

use serde::Serialize;

use crate::colours::allocation::Allocation;
use crate::colours::experiment::{Experiment, Size};
use crate::colours::results::Results;
use crate::kernels::Kernel;
use crate::target::Outcome;

/// A target with what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// In which experiment.
    pub experiment: Experiment,
    /// By whose choice of frames.
    pub allocation: Allocation,
    /// The target in words.
    pub text: String,
    /// The figure that is judged, with its 95 % interval if it is a median.
    pub measured: Option<Vec<f64>>,
    /// Whether the target is reached.
    pub outcome: Outcome,
}

/// Judges the figures of every allocation that was measured.
pub fn judge(results: &Results) -> Vec<Verdict> {
    let mut allocations: Vec<Allocation> = results.runs.iter().map(|r| r.allocation).collect();
    allocations.sort_unstable();
    allocations.dedup();
    let experiments = results.experiments();
    let each = allocations.iter().flat_map(|allocation| {
        let experiments = experiments.iter();
        experiments.filter_map(|experiment| judge_one(results, *experiment, *allocation))
    });
    let mut verdicts: Vec<Verdict> = each.collect();
    verdicts.sort_by_key(|verdict| (verdict.experiment, verdict.allocation));
    verdicts
}

fn judge_one(results: &Results, experiment: Experiment, allocation: Allocation) -> Option<Verdict> {
    match experiment {
        Experiment::Populate => {
            let most = allocation.cost_limit()?;
            Some(cost(results, allocation, most))
        }
        Experiment::Kernel(Kernel::Array, Size::Half | Size::Equal)
            if allocation.goes_by_address() =>
        {
            Some(conflicts(results, experiment, allocation, true))
        }
        Experiment::Kernel(Kernel::Array, Size::Equal) if allocation == Allocation::Aged => {
            Some(conflicts(results, experiment, allocation, false))
        }
        _ => None,
    }
}

/// First touches in order, in relation to the kernel's.
fn cost(results: &Results, allocation: Allocation, most: f64) -> Verdict {
    let experiment = Experiment::Populate;
    let summary = results.summary(experiment, allocation, "gib_ms");
    let measured = summary.and_then(|summary| summary.of_default);
    Verdict {
        experiment,
        allocation,
        text: format!(
            "populating takes at most {most} times as long as on the kernel's base pages, where a thread wakes in 10 us"
        ),
        measured: measured.map(|ratio| ratio.to_vec()),
        outcome: outcome(measured.map(|[median, ..]| median <= most)),
    }
}

/// Conflict misses of all rounds together.
fn conflicts(
    results: &Results,
    experiment: Experiment,
    allocation: Allocation,
    none: bool,
) -> Verdict {
    let summary = results.summary(experiment, allocation, "conflict");
    let sum = summary.map(|summary| summary.samples.iter().sum::<f64>());
    let text = match none {
        true => "a contiguous array up to the cache's size has no conflict misses",
        false => "a contiguous array of the cache's size has some",
    };
    Verdict {
        experiment,
        allocation,
        text: text.to_owned(),
        measured: sum.map(|sum| vec![sum]),
        outcome: outcome(sum.map(|sum| (sum == 0.0) == none)),
    }
}

fn outcome(holds: Option<bool>) -> Outcome {
    match holds {
        Some(true) => Outcome::Holds,
        Some(false) => Outcome::Missed,
        None => Outcome::NotMeasured,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::colours::results::tests::{both, run};

    fn outcomes(results: &Results) -> Vec<Outcome> {
        judge(results).into_iter().map(|v| v.outcome).collect()
    }

    #[test]
    fn cost_is_judged_by_the_median_of_ratios() {
        let of = |allocation, pairs: &[(f64, f64)]| {
            outcomes(&both(Experiment::Populate, allocation, "gib_ms", pairs))
        };
        let pairs = [(3.0, 1.0), (30.0, 10.0), (9.0, 1.0)];
        assert_eq!(of(Allocation::BinHop, &pairs), [Outcome::Holds]);
        assert_eq!(of(Allocation::Colour, &pairs), [Outcome::Missed]);
        assert_eq!(of(Allocation::Default, &pairs), []);
        // At random nothing was promised.
        let random = both(
            Experiment::PopulateRandom,
            Allocation::Colour,
            "gib_ms",
            &pairs,
        );
        assert_eq!(outcomes(&random), []);
    }

    #[test]
    fn a_single_conflict_is_too_much() {
        let equal = Experiment::Kernel(Kernel::Array, Size::Equal);
        let of = |allocation, values: [f64; 2]| {
            let runs = (0..)
                .zip(values)
                .map(|(n, v)| run(equal, allocation, n, "conflict", v));
            outcomes(&Results::of(runs.collect()))
        };
        assert_eq!(of(Allocation::Colour, [0.0, 0.0]), [Outcome::Holds]);
        assert_eq!(of(Allocation::Colour, [0.0, 1.0]), [Outcome::Missed]);
        assert_eq!(of(Allocation::Aged, [0.0, 1.0]), [Outcome::Holds]);
        assert_eq!(of(Allocation::Aged, [0.0, 0.0]), [Outcome::Missed]);
        assert_eq!(of(Allocation::Default, [5.0, 5.0]), []);
    }

    #[test]
    fn what_failed_was_not_measured() {
        let mut failed = run(Experiment::Populate, Allocation::Colour, 0, "gib_ms", 1.0);
        failed.sample.metrics.clear();
        assert_eq!(outcomes(&Results::of(vec![failed])), [Outcome::NotMeasured]);
    }
}
