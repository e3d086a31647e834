//! Copies of hugetlb pages in smaller pages, made and put in place at one stroke
//! while writers are held back, where the kernel grants that.

use std::os::fd::{AsFd, OwnedFd};

use quire_core::pool::{PoolPage, parts_that_hold};
use quire_core::stat::Counter;
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, VirtAddr};
use quire_linux::pagemap::{self, Filter};
use quire_linux::raw::{Errno, Result};
use quire_linux::uffd::{self, Mode, Scope};
use quire_linux::{memory, stack, sysinfo};

use super::map_pages;
use crate::manager::{Manager, State};
use crate::mapping::{READ_WRITE, copy_fork_behaviour};
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
    let superpages = PoolPage::Superpage.count(part.range);
    manager.stats().add(Counter::Demotions, superpages);
    if let Some(region) = state.table.regions.get_mut(&part.region) {
        region.demotions += superpages;
    }
    Ok(())
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
    // The thread's own stack may lie in the range, where nobody may write now.
    stack::run_elsewhere(|| {
        let mut hold = Hold::open();
        if let Some(hold) = &mut hold {
            // Without it, the program's own threads are trusted not to write to
            // what they are changing.
            hold.add(range);
        }
        let replaced = replace_by_copy(range, part.prot, into);
        if let Some(hold) = hold {
            hold.end();
        }
        replaced
    })??;
    copy_fork_behaviour(range, part);
    if part.locked {
        let _ = memory::lock_on_fault(range);
    }
    let backing = into.map_or(Backing::Plain, Backing::Pool);
    state.table.update(range, |i| i.backing = backing);
    Ok(())
}

fn replace_by_copy(range: AddrRange, prot: i32, into: Option<PoolPage>) -> Result<()> {
    let readable = prot & libc::PROT_READ != 0;
    if !readable {
        // SAFETY: more is allowed than before, and nothing is written.
        unsafe { memory::protect(range, libc::PROT_READ)? };
    }
    let replaced = copy_of(range, into).and_then(|copy| put_in_place(copy, range, prot));
    if replaced.is_err() && !readable {
        // SAFETY: this is the protection that the program asked for.
        let _ = unsafe { memory::protect(range, prot) };
    }
    replaced
}

/// A copy of a readable range, somewhere. What holds zeros is left out: even a
/// read of what was never touched would take a page, and a page that was touched
/// anywhere is there as a whole.
fn copy_of(range: AddrRange, into: Option<PoolPage>) -> Result<AddrRange> {
    let grain = into.map_or(Bytes(BASE_PAGE), PoolPage::bytes);
    let mut parts = Vec::new();
    let pagemap = pagemap::open()?;
    pagemap::scan(pagemap.as_fd(), range, Filter::PRESENT, |run| {
        parts.extend(parts_that_hold(run.range(), grain, holds_data));
    })?;
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

fn base_pages(len: Bytes, parts: &[AddrRange]) -> Result<AddrRange> {
    let needed = Bytes(parts.iter().map(|part| part.len().0).sum());
    let is_short = || sysinfo::meminfo().is_ok_and(|memory| memory.available < needed);
    if needed >= LARGE && is_short() {
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
    uffd::open().is_ok_and(|(_, scope)| scope == Scope::Full)
}

/// Holds back writers to some ranges, by write protection, until it is ended. To
/// drop it closes a descriptor only, as a forked child must.
#[derive(Debug)]
pub(super) struct Hold {
    uffd: OwnedFd,
    ranges: Vec<AddrRange>,
}

impl Hold {
    /// Holds nobody back yet; nothing where the kernel does not grant it.
    pub fn open() -> Option<Hold> {
        let (uffd, scope) = uffd::open().ok()?;
        (scope == Scope::Full).then_some(Hold {
            uffd,
            ranges: Vec::new(),
        })
    }

    /// Holds back writers to a range of whole pages, if the kernel agrees.
    pub fn add(&mut self, range: AddrRange) {
        let uffd = self.uffd.as_fd();
        let held = uffd::register(uffd, range, Mode::Protect)
            .and_then(|()| uffd::write_protect(uffd, range, true));
        if held.is_ok() {
            self.ranges.push(range);
        }
    }

    /// Lets the writers go on.
    pub fn end(self) {
        for range in self.ranges {
            // What has been unmapped meanwhile is no failure.
            let _ = uffd::unregister(self.uffd.as_fd(), range);
            let _ = uffd::wake(self.uffd.as_fd(), range);
        }
    }
}
