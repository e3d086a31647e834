//! A helper process that leaves free memory in holes of one page: it takes free
//! superpages, splits each into base pages, locks these, and gives every second
//! one back, until no superpage is free.

use std::io::Read;

use anyhow::{Context, Result};

use crate::memory::Block;
use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::worker::Setup;

/// What stays available to everybody.
const LEFT: u64 = 3 << 30;
/// A step that gets a smaller part of the superpages that it asks for is the
/// last.
const WORTH_IT: f64 = 0.1;
/// Switches that free the memory of cached files and bring free memory
/// together: what stays in small pieces could be made whole later.
const TIDY: [&str; 2] = ["/proc/sys/vm/drop_caches", "/proc/sys/vm/compact_memory"];

/// How much is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes that are taken in one step. Half of them stay.
    pub step: u64,
    /// Steps at most.
    pub steps: u64,
}

impl Plan {
    /// What can be done where `available` bytes are to be had; nothing where
    /// that is too little.
    pub fn of(available: u64, quick: bool) -> Option<Plan> {
        let (step, enough) = if quick {
            (64 << 20, 3)
        } else {
            (256 << 20, 16)
        };
        // All steps leave a half, and the last one has not done so yet.
        let steps = available.saturating_sub(LEFT + step) / (step / 2);
        let steps = if quick { steps.min(enough) } else { steps };
        (steps >= enough).then_some(Plan { step, steps })
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
    let mut all = Vec::new();
    for _ in 0..plan.steps {
        let (block, superpages) = holed(plan.step as usize)?;
        all.push(block);
        if (superpages as f64) < plan.step as f64 * WORTH_IT {
            break;
        }
    }
    let half: usize = all.iter().map(|block| block.len() / 2).sum();
    let mut sample = Sample::default();
    sample.put("holes_mib", half as f64 / MIB);
    println!("{}", serde_json::to_string(&sample)?);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Takes `len` bytes and gives every second page back. Says how many bytes of
/// superpages the kernel had for it.
fn holed(len: usize) -> Result<(Block, u64)> {
    let mut block = Block::map(len)?;
    block.advise_huge()?;
    block.superpage_offsets().for_each(|at| block.touch_at(at));
    let huge = procfs::huge_mapped(std::process::id()).context("own superpages")?;
    block.split_superpages()?;
    block.advise_base()?;
    block.lock()?;
    block.release_every_second_page()?;
    Ok((block, huge))
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
                    assert!(gib < 6, "{gib} GiB are enough");
                    continue;
                };
                let peak = (plan.steps + 1) * plan.step / 2;
                assert!(peak + LEFT <= available);
                assert!(!quick || peak < 256 << 20);
            }
        }
    }

    #[test]
    fn every_second_page_of_a_superpage_is_free_memory_again() {
        let Ok((block, _)) = holed(8 << 20) else {
            eprintln!("SKIP: memory cannot be locked");
            return;
        };
        let pages = block.len() / BASE_PAGE as usize;
        let Some(frames) = procfs::frames(block.address(), pages) else {
            eprintln!("SKIP: frame numbers are hidden (needs root)");
            return;
        };
        let held = |n: usize| frames[n] != 0;
        assert!((0..pages).all(|n| held(n) == (n % 2 == 1)));
    }
}
