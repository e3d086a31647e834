//! Keeps the host of a virtual machine out of what is measured. It takes free memory
//! away, and touching such memory again is ten times as slow.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::{memory, procfs};

/// How often a run is made at most when the host took memory during it.
const ATTEMPTS: u32 = 3;

/// Touches as much memory as a run will need, in bytes, and a little more.
pub fn warm_up(footprint: u64) -> Result<()> {
    let wanted = footprint + footprint / 8 + (64 << 20);
    let available = procfs::meminfo("MemAvailable").unwrap_or(0);
    memory::warm_up(wanted.min(available / 2) as usize).context("warming the memory up")
}

/// Makes a run again while the host took more than `tolerated` bytes during it. The run
/// that lost least counts, whatever it measured, and is returned with what it lost,
/// where the kernel says that. `prepare` comes before each. A run that takes longer than
/// `patience` is not made again: the host would come again, too.
pub fn undisturbed<T>(
    tolerated: u64,
    patience: Duration,
    mut prepare: impl FnMut() -> Result<()>,
    mut run: impl FnMut() -> Result<T>,
) -> Result<(Option<u64>, T)> {
    let mut best: Option<(Option<u64>, T)> = None;
    for _ in 0..ATTEMPTS {
        prepare()?;
        let start = Instant::now();
        let before = procfs::taken_by_host();
        let made = run()?;
        let after = procfs::taken_by_host();
        let lost = before.zip(after).map(|(b, a)| a.saturating_sub(b));
        if best.as_ref().is_none_or(|(least, _)| lost < *least) {
            best = Some((lost, made));
        }
        if lost.unwrap_or(0) <= tolerated || start.elapsed() > patience {
            break;
        }
    }
    best.context("no run was made")
}
