//! The statistics of paper 002, section 4: what is estimated of each benchmark under each
//! strategy, in triplets that differ in nothing else. The estimators are those of reports.

use quire_lab::judge::{self, Estimate, Judged, Sample, Settings};
use quire_lab::run::Run;
use quire_stats::rank;

use crate::nondeterminism::plan::VARIANTS;
use crate::set::worker::{MISSES, MODELLED, TIME};

/// What is estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// The mean response time.
    Mean,
    /// Non-determinism in measurement: the variation within executions.
    Within,
    /// Unclassified non-determinism: the variation of one measurement of each execution.
    Unclassified,
    /// Non-determinism in execution: the impact factor.
    Impact,
}

impl Quantity {
    fn estimate(self, sample: &Sample, settings: &Settings) -> Judged {
        match self {
            Quantity::Mean => judge::mean(sample, settings),
            Quantity::Within => judge::within(sample, settings),
            Quantity::Unclassified => judge::unclassified(sample, settings),
            Quantity::Impact => judge::impact(sample, settings),
        }
    }

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Quantity::Mean => "mean time",
            Quantity::Within => "variation within executions",
            Quantity::Unclassified => "unclassified variation",
            Quantity::Impact => "impact factor",
        }
    }
}

/// A quantity of a benchmark under each of [`VARIANTS`]; less is better.
#[derive(Clone, Debug, PartialEq)]
pub struct Triplet {
    /// The estimates.
    pub estimates: [Estimate; 3],
    /// Mean cache misses, where somebody counted them.
    pub misses: Option<[f64; 3]>,
}

impl Triplet {
    /// The rank of each: 1 more than the number of those that are better by more than a
    /// share.
    pub fn ranks(&self, above: f64) -> [usize; 3] {
        let ranks = judge::ranks(&self.estimates, above, false);
        std::array::from_fn(|one| ranks[one])
    }

    /// Whether one is known to be better than another one, by more than a share of the
    /// better one: the paper counts differences of 800 %.
    pub fn is_better(&self, who: usize, than: usize, above: f64) -> bool {
        let (who, than) = (&self.estimates[who], &self.estimates[than]);
        who.value < than.value && rank::differ(than, who, above)
    }

    /// Whether two are known to differ.
    pub fn differ(&self, one: usize, other: usize) -> bool {
        rank::differ(&self.estimates[one], &self.estimates[other], 0.0)
    }

    /// One as a multiple of the default.
    pub fn of_default(&self, one: usize) -> f64 {
        self.estimates[one].value / self.estimates[0].value
    }
}

/// The triplets of a class of benchmarks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    triplets: Vec<(Quantity, Triplet)>,
}

impl Group {
    /// The triplets of a quantity.
    pub fn triplets(&self, quantity: Quantity) -> Vec<&Triplet> {
        let of = self.triplets.iter().filter(|(own, _)| *own == quantity);
        of.map(|(_, triplet)| triplet).collect()
    }
}

/// All that is estimated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Study {
    /// Of benchmarks with several measurements an execution ("non-Csibe").
    pub repeated: Group,
    /// Of those with one ("Csibe").
    pub single: Group,
    /// What could not be estimated, and why.
    pub absent: Vec<String>,
}

impl Study {
    /// Estimates everything that results have enough measurements for.
    pub fn of(run: &Run) -> Study {
        let settings = judge::settings(run.header.seed);
        let mut study = Study::default();
        for benchmark in run.benchmarks() {
            study.add(run, benchmark, &settings);
        }
        study
    }

    fn add(&mut self, run: &Run, benchmark: &str, settings: &Settings) {
        let samples = VARIANTS.map(|variant| {
            let values = run.measurements(benchmark, variant.name(), TIME);
            Sample::new(values).map_err(|why| format!("{benchmark}, {}: {why}", variant.name()))
        });
        let samples = match collected(samples) {
            Ok(samples) => samples,
            Err(why) => return self.absent.push(why),
        };
        let is_repeated = samples.iter().all(Sample::has_groups);
        let (group, quantities): (_, &[Quantity]) = match is_repeated {
            true => (&mut self.repeated, REPEATED),
            false => (&mut self.single, SINGLE),
        };
        let misses = misses(run, benchmark);
        for quantity in quantities {
            let estimate = |sample: &Sample| {
                let why = |why| format!("{benchmark}, {}: {why}", quantity.name());
                quantity.estimate(sample, settings).map_err(why)
            };
            match collected(samples.each_ref().map(estimate)) {
                Ok(estimates) => group
                    .triplets
                    .push((*quantity, Triplet { estimates, misses })),
                Err(why) => self.absent.push(why),
            }
        }
    }
}

/// What is estimated where an execution has several measurements.
const REPEATED: &[Quantity] = &[
    Quantity::Mean,
    Quantity::Within,
    Quantity::Unclassified,
    Quantity::Impact,
];
/// The same where it has one.
const SINGLE: &[Quantity] = &[Quantity::Mean, Quantity::Unclassified];

/// All three, or why one is missing.
fn collected<T, E>(three: [Result<T, E>; 3]) -> Result<[T; 3], E> {
    let [one, two, three] = three;
    Ok([one?, two?, three?])
}

/// Mean cache misses under each strategy: counted, else modelled.
fn misses(run: &Run, benchmark: &str) -> Option<[f64; 3]> {
    let of = |metric: &str| {
        let means = VARIANTS.map(|variant| {
            let values = run.measurements(benchmark, variant.name(), metric).concat();
            let sum: f64 = values.iter().sum();
            (!values.is_empty())
                .then(|| sum / values.len() as f64)
                .ok_or(())
        });
        collected(means).ok()
    };
    of(MISSES).or_else(|| of(MODELLED))
}

#[cfg(test)]
mod tests {
    use quire_lab::run::Execution;

    use super::*;

    /// Executions of a benchmark under all strategies, whose times are multiples of
    /// those that are given.
    fn run(benchmark: &str, factors: [f64; 3], executions: &[&[f64]]) -> Run {
        let mut run = Run::default();
        for (variant, factor) in VARIANTS.iter().zip(factors) {
            for values in executions {
                let times = values.iter().map(|value| value * factor).collect();
                let execution = Execution {
                    benchmark: benchmark.into(),
                    variant: variant.name().into(),
                    metrics: [(TIME.into(), times)].into(),
                    ..Execution::default()
                };
                run.add(execution).unwrap();
            }
        }
        run
    }

    const REPEATED: &[&[f64]] = &[
        &[1.0, 1.1, 1.2, 1.1],
        &[1.1, 1.0, 1.1, 1.2],
        &[1.2, 1.1, 1.1, 1.0],
        &[1.0, 1.2, 1.1, 1.1],
    ];

    #[test]
    fn triplets_are_ranked() {
        let study = Study::of(&run("x", [2.0, 1.0, 2.0], REPEATED));
        assert_eq!(study.absent, Vec::<String>::new());
        let means = study.repeated.triplets(Quantity::Mean);
        assert_eq!(means.len(), 1);
        assert_eq!(means[0].ranks(0.0), [2, 1, 2]);
        assert_eq!(means[0].ranks(1.1), [1, 1, 1]);
        assert!((means[0].of_default(1) - 0.5).abs() < 1e-9);
        // The variation is the same whatever the mean is.
        let within = study.repeated.triplets(Quantity::Within);
        assert_eq!(within[0].ranks(0.0), [1, 1, 1]);
        assert!(study.single.triplets(Quantity::Mean).is_empty());
    }

    #[test]
    fn single_measurements_are_a_class_of_their_own() {
        let study = Study::of(&run("x", [1.0; 3], &[&[1.0], &[1.2], &[1.1], &[1.3]]));
        assert_eq!(study.single.triplets(Quantity::Unclassified).len(), 1);
        assert!(study.repeated.triplets.is_empty());
        assert!(study.single.triplets(Quantity::Impact).is_empty());
    }

    #[test]
    fn what_is_missing_is_said() {
        let mut half = run("x", [1.0; 3], REPEATED);
        half.executions.retain(|e| e.variant != "binhop");
        let study = Study::of(&half);
        assert!(study.repeated.triplets.is_empty());
        assert!(
            study.absent[0].starts_with("x, binhop: "),
            "{:?}",
            study.absent
        );
        let constant = Study::of(&run("x", [1.0; 3], &[&[1.0; 3][..]; 4]));
        assert_eq!(constant.repeated.triplets(Quantity::Impact).len(), 0);
        assert!(
            constant
                .absent
                .iter()
                .any(|why| why.contains("impact factor"))
        );
    }
}
