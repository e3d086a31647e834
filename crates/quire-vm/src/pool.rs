//! Superpages of the hugetlb pool, for the policy `static`. The kernel changes
//! each of them only as a whole, so what the program does to a part of one
//! takes a copy in base pages; and it ends a process that needs one more than
//! the pool has, so a fork leaves none shared.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quire_core::config::Policy;
use quire_core::stat::{Counter, Note, RegionKind};
use quire_core::units::{AddrRange, Bytes, ObjectOffset, SUPERPAGE, Slot, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::pagemap::{self, Filter};
use quire_linux::raw::{Errno, Result};
use quire_linux::uffd::{self, Mode, Scope};
use quire_linux::{sysinfo, thread};

use crate::extent::by_slot;
use crate::manager::{Manager, State};
use crate::mapping::{PLACED, READ_WRITE, copy_fork_behaviour};
use crate::table::{Backing, Interval, Region, Table};

/// Takes superpages from the hugetlb pool for the whole superpages of a
/// mapping; the rest, and all of it when the pool is empty, is base pages.
pub(crate) fn map_from_pool(
    manager: &Manager,
    state: &mut State,
    hint: VirtAddr,
    len: Bytes,
    flags: i32,
) -> Result<VirtAddr> {
    let at = map_base_pages(hint, len, flags)?;
    let pages = AddrRange::new(at, Bytes(len.0 / SUPERPAGE * SUPERPAGE));
    // Not here at once: where the pool is too small, the kernel may leave a gap,
    // which another thread's mapping may fill.
    let huge = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
    // SAFETY: a new mapping at an address that the kernel chooses.
    match unsafe { memory::map_anonymous(VirtAddr(0), pages.len(), READ_WRITE, huge) } {
        Ok(made) => {
            move_into_place(AddrRange::new(made, pages.len()), at)?;
            let region = state
                .table
                .add_region(Region::new(RegionKind::Anon, Policy::Static));
            state.table.insert(Interval {
                backing: Backing::Pool,
                ..Interval::fresh(pages, ObjectOffset(0), region)
            });
            manager
                .table_empty
                .store(false, std::sync::atomic::Ordering::Release);
            let slots = pages.len().0 / SUPERPAGE;
            manager.stats().add(Counter::Reservations, slots);
        }
        Err(_) => {
            manager.stats().note(Note::HugetlbPoolEmpty);
            manager
                .stats()
                .add(Counter::FailedReservations, len.0 / SUPERPAGE);
        }
    }
    Ok(at)
}

/// Moves a mapping that nobody knows over one that was just made.
fn move_into_place(made: AddrRange, at: VirtAddr) -> Result<()> {
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: what it takes the place of was just made and nobody uses it.
    let moved = unsafe { memory::remap(made, made.len(), how, at) };
    if moved.is_err() {
        // SAFETY: nobody knows this mapping.
        unsafe { memory::unmap(made)? };
    }
    moved.map(drop)
}

/// Base pages at a superpage boundary, where the program asked for them or
/// somewhere.
fn map_base_pages(hint: VirtAddr, len: Bytes, flags: i32) -> Result<VirtAddr> {
    if hint.0 != 0 {
        if !hint.is_superpage_aligned() {
            return Err(Errno(libc::EINVAL));
        }
        let place = match flags & PLACED {
            0 => libc::MAP_FIXED_NOREPLACE,
            place => place,
        };
        // SAFETY: the program asked for this place.
        unsafe { memory::map_anonymous(hint, len, READ_WRITE, place) }.map_err(|errno| {
            if flags & PLACED == 0 {
                Errno(libc::EINVAL)
            } else {
                errno
            }
        })
    } else {
        let at = memory::reserve_space(len, 0)?;
        // SAFETY: the address space was just reserved.
        unsafe { memory::map_anonymous(at, len, READ_WRITE, libc::MAP_FIXED) }
    }
}

/// Gives up the contents of superpages from the pool. The kernel drops whole
/// ones; parts are zeroed.
pub(crate) fn discard_pool(part: &Interval) -> Result<()> {
    for (slot, piece) in by_slot(part.range) {
        if piece == slot.range() {
            // SAFETY: the program gives the contents up.
            unsafe { memory::advise(piece, Advice::DontNeed)? };
        } else {
            let len = piece.len().0 as usize;
            // SAFETY: the piece is mapped writable, and the program gave its
            // contents up.
            unsafe { std::ptr::write_bytes(piece.start.as_ptr(), 0, len) };
        }
    }
    Ok(())
}

/// The kernel changes superpages of the hugetlb pool only as a whole. Those
/// that a range covers in part go to base pages first.
pub(crate) fn soften(state: &mut State, range: AddrRange) {
    for slot in [range.start.slot(), VirtAddr(range.end.0 - 1).slot()] {
        let pool = state
            .table
            .overlaps(slot.range())
            .find(|i| i.backing == Backing::Pool && i.range == slot.range());
        if let Some(part) = pool.filter(|_| !range.contains(slot.range())) {
            // Where there is no memory for the copy, the kernel refuses the call
            // that this is done for.
            let _ = leave_pool(state, &part);
        }
    }
}

/// Moves superpages of the pool to base pages, with writers held back where the
/// kernel grants that.
pub(crate) fn leave_pool(state: &mut State, part: &Interval) -> Result<()> {
    let hold = uffd::open().ok().filter(|(_, scope)| *scope == Scope::Full);
    if let Some((uffd, _)) = &hold {
        let uffd = uffd.as_fd();
        // Without protection, the program's own threads are trusted not to
        // write to what they are unmapping.
        let _ = hold_back(uffd, part.range);
    }
    let copied = replace_by_copy(part.range, part.prot);
    if copied.is_ok() {
        copy_fork_behaviour(part.range, part);
        state
            .table
            .update(part.range, |i| i.backing = Backing::Plain);
    }
    if let Some((uffd, _)) = &hold {
        let _ = uffd::wake(uffd.as_fd(), part.range);
    }
    copied
}

/// Puts a copy in base pages in the place of a range, at one stroke.
fn replace_by_copy(range: AddrRange, prot: i32) -> Result<()> {
    let len = range.len();
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // Even a read of what was never touched would take a superpage.
    let mut present = Vec::new();
    let pagemap = pagemap::open()?;
    pagemap::scan(pagemap.as_fd(), range, Filter::PRESENT, |run| {
        present.push(run.range())
    })?;
    // SAFETY: the copy is a fresh mapping that nobody else knows, and it takes
    // the place of the original when it is complete. Nobody writes meanwhile:
    // the callers see to that.
    unsafe {
        if prot & libc::PROT_READ == 0 {
            memory::protect(range, libc::PROT_READ)?;
        }
        let copy = AddrRange::new(memory::map_anonymous(VirtAddr(0), len, both, 0)?, len);
        for run in present {
            let to = copy.start + (run.start - range.start);
            let bytes = run.len().0 as usize;
            std::ptr::copy_nonoverlapping(run.start.as_ptr(), to.as_ptr(), bytes);
        }
        memory::protect(copy, prot)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        memory::remap(copy, len, flags, range.start).map(drop)
    }
}

/// A fork of a process with memory from the hugetlb pool. The first write on
/// either side needs another superpage, and when the pool has none left the
/// kernel takes the child's and ends it. So the child copies its pool memory to
/// base pages at once. The parent's forking thread waits for that; where the
/// pool is short, all others that want to write to pool memory do, too. The pipe
/// closes when the child has its copy, or is gone; without one, nobody waits.
#[derive(Debug)]
pub(crate) struct PoolCopy {
    held: Option<(OwnedFd, Vec<AddrRange>)>,
    pipe: Option<(OwnedFd, OwnedFd)>,
}

impl PoolCopy {
    /// For the moment before a fork; nothing where no memory is the pool's.
    pub fn prepare(table: &Table) -> Option<PoolCopy> {
        let parts = table.intervals().filter(|i| i.backing == Backing::Pool);
        let ranges: Vec<AddrRange> = parts.map(|i| i.range).collect();
        let superpages: u64 = ranges.iter().map(|r| r.len().0 / SUPERPAGE).sum();
        if superpages == 0 {
            return None;
        }
        let short = sysinfo::memory::free_pool_superpages() < superpages;
        Some(PoolCopy {
            held: short.then(|| hold_writers(&ranges)).flatten(),
            pipe: rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok(),
        })
    }

    /// Waits for the child's copy.
    pub fn wait(self) {
        if let Some((done, doing)) = self.pipe {
            drop(doing);
            let mut byte = [0u8; 1];
            while rustix::io::read(&done, &mut byte) == Err(rustix::io::Errno::INTR) {}
        }
        if let Some((uffd, ranges)) = self.held {
            for range in ranges {
                // What has been unmapped meanwhile is no failure.
                let _ = uffd::unregister(uffd.as_fd(), range);
                let _ = uffd::wake(uffd.as_fd(), range);
            }
        }
    }
}

/// Holds back writers to a range until its registration ends.
fn hold_back(uffd: BorrowedFd<'_>, range: AddrRange) -> Result<()> {
    uffd::register(uffd, range, Mode::Protect)?;
    uffd::write_protect(uffd, range, true)
}

/// Holds back writers to pool memory, where the kernel grants that. What the
/// calling thread needs to go on, its stack and its variables, is left out.
fn hold_writers(ranges: &[AddrRange]) -> Option<(OwnedFd, Vec<AddrRange>)> {
    let (uffd, _) = uffd::open()
        .ok()
        .filter(|(_, scope)| *scope == Scope::Full)?;
    let own = thread::own_memory().map(VirtAddr::slot);
    let mut held = Vec::new();
    for slot in ranges.iter().flat_map(|range| range.slots().map(Slot)) {
        let protected = !own.contains(&slot) && hold_back(uffd.as_fd(), slot.range()).is_ok();
        if protected {
            held.push(slot.range());
        }
    }
    Some((uffd, held))
}
