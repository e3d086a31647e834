//! Free memory in single pages at random, as on a machine that has run for long: then
//! the kernel's own choice of frames is as good as random.
//!
//! A file in memory is written page by page, and half of its pages are given back at
//! random. The kernel hands single pages out before it divides larger blocks.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use quire_core::units::{BASE_PAGE, Bytes};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::io::pwrite;

use crate::kernels::Numbers;

/// Holds the pages between the free ones until it is dropped.
#[derive(Debug)]
pub struct Scattered {
    _file: OwnedFd,
}

impl Scattered {
    /// Leaves about `free` bytes in single pages, and holds as much.
    pub fn leave(free: Bytes, seed: u64) -> Result<Scattered> {
        let file = memfd_create("scattered", MemfdFlags::CLOEXEC).context("memfd_create")?;
        let pages = u32::try_from(2 * free.to_pages().0).context("too much memory")?;
        let page = vec![1; BASE_PAGE as usize];
        for at in 0..pages {
            pwrite(&file, &page, u64::from(at) * BASE_PAGE).context("filling memory")?;
        }
        let order = Numbers::new(seed).shuffled(pages);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // In an order at random as well: what was freed last goes out first.
        for at in &order[..order.len() / 2] {
            fallocate(&file, punch, u64::from(*at) * BASE_PAGE, BASE_PAGE)
                .context("giving pages back")?;
        }
        Ok(Scattered { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_pages_are_held() {
        let scattered = Scattered::leave(Bytes::mib(1), 3).unwrap();
        let held = rustix::fs::fstat(&scattered._file).unwrap().st_blocks;
        assert_eq!(held * 512, 1 << 20);
    }
}
