//! A list of free blocks for each size, a power of two, with a lock of its own (as the paper's parallel
//! version of the allocator of BSD): requests for different sizes have nothing in common but the end of
//! all blocks, which is needed when a list has none. Blocks stay of their size for good.
//!
//! A block begins with a word that says its size; in a free one the next one follows. Each head is in
//! a page of its own, behind the page that says where the blocks end.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Result, ensure};
use quire_dsm::programs::{WORDS_PER_PAGE, Word};

use super::{Lists, Locks};

/// The least block has 2 to this power words, and there are so many sizes.
const LEAST: u32 = 1;
const SIZES: usize = 16;
/// What the lock of the end is called; the others have their size's number.
const END_LOCK: usize = SIZES;
const END: usize = 0;
const START: usize = (1 + SIZES) * WORDS_PER_PAGE;

/// Blocks in memory that is all zeros at first.
pub struct BySize<'a, L> {
    words: &'a [Word],
    locks: L,
}

impl<'a, L: Locks> BySize<'a, L> {
    pub const fn new(words: &'a [Word], locks: L) -> BySize<'a, L> {
        BySize { words, locks }
    }

    fn get(&self, at: usize) -> usize {
        self.words[at].load(Relaxed) as usize
    }

    fn set(&self, at: usize, value: usize) {
        self.words[at].store(value as u64, Relaxed);
    }

    /// Takes a page, or a block that is larger, from behind all blocks. Says where it begins and ends.
    fn grow(&self, size: usize) -> Result<(usize, usize)> {
        let _held = self.locks.lock(END_LOCK)?;
        let start = self.get(END).max(START);
        let end = start + size.max(WORDS_PER_PAGE);
        ensure!(end <= self.words.len(), "no room");
        self.set(END, end);
        Ok((start, end))
    }
}

fn head(number: usize) -> usize {
    (1 + number) * WORDS_PER_PAGE
}

impl<L: Locks> Lists for BySize<'_, L> {
    fn alloc(&self, words: usize) -> Result<usize> {
        let order = (words + 1).next_power_of_two().ilog2().max(LEAST);
        let number = (order - LEAST) as usize;
        ensure!(number < SIZES, "no block is so large");
        let _held = self.locks.lock(number)?;
        let size = 1 << order;
        let mut block = self.get(head(number));
        if block == 0 {
            let (start, end) = self.grow(size)?;
            for at in (start..end).step_by(size) {
                let next = at + size;
                self.set(at + 1, if next < end { next } else { 0 });
            }
            block = start;
        }
        self.set(head(number), self.get(block + 1));
        self.set(block, number);
        Ok(block + 1)
    }

    fn free(&self, at: usize) -> Result<()> {
        let block = at - 1;
        let number = self.get(block);
        let _held = self.locks.lock(number)?;
        self.set(at, self.get(head(number)));
        self.set(head(number), block);
        Ok(())
    }

    fn extent(&self) -> Result<usize> {
        Ok(self.get(END).max(START))
    }
}
