//! Samples of the experiments with frames, and what they come to.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::colours::allocation::Allocation;
use crate::colours::experiment::Experiment;
use crate::results::{SEED, Sample};
use crate::spec::Better;

/// One run and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// What was done.
    pub experiment: Experiment,
    /// Who chose the frames.
    pub allocation: Allocation,
    /// Number of the round, from 0.
    pub round: u32,
    /// Seconds it took, preparation included.
    pub seconds: f64,
    /// What was measured.
    #[serde(flatten)]
    pub sample: Sample,
    /// Why nothing was measured.
    pub error: Option<String>,
}

/// A figure over all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// What was done.
    pub experiment: Experiment,
    /// Who chose the frames.
    pub allocation: Allocation,
    /// Name of the figure.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The samples, in the order of the rounds.
    pub samples: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// Lower end of its 95 % interval.
    pub ci_low: f64,
    /// Upper end of its 95 % interval.
    pub ci_high: f64,
    /// How many times as much it is as under the kernel's own choice: the median of
    /// the ratios, round by round, with its 95 % interval.
    pub of_default: Option<[f64; 3]>,
}

/// All samples and their summaries.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Every run in the order in which it was made.
    pub runs: Vec<Run>,
    /// Every figure, by experiment, in the order of its metrics, and by allocation.
    pub summaries: Vec<Summary>,
}

impl Results {
    /// Computes the summaries of `runs`.
    pub fn of(runs: Vec<Run>) -> Results {
        let mut keys: Vec<(Experiment, usize, Allocation)> = Vec::new();
        for run in &runs {
            let metrics = run.experiment.metrics();
            keys.extend((0..metrics.len()).map(|at| (run.experiment, at, run.allocation)));
        }
        keys.sort_unstable();
        keys.dedup();
        let mut results = Results {
            runs,
            summaries: Vec::new(),
        };
        let summaries = keys.into_iter();
        results.summaries = summaries
            .filter_map(|(experiment, at, allocation)| {
                results.summarise(experiment, at, allocation)
            })
            .collect();
        results
    }

    fn summarise(
        &self,
        experiment: Experiment,
        metric: usize,
        allocation: Allocation,
    ) -> Option<Summary> {
        let metric = experiment.metrics().get(metric)?;
        let by_round = self.by_round(experiment, allocation, metric.name);
        let samples: Vec<f64> = by_round.values().copied().collect();
        let summary = quire_stats::Summary::of(&samples, SEED)?;
        let is_compared = metric.better != Better::Neither;
        Some(Summary {
            experiment,
            allocation,
            metric: metric.name,
            unit: metric.unit,
            median: summary.median,
            ci_low: summary.ci_low,
            ci_high: summary.ci_high,
            samples,
            of_default: is_compared
                .then(|| self.of_default(experiment, &by_round, metric.name))
                .flatten(),
        })
    }

    /// A figure of each round.
    fn by_round(
        &self,
        experiment: Experiment,
        allocation: Allocation,
        metric: &str,
    ) -> BTreeMap<u32, f64> {
        let is_meant = |run: &&Run| run.experiment == experiment && run.allocation == allocation;
        let runs = self.runs.iter().filter(is_meant);
        runs.filter_map(|run| Some((run.round, *run.sample.metrics.get(metric)?)))
            .collect()
    }

    /// In relation to the kernel's own choice in the same round: a machine that is
    /// slower for a while is so for both. `None` where that has nothing.
    fn of_default(
        &self,
        experiment: Experiment,
        own: &BTreeMap<u32, f64>,
        metric: &str,
    ) -> Option<[f64; 3]> {
        let other = self.by_round(experiment, Allocation::Default, metric);
        let pairs = own.iter().filter_map(|(n, a)| Some((a, other.get(n)?)));
        let ratios: Vec<f64> = pairs.map(|(a, b)| a / b).collect();
        let summary = quire_stats::Summary::of(&ratios, SEED)?;
        Some([summary.median, summary.ci_low, summary.ci_high])
    }

    /// The experiments that were made, in order.
    pub fn experiments(&self) -> Vec<Experiment> {
        let mut all: Vec<Experiment> = self.runs.iter().map(|run| run.experiment).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The summary of one figure.
    pub fn summary(
        &self,
        experiment: Experiment,
        allocation: Allocation,
        metric: &str,
    ) -> Option<&Summary> {
        let of_metric = self.of_metric(experiment, metric).into_iter();
        of_metric.into_iter().find(|s| s.allocation == allocation)
    }

    /// The summaries of a figure, by allocation.
    pub fn of_metric(&self, experiment: Experiment, metric: &str) -> Vec<&Summary> {
        self.summaries
            .iter()
            .filter(|s| s.experiment == experiment && s.metric == metric)
            .collect()
    }

    /// Notes and errors, each once, with where they come from.
    pub fn remarks(&self) -> Vec<String> {
        let mut all = Vec::new();
        for run in &self.runs {
            let error = run.error.iter().map(|error| format!("failed: {error}"));
            for text in run.sample.notes.iter().cloned().chain(error) {
                let text = format!(
                    "{} {}: {text}",
                    run.experiment.name(),
                    run.allocation.name()
                );
                if !all.contains(&text) {
                    all.push(text);
                }
            }
        }
        all
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A run that measured one figure.
    pub fn run(
        experiment: Experiment,
        allocation: Allocation,
        round: u32,
        metric: &str,
        value: f64,
    ) -> Run {
        let mut sample = Sample::default();
        sample.put(metric, value);
        Run {
            experiment,
            allocation,
            round,
            seconds: 0.0,
            sample,
            error: None,
        }
    }

    /// Rounds in which both measured something.
    pub fn both(
        experiment: Experiment,
        allocation: Allocation,
        metric: &str,
        pairs: &[(f64, f64)],
    ) -> Results {
        let runs = (0..).zip(pairs).flat_map(|(round, (own, other))| {
            [
                run(experiment, allocation, round, metric, *own),
                run(experiment, Allocation::Default, round, metric, *other),
            ]
        });
        Results::of(runs.collect())
    }

    #[test]
    fn ratios_are_those_of_the_same_round() {
        let pairs = [(2.0, 1.0), (20.0, 10.0), (6.0, 3.0)];
        let results = both(Experiment::Populate, Allocation::Colour, "gib_ms", &pairs);
        let own = results
            .summary(Experiment::Populate, Allocation::Colour, "gib_ms")
            .unwrap();
        assert_eq!((own.median, own.of_default), (6.0, Some([2.0; 3])));
        assert_eq!(results.summaries.len(), 2);
        let info = both(Experiment::Populate, Allocation::Colour, "fault_ns", &pairs);
        assert!(info.summaries.iter().all(|s| s.of_default.is_none()));
        let zeros = both(
            Experiment::Populate,
            Allocation::Colour,
            "gib_ms",
            &[(1.0, 0.0)],
        );
        assert!(zeros.summaries.iter().all(|s| s.of_default.is_none()));
    }

    #[test]
    fn what_failed_is_told_once() {
        let mut failed = run(Experiment::Populate, Allocation::BinHop, 0, "gib_ms", 1.0);
        failed.error = Some("no".to_owned());
        failed.sample = Sample::default();
        let results = Results::of(vec![failed.clone(), Run { round: 1, ..failed }]);
        assert_eq!(results.remarks(), ["populate binhop: failed: no"]);
        assert!(results.summaries.is_empty());
    }
}
