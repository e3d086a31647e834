//! Promotion: what it costs, and whether it leaves every page in its frame.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use quire_core::stat::Counter;
use quire_core::units::{BASE_PAGE, SUPERPAGE};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::memory::{Block, SharedMap};
use crate::procfs;
use crate::results::Sample;
use crate::statpage;
use crate::worker::{Setup, seconds};

/// How long a promotion may take to come.
const LIMIT: Duration = Duration::from_secs(5);
const PAGE: usize = BASE_PAGE as usize;
const HUGE: usize = SUPERPAGE as usize;

/// Under Quire: whether frames move when it promotes, and a probe of what the
/// kernel takes for it. Otherwise: the same of anonymous memory.
pub fn run(setup: &Setup) -> Result<Sample> {
    let mut sample = Sample::default();
    let len = setup.size(64 << 20, 16 << 20);
    if statpage::session().is_some() {
        managed(setup, len, &mut sample)?;
        probes(len, &mut sample)?;
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

/// Fills extents but for their last pages, then completes one after the other,
/// so that each is promoted by itself, and asks Quire's counters how long that
/// took.
fn managed(setup: &Setup, len: usize, sample: &mut Sample) -> Result<()> {
    let session = statpage::session().context("no session")?;
    let pid = std::process::id();
    let mut block = setup.memory(len)?;
    let extents: Vec<usize> = block.superpage_offsets().collect();
    let last = HUGE - PAGE;
    for page in (0..last).step_by(PAGE) {
        extents.iter().for_each(|at| block.touch_at(at + page));
    }
    let stat = statpage::open(&session, pid).context("no statistics page")?;
    let count = || stat.page().get(Counter::Promotions);
    let spent = || stat.page().get(Counter::PromotionTime);
    let mut times = Vec::with_capacity(extents.len());
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for at in &extents {
        let (known, before_ns, start) = (count(), spent(), Instant::now());
        let mut held = frames(block.address() + at, HUGE)?;
        // The folio is contiguous, so this is the frame of the page to come.
        held[last / PAGE] = held[0] + (last / PAGE) as u64;
        before.extend(held);
        block.touch_at(at + last);
        // The program goes on while it is promoted.
        while count() == known {
            ensure!(
                start.elapsed() < LIMIT,
                "no promotion within {} s",
                LIMIT.as_secs()
            );
            std::hint::spin_loop();
        }
        ensure!(count() == known + 1, "two promotions at once");
        times.push((spent() - before_ns) as f64 * 1e-9);
        after.extend(frames(block.address() + at, HUGE)?);
    }
    sample.put_some("promote_us", median_us(&times));
    sample.put("moved_pages", moved(&before, &after) as f64);
    sample.put("promotions", times.len() as f64);
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

/// What the kernel takes for one promotion in place, without Quire: by the calls
/// that Quire makes, and by `MADV_COLLAPSE`; in a process with one thread, and
/// with another one running, whose processor must be interrupted.
fn probes(len: usize, sample: &mut Sample) -> Result<()> {
    let file = huge_file(len)?;
    let (by_calls, frames_moved) = probe_in_place(&file, len, |map, at| map.promote(&file, at))?;
    sample.put_some("probe_us", by_calls);
    sample.put("probe_moved_pages", frames_moved as f64);
    let (by_collapse, _) = probe_in_place(&file, len, SharedMap::collapse)?;
    sample.put_some("collapse_us", by_collapse);
    while_running(|| {
        let (by_calls, _) = probe_in_place(&file, len, |map, at| map.promote(&file, at))?;
        sample.put_some("probe_busy_us", by_calls);
        let (by_collapse, _) = probe_in_place(&file, len, SharedMap::collapse)?;
        sample.put_some("collapse_busy_us", by_collapse);
        Ok(())
    })
}

/// Does something while another thread of this process runs.
fn while_running(work: impl FnOnce() -> Result<()>) -> Result<()> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// Promotes fully populated huge folios of a file by `promote`. Returns the
/// median time and how many pages changed their frame.
fn probe_in_place(
    file: impl AsFd,
    len: usize,
    promote: impl Fn(&SharedMap, usize) -> Result<()>,
) -> Result<(Option<f64>, usize)> {
    let mut map = SharedMap::on_base_pages(file, len)?;
    map.touch();
    let before = frames(map.address(), len)?;
    let mut times = Vec::new();
    for offset in (0..len).step_by(HUGE) {
        let mut done = Ok(());
        times.push(seconds(|| done = promote(&map, offset)));
        done?;
    }
    let after = frames(map.address(), len)?;
    Ok((median_us(&times), moved(&before, &after)))
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
        if let Err(error) = probes(2 * HUGE, &mut sample) {
            eprintln!("skipped, needs root: {error:#}");
            return;
        }
        assert_eq!(sample.metrics["probe_moved_pages"], 0.0);
        assert!(sample.metrics["probe_us"] > 0.0);
        assert!(sample.metrics["collapse_us"] > 0.0);
    }
}
