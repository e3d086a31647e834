//! The two processes that compete for the memory of a group: one touches a
//! page in each superpage and stays, the other comes later and fills what it
//! has. Both check at the end what their memory holds.

use std::io::Read;

use anyhow::{Context, Result};
use quire_core::units::{BASE_PAGE, SUPERPAGE};

use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::worker::{Setup, random, seconds};

/// What the sparse process would like to reserve, what the dense one fills (a
/// power of two), and the limits, each less than both together.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Superpages of which the sparse process touches a page.
    pub sparse_extents: usize,
    /// Bytes that the dense process fills.
    pub dense: usize,
    /// Bytes that the group may hold where there is some room.
    pub roomy: u64,
    /// Bytes that the group may hold where base pages only just fit.
    pub tight: u64,
}

impl Sizes {
    /// The sizes of a run.
    pub const fn of(quick: bool) -> Sizes {
        if quick {
            Sizes {
                sparse_extents: 40,
                dense: 128 << 20,
                roomy: 164 << 20,
                tight: 148 << 20,
            }
        } else {
            Sizes {
                sparse_extents: 150,
                dense: 512 << 20,
                roomy: 656 << 20,
                tight: 576 << 20,
            }
        }
    }
}

/// Writes a number into one word of each `stride` bytes.
fn write(words: &mut [u64], stride: u64) {
    let step = stride as usize / size_of::<u64>();
    for (n, chunk) in words.chunks_mut(step).enumerate() {
        chunk[0] = n as u64 + 1;
    }
}

/// Whether `words` hold what [`write()`] has written, and nothing else in those
/// words that are looked at.
fn intact(words: &[u64], stride: u64) -> bool {
    let step = stride as usize / size_of::<u64>();
    let as_written = |(n, chunk): (usize, &[u64])| chunk[0] == n as u64 + 1;
    words.chunks(step).enumerate().all(as_written)
}

/// Touches, says `ready`, and holds its memory until the standard input ends.
pub fn sparse(setup: &Setup) -> Result<Sample> {
    let extents = Sizes::of(setup.quick).sparse_extents;
    let mut block = setup.mapping(extents * SUPERPAGE as usize)?;
    write(block.words(), SUPERPAGE);
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let mut sample = Sample::default();
    let resident = procfs::resident(std::process::id()).context("resident memory")?;
    sample.put("rss_mib", resident as f64 / MIB);
    sample.put("intact", f64::from(intact(block.words(), SUPERPAGE)));
    Ok(sample)
}

/// Fills its memory, waits until it has the superpages that it will get, and
/// reads.
pub fn dense(setup: &Setup) -> Result<Sample> {
    let len = Sizes::of(setup.quick).dense;
    let reads = setup.size(20_000_000, 1_000_000);
    let mut block = setup.mapping(len)?;
    let words = block.words();
    let mut sample = Sample::default();
    sample.put("fill_ms", seconds(|| write(words, BASE_PAGE)) * 1e3);
    setup.sleep(2000);
    let huge = procfs::huge_mapped(std::process::id());
    sample.put_some("huge_pct", huge.map(|b| b as f64 * 100.0 / len as f64));
    let time = seconds(|| random::read(words, reads));
    sample.put("read_ns", time * 1e9 / reads as f64);
    sample.put("intact", f64::from(intact(words, BASE_PAGE)));
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_recognised() {
        let mut words = vec![0; 4 * 512];
        write(&mut words, BASE_PAGE);
        assert!(intact(&words, BASE_PAGE));
        words[512] = 0;
        assert!(!intact(&words, BASE_PAGE));
    }

    #[test]
    fn the_dense_process_fits_only_without_the_other_ones_reservations() {
        for quick in [false, true] {
            let sizes = Sizes::of(quick);
            let (dense, sparse) = (sizes.dense as u64, sizes.sparse_extents as u64);
            assert!(dense.is_power_of_two());
            for limit in [sizes.roomy, sizes.tight] {
                assert!(dense + sparse * BASE_PAGE < limit);
                assert!(dense + sparse * SUPERPAGE > limit);
            }
        }
    }
}
