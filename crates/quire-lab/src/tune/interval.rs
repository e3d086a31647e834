//! Ratios of means and of variations, with intervals of any level of confidence.
//!
//! - *Means.* By the rule of all comparisons ([`quire_stats::shift`]).
//! - *Variations.* The unclassified coefficient of variation (paper 002, section 4.2) is the
//!   standard deviation of one random measurement of each execution, over the mean. Its
//!   logarithm has the standard error of the jackknife (Miller, "Jackknifing variances",
//!   1968), which does not take the measurements for normal, as the F test does.
//!
//! Where a few executions take much longer than all others, no interval of a variation can
//! be trusted: thirty executions may well have none of these. So a permutation test says
//! besides how often chance alone would make one candidate vary as much less.

use quire_stats::Estimate;
use quire_stats::random::SplitMix64;

use crate::judge::{self, Absent, Sample, Shift, Values};

/// An interval, or a line that says why there is none.
pub type Interval = Result<Estimate, String>;

/// The fewest executions that anything is said of.
const LEAST: usize = 3;
/// So many permutations tell chances of a thousandth.
const PERMUTATIONS: usize = 4000;

/// How many times as large `new` is as `old`, by the rule of all comparisons. Where both have as
/// many executions, these were made in the same rounds.
///
/// # Errors
/// Why that is not known, in a line.
pub fn of_means(new: &Values, old: &Values) -> Result<Shift, String> {
    enough(new)?;
    enough(old)?;
    let sample = |values: &Values| Sample::new(values.clone());
    let shift = || judge::shift(&sample(new)?, &sample(old)?, new.len() == old.len());
    shift().map_err(|why: Absent| why.to_string())
}

/// How many times the variation of `old` the variation of `new` is.
///
/// # Errors
/// Why that is not known, in a line.
pub fn of_variations(new: &Values, old: &Values) -> Result<Shift, String> {
    ratio(&log_variation(new)?, &log_variation(old)?)
}

/// How likely it is that `new` varies as much less than `old` by chance: the part of all
/// ways to deal out the executions of both, each over the median of its own, in which it
/// does. 1 where that cannot be computed.
#[must_use]
pub fn chance_of_less_variation(new: &Values, old: &Values) -> f64 {
    if new.is_empty() || old.is_empty() {
        return 1.0;
    }
    let (mut pool, rest) = (over_median(new), over_median(old));
    pool.extend(rest);
    let difference = |pool: &[Vec<f64>]| {
        let (new, old) = pool.split_at(new.len());
        let of = |part: &[Vec<f64>]| Executions::of(part).log_variation(None);
        Ok::<f64, String>(of(new)? - of(old)?)
    };
    let Ok(observed) = difference(&pool) else {
        return 1.0;
    };
    let mut random = SplitMix64::new(1);
    let mut as_much = 1;
    for _ in 0..PERMUTATIONS {
        for last in (1..pool.len()).rev() {
            pool.swap(last, random.below(last + 1));
        }
        // What cannot be computed counts against the candidate.
        let is_less = difference(&pool).map_or(true, |difference| difference <= observed);
        as_much += usize::from(is_less);
    }
    as_much as f64 / (PERMUTATIONS + 1) as f64
}

/// Measurements over their median: unlike over their mean, those that are alike stay so
/// where one candidate has an outlier more.
fn over_median(values: &Values) -> Values {
    let all: Vec<f64> = values.iter().flatten().copied().collect();
    let median = quire_stats::median(&all).unwrap_or(1.0);
    let over = |execution: &Vec<f64>| execution.iter().map(|value| value / median).collect();
    values.iter().map(over).collect()
}

/// A logarithm, its squared standard error, and from how many executions.
struct Log {
    value: f64,
    error: f64,
    n: f64,
}

fn ratio(new: &Log, old: &Log) -> Result<Shift, String> {
    let error = new.error + old.error;
    let part = |log: &Log| log.error * log.error / (log.n - 1.0);
    let degrees = error * error / (part(new) + part(old));
    let ratio = Shift::of_logarithm(new.value - old.value, error, degrees);
    let value = ratio.ratio();
    match value.is_finite() && value > 0.0 && error.is_finite() {
        true => Ok(ratio),
        false => Err("the ratio is too large to represent".into()),
    }
}

fn enough(values: &Values) -> Result<f64, String> {
    match values.len() {
        n if n < LEAST => Err(format!("it takes {LEAST} executions, and there are {n}")),
        n => Ok(n as f64),
    }
}

fn log_variation(values: &Values) -> Result<Log, String> {
    let n = enough(values)?;
    let executions = Executions::of(values);
    let whole = executions.log_variation(None)?;
    let left_out = (0..values.len()).map(|one| executions.log_variation(Some(one)));
    let left_out = left_out.collect::<Result<Vec<f64>, String>>()?;
    let mean = left_out.iter().sum::<f64>() / n;
    let squares: f64 = left_out.iter().map(|value| (value - mean).powi(2)).sum();
    Ok(Log {
        value: whole,
        error: squares * (n - 1.0) / n,
        n,
    })
}

/// Executions by their mean and the variance of their measurements.
struct Executions {
    mean: f64,
    /// The means, less the mean of all.
    deviations: Vec<f64>,
    variances: Vec<f64>,
}

impl Executions {
    fn of(values: &[Vec<f64>]) -> Executions {
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let means: Vec<f64> = values.iter().map(|values| mean(values)).collect();
        let variance = |(values, own): (&Vec<f64>, &f64)| {
            let squares: Vec<f64> = values.iter().map(|value| (value - own).powi(2)).collect();
            mean(&squares)
        };
        let all = mean(&means);
        Executions {
            mean: all,
            deviations: means.iter().map(|own| own - all).collect(),
            variances: values.iter().zip(&means).map(variance).collect(),
        }
    }

    /// The sum of the squared deviations of means.
    fn squares(&self) -> f64 {
        self.deviations.iter().map(|d| d * d).sum()
    }

    /// The logarithm of the coefficient of variation, without one of them if it is named.
    /// The expected squared deviation of one random measurement of each is that of their
    /// means, and the mean variance within them.
    fn log_variation(&self, without: Option<usize>) -> Result<f64, String> {
        let all = self.deviations.len() as f64;
        let sum_within: f64 = self.variances.iter().sum();
        let (n, shift, squares, within) = match without {
            None => (all, 0.0, self.squares(), sum_within),
            Some(one) => {
                let gone = self.deviations[one];
                let shift = -gone / (all - 1.0);
                let squares = self.squares() - gone * gone - (all - 1.0) * shift * shift;
                (all - 1.0, shift, squares, sum_within - self.variances[one])
            }
        };
        let (mean, noise) = (self.mean + shift, self.squares() * 1e-12);
        let variance = squares.max(0.0) / (n - 1.0) + within.max(0.0) / n;
        match () {
            () if mean <= 0.0 => Err("the mean is not above zero".into()),
            () if variance <= noise => Err("the measurements do not vary".into()),
            () => Ok(variance.sqrt().ln() - mean.ln()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quire_stats::Settings;

    use super::*;

    fn single(values: &[f64]) -> Values {
        values.iter().map(|value| vec![*value]).collect()
    }

    /// The definition: the coefficient of variation of one measurement per execution.
    fn naive(values: &[f64]) -> f64 {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        (squares / (n - 1.0)).sqrt() / mean
    }

    #[test]
    fn what_cannot_be_computed_says_why() {
        let good = single(&[1.0, 2.0, 3.0]);
        let why = |new: &[f64]| of_variations(&single(new), &good).unwrap_err();
        assert!(why(&[1.0, 2.0]).contains("3 executions"));
        assert!(why(&[2.0, 2.0, 2.0]).contains("do not vary"));
        assert!(why(&[2.0, 2.0, 3.0]).contains("do not vary"));
        assert!(of_means(&single(&[-1.0, 0.0, 1.0]), &good).is_err());
        let same = single(&[2.0, 2.0, 2.0]);
        let ratio = of_means(&same, &same).unwrap().interval(0.95);
        assert_eq!((ratio.ci_low, ratio.value, ratio.ci_high), (1.0, 1.0, 1.0));
    }

    #[test]
    fn several_measurements_of_an_execution_are_a_random_one_of_each() {
        // Two values in each execution: all choices of one of each are equally likely.
        let values: Values = vec![vec![9.0, 11.0], vec![12.0, 14.0], vec![8.0, 9.0]];
        let (mut squares, mut choices) = (0.0, 0.0);
        for a in &values[0] {
            for b in &values[1] {
                for c in &values[2] {
                    let mean = (a + b + c) / 3.0;
                    squares += ((a - mean).powi(2) + (b - mean).powi(2) + (c - mean).powi(2)) / 2.0;
                    choices += 1.0;
                }
            }
        }
        let mean = values.iter().flatten().sum::<f64>() / 6.0;
        let expected = f64::sqrt(squares / choices) / mean;
        assert!((log_variation(&values).unwrap().value.exp() - expected).abs() < 1e-12);
    }

    #[test]
    fn chances_are_those_of_a_hand_count() {
        // Of the 20 ways to deal out six values, each over the median of its own, four give
        // the first three of the four that lie close together: 0.99, twice 1 and 1.01.
        let (new, old) = (single(&[9.9, 10.0, 10.1]), single(&[5.0, 10.0, 15.0]));
        let chance = chance_of_less_variation(&new, &old);
        assert!((chance - 0.2).abs() < 0.03, "{chance}");
        assert!(chance_of_less_variation(&old, &new) > 0.9);
        assert!(chance_of_less_variation(&new, &new) > 0.4);
    }

    proptest! {
        #[test]
        fn variations_are_those_of_the_definition(
            values in prop::collection::vec(1.0f64..100.0, 4..20),
        ) {
            let logs = log_variation(&single(&values));
            prop_assume!(logs.is_ok());
            let logs = logs.unwrap();
            prop_assert!((logs.value.exp() / naive(&values) - 1.0).abs() < 1e-9);
            let of_stats = quire_stats::variation::unclassified(
                &Sample::new(single(&values)).unwrap(),
                &Settings { resamples: 100, ..Settings::default() },
            );
            prop_assert!((logs.value.exp() / of_stats.unwrap().value - 1.0).abs() < 1e-9);
            // The jackknife, by leaving one out after the other.
            let n = values.len() as f64;
            let without = |one: usize| {
                let mut rest = values.clone();
                rest.remove(one);
                naive(&rest).ln()
            };
            let logs_without: Vec<f64> = (0..values.len()).map(without).collect();
            let mean = logs_without.iter().sum::<f64>() / n;
            let error = logs_without.iter().map(|l| (l - mean).powi(2)).sum::<f64>() * (n - 1.0) / n;
            prop_assert!((logs.error / error - 1.0).abs() < 1e-5);
        }

        #[test]
        fn ratios_follow_scale_and_can_be_turned_around(
            a in prop::collection::vec(1.0f64..100.0, 4..20),
            b in prop::collection::vec(1.0f64..100.0, 4..20),
            scale in 0.01f64..100.0,
            confidence in 0.5f64..0.999,
        ) {
            let (a, b) = (single(&a), single(&b));
            let scaled: Values = a.iter().map(|v| vec![v[0] * scale]).collect();
            for of in [of_means, of_variations] {
                let ratio = of(&a, &b).unwrap().interval(confidence);
                prop_assert!(ratio.ci_low < ratio.value && ratio.value < ratio.ci_high);
                let back = of(&b, &a).unwrap().inverse().interval(confidence);
                prop_assert!((back.value / ratio.value - 1.0).abs() < 1e-9);
                prop_assert!((back.ci_low / ratio.ci_low - 1.0).abs() < 1e-6);
                let wider = of(&a, &b).unwrap().interval(confidence / 2.0 + 0.5);
                prop_assert!(wider.ci_low < ratio.ci_low && ratio.ci_high < wider.ci_high);
            }
            let (ratio, times) = (of_means(&a, &b).unwrap(), of_means(&scaled, &b).unwrap());
            prop_assert!((times.ratio() / ratio.ratio() / scale - 1.0).abs() < 1e-9);
            let (ratio, times) = (of_variations(&a, &b).unwrap(), of_variations(&scaled, &b).unwrap());
            prop_assert!((times.ratio() / ratio.ratio() - 1.0).abs() < 1e-6);
        }
    }
}
