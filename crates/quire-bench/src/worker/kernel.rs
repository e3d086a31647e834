//! A kernel under a strategy for frames: how long a pass takes, and what a model of the
//! cache makes of the addresses that it uses. Both are of one process, one program and
//! the same memory.

use std::time::{Duration, Instant};

use anyhow::Result;
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, VirtAddr};
use quire_linux::pmu::{Counter, Event};

use crate::cli::ColoursWorker;
use crate::colours::geometry::Geometry;
use crate::kernels::access::Silent;
use crate::kernels::{Data, Kernel};
use crate::memory::Block;
use crate::results::Sample;
use crate::worker::traced;

/// Passes are timed for so long, and so many at least and at most.
const TIMED: Duration = Duration::from_millis(100);
const LEAST: usize = 5;
const MOST: usize = 4096;

/// Runs the kernel in memory of `bytes`.
pub fn run(
    kernel: Kernel,
    bytes: Bytes,
    geometry: &Geometry,
    options: &ColoursWorker,
) -> Result<Sample> {
    let len = bytes.0.next_multiple_of(BASE_PAGE);
    let mut block = Block::map(len as usize)?;
    let range = AddrRange::new(VirtAddr(block.address() as u64), Bytes(len));
    let mut data = kernel.lay_out(&mut block);
    let mut sample = Sample::default();
    time(&mut data, options.quick, &mut sample);
    let passes = kernel.traced_passes();
    traced::run(
        &mut data,
        passes,
        range,
        options.allocation,
        geometry,
        &mut sample,
    )?;
    Ok(sample)
}

/// Times passes after one that is not timed, and asks the processor what it counted
/// meanwhile.
fn time(data: &mut Data, quick: bool, sample: &mut Sample) {
    let enough = if quick { TIMED / 20 } else { TIMED };
    // Touched here, so that no memory is new while passes are timed.
    let mut times = vec![1.0; MOST];
    times.clear();
    let counter = Counter::of_this_thread(Event::CacheMisses);
    let counted = || counter.as_ref().ok().and_then(|c| c.read().ok());
    data.pass(&mut Silent);
    let before = counted();
    let start = Instant::now();
    while times.len() < LEAST || (start.elapsed() < enough && times.len() < MOST) {
        let begin = Instant::now();
        data.pass(&mut Silent);
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    let missed = before.zip(counted()).map(|(before, after)| after - before);
    let passes = times.len() as f64;
    sample.put_some("pass_us", quire_stats::median(&times));
    sample.put_some("pmu_misses", missed.map(|missed| missed as f64 / passes));
}
