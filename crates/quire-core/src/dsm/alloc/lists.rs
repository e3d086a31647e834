//! The free lists: how a heap takes segments from the list of a class and puts them back,
//! and how segments come and go.

use std::ops::Range;

use super::class::Class;
use super::directory::{Directory, Entry};
use super::map::Use;
use super::segment::{self, Segment, State};
use super::{AllocError, Heap, List, Shared, change};
use crate::dsm::types::TypeTag;
use crate::units::ObjectOffset;

/// Each time that a class has so many segments more, new ones are twice as large.
const SEGMENTS_PER_DOUBLING: u64 = 4;
/// How often segments double at most.
const MOST_DOUBLINGS: u64 = 20;

impl<S: Shared> Heap<S> {
    /// Does something with a class's directory while its lock is held; and once more, if
    /// there was no room, after segments without blocks in use were given back.
    pub(super) fn under_lock<T>(
        &self,
        class: Class,
        action: impl Fn(&Directory<S>) -> Result<Option<T>, AllocError>,
    ) -> Result<T, AllocError> {
        let attempt = || {
            let _held = self.shared.lock(List::Class(class))?;
            match self.directory(class)? {
                Some(directory) => action(&directory),
                None => Ok(None),
            }
        };
        if let Some(done) = attempt()? {
            return Ok(done);
        }
        self.reclaim()?;
        attempt()?.ok_or(AllocError::NoRoom(class))
    }

    /// The directory of a class, if it has one.
    pub(super) fn existing_directory(
        &self,
        class: Class,
    ) -> Result<Option<Directory<'_, S>>, AllocError> {
        let header = self.shared.word(self.geometry.directory_of(class));
        let page = header.load();
        if page == 0 {
            return Ok(None);
        }
        let run = (page < self.geometry.pages)
            .then(|| self.map().run_at(page))
            .flatten();
        match run {
            Some(run) if run.usage == Use::Directory(class) => {
                Ok(Some(self.directory_at(class, page)))
            }
            _ => Err(AllocError::Damaged { page }),
        }
    }

    fn directory_at(&self, class: Class, page: u64) -> Directory<'_, S> {
        Directory {
            shared: &self.shared,
            class,
            geometry: self.geometry,
            page,
        }
    }

    /// The directory of a class that has segments.
    pub(super) fn directory_or_damaged(
        &self,
        class: Class,
    ) -> Result<Directory<'_, S>, AllocError> {
        let directory = self.existing_directory(class)?;
        directory.ok_or(AllocError::Damaged { page: 0 })
    }

    /// The directory of a class, which is made if it has none; `None` without room. The
    /// caller holds the lock of the class.
    fn directory(&self, class: Class) -> Result<Option<Directory<'_, S>>, AllocError> {
        if let Some(directory) = self.existing_directory(class)? {
            return Ok(Some(directory));
        }
        let Some(page) = self.map().take(Use::Directory(class), 1, 0)? else {
            return Ok(None);
        };
        let directory = self.directory_at(class, page);
        let range = self.geometry.start(page)..self.geometry.start(page + 1);
        if let Err(refused) = self.tag(range, TypeTag::Int64) {
            self.give(page)?;
            return Err(refused);
        }
        directory.begin()?;
        self.geometry.publish(&self.shared, page)?;
        change(&self.shared, self.geometry.directory_of(class), 0, page)?;
        self.geometry.publish(&self.shared, 0)?;
        Ok(Some(directory))
    }

    /// Gives pages that were just taken a tag.
    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), AllocError> {
        if !self.shared.is_sure() {
            return Err(AllocError::TakenForDead);
        }
        Ok(self.shared.tag(range, tag)?)
    }

    /// Gives the run that begins at a page back.
    fn give(&self, page: u64) -> Result<(), AllocError> {
        let run = self.map().run_at(page);
        self.map().give(run.ok_or(AllocError::Damaged { page })?)
    }

    /// Allocates one block from a segment of the list. The caller holds the lock.
    pub(super) fn take_one(
        &self,
        directory: &Directory<S>,
    ) -> Result<Option<ObjectOffset>, AllocError> {
        let Some(segment) = self.acquire(directory)? else {
            return Ok(None);
        };
        let block = segment.take(&self.shared, &mut 0)?;
        self.put_back(directory, segment)?;
        Ok(block)
    }

    /// Takes a segment with free blocks from the list, or makes one. The caller holds the
    /// lock.
    pub(super) fn acquire(&self, directory: &Directory<S>) -> Result<Option<Segment>, AllocError> {
        for entry in directory.entries().filter(|entry| entry.listed) {
            let segment = self.segment_at(entry.page)?;
            let own = State::Owned(self.owner);
            let acquired = segment.change(&self.shared, State::Listed, own)?;
            directory.list(entry, false)?;
            if acquired {
                return Ok(Some(segment));
            }
        }
        self.grow(directory)
    }

    /// Makes a segment of the heap's own. The caller holds the lock.
    fn grow(&self, directory: &Directory<S>) -> Result<Option<Segment>, AllocError> {
        let class = directory.class;
        let Some(slot) = directory.vacant() else {
            return Ok(None);
        };
        let Some(page) = self.take_segment(directory)? else {
            return Ok(None);
        };
        let segment = self.segment_at(page)?;
        let start = |distance| self.geometry.start(page + distance);
        let control = self.tag(start(0)..start(1), TypeTag::Int64);
        let blocks = start(1)..start(segment.run.pages);
        if let Err(refused) = control.and_then(|()| self.tag(blocks, class.tag())) {
            self.give(page)?;
            return Err(refused);
        }
        segment.begin(&self.shared, self.owner, slot)?;
        self.geometry.publish(&self.shared, page)?;
        directory.enter(slot, page)?;
        self.geometry.publish(&self.shared, directory.page)?;
        Ok(Some(segment))
    }

    /// Takes pages for a segment: the more, the more segments the class has, and less
    /// where there is no room for so many.
    fn take_segment(&self, directory: &Directory<S>) -> Result<Option<u64>, AllocError> {
        let (class, page) = (directory.class, self.geometry.page);
        let step = class.size().0.div_ceil(page);
        let most = segment::capacity(self.geometry).saturating_mul(class.size().0) / page;
        let segments = directory.entries().count() as u64;
        let doublings = (segments / SEGMENTS_PER_DOUBLING).min(MOST_DOUBLINGS);
        let mut pages = (step << doublings).min(most / step * step).max(step);
        loop {
            let run = self.map().take(Use::Segment(class), 1 + pages, step)?;
            if run.is_some() || pages == step {
                return Ok(run);
            }
            pages = (pages / 2).next_multiple_of(step);
        }
    }

    /// Puts a segment of the heap's own back into the list, or sets it aside where it is
    /// full. The caller holds the lock.
    pub(super) fn put_back(
        &self,
        directory: &Directory<S>,
        segment: Segment,
    ) -> Result<(), AllocError> {
        let own = State::Owned(self.owner);
        if segment.change(&self.shared, own, State::Full)? {
            self.list_if(directory, segment, self.worthwhile(segment))?;
        }
        Ok(())
    }

    /// Lists a segment that was set aside, if it has so many free blocks by now. The caller
    /// holds the lock.
    pub(super) fn list_if(
        &self,
        directory: &Directory<S>,
        segment: Segment,
        least: u64,
    ) -> Result<(), AllocError> {
        if segment.has_free(&self.shared, least)
            && segment.change(&self.shared, State::Full, State::Listed)?
        {
            directory.list(self.entry_of(directory, segment)?, true)?;
        }
        Ok(())
    }

    /// The entry of a segment that is in a directory.
    fn entry_of(&self, directory: &Directory<S>, segment: Segment) -> Result<Entry, AllocError> {
        let page = segment.run.first;
        let entry = directory.entry_of(segment.slot(&self.shared), page);
        entry.ok_or(AllocError::Damaged { page })
    }

    /// Lists a segment that was set aside, after blocks of it were freed.
    pub(super) fn list(&self, segment: Segment) -> Result<(), AllocError> {
        let _held = self.shared.lock(List::Class(segment.class))?;
        let directory = self.directory_or_damaged(segment.class)?;
        // It may have been given back before the lock was had.
        let page = segment.run.first;
        let entry = directory.entry_of(segment.slot(&self.shared), page);
        if entry.is_some() && self.map().run_at(page) == Some(segment.run) {
            self.list_if(&directory, segment, self.worthwhile(segment))?;
        }
        Ok(())
    }

    /// Gives the pages of all segments back that have no block in use, and no owner or this heap
    /// as a spare one, and lists all others that have no owner and a free block.
    pub(super) fn reclaim(&self) -> Result<(), AllocError> {
        for class in Class::all() {
            if self.existing_directory(class)?.is_none() {
                continue;
            }
            let _held = self.shared.lock(List::Class(class))?;
            let directory = self.directory_or_damaged(class)?;
            self.give_spares_back(&directory)?;
            for entry in directory.entries() {
                let segment = self.segment_at(entry.page)?;
                self.list_if(&directory, segment, 1)?;
                self.release(&directory, segment)?;
            }
        }
        Ok(())
    }

    /// Gives the pages of a segment back, if it has no owner and no block in use. The
    /// caller holds the lock.
    fn release(&self, directory: &Directory<S>, segment: Segment) -> Result<(), AllocError> {
        if !segment.is_empty(&self.shared)
            || !segment.change(&self.shared, State::Listed, State::Leaving)?
        {
            return Ok(());
        }
        directory.strike(self.entry_of(directory, segment)?)?;
        self.geometry.publish(&self.shared, directory.page)?;
        self.map().give(segment.run)
    }
}
