//! The page map: to what each page of the object belongs.
//!
//! The map has a word for each page, in pages of its own behind the header. The pages of
//! the object form runs, one behind the other. The word of a run's first page says what the
//! run is and how long; behind the last run there are words that were never written, and
//! the pages there are free.
//!
//! A page in which a block begins has a word that says how far back its run begins. It
//! counts only if a run begins there that reaches so far, so it may be left over. The words
//! of other pages mean nothing.
//!
//! Each change takes effect by one store, the last one, to the first word of a run, from what it
//! was read as. Who dies before has changed nothing; nor has who is taken for dead, so that others
//! hold the lock of the supply, too. Where words of several pages of the map are written, the
//! earlier ones are published first, as a machine that dies may lose what it wrote to one
//! page and not what it wrote later to another. The map is written when a segment comes or goes, and
//! otherwise only read, so all machines keep copies of it.

use super::class::Class;
use super::{AllocError, List, Refused, Shared, change, set};
use crate::units::ObjectOffset;

/// The bytes of a word.
pub(super) const WORD: u64 = 8;
/// The words before the table of the classes in the header.
pub(super) const HEADER_WORDS: u64 = 8;

/// The smallest page, in bytes: the header has to fit.
pub(super) const LEAST_PAGE: u64 = 4096;
/// The fewest pages of an object.
const LEAST_PAGES: u64 = 8;
/// The largest object.
const MOST_BYTES: u64 = 1 << 47;

/// Marks the first word of a run.
const RUN: u64 = 1 << 63;
/// Where the kind of a run is in its word.
const KIND_SHIFT: u32 = 60;
/// Where the number of its class is.
const CLASS_SHIFT: u32 = 48;
/// The largest number of a class.
const CLASS_MASK: u64 = (1 << (KIND_SHIFT - CLASS_SHIFT)) - 1;
/// The length of a run in pages.
const PAGES_MASK: u64 = (1 << CLASS_SHIFT) - 1;

/// How the object is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// The size of a page in bytes, a power of two.
    pub page: u64,
    /// How many pages there are.
    pub pages: u64,
}

impl Geometry {
    /// Whether an object can be divided so.
    pub const fn is_possible(self) -> bool {
        let page = self.page.is_power_of_two() && self.page >= LEAST_PAGE;
        let pages = LEAST_PAGES <= self.pages && self.pages <= MOST_BYTES / LEAST_PAGE;
        page && pages && self.reserved() < self.pages
    }

    /// The pages of the header and the map.
    pub const fn reserved(self) -> u64 {
        1 + (self.pages * WORD).div_ceil(self.page)
    }

    /// Where a page begins.
    pub const fn start(self, page: u64) -> ObjectOffset {
        ObjectOffset(page * self.page)
    }

    /// A word of a page.
    pub const fn word(self, page: u64, index: u64) -> ObjectOffset {
        ObjectOffset(page * self.page + index * WORD)
    }

    /// Has what was written to a page not be lost alone.
    pub fn publish<S: Shared>(self, shared: &S, page: u64) -> Result<(), Refused> {
        shared.publish(self.start(page)..self.start(page + 1))
    }

    /// The page of the map with a page's word.
    const fn map_page(self, page: u64) -> u64 {
        1 + page * WORD / self.page
    }

    /// The word of a page in the map.
    const fn entry(self, page: u64) -> ObjectOffset {
        self.word(1, page)
    }

    /// The word of a class in the header: the page of its directory, or 0.
    pub const fn directory_of(self, class: Class) -> ObjectOffset {
        self.word(0, HEADER_WORDS + class.number() as u64)
    }
}

/// What a run of pages is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Free.
    Free,
    /// The header and the map.
    Reserved,
    /// The directory of a class, one page.
    Directory(Class),
    /// A segment of a class: a control page, and the pages of its blocks.
    Segment(Class),
}

/// A run of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The first page.
    pub first: u64,
    /// How many.
    pub pages: u64,
    /// What it is.
    pub usage: Use,
}

impl Run {
    const fn encode(self) -> u64 {
        let (kind, class) = match self.usage {
            Use::Free => (0, 0),
            Use::Reserved => (1, 0),
            Use::Directory(class) => (2, class.number() as u64),
            Use::Segment(class) => (3, class.number() as u64),
        };
        RUN | kind << KIND_SHIFT | class << CLASS_SHIFT | self.pages
    }

    /// The run that a word at a page describes, if it is one that fits into the object.
    fn decode(geometry: Geometry, first: u64, word: u64) -> Option<Run> {
        let class = Class::from_number((word >> CLASS_SHIFT & CLASS_MASK) as usize);
        let pages = word & PAGES_MASK;
        let usage = match (word & !RUN) >> KIND_SHIFT {
            0 => Use::Free,
            1 => Use::Reserved,
            2 if pages == 1 => Use::Directory(class?),
            3 if pages > 1 => Use::Segment(class?),
            _ => return None,
        };
        let fits = pages > 0 && pages <= geometry.pages - first;
        (word & RUN != 0 && fits).then_some(Run {
            first,
            pages,
            usage,
        })
    }
}

/// The map of an object.
pub(super) struct PageMap<'a, S> {
    pub shared: &'a S,
    pub geometry: Geometry,
}

impl<S: Shared> PageMap<'_, S> {
    fn load(&self, page: u64) -> u64 {
        self.shared.word(self.geometry.entry(page)).load()
    }

    /// Writes the word of a page inside of a free run.
    fn store(&self, page: u64, word: u64) -> Result<(), AllocError> {
        set(self.shared, self.geometry.entry(page), word)
    }

    /// Makes a run another one that begins there.
    fn turn(&self, run: Run, into: Run) -> Result<(), AllocError> {
        let at = self.geometry.entry(run.first);
        change(self.shared, at, run.encode(), into.encode())
    }

    /// The run of a page in which a block begins.
    pub fn run_of(&self, page: u64) -> Option<Run> {
        let distance = self.load(page);
        let first = page.checked_sub(distance)?;
        let run = Run::decode(self.geometry, first, self.load(first))?;
        (distance > 0 && run.pages > distance).then_some(run)
    }

    /// The run that begins at a page.
    pub fn run_at(&self, page: u64) -> Option<Run> {
        Run::decode(self.geometry, page, self.load(page))
    }

    /// The run that begins at a page where one has to begin, or `None` where the runs end.
    fn next(&self, page: u64) -> Result<Option<Run>, AllocError> {
        if page == self.geometry.pages || self.load(page) == 0 {
            return Ok(None);
        }
        let run = self.run_at(page);
        run.map(Some).ok_or(AllocError::Damaged { page })
    }

    /// Publishes the word of a page.
    fn publish(&self, page: u64) -> Result<(), AllocError> {
        let page = self.geometry.map_page(page);
        Ok(self.geometry.publish(self.shared, page)?)
    }

    /// Publishes the words of some pages, but for those that lie beside a page's own.
    fn publish_beside(&self, first: u64, pages: u64, own: u64) -> Result<(), AllocError> {
        let (own, last) = (self.geometry.map_page(own), first + pages - 1);
        let all = self.geometry.map_page(first)..=self.geometry.map_page(last);
        for page in all.filter(|page| *page != own) {
            self.geometry.publish(self.shared, page)?;
        }
        Ok(())
    }

    /// Visits all runs. The caller holds the lock of the supply.
    pub fn each(&self, mut visit: impl FnMut(Run)) -> Result<(), AllocError> {
        let mut page = 0;
        while let Some(run) = self.next(page)? {
            visit(run);
            page += run.pages;
        }
        Ok(())
    }

    /// Takes pages for a use; `None` if there are not so many in a row. A block begins in
    /// the second page, and then in each `step`-th; for 0 there are none.
    pub fn take(&self, usage: Use, pages: u64, step: u64) -> Result<Option<u64>, AllocError> {
        let _held = self.shared.lock(List::Supply)?;
        let Some(free) = self.find(pages)? else {
            return Ok(None);
        };
        let first = free.first;
        if step > 0 {
            // The words behind the first may have begun runs that are part of this one now.
            if self.geometry.map_page(first) != self.geometry.map_page(first + pages - 1) {
                self.publish(first)?;
            }
            for distance in (1..pages).step_by(step as usize) {
                self.store(first + distance, distance)?;
            }
            self.publish_beside(first, pages, first)?;
        }
        self.turn(free, Run { usage, ..free })?;
        self.publish(first)?;
        Ok(Some(first))
    }

    /// Gives the pages of a run back.
    pub fn give(&self, run: Run) -> Result<(), AllocError> {
        let _held = self.shared.lock(List::Supply)?;
        self.free(run)?;
        self.publish(run.first)
    }

    /// The same. The caller holds the lock of the supply.
    pub fn free(&self, run: Run) -> Result<(), AllocError> {
        let usage = Use::Free;
        self.turn(run, Run { usage, ..run })
    }

    /// The first free run of exactly this length, which is made.
    fn find(&self, pages: u64) -> Result<Option<Run>, AllocError> {
        let mut page = 0;
        while let Some(run) = self.next(page)? {
            if run.usage == Use::Free {
                let run = self.with_next(run, pages)?;
                if run.pages >= pages {
                    return self.split(run, pages).map(Some);
                }
                page += run.pages;
            } else {
                page += run.pages;
            }
        }
        if self.geometry.pages - page < pages {
            return Ok(None);
        }
        let run = Run {
            first: page,
            pages,
            usage: Use::Free,
        };
        change(self.shared, self.geometry.entry(page), 0, run.encode())?;
        Ok(Some(run))
    }

    /// A free run together with the free pages behind it, as far as they are needed.
    fn with_next(&self, run: Run, wanted: u64) -> Result<Run, AllocError> {
        let mut run = run;
        while run.pages < wanted {
            let end = run.first + run.pages;
            let pages = match self.next(end)? {
                Some(next) if next.usage == Use::Free => run.pages + next.pages,
                None if self.geometry.pages - run.first >= wanted => wanted,
                Some(_) | None => break,
            };
            let longer = Run { pages, ..run };
            self.turn(run, longer)?;
            run = longer;
        }
        Ok(run)
    }

    /// Cuts a free run; its first part, which is returned, gets so many pages.
    fn split(&self, run: Run, pages: u64) -> Result<Run, AllocError> {
        if run.pages == pages {
            return Ok(run);
        }
        let rest = Run {
            first: run.first + pages,
            pages: run.pages - pages,
            usage: Use::Free,
        };
        self.store(rest.first, rest.encode())?;
        self.publish_beside(rest.first, 1, run.first)?;
        let part = Run { pages, ..run };
        self.turn(run, part)?;
        Ok(part)
    }

    /// Writes the map's first run into a new object. What is there already was written by
    /// someone who died before the object was ready.
    ///
    /// # Errors
    /// When the object has other contents.
    pub fn begin(&self) -> Result<(), AllocError> {
        let reserved = Run {
            first: 0,
            pages: self.geometry.reserved(),
            usage: Use::Reserved,
        };
        let of_a_page = (self.geometry.page / WORD).min(self.geometry.pages);
        let written = (1..of_a_page).any(|page| self.load(page) != 0);
        if written || ![0, reserved.encode()].contains(&self.load(0)) {
            return Err(AllocError::NotEmpty);
        }
        let first = self.shared.word(self.geometry.entry(0));
        first.store(reserved.encode());
        Ok(())
    }

    /// How many pages are free. The caller holds the lock of the supply.
    pub fn free_pages(&self) -> Result<u64, AllocError> {
        let mut used = 0;
        self.each(|run| used += if run.usage == Use::Free { 0 } else { run.pages })?;
        Ok(self.geometry.pages - used)
    }
}
