//! The study of paper 002, sections 4 to 6: how much the benchmark set varies, and how
//! fast it is, where the kernel chooses frames, by page colouring, and by bin hopping.
//!
//! | module | holds |
//! |---|---|
//! | [`plan`] | what is run, and in which order |
//! | [`store`] | the file of the results, to which each execution is added |
//! | [`measure`] | one execution |
//! | [`environment`] | the machine, and what of it was not prepared |
//! | [`judge`] | the statistics |
//! | [`paper`] | the percentages of the paper's text, and ours |
//!
//! The figures are drawn from the same file by `quire report`.

mod environment;
mod judge;
mod measure;
mod paper;
mod plan;
mod store;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use quire_lab::run::{Execution, Failure, Line};
use quire_linux::scheduling::{self, Watchdog};

use crate::cli::{Nondeterminism, usage};
use crate::launch::Interrupt;
use crate::nondeterminism::measure::Bench;
use crate::nondeterminism::plan::{Plan, Turn};
use crate::nondeterminism::store::Store;

/// Runs the study, or what is left of it, and prints what it says.
///
/// # Errors
/// When it was interrupted, nothing could be measured, or results cannot be written.
pub fn run(options: &Nondeterminism) -> Result<()> {
    let plan = Plan::of(options).unwrap_or_else(|why| usage(why));
    let bench = Bench::new(&plan).unwrap_or_else(|why| usage(format!("{why:#}")));
    let path = output(options);
    let _watchdog = options
        .realtime
        .then(|| watch().unwrap_or_else(|why| usage(why)));
    let header = environment::header(&plan);
    let mut store = Store::open(&path, header).unwrap_or_else(|why| usage(why));
    println!("{}", plan.describe());
    let ended = execute(&plan, &bench, &mut store);
    if ended.is_ok() && store.run().executions.is_empty() {
        bail!("no execution gave anything");
    }
    println!("{}", path.display());
    ended.context("the results so far are kept: the same command goes on")?;
    paper::print(&judge::Study::of(store.run()), options.realtime);
    println!("quire report {} draws the figures", path.display());
    Ok(())
}

/// Where the results go.
fn output(options: &Nondeterminism) -> PathBuf {
    if let Some(path) = &options.output {
        return path.clone();
    }
    let realtime = if options.realtime { "-realtime" } else { "" };
    let quick = if options.quick { "-quick" } else { "" };
    format!("target/bench/nondeterminism{realtime}{quick}.jsonl").into()
}

/// Puts this thread, which stops what takes too long, before the benchmarks.
fn watch() -> Result<Watchdog, String> {
    Watchdog::above(scheduling::HIGHEST).map_err(|error| {
        let remedy = "run it as root, or raise the limit with `ulimit -r 99`";
        format!("--realtime: scheduling first-in, first-out: {error}: {remedy}")
    })
}

/// Makes the executions that are missing.
fn execute(plan: &Plan, bench: &Bench, store: &mut Store) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let left: Vec<Turn> = plan.turns().filter(|turn| !store.has(turn.order)).collect();
    let progress = ProgressBar::new(left.len() as u64);
    let style = ProgressStyle::with_template("{pos}/{len} [{elapsed}, {eta} left] {msg}")
        .context("progress line")?;
    progress.set_style(style);
    progress.enable_steady_tick(Duration::from_millis(500));
    let ended = left.iter().try_for_each(|turn| {
        let what = format!("{} {}", turn.benchmark.name, turn.variant.name());
        progress.set_message(what.clone());
        let started = now();
        let measured = bench.execute(turn, &interrupt);
        interrupt.check()?;
        if let Err(error) = &measured {
            progress.suspend(|| eprintln!("quire-bench: {what}: {error:#}"));
        }
        progress.inc(1);
        store.add(line(turn, started, measured))
    });
    progress.finish_and_clear();
    ended
}

/// What is kept of an execution.
fn line(turn: &Turn, started: f64, measured: Result<measure::Metrics>) -> Line {
    let benchmark = turn.benchmark.name.clone();
    let variant = turn.variant.name().to_owned();
    match measured {
        Ok(metrics) => Line::Execution(Execution {
            benchmark,
            variant,
            order: turn.order,
            started,
            metrics: metrics.into(),
        }),
        Err(error) => Line::Failure(Failure {
            benchmark,
            variant,
            order: turn.order,
            reason: format!("{error:#}").replace('\n', " "),
            metrics: BTreeMap::new(),
        }),
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |time| time.as_secs_f64())
}
