//! Results that are made up, and known.
#![allow(dead_code)]

use quire_lab::run::{Execution, FORMAT, Header, Metric, Run, TIME};
use quire_stats::random::SplitMix64;

/// What made-up results look like.
pub struct Shape {
    pub benchmarks: &'static [&'static str],
    pub executions: usize,
    pub measurements: usize,
    /// How measurements vary within an execution, and executions among themselves, as
    /// parts of the value.
    pub noise: f64,
    pub jumps: f64,
    /// How many times its level a measurement takes, by its place in the execution.
    pub course: fn(usize) -> f64,
    /// The time of each variant, in parts of a second.
    pub variants: &'static [(&'static str, f64)],
    pub seed: u64,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            benchmarks: &["fft", "lu"],
            executions: 6,
            measurements: 8,
            noise: 0.002,
            jumps: 0.03,
            course: |_| 1.0,
            variants: &[("plain", 0.010), ("even", 0.0101), ("slow", 0.020)],
            seed: 7,
        }
    }
}

/// Makes results of this shape, with cache misses that follow the times.
pub fn run(shape: &Shape) -> Run {
    let mut random = SplitMix64::new(shape.seed);
    let mut draw = |width: f64| 1.0 + width * (random.below(2001) as f64 / 1000.0 - 1.0);
    let metric = |unit: &str, primary| Metric {
        unit: unit.into(),
        primary,
        ..Metric::default()
    };
    let metrics = [
        (TIME.to_owned(), metric("s", true)),
        ("cache-misses".to_owned(), metric("", false)),
    ];
    let mut run = Run {
        header: Header {
            format: FORMAT,
            title: "made up".into(),
            seed: 3,
            metrics: metrics.into(),
            environment: [("cpu".to_owned(), "none".to_owned())].into(),
            warnings: vec!["the governor is powersave: sudo cpupower ...".into()],
            ..Header::default()
        },
        ..Run::default()
    };
    for _ in 0..shape.executions {
        for benchmark in shape.benchmarks {
            for (variant, time) in shape.variants {
                let level = time * draw(shape.jumps);
                let times = (0..shape.measurements)
                    .map(|at| level * (shape.course)(at) * draw(shape.noise))
                    .collect();
                let metrics = [
                    (TIME.to_owned(), times),
                    ("cache-misses".to_owned(), vec![(level * 1e8).round()]),
                ];
                let execution = Execution {
                    benchmark: (*benchmark).into(),
                    variant: (*variant).into(),
                    order: run.executions.len() as u64,
                    started: 0.0,
                    metrics: metrics.into(),
                };
                run.add(execution).unwrap();
            }
        }
    }
    run
}
