//! Parallel programs on 1 to 4 nodes (paper 003, Table 3): how much faster they are than on
//! one. Each member is a process; the server is one more, on a node of its own. Beside each
//! are two programs of one node at the same time, with a server each and nothing in common:
//! two nodes of a program gain no more than these, as processors share caches and memory.

use std::thread;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use quire_core::units::BASE_PAGE;

use crate::dsm::orders::Orders;
use crate::dsm::results::{Bound, Results};
use crate::dsm::site::{Site, Waiting};
use crate::dsm::worker::ProgramName;
use crate::dsm::{Part, Plan};

/// The most nodes that compute.
const NODES: usize = 4;
/// Matrix multiplication is so much faster on two nodes, where two processors are twice as
/// fast as one; elsewhere as large a part of what they are.
const LEAST: f64 = 1.8;

/// A program of some size, a quick size, and the paper's speed-up on 2 and 3 machines.
struct Row {
    program: ProgramName,
    size: usize,
    quick: usize,
    paper: [f64; 2],
}

/// Matrices take long: only one of them is measured with `--quick`.
const ROWS: [Row; 6] = [
    row(ProgramName::Matrix, 512, 96, [241.0, 122.0, 80.0]),
    row(ProgramName::Matrix, 1024, 0, [241.0, 122.0, 80.0]),
    row(ProgramName::Matrix, 2048, 0, [241.0, 122.0, 80.0]),
    row(ProgramName::Paths, 200, 30, [60.0, 60.0, 40.0]),
    row(ProgramName::Router, 2000, 50, [277.0, 333.0, 397.0]),
    row(ProgramName::Particles, 20_000, 500, [8.6, 16.1, 23.0]),
];

const fn row(program: ProgramName, size: usize, quick: usize, seconds: [f64; 3]) -> Row {
    Row {
        program,
        size,
        quick,
        paper: [seconds[0] / seconds[1], seconds[0] / seconds[2]],
    }
}

/// Measures all programs.
pub fn measure(site: &Site, plan: Plan, results: &mut Results) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let note = format!(
        "Programs: this machine has {cores} processors, of which the server and the threads that answer faults take their share; more nodes than processors share them."
    );
    results.note(note);
    for row in &ROWS {
        let size = plan.size(row.size, row.quick);
        if size == 0 {
            continue;
        }
        let mut seconds = vec![Vec::new(); NODES];
        let mut apart = Vec::new();
        for _ in 0..plan.rounds {
            for (members, seconds) in (1..).zip(&mut seconds) {
                seconds.push(run(site, row.program, size, members)?);
            }
            apart.push(run_apart(site, row.program, size)?);
        }
        tell(site, row, size, (&seconds, &apart), results);
    }
    Ok(())
}

/// Seconds for two programs of one node at the same time: those of the slower.
fn run_apart(site: &Site, program: ProgramName, size: usize) -> Result<f64> {
    thread::scope(|scope| {
        let other = scope.spawn(|| run(site, program, size, 1));
        let one = run(site, program, size, 1)?;
        let other = other.join().map_err(|_| anyhow!("a program failed"))??;
        Ok(one.max(other))
    })
}

/// Seconds for a program on so many nodes: those of the slowest.
fn run(site: &Site, program: ProgramName, size: usize, members: usize) -> Result<f64> {
    let served = site.serve(Orders::serve(Waiting::Sleeping))?;
    let pages = program.of_size(size).memory(members).0.div_ceil(BASE_PAGE);
    let all = Orders::at(&served, "memory", "member").with("--scheduler", "multi");
    let all = all.with("--program", name(program)).with("--size", size);
    let all = all.with("--room", pages);
    let seconds: Vec<f64> =
        site.together((0..members).map(|me| all.clone().member(me, members)))?;
    Ok(seconds.into_iter().fold(0.0, f64::max))
}

fn name(program: ProgramName) -> String {
    let value = program.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn tell(
    site: &Site,
    row: &Row,
    size: usize,
    (seconds, apart): (&[Vec<f64>], &[f64]),
    results: &mut Results,
) {
    let (part, setting) = (Part::Programs, &site.setting);
    let title = format!("{} {size}", name(row.program));
    let one = seconds[0].clone();
    results.add(part, setting, &format!("{title}, 1 node"), "s", one.clone());
    let pairs = one.iter().zip(apart);
    let limits = pairs.map(|(one, apart)| 2.0 * one / apart).collect();
    let name = format!("{title}, two that share nothing");
    let limit = results.add(part, setting, &name, "", limits);
    for (nodes, seconds) in (2..).zip(&seconds[1..]) {
        let pairs = one.iter().zip(seconds);
        let speedups = pairs.map(|(one, many)| one / many).collect();
        let name = format!("{title}, speed-up on {nodes} nodes");
        let median = results.add(part, setting, &name, "", speedups);
        if let Some(paper) = row.paper.get(nodes - 2) {
            results.paper(format!("{paper:.2}"));
        }
        if row.program == ProgramName::Matrix && nodes == 2 {
            let text = format!("{name} at least {LEAST}");
            results.judge(part, setting, text, median, Bound::AtLeast(LEAST));
            let least = limit.map_or(LEAST, |limit| LEAST * limit.min(2.0) / 2.0);
            let text = format!("{name} at least {least:.2}, as the processors allow");
            results.judge(part, setting, text, median, Bound::AtLeast(least));
        }
    }
}
