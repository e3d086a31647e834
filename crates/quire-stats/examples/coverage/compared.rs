//! How often the rule of comparisons holds the true ratio, claims what is not there, and finds
//! what is, by simulation; beside it, Welch's test of logarithms and Mann and Whitney's.

use std::sync::atomic::{AtomicUsize, Ordering};

use quire_stats::random::SplitMix64;
use quire_stats::shift::{Family, Finding, Shift};
use quire_stats::{Sample, student};

use crate::simulate::{Shape, normal};

/// What executions are like. Unless it is said otherwise they vary by 2 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Machine {
    /// Each by itself, of this shape.
    Still(Shape),
    /// Lognormal, with a deviation of 0.3 of the logarithm.
    Lognormal,
    /// Normal, but for one in twenty that takes 20 to 70 % longer.
    Outliers,
    /// Normal; the second variant varies four times as much.
    Unequal,
    /// Normal; four fifths of what an execution is off are carried over to the next one.
    Carried,
    /// Normal; in the course of the experiment the machine becomes 15 % slower.
    Drift,
}

/// All that are simulated.
pub const MACHINES: [Machine; 8] = [
    Machine::Still(Shape::Normal),
    Machine::Lognormal,
    Machine::Still(Shape::Skewed),
    Machine::Still(Shape::TwoModes),
    Machine::Outliers,
    Machine::Unequal,
    Machine::Carried,
    Machine::Drift,
];

/// A deviation of executions, as a part of their mean.
const DEVIATION: f64 = 0.02;

impl Machine {
    /// The difference that is to be found: one deviation, as a part.
    pub fn effect(self) -> f64 {
        match self {
            Machine::Lognormal => 0.35,
            _ => DEVIATION,
        }
    }

    /// The means of so many executions of each variant, in rounds of random order, of
    /// `measurements` each.
    pub fn executions(
        self,
        variants: usize,
        [executions, measurements]: [usize; 2],
        random: &mut SplitMix64,
    ) -> Vec<Vec<Vec<f64>>> {
        let mut all = vec![Vec::new(); variants];
        let (mut off, mut place) = (normal(random), 0);
        for _ in 0..executions {
            let mut order: Vec<usize> = (0..variants).collect();
            for last in (1..variants).rev() {
                order.swap(last, random.below(last + 1));
            }
            for variant in order {
                let own = match self {
                    Machine::Still(shape) => DEVIATION * shape.number(random),
                    Machine::Lognormal => (0.3 * normal(random)).exp() - 1.0,
                    Machine::Unequal if variant == 1 => 4.0 * DEVIATION * normal(random),
                    Machine::Outliers if random.below(20) == 0 => {
                        0.2 + random.below(1000) as f64 / 2000.0 + DEVIATION * normal(random)
                    }
                    Machine::Carried => {
                        off = 0.8 * off + 0.6 * normal(random);
                        DEVIATION * off
                    }
                    Machine::Drift => {
                        let part = place as f64 / (executions * variants) as f64;
                        0.15 * part + DEVIATION * normal(random)
                    }
                    _ => DEVIATION * normal(random),
                };
                place += 1;
                let noise = |random: &mut SplitMix64| match measurements {
                    1 => 0.0,
                    _ => DEVIATION / 2.0 * normal(random),
                };
                let values = (0..measurements).map(|_| (1.0 + own + noise(random)).max(0.01));
                all[variant].push(values.collect());
            }
        }
        all
    }
}

/// The parts of the experiments, in which something is so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts {
    /// The interval of 95 % of two equal variants holds 1.
    pub held: f64,
    /// Of six equal variants one is said to differ from the first.
    pub claimed: f64,
    /// A difference of one deviation is found.
    pub found: f64,
    /// Welch's test of logarithms finds it.
    pub welch: f64,
    /// Mann and Whitney's test finds it.
    pub ranks: f64,
}

fn sample(executions: &[Vec<f64>], factor: f64) -> Option<Sample> {
    let times = |values: &Vec<f64>| values.iter().map(|value| value * factor).collect();
    Sample::new(executions.iter().map(times).collect()).ok()
}

fn claims(new: &[Vec<f64>], old: &[Vec<f64>], factor: f64, confidence: f64) -> bool {
    let shift = || Shift::of(&sample(new, factor)?, &sample(old, 1.0)?, true).ok();
    shift().is_none_or(|shift| shift.finding(confidence, false) != Finding::Open)
}

/// Of `trials` experiments, of so many executions and measurements; on all processors.
pub fn parts(machine: Machine, size: [usize; 2], trials: usize) -> Parts {
    let (next, counts) = (AtomicUsize::new(0), [const { AtomicUsize::new(0) }; 5]);
    let of_five = Family {
        confidence: 0.95,
        comparisons: 5,
    };
    let of_five = of_five.each();
    let quantiles = Quantiles::new(size[0]);
    let trial = |number: usize| {
        let mut random = SplitMix64::new(1 + number as u64 * 1_000_003);
        let all = machine.executions(6, size, &mut random);
        let two = machine.executions(2, size, &mut random);
        let (old, new) = (&two[0], &two[1]);
        let factor = 1.0 + machine.effect();
        let claimed = all[1..]
            .iter()
            .any(|one| claims(one, &all[0], 1.0, of_five));
        let [a, b] = [old, new].map(|one| means(one));
        let b: Vec<f64> = b.iter().map(|value| value * factor).collect();
        [
            !claims(new, old, 1.0, 0.95),
            claimed,
            claims(new, old, factor, 0.95),
            welch(&a, &b, &quantiles),
            mann_whitney(&a, &b),
        ]
    };
    let work = || {
        while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < trials)
        {
            for (count, is) in counts.iter().zip(trial(number)) {
                count.fetch_add(usize::from(is), Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let [held, claimed, found, welch, ranks] =
        counts.map(|count| count.into_inner() as f64 / trials as f64);
    Parts {
        held,
        claimed,
        found,
        welch,
        ranks,
    }
}

fn means(executions: &[Vec<f64>]) -> Vec<f64> {
    let mean = |values: &Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    executions.iter().map(mean).collect()
}

/// Quantiles of Student's distribution for Welch's degrees of freedom, which lie between n - 1 and
/// 2 n - 2, in tenths.
struct Quantiles(Vec<f64>);

impl Quantiles {
    fn new(executions: usize) -> Quantiles {
        let tenths = 0..=20 * executions;
        let quantile = |tenth: usize| student::quantile(0.975, (tenth as f64 / 10.0).max(1.0));
        Quantiles(tenths.map(quantile).collect())
    }
}

fn welch(old: &[f64], new: &[f64], quantiles: &Quantiles) -> bool {
    let moments = |values: &[f64]| {
        let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
        let n = logs.len() as f64;
        let mean = logs.iter().sum::<f64>() / n;
        let squares: f64 = logs.iter().map(|log| (log - mean).powi(2)).sum();
        (n, mean, squares / (n - 1.0) / n)
    };
    let ((n, x, a), (m, y, b)) = (moments(old), moments(new));
    let degrees = (a + b).powi(2) / (a * a / (n - 1.0) + b * b / (m - 1.0));
    (y - x).abs() / (a + b).sqrt() > quantiles.0[(degrees * 10.0) as usize]
}

/// With the normal approximation and its correction for continuity.
fn mann_whitney(old: &[f64], new: &[f64]) -> bool {
    let (n, m) = (old.len() as f64, new.len() as f64);
    let above = |value: &f64| old.iter().filter(|other| *other < value).count();
    let u = new.iter().map(above).sum::<usize>() as f64;
    let deviation = (n * m * (n + m + 1.0) / 12.0).sqrt();
    ((u - n * m / 2.0).abs() - 0.5) / deviation > 1.959_964
}
