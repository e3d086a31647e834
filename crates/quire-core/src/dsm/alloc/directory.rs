//! The directory of a class: one page that lists the class's segments.
//!
//! An entry that is marked says that its segment has free blocks and no owner: the marked
//! entries are the free list of the class. The marks are changed under the class's lock. A
//! mark may be missing or wrong after a crash; the segment's own state decides. All that changes
//! something is for the holder of that lock, and fails when it may have lost it.

use super::class::Class;
use super::map::{Geometry, WORD};
use super::{AllocError, Shared, Word, change, set};
use crate::units::ObjectOffset;

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

impl Entry {
    /// What stands in its slot.
    const fn word(self) -> u64 {
        if self.listed {
            self.page | LISTED
        } else {
            self.page
        }
    }
}

impl<S: Shared> Directory<'_, S> {
    const fn at(&self, index: u64) -> ObjectOffset {
        self.geometry.word(self.page, index)
    }

    fn word(&self, index: u64) -> Word<'_> {
        self.shared.word(self.at(index))
    }

    /// How many slots there are.
    const fn slots(&self) -> u64 {
        self.geometry.page / WORD - SLOTS
    }

    /// Makes it empty.
    pub fn begin(&self) -> Result<(), AllocError> {
        for index in 0..self.geometry.page / WORD {
            set(self.shared, self.at(index), 0)?;
        }
        Ok(())
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

    /// The entry of the segment at a page, which says that it has this slot, if that is true.
    pub fn entry_of(&self, slot: u64, page: u64) -> Option<Entry> {
        let entry = (slot < self.slots()).then(|| self.entry(slot)).flatten();
        entry.filter(|entry| entry.page == page)
    }

    /// A slot without an entry, if there is one.
    pub fn vacant(&self) -> Option<u64> {
        (0..self.slots()).find(|slot| self.entry(*slot).is_none())
    }

    /// Enters a segment, unmarked, where there is no entry.
    pub fn enter(&self, slot: u64, page: u64) -> Result<(), AllocError> {
        if self.word(USED).load() <= slot {
            set(self.shared, self.at(USED), slot + 1)?;
        }
        change(self.shared, self.at(SLOTS + slot), 0, page)
    }

    /// Strikes an entry out.
    pub fn strike(&self, entry: Entry) -> Result<(), AllocError> {
        change(self.shared, self.at(SLOTS + entry.slot), entry.word(), 0)
    }

    /// Marks an entry, or takes the mark away.
    pub fn list(&self, entry: Entry, listed: bool) -> Result<(), AllocError> {
        let to = Entry { listed, ..entry };
        change(
            self.shared,
            self.at(SLOTS + entry.slot),
            entry.word(),
            to.word(),
        )
    }
}
