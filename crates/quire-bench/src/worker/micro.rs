//! What the kernel's calls cost that memory management may make dearer: first
//! touches, mappings that come and go, and processes that are made.

use anyhow::Result;
use quire_core::units::BASE_PAGE;

use crate::memory::{Block, fork_and_exec, fork_and_exit};
use crate::results::Sample;
use crate::worker::{Setup, seconds, system};

const PAGE: usize = BASE_PAGE as usize;
const MIB: usize = 1 << 20;

/// Seconds per call of `work`, which is called `count` times.
pub fn each(count: usize, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut result = Ok(());
    let time = seconds(|| result = (0..count).try_for_each(|_| work()));
    result?;
    Ok(time / count as f64)
}

fn map_and_unmap(len: usize) -> Result<()> {
    Block::map(len).map(drop)
}

/// All costs, and the time that processes made in a loop take.
pub fn run(setup: &Setup) -> Result<Sample> {
    let mut sample = Sample::default();
    let spawns = setup.size(300, 30);
    let spawn = each(spawns, || fork_and_exec(c"/bin/true"))?;
    sample.put("spawn_s", spawn * spawns as f64);
    let mut result = Ok(());
    let all = seconds(|| result = costs(setup, &mut sample));
    result?;
    sample.put("micro_s", all);
    system::costs(setup, &mut sample)?;
    Ok(sample)
}

fn costs(setup: &Setup, sample: &mut Sample) -> Result<()> {
    let maps = setup.size(2000, 200);
    let forks = setup.size(100, 10);
    let touch = each(setup.size(8, 2), || {
        Block::map(64 * MIB)?.touch(PAGE);
        Ok(())
    })?;
    sample.put("fault_ns", touch * 1e9 / (64 * MIB / PAGE) as f64);
    sample.put("mmap_64k_us", each(maps, || map_and_unmap(MIB / 16))? * 1e6);
    sample.put("mmap_8m_us", each(maps, || map_and_unmap(8 * MIB))? * 1e6);
    let mut block = Block::map(64 * MIB)?;
    block.touch(PAGE);
    sample.put("fork_us", each(forks, fork_and_exit)? * 1e6);
    sample.put(
        "fork_exec_us",
        each(forks, || fork_and_exec(c"/bin/true"))? * 1e6,
    );
    Ok(())
}
