//! Ratios of means, and their mean.

use crate::estimate::{Absent, Estimate, Result, Settings};
use crate::layout::Layout;
use crate::mean::{at_least, means};
use crate::order;
use crate::percentile;
use crate::random::SplitMix64;
use crate::resample;
use crate::sample::Sample;

/// The mean of `new` over the mean of `old`, with the percentile interval of the
/// hierarchical bootstrap: both samples are drawn anew, independently, at every level
/// (Kalibera and Jones 2013, section 7). Draws in which the mean of `old` is not above
/// zero are left out.
///
/// # Errors
/// With fewer than two executions in a sample, where the mean of `old` is not above zero,
/// and where a result is too large to represent.
pub fn of_means(new: &Sample, old: &Sample, settings: &Settings) -> Result<Estimate> {
    settings.check()?;
    at_least(new, 2)?;
    at_least(old, 2)?;
    let (new, old) = (Layout::of(new), Layout::of(old));
    let (new_mean, old_mean) = (means(&new).mean, means(&old).mean);
    if old_mean <= 0.0 {
        return Err(Absent::MeanNotPositive);
    }
    let draw = |layout, stream| {
        let mut random = SplitMix64::stream(settings.seed, stream);
        resample::means(layout, settings.resamples, &mut random)
    };
    let mut draws = draw(&new, 0);
    let below = draw(&old, 1);
    draws
        .iter_mut()
        .zip(&below)
        .for_each(|(new, old)| *new /= old);
    let mut below = below.into_iter();
    draws.retain(|_| below.next().is_some_and(|old| old > 0.0));
    let scale = new.scale / old.scale;
    percentile::estimate(new_mean / old_mean, &mut draws, scale, settings)
}

/// The geometric mean of the values of `ratios`: what a set of benchmarks says in one
/// figure (paper 002, section 4.4). It has no interval, as it has none there.
///
/// # Errors
/// Without ratios, and where one is not above zero.
pub fn geometric_mean(ratios: &[Estimate]) -> Result<f64> {
    if ratios.is_empty() {
        return Err(Absent::FewExecutions { needed: 1, got: 0 });
    }
    let values: Vec<f64> = ratios.iter().map(|ratio| ratio.value).collect();
    order::geometric_mean(&values).ok_or(Absent::MeanNotPositive)
}
