//! Copies of hugetlb pages in smaller pages, made and put in place at one stroke
//! while writers are held back, where the kernel grants that.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use quire_core::pool::{PoolPage, parts_that_hold};
use quire_core::stat::Counter;
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, ObjectOffset, VirtAddr};
use quire_linux::pagemap::{self, Filter};
use quire_linux::raw::{Errno, Result};
use quire_linux::uffd::{self, Mode, Scope};
use quire_linux::{huge_file, memory, stack, sysinfo};

use super::map_pages;
use crate::advice::copy_advice;
use crate::hands;
use crate::manager::{Handles, Manager, State};
use crate::mapping::READ_WRITE;
use crate::table::{Backing, Interval};

/// From this size on, a copy in base pages is made only where the machine has as
/// much available: else the kernel would have to end somebody.
const LARGE: Bytes = Bytes::mib(64);

/// Moves pages of a pool to base pages.
///
/// # Errors
/// When there is no memory for the copy; the pages are then what they were.
pub(crate) fn leave_pool(state: &mut State, part: &Interval) -> Result<()> {
    replace(state, part, None)
}

/// The same for the program's own changes, which are counted. In a forked child
/// nothing is: the counters are its parent's still.
///
/// # Errors
/// As [`leave_pool`].
pub(crate) fn demote(manager: &Manager, state: &mut State, part: &Interval) -> Result<()> {
    leave_pool(state, part)?;
    count_demotions(manager, state, part);
    Ok(())
}

/// Counts the superpages of a part as demoted.
pub(super) fn count_demotions(manager: &Manager, state: &mut State, part: &Interval) {
    let superpages = PoolPage::Superpage.count(part.range);
    manager.stats().add(Counter::Demotions, superpages);
    if let Some(region) = state.table.regions.get_mut(&part.region) {
        region.demotions += superpages;
    }
}

/// Moves pages of a pool to pages of a smaller size, from its pool.
///
/// # Errors
/// As [`leave_pool`], and when that pool has not enough pages.
pub(super) fn into_pool(state: &mut State, part: &Interval, page: PoolPage) -> Result<()> {
    replace(state, part, Some(page))
}

fn replace(state: &mut State, part: &Interval, into: Option<PoolPage>) -> Result<()> {
    let range = part.range;
    // Without the privilege, the program's own threads are trusted not to write to
    // what they are changing.
    replace_held(part, into, Hold::open(), || Ok(populated(range)))?;
    restore(part);
    let backing = into.map_or(Backing::Plain, Backing::Pool);
    state.table.update(range, |i| i.backing = backing);
    Ok(())
}

/// Makes a copy of a part plain private memory in its place, where the part is the object or
/// was until a fork. Without the privilege to hold back writers in kernel mode, a system call
/// of another thread that writes there meanwhile fails with `EFAULT`.
///
/// # Errors
/// When there is no memory for the copy; the part is then what it was.
pub(crate) fn copy_object(handles: &Handles, part: &Interval) -> Result<()> {
    copy_mapped(handles.pagemap(), part, || kept_by_object(handles, part))
}

/// The same in a forked child, for what it inherited: its parent's object, which it has no
/// descriptor of.
///
/// # Errors
/// As [`copy_object`].
pub(crate) fn copy_inherited(part: &Interval) -> Result<()> {
    hands::apart(|| {
        let pagemap = pagemap::open()?;
        copy_mapped(pagemap.as_fd(), part, || {
            match sysinfo::memory::has_swap() {
                // Of the object's pages that are in swap nobody tells. So all of it is read.
                true => Ok(vec![part.range]),
                false => memory::resident_runs(part.range),
            }
        })
    })
}

/// A copy of what is mapped of a part, and of what `kept` says that lies behind it. To be called where descriptors are
/// Quire's, or in a child that has no such place.
fn copy_mapped(
    pagemap: BorrowedFd<'_>,
    part: &Interval,
    kept: impl FnOnce() -> Result<Vec<AddrRange>>,
) -> Result<()> {
    const COPIES: Filter = Filter {
        all: 0,
        none: 0,
        any: pagemap::PRESENT | pagemap::SWAPPED,
        report: pagemap::PRESENT,
    };
    // What is in swap is asked for before writers are held back: the marks that do so look
    // the same. What is written until then is present.
    let mut in_use = present(pagemap, part.range, COPIES)?;
    let hold = uffd::open().ok().map(|(uffd, _)| Hold::by(uffd));
    replace_held(part, None, hold, || {
        in_use.extend(present(pagemap, part.range, Filter::PRESENT)?);
        in_use.extend(kept()?);
        Ok(united(in_use))
    })?;
    restore(part);
    Ok(())
}

/// Gives a copy in a part's place the advice and the lock of the part.
pub(super) fn restore(part: &Interval) {
    copy_advice(part.range, part);
    if part.locked {
        let _ = memory::lock_on_fault(part.range);
    }
}

/// Replaces a part by a copy of what `in_use` lists, while writers are held back.
fn replace_held(
    part: &Interval,
    into: Option<PoolPage>,
    mut hold: Option<Hold>,
    in_use: impl FnOnce() -> Result<Vec<AddrRange>>,
) -> Result<()> {
    // The thread's own stack may lie in the range, where nobody may write now.
    stack::run_elsewhere(|| {
        if let Some(hold) = &mut hold {
            hold.add(part.range);
        }
        let replaced =
            in_use().and_then(|in_use| replace_by_copy(part.range, part.prot, into, &in_use));
        if let Some(hold) = hold {
            hold.end();
        }
        replaced
    })?
}

/// The runs of pages that pass a filter.
fn present(pagemap: BorrowedFd<'_>, range: AddrRange, filter: Filter) -> Result<Vec<AddrRange>> {
    let mut runs = Vec::new();
    pagemap::scan(pagemap, range, filter, |run| runs.push(run.range()))?;
    Ok(runs)
}

/// What of a part the object keeps, mapped or not.
fn kept_by_object(handles: &Handles, part: &Interval) -> Result<Vec<AddrRange>> {
    let object = handles.object();
    let end = part.offset + part.range.len();
    let mut kept = Vec::new();
    let mut from = part.offset;
    while let Some(start) = huge_file::next_data(object, from)?.filter(|start| *start < end) {
        from = huge_file::next_hole(object, start)?.min(end);
        let at = |offset: ObjectOffset| part.range.start + Bytes(offset.0 - part.offset.0);
        kept.push(AddrRange {
            start: at(start),
            end: at(from),
        });
    }
    Ok(kept)
}

/// The same addresses in ranges that are in order and do not overlap.
fn united(mut ranges: Vec<AddrRange>) -> Vec<AddrRange> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut united: Vec<AddrRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match united.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => united.push(range),
        }
    }
    united
}

fn replace_by_copy(
    range: AddrRange,
    prot: i32,
    into: Option<PoolPage>,
    in_use: &[AddrRange],
) -> Result<()> {
    let readable = prot & libc::PROT_READ != 0;
    if !readable {
        // SAFETY: more is allowed than before, and nothing is written.
        unsafe { memory::protect(range, libc::PROT_READ)? };
    }
    let replaced = copy_of(range, into, in_use).and_then(|copy| put_in_place(copy, range, prot));
    if replaced.is_err() && !readable {
        // SAFETY: this is the protection that the program asked for.
        let _ = unsafe { memory::protect(range, prot) };
    }
    replaced
}

/// A copy of what is in use of a readable range, somewhere. What holds zeros is left out: even
/// a read of what was never touched would take a page, and a page that was touched anywhere is
/// there as a whole.
fn copy_of(range: AddrRange, into: Option<PoolPage>, in_use: &[AddrRange]) -> Result<AddrRange> {
    let grain = into.map_or(Bytes(BASE_PAGE), PoolPage::bytes);
    let of_run = |run: &AddrRange| parts_that_hold(*run, grain, holds_data);
    let parts: Vec<AddrRange> = in_use.iter().flat_map(of_run).collect();
    let copy = match into {
        Some(page) => map_pages(range.len(), page)?,
        None => base_pages(range.len(), &parts)?,
    };
    for part in parts {
        let to = copy.start + (part.start - range.start);
        let bytes = part.len().0 as usize;
        // SAFETY: the range is readable, and the copy is a fresh mapping of the
        // same size that nobody else knows.
        unsafe { std::ptr::copy_nonoverlapping(part.start.as_ptr(), to.as_ptr(), bytes) };
    }
    Ok(copy)
}

/// What is populated of a range; all of it, where the kernel does not tell (before Linux 6.7).
pub(super) fn populated(range: AddrRange) -> Vec<AddrRange> {
    hands::apart(|| {
        let scanned =
            pagemap::open().and_then(|pagemap| present(pagemap.as_fd(), range, Filter::PRESENT));
        scanned.unwrap_or_else(|_| vec![range])
    })
}

fn base_pages(len: Bytes, parts: &[AddrRange]) -> Result<AddrRange> {
    let needed = Bytes(parts.iter().map(|part| part.len().0).sum());
    let is_short = || sysinfo::meminfo().is_ok_and(|memory| memory.available < needed);
    if needed >= LARGE && hands::apart(is_short) {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: a new mapping at an address that the kernel chooses.
    let made = unsafe { memory::map_anonymous(VirtAddr(0), len, READ_WRITE, 0)? };
    Ok(AddrRange::new(made, len))
}

/// Whether a readable piece holds anything but zeros.
fn holds_data(piece: AddrRange) -> bool {
    let words = piece.len().0 as usize / size_of::<u64>();
    let first: *const u64 = piece.start.as_ptr().cast();
    // SAFETY: the piece is mapped readable and whole pages long. Writers may not
    // be held back, so each word is read once and no reference is made.
    (0..words).any(|word| unsafe { first.add(word).read_volatile() } != 0)
}

/// Puts a copy in the place of the original, at one stroke.
fn put_in_place(copy: AddrRange, range: AddrRange, prot: i32) -> Result<()> {
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: nobody else knows the copy. It holds what the range holds: nobody
    // has written since, because writers are held back.
    unsafe {
        let moved = memory::protect(copy, prot)
            .and_then(|()| memory::remap(copy, copy.len(), how, range.start));
        if moved.is_err() {
            memory::unmap(copy)?;
        }
        moved.map(drop)
    }
}

/// Whether the kernel lets this process hold all writers back, those in kernel
/// mode, too.
pub(super) fn can_hold_back() -> bool {
    hands::apart(|| uffd::open().is_ok_and(|(_, scope)| scope == Scope::Full))
}

/// Holds back writers to some ranges, by write protection, until it is ended. To
/// drop it does nothing, as a forked child must, which has no such descriptor.
#[derive(Debug)]
pub(super) struct Hold {
    /// In the table of Quire's threads, unless it `is_here`: in that of the calling thread.
    uffd: RawFd,
    is_here: bool,
    ranges: Vec<AddrRange>,
}

impl Hold {
    /// Holds nobody back yet; nothing where the kernel does not grant it, and in a child that has no threads of
    /// Quire's, where nobody else would write.
    pub fn open() -> Option<Hold> {
        let uffd = hands::run(|| {
            let (uffd, scope) = uffd::open().ok()?;
            (scope == Scope::Full).then(|| uffd.into_raw_fd())
        });
        Some(Hold {
            uffd: uffd.ok().flatten()?,
            ranges: Vec::new(),
            is_here: false,
        })
    }

    /// The same, by a descriptor of the calling thread's table. The value stays with this thread.
    fn by(uffd: OwnedFd) -> Hold {
        Hold {
            uffd: uffd.into_raw_fd(),
            ranges: Vec::new(),
            is_here: true,
        }
    }

    /// Does something in the table that the descriptor lies in.
    fn there<R>(&self, work: impl FnOnce() -> R) -> R {
        match self.is_here {
            true => work(),
            false => hands::apart(work),
        }
    }

    /// Holds back writers to a range of whole pages, if the kernel agrees.
    pub fn add(&mut self, range: AddrRange) {
        let held = self.there(|| {
            // SAFETY: it is open until the end.
            let uffd = unsafe { BorrowedFd::borrow_raw(self.uffd) };
            uffd::register(uffd, range, Mode::Protect)?;
            uffd::write_protect(uffd, range, true)
        });
        if held.is_ok() {
            self.ranges.push(range);
        }
    }

    /// Lets the writers go on.
    pub fn end(self) {
        self.there(|| {
            // SAFETY: whoever made the value opened it, for this value alone.
            let uffd = unsafe { OwnedFd::from_raw_fd(self.uffd) };
            for range in &self.ranges {
                // What has been unmapped meanwhile is no failure.
                let _ = uffd::unregister(uffd.as_fd(), *range);
                let _ = uffd::wake(uffd.as_fd(), *range);
            }
        });
    }
}
