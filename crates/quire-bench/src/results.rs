//! Samples, and what they come to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::spec::{Better, Workload};
use crate::variant::Variant;

/// What one run of a workload measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Figures by name.
    pub metrics: BTreeMap<String, f64>,
    /// What the reader has to know about them.
    pub notes: Vec<String>,
}

impl Sample {
    /// Adds a figure.
    pub fn put(&mut self, name: impl Into<String>, value: f64) {
        self.metrics.insert(name.into(), value);
    }

    /// Adds a figure if there is one.
    pub fn put_some(&mut self, name: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    /// Adds a note.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}

/// What is run, and when.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Turn {
    /// Workload.
    pub workload: Workload,
    /// Variant.
    pub variant: Variant,
    /// Number of the repetition, from 0.
    pub repetition: u32,
    /// Place in the repetition, from 0.
    pub position: usize,
    /// Which program is run, where the workload has several that take turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<&'static str>,
}

/// One run and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// What was run, and when.
    #[serde(flatten)]
    pub turn: Turn,
    /// Seconds it took, preparation included.
    pub seconds: f64,
    /// What was measured.
    #[serde(flatten)]
    pub sample: Sample,
    /// Why nothing was measured.
    pub error: Option<String>,
}

/// A figure over all repetitions.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Workload.
    pub workload: Workload,
    /// Variant.
    pub variant: Variant,
    /// Name of the figure.
    pub metric: String,
    /// Unit.
    pub unit: &'static str,
    /// Which way is good.
    pub better: Better,
    /// The samples.
    pub samples: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// Lower end of its 95 % interval.
    pub ci_low: f64,
    /// Upper end of its 95 % interval.
    pub ci_high: f64,
    /// How many times as good as base pages of the kernel, with its interval.
    pub gain_over_4k: Option<[f64; 3]>,
    /// How many times as good as transparent huge pages, with its interval.
    pub gain_over_thp: Option<[f64; 3]>,
    /// How many times as good as Quire's reservations, with its interval.
    pub gain_over_reserve: Option<[f64; 3]>,
}

/// Seed of every bootstrap, so that a report can be computed again.
pub const SEED: u64 = 0x5175_6972_6500_0001;

impl Summary {
    fn of(
        workload: Workload,
        variant: Variant,
        metric: &str,
        samples: Vec<f64>,
    ) -> Option<Summary> {
        let spec = workload.metric(metric)?;
        let summary = quire_stats::Summary::of(&samples, SEED)?;
        Some(Summary {
            workload,
            variant,
            metric: metric.to_owned(),
            unit: spec.unit,
            better: spec.better,
            median: summary.median,
            ci_low: summary.ci_low,
            ci_high: summary.ci_high,
            samples,
            gain_over_4k: None,
            gain_over_thp: None,
            gain_over_reserve: None,
        })
    }

    /// How many times as good `own` is as `other`, with the 95 % interval.
    pub fn gain(own: &Summary, other: &Summary) -> Option<[f64; 3]> {
        let (numerator, denominator) = match own.better {
            Better::Lower => (other, own),
            Better::Higher => (own, other),
            Better::Neither => return None,
        };
        let ratio = quire_stats::ratio_of_medians(&numerator.samples, &denominator.samples, SEED)?;
        let gain = [ratio.value, ratio.ci_low, ratio.ci_high];
        gain.iter().all(|x| x.is_finite()).then_some(gain)
    }

    /// How much more `own` is than `other`, with the 95 % interval.
    pub fn excess(own: &Summary, other: &Summary) -> Option<[f64; 3]> {
        let more = quire_stats::difference_of_medians(&own.samples, &other.samples, SEED)?;
        Some([more.value, more.ci_low, more.ci_high])
    }
}

/// All samples and their summaries.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Every run in the order in which it was made.
    pub runs: Vec<Run>,
    /// Every figure of every workload under every variant.
    pub summaries: Vec<Summary>,
}

impl Results {
    /// Computes the summaries of `runs`.
    pub fn of(runs: Vec<Run>) -> Results {
        let mut samples: BTreeMap<(Workload, String, Variant), Vec<f64>> = BTreeMap::new();
        for run in &runs {
            for (metric, value) in &run.sample.metrics {
                let key = (run.turn.workload, metric.clone(), run.turn.variant);
                samples.entry(key).or_default().push(*value);
            }
        }
        let summaries = samples
            .into_iter()
            .filter_map(|((workload, metric, variant), values)| {
                Summary::of(workload, variant, &metric, values)
            })
            .collect();
        let mut results = Results { runs, summaries };
        results.compare();
        results
    }

    fn compare(&mut self) {
        let gains: Vec<_> = self
            .summaries
            .iter()
            .map(|own| {
                let over = |v| Summary::gain(own, self.summary(own.workload, v, &own.metric)?);
                [Variant::Kernel4k, Variant::Thp, Variant::QuireReserve].map(over)
            })
            .collect();
        for (summary, [base, thp, reserve]) in self.summaries.iter_mut().zip(gains) {
            summary.gain_over_4k = base;
            summary.gain_over_thp = thp;
            summary.gain_over_reserve = reserve;
        }
    }

    /// The summary of one figure.
    pub fn summary(&self, workload: Workload, variant: Variant, metric: &str) -> Option<&Summary> {
        self.summaries
            .iter()
            .find(|s| s.workload == workload && s.variant == variant && s.metric == metric)
    }

    /// How many times as good `variant` is as `other`, repetition by repetition:
    /// the median of the ratios, with its 95 % interval. A machine that is slower
    /// for a while is so for both. Fewer than `least` pairs say nothing.
    pub fn paired_gain(
        &self,
        workload: Workload,
        [variant, other]: [Variant; 2],
        metric: &str,
        least: usize,
    ) -> Option<[f64; 3]> {
        let better = workload.metric(metric)?.better;
        let values = |v: Variant| -> BTreeMap<u32, f64> {
            let turns = self.runs.iter().filter(|run| {
                let turn = &run.turn;
                turn.workload == workload && turn.variant == v
            });
            turns
                .filter_map(|run| Some((run.turn.repetition, *run.sample.metrics.get(metric)?)))
                .collect()
        };
        let (own, other) = (values(variant), values(other));
        let pairs = own.iter().filter_map(|(n, a)| Some((*a, *other.get(n)?)));
        let ratios: Option<Vec<f64>> = pairs.map(|(a, b)| better.gain(a, b)).collect();
        let ratios = ratios.filter(|ratios| ratios.len() >= least)?;
        let summary = quire_stats::Summary::of(&ratios, SEED)?;
        Some([summary.median, summary.ci_low, summary.ci_high])
    }

    /// The workloads that were run, in order.
    pub fn workloads(&self) -> Vec<Workload> {
        let mut all: Vec<Workload> = self.runs.iter().map(|r| r.turn.workload).collect();
        all.sort();
        all.dedup();
        all
    }

    /// The summaries of a figure, by variant; all its sizes if it has sizes.
    pub fn of_metric(&self, workload: Workload, name: &str) -> Vec<&Summary> {
        let name_of = |s: &Summary| s.metric.split('@').next() == Some(name);
        self.summaries
            .iter()
            .filter(|s| s.workload == workload && name_of(s))
            .collect()
    }
}
