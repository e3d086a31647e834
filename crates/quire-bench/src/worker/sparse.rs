//! A program that uses one page in each superpage, under memory pressure: what
//! is held for it in vain, and is it given back?

use std::time::{Duration, Instant};

use anyhow::Result;
use quire_core::units::SUPERPAGE;

use crate::cgroup::Group;
use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::statpage;
use crate::worker::Setup;
use crate::worker::ballast::Ballast;

/// How long a variant has to give memory back.
const PATIENCE: Duration = Duration::from_secs(3);

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

    /// Waits until the charge is at most `goal`, or no longer falls.
    fn settle(&self, goal: u64) -> Result<u64> {
        let start = Instant::now();
        loop {
            let now = self.now()?;
            if now <= goal || start.elapsed() > PATIENCE {
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Touches, squeezes, and says what is left.
pub fn run(setup: &Setup) -> Result<Sample> {
    let len: usize = setup.size(4 << 30, 256 << 20);
    let mut block = setup.memory(len)?;
    let group = setup.cgroup.as_ref();
    let charge = Charge(group);
    let start = charge.now()?;
    block.touch(SUPERPAGE as usize);
    setup.sleep(500);
    let mut sample = Sample::default();
    sample.put("touched_mib", charge.now()? as f64 / MIB);
    // Twice what was touched: further pressure would tell nothing.
    let goal = start + 2 * (len as u64 / 512);
    limit(setup, &charge, goal, &mut sample)?;
    let _ballast = press(setup, &charge, goal, &mut sample)?;
    sample.put("memory_mib", charge.now()? as f64 / MIB);
    sample.put(
        "rss_mib",
        procfs::resident(std::process::id())? as f64 / MIB,
    );
    sample.put_some(
        "usage_mib",
        group.and_then(Group::usage).map(|b| b as f64 / MIB),
    );
    Ok(sample)
}

/// Pressure by the limit of the cgroup.
fn limit(setup: &Setup, charge: &Charge, goal: u64, sample: &mut Sample) -> Result<()> {
    let Some(group) = charge.0 else {
        sample.note("no memory cgroup could be made: resident memory is reported");
        return Ok(());
    };
    if let Err(error) = group.squeeze(setup.size(1 << 30, 64 << 20)) {
        sample.note(format!("the cgroup could not be limited: {error:#}"));
    }
    sample.put("limited_mib", charge.settle(goal)? as f64 / MIB);
    Ok(())
}

/// Pressure by other programs, where the cgroup's limit did not help.
fn press(
    setup: &Setup,
    charge: &Charge,
    goal: u64,
    sample: &mut Sample,
) -> Result<Option<Ballast>> {
    // Only Quire answers to pressure from outside of its cgroup.
    if setup.quick || statpage::session().is_none() || charge.now()? <= goal {
        return Ok(None);
    }
    let ballast = Ballast::start()?;
    charge.settle(goal)?;
    sample.note("memory was also taken by another program");
    Ok(Some(ballast))
}
