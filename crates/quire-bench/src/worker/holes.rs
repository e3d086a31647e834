//! A helper process that leaves free memory in holes of one page: it takes most
//! of the memory, a part of it on locked base pages, of which it then gives every
//! second one back.

use std::io::Read;

use anyhow::{Context, Result};
use quire_core::units::SUPERPAGE;

use crate::memory::Block;
use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::worker::Setup;

const HUGE: usize = SUPERPAGE as usize;
/// What stays available to everybody.
const LEFT: u64 = 3 << 30;
/// The most that is held as it is: holes are dear to make.
const SOLID: u64 = 10 << 30;
/// A step that gets a smaller part of the superpages that it asks for is the
/// last that does: what the kernel finds then, it finds by compaction.
const WORTH_IT: f64 = 0.5;
/// Switches that free the memory of cached files and bring free memory
/// together: what stays in small pieces could be made whole later.
const TIDY: [&str; 2] = ["/proc/sys/vm/drop_caches", "/proc/sys/vm/compact_memory"];

/// How much is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes that are held as they are.
    pub solid: u64,
    /// Bytes that are taken in one step. Half of them are given back in the end.
    pub step: u64,
    /// Steps at most.
    pub steps: u64,
}

impl Plan {
    /// What can be done where `available` bytes are to be had; nothing where
    /// that is too little.
    pub fn of(available: u64, quick: bool) -> Option<Plan> {
        let (solid, step, enough) = if quick {
            (0, 64 << 20, 3)
        } else {
            (SOLID.min(available / 2), 256 << 20, 8)
        };
        let steps = available.saturating_sub(LEFT + solid) / step;
        let steps = if quick { steps.min(enough) } else { steps };
        (steps >= enough).then_some(Plan { solid, step, steps })
    }
}

/// Makes the holes, prints a sample that says how many, and holds what is
/// between them until the standard input ends.
pub fn hold(setup: &Setup) -> Result<()> {
    // If memory runs out all the same, this process is the one to end.
    std::fs::write("/proc/self/oom_score_adj", "1000").context("oom_score_adj")?;
    if !setup.quick {
        for path in TIDY {
            std::fs::write(path, "1").with_context(|| format!("writing {path}"))?;
        }
    }
    let available = procfs::meminfo("MemAvailable").context("MemAvailable")?;
    let plan = Plan::of(available, setup.quick).context("not enough memory")?;
    let _solid = solid(plan.solid as usize)?;
    let mut all = Vec::new();
    let mut ask = true;
    for _ in 0..plan.steps {
        let (block, superpages) = locked(plan.step as usize, ask)?;
        all.push(block);
        ask = superpages as f64 >= plan.step as f64 * WORTH_IT;
    }
    // Holes that were made before would be filled by what is taken later.
    all.iter_mut()
        .try_for_each(Block::release_every_second_page)?;
    let _rest = if setup.quick {
        Vec::new()
    } else {
        rest(plan.step as usize)?
    };
    let half: usize = all.iter().map(|block| block.len() / 2).sum();
    let mut sample = Sample::default();
    sample.put("holes_mib", half as f64 / MIB);
    println!("{}", serde_json::to_string(&sample)?);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Takes `len` bytes of superpages.
fn solid(len: usize) -> Result<Option<Block>> {
    if len == 0 {
        return Ok(None);
    }
    let mut block = Block::map(len / HUGE * HUGE)?;
    block.advise_huge()?;
    block.superpage_offsets().for_each(|at| block.touch_at(at));
    Ok(Some(block))
}

/// Takes the superpages that are still free; what is in holes is not.
fn rest(step: usize) -> Result<Vec<Block>> {
    let mut all = Vec::new();
    for _ in 0..LEFT / step as u64 {
        let before = huge()?;
        all.extend(solid(step)?);
        if (huge()?.saturating_sub(before) as f64) < step as f64 * WORTH_IT {
            break;
        }
    }
    Ok(all)
}

/// Superpages of all processes, in bytes.
fn huge() -> Result<u64> {
    procfs::huge_mapped_by_all().context("superpages of all")
}

/// Takes `len` bytes on locked base pages, which come out of superpages where
/// these are asked for. Says how many bytes of superpages the kernel had.
fn locked(len: usize, ask: bool) -> Result<(Block, u64)> {
    let before = huge()?;
    let mut block = Block::map(len)?;
    let mut got = 0;
    if ask {
        block.advise_huge()?;
        block.superpage_offsets().for_each(|at| block.touch_at(at));
        got = huge()?.saturating_sub(before);
        block.split_superpages()?;
    }
    block.advise_base()?;
    block.lock()?;
    Ok((block, got))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_core::units::BASE_PAGE;

    #[test]
    fn a_plan_leaves_memory_to_others() {
        for quick in [false, true] {
            assert_eq!(Plan::of(0, quick), None);
            assert_eq!(Plan::of(LEFT, quick), None);
            for gib in 3..200 {
                let available = gib << 30;
                let Some(plan) = Plan::of(available, quick) else {
                    assert!(gib < 11, "{gib} GiB are enough");
                    continue;
                };
                let peak = plan.solid + plan.steps * plan.step;
                assert!(peak + LEFT <= available);
                assert!(!quick || peak < 256 << 20);
            }
        }
    }

    #[test]
    fn every_second_page_of_a_superpage_is_free_memory_again() {
        let Ok((mut block, _)) = locked(8 << 20, true) else {
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
