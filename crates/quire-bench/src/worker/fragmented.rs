//! A process that needs memory where all that is free is in holes of a page.

use anyhow::Result;
use quire_core::units::BASE_PAGE;

use crate::cpu::cpu_seconds;
use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::worker::{Setup, random, seconds};

/// Touches every page, waits a moment, and reads at random.
pub fn run(setup: &Setup) -> Result<Sample> {
    let len = setup.size(512 << 20, 64 << 20);
    let reads = setup.size(20_000_000, 1_000_000);
    let mut sample = Sample::default();
    let mut block = setup.mapping(len)?;
    let fill = seconds(|| block.touch(BASE_PAGE as usize));
    sample.put("fill_ms", fill * 1e3);
    setup.sleep(1000);
    let words = block.words();
    let read = seconds(|| random::read(words, reads));
    sample.put("read_ns", read * 1e9 / reads as f64);
    sample.put("cpu_ms", cpu_seconds() * 1e3);
    let huge = procfs::huge_mapped(std::process::id());
    sample.put_some("huge_mib", huge.map(|bytes| bytes as f64 / MIB));
    Ok(sample)
}
