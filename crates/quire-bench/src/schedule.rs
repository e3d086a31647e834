//! Which run comes when: repetition by repetition, and in each of them every
//! workload under every variant, in an order that rotates, so that a slow
//! change of the machine does not favour a variant.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cgroup::OwnedGroup;
use crate::cli::Superpages;
use crate::figure3::Figure3;
use crate::guard;
use crate::host;
use crate::launch::{self, Interrupt, Process};
use crate::procfs;
use crate::report::{self, Report, Skipped};
use crate::results::{Results, Run, Sample, Turn};
use crate::service;
use crate::service::fragmented::Fragmented;
use crate::spec::Workload;
use crate::system::Machine;
use crate::target;
use crate::variant::{Environment, Libraries, Variant};

/// How long a worker may take.
const LIMIT: Duration = Duration::from_secs(300);
/// The part of its footprint that the host may take during a run, as a divisor.
const TOLERATED: u64 = 32;

/// What is run.
struct Plan {
    quick: bool,
    runs: u32,
    workloads: Vec<(Workload, Vec<Variant>)>,
    skipped: Vec<Skipped>,
    libraries: Libraries,
    figure3: Option<Figure3>,
    /// The memory with holes in which the variants of a repetition take turns.
    fragmented: RefCell<Option<Fragmented>>,
    interrupt: Interrupt,
}

/// Runs the superpage experiments and writes the report.
pub fn run(options: &Superpages) -> Result<()> {
    // A directory that cannot be written is found before the hours, not after.
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("making {}", options.out.display()))?;
    guard::start()?;
    let plan = Plan::of(options)?;
    let start = Instant::now();
    let machine = Machine::read();
    let (runs, ended) = plan.execute()?;
    if runs.is_empty() {
        return ended;
    }
    let results = Results::of(runs);
    let judged = target::of(&results);
    let report = Report {
        machine,
        quick: plan.quick,
        repetitions: plan.runs,
        seconds: start.elapsed().as_secs_f64(),
        skipped: plan.skipped,
        verdicts: judged.iter().map(|t| t.judge(&results)).collect(),
        results,
    };
    let paths = report.write(&options.out)?;
    report::table::print(&report);
    for path in paths {
        println!("{}", path.display());
    }
    ended.context("the report holds what was measured before")
}

/// The values chosen, each once, or all.
fn chosen<T: ValueEnum + PartialEq + Copy>(asked: &[T]) -> Vec<T> {
    let all = T::value_variants().iter().copied();
    all.filter(|value| asked.is_empty() || asked.contains(value))
        .collect()
}

impl Plan {
    fn of(options: &Superpages) -> Result<Plan> {
        let variants = chosen(&options.variants);
        let libraries = Libraries::find(variants.iter().any(|v| v.policy().is_some()));
        let mut plan = Plan {
            quick: options.quick,
            runs: options.runs.unwrap_or(if options.quick { 2 } else { 5 }),
            workloads: Vec::new(),
            skipped: Vec::new(),
            libraries,
            figure3: None,
            fragmented: RefCell::new(None),
            interrupt: Interrupt::listen()?,
        };
        let mut present = Vec::new();
        for variant in variants {
            match variant.missing(&plan.libraries) {
                None => present.push(variant),
                Some(reason) => plan.skip(variant.name(), reason),
            }
        }
        for workload in chosen(&options.only) {
            if let Some(reason) = service::missing(workload, options.quick) {
                plan.skip(workload.name(), reason);
                continue;
            }
            if workload == Workload::Figure3 {
                let programs = Figure3::prepare(&options.programs, plan.quick)?;
                for (name, reason) in programs.missing() {
                    plan.skip(name, reason.clone());
                }
                plan.figure3 = Some(programs);
            }
            let own = workload.variants();
            let variants = present
                .iter()
                .copied()
                .filter(|v| own.contains(v))
                .collect();
            plan.workloads.push((workload, variants));
        }
        Ok(plan)
    }

    /// What of a workload takes turns under the variants: the programs of
    /// Figure 3, and everything else as a whole.
    fn parts(&self, workload: Workload) -> Vec<Option<&'static str>> {
        match &self.figure3 {
            Some(programs) if workload == Workload::Figure3 => programs.names().map(Some).collect(),
            _ => vec![None],
        }
    }

    fn skip(&mut self, what: &str, reason: String) {
        let what = what.to_owned();
        self.skipped.push(Skipped { what, reason });
    }

    /// Makes all runs. What was measured before the experiment had to stop
    /// comes with the reason.
    fn execute(&self) -> Result<(Vec<Run>, Result<()>)> {
        let turns = |(w, v): &(Workload, Vec<Variant>)| self.parts(*w).len() * v.len();
        let per_repetition: usize = self.workloads.iter().map(turns).sum();
        let progress = ProgressBar::new(per_repetition as u64 * u64::from(self.runs));
        let style = ProgressStyle::with_template("{pos}/{len} [{elapsed}, {eta} left] {msg}")
            .context("progress line")?;
        progress.set_style(style);
        progress.enable_steady_tick(Duration::from_millis(500));
        let mut runs = Vec::new();
        let ended = (0..self.runs).try_for_each(|n| self.repeat(n, &progress, &mut runs));
        progress.finish_and_clear();
        Ok((runs, ended))
    }

    /// Every workload under every variant, once.
    fn repeat(&self, repetition: u32, progress: &ProgressBar, runs: &mut Vec<Run>) -> Result<()> {
        for (workload, variants) in &self.workloads {
            for (number, part) in self.parts(*workload).into_iter().enumerate() {
                let mut order = variants.clone();
                let shift = (repetition as usize + number) % order.len().max(1);
                order.rotate_left(shift);
                for (position, variant) in order.into_iter().enumerate() {
                    let turn = Turn {
                        workload: *workload,
                        variant,
                        repetition,
                        position,
                        part,
                    };
                    runs.push(self.turn(turn, progress)?);
                    progress.inc(1);
                }
            }
            self.fragmented.take();
        }
        Ok(())
    }

    /// One run, with what the user sees of it.
    fn turn(&self, turn: Turn, progress: &ProgressBar) -> Result<Run> {
        let (workload, variant) = (turn.workload.name(), turn.variant.name());
        let what = format!("{workload} {} {variant}", turn.part.unwrap_or_default());
        progress.set_message(what.clone());
        let run = self.undisturbed(turn)?;
        if let Some(error) = &run.error {
            progress.suspend(|| eprintln!("quire-bench: {what}: {error}"));
        }
        Ok(run)
    }

    /// One run on warm memory. Where first touches are timed and the host of a
    /// virtual machine took free memory away meanwhile, it is made again; the
    /// run that lost least counts, whatever it measured.
    fn undisturbed(&self, turn: Turn) -> Result<Run> {
        let workload = turn.workload;
        let footprint = workload.footprint(self.quick);
        let tolerated = match workload.times_first_touches() {
            true => footprint / TOLERATED,
            false => u64::MAX,
        };
        // What takes turns leaves memory warm for each other.
        let shared = turn.part.is_some() || workload == Workload::Fragmented;
        let warm_up = || match shared && turn.position > 0 {
            true => Ok(()),
            false => host::warm_up(footprint),
        };
        let (lost, mut run) = host::undisturbed(tolerated, LIMIT, warm_up, || self.one(turn))?;
        if let Some(lost) = lost {
            run.sample.put("host_took_mib", lost as f64 / procfs::MIB);
        }
        Ok(run)
    }

    /// One run. Fails only where the whole experiment has to stop.
    fn one(&self, turn: Turn) -> Result<Run> {
        let start = Instant::now();
        let outcome = turn
            .variant
            .prepare(turn.workload, self.quick, &self.libraries)
            .and_then(|e| {
                let mut sample = self.measure(turn, &e)?;
                sample.notes.extend_from_slice(&e.notes);
                Ok(sample)
            });
        self.interrupt.check()?;
        let (sample, error) = match outcome {
            Ok(sample) => (sample, None),
            Err(error) => (Sample::default(), Some(format!("{error:#}"))),
        };
        let seconds = start.elapsed().as_secs_f64();
        Ok(Run {
            turn,
            seconds,
            sample,
            error,
        })
    }

    /// One run in memory with holes, which is made first if it is not there. A
    /// failure may have left anything, so the next one begins anew.
    fn fragmented(&self, setup: service::Setup) -> Result<Sample> {
        let mut fragmented = match self.fragmented.take() {
            Some(fragmented) => fragmented,
            None => Fragmented::start(self.quick, &self.interrupt)?,
        };
        let sample = fragmented.measure(setup)?;
        self.fragmented.replace(Some(fragmented));
        Ok(sample)
    }

    fn measure(&self, turn: Turn, environment: &Environment) -> Result<Sample> {
        let (workload, quick, interrupt) = (turn.workload, self.quick, &self.interrupt);
        let setup = service::Setup {
            environment,
            quick,
            interrupt,
        };
        if let (Some(programs), Some(name)) = (&self.figure3, turn.part) {
            return programs.run(name, setup);
        }
        if workload == Workload::Fragmented {
            return self.fragmented(setup);
        }
        if service::drives(workload) {
            return service::measure(workload, setup);
        }
        let group = match workload {
            Workload::Sparse4g => OwnedGroup::create().ok(),
            _ => None,
        };
        let group = group.as_ref().map(OwnedGroup::program);
        let command = launch::worker(environment, group, workload, None, quick)?;
        let text = Process::start(command)?.wait(LIMIT, interrupt)?.output()?;
        serde_json::from_str(&text).context("reading the worker's sample")
    }
}
