//! The process that repeats the operation of a benchmark. Nothing but the operation
//! happens between two looks at the clock, and what was measured is told at the end.

use std::time::Instant;

use anyhow::{Context, Result};
use quire_linux::pmu::{Counter, Event};

use crate::cli::{self, usage};
use crate::set::{Benchmark, Class, Work, protocol, size};

/// Seconds that an operation took: the metric that counts.
pub const TIME: &str = "time";
/// Cache misses of an operation as the processor counts them, where it does.
pub const MISSES: &str = "cache_misses";
/// The same by a model of the cache, once for an execution.
pub const MODELLED: &str = "modelled_cache_misses";

/// Repetitions where nobody says.
const REPETITIONS: u32 = 20;

/// Runs a benchmark, reports its repetitions, and checks its result.
///
/// # Errors
/// When it cannot be run, or its result is wrong: then nothing is reported.
pub fn run(options: &cli::WorkloadRun) -> Result<()> {
    let benchmark = Benchmark::find(&options.name).context("no such benchmark")?;
    if let Some(reason) = benchmark.missing() {
        usage(reason);
    }
    let cache = match options.cache_size {
        Some(size) => size,
        None => size::of_cache().unwrap_or_else(|reason| usage(reason)),
    };
    let mut work = benchmark.prepare(cache).context("preparing")?;
    let repetitions = repetitions(options) as usize;
    if benchmark.class() == Class::Repeated {
        repeat(work.as_mut(), 1)?;
    }
    let measured = repeat(work.as_mut(), repetitions)?;
    let modelled = match options.model {
        true => work.modelled_misses()?,
        false => None,
    };
    if options.spoil {
        work.spoil()?;
    }
    work.check().context("the result is wrong")?;
    protocol::report(TIME, &measured.seconds, "s")?;
    protocol::report(MISSES, &measured.misses, "")?;
    protocol::report(MODELLED, modelled.as_slice(), "")
}

/// How many repetitions are asked for: by the option, else by whoever runs the benchmark.
fn repetitions(options: &cli::WorkloadRun) -> u32 {
    let wanted = match std::env::var(protocol::ENV_MEASUREMENTS) {
        Ok(wanted) if options.repetitions.is_none() => wanted,
        _ => return options.repetitions.unwrap_or(REPETITIONS),
    };
    let name = protocol::ENV_MEASUREMENTS;
    let number = wanted.parse().ok().filter(|number| *number > 0);
    number.unwrap_or_else(|| usage(format!("{name}={wanted}: it must be a number above 0")))
}

/// What was measured, repetition by repetition.
struct Measured {
    seconds: Vec<f64>,
    /// Empty where nobody counts them.
    misses: Vec<f64>,
}

/// Room for so many values whose pages are touched here, and not while time is taken.
fn room(values: usize) -> Vec<f64> {
    let mut room = vec![1.0; values];
    room.clear();
    room
}

fn repeat(work: &mut dyn Work, repetitions: usize) -> Result<Measured> {
    let batch = work.batch();
    let (mut seconds, mut misses) = (room(repetitions), room(repetitions));
    let counter = Counter::of_this_thread(Event::CacheMisses).ok();
    let count = || counter.as_ref().and_then(|counter| counter.read().ok());
    for _ in 0..repetitions {
        let before = count();
        let start = Instant::now();
        for _ in 0..batch {
            work.operate()?;
        }
        seconds.push(start.elapsed().as_secs_f64() / f64::from(batch));
        let missed = before.zip(count()).map(|(before, after)| after - before);
        misses.extend(missed.map(|missed| missed as f64 / f64::from(batch)));
    }
    Ok(Measured { seconds, misses })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counted(u32);

    impl Work for Counted {
        fn batch(&self) -> u32 {
            7
        }

        fn operate(&mut self) -> Result<()> {
            self.0 += 1;
            Ok(())
        }

        fn check(&mut self) -> Result<()> {
            Ok(())
        }

        fn spoil(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_measurement_is_of_a_batch() {
        let mut work = Counted::default();
        let measured = repeat(&mut work, 5).unwrap();
        assert_eq!((work.0, measured.seconds.len()), (35, 5));
        assert!(measured.seconds.iter().all(|s| (0.0..0.1).contains(s)));
    }
}
