//! Parallel programs on 1 to 4 nodes (paper 003, Table 3): how much faster they are than on
//! one. Each member is a process; the server is one more, on a node of its own. Beside each
//! are two programs of one node at the same time, with a server each and nothing in common:
//! two nodes of a program gain no more than these, as processors share caches and memory.
//!
//! Where two nodes and a server do not have a processor each, they take it from each other. So
//! matrices are also multiplied on nodes that have half a processor each, whatever the others do.
//!
//! Each process runs its program twice, and the second time counts: it has its memory by then. A
//! virtual machine may get it late from its host, many times slower than from its own kernel.

use std::thread;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use quire_core::units::{BASE_PAGE, Bytes};

use crate::dsm::orders::Orders;
use crate::dsm::results::{Bound, Results};
use crate::dsm::site::{self, Site, Waiting};
use crate::dsm::worker::ProgramName;
use crate::dsm::{Part, Plan};

/// The most nodes that compute.
const NODES: usize = 4;
/// Matrix multiplication is so much faster on two nodes, where two processors are twice as
/// fast as one; elsewhere as large a part of what they are.
const LEAST: f64 = 1.8;

/// Pages as large as this are measured with matrices, too. A larger one would have all of a matrix
/// of 512 rows.
const LARGE: u64 = 1 << 20;

/// Threads that answer faults do not go before others.
const NOT_BEFORE: &str = "--no-realtime";

/// A program with its sizes.
struct Row {
    program: ProgramName,
    size: usize,
    /// With `--quick`; 0 where it is left out then.
    quick: usize,
    /// It has so many rounds for each of the others', as it is short: what else happens meanwhile
    /// is a large part of it.
    times: usize,
    /// Bytes of a page.
    page: u64,
    /// The paper's speed-up on 2 and 3 machines.
    paper: [f64; 2],
}

/// Matrices take long: only one of them is measured with `--quick`.
const ROWS: [Row; 9] = [
    matrix(512, 96, 9, BASE_PAGE),
    matrix(512, 96, 9, LARGE),
    matrix(1024, 0, 3, BASE_PAGE),
    matrix(1024, 0, 3, LARGE),
    matrix(2048, 0, 1, BASE_PAGE),
    matrix(2048, 0, 1, LARGE),
    row(ProgramName::Paths, 200, 30, [60.0, 60.0, 40.0]),
    row(ProgramName::Router, 20_000, 50, [277.0, 333.0, 397.0]),
    row(ProgramName::Particles, 500_000, 500, [8.6, 16.1, 23.0]),
];

const fn matrix(size: usize, quick: usize, times: usize, page: u64) -> Row {
    let usual = row(ProgramName::Matrix, size, quick, [241.0, 122.0, 80.0]);
    Row {
        times,
        page,
        ..usual
    }
}

const fn row(program: ProgramName, size: usize, quick: usize, seconds: [f64; 3]) -> Row {
    Row {
        program,
        size,
        quick,
        times: 1,
        page: BASE_PAGE,
        paper: [seconds[0] / seconds[1], seconds[0] / seconds[2]],
    }
}

/// A program of the size that is measured.
#[derive(Clone, Copy)]
struct Job {
    row: &'static Row,
    size: usize,
}

impl Job {
    /// All that are measured.
    fn all(plan: Plan) -> impl Iterator<Item = Job> {
        let jobs = ROWS.iter().map(move |row| Job {
            row,
            size: plan.size(row.size, row.quick),
        });
        jobs.filter(|job| job.size > 0)
    }

    /// How many rounds it has.
    fn rounds(self, plan: Plan) -> usize {
        plan.rounds as usize * plan.size(self.row.times, 1)
    }

    fn title(self) -> String {
        let Row { program, page, .. } = self.row;
        let title = format!("{} {}", name(*program), self.size);
        match *page {
            BASE_PAGE => title,
            page => format!("{title}, pages of {}", Bytes(page)),
        }
    }

    /// Seconds on so many nodes: those of the slowest.
    fn run(self, site: &Site, members: usize) -> Result<f64> {
        // Who goes before all others takes more than its share.
        let shares = site.has_shares();
        let serve = Orders::serve(Waiting::Sleeping);
        let served = site.serve(serve.with_flag(NOT_BEFORE, shares))?;
        let Row { program, page, .. } = self.row;
        let room = program.of_size(self.size).memory(members);
        let all = Orders::at(&served, "memory", "member").with("--scheduler", "multi");
        let all = all.with("--program", name(*program));
        let all = all.with("--size", self.size);
        let all = all.with("--room", room.0.div_ceil(BASE_PAGE));
        let all = all.with("--page-size", page);
        let all = all.with_flag(NOT_BEFORE, shares).with_flag("--warm", true);
        let seconds: Vec<f64> =
            site.together((0..members).map(|me| all.clone().member(me, members)))?;
        Ok(seconds.into_iter().fold(0.0, f64::max))
    }

    /// Seconds for two of it on one node each at the same time: those of the slower.
    fn run_apart(self, site: &Site) -> Result<f64> {
        thread::scope(|scope| {
            let other = scope.spawn(|| self.run(site, 1));
            let one = self.run(site, 1)?;
            let other = other.join().map_err(|_| anyhow!("a program failed"))??;
            Ok(one.max(other))
        })
    }
}

/// Measures all programs; on this machine's loopback also on nodes that have half a processor.
pub fn measure(site: &Site, plan: Plan, results: &mut Results) -> Result<()> {
    let cores = site::processors();
    let note = format!(
        "Programs: this machine has {cores} processors, of which the server and the threads that answer faults take their share; more nodes than processors share them. Each program ran once before on another object, so that memory is there."
    );
    results.note(note);
    for job in Job::all(plan) {
        let mut seconds = vec![Vec::new(); NODES];
        let mut apart = Vec::new();
        for _ in 0..job.rounds(plan) {
            for (members, seconds) in (1..).zip(&mut seconds) {
                seconds.push(job.run(site, members)?);
            }
            apart.push(job.run_apart(site)?);
        }
        tell(site, job, (&seconds, &apart), results);
    }
    match site.round_trip_us() > 0.0 {
        true => Ok(()),
        false => measure_halves(plan, results),
    }
}

/// Measures matrices on one node and on two that have half a processor each.
fn measure_halves(plan: Plan, results: &mut Results) -> Result<()> {
    let Some(site) = Site::halves(results) else {
        return Ok(());
    };
    let (part, setting) = (Part::Programs, &site.setting);
    for job in Job::all(plan).filter(|job| job.row.program == ProgramName::Matrix) {
        let (mut seconds, mut speedups) = (Vec::new(), Vec::new());
        for _ in 0..job.rounds(plan) {
            let one = job.run(&site, 1)?;
            speedups.push(one / job.run(&site, 2)?);
            seconds.push(one);
        }
        let title = job.title();
        results.add(part, setting, &format!("{title}, 1 node"), "s", seconds);
        let name = format!("{title}, speed-up on 2 nodes");
        let median = results.add(part, setting, &name, "", speedups);
        results.paper(format!("{:.2}", job.row.paper[0]));
        let text = format!("{name} at least {LEAST}");
        results.judge(part, setting, text, median, Bound::AtLeast(LEAST));
    }
    Ok(())
}

fn name(program: ProgramName) -> String {
    let value = program.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn tell(site: &Site, job: Job, (seconds, apart): (&[Vec<f64>], &[f64]), results: &mut Results) {
    let (part, setting) = (Part::Programs, &site.setting);
    let title = job.title();
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
        if let Some(paper) = job.row.paper.get(nodes - 2) {
            results.paper(format!("{paper:.2}"));
        }
        if job.row.program == ProgramName::Matrix && nodes == 2 {
            let text = format!("{name} at least {LEAST}");
            results.judge(part, setting, text, median, Bound::AtLeast(LEAST));
            let least = limit.map_or(LEAST, |limit| LEAST * limit.min(2.0) / 2.0);
            let text = format!("{name} at least {least:.2}, as the processors allow");
            results.judge(part, setting, text, median, Bound::AtLeast(least));
        }
    }
}
