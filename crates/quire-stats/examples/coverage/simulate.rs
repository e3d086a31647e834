//! How often intervals hold the true value, by simulation.

use std::sync::atomic::{AtomicUsize, Ordering};

use quire_stats::random::SplitMix64;
use quire_stats::{
    Absent, Estimate, Intervals, Sample, Settings, impact, mean, median, ratio, variation,
};

/// The true mean of everything that is simulated.
const MEAN: f64 = 100.0;
/// The standard deviation of executions, and of measurements within one.
const DEVIATIONS: (f64, f64) = (3.0, 1.0);

/// How executions, and measurements within them, are distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Normal.
    Normal,
    /// Skewed: lognormal, with a deviation of 0.75 of its logarithm.
    Skewed,
    /// Two modes of equal size, ten of their standard deviations apart.
    TwoModes,
}

/// The figures whose intervals are tried.
#[derive(Clone, Copy, Debug)]
pub enum Figure {
    /// [`mean::of`].
    Mean,
    /// [`mean::of`] of one measurement an execution.
    MeanOfSingles,
    /// [`mean::bootstrap`].
    MeanBootstrap,
    /// [`median::of`].
    Median,
    /// [`variation::within`].
    Within,
    /// [`variation::unclassified`].
    Unclassified,
    /// [`impact::factor`].
    Impact,
    /// [`ratio::of_means`].
    Ratio,
}

/// A standard normal number (Box and Muller 1958).
pub fn normal(random: &mut SplitMix64) -> f64 {
    let mut uniform = || (random.below(1 << 52) as f64 + 0.5) / (1u64 << 52) as f64;
    let (a, b) = (uniform(), uniform());
    (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}

impl Shape {
    /// A number with mean 0 and deviation 1.
    pub fn number(self, random: &mut SplitMix64) -> f64 {
        let z = normal(random);
        match self {
            Shape::Normal => z,
            Shape::Skewed => {
                let variance = 0.75f64 * 0.75;
                let deviation = (variance.exp_m1() * variance.exp()).sqrt();
                ((0.75 * z).exp() - (variance / 2.0).exp()) / deviation
            }
            Shape::TwoModes => {
                let mode = if random.below(2) == 0 { -1.0 } else { 1.0 };
                (mode + 0.2 * z) / 1.04f64.sqrt()
            }
        }
    }

    fn execution(self, measurements: usize, random: &mut SplitMix64) -> Vec<f64> {
        let own = MEAN + DEVIATIONS.0 * self.number(random);
        (0..measurements)
            .map(|_| own + DEVIATIONS.1 * self.number(random))
            .collect()
    }

    fn sample(self, size: Size, random: &mut SplitMix64) -> Result<Sample, Absent> {
        let execution = |_| self.execution(size.measurements, random);
        Sample::new((0..size.executions).map(execution).collect())
    }
}

/// How large the simulated experiments are.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Executions.
    pub executions: usize,
    /// Measurements of each.
    pub measurements: usize,
}

fn deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    (mean, (squares / (n - 1.0)).sqrt())
}

/// The value that `figure` would have for endlessly many executions of as many
/// measurements, and for the impact factor groups of the same size; known, or by
/// simulation of `trials` executions.
fn truth(figure: Figure, shape: Shape, size: Size, trials: usize) -> f64 {
    let mut random = SplitMix64::new(77);
    let mut mean_of = |mut value: Box<dyn FnMut(&mut SplitMix64) -> f64>| {
        (0..trials).map(|_| value(&mut random)).sum::<f64>() / trials as f64
    };
    match figure {
        Figure::Mean | Figure::MeanOfSingles | Figure::MeanBootstrap => MEAN,
        Figure::Ratio => 1.0,
        Figure::Unclassified => DEVIATIONS.0.hypot(DEVIATIONS.1) / MEAN,
        Figure::Median => {
            let value = |_| shape.execution(1, &mut random)[0];
            let values: Vec<f64> = (0..8 * trials).map(value).collect();
            quire_stats::median(&values).unwrap_or(f64::NAN)
        }
        Figure::Within => mean_of(Box::new(move |random| {
            let (mean, deviation) = deviation(&shape.execution(size.measurements, random));
            deviation / mean
        })),
        Figure::Impact => {
            let group = size.executions.min(size.measurements);
            let across = mean_of(Box::new(move |random| {
                let one = |_| shape.execution(1, random)[0];
                deviation(&(0..group).map(one).collect::<Vec<f64>>()).1
            }));
            across
                * mean_of(Box::new(move |random| {
                    1.0 / deviation(&shape.execution(group, random)).1
                }))
        }
    }
}

fn estimate(
    figure: Figure,
    shape: Shape,
    size: Size,
    random: &mut SplitMix64,
    settings: &Settings,
) -> Result<Estimate, Absent> {
    let sample = shape.sample(size, random)?;
    match figure {
        Figure::Mean => mean::of(&sample, settings),
        Figure::MeanOfSingles => {
            let size = Size {
                measurements: 1,
                ..size
            };
            mean::of(&shape.sample(size, random)?, settings)
        }
        Figure::MeanBootstrap => mean::bootstrap(&sample, settings),
        Figure::Median => median::of(&sample, settings),
        Figure::Within => variation::within(&sample, settings),
        Figure::Unclassified => variation::unclassified(&sample, settings),
        Figure::Impact => impact::factor(&sample, settings),
        Figure::Ratio => ratio::of_means(&sample, &shape.sample(size, random)?, settings),
    }
}

/// The part of the intervals of `trials` simulated experiments that hold the true value;
/// on all processors.
pub fn coverage(
    figure: Figure,
    shape: Shape,
    size: Size,
    intervals: Intervals,
    [trials, resamples]: [usize; 2],
) -> f64 {
    let truth = truth(figure, shape, size, 100_000);
    let holds = |trial: usize| {
        let settings = Settings {
            resamples,
            seed: trial as u64,
            intervals,
            ..Settings::default()
        };
        let mut random = SplitMix64::new(1 + trial as u64 * 1_000_003);
        estimate(figure, shape, size, &mut random, &settings)
            .is_ok_and(|found| found.ci_low <= truth && truth <= found.ci_high)
    };
    let (next, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some(trial) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|t| *t < trials) {
            held.fetch_add(usize::from(holds(trial)), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    held.into_inner() as f64 / trials as f64
}
