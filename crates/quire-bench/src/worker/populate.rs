//! First touches under a strategy for frames: all of a mapping, in order or at random.

use anyhow::{Context, Result};
use quire_core::units::{BASE_PAGE, Bytes};

use crate::cpu::cpu_seconds;
use crate::kernels::Numbers;
use crate::memory::Block;
use crate::procfs;
use crate::results::Sample;
use crate::worker::seconds;

const PAGE: usize = BASE_PAGE as usize;

/// Touches `size` bytes; at random in an order that follows from the number, if there
/// is one.
pub fn run(size: Bytes, at_random: Option<u64>) -> Result<Sample> {
    let pages = size.to_pages().0 as usize;
    // Made before, so that its own first touches are not timed.
    let order = at_random.map(|seed| Numbers::new(seed).shuffled(pages as u32));
    let mut block = Block::map(pages * PAGE)?;
    let (faults, cpu) = (procfs::faults_of_this_thread()?, cpu_seconds());
    let wall = seconds(|| match &order {
        None => block.touch(PAGE),
        Some(order) => order
            .iter()
            .for_each(|page| block.touch_at(*page as usize * PAGE)),
    });
    let cpu = cpu_seconds() - cpu;
    let faults = procfs::faults_of_this_thread()? - faults;
    let faults = u32::try_from(faults).context("so many faults")?.max(1);
    let gib = (pages * PAGE) as f64 / (1u64 << 30) as f64;
    let mut sample = Sample::default();
    sample.put("gib_ms", wall * 1e3 / gib);
    sample.put("cpu_gib_ms", cpu * 1e3 / gib);
    sample.put("page_ns", wall * 1e9 / pages as f64);
    sample.put("fault_ns", wall * 1e9 / f64::from(faults));
    sample.put("pages_per_fault", pages as f64 / f64::from(faults));
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touches_are_counted() {
        for at_random in [None, Some(3)] {
            let sample = run(Bytes::mib(4), at_random).unwrap();
            let metric = |name: &str| sample.metrics[name];
            // One fault for each page, or fewer where the kernel gives more at once; and
            // a few by counting.
            assert!((0.95..=1024.0).contains(&metric("pages_per_fault")));
            let by_page = metric("page_ns") * 1024.0 * 256.0 * 1e-6;
            assert!((by_page / metric("gib_ms") - 1.0).abs() < 1e-6);
        }
    }
}
