//! What becomes of a heap that died: its segments go back to their lists, and pages that
//! it was just about to take or give are free again.
//!
//! No crash leaves anything that would be dangerous to use, whatever lock was held: each
//! step takes effect by one store. What is left behind is only space that nobody finds,
//! and it is found here.

use std::collections::BTreeSet;

use super::class::Class;
use super::directory::{Directory, Entry};
use super::map::{Run, Use};
use super::segment::{Segment, State};
use super::{AllocError, Heap, List, Owner, Shared};

impl<S: Shared> Heap<S> {
    /// Who owns segments, alive or dead.
    ///
    /// # Errors
    /// When a lock cannot be had, or the object is damaged.
    pub fn owners(&self) -> Result<BTreeSet<Owner>, AllocError> {
        let mut owners = BTreeSet::new();
        for class in self.classes_of_runs()? {
            let _held = self.shared.lock(List::Class(class))?;
            let Some(directory) = self.existing_directory(class)? else {
                continue;
            };
            for entry in directory.entries() {
                if let State::Owned(owner) = self.segment_at(entry.page)?.state(&self.shared) {
                    owners.insert(owner);
                }
            }
        }
        Ok(owners)
    }

    /// Takes over what dead heaps owned, and pages that belong to nobody because a heap died
    /// when it took them. Their blocks stay in use, because others may use them. It may be
    /// called again, or for heaps that owned nothing.
    ///
    /// # Errors
    /// When a lock cannot be had, or the object is damaged. Then the rest can be done by
    /// another call.
    pub fn recover(&self, dead: &BTreeSet<Owner>) -> Result<(), AllocError> {
        for class in self.classes_of_runs()? {
            let _held = self.shared.lock(List::Class(class))?;
            let directory = self.existing_directory(class)?;
            if let Some(directory) = &directory {
                for entry in directory.entries() {
                    self.relist_after(directory, entry, dead)?;
                }
            }
            self.free_orphans(class, directory.as_ref())?;
        }
        Ok(())
    }

    /// The classes that have pages, whether these are in use or were to be.
    fn classes_of_runs(&self) -> Result<BTreeSet<Class>, AllocError> {
        let _held = self.shared.lock(List::Supply)?;
        let mut classes = BTreeSet::new();
        self.map().each(|run| {
            if let Use::Directory(class) | Use::Segment(class) = run.usage {
                classes.insert(class);
            }
        })?;
        Ok(classes)
    }

    /// Makes the mark of a segment true, and takes it from an owner that is dead. The caller holds
    /// the lock of the class, so nobody alive is giving the segment back.
    fn relist_after(
        &self,
        directory: &Directory<S>,
        entry: Entry,
        dead: &BTreeSet<Owner>,
    ) -> Result<(), AllocError> {
        let segment = self.segment_at(entry.page)?;
        let state = segment.state(&self.shared);
        let ownerless = match state {
            State::Owned(owner) => dead.contains(&owner),
            State::Listed | State::Full | State::Leaving => true,
        };
        if ownerless && segment.change(&self.shared, state, State::Full)? {
            directory.list(entry, false)?;
            self.list_if(directory, segment, 1)?;
        }
        Ok(())
    }

    /// Frees the runs of a class that are not in its directory.
    fn free_orphans(
        &self,
        class: Class,
        directory: Option<&Directory<S>>,
    ) -> Result<(), AllocError> {
        let known: BTreeSet<u64> = directory.map_or_else(BTreeSet::new, |directory| {
            let entries = directory.entries().map(|entry| entry.page);
            entries.chain([directory.page]).collect()
        });
        let _held = self.shared.lock(List::Supply)?;
        let mut orphans: Vec<Run> = Vec::new();
        self.map().each(|run| {
            let ours = [Use::Directory(class), Use::Segment(class)].contains(&run.usage);
            if ours && !known.contains(&run.first) {
                orphans.push(run);
            }
        })?;
        orphans.into_iter().try_for_each(|run| self.map().free(run))
    }

    /// The segment whose control page this is.
    pub(super) fn segment_at(&self, page: u64) -> Result<Segment, AllocError> {
        let run = (page < self.geometry.pages)
            .then(|| self.map().run_at(page))
            .flatten();
        let segment = run.and_then(|run| Segment::of(self.geometry, run));
        segment.ok_or(AllocError::Damaged { page })
    }
}
