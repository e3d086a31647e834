//! A helper process that leaves free memory in holes of one page: it takes
//! memory on locked base pages, gives every second one back, and takes every
//! superpage that is still free.

use std::io::Read;

use anyhow::{Context, Result};

use crate::memory::Block;
use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::worker::Setup;

/// The most that it takes.
const MOST: u64 = 20 << 30;
/// What it leaves to everybody, holes included, where that is less.
const LEFT: u64 = 2 << 30;
/// A step that gets a smaller part of the superpages that it asks for is the
/// last.
const WORTH_IT: f64 = 0.1;

/// How much is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes that become holes. As much again stays between them.
    pub holes: u64,
    /// Bytes that are taken at most, those that become holes included.
    pub most: u64,
    /// Bytes of superpages that are asked for in one step.
    pub step: u64,
}

impl Plan {
    /// What can be done where `available` bytes are to be had; nothing where
    /// that is too little.
    pub fn of(available: u64, quick: bool) -> Option<Plan> {
        let plan = if quick {
            Plan {
                holes: 192 << 20,
                most: (640 << 20).min(available.saturating_sub(LEFT)),
                step: 64 << 20,
            }
        } else {
            Plan {
                holes: 1 << 30,
                most: MOST.min(available.saturating_sub(LEFT)),
                step: 256 << 20,
            }
        };
        (plan.most >= 2 * plan.holes + plan.step).then_some(plan)
    }
}

/// Makes the holes, prints a sample that says how many, and holds what is
/// between them until the standard input ends.
pub fn hold(setup: &Setup) -> Result<()> {
    // If memory runs out all the same, this process is the one to end.
    std::fs::write("/proc/self/oom_score_adj", "1000").context("oom_score_adj")?;
    let available = procfs::meminfo("MemAvailable").context("MemAvailable")?;
    let plan = Plan::of(available, setup.quick).context("not enough memory")?;
    let mut holed = Block::map(2 * plan.holes as usize)?;
    holed.advise_base()?;
    holed.lock()?;
    holed.release_every_second_page()?;
    let superpages = take_superpages(&plan)?;
    let taken: usize = superpages.iter().map(Block::len).sum();
    let mut sample = Sample::default();
    sample.put("holes_mib", plan.holes as f64 / MIB);
    sample.put("held_mib", (plan.holes + taken as u64) as f64 / MIB);
    println!("{}", serde_json::to_string(&sample)?);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Takes superpages, step by step, while the kernel has any.
fn take_superpages(plan: &Plan) -> Result<Vec<Block>> {
    let huge = || procfs::huge_mapped(std::process::id()).context("superpages of this process");
    let mut all = Vec::new();
    let mut left = plan.most - 2 * plan.holes;
    while left >= plan.step {
        let before = huge()?;
        let mut block = Block::map(plan.step as usize)?;
        block.advise_huge()?;
        block.superpage_offsets().for_each(|at| block.touch_at(at));
        all.push(block);
        left -= plan.step;
        let got = huge()?.saturating_sub(before);
        if (got as f64) < plan.step as f64 * WORTH_IT {
            break;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_leaves_memory_to_others() {
        for quick in [false, true] {
            assert_eq!(Plan::of(0, quick), None);
            assert_eq!(Plan::of(LEFT, quick), None);
            for gib in 3..200 {
                let available = gib << 30;
                let Some(plan) = Plan::of(available, quick) else {
                    assert!(gib < 5, "{gib} GiB are enough");
                    continue;
                };
                assert!(plan.most <= MOST && plan.most + LEFT <= available);
                assert!(plan.most >= 2 * plan.holes + plan.step);
            }
        }
    }
}
