//! Random accesses to a large block: what translation costs when it misses.

use std::hint::black_box;

use anyhow::Result;
use quire_core::units::BASE_PAGE;

use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::worker::{Setup, seconds};

/// Words of one cache line.
const LINE: usize = 8;

/// Reads that do not depend on each other, then a chain of them.
pub fn run(setup: &Setup) -> Result<Sample> {
    let mut block = setup.memory(setup.size(1 << 30, 128 << 20))?;
    block.touch(BASE_PAGE as usize);
    let words = block.words();
    lay_chain(words);
    setup.sleep(1500);
    let reads = setup.size(20_000_000, 1_000_000);
    let steps = setup.size(8_000_000, 500_000);
    let mut sample = Sample::default();
    sample.put(
        "read_ns",
        seconds(|| read(words, reads)) * 1e9 / reads as f64,
    );
    sample.put(
        "chase_ns",
        seconds(|| chase(words, steps)) * 1e9 / steps as f64,
    );
    let huge = procfs::huge_mapped(std::process::id());
    sample.put_some("huge_mib", huge.map(|b| b as f64 / MIB));
    Ok(sample)
}

/// The next line of a walk that visits each of `lines` (a power of two) once:
/// a linear congruential generator of full period.
fn successor(line: usize, lines: usize) -> usize {
    line.wrapping_mul(0x5851_f42d_4c95_7f2d)
        .wrapping_add(0x1405_7b7e_f767_814f)
        & (lines - 1)
}

/// Stores in each cache line which line comes after it.
fn lay_chain(words: &mut [u64]) {
    let lines = words.len() / LINE;
    for (line, chunk) in words.chunks_exact_mut(LINE).enumerate() {
        chunk[0] = successor(line, lines) as u64;
    }
}

/// Reads `count` words that do not depend on each other. The number of words
/// must be a power of two.
pub fn read(words: &[u64], count: usize) {
    let mask = words.len() - 1;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut sum = 0u64;
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        sum = sum.wrapping_add(words[(state >> 16) as usize & mask]);
    }
    black_box(sum);
}

fn chase(words: &[u64], count: usize) {
    let mut line = 1usize;
    for _ in 0..count {
        line = words[line * LINE] as usize;
    }
    black_box(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_visits_every_line_once() {
        let mut words = vec![0; 1024 * LINE];
        lay_chain(&mut words);
        let mut seen = vec![false; 1024];
        let mut line = 1;
        for _ in 0..1024 {
            assert!(!std::mem::replace(&mut seen[line], true));
            line = words[line * LINE] as usize;
        }
        assert_eq!(line, 1);
    }
}
