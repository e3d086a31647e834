//! A program that uses one page in each superpage, under memory pressure: what
//! is held for it in vain, and is it given back?

use anyhow::{Context, Result};
use quire_core::units::SUPERPAGE;

use crate::cgroup::Group;
use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::worker::Setup;
use crate::worker::ballast::Ballast;

/// What the limit leaves to a program that is given every page of its memory.
const SLACK: u64 = 256 << 20;

/// What this process is charged for, in bytes.
struct Charge<'a>(Option<&'a Group>);

impl Charge<'_> {
    /// Memory of the program, reserved pages and hugetlb pages included.
    fn now(&self) -> Result<u64> {
        let pid = std::process::id();
        match self.0.and_then(Group::program_memory) {
            Some(charged) => Ok(charged + procfs::hugetlb(pid)),
            None => procfs::resident(pid),
        }
    }
}

/// Touches, squeezes, and says what is left.
pub fn run(setup: &Setup) -> Result<Sample> {
    let len: usize = setup.size(4 << 30, 256 << 20);
    let mut sample = Sample::default();
    let group = setup.cgroup.as_ref();
    let outer = group.and_then(Group::outer);
    if let Some(outer) = &outer {
        outer.limit(len as u64 + SLACK)?;
    } else {
        sample.note("no memory cgroup could be made: resident memory is reported");
    }
    let charge = Charge(group);
    let mut block = setup.memory(len)?;
    block.touch(SUPERPAGE as usize);
    setup.sleep(500);
    sample.put("touched_mib", charge.now()? as f64 / MIB);
    let _ballast = group.map(Ballast::start).transpose()?;
    sample.put("memory_mib", charge.now()? as f64 / MIB);
    let resident = procfs::resident(std::process::id()).context("resident memory")?;
    sample.put("rss_mib", resident as f64 / MIB);
    let mib = |bytes: Option<u64>| bytes.map(|b| b as f64 / MIB);
    sample.put_some("usage_mib", mib(outer.as_ref().and_then(Group::usage)));
    let rival = group.and_then(Group::rival);
    sample.put_some("ballast_mib", mib(rival.and_then(|g| g.program_memory())));
    Ok(sample)
}
