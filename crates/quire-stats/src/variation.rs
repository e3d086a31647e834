//! Coefficients of variation: the standard deviation over the mean.

use crate::across::{Across, Statistic};
use crate::estimate::{Absent, Estimate, Result, Settings};
use crate::interval;
use crate::layout::{Layout, Moments};
use crate::mean::{at_least, each_at_least, means};
use crate::percentile;
use crate::random::SplitMix64;
use crate::resample;
use crate::sample::Sample;

/// Non-determinism in measurement (paper 002, section 4.2): the mean over executions of
/// the coefficient of variation within one, with the percentile bootstrap's interval, for
/// which executions' coefficients are drawn anew. Zero where nothing varies.
///
/// # Errors
/// With fewer than two executions, where one has fewer than two measurements, and where
/// the mean of one is not above zero.
pub fn within(sample: &Sample, settings: &Settings) -> Result<Estimate> {
    settings.check()?;
    at_least(sample, 2)?;
    each_at_least(sample, 2)?;
    let layout = Layout::of(sample);
    let coefficient = |values: &[f64]| {
        let moments = Moments::of(values.iter().copied());
        if moments.mean > 0.0 {
            Ok(vec![moments.variance().sqrt() / moments.mean])
        } else {
            Err(Absent::MeanNotPositive)
        }
    };
    let coefficients: Result<Vec<_>> = layout.executions().map(coefficient).collect();
    let coefficients = Layout::of(&finite(coefficients?)?);
    let mut random = SplitMix64::stream(settings.seed, 0);
    let mut draws = resample::means(&coefficients, settings.resamples, &mut random);
    let value = means(&coefficients).mean;
    percentile::estimate(value, &mut draws, coefficients.scale, settings)
}

/// A sample of results, which are too large where they are not finite.
fn finite(results: Vec<Vec<f64>>) -> Result<Sample> {
    Sample::new(results).map_err(|_| Absent::TooLarge)
}

/// Unclassified non-determinism (paper 002, section 4.2): the coefficient of variation of
/// one measurement per execution, with the bootstrap's interval, for which executions are
/// drawn anew. Where executions have several measurements, it is the mean over groups of
/// one random measurement of each. Draws whose mean is not above zero are left out.
///
/// # Errors
/// With fewer than two executions, and where the mean is not above zero, be it of one
/// group of measurements.
pub fn unclassified(sample: &Sample, settings: &Settings) -> Result<Estimate> {
    settings.check()?;
    at_least(sample, 2)?;
    let layout = Layout::of(sample);
    let mut random = SplitMix64::stream(settings.seed, 0);
    let executions = layout.places().len();
    let mut across = Across::new(&layout, executions, Statistic::Coefficient);
    let value = across.fit(&mut random);
    if value.is_nan() {
        return Err(Absent::MeanNotPositive);
    }
    let mut draws = Vec::with_capacity(settings.resamples);
    resample::sums(across.sums(), settings.resamples, &mut random, |sums| {
        let draw = across.average(sums);
        draws.extend((!draw.is_nan()).then_some(draw));
    });
    let influences = || interval::influences(&across.without_each());
    interval::estimate(value, &mut draws, 1.0, settings, influences)
}
