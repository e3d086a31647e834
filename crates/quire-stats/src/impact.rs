//! The impact factor of non-determinism in execution (paper 002, section 4.2): how many
//! times as much measurements vary across executions as within one.
//!
//! Groups of n measurements are drawn: one from each of n different executions, and n
//! different ones of one execution. The factor is the mean of the ratios of their standard
//! deviations. n is the number of executions, or that of the shortest one's measurements
//! if it is less; it belongs to the figure. A factor near 1 says that executions do not
//! matter; for normal data that do not depend on the execution, it is 1.06 for groups of
//! 10, 1.03 for 20 and 1.01 for 50, because the mean of 1/s is more than 1/(mean of s).
//!
//! The two groups of a ratio are drawn independently, so the mean over every pair of them
//! is exactly the mean standard deviation across times the mean reciprocal within. Both are
//! found from groups that are drawn at random, with control variates.
//!
//! Groups within an execution that do not vary have no reciprocal, and are left out. This
//! makes the factor smaller, never larger. If they are more than half, there is no factor.
//!
//! For the interval, executions are drawn anew with their measurements (the cluster
//! bootstrap).

use crate::across::{Across, SUMS, Statistic, choose};
use crate::estimate::{Absent, Estimate, Result, Settings};
use crate::interval;
use crate::layout::{Layout, Moments};
use crate::mean::{at_least, each_at_least};
use crate::random::SplitMix64;
use crate::resample;
use crate::sample::Sample;

/// The least that executions and the measurements of each must number: with groups of
/// two, the mean of the ratios need not exist.
const LEAST: usize = 3;
/// So many groups are drawn of each execution.
const GROUPS: u32 = 64;

/// The impact factor of non-determinism in execution.
///
/// # Errors
/// With fewer than three executions, where one has fewer than three measurements, and
/// where most groups of measurements of one execution do not vary.
pub fn factor(sample: &Sample, settings: &Settings) -> Result<Estimate> {
    settings.check()?;
    at_least(sample, LEAST)?;
    each_at_least(sample, LEAST)?;
    let layout = Layout::of(sample);
    let executions = layout.places().len();
    let shortest = layout.executions().map(<[f64]>::len).min().unwrap_or(0);
    let size = executions.min(shortest);
    let mut random = SplitMix64::stream(settings.seed, 0);
    let within = layout.executions();
    let within: Vec<Within> = within
        .map(|values| Within::of(values, size, &mut random))
        .collect();
    let all = Within::sum(&within);
    if all.reciprocals == 0.0 {
        return Err(Absent::Constant);
    }
    if all.varied * 2.0 < executions as f64 {
        return Err(Absent::MostlyConstant);
    }
    let mut across = Across::new(&layout, size, Statistic::Deviation);
    let value = across.fit(&mut random) * all.mean();
    // Of each execution what it adds to the sums across, and to those within.
    let feature = |(across, within): (&[f64; SUMS], &Within)| {
        let mut feature = [0.0; SUMS + 2];
        feature[..SUMS].copy_from_slice(across);
        feature[SUMS..].copy_from_slice(&[within.reciprocals, within.varied]);
        feature
    };
    let features: Vec<_> = across.sums().iter().zip(&within).map(feature).collect();
    let mut draws = Vec::with_capacity(settings.resamples);
    resample::sums(&features, settings.resamples, &mut random, |sums| {
        let Some((sums, [reciprocals, varied])) = sums.split_first_chunk() else {
            return;
        };
        let draw = across.average(sums) * reciprocals / varied;
        // Draws of nothing but executions that do not vary have no factor.
        draws.extend((!draw.is_nan()).then_some(draw));
    });
    let influences = || {
        let without = across.without_each().into_iter().zip(&within);
        let factor =
            |(deviation, left_out): (f64, &Within)| deviation * all.without(left_out).mean();
        interval::influences(&without.map(factor).collect::<Vec<_>>())
    };
    interval::estimate(value, &mut draws, 1.0, settings, influences)
}

/// Groups drawn of one execution.
#[derive(Clone, Copy, Debug, Default)]
struct Within {
    /// The sum of the reciprocals of standard deviations, over the number of groups.
    reciprocals: f64,
    /// The part of the groups that varied.
    varied: f64,
}

impl Within {
    /// Groups of `size` different ones of `values`.
    fn of(values: &[f64], size: usize, random: &mut SplitMix64) -> Within {
        let expected = Moments::of(values.iter().copied()).variance();
        let mut values = values.to_vec();
        let groups = if size == values.len() { 1 } else { GROUPS };
        let (mut sum, mut varied, mut chance) = (0.0, 0u32, 0.0);
        for _ in 0..groups {
            choose(&mut values, size, random);
            let variance = Moments::of(values[..size].iter().copied()).variance();
            if variance > 0.0 {
                sum += 1.0 / variance.sqrt();
                varied += 1;
            }
            chance += variance / expected - 1.0;
        }
        // The chance in the variances is known: a control variate, with the coefficient of the
        // first order.
        if varied == groups {
            sum += chance / 2.0 / expected.sqrt();
        }
        Within {
            reciprocals: sum / f64::from(groups),
            varied: f64::from(varied) / f64::from(groups),
        }
    }

    fn sum(within: &[Within]) -> Within {
        let of = |part: fn(&Within) -> f64| within.iter().map(part).sum();
        Within {
            reciprocals: of(|one| one.reciprocals),
            varied: of(|one| one.varied),
        }
    }

    /// The sum of all others.
    fn without(&self, left_out: &Within) -> Within {
        Within {
            reciprocals: self.reciprocals - left_out.reciprocals,
            varied: self.varied - left_out.varied,
        }
    }

    /// The mean reciprocal of the groups that varied; not a number if none did.
    fn mean(&self) -> f64 {
        self.reciprocals / self.varied
    }
}
