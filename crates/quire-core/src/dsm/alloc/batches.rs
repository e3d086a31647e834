//! The segments that a heap owns: blocks that are not too large are allocated from them without a
//! lock, as taking one is a message.
//!
//! A heap allocates from one segment of a class until that is full, and sets it aside: then it is
//! nobody's. When enough of its blocks are free again, whoever frees them puts it into the list of
//! its class, which takes the lock. But a heap that frees what it has allocated itself would get it
//! from there again with another lock, so it takes the segment back as it is, and keeps it as a
//! *spare* one. Where another heap frees, the segment is listed: who only frees has no use for it.
//!
//! Free blocks of spare segments are there for nobody else. So all of a heap's have a small part of
//! the object at most, and it gives them back when there is no room.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError, TryLockError};

use super::class::Class;
use super::directory::Directory;
use super::segment::{Segment, State};
use super::{AllocError, Heap, List, Shared};
use crate::units::ObjectOffset;

/// The spare segments of a heap have this part of the object's pages at most.
const SPARE_PART: u64 = 32;

/// A segment from which blocks are allocated.
#[derive(Clone, Copy, Debug)]
struct Batch {
    segment: Segment,
    /// Where the search for a free block goes on.
    cursor: u64,
}

/// The segments of a class that a heap owns.
#[derive(Debug, Default)]
pub(super) struct Batches {
    current: Option<Batch>,
    /// They have free blocks.
    spare: Vec<Segment>,
    /// The first pages of those that were set aside when they were full. Others may have them by
    /// now, or they may be gone.
    set_aside: BTreeSet<u64>,
}

impl<S: Shared> Heap<S> {
    fn batches(&self, class: Class) -> MutexGuard<'_, Batches> {
        let batches = self.batches[class.number()].lock();
        batches.unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates from a segment of the heap's own, or from another one, if all are full.
    pub(super) fn take_from_batch(&self, class: Class) -> Result<ObjectOffset, AllocError> {
        let mut batches = self.batches(class);
        loop {
            if let Some(Batch { segment, cursor }) = &mut batches.current {
                if let Some(block) = segment.take(&self.shared, cursor)? {
                    return Ok(block);
                }
                let segment = *segment;
                if self.retire(segment)? {
                    batches.current = None;
                    batches.set_aside.insert(segment.run.first);
                }
            } else {
                let segment = match self.take_spare(&mut batches) {
                    Some(segment) => segment,
                    None => self.under_lock(class, |directory| self.acquire(directory))?,
                };
                batches.current = Some(Batch { segment, cursor: 0 });
            }
        }
    }

    /// Lets a segment of the heap's own go that is full. Returns whether it went: it stays
    /// if blocks were freed by somebody who could not see yet that it is full, so that it
    /// does not get lost.
    fn retire(&self, segment: Segment) -> Result<bool, AllocError> {
        let own = State::Owned(self.owner);
        let gone = segment.change(&self.shared, own, State::Full)?;
        let missed = gone && segment.has_free(&self.shared, self.worthwhile(segment));
        Ok(!(missed && segment.change(&self.shared, State::Full, own)?))
    }

    /// Takes a segment back that this heap has set aside and that has free blocks now, if there may
    /// be one more that is spare. Says whether it need not be listed.
    pub(super) fn retake(&self, segment: Segment) -> Result<bool, AllocError> {
        let mut batches = self.batches(segment.class);
        if !batches.set_aside.remove(&segment.run.first) || !self.may_spare(segment.run.pages) {
            return Ok(false);
        }
        let taken = segment.change(&self.shared, State::Full, State::Owned(self.owner));
        match taken {
            Ok(true) => batches.spare.push(segment),
            // Somebody else was first, or may have been.
            Ok(false) | Err(_) => self.spared(segment),
        }
        taken.map(|_| true)
    }

    /// Whether so many pages more may be those of spare segments; they count as such then.
    fn may_spare(&self, pages: u64) -> bool {
        let most = self.geometry.pages / SPARE_PART;
        let more = |spare: u64| Some(spare + pages).filter(|all| *all <= most);
        self.spare.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// A segment is not a spare one any more.
    fn spared(&self, segment: Segment) {
        self.spare.fetch_sub(segment.run.pages, Relaxed);
    }

    fn take_spare(&self, batches: &mut Batches) -> Option<Segment> {
        let segment = batches.spare.pop()?;
        self.spared(segment);
        Some(segment)
    }

    /// Puts the spare segments of a class back, unless a thread is allocating from it, which uses
    /// them itself. The caller holds the lock of the class.
    pub(super) fn give_spares_back(&self, directory: &Directory<S>) -> Result<(), AllocError> {
        let mut batches = match self.batches[directory.class.number()].try_lock() {
            Ok(batches) => batches,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        while let Some(segment) = batches.spare.last().copied() {
            self.put_back(directory, segment)?;
            self.take_spare(&mut batches);
        }
        Ok(())
    }

    /// Puts the segment back from which blocks of a class are allocated.
    pub(super) fn give_batch_back(&self, class: Class) -> Result<(), AllocError> {
        let mut batches = self.batches(class);
        batches.set_aside.clear();
        if let Some(Batch { segment, .. }) = batches.current {
            let _held = self.shared.lock(List::Class(class))?;
            let directory = self.directory_or_damaged(class)?;
            self.put_back(&directory, segment)?;
            batches.current = None;
        }
        Ok(())
    }
}
