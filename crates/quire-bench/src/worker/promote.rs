//! Promotion: what it costs, and whether it leaves every page in its frame.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use quire_core::units::{BASE_PAGE, SUPERPAGE};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::memory::{Block, SharedMap};
use crate::procfs;
use crate::results::Sample;
use crate::statpage;
use crate::worker::{Setup, seconds};

const PAGE: usize = BASE_PAGE as usize;
const HUGE: usize = SUPERPAGE as usize;

/// Under Quire: whether frames move when it promotes, and a probe of what the
/// kernel takes for it. Otherwise: the same of anonymous memory.
pub fn run(setup: &Setup) -> Result<Sample> {
    let mut sample = Sample::default();
    let len = setup.size(64 << 20, 16 << 20);
    if statpage::session().is_some() {
        managed(setup, len, &mut sample)?;
        probe_in_place(len, &mut sample)?;
    } else {
        anonymous(len, &mut sample)?;
    }
    Ok(sample)
}

/// Pages that were present before and are in another frame now.
fn moved(before: &[u64], after: &[u64]) -> usize {
    before
        .iter()
        .zip(after)
        .filter(|(b, a)| **b != 0 && b != a)
        .count()
}

fn frames(address: usize, len: usize) -> Result<Vec<u64>> {
    procfs::frames(address, len / PAGE).context("frame numbers are hidden (needs root)")
}

fn median_us(times: &[f64]) -> Option<f64> {
    quire_stats::median(times).map(|s| s * 1e6)
}

/// Touches memory that Quire manages and waits until it has been promoted.
fn managed(setup: &Setup, len: usize, sample: &mut Sample) -> Result<()> {
    let session = statpage::session().context("no session")?;
    let pid = std::process::id();
    let promotions = || statpage::read(&session, pid).map(|s| s.totals.promotions);
    // The page may come with the first memory that is managed.
    let start = promotions().unwrap_or(0);
    let mut block = setup.memory(len)?;
    block.touch(PAGE);
    let before = frames(block.address(), len)?;
    let expected = start + block.superpage_offsets().count() as u64;
    let limit = Duration::from_secs(5);
    let stat = statpage::wait(&session, pid, limit, |s| s.totals.promotions >= expected);
    let promoted = stat
        .context("the statistics page is gone")?
        .totals
        .promotions
        - start;
    ensure!(
        promoted > 0,
        "nothing was promoted within {} s",
        limit.as_secs()
    );
    let after = frames(block.address(), len)?;
    sample.put("moved_pages", moved(&before, &after) as f64);
    sample.put("promotions", promoted as f64);
    Ok(())
}

/// Collapses anonymous memory, which copies it.
fn anonymous(len: usize, sample: &mut Sample) -> Result<()> {
    let mut block = Block::map(len + HUGE)?;
    block.advise_base()?;
    block.touch(PAGE);
    let before = frames(block.address(), block.len())?;
    block.advise_huge()?;
    let mut times = Vec::new();
    for offset in block.superpage_offsets() {
        let mut done = Ok(());
        times.push(seconds(|| done = block.collapse(offset)));
        done?;
    }
    let after = frames(block.address(), block.len())?;
    sample.put_some("promote_us", median_us(&times));
    sample.put("moved_pages", moved(&before, &after) as f64);
    sample.put("promotions", times.len() as f64);
    Ok(())
}

/// Promotes fully populated huge folios of a file in place, without Quire:
/// what the kernel takes for one promotion.
fn probe_in_place(len: usize, sample: &mut Sample) -> Result<()> {
    let file = huge_file(len)?;
    let mut map = SharedMap::on_base_pages(&file, len)?;
    map.touch();
    let before = frames(map.address(), len)?;
    let mut times = Vec::new();
    for offset in (0..len).step_by(HUGE) {
        let mut done = Ok(());
        times.push(seconds(|| done = map.promote(offset)));
        done?;
    }
    let after = frames(map.address(), len)?;
    sample.put_some("promote_us", median_us(&times));
    sample.put("probe_moved_pages", moved(&before, &after) as f64);
    Ok(())
}

/// A file of huge folios on a tmpfs that nobody else sees.
fn huge_file(len: usize) -> Result<std::os::fd::OwnedFd> {
    use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen};
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).context("opening tmpfs")?;
    fsconfig_set_string(&fs, "huge", "always").context("huge=always")?;
    fsconfig_create(&fs).context("making a tmpfs")?;
    let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&mount, ".", flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promotion_in_place_moves_no_page() {
        let mut sample = Sample::default();
        if let Err(error) = probe_in_place(2 * HUGE, &mut sample) {
            eprintln!("skipped, needs root: {error:#}");
            return;
        }
        assert_eq!(sample.metrics["probe_moved_pages"], 0.0);
        assert!(sample.metrics["promote_us"] > 0.0);
    }
}
