//! One list of free blocks, of which the first that is large enough is taken (Knuth's first fit, with
//! boundary tags): blocks of any size, and neighbours that are free become one.
//!
//! A block begins and ends with a word that says how many words it has, and whether it is used. In a
//! free one the next and the last free one follow the first word. The head of the list and the end of
//! all blocks are words of the first page.

use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Result, ensure};
use quire_dsm::programs::{WORDS_PER_PAGE, Word};

use super::{Lists, Locks};

/// Words of the first page.
const HEAD: usize = 0;
const END: usize = 1;
/// Where blocks begin.
const START: usize = WORDS_PER_PAGE;
/// Of a block: its two tags, and in a free one two places.
const TAGS: usize = 2;
const LEAST: usize = 4;
/// The place of a free block's next one, and of the one before it, after its beginning.
const NEXT: usize = 1;
const BEFORE: usize = 2;

/// Blocks in memory that is all zeros at first.
pub struct FirstFit<'a, L> {
    words: &'a [Word],
    locks: L,
}

impl<'a, L: Locks> FirstFit<'a, L> {
    pub const fn new(words: &'a [Word], locks: L) -> FirstFit<'a, L> {
        FirstFit { words, locks }
    }

    fn get(&self, at: usize) -> usize {
        self.words[at].load(Relaxed) as usize
    }

    fn set(&self, at: usize, value: usize) {
        self.words[at].store(value as u64, Relaxed);
    }

    fn end(&self) -> usize {
        self.get(END).max(START)
    }

    /// How many words a block has, and whether it is used, by one of its tags.
    fn tag(&self, at: usize) -> (usize, bool) {
        let tag = self.get(at);
        (tag >> 1, tag & 1 == 1)
    }

    fn set_tags(&self, block: usize, size: usize, is_used: bool) {
        let tag = size << 1 | usize::from(is_used);
        self.set(block, tag);
        self.set(block + size - 1, tag);
    }

    fn link(&self, block: usize) {
        let next = self.get(HEAD);
        self.set(block + NEXT, next);
        self.set(block + BEFORE, 0);
        if next != 0 {
            self.set(next + BEFORE, block);
        }
        self.set(HEAD, block);
    }

    fn unlink(&self, block: usize) {
        let (next, before) = (self.get(block + NEXT), self.get(block + BEFORE));
        match before {
            0 => self.set(HEAD, next),
            before => self.set(before + NEXT, next),
        }
        if next != 0 {
            self.set(next + BEFORE, before);
        }
    }

    /// Takes the end of the first free block that is large enough, or all of it.
    fn take(&self, size: usize) -> Option<usize> {
        let mut block = self.get(HEAD);
        while block != 0 {
            let (has, _) = self.tag(block);
            if has >= size + LEAST {
                self.set_tags(block, has - size, false);
                let taken = block + has - size;
                self.set_tags(taken, size, true);
                return Some(taken);
            }
            if has >= size {
                self.unlink(block);
                self.set_tags(block, has, true);
                return Some(block);
            }
            block = self.get(block + NEXT);
        }
        None
    }

    /// Takes what is behind all blocks, with the last one if that is free.
    fn grow(&self, size: usize) -> Result<usize> {
        let end = self.end();
        let last = (end > START).then(|| self.tag(end - 1));
        let block = match last {
            Some((has, false)) => {
                self.unlink(end - has);
                end - has
            }
            _ => end,
        };
        ensure!(block + size <= self.words.len(), "no room");
        self.set_tags(block, size, true);
        self.set(END, block + size);
        Ok(block)
    }
}

impl<L: Locks> Lists for FirstFit<'_, L> {
    fn alloc(&self, words: usize) -> Result<usize> {
        let size = (words + TAGS).max(LEAST);
        let _held = self.locks.lock(0)?;
        let block = match self.take(size) {
            Some(block) => block,
            None => self.grow(size)?,
        };
        Ok(block + 1)
    }

    fn free(&self, at: usize) -> Result<()> {
        let _held = self.locks.lock(0)?;
        let mut block = at - 1;
        let (mut size, is_used) = self.tag(block);
        ensure!(is_used, "freed twice");
        if block + size < self.end()
            && let (more, false) = self.tag(block + size)
        {
            self.unlink(block + size);
            size += more;
        }
        if block > START
            && let (more, false) = self.tag(block - 1)
        {
            block -= more;
            self.unlink(block);
            size += more;
        }
        self.set_tags(block, size, false);
        self.link(block);
        Ok(())
    }

    fn extent(&self) -> Result<usize> {
        Ok(self.end())
    }
}
