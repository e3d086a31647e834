//! The directory of a class: one page that lists the class's segments.
//!
//! An entry that is marked says that its segment has free blocks and no owner: the marked
//! entries are the free list of the class. The marks are changed under the class's lock. A
//! mark may be missing or wrong after a crash; the segment's own state decides.

use super::class::Class;
use super::map::{Geometry, WORD};
use super::{Shared, Word};

/// The word that says how many slots were ever in use.
const USED: u64 = 0;
/// The first word with a slot.
const SLOTS: u64 = 8;
/// Marks an entry whose segment has free blocks and no owner.
const LISTED: u64 = 1 << 63;

/// The directory of a class.
pub(super) struct Directory<'a, S> {
    pub shared: &'a S,
    pub class: Class,
    pub geometry: Geometry,
    /// Its page.
    pub page: u64,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its slot.
    pub slot: u64,
    /// The first page of its segment.
    pub page: u64,
    /// Whether it is marked.
    pub listed: bool,
}

impl<S: Shared> Directory<'_, S> {
    fn word(&self, index: u64) -> Word<'_> {
        self.shared.word(self.geometry.word(self.page, index))
    }

    /// How many slots there are.
    const fn slots(&self) -> u64 {
        self.geometry.page / WORD - SLOTS
    }

    /// Makes it empty.
    pub fn begin(&self) {
        for index in 0..self.geometry.page / WORD {
            self.word(index).store(0);
        }
    }

    /// The entries, in the order of their slots.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let used = self.word(USED).load().min(self.slots());
        (0..used).filter_map(|slot| self.entry(slot))
    }

    fn entry(&self, slot: u64) -> Option<Entry> {
        let word = self.word(SLOTS + slot).load();
        (word != 0).then_some(Entry {
            slot,
            page: word & !LISTED,
            listed: word & LISTED != 0,
        })
    }

    /// Whether the segment at a page has this slot.
    pub fn has(&self, slot: u64, page: u64) -> bool {
        slot < self.slots() && self.entry(slot).is_some_and(|entry| entry.page == page)
    }

    /// A slot without an entry, if there is one.
    pub fn vacant(&self) -> Option<u64> {
        (0..self.slots()).find(|slot| self.entry(*slot).is_none())
    }

    /// Enters a segment, unmarked.
    pub fn enter(&self, slot: u64, page: u64) {
        if self.word(USED).load() <= slot {
            self.word(USED).store(slot + 1);
        }
        self.word(SLOTS + slot).store(page);
    }

    /// Strikes an entry out.
    pub fn strike(&self, slot: u64) {
        self.word(SLOTS + slot).store(0);
    }

    /// Marks an entry, or takes the mark away.
    pub fn list(&self, slot: u64, listed: bool) {
        let word = self.word(SLOTS + slot);
        if listed {
            word.fetch_or(LISTED);
        } else {
            word.fetch_and(!LISTED);
        }
    }
}
