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
//! All of it is locked, so that the kernel moves nothing while it may not move
//! locked pages. Whenever the helper is asked to, it does step 6 once more, or gives
//! the holes and what is between them back and makes new ones: 1 to 6.

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
/// what the program that is measured needs four times, and what everybody else
/// has meanwhile: memory is fragmented, and not short.
const HOLES: u64 = 2 << 30;
/// Superpages that stay free while the holes are made, so that nobody is short.
const SPARE: u64 = 512 << 20;
/// Memory that is taken in one step, and of dust.
const STEP: usize = 64 << 20;
const DUST: usize = 4 << 20;
/// What stays free of dust: the kernel begins to reclaim memory below it.
const FLOOR: u64 = 160 << 20;
/// Free superpages that are left in the end, at most: others free some, too.
const TOLERATED: u64 = 1;
/// How long superpages that others free are taken at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// What frees the memory of cached files.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
/// What brings free memory together.
const COMPACT: &str = "/proc/sys/vm/compact_memory";
/// What the helper is told.
pub const AGAIN: &str = "again";
pub const MORE: &str = "more";

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
    let plan = Plan::here(setup.quick)?;
    let mut held = Held::default();
    held.make(plan)?;
    loop {
        println!("{}", serde_json::to_string(&held.sample())?);
        match lines.next().transpose()?.as_deref() {
            Some(MORE) => held.take_rest()?,
            Some(_) => held.make(plan)?,
            None => return Ok(()),
        }
    }
}

/// What is held.
#[derive(Default)]
struct Held {
    /// What holes were made in.
    between: Vec<Block>,
    /// What is free of holes.
    solid: Vec<Block>,
}

impl Held {
    /// Makes the holes, anew where there were some.
    fn make(&mut self, plan: Plan) -> Result<()> {
        self.between.clear();
        // The blocks that were taken first are superpages.
        let spare = (SPARE as usize / STEP).min(self.solid.len());
        self.solid.drain(..spare);
        if plan.all {
            for path in [DROP_CACHES, COMPACT] {
                std::fs::write(path, "1").with_context(|| format!("writing {path}"))?;
            }
            take_superpages(&mut self.solid, 2 * plan.holes + SPARE)?;
        }
        for _ in 0..plan.holes.div_ceil(STEP as u64 / 2) {
            self.between.push(locked(STEP)?);
        }
        if plan.all {
            take_superpages(&mut self.solid, 0)?;
            take_dust(&mut self.solid)?;
        }
        self.between
            .iter_mut()
            .try_for_each(Block::release_every_second_page)?;
        match plan.all {
            true => self.take_rest(),
            false => Ok(()),
        }
    }

    /// Takes the superpages that others have freed, also those that a processor
    /// keeps for itself: it gives them up when memory is compacted. One or two stay.
    /// They and most of the holes are used once, because a host may have to find
    /// memory for what was not, which takes a hundred times as long as to zero it.
    fn take_rest(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            std::fs::write(COMPACT, "1").with_context(|| format!("writing {COMPACT}"))?;
            if free_superpages()? <= TOLERATED || start.elapsed() > PATIENCE {
                break;
            }
            take_superpages(&mut self.solid, 0)?;
        }
        let mut whole = Block::map(STEP)?;
        whole.advise_huge()?;
        whole.superpage_offsets().for_each(|at| whole.touch_at(at));
        let mut pages = Block::map(HOLES as usize / 4 * 3)?;
        pages.advise_base()?;
        pages.touch(BASE_PAGE as usize);
        Ok(())
    }

    /// What there is to say of it.
    fn sample(&self) -> Sample {
        let size = |blocks: &[Block]| blocks.iter().map(|block| block.len() as f64).sum::<f64>();
        let holes = size(&self.between) / 2.0;
        let mut sample = Sample::default();
        sample.put("holes_mib", holes / MIB);
        sample.put("taken_mib", (holes + size(&self.solid)) / MIB);
        sample
    }
}

/// Takes what is free in blocks smaller than a superpage: the kernel gives the
/// smallest first.
fn take_dust(into: &mut Vec<Block>) -> Result<()> {
    loop {
        let free = procfs::free_by_size().context("free blocks")?;
        if free.iter().sum::<u64>() < FLOOR + DUST as u64 {
            return Ok(());
        }
        let block = Block::map(DUST)?;
        block.advise_base()?;
        block.lock()?;
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
        block.lock_present()?;
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
