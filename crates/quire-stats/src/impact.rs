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
//! is exactly the mean standard deviation across times the mean reciprocal within. The
//! first is found from groups across executions, with control variates, the second from
//! groups of each execution, as many as [`Settings::resamples`] in all, and at least 64 of
//! each.
//!
//! Groups within an execution that do not vary have no reciprocal, and are left out. This
//! makes the factor smaller, never larger. If they are more than half, there is no factor.
//!
//! For the interval, executions are drawn anew with their measurements (the cluster
//! bootstrap).

use crate::across::{Across, Group, choose};
use crate::estimate::{Absent, Estimate, Result, Settings};
use crate::interval;
use crate::layout::{Layout, Moments};
use crate::mean::{at_least, each_at_least};
use crate::random::SplitMix64;
use crate::sample::Sample;

/// The least that executions and the measurements of each must number: with groups of
/// two, the mean of the ratios need not exist.
const LEAST: usize = 3;
/// So many groups are drawn of each execution at least.
const GROUPS: usize = 64;

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
    let groups = settings.resamples.div_ceil(executions).max(GROUPS);
    let within = layout.executions();
    let within: Vec<Within> = within
        .map(|values| Within::of(values, size, groups, &mut random))
        .collect();
    let all = Within::sum(&within, 0..executions);
    if all.reciprocals == 0.0 {
        return Err(Absent::Constant);
    }
    if all.varied * 2.0 < executions as f64 {
        return Err(Absent::MostlyConstant);
    }
    let mut across = Across::new(&layout, size, |group: Group| group.variance.sqrt());
    let value = across.fit(settings.resamples, &mut random) * all.mean();
    let draw = |_| {
        let deviation = across.resampled(&mut random);
        deviation * Within::sum(&within, across.drawn().iter().copied()).mean()
    };
    let draws = (0..settings.resamples).map(draw);
    // Draws of nothing but executions that do not vary have no factor.
    let mut draws: Vec<f64> = draws.filter(|draw| !draw.is_nan()).collect();
    let influences = || {
        let without = across.without_each().into_iter().enumerate();
        let factor = |(left_out, deviation): (usize, f64)| {
            let others = (0..executions).filter(|execution| *execution != left_out);
            deviation * Within::sum(&within, others).mean()
        };
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
    /// `groups` of `size` different ones of `values`.
    fn of(values: &[f64], size: usize, groups: usize, random: &mut SplitMix64) -> Within {
        let mut values = values.to_vec();
        let groups = if size == values.len() { 1 } else { groups };
        let mut sum = Within::default();
        for _ in 0..groups {
            choose(&mut values, size, random);
            let variance = Moments::of(values[..size].iter().copied()).variance();
            if variance > 0.0 {
                sum.reciprocals += 1.0 / variance.sqrt() / groups as f64;
                sum.varied += 1.0 / groups as f64;
            }
        }
        sum
    }

    fn sum(within: &[Within], executions: impl Iterator<Item = usize>) -> Within {
        executions.fold(Within::default(), |sum, execution| Within {
            reciprocals: sum.reciprocals + within[execution].reciprocals,
            varied: sum.varied + within[execution].varied,
        })
    }

    /// The mean reciprocal of the groups that varied; not a number if none did.
    fn mean(&self) -> f64 {
        self.reciprocals / self.varied
    }
}
