//! What shared memory across machines costs: Tables 1 to 3 of paper 003 (section 7), each
//! with the target that it has.
//!
//! | module | holds |
//! |---|---|
//! | [`site`] | nodes, far from each other or not, and the server on one of them |
//! | [`worker`] | what runs on a node, in a process of its own |
//! | [`floor`] | one userfaultfd round trip and one of a socket: what a fault cannot do without |
//! | [`faults`] | what each kind of fault takes (Table 1) |
//! | [`streams`] | what a program gets that goes through memory in order |
//! | [`raw`] | what a bare TCP stream carries on the same ways |
//! | [`hotspot`] | everybody writes to one page: the cycle, and how fair it is |
//! | [`heap`] | allocating and freeing in the typed heap |
//! | [`lists`] | one list of free blocks by first fit, beside lists by size |
//! | [`messages`] | messages for each fault at a hotspot, counted over the automata |
//! | [`joined`] | the same, counted by real servers that are joined |
//! | [`rounds`] | the same in the paper's rounds |
//! | [`translation`] | contents for machines of other types (Table 2) |
//! | [`copies`] | what copies beyond a socket's cost |
//! | [`programs`] | parallel programs on 1 to 4 nodes (Table 3) |
//! | [`tolerance`] | what leases and heartbeats take of the server's time |
//! | [`results`] | figures, and whether targets are reached |
//! | [`report`] | JSON, Markdown and the table on the terminal |

mod copies;
mod faults;
mod floor;
mod heap;
mod hotspot;
mod joined;
mod lists;
mod messages;
mod orders;
mod programs;
mod raw;
mod report;
mod results;
mod rounds;
mod site;
mod streams;
mod tolerance;
mod translation;
pub mod worker;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;

use crate::cli::Dsm;
use crate::dsm::report::Report;
use crate::dsm::results::Results;
use crate::dsm::site::Site;
use crate::system::Machine;

/// A part of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Zero-fill, protection and remote read faults (Table 1)
    Faults,
    /// Pages in order, and in an order in which none comes ahead
    Streams,
    /// The cycle of a write hotspot, and how fair it is (Table 1)
    Hotspot,
    /// Allocating and freeing in the typed heap, alone and beside another program
    Heap,
    /// One list of free blocks by first fit, beside lists by size (section 7.3)
    Lists,
    /// Messages for each fault at a write hotspot (Table 1)
    Messages,
    /// Translation between machine types (Table 2)
    Translation,
    /// What copies between a socket and memory cost
    Copies,
    /// Parallel programs (Table 3)
    Programs,
    /// What fault tolerance costs the server
    Tolerance,
}

impl Part {
    /// The title in reports.
    pub const fn title(self) -> &'static str {
        match self {
            Part::Faults => "Faults (Table 1)",
            Part::Streams => "Pages in order",
            Part::Hotspot => "Write hotspot (Table 1)",
            Part::Heap => "Typed heap",
            Part::Lists => "Free blocks (section 7.3)",
            Part::Messages => "Messages for each fault at a write hotspot (Table 1)",
            Part::Translation => "Translation of 4 KiB (Table 2)",
            Part::Copies => "Copies between a socket and memory",
            Part::Programs => "Parallel programs (Table 3)",
            Part::Tolerance => "Fault tolerance",
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Rounds, in each of which every variant has its turn.
    pub rounds: u32,
    /// Small sizes.
    pub quick: bool,
}

impl Plan {
    /// A size: the first, or the second where it has to be quick.
    pub const fn size(self, usual: usize, quick: usize) -> usize {
        match self.quick {
            true => quick,
            false => usual,
        }
    }
}

/// Runs the measurements and writes the report.
pub fn run(options: &Dsm) -> Result<()> {
    // A directory that cannot be written is found before the minutes, not after.
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("making {}", options.out.display()))?;
    let start = Instant::now();
    let plan = Plan {
        rounds: options.runs.unwrap_or(if options.quick { 2 } else { 7 }),
        quick: options.quick,
    };
    let mut results = Results::default();
    let ended = measure(options, plan, &mut results);
    if results.figures.is_empty() {
        return ended;
    }
    let report = Report {
        machine: Machine::read(),
        quick: options.quick,
        rounds: plan.rounds,
        seconds: start.elapsed().as_secs_f64(),
        results,
    };
    let paths = report.write(&options.out)?;
    report.print();
    for path in paths {
        println!("{}", path.display());
    }
    ended.context("the report holds what was measured before")
}

fn measure(options: &Dsm, plan: Plan, results: &mut Results) -> Result<()> {
    let wants = |part| options.only.is_empty() || options.only.contains(&part);
    if wants(Part::Messages) {
        messages::measure(results)?;
        if let Some(site) = Site::new(Duration::ZERO, results) {
            joined::measure(&site, plan, results)?;
            rounds::measure(&site, plan, results)?;
        }
    }
    if wants(Part::Translation) {
        translation::measure(plan, results);
    }
    if wants(Part::Copies) {
        copies::measure(plan, results)?;
    }
    let far = [
        Part::Faults,
        Part::Streams,
        Part::Hotspot,
        Part::Heap,
        Part::Lists,
        Part::Programs,
    ];
    if far.into_iter().any(wants) {
        for delay in options.delays() {
            let site = Site::new(Duration::from_micros(delay), results);
            let Some(site) = site else { continue };
            if wants(Part::Faults) {
                faults::measure(&site, plan, results)?;
            }
            if wants(Part::Streams) {
                streams::measure(&site, plan, results)?;
            }
            if wants(Part::Hotspot) {
                hotspot::measure(&site, plan, results)?;
            }
            if wants(Part::Heap) {
                heap::measure(&site, plan, results)?;
            }
            if wants(Part::Lists) {
                lists::measure(&site, plan, results)?;
            }
            if wants(Part::Programs) {
                programs::measure(&site, plan, results)?;
            }
        }
    }
    if wants(Part::Tolerance) {
        tolerance::measure(plan, results)?;
    }
    Ok(())
}
