//! What to spend: from a pilot run, how many executions and measurements make means as
//! precise as is wanted, in the least time (Kalibera and Jones 2013).

use quire_stats::components::Level;
use serde::Serialize;

use crate::judge::{self, Absent, Sample};
use crate::run::Run;
use crate::usage::WALL_TIME;

/// More measurements than this in an execution nobody wants to wait for.
const MOST_MEASUREMENTS: f64 = 1e6;
/// An execution costs at least so much besides its measurements, in seconds.
const LEAST_COST: f64 = 1e-4;

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Half the interval of the mean, as a part of the mean.
    pub precision: f64,
    /// What an execution costs besides its measurements, in seconds; as in the pilot
    /// unless given.
    pub cost_execution: Option<f64>,
    /// What a measurement costs, in seconds; as in the pilot unless given.
    pub cost_measurement: Option<f64>,
}

/// What a pair of benchmark and variant takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// What.
    pub benchmark: String,
    /// How.
    pub variant: String,
    /// Whose mean.
    pub metric: String,
    /// What to spend, or why that is not known.
    pub spend: Result<Spend, String>,
}

/// What to spend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spend {
    /// So many executions.
    pub executions: usize,
    /// So many measurements in each.
    pub measurements: usize,
    /// How long that takes, in seconds.
    pub seconds: f64,
    /// The variance that executions add, in squared units; may be negative.
    pub variance_executions: f64,
    /// The same of measurements within them, where there are several.
    pub variance_measurements: Option<f64>,
    /// What an execution costs besides its measurements, in seconds.
    pub cost_execution: f64,
    /// What a measurement costs, in seconds.
    pub cost_measurement: f64,
    #[serde(skip)]
    levels: Vec<Level>,
    #[serde(skip)]
    mean: f64,
}

/// One number of executions and of measurements for several, which makes the means of all precise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Common {
    /// So many executions of each.
    pub executions: usize,
    /// So many measurements in each.
    pub measurements: usize,
    /// How long that takes, in seconds.
    pub seconds: f64,
}

impl Spend {
    /// What is spent where each execution has so many measurements.
    fn with(&self, measurements: usize, precision: f64) -> Result<usize, Absent> {
        judge::executions(&self.levels, measurements, precision, self.mean)
    }

    /// How long so many executions take.
    fn seconds_of(&self, executions: usize, measurements: usize) -> f64 {
        let measurements = match self.levels.len() {
            1 => 1,
            _ => measurements,
        };
        executions as f64 * (self.cost_execution + measurements as f64 * self.cost_measurement)
    }
}

/// How long all of them take, each with its own numbers, in seconds.
#[must_use]
pub fn seconds(advice: &[Advice]) -> f64 {
    let known = advice.iter().filter_map(|of| of.spend.as_ref().ok());
    known.map(|spend| spend.seconds).sum()
}

/// The numbers that take least time if they are the same for all. Nothing where nothing is known.
#[must_use]
pub fn common(advice: &[Advice], precision: f64) -> Option<Common> {
    let known = advice.iter().filter_map(|of| of.spend.as_ref().ok());
    let known: Vec<&Spend> = known.collect();
    let counts = known.iter().map(|spend| spend.measurements);
    let (least, most) = (counts.clone().min()?, counts.max()?);
    let of = |measurements: usize| {
        let each = known
            .iter()
            .map(|spend| spend.with(measurements, precision));
        let executions = each
            .collect::<Result<Vec<usize>, Absent>>()
            .ok()?
            .into_iter()
            .max()?;
        let seconds = known
            .iter()
            .map(|spend| spend.seconds_of(executions, measurements))
            .sum();
        Some(Common {
            executions,
            measurements,
            seconds,
        })
    };
    // Steps of a tenth: a plan is no more exact than that.
    let next = |count: &usize| Some((count + (count / 10).max(1)).min(most)).filter(|n| n > count);
    let tried = std::iter::successors(Some(least), next).filter_map(of);
    tried.min_by(|a, b| a.seconds.total_cmp(&b.seconds))
}

/// What each pair and metric of a pilot run takes.
#[must_use]
pub fn advise(run: &Run, wish: &Wish) -> Vec<Advice> {
    let mut advice = Vec::new();
    for benchmark in run.benchmarks() {
        for variant in run.variants(benchmark) {
            for metric in run.primary_metrics() {
                let values = run.measurements(benchmark, variant, metric);
                if values.is_empty() {
                    continue;
                }
                let wall = run.measurements(benchmark, variant, WALL_TIME);
                let unit = run.header.metrics.get(metric).map(|m| m.unit.as_str());
                let costs = costs(&values, &wall, unit == Some("s"), wish);
                advice.push(Advice {
                    benchmark: benchmark.into(),
                    variant: variant.into(),
                    metric: metric.into(),
                    spend: spend(values, costs, wish.precision).map_err(|why| why.to_string()),
                });
            }
        }
    }
    advice
}

fn spend(values: judge::Values, costs: Costs, precision: f64) -> Result<Spend, Absent> {
    let sample = Sample::new(values)?;
    let levels = judge::levels(&sample)?;
    let mean = judge::mean(&sample, &judge::settings(1))?.value;
    let best = judge::measurements(&levels, costs.execution, costs.measurement);
    let best = match best {
        Ok(best) => best.round().clamp(1.0, MOST_MEASUREMENTS),
        // Where executions add nothing, those of the pilot are as good as any.
        Err(_) => levels.last().map_or(1.0, |level| level.size.round()),
    };
    let measurements = match levels.len() {
        1 => 1,
        _ => best as usize,
    };
    let executions = judge::executions(&levels, measurements, precision, mean)?;
    let each = costs.execution + measurements as f64 * costs.measurement;
    Ok(Spend {
        executions,
        measurements,
        seconds: executions as f64 * each,
        variance_executions: levels.first().map_or(0.0, |level| level.variance),
        variance_measurements: levels.get(1).map(|level| level.variance),
        cost_execution: costs.execution,
        cost_measurement: costs.measurement,
        levels,
        mean,
    })
}

#[derive(Clone, Copy)]
struct Costs {
    execution: f64,
    measurement: f64,
}

/// What the executions of a pilot cost. Where measurements are times, each costs itself;
/// else they share the time of the run.
fn costs(values: &judge::Values, wall: &judge::Values, are_times: bool, wish: &Wish) -> Costs {
    let average = |values: &judge::Values| {
        let n = values.iter().map(Vec::len).sum::<usize>().max(1);
        values.iter().flatten().sum::<f64>() / n as f64
    };
    let each = values.iter().map(Vec::len).sum::<usize>() as f64 / values.len() as f64;
    let whole = match wall.is_empty() {
        // Of other tools' results nothing else is known.
        true => each * average(values),
        false => average(wall),
    };
    let measurement = match are_times {
        true => average(values).min(whole / each),
        false => whole / each,
    };
    let measurement = wish.cost_measurement.unwrap_or(measurement);
    let besides = (whole - each * measurement).max(LEAST_COST);
    Costs {
        execution: wish.cost_execution.unwrap_or(besides),
        measurement,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Execution, TIME};

    /// A run whose executions differ by `between`, and the measurements within by `within`.
    fn pilot(between: f64, within: f64, measurements: usize) -> Run {
        let mut run = Run::default();
        for n in 0..10 {
            let offset = between * if n % 2 == 0 { 1.0 } else { -1.0 };
            let value = |m: usize| 1.0 + offset + within * [1.0, -1.0][m % 2];
            let values: Vec<f64> = (0..measurements).map(value).collect();
            let wall = vec![2.0 + values.iter().sum::<f64>()];
            run.add(Execution {
                benchmark: "b".into(),
                variant: "v".into(),
                order: n,
                metrics: [(TIME.into(), values), (WALL_TIME.into(), wall)].into(),
                ..Execution::default()
            })
            .unwrap();
        }
        run
    }

    fn spend_of(run: &Run, precision: f64) -> Spend {
        let wish = Wish {
            precision,
            cost_execution: None,
            cost_measurement: None,
        };
        advise(run, &wish)[0].spend.clone().unwrap()
    }

    #[test]
    fn what_varies_is_repeated() {
        let executions_vary = spend_of(&pilot(0.1, 0.01, 20), 0.01);
        assert_eq!(executions_vary.measurements, 1);
        let measurements_vary = spend_of(&pilot(0.01, 0.1, 20), 0.01);
        assert!(measurements_vary.measurements > 5, "{measurements_vary:?}");
        assert!(measurements_vary.executions < executions_vary.executions);
        assert!((executions_vary.cost_execution - 2.0).abs() < 0.01);
    }

    #[test]
    fn ten_times_the_precision_takes_a_hundred_times_the_executions() {
        let run = pilot(0.1, 0.01, 1);
        let (some, more) = (spend_of(&run, 0.01), spend_of(&run, 0.001));
        assert_eq!((some.measurements, more.measurements), (1, 1));
        let times = more.executions as f64 / some.executions as f64;
        assert!((90.0..110.0).contains(&times), "{times}");
        assert!(more.seconds > some.seconds * 80.0);
    }

    #[test]
    fn what_is_the_same_for_all_takes_least_time_and_is_enough_for_each() {
        let (inside, outside) = (pilot(0.005, 0.1, 20), pilot(0.08, 0.01, 20));
        let wish = Wish {
            precision: 0.01,
            cost_execution: None,
            cost_measurement: None,
        };
        let mut all = advise(&inside, &wish);
        all.extend(advise(&outside, &wish));
        let common = common(&all, wish.precision).unwrap();
        for of in &all {
            let spend = of.spend.as_ref().unwrap();
            let needed = spend.with(common.measurements, wish.precision).unwrap();
            assert!(common.executions >= needed, "{common:?} {spend:?}");
        }
        assert!(common.seconds >= seconds(&all));
        let most = |of: fn(&Spend) -> usize| {
            let spends = all.iter().map(|one| of(one.spend.as_ref().unwrap()));
            spends.max().unwrap()
        };
        let (executions, measurements) = (most(|s| s.executions), most(|s| s.measurements));
        let naive = all.iter().map(|one| one.spend.as_ref().unwrap());
        let naive: f64 = naive.map(|s| s.seconds_of(executions, measurements)).sum();
        assert!(common.seconds < 0.5 * naive, "{common:?} {naive}");
    }

    #[test]
    fn one_execution_says_nothing() {
        let mut run = pilot(0.1, 0.1, 3);
        run.executions.truncate(1);
        let wish = Wish {
            precision: 0.01,
            cost_execution: None,
            cost_measurement: None,
        };
        assert!(advise(&run, &wish)[0].spend.is_err());
    }
}
