//! An experiment of a report: one benchmark, one variant, one metric.

use std::collections::{BTreeMap, HashMap};

use crate::caution::{Few, Of};
use crate::judge::{self, Absent, Estimate, Judged, Sample, Settings};
use crate::report::number;
use crate::run::{Better, Execution};
use crate::settling::Settling;

/// What is computed of an experiment (paper 002, section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The mean.
    Mean,
    /// Non-determinism in measurement: the coefficient of variation within executions.
    Within,
    /// The impact factor of non-determinism in execution.
    Impact,
    /// Unclassified non-determinism: the coefficient of variation of one measurement per
    /// execution.
    Unclassified,
}

impl Figure {
    /// All of them, in the order of tables.
    pub const ALL: [Figure; 4] = [
        Figure::Mean,
        Figure::Within,
        Figure::Impact,
        Figure::Unclassified,
    ];

    /// Its name in files.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Figure::Mean => "mean",
            Figure::Within => "cv_within",
            Figure::Impact => "impact_factor",
            Figure::Unclassified => "cv_unclassified",
        }
    }

    /// Its name in tables.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Figure::Mean => "mean",
            Figure::Within => "CV within executions",
            Figure::Impact => "impact factor",
            Figure::Unclassified => "unclassified CV",
        }
    }

    /// The differences, as fractions, below which variants share a rank in tables (paper
    /// 002, figures 6 and 8).
    #[must_use]
    pub fn thresholds(self) -> &'static [f64] {
        match self {
            Figure::Mean => &[0.0, 0.01, 0.03, 0.1],
            _ => &[0.0, 0.5, 1.0, 5.0, 8.0],
        }
    }

    /// An estimate of it as text; `unit` is the metric's.
    #[must_use]
    pub fn text(self, estimate: &Estimate, unit: &str) -> String {
        match self {
            Figure::Mean => number::estimate(estimate, unit),
            Figure::Within | Figure::Unclassified => number::percent_estimate(estimate),
            Figure::Impact => number::estimate(estimate, ""),
        }
    }
}

/// One benchmark, one variant, one metric.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// What was executed.
    pub benchmark: String,
    /// How.
    pub variant: String,
    /// What was measured.
    pub metric: String,
    /// Whether reports are about this metric; of others only the mean is computed.
    pub primary: bool,
    /// The measurements.
    pub sample: Sample,
    /// The places of the executions among all of the run.
    pub orders: Vec<u64>,
    /// The mean of the executions' means, which there is without an interval, too.
    pub average: f64,
    /// What was computed, in the order of [`Figure::ALL`].
    pub figures: Vec<(Figure, Judged)>,
    /// Those whose intervals are too narrow, because there are few executions.
    pub few: Vec<Few>,
    /// When its executions become steady, or why that is not known; nothing where they have
    /// one measurement each, and where the metric is not primary.
    pub settling: Option<Result<Settling, Absent>>,
}

impl Experiment {
    /// Computes the figures.
    pub(crate) fn of(
        group: Group,
        primary: bool,
        better: Better,
        settings: &Settings,
    ) -> Experiment {
        let sample = group.sample;
        let figures = Figure::ALL
            .into_iter()
            .filter(|f| primary || *f == Figure::Mean);
        let figures = figures.map(|figure| (figure, compute(figure, &sample, settings)));
        let figures: Vec<(Figure, Judged)> = figures.collect();
        let is_looked_at = primary && sample.has_groups();
        Experiment {
            benchmark: group.benchmark,
            variant: group.variant,
            metric: group.metric,
            primary,
            average: average(&sample),
            few: few(&figures, &sample, settings),
            settling: is_looked_at.then(|| Settling::of(&sample, better, settings)),
            figures,
            sample,
            orders: group.orders,
        }
    }

    /// A figure, where it was asked for and could be computed.
    #[must_use]
    pub fn figure(&self, wanted: Figure) -> Option<&Estimate> {
        let (_, result) = self.figures.iter().find(|(figure, _)| *figure == wanted)?;
        result.as_ref().ok()
    }

    /// How many executions there are.
    #[must_use]
    pub fn executions(&self) -> usize {
        self.sample.executions().len()
    }

    /// How many measurements an execution has, as text.
    #[must_use]
    pub fn measurements(&self) -> String {
        let counts = self.sample.executions().iter().map(Vec::len);
        let least = counts.clone().min().unwrap_or(0);
        let most = counts.max().unwrap_or(0);
        match least == most {
            true => least.to_string(),
            false => format!("{least} to {most}"),
        }
    }
}

/// The figures that were computed of too few executions.
fn few(figures: &[(Figure, Judged)], sample: &Sample, settings: &Settings) -> Vec<Few> {
    let executions = sample.executions().len();
    let computed = figures.iter().filter(|(_, result)| result.is_ok());
    let of = computed.filter_map(|(figure, _)| Of::figure(*figure));
    of.filter_map(|of| Few::of(of, executions, settings))
        .collect()
}

fn compute(figure: Figure, sample: &Sample, settings: &Settings) -> Judged {
    match figure {
        Figure::Mean => judge::mean(sample, settings),
        Figure::Within => judge::within(sample, settings),
        Figure::Impact => judge::impact(sample, settings),
        Figure::Unclassified => judge::unclassified(sample, settings),
    }
}

/// The mean of the means of executions.
pub(crate) fn average(sample: &Sample) -> f64 {
    let mean = |values: &Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let executions = sample.executions();
    executions.iter().map(mean).sum::<f64>() / executions.len() as f64
}

/// The measurements of an experiment.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub benchmark: String,
    pub variant: String,
    pub metric: String,
    pub sample: Sample,
    /// The places of its executions.
    pub orders: Vec<u64>,
}

/// What is found of an experiment.
#[derive(Default)]
struct Found {
    executions: Vec<Vec<f64>>,
    orders: Vec<u64>,
}

/// Places of names, in the order in which they first came.
struct Places(HashMap<String, usize>);

impl Places {
    fn of(&mut self, name: &str) -> usize {
        match self.0.get(name) {
            Some(place) => *place,
            None => {
                let next = self.0.len();
                self.0.insert(name.to_owned(), next);
                next
            }
        }
    }

    /// The names by their places.
    fn names(self) -> Vec<String> {
        let mut names: Vec<(String, usize)> = self.0.into_iter().collect();
        names.sort_unstable_by_key(|(_, place)| *place);
        names.into_iter().map(|(name, _)| name).collect()
    }
}

/// The measurements of executions by experiment: benchmarks and metrics in the order in which they
/// first came, variants in that of `variants`.
pub(crate) fn groups(
    variants: Vec<String>,
    executions: impl IntoIterator<Item = Execution>,
) -> Vec<Group> {
    let variants = variants.into_iter().enumerate().map(|(n, name)| (name, n));
    let mut variants = Places(variants.collect());
    let (mut benchmarks, mut metrics) = (Places(HashMap::new()), Places(HashMap::new()));
    let mut found: BTreeMap<[usize; 3], Found> = BTreeMap::new();
    for execution in executions {
        let benchmark = benchmarks.of(&execution.benchmark);
        let variant = variants.of(&execution.variant);
        for (metric, values) in execution.metrics {
            let place = [benchmark, variant, metrics.of(&metric)];
            let one = found.entry(place).or_default();
            one.executions.push(values);
            one.orders.push(execution.order);
        }
    }
    let [benchmarks, variants, metrics] = [benchmarks, variants, metrics].map(Places::names);
    let group = |([benchmark, variant, metric], one): ([usize; 3], Found)| {
        Some(Group {
            benchmark: benchmarks[benchmark].clone(),
            variant: variants[variant].clone(),
            metric: metrics[metric].clone(),
            sample: Sample::new(one.executions).ok()?,
            orders: one.orders,
        })
    };
    found.into_iter().filter_map(group).collect()
}
