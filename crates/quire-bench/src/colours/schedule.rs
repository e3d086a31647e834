//! Which run comes when: round by round, and in each every experiment under every
//! allocation, in an order that rotates. What is compared is so measured side by side.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use quire_core::units::Bytes;

use crate::cli::Colours;
use crate::colours::allocation::Allocation;
use crate::colours::experiment::{Experiment, Part};
use crate::colours::geometry::Geometry;
use crate::colours::results::Run;
use crate::colours::scattered::Scattered;
use crate::host;
use crate::launch::{self, Interrupt, Process};
use crate::procfs;
use crate::report::Skipped;
use crate::results::Sample;
use crate::variant::{Environment, Libraries};

/// How long a worker may take.
const LIMIT: Duration = Duration::from_secs(300);
/// The part of what is populated that the host may take meanwhile, as a divisor.
const TOLERATED: u64 = 32;
/// First touches that take longer are not timed again: the host takes memory every two
/// seconds.
const PATIENCE: Duration = Duration::from_secs(4);
/// Free memory in single pages, as a multiple of what a kernel uses, and at least.
const SCATTERED: u64 = 8;
const LEAST_SCATTERED: Bytes = Bytes::mib(32);

/// What is run.
pub struct Plan {
    /// Small sizes.
    pub quick: bool,
    /// How often everything is run.
    pub rounds: u32,
    /// Memory that is populated.
    pub populated: Bytes,
    /// The size whose half, equal and double the kernels use.
    pub reference: Bytes,
    /// The cache that colours are for.
    pub geometry: Geometry,
    /// What is left out.
    pub skipped: Vec<Skipped>,
    experiments: Vec<Experiment>,
    allocations: Vec<Allocation>,
    /// Arguments that say which cache is meant.
    cache_args: Vec<String>,
    libraries: Libraries,
    interrupt: Interrupt,
}

/// The values chosen, each once, or all.
fn chosen<T: ValueEnum + PartialEq + Copy>(asked: &[T]) -> impl Iterator<Item = T> {
    let all = T::value_variants().iter().copied();
    all.filter(move |value| asked.is_empty() || asked.contains(value))
}

impl Plan {
    /// Everything that the options ask for, and that can be had here.
    pub fn of(options: &Colours, geometry: Geometry) -> Result<Plan> {
        let mut allocations: Vec<Allocation> = chosen(&options.strategies).collect();
        // What others are compared with.
        if !allocations.contains(&Allocation::Default) {
            allocations.insert(0, Allocation::Default);
        }
        let libraries = Libraries::find(allocations.iter().any(|a| a.is_quires()));
        let mut skipped = Vec::new();
        if let Some(reason) = libraries.missing() {
            let quires = allocations.iter().filter(|a| a.is_quires());
            skipped.extend(quires.map(|allocation| Skipped {
                what: allocation.name().to_owned(),
                reason: reason.to_owned(),
            }));
            allocations.retain(|allocation| !allocation.is_quires());
        }
        let small = Bytes::mib(if options.quick { 32 } else { 1024 });
        let parts = chosen::<Part>(&options.only);
        Ok(Plan {
            quick: options.quick,
            rounds: options.runs.unwrap_or(if options.quick { 2 } else { 5 }),
            populated: options.size.unwrap_or(small),
            reference: geometry.reference(&options.cache),
            experiments: parts.flat_map(Part::experiments).collect(),
            cache_args: options.cache.to_args(),
            interrupt: Interrupt::listen()?,
            geometry,
            skipped,
            allocations,
            libraries,
        })
    }

    /// Makes all runs. What was measured before the experiment had to stop comes with
    /// the reason.
    pub fn execute(&self) -> Result<(Vec<Run>, Result<()>)> {
        let turns = |round| self.turns(round).len() as u64;
        let progress = ProgressBar::new((0..self.rounds).map(turns).sum());
        let style = ProgressStyle::with_template("{pos}/{len} [{elapsed}, {eta} left] {msg}")
            .context("progress line")?;
        progress.set_style(style);
        progress.enable_steady_tick(Duration::from_millis(500));
        let mut runs = Vec::new();
        let mut turns = (0..self.rounds).flat_map(|round| self.turns(round));
        let ended = turns.try_for_each(|(experiment, allocation, round)| {
            let what = format!("{} {}", experiment.name(), allocation.name());
            progress.set_message(what.clone());
            let run = self.turn(experiment, allocation, round)?;
            if let Some(error) = &run.error {
                progress.suspend(|| eprintln!("quire-bench: {what}: {error}"));
            }
            runs.push(run);
            progress.inc(1);
            Ok(())
        });
        progress.finish_and_clear();
        Ok((runs, ended))
    }

    /// What is run in a round.
    fn turns(&self, round: u32) -> Vec<(Experiment, Allocation, u32)> {
        let mut turns = Vec::new();
        for (number, experiment) in self.experiments.iter().enumerate() {
            let own = self.allocations.iter().copied();
            let mut own: Vec<Allocation> = own.filter(|a| experiment.is_for(*a)).collect();
            let shift = (round as usize + number) % own.len().max(1);
            own.rotate_left(shift);
            turns.extend(own.into_iter().map(|a| (*experiment, a, round)));
        }
        turns
    }

    /// One run, made again where the host disturbed first touches. Fails only where the
    /// whole experiment has to stop.
    fn turn(&self, experiment: Experiment, allocation: Allocation, round: u32) -> Result<Run> {
        let start = Instant::now();
        let bytes = experiment.bytes(self.populated, self.reference);
        let measure = || {
            let sample = self.measure(experiment, allocation, round, bytes);
            self.interrupt.check()?;
            Ok(sample)
        };
        let times_first_touches = !matches!(experiment, Experiment::Kernel(..));
        let (lost, outcome) = match times_first_touches {
            true => {
                let warm_up = || host::warm_up(bytes.0);
                host::undisturbed(bytes.0 / TOLERATED, PATIENCE, warm_up, measure)?
            }
            false => (None, measure()?),
        };
        let (mut sample, error) = match outcome {
            Ok(sample) => (sample, None),
            Err(error) => (Sample::default(), Some(format!("{error:#}"))),
        };
        if error.is_none() {
            sample.put_some("host_took_mib", lost.map(|lost| lost as f64 / procfs::MIB));
        }
        Ok(Run {
            experiment,
            allocation,
            round,
            seconds: start.elapsed().as_secs_f64(),
            sample,
            error,
        })
    }

    /// What a process of its own measures.
    fn measure(
        &self,
        experiment: Experiment,
        allocation: Allocation,
        round: u32,
        bytes: Bytes,
    ) -> Result<Sample> {
        let environment = match allocation.config(&self.geometry.colours) {
            Some(config) => Environment::frames(&self.libraries, &config)?,
            None => Environment::base_pages(),
        };
        let free = Bytes(bytes.0 * SCATTERED).max(LEAST_SCATTERED);
        let _scattered = match allocation {
            Allocation::Aged => Some(Scattered::leave(free, u64::from(round))?),
            _ => None,
        };
        let args = self.args(experiment, allocation, round, bytes);
        let own = launch::own_program()?;
        let command = launch::command(&environment, None, own, args)?;
        let text = Process::start(command)?
            .wait(LIMIT, &self.interrupt)?
            .output()?;
        serde_json::from_str(&text).context("reading the worker's sample")
    }

    /// The arguments of a worker.
    fn args(
        &self,
        experiment: Experiment,
        allocation: Allocation,
        round: u32,
        bytes: Bytes,
    ) -> Vec<String> {
        let mut args = vec!["colours-worker".to_owned()];
        match experiment {
            Experiment::Populate => args.extend(["populate".to_owned(), bytes.0.to_string()]),
            Experiment::PopulateRandom => {
                args.extend(["populate".to_owned(), bytes.0.to_string()]);
                args.push(format!("--at-random={round}"));
            }
            Experiment::Kernel(kernel, _) => {
                args.extend(["kernel", kernel.name()].map(str::to_owned));
                args.push(bytes.0.to_string());
                args.extend_from_slice(&self.cache_args);
            }
        }
        args.push(format!("--allocation={}", allocation.name()));
        if self.quick {
            args.push("--quick".to_owned());
        }
        args
    }
}
