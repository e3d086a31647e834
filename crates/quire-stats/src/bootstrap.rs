//! Confidence intervals by resampling.
//!
//! An interval is the percentile bootstrap's: a series is drawn anew from its
//! own values, with replacement, [`RESAMPLES`] times, and the middle 95 % of
//! what those draws yield is the interval. With few values it is too narrow:
//! five runs are about the least that it makes sense for.

use crate::order::{geometric_mean, quantile_of_sorted, sorted};
use crate::random::SplitMix64;

/// How often a series is drawn anew.
pub const RESAMPLES: usize = 2000;
/// The quantiles that bound an interval of 95 %.
const BOUNDS: (f64, f64) = (0.025, 0.975);

/// What a series of values says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// How many values there are.
    pub n: usize,
    /// Their median.
    pub median: f64,
    /// Their arithmetic mean.
    pub mean: f64,
    /// The least of them.
    pub min: f64,
    /// The largest of them.
    pub max: f64,
    /// Lower end of the 95 % interval of the median.
    pub ci_low: f64,
    /// Upper end of the 95 % interval of the median.
    pub ci_high: f64,
}

impl Summary {
    /// Summarises `values`, of any unit; `seed` makes the interval
    /// reproducible. `None` when there is no value or one is not finite.
    #[must_use]
    pub fn of(values: &[f64], seed: u64) -> Option<Summary> {
        let sorted = sorted(values)?;
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        let mut resampler = Resampler::new(seed);
        let (ci_low, ci_high) = interval(|| resampler.median(&sorted))?;
        Some(Summary {
            n: sorted.len(),
            median: quantile_of_sorted(&sorted, 0.5),
            mean: mean.clamp(min, max),
            min,
            max,
            ci_low,
            ci_high,
        })
    }
}

/// What comparing the medians of two series says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Their ratio or difference.
    pub value: f64,
    /// Lower end of its 95 % interval.
    pub ci_low: f64,
    /// Upper end of its 95 % interval.
    pub ci_high: f64,
}

/// The median of `a` over the median of `b`, the series drawn anew
/// independently; `seed` makes the interval reproducible. `None` when a series
/// is empty or holds a value that is not finite, when a value of `b` is not
/// above zero, or when a ratio is too large to represent.
#[must_use]
pub fn ratio_of_medians(a: &[f64], b: &[f64], seed: u64) -> Option<Comparison> {
    let (a, b) = (sorted(a)?, sorted(b)?);
    if b.first().is_none_or(|least| *least <= 0.0) {
        return None;
    }
    compare(&a, &b, seed, |a, b| a / b)
}

/// The median of `a` less the median of `b`, the series drawn anew
/// independently; `seed` makes the interval reproducible. `None` when a series
/// is empty or holds a value that is not finite, or when a difference is too
/// large to represent.
#[must_use]
pub fn difference_of_medians(a: &[f64], b: &[f64], seed: u64) -> Option<Comparison> {
    compare(&sorted(a)?, &sorted(b)?, seed, |a, b| a - b)
}

/// The sum of the first values of `pairs` over the sum of the second, the pairs
/// drawn anew together; `seed` makes the interval reproducible. So does a ratio
/// of counts that were taken side by side get its interval. Draws in which the
/// second sum is zero are left out. `None` when there is no pair, a value is
/// negative or not finite, or the second sum is zero.
#[must_use]
pub fn ratio_of_sums(pairs: &[(f64, f64)], seed: u64) -> Option<Comparison> {
    let is_count = |value: f64| value.is_finite() && value >= 0.0;
    if !pairs.iter().all(|(a, b)| is_count(*a) && is_count(*b)) {
        return None;
    }
    let sum = |(a, b): (f64, f64), pair: &(f64, f64)| (a + pair.0, b + pair.1);
    let ratio = |(a, b): (f64, f64)| (b > 0.0).then_some(a / b);
    let value = ratio(pairs.iter().fold((0.0, 0.0), sum))?;
    let mut random = SplitMix64::new(seed);
    let draws = (0..RESAMPLES).filter_map(|_| {
        let drawn = (0..pairs.len()).map(|_| &pairs[random.below(pairs.len())]);
        ratio(drawn.fold((0.0, 0.0), sum))
    });
    let draws = sorted(&draws.collect::<Vec<f64>>())?;
    // The interval of few and uneven pairs may miss the value itself.
    Some(Comparison {
        value,
        ci_low: quantile_of_sorted(&draws, BOUNDS.0).min(value),
        ci_high: quantile_of_sorted(&draws, BOUNDS.1).max(value),
    })
}

/// The geometric mean, over `pairs` of series, of the median of the first over
/// the median of the second; every series is drawn anew independently, and
/// `seed` makes the interval reproducible. So a set of programs gets one figure.
/// `None` where [`ratio_of_medians`] has no answer for a pair, and without pairs.
#[must_use]
pub fn mean_ratio_of_medians(pairs: &[(&[f64], &[f64])], seed: u64) -> Option<Comparison> {
    let ratios: Option<Vec<f64>> = pairs
        .iter()
        .map(|(a, b)| ratio_of_medians(a, b, seed).map(|ratio| ratio.value))
        .collect();
    let value = geometric_mean(&ratios?)?;
    let pairs: Option<Vec<_>> = pairs
        .iter()
        .map(|(a, b)| Some((sorted(a)?, sorted(b)?)))
        .collect();
    let pairs = pairs?;
    let mut resampler = Resampler::new(seed);
    let (ci_low, ci_high) = interval(|| {
        let drawn: Vec<f64> = pairs
            .iter()
            .map(|(a, b)| resampler.median(a) / resampler.median(b))
            .collect();
        geometric_mean(&drawn).unwrap_or(f64::NAN)
    })?;
    Some(Comparison {
        value,
        ci_low,
        ci_high,
    })
}

/// Compares the medians of two sorted series.
fn compare(a: &[f64], b: &[f64], seed: u64, by: fn(f64, f64) -> f64) -> Option<Comparison> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let mut resampler = Resampler::new(seed);
    let (ci_low, ci_high) = interval(|| by(resampler.median(a), resampler.median(b)))?;
    let value = by(quantile_of_sorted(a, 0.5), quantile_of_sorted(b, 0.5));
    value.is_finite().then_some(Comparison {
        value,
        ci_low,
        ci_high,
    })
}

/// The interval of what [`RESAMPLES`] draws yield; `None` when one of them is
/// not finite.
fn interval(draw: impl FnMut() -> f64) -> Option<(f64, f64)> {
    let draws: Vec<f64> = std::iter::repeat_with(draw).take(RESAMPLES).collect();
    let draws = sorted(&draws)?;
    Some((
        quantile_of_sorted(&draws, BOUNDS.0),
        quantile_of_sorted(&draws, BOUNDS.1),
    ))
}

/// Draws series anew, in one buffer.
#[derive(Debug)]
struct Resampler {
    random: SplitMix64,
    buffer: Vec<f64>,
}

impl Resampler {
    fn new(seed: u64) -> Resampler {
        Resampler {
            random: SplitMix64::new(seed),
            buffer: Vec::new(),
        }
    }

    /// The median of one draw from `values`, which are not empty.
    fn median(&mut self, values: &[f64]) -> f64 {
        let Resampler { random, buffer } = self;
        buffer.clear();
        buffer.extend((0..values.len()).map(|_| values[random.below(values.len())]));
        buffer.sort_unstable_by(f64::total_cmp);
        quantile_of_sorted(buffer, 0.5)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_constant_series_is_certain() {
        let summary = Summary::of(&[3.0; 9], 1).unwrap();
        assert_eq!((summary.n, summary.median, summary.mean), (9, 3.0, 3.0));
        assert_eq!((summary.min, summary.max), (3.0, 3.0));
        assert_eq!((summary.ci_low, summary.ci_high), (3.0, 3.0));
        let ratio = ratio_of_medians(&[3.0; 5], &[2.0; 5], 1).unwrap();
        assert_eq!((ratio.value, ratio.ci_low, ratio.ci_high), (1.5, 1.5, 1.5));
    }

    #[test]
    fn more_values_narrow_the_interval() {
        let series = |n: u32| (0..n).map(move |i| f64::from(i * 7919 % n) / f64::from(n));
        let width = |n| {
            let summary = Summary::of(&series(n).collect::<Vec<_>>(), 5).unwrap();
            summary.ci_high - summary.ci_low
        };
        assert!(width(1000) < width(100) && width(100) < width(10));
    }

    #[test]
    fn the_interval_covers_the_true_median_mostly() {
        let mut random = SplitMix64::new(42);
        let covered = (0..200)
            .filter(|seed| {
                let draw = |_| (random.below(1 << 30) as f64 / (1u64 << 30) as f64).powi(3);
                let values: Vec<f64> = (0..25).map(draw).collect();
                let summary = Summary::of(&values, *seed).unwrap();
                (summary.ci_low..=summary.ci_high).contains(&0.125)
            })
            .count();
        assert!((180..=200).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn what_has_no_answer_gets_none() {
        assert_eq!(Summary::of(&[], 1), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN], 1), None);
        for (a, b) in [
            (&[][..], &[1.0][..]),
            (&[1.0], &[]),
            (&[f64::NAN], &[1.0]),
            (&[1.0], &[1.0, 0.0]),
            (&[f64::MAX], &[f64::MIN_POSITIVE]),
        ] {
            assert_eq!(ratio_of_medians(a, b, 1), None);
        }
        for (a, b) in [
            (&[][..], &[1.0][..]),
            (&[f64::INFINITY], &[1.0]),
            (&[f64::MAX], &[f64::MIN]),
        ] {
            assert_eq!(difference_of_medians(a, b, 1), None);
        }
    }

    #[test]
    fn a_ratio_of_sums_knows_its_spread() {
        let even = ratio_of_sums(&[(1.0, 4.0); 6], 1).unwrap();
        assert_eq!((even.value, even.ci_low, even.ci_high), (0.25, 0.25, 0.25));
        let uneven = ratio_of_sums(&[(0.0, 10.0), (10.0, 10.0), (5.0, 10.0)], 1).unwrap();
        assert_eq!(uneven.value, 0.5);
        assert!(uneven.ci_low < 0.2 && uneven.ci_high > 0.8, "{uneven:?}");
        let zero = ratio_of_sums(&[(0.0, 3.0), (0.0, 0.0)], 1).unwrap();
        assert_eq!((zero.value, zero.ci_low, zero.ci_high), (0.0, 0.0, 0.0));
        for none in [&[][..], &[(1.0, 0.0)], &[(-1.0, 2.0)], &[(f64::NAN, 1.0)]] {
            assert_eq!(ratio_of_sums(none, 1), None);
        }
    }

    #[test]
    fn a_mean_ratio_weighs_every_pair_alike() {
        let pairs: [(&[f64], &[f64]); 2] = [(&[2.0; 3], &[1.0; 3]), (&[50.0; 3], &[100.0; 3])];
        let mean = mean_ratio_of_medians(&pairs, 1).unwrap();
        assert!((mean.value - 1.0).abs() < 1e-12);
        assert!((mean.ci_low - 1.0).abs() < 1e-12 && (mean.ci_high - 1.0).abs() < 1e-12);
        assert_eq!(mean_ratio_of_medians(&[], 1), None);
        assert_eq!(mean_ratio_of_medians(&[(&[1.0], &[])], 1), None);
        assert_eq!(mean_ratio_of_medians(&[(&[0.0], &[1.0])], 1), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_interval_holds_the_median(values in vec(-1e6f64..1e6, 1..30), seed: u64) {
            let s = Summary::of(&values, seed).unwrap();
            prop_assert!(s.min <= s.ci_low && s.ci_low <= s.median);
            prop_assert!(s.median <= s.ci_high && s.ci_high <= s.max);
            prop_assert!(s.min <= s.mean && s.mean <= s.max);
            prop_assert_eq!(s, Summary::of(&values, seed).unwrap());
        }

        #[test]
        fn the_ratio_lies_in_its_interval(
            a in vec(0.5f64..100.0, 1..20),
            b in vec(0.5f64..100.0, 1..20),
            seed: u64,
        ) {
            let ratio = ratio_of_medians(&a, &b, seed).unwrap();
            prop_assert!(ratio.ci_low <= ratio.value && ratio.value <= ratio.ci_high);
            let (a, b) = (sorted(&a).unwrap(), sorted(&b).unwrap());
            prop_assert!(ratio.ci_low >= a[0] / b[b.len() - 1]);
            prop_assert!(ratio.ci_high <= a[a.len() - 1] / b[0]);
        }

        #[test]
        fn a_mean_ratio_of_one_pair_is_its_ratio(
            a in vec(0.5f64..100.0, 1..20),
            b in vec(0.5f64..100.0, 1..20),
            seed: u64,
        ) {
            let mean = mean_ratio_of_medians(&[(&a, &b)], seed).unwrap();
            let ratio = ratio_of_medians(&a, &b, seed).unwrap();
            prop_assert!((mean.value / ratio.value - 1.0).abs() < 1e-9);
            prop_assert!((mean.ci_low / ratio.ci_low - 1.0).abs() < 1e-9);
            prop_assert!((mean.ci_high / ratio.ci_high - 1.0).abs() < 1e-9);
        }

        #[test]
        fn the_difference_lies_in_its_interval(
            a in vec(-100.0f64..100.0, 1..20),
            b in vec(-100.0f64..100.0, 1..20),
            seed: u64,
        ) {
            let difference = difference_of_medians(&a, &b, seed).unwrap();
            prop_assert!(difference.ci_low <= difference.value);
            prop_assert!(difference.value <= difference.ci_high);
            let (a, b) = (sorted(&a).unwrap(), sorted(&b).unwrap());
            prop_assert!(difference.ci_low >= a[0] - b[b.len() - 1]);
            prop_assert!(difference.ci_high <= a[a.len() - 1] - b[0]);
        }
    }
}
