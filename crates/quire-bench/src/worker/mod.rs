//! Workloads that run in a process of their own, under a variant. Such a
//! process prints its sample as one line of JSON.

mod ballast;
pub mod compete;
mod cycle;
pub mod failed;
mod forks;
pub mod fragmented;
pub mod holes;
mod kernel;
mod matmul;
pub mod micro;
mod populate;
mod promote;
mod random;
mod sparse;
mod system;
mod touch;
pub mod traced;
mod transpose;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quire_core::units::Bytes;

use crate::cgroup::Group;
use crate::cli::{self, Role, Task};
use crate::colours::geometry::Geometry;
use crate::memory::Block;
use crate::results::Sample;
use crate::spec::Workload;
use crate::statpage;

/// What a workload is told.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Small sizes.
    pub quick: bool,
    /// Ask for huge pages with madvise.
    pub madvise: bool,
    /// The memory cgroup of this process.
    pub cgroup: Option<Group>,
}

impl Setup {
    /// Memory as a program gets it under the variant.
    pub fn memory(&self, len: usize) -> Result<Block> {
        let block = Block::malloc(len)?;
        if self.madvise {
            block.advise_huge()?;
        }
        Ok(block)
    }

    /// Zeroed memory from `mmap`, as a program gets it under the variant.
    pub fn mapping(&self, len: usize) -> Result<Block> {
        let block = Block::map(len)?;
        if self.madvise {
            block.advise_huge()?;
        }
        Ok(block)
    }

    /// `full`, or `quick` where sizes are to be small.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Sleeps; shorter where sizes are small.
    pub fn sleep(&self, millis: u64) {
        std::thread::sleep(Duration::from_millis(self.size(millis, millis / 4)));
    }
}

/// Seconds that `work` takes.
pub fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Runs a workload and prints its sample.
pub fn run(options: &cli::Worker) -> Result<()> {
    let cgroup = options.cgroup.as_deref().map(Group::at);
    if options.role == Some(Role::Ballast) {
        return ballast::hold(&cgroup.context("no cgroup")?);
    }
    let setup = Setup {
        quick: options.quick,
        madvise: options.madvise,
        cgroup,
    };
    let mut sample = match options.role {
        Some(Role::Sparse) => compete::sparse(&setup)?,
        Some(Role::Dense) => compete::dense(&setup)?,
        Some(Role::Holes) => return holes::hold(&setup),
        _ => measure(options.workload, &setup)?,
    };
    explain(&mut sample);
    println!("{}", serde_json::to_string(&sample)?);
    Ok(())
}

/// Runs an experiment with frames and prints its sample.
pub fn run_colours(options: &cli::ColoursWorker) -> Result<()> {
    let mut sample = match &options.task {
        Task::Populate { bytes, at_random } => populate::run(Bytes(*bytes), *at_random)?,
        Task::Kernel {
            kernel,
            bytes,
            cache,
        } => {
            let geometry = Geometry::of(cache, options.quick).map_err(anyhow::Error::msg)?;
            kernel::run(*kernel, Bytes(*bytes), &geometry, options)?
        }
    };
    if options.allocation.is_quires() {
        explain_frames(&mut sample)?;
    }
    println!("{}", serde_json::to_string(&sample)?);
    Ok(())
}

/// Adds whose choice the frames were. Where Quire chose none, nothing was measured.
fn explain_frames(sample: &mut Sample) -> Result<()> {
    let session = statpage::session().context("no session of Quire")?;
    let stat = statpage::read(&session, std::process::id());
    let stat = stat.context("Quire kept no statistics page: it managed nothing")?;
    let totals = stat.totals;
    let remarks: Vec<String> = stat.remarks().collect();
    ensure!(
        totals.frames_chosen > 0,
        "Quire chose no frames: {}",
        remarks.join("; ")
    );
    let given = totals.frames_chosen + totals.frames_other + totals.frames_left;
    let chosen = totals.frames_chosen as f64 / given as f64;
    sample.put("chosen_pct", chosen * 100.0);
    sample.notes.extend(remarks);
    Ok(())
}

/// Adds what Quire counted in this process, if it was to manage it.
fn explain(sample: &mut Sample) {
    let Some(session) = statpage::session() else {
        return;
    };
    let Some(stat) = statpage::read(&session, std::process::id()) else {
        sample.note("Quire kept no statistics page: it managed nothing");
        return;
    };
    let totals = stat.totals;
    sample.put("quire_superpages_peak", totals.superpages_peak as f64);
    sample.put("quire_promotions", totals.promotions as f64);
    sample.put("quire_preemptions", totals.preemptions as f64);
    sample.put(
        "quire_failed_reservations",
        totals.failed_reservations as f64,
    );
    sample.put("quire_pager_cpu_ms", totals.pager_cpu_ns as f64 * 1e-6);
    for remark in stat.remarks() {
        sample.note(remark);
    }
}

fn measure(workload: Workload, setup: &Setup) -> Result<Sample> {
    match workload {
        Workload::Touch256m => touch::after_idle(setup),
        Workload::Touch4g => touch::at_once(setup),
        Workload::TouchP999 => touch::single(setup),
        Workload::Random1g => random::run(setup),
        Workload::Sparse4g => sparse::run(setup),
        Workload::Failed => failed::run(setup),
        Workload::Promote => promote::run(setup),
        Workload::Transpose => transpose::run(setup),
        Workload::Matmul => matmul::run(setup),
        Workload::Slowdown => micro::run(setup),
        Workload::Cycle => cycle::run(setup),
        Workload::Fragmented => fragmented::run(setup),
        Workload::Forks => forks::run(setup),
        Workload::Redis | Workload::Compete | Workload::Figure3 => {
            bail!("{} is not a worker", workload.name())
        }
    }
}
