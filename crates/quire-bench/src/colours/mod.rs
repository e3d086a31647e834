//! What strategies for frames cost and save (paper 002): first touches under each of
//! them, and conflict misses and time of numerical kernels at half, equal and double
//! the cache.
//!
//! | module | holds |
//! |---|---|
//! | [`allocation`] | who chooses the frames |
//! | [`experiment`] | what is measured |
//! | [`geometry`] | the cache that colours are for |
//! | [`schedule`] | which run comes when |
//! | [`scattered`] | free memory as on a machine that has run for long |
//! | [`wake`] | what it costs here to wake a thread |
//! | [`results`] | samples and their summaries |
//! | [`target`] | what has to be reached, and whether it is |
//! | [`report`] | JSON, CSV, HTML and the table on the terminal |
//!
//! What runs in a process of its own is in [`crate::worker`], the kernels in
//! [`crate::kernels`].

pub mod allocation;
pub mod experiment;
pub mod geometry;
mod report;
mod results;
mod scattered;
mod schedule;
mod target;
mod wake;

use std::time::Instant;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap::error::ErrorKind;
use quire_linux::pmu::{Counter, Event};
use rustix::io::Errno;

use crate::cli::{Cli, Colours};
use crate::colours::geometry::Geometry;
use crate::colours::report::Report;
use crate::colours::results::Results;
use crate::colours::schedule::Plan;
use crate::system::Machine;

/// Runs the experiments and writes the report.
pub fn run(options: &Colours) -> Result<()> {
    let geometry = Geometry::of(&options.cache, options.quick).unwrap_or_else(|why| {
        let usage = Cli::command().error(ErrorKind::ValueValidation, why);
        usage.exit()
    });
    // A directory that cannot be written is found before the minutes, not after.
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("making {}", options.out.display()))?;
    let start = Instant::now();
    let wake_us = wake::cost_us(options.quick)?;
    let plan = Plan::of(options, geometry)?;
    let (runs, ended) = plan.execute()?;
    if runs.is_empty() {
        return ended;
    }
    let results = Results::of(runs);
    let report = Report {
        machine: Machine::read(),
        quick: options.quick,
        rounds: plan.rounds,
        seconds: start.elapsed().as_secs_f64(),
        populated: plan.populated,
        reference: plan.reference,
        geometry: plan.geometry,
        wake_us,
        pmu: pmu(),
        skipped: plan.skipped,
        verdicts: target::judge(&results),
        results,
    };
    let paths = report.write(&options.out)?;
    report.print();
    for path in paths {
        println!("{}", path.display());
    }
    ended.context("the report holds what was measured before")
}

/// What the processor counts of cache misses, in words.
fn pmu() -> String {
    let Err(error) = Counter::of_this_thread(Event::CacheMisses) else {
        return "counts cache misses: of the second level on AMD's processors, of the last level on Intel's".to_owned();
    };
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV) => {
            "none: this machine has no counter of cache misses, as many virtual machines".to_owned()
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            "not allowed: set kernel.perf_event_paranoid to 2 or less".to_owned()
        }
        _ => format!("none: {error}"),
    }
}
