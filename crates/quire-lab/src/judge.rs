//! What measurements say: the only place here that asks `quire-stats` for estimates, and
//! that says which estimator is meant.

use quire_stats::components::{self, Level, Nested};
pub use quire_stats::shift::{Family, Finding, Names, Shift, outliers, quoted, sentence};
use quire_stats::warmup::{self, Steady};
pub use quire_stats::{Absent, Estimate, Intervals, Sample, Settings};
use quire_stats::{ecdf, impact, mean, rank, ratio, variation};

use crate::run::Better;

/// The chance of saying that executions differ where they do not.
const CHANCE: f64 = 0.01;

/// Measurements by execution.
pub type Values = Vec<Vec<f64>>;

/// An estimate, or why there is none.
pub type Judged = Result<Estimate, Absent>;

/// How intervals are computed where nobody says otherwise but for the seed.
#[must_use]
pub fn settings(seed: u64) -> Settings {
    Settings {
        seed,
        ..Settings::default()
    }
}

/// The name of a kind of intervals in files.
#[must_use]
pub fn key(intervals: Intervals) -> &'static str {
    match intervals {
        Intervals::Percentile => "percentile",
        Intervals::Bca => "bca",
    }
}

/// How intervals are computed, for people.
#[must_use]
pub fn method(settings: &Settings) -> String {
    let corrected = match settings.intervals {
        Intervals::Percentile => "",
        Intervals::Bca => "; those of the unclassified CV and the impact factor are BCa intervals",
    };
    let Settings {
        resamples, seed, ..
    } = settings;
    format!("{resamples} resamples, seed {seed}{corrected}")
}

/// The mean of execution means with Student's interval.
///
/// # Errors
/// Why there is none.
pub fn mean(sample: &Sample, settings: &Settings) -> Judged {
    mean::of(sample, settings)
}

/// The coefficient of variation within executions.
///
/// # Errors
/// Why there is none.
pub fn within(sample: &Sample, settings: &Settings) -> Judged {
    variation::within(sample, settings)
}

/// The coefficient of variation of one measurement per execution.
///
/// # Errors
/// Why there is none.
pub fn unclassified(sample: &Sample, settings: &Settings) -> Judged {
    variation::unclassified(sample, settings)
}

/// The coefficient of variation: within executions where they have several
/// measurements, else across them.
///
/// # Errors
/// Why there is none.
pub fn variation(sample: &Sample, settings: &Settings) -> Judged {
    match sample.has_groups() {
        true => within(sample, settings),
        false => unclassified(sample, settings),
    }
}

/// The impact factor of non-determinism in execution.
///
/// # Errors
/// Why there is none.
pub fn impact(sample: &Sample, settings: &Settings) -> Judged {
    impact::factor(sample, settings)
}

/// Whether two variants differ, and by how much: the rule of all comparisons.
///
/// # Errors
/// Why there is none.
pub fn shift(new: &Sample, old: &Sample, in_rounds: bool) -> Result<Shift, Absent> {
    Shift::of(new, old, in_rounds)
}

/// Whether executions differ more than the measurements within one, beyond chance.
#[must_use]
pub fn executions_differ(sample: &Sample) -> bool {
    let chance = components::chance_of_equal_executions(sample);
    chance.is_ok_and(|chance| chance < CHANCE)
}

/// How many times the mean of `old` the mean of `new` is, by the bootstrap.
///
/// # Errors
/// Why there is none.
pub fn ratio(new: &Sample, old: &Sample, settings: &Settings) -> Judged {
    ratio::of_means(new, old, settings)
}

/// The rank of each, 1 for the best; what does not differ significantly, and by more than
/// `threshold` (a fraction), shares a rank.
#[must_use]
pub fn ranks(estimates: &[Estimate], threshold: f64, higher_is_better: bool) -> Vec<usize> {
    rank::ranks(estimates, threshold, higher_is_better)
}

/// Each value in order, and the share of values that are not above it.
#[must_use]
pub fn ecdf(values: &[f64]) -> Vec<(f64, f64)> {
    ecdf::points(values)
}

/// Whether and from when on the measurements of an execution are steady; those that are
/// better count as faster.
///
/// # Errors
/// With too few measurements.
pub fn steady(values: &[f64], better: Better, settings: &Settings) -> Result<Steady, Absent> {
    match better {
        Better::Lower => warmup::look(values, settings),
        Better::Higher => {
            let turned: Vec<f64> = values.iter().map(|value| -value).collect();
            warmup::look(&turned, settings)
        }
    }
}

/// Whether half the interval of the mean is at most this part of it.
#[must_use]
pub fn is_precise(values: Values, precision: f64) -> bool {
    let mean = Sample::new(values).and_then(|sample| mean(&sample, &settings(1)));
    mean.is_ok_and(|mean| mean.error() <= precision * mean.value.abs())
}

/// What varies: executions, and where they have several measurements, those within.
///
/// # Errors
/// Why it is not known.
pub fn levels(sample: &Sample) -> Result<Vec<Level>, Absent> {
    components::of(&match sample.has_groups() {
        true => Nested::from(sample),
        false => Nested::Group(sample.values().map(Nested::Value).collect()),
    })
}

/// How many measurements an execution shall have, where those cost so many seconds and an
/// execution besides them so many.
///
/// # Errors
/// Why it is not known.
pub fn measurements(levels: &[Level], execution: f64, measurement: f64) -> Result<f64, Absent> {
    let costs = match levels.len() {
        1 => vec![execution + measurement],
        _ => vec![execution, measurement],
    };
    let counts = components::plan(levels, &costs)?;
    Ok(counts.first().copied().unwrap_or(1.0))
}

/// How many executions, of so many measurements each, make the mean as precise as that.
///
/// # Errors
/// Why it is not known.
pub fn executions(
    levels: &[Level],
    measurements: usize,
    precision: f64,
    mean: f64,
) -> Result<usize, Absent> {
    let counts = match levels.len() {
        1 => vec![],
        _ => vec![measurements],
    };
    let confidence = Settings::default().confidence;
    components::executions_for(levels, &counts, precision, mean, confidence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_grows_warms_up_and_a_time_that_grows_does_not() {
        let mut rates = vec![1.0; 10];
        rates.resize(50, 2.0);
        let steady = |better| steady(&rates, better, &settings(1)).unwrap();
        assert_eq!(steady(Better::Higher), Steady::After(10));
        assert_eq!(steady(Better::Lower), Steady::SlowsDown(10));
    }

    #[test]
    fn nothing_is_not_precise() {
        assert!(!is_precise(Vec::new(), 0.1));
        assert!(!is_precise(vec![vec![1.0]], 0.1));
        assert!(is_precise(vec![vec![1.0]; 3], 0.1));
        assert!(!is_precise(vec![vec![1.0], vec![2.0]], 0.1));
    }
}
