//! From what draws of executions yield to an interval: the percentile interval, or the one
//! that is corrected for bias and acceleration (BCa; Efron 1987; Davison and Hinkley 1997,
//! section 5.3.2).
//!
//! BCa takes other quantiles of the draws than the percentile interval does. How far apart
//! follows from two figures: the bias, which is how far the value is from the median of the
//! draws, and the acceleration, which is a sixth of the skewness of how much each execution
//! moves the value (by leaving each out in turn).

use crate::estimate::{Estimate, Intervals, Result, Settings};
use crate::normal;
use crate::percentile;

/// `value` with its interval from `draws`, all times `scale`. `influences` says how much
/// each execution moves the value, in any unit.
///
/// # Errors
/// Where an end is not finite.
pub(crate) fn estimate(
    value: f64,
    draws: &mut [f64],
    scale: f64,
    settings: &Settings,
    influences: impl FnOnce() -> Vec<f64>,
) -> Result<Estimate> {
    let tail = settings.lower_tail();
    let tails = match settings.intervals {
        Intervals::Percentile => [tail, 1.0 - tail],
        Intervals::Bca => {
            let bias = bias(value, draws);
            let acceleration = acceleration(&influences());
            [tail, 1.0 - tail].map(|tail| corrected(tail, bias, acceleration))
        }
    };
    percentile::between(value, draws, tails, scale)
}

/// The influence of each execution on a value, from what the value is without it.
pub(crate) fn influences(without: &[f64]) -> Vec<f64> {
    let mean = without.iter().sum::<f64>() / without.len() as f64;
    without.iter().map(|value| mean - value).collect()
}

/// How many deviations the value is above the median of the draws.
fn bias(value: f64, draws: &[f64]) -> f64 {
    let count = |is: fn(&f64, &f64) -> bool| draws.iter().filter(|draw| is(draw, &value)).count();
    let (below, equal) = (count(f64::lt), count(f64::eq));
    let all = draws.len() as f64;
    // At least half a draw on either side, so that it stays finite.
    let part = (below as f64 + equal as f64 / 2.0).clamp(0.5, (all - 0.5).max(0.5));
    normal::quantile(part / all)
}

/// A sixth of the skewness of the influences; 0 where they do not vary, or are not known.
fn acceleration(influences: &[f64]) -> f64 {
    // In units of the largest, so that no power overflows or vanishes.
    let largest = influences
        .iter()
        .fold(0.0, |max: f64, one| max.max(one.abs()));
    let power = |n: i32| {
        influences
            .iter()
            .map(|one| (one / largest).powi(n))
            .sum::<f64>()
    };
    let acceleration = power(3) / power(2).powf(1.5) / 6.0;
    if acceleration.is_finite() {
        acceleration
    } else {
        0.0
    }
}

/// The quantile of the draws that takes the place of the quantile `tail`.
fn corrected(tail: f64, bias: f64, acceleration: f64) -> f64 {
    let shifted = bias + normal::quantile(tail);
    let rest = 1.0 - acceleration * shifted;
    if rest <= 0.0 {
        return if shifted < 0.0 { 0.0 } else { 1.0 };
    }
    normal::below(bias + shifted / rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: f64, draws: &[f64], influences: &[f64]) -> Estimate {
        let settings = Settings {
            intervals: Intervals::Bca,
            ..Settings::default()
        };
        let influences = || influences.to_vec();
        estimate(value, &mut draws.to_vec(), 1.0, &settings, influences).unwrap()
    }

    #[test]
    fn without_bias_and_skewness_it_is_the_percentile_interval() {
        let draws: Vec<f64> = (0..=1000).map(f64::from).collect();
        let found = of(500.0, &draws, &[-1.0, 0.0, 1.0]);
        assert!((found.ci_low - 25.0).abs() < 1e-6, "{found:?}");
        assert!((found.ci_high - 975.0).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn bias_and_skewness_move_it() {
        let draws: Vec<f64> = (0..=1000).map(f64::from).collect();
        let above = of(600.0, &draws, &[-1.0, 0.0, 1.0]);
        assert!(above.ci_low > 50.0 && above.ci_high > 985.0, "{above:?}");
        let skewed = of(500.0, &draws, &[-1.0, -1.0, -1.0, -1.0, 4.0]);
        assert!(skewed.ci_low > 30.0 && skewed.ci_high > 980.0, "{skewed:?}");
    }

    #[test]
    fn draws_that_do_not_vary_and_extremes_have_an_interval() {
        let certain = of(3.0, &[3.0; 50], &[0.0; 5]);
        assert_eq!((certain.ci_low, certain.ci_high), (3.0, 3.0));
        let low = of(0.0, &[1.0, 2.0, 3.0], &[f64::NAN, 1.0]);
        assert!(low.ci_low <= low.value && low.value <= low.ci_high && low.ci_high <= 3.0);
        assert_eq!(corrected(0.975, 3.0, 0.5), 1.0);
        assert_eq!(corrected(0.025, -3.0, -0.5), 0.0);
    }

    #[test]
    fn the_influence_of_each_follows_from_what_is_without_it() {
        // Of a mean: how far each value is from it, over the number of the others.
        let values = [1.0, 2.0, 6.0];
        let without = [4.0, 3.5, 1.5];
        let found = influences(&without);
        for (found, value) in found.iter().zip(values) {
            assert!((found - (value - 3.0) / 2.0).abs() < 1e-12);
        }
    }
}
