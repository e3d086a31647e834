//! Program text and read-only data on superpages (paper 000, section 3.8).
//!
//! The segments that the loader has mapped keep their addresses and their
//! contents; only what the kernel maps there changes. For each extent that lies
//! wholly in a segment, in this order:
//!
//! 1. Where address and file offset agree modulo the superpage size, the page
//!    cache itself can hold a huge folio, which all processes share. If it holds
//!    small ones, they are read anew ([`crate::files`]).
//! 2. Otherwise a copy takes the place of the extent: private memory with the
//!    same protection, moved into place in one step, so that threads which
//!    execute it notice nothing.
//!
//! An extent of which a page was changed is left alone: it holds relocated data,
//! or the breakpoint of a debugger or of a tracer, which know it by its file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use quire_core::ranges::RangeMap;
use quire_core::units::{AddrRange, PageCount, Slot, VirtAddr};
use quire_linux::futex;
use quire_linux::memory::{self, Advice};
use quire_linux::pagemap;
use quire_linux::raw::{Errno, Result};
use quire_linux::sysinfo::maps::{FileId, Mapping, Reader};
use quire_linux::sysinfo::process;

use crate::extent::{now_ms, run_range};
use crate::files::view::View;
use crate::files::{self, reread};

/// Superpages of text in this process.
static SUPERPAGES: AtomicU64 = AtomicU64::new(0);

/// How many superpages text and read-only data are on.
pub(crate) fn superpages() -> u64 {
    SUPERPAGES.load(Ordering::Relaxed)
}

/// What names a segment: where it begins, and its file.
type SegmentId = (VirtAddr, FileId);

/// Where the segments lie that were there when the program began.
static FIRST: OnceLock<RangeMap<()>> = OnceLock::new();

/// Puts the segments of all files that are loaded onto superpages.
///
/// # Safety
/// Until this returns, no other thread may unload a library or write to a
/// segment that is mapped for reading only.
pub unsafe fn promote_loaded() {
    if process::huge_pages_disabled() {
        return;
    }
    let segments = segments(&mut Reader::default());
    let mut first = RangeMap::new();
    segments.iter().for_each(|s| first.insert(s.range, ()));
    let _ = FIRST.set(first);
    if segments.is_empty() {
        return;
    }
    if let Ok(pagemap) = pagemap::open() {
        let mut promoter = Promoter::new(pagemap);
        segments.iter().for_each(|s| promoter.promote(s));
    }
}

/// Libraries that the program loads while it runs. They are looked for beside
/// it, because whoever stands between a program and `dlopen` changes where
/// libraries are found.
pub(crate) struct Late {
    promoter: Promoter,
    /// Segments that are not done, and since when they are known.
    known: BTreeMap<SegmentId, u64>,
    /// Where segments lie that are done. They may be several mappings now.
    done: RangeMap<()>,
}

/// A library is left alone until it has been there for this long: its loading
/// may still fail.
const SETTLED_MS: u64 = 1000;

impl Late {
    /// Nothing is known yet.
    ///
    /// # Errors
    /// When the page table cannot be opened.
    pub fn new() -> Result<Late> {
        Ok(Late {
            promoter: Promoter::new(pagemap::open()?),
            known: BTreeMap::new(),
            done: RangeMap::new(),
        })
    }

    /// Puts the segments onto superpages that have been there for a while.
    pub fn promote(&mut self, reader: &mut Reader) {
        let now = now_ms();
        let ids = segments(reader).into_iter().filter(|s| self.is_new(s));
        self.known = ids
            .filter_map(|segment| id(&segment))
            .map(|id| (id, self.known.get(&id).copied().unwrap_or(now)))
            .collect();
        if self.known.values().any(|since| since + SETTLED_MS <= now) {
            Unloading::kept_away(|| self.promote_due(reader, now));
        }
    }

    fn is_new(&self, segment: &Mapping) -> bool {
        let among = |ranges: &RangeMap<()>| ranges.overlaps(segment.range).next().is_some();
        !among(&self.done) && !FIRST.get().is_some_and(among)
    }

    fn promote_due(&mut self, reader: &mut Reader, now: u64) {
        // Only what is there now, when nothing is unloaded, may be changed.
        let there = segments(reader).into_iter().filter(|s| self.is_new(s));
        for segment in there.collect::<Vec<_>>() {
            let since = id(&segment).and_then(|id| self.known.get(&id));
            if since.is_some_and(|since| since + SETTLED_MS <= now) {
                self.done.insert(segment.range, ());
                if !files::is_noted(segment.range) {
                    self.promoter.promote(&segment);
                }
            }
        }
    }
}

/// Threads that unload a library, and in the highest bit whether text is being
/// moved meanwhile.
static UNLOADING: AtomicU32 = AtomicU32::new(0);
const MOVING: u32 = 1 << 31;

/// The time in which a thread may unload libraries.
#[derive(Debug)]
pub struct Unloading(());

impl Unloading {
    /// Waits until no text is being moved. It may be nested.
    #[must_use]
    pub fn begin() -> Unloading {
        let add = |now: u32| (now & MOVING == 0).then_some(now + 1);
        loop {
            match UNLOADING.fetch_update(Ordering::Acquire, Ordering::Relaxed, add) {
                Ok(_) => return Unloading(()),
                Err(now) => futex::wait(&UNLOADING, now),
            }
        }
    }

    /// Does `work` while no library is unloaded, or nothing if one is.
    fn kept_away(work: impl FnOnce()) {
        let order = (Ordering::Acquire, Ordering::Relaxed);
        let begun = UNLOADING.compare_exchange(0, MOVING, order.0, order.1);
        if begun.is_ok() {
            work();
            UNLOADING.store(0, Ordering::Release);
            futex::wake_all(&UNLOADING);
        }
    }

    /// In a forked child nobody moves text.
    pub fn after_fork_child() {
        UNLOADING.fetch_and(!MOVING, Ordering::Relaxed);
    }
}

impl Drop for Unloading {
    fn drop(&mut self) {
        UNLOADING.fetch_sub(1, Ordering::Release);
    }
}

fn id(segment: &Mapping) -> Option<SegmentId> {
    Some((segment.range.start, segment.file?))
}

/// The read-only segments of loaded files that hold whole extents. A file is
/// loaded where some of it may be executed.
fn segments(reader: &mut Reader) -> Vec<Mapping> {
    let mut loaded = BTreeSet::new();
    let mut found = Vec::new();
    let read = reader.own(|mapping, _| {
        note_segment(&mapping, &mut loaded, &mut found);
        ControlFlow::Continue(())
    });
    found.retain(|m| read.is_ok() && m.file.is_some_and(|file| loaded.contains(&file)));
    found
}

fn note_segment(mapping: &Mapping, loaded: &mut BTreeSet<FileId>, found: &mut Vec<Mapping>) {
    let Some(file) = mapping.file.filter(|_| !mapping.shared) else {
        return;
    };
    if mapping.is_executable() {
        loaded.insert(file);
    }
    if mapping.is_read_only() && !mapping.range.whole_slots().is_empty() {
        found.push(*mapping);
    }
}

struct Promoter {
    pagemap: OwnedFd,
    /// Files whose pages the kernel does not bring in as huge folios.
    fruitless: BTreeSet<FileId>,
}

impl Promoter {
    fn new(pagemap: OwnedFd) -> Promoter {
        Promoter {
            pagemap,
            fruitless: BTreeSet::new(),
        }
    }

    fn pagemap(&self) -> BorrowedFd<'_> {
        self.pagemap.as_fd()
    }

    fn promote(&mut self, segment: &Mapping) {
        let slots: Vec<Slot> = segment.range.whole_slots().map(Slot).collect();
        let (mut made, mut rest) = (0, Vec::new());
        for slot in slots {
            match self.by_page_cache(segment, slot) {
                Ok(true) => made += 1,
                Ok(false) => rest.push(slot),
                // It has changed pages, or the file has no such pages.
                Err(_) => {}
            }
        }
        for group in rest.chunk_by(|a, b| a.next() == *b) {
            let run = group[0]..group[group.len() - 1].next();
            if self.by_copy(&run, segment.prot).is_ok() {
                made += group.len() as u64;
            }
        }
        SUPERPAGES.fetch_add(made, Ordering::Relaxed);
    }

    /// Lets the kernel map an extent by a huge folio of the page cache. Says
    /// whether it does.
    ///
    /// # Errors
    /// When the extent must be left alone.
    fn by_page_cache(&mut self, segment: &Mapping, slot: Slot) -> Result<bool> {
        let view = View::of(self.pagemap(), slot)?;
        if view.own > 0 {
            return Err(Errno(libc::EBUSY));
        }
        if view.is_superpage() {
            return Ok(true);
        }
        let fruitless = |p: &Promoter| segment.file.is_none_or(|f| p.fruitless.contains(&f));
        if !segment.is_congruent() || fruitless(self) {
            reread::bring_in(self.pagemap(), slot)?;
            return Ok(false);
        }
        reread::prefer_huge(slot)?;
        for drop in [false, true] {
            // What other processes map cannot be dropped.
            if drop {
                reread::drop_cached(slot)?;
                if memory::cached_pages(slot)? > PageCount(0) {
                    break;
                }
            }
            // SAFETY: the extent is a file's, was found unchanged, and the
            // caller of `promote_loaded` vouches that it stays so.
            unsafe { reread::forget_mapped(slot)? };
            if reread::bring_in(self.pagemap(), slot)? {
                return Ok(true);
            }
        }
        self.fruitless.extend(segment.file);
        Ok(false)
    }

    /// Lets a copy on superpages take the place of a run of extents.
    fn by_copy(&self, run: &Range<Slot>, prot: i32) -> Result<()> {
        let range = run_range(run);
        let copy = AddrRange::new(memory::reserve_space(range.len(), 0)?, range.len());
        let moved = self.fill(copy, range).and_then(|()| {
            // SAFETY: nobody else knows the copy.
            unsafe { memory::protect(copy, prot)? };
            for slot in run.start.0..run.end.0 {
                if View::of(self.pagemap(), Slot(slot))?.own > 0 {
                    return Err(Errno(libc::EBUSY));
                }
            }
            let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: the copy holds what the range holds, with the same
            // protection, and nobody else knows it.
            unsafe { memory::remap(copy, copy.len(), how, range.start) }
        });
        if moved.is_err() {
            // SAFETY: nobody else knows the copy.
            unsafe { memory::unmap(copy)? };
        }
        moved.map(drop)
    }

    /// Fills reserved address space with superpages that hold what `from` does.
    fn fill(&self, copy: AddrRange, from: AddrRange) -> Result<()> {
        // SAFETY: the address space was reserved by the caller, who alone knows
        // it; `from` is mapped readable, all of its pages were just brought in,
        // and it is part of a loaded file, which nobody shortens or writes.
        unsafe {
            memory::protect(copy, libc::PROT_READ | libc::PROT_WRITE)?;
            memory::advise(copy, Advice::HugePage)?;
            let len = copy.len().0 as usize;
            std::ptr::copy_nonoverlapping(from.start.as_ptr(), copy.start.as_ptr(), len);
        }
        for slot in copy.whole_slots().map(Slot) {
            if !View::of(self.pagemap(), slot)?.is_superpage() {
                // SAFETY: advice about page sizes changes no contents.
                unsafe { memory::advise(slot.range(), Advice::Collapse)? };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use quire_core::units::{Bytes, ObjectOffset, SUPERPAGE};

    use super::*;

    fn mapping(start: u64, slots: u64, prot: i32, inode: u64) -> Mapping {
        Mapping {
            range: AddrRange::new(VirtAddr(start), Bytes(slots * SUPERPAGE)),
            prot,
            shared: false,
            offset: ObjectOffset(0),
            file: (inode != 0).then_some(FileId {
                device: (8, 1),
                inode,
            }),
        }
    }

    #[test]
    fn segments_are_read_only_parts_of_loaded_files() {
        let (read, write, execute) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
        let text = mapping(SUPERPAGE, 2, read | execute, 1);
        let constants = mapping(8 * SUPERPAGE, 1, read, 1);
        let data = mapping(16 * SUPERPAGE, 1, read | write, 1);
        // Too small for an extent where it lies.
        let small = mapping(20 * SUPERPAGE + 4096, 1, read | execute, 2);
        let generated = mapping(64 * SUPERPAGE, 4, read | execute, 0);
        let (mut loaded, mut found) = (BTreeSet::new(), Vec::new());
        for mapping in [text, constants, data, small, generated] {
            note_segment(&mapping, &mut loaded, &mut found);
        }
        assert_eq!(found, [text, constants]);
        let inodes: Vec<u64> = loaded.iter().map(|file| file.inode).collect();
        assert_eq!(inodes, [1, 2]);
    }

    #[test]
    fn nothing_is_unloaded_while_text_is_moved() {
        let mut moved = 0;
        let outer = Unloading::begin();
        Unloading::kept_away(|| moved += 1);
        let inner = Unloading::begin();
        drop(outer);
        Unloading::kept_away(|| moved += 1);
        assert_eq!(moved, 0);
        drop(inner);
        Unloading::kept_away(|| {
            moved += 1;
            // Begins when this ends.
            std::thread::spawn(|| drop(Unloading::begin()));
            std::thread::sleep(std::time::Duration::from_millis(20));
        });
        assert_eq!(moved, 1);
    }
}
