//! A helper process that leaves free memory in holes of one page, and next to
//! nothing else. What it does, in this order:
//!
//! 1. Cached files are dropped, and the kernel brings free memory together.
//! 2. Superpages are taken until what is left is what the holes need and a
//!    little to work with (*solid*).
//! 3. Superpages are taken for the holes, split, and locked, so that one switch
//!    of the kernel decides whether compaction may move them.
//! 4. The superpages that are still free are taken, and then what is free in
//!    smaller blocks, as base pages (*dust*), but for a little. Only now: the
//!    kernel keeps blocks for its own structures apart, and lets programs have of
//!    them when there is nothing else.
//! 5. Every second page of the holes is given back.
//! 6. The superpages that others have freed meanwhile are taken.
//!
//! It begins anew whenever it is asked to.

use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use quire_core::units::{BASE_PAGE, SUPERPAGE};

use crate::memory::Block;
use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::worker::Setup;

const HUGE: usize = SUPERPAGE as usize;
/// Memory that is given back in holes, and as much is held between them. It is
/// what the program that is measured needs three times, and what everybody else
/// has meanwhile.
const HOLES: u64 = 1536 << 20;
/// Superpages that stay free while the holes are made, so that nobody is short.
const SPARE: u64 = 512 << 20;
/// Memory that is taken in one step, and of dust.
const STEP: usize = 64 << 20;
const DUST: usize = 4 << 20;
/// What stays free of dust: the kernel begins to reclaim memory below it.
const FLOOR: u64 = 160 << 20;
/// Free superpages that are left in the end, at most: others free some, too.
pub const TOLERATED: u64 = 8;
/// How long superpages that others free are taken at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// Switches that free the memory of cached files and bring free memory together.
const TIDY: [&str; 2] = ["/proc/sys/vm/drop_caches", "/proc/sys/vm/compact_memory"];

/// How much is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes that are given back in holes.
    pub holes: u64,
    /// Whether everything else is taken, too.
    pub all: bool,
}

impl Plan {
    /// What can be done where `available` of `total` bytes are to be had, or why
    /// nothing can. Who works on the machine uses more than half of it, or more
    /// than is left in the end.
    pub fn of(available: u64, total: u64, quick: bool) -> Result<Plan> {
        let needed = if quick {
            1 << 30
        } else {
            (2 * HOLES + 2 * SPARE).max(total / 2)
        };
        ensure!(
            available >= needed,
            "{} MiB of memory are available and {} MiB are needed: all that is free is taken (end other programs)",
            available >> 20,
            needed >> 20
        );
        let holes = if quick { 64 << 20 } else { HOLES };
        Ok(Plan { holes, all: !quick })
    }

    /// What can be done on this machine, now.
    pub fn here(quick: bool) -> Result<Plan> {
        let field = |name| procfs::meminfo(name).with_context(|| name.to_owned());
        Plan::of(field("MemAvailable")?, field("MemTotal")?, quick)
    }
}

/// Makes the holes, says so by a sample, and holds what is between them until a
/// line asks for new ones, or the standard input ends.
pub fn hold(setup: &Setup) -> Result<()> {
    // If memory runs out all the same, this process is the one to end.
    std::fs::write("/proc/self/oom_score_adj", "1000").context("oom_score_adj")?;
    let mut lines = std::io::stdin().lock().lines();
    loop {
        let held = make(Plan::here(setup.quick)?)?;
        let mut sample = Sample::default();
        sample.put("holes_mib", held.holes as f64 / MIB);
        sample.put("taken_mib", held.taken as f64 / MIB);
        println!("{}", serde_json::to_string(&sample)?);
        if lines.next().transpose()?.is_none() {
            return Ok(());
        }
    }
}

/// What is held.
struct Held {
    holes: u64,
    taken: u64,
    _blocks: Vec<Block>,
}

fn make(plan: Plan) -> Result<Held> {
    let mut others = Vec::new();
    if plan.all {
        for path in TIDY {
            std::fs::write(path, "1").with_context(|| format!("writing {path}"))?;
        }
        take_superpages(&mut others, 2 * plan.holes + SPARE)?;
    }
    let mut between = Vec::new();
    for _ in 0..plan.holes.div_ceil(STEP as u64 / 2) {
        between.push(locked(STEP)?);
    }
    // Holes that were made before would be filled by what is taken later.
    if plan.all {
        take_superpages(&mut others, 0)?;
        take_dust(&mut others)?;
    }
    between
        .iter_mut()
        .try_for_each(Block::release_every_second_page)?;
    let start = Instant::now();
    while plan.all && free_superpages()? > TOLERATED && start.elapsed() < PATIENCE {
        take_superpages(&mut others, 0)?;
    }
    let size = |blocks: &[Block]| blocks.iter().map(|block| block.len() as u64).sum::<u64>();
    let holes = size(&between) / 2;
    let taken = holes + size(&others);
    others.append(&mut between);
    Ok(Held {
        holes,
        taken,
        _blocks: others,
    })
}

/// Takes what is free in blocks smaller than a superpage: the kernel gives the
/// smallest first.
fn take_dust(into: &mut Vec<Block>) -> Result<()> {
    loop {
        let free = procfs::free_by_size().context("free blocks")?;
        if free.iter().sum::<u64>() < FLOOR + DUST as u64 {
            return Ok(());
        }
        let mut block = Block::map(DUST)?;
        block.advise_base()?;
        block.touch(BASE_PAGE as usize);
        into.push(block);
    }
}

/// Takes superpages until no more than `left` bytes of free ones are left. Where
/// the kernel has one no more, it gives a base page, and it was the last.
fn take_superpages(into: &mut Vec<Block>, left: u64) -> Result<()> {
    let keep = left / SUPERPAGE;
    loop {
        let free = free_superpages()?.saturating_sub(keep);
        if free == 0 {
            return Ok(());
        }
        let len = (free as usize).min(STEP / HUGE) * HUGE;
        // One more, because the block need not begin with one.
        let mut block = Block::map(len + HUGE)?;
        block.advise_huge()?;
        block.superpage_offsets().for_each(|at| block.touch_at(at));
        into.push(block);
        if free_superpages()? >= free + keep {
            return Ok(());
        }
    }
}

fn free_superpages() -> Result<u64> {
    procfs::free_superpages().context("free superpages")
}

/// Takes `len` bytes on locked base pages, which come out of superpages.
fn locked(len: usize) -> Result<Block> {
    let mut block = Block::map(len)?;
    block.advise_huge()?;
    block.superpage_offsets().for_each(|at| block.touch_at(at));
    block.split_superpages()?;
    block.advise_base()?;
    block.lock()?;
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_leaves_memory_to_others() {
        for gib in 0..200 {
            let total = gib << 30;
            for available in [0, total / 3, total / 2, total] {
                let Ok(plan) = Plan::of(available, total, false) else {
                    let needed = (total / 2).max(2 * HOLES + 2 * SPARE);
                    assert!(available < needed, "{available} of {gib} GiB");
                    continue;
                };
                assert!(plan.all && 2 * available >= total);
                assert!(2 * plan.holes + SPARE < available);
            }
            assert_eq!(Plan::of(total, total, true).is_ok(), gib > 0);
        }
    }

    #[test]
    fn every_second_page_of_a_superpage_is_free_memory_again() {
        let Ok(mut block) = locked(8 << 20) else {
            eprintln!("SKIP: memory cannot be locked");
            return;
        };
        block.release_every_second_page().unwrap();
        let pages = block.len() / BASE_PAGE as usize;
        let Some(frames) = procfs::frames(block.address(), pages) else {
            eprintln!("SKIP: frame numbers are hidden (needs root)");
            return;
        };
        let held = |n: usize| frames[n] != 0;
        assert!((0..pages).all(|n| held(n) == (n % 2 == 1)));
    }
}
