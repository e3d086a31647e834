//! Superpages of the hugetlb pool, for the policy `static`. The kernel changes
//! each of them only as a whole, so what the program does to a part of one
//! takes a copy in base pages; and it ends a process that needs one more than
//! the pool has, so a fork leaves none shared.

use std::os::fd::{AsFd, OwnedFd};

use quire_core::config::Policy;
use quire_core::stat::{Counter, Note, RegionKind};
use quire_core::units::{AddrRange, Bytes, ObjectOffset, SUPERPAGE, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::pagemap::{self, Filter};
use quire_linux::raw::{Errno, Result};
use quire_linux::uffd::{self, Mode, Scope};

use crate::extent::by_slot;
use crate::manager::{Manager, State};
use crate::mapping::{PLACED, READ_WRITE, release};
use crate::remap::Remap;
use crate::table::{Backing, Interval, Region};

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
    let huge = libc::MAP_FIXED | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
    // SAFETY: replaces the mapping that was just made. When the pool is too
    // small the kernel refuses before it unmaps anything.
    match unsafe { memory::map_anonymous(at, pages.len(), READ_WRITE, huge) } {
        Ok(_) => {
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
            manager.stats().add(Counter::Superpages, slots);
            manager.stats().add(Counter::SuperpagesPeak, slots);
            manager.stats().add(Counter::Reservations, slots);
        }
        Err(_) => {
            manager.stats().note(Note::HugetlbPoolEmpty);
            manager
                .stats()
                .add(Counter::FailedReservations, len.0 / SUPERPAGE);
            // SAFETY: the mapping may be gone if the kernel got that far; the
            // address space is ours either way.
            unsafe { memory::map_anonymous(at, len, READ_WRITE, libc::MAP_FIXED)? };
        }
    }
    Ok(at)
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
pub(crate) fn soften(state: &State, range: AddrRange) {
    for slot in [range.start.slot(), VirtAddr(range.end.0 - 1).slot()] {
        let pool = state
            .table
            .overlaps(slot.range())
            .find(|i| i.backing == Backing::Pool && i.range == slot.range());
        if let Some(part) = pool.filter(|_| !range.contains(slot.range())) {
            leave_pool(&part);
        }
    }
}

/// Moves one superpage of the pool to base pages, with writers held back where
/// the kernel grants that.
fn leave_pool(part: &Interval) {
    let hold = uffd::open().ok().filter(|(_, scope)| *scope == Scope::Full);
    if let Some((uffd, _)) = &hold {
        let uffd = uffd.as_fd();
        // Without protection, the program's own threads are trusted not to
        // write to what they are unmapping.
        let _ = uffd::register(uffd, part.range, Mode::Protect)
            .and_then(|()| uffd::write_protect(uffd, part.range, true));
    }
    // Where there is no memory for the copy, the kernel refuses the call that
    // this was done for.
    let _ = replace_by_copy(part.range, part.prot);
    if let Some((uffd, _)) = &hold {
        let _ = uffd::wake(uffd.as_fd(), part.range);
    }
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

/// Superpages from the pool cannot be resized or moved: the contents are
/// copied to base pages.
pub(crate) fn remap_pool(manager: &Manager, state: &mut State, asked: Remap) -> Result<VirtAddr> {
    let Remap { old, new_len, .. } = asked;
    let stays = !asked.fixed() && !asked.dont_unmap();
    if new_len == old.len() && stays {
        return Ok(old.start);
    }
    if stays {
        let growth = Bytes(new_len.0 - old.len().0);
        let place = libc::MAP_FIXED_NOREPLACE;
        // SAFETY: the kernel refuses where anything is mapped.
        if unsafe { memory::map_anonymous(old.end, growth, READ_WRITE, place) }.is_ok() {
            return Ok(old.start);
        }
    }
    if !asked.may_move() {
        return Err(Errno(libc::ENOMEM));
    }
    let (hint, place) = if asked.fixed() {
        release(manager, state, AddrRange::new(asked.new, new_len));
        (asked.new, libc::MAP_FIXED)
    } else {
        (VirtAddr(0), 0)
    };
    // SAFETY: the program asked for this place, or the kernel chooses one.
    let to = unsafe { memory::map_anonymous(hint, new_len, READ_WRITE, place)? };
    let kept = old.len().0.min(new_len.0) as usize;
    // SAFETY: both ranges are mapped and do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(old.start.as_ptr(), to.as_ptr(), kept) };
    release(manager, state, old);
    // SAFETY: the program gives the old range up.
    unsafe { memory::unmap(old)? };
    if asked.dont_unmap() {
        // SAFETY: the range was just vacated.
        unsafe {
            memory::map_anonymous(old.start, old.len(), READ_WRITE, libc::MAP_FIXED_NOREPLACE)?
        };
    }
    Ok(to)
}

/// A fork of a process with memory from the hugetlb pool. The first write on
/// either side needs another superpage, and when the pool has none left the
/// kernel ends the child. So the child copies its pool memory to base pages at
/// once, and the parent's forking thread waits for that. The pipe closes when
/// the child has done so, or is gone; without one, nobody waits.
#[derive(Debug)]
pub(crate) struct PoolCopy(Option<(OwnedFd, OwnedFd)>);

impl PoolCopy {
    pub fn new() -> PoolCopy {
        PoolCopy(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok())
    }

    pub fn wait(self) {
        let Some((done, doing)) = self.0 else { return };
        drop(doing);
        let mut byte = [0u8; 1];
        while rustix::io::read(&done, &mut byte) == Err(rustix::io::Errno::INTR) {}
    }
}

/// Moves pool memory to base pages in the child of a fork, which has this one
/// thread. The table goes on calling it pool memory, because the kernel sees
/// separate mappings that it cannot move or resize as one.
pub(crate) fn copy_from_pool(part: &Interval) {
    // Where there is no memory for the copy, the child goes on with the pool.
    let _ = replace_by_copy(part.range, part.prot);
}
