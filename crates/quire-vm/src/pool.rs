//! Superpages of the hugetlb pools, for the policy `static` (paper 001, static
//! variable pages). A mapping takes pages of 1 GiB where they fit and are free,
//! then pages of 2 MiB, then base pages.
//!
//! The kernel changes a page of a pool only as a whole, so what the program
//! does to a part of one takes a copy in smaller pages ([`copy`]); and it ends a
//! process that needs one more than the pool has, so a fork leaves none shared.

mod copy;

use std::os::fd::OwnedFd;

use quire_core::config::Policy;
use quire_core::pool::{PoolPage, edges};
use quire_core::stat::{Counter, Note, RegionKind};
use quire_core::units::{AddrRange, Bytes, ObjectOffset, VirtAddr};
use quire_linux::memory;
use quire_linux::raw::{Errno, Result};
use quire_linux::{sysinfo, thread};

use crate::hands;
use crate::manager::{Manager, State};
use crate::mapping::{PLACED, READ_WRITE};
use crate::table::{Backing, Interval, Region, RegionId, Table};
use copy::{Hold, can_hold_back};
pub(crate) use copy::{copy_inherited, copy_object, demote, leave_pool};

/// Takes pages from the hugetlb pools for a mapping; what they do not cover, all
/// of it when they are empty, is base pages.
pub(crate) fn map_from_pool(
    manager: &Manager,
    state: &mut State,
    hint: VirtAddr,
    len: Bytes,
    flags: i32,
) -> Result<VirtAddr> {
    let largest = largest_page(state.config.pool_page, len);
    let range = AddrRange::new(map_base_pages(hint, len, flags, largest)?, len);
    let mut filling = Filling {
        manager,
        state,
        region: None,
    };
    filling.take(range, largest)?;
    Ok(range.start)
}

/// The largest page that a mapping can have. Pages of 1 GiB are for those who
/// can hold writers back: copying one takes long, and a write that comes
/// meanwhile must not be lost.
fn largest_page(allowed: PoolPage, len: Bytes) -> PoolPage {
    let wanted = allowed == PoolPage::Gigapage && len >= PoolPage::Gigapage.bytes();
    if wanted && free_pages(PoolPage::Gigapage) > 0 && can_hold_back() {
        PoolPage::Gigapage
    } else {
        PoolPage::Superpage
    }
}

/// Pages of a pool that nobody has.
fn free_pages(page: PoolPage) -> u64 {
    hands::apart(|| sysinfo::memory::free_pool_pages(page))
}

/// A new mapping on its way from base pages to pages of the pools.
struct Filling<'a> {
    manager: &'a Manager,
    state: &'a mut State,
    /// The region of the mapping, once it has a page.
    region: Option<RegionId>,
}

impl Filling<'_> {
    /// Takes pages of a size for what they fit, and of smaller sizes for the rest.
    fn take(&mut self, range: AddrRange, page: PoolPage) -> Result<()> {
        let free = match page {
            // The kernel says when it has none, and may have surplus pages.
            PoolPage::Superpage => u64::MAX,
            PoolPage::Gigapage => free_pages(page),
        };
        let mut division = page.divide(range, free);
        if !division.pages.is_empty() {
            match map_pages(division.pages.len(), page) {
                Ok(made) => self.enter(made, division.pages, page)?,
                Err(_) => {
                    self.note_failure(division.pages, page);
                    division = page.divide(range, 0);
                }
            }
        }
        let Some(smaller) = page.smaller() else {
            return Ok(());
        };
        [division.before, division.after]
            .into_iter()
            .filter(|rest| !rest.is_empty())
            .try_for_each(|rest| self.take(rest, smaller))
    }

    fn enter(&mut self, made: AddrRange, pages: AddrRange, page: PoolPage) -> Result<()> {
        move_into_place(made, pages.start)?;
        let table = &mut self.state.table;
        let region = *self
            .region
            .get_or_insert_with(|| table.add_region(Region::new(RegionKind::Anon, Policy::Static)));
        table.insert(Interval {
            backing: Backing::Pool(page),
            ..Interval::fresh(pages, ObjectOffset(0), region)
        });
        self.manager
            .table_empty
            .store(false, std::sync::atomic::Ordering::Release);
        let slots = PoolPage::Superpage.count(pages);
        self.manager.stats().add(Counter::Reservations, slots);
        Ok(())
    }

    fn note_failure(&self, pages: AddrRange, page: PoolPage) {
        if page.smaller().is_none() {
            let stats = self.manager.stats();
            stats.note(Note::HugetlbPoolEmpty);
            stats.add(Counter::FailedReservations, page.count(pages));
        }
    }
}

/// Maps pages of a pool somewhere. Not at once where they are to be: where the
/// pool is too small, the kernel may leave a gap, which another thread's mapping
/// may fill.
fn map_pages(len: Bytes, page: PoolPage) -> Result<AddrRange> {
    let huge = libc::MAP_HUGETLB
        | match page {
            PoolPage::Superpage => libc::MAP_HUGE_2MB,
            PoolPage::Gigapage => libc::MAP_HUGE_1GB,
        };
    // SAFETY: a new mapping at an address that the kernel chooses.
    let made = unsafe { memory::map_anonymous(VirtAddr(0), len, READ_WRITE, huge)? };
    Ok(AddrRange::new(made, len))
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

/// Base pages where the program asked for them, at a superpage boundary, or
/// somewhere where the largest page that is wanted fits.
fn map_base_pages(hint: VirtAddr, len: Bytes, flags: i32, largest: PoolPage) -> Result<VirtAddr> {
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
        // Address space may be limited.
        let at = memory::reserve_space_modulo(len, 0, largest.bytes())
            .or_else(|_| memory::reserve_space(len, 0))?;
        // SAFETY: the address space was just reserved.
        unsafe { memory::map_anonymous(at, len, READ_WRITE, libc::MAP_FIXED) }
    }
}

/// From this size on, whole pages whose contents are given up go back to their pool. Less is zeroed: each return cuts
/// a mapping, and a process may have only so many.
const RETURNED: Bytes = Bytes::mib(16);

/// Gives up the contents of pages from a pool.
///
/// The kernel would drop whole pages (`MADV_DONTNEED`), but not always reserve new ones for the next touches: not
/// before Linux 6.8, and not while the pool is larger than it was set to be. Where others took the pages meanwhile, the
/// touch would end the program. So what is returned is mapped anew.
///
/// # Errors
/// When there is no memory for mappings; what was not given up is then what it was.
pub(crate) fn discard_pool(
    manager: &Manager,
    state: &mut State,
    part: &Interval,
    page: PoolPage,
) -> Result<()> {
    let division = page.divide(part.range, u64::MAX);
    let is_writable = part.prot & libc::PROT_WRITE != 0;
    if is_writable && division.pages.len() < RETURNED {
        zero(part.range);
        return Ok(());
    }
    for rest in [division.before, division.after] {
        if !rest.is_empty() {
            zero(rest);
        }
    }
    if division.pages.is_empty() {
        return Ok(());
    }
    map_anew(manager, state, &part.clip(division.pages), page)
}

/// Returns whole pages to their pool, and takes as many from it; where others have them, base pages.
fn map_anew(manager: &Manager, state: &mut State, part: &Interval, page: PoolPage) -> Result<()> {
    let (range, prot) = (part.range, part.prot);
    // SAFETY: the program gave up the contents of the range, which is Quire's mapping.
    unsafe { memory::map_anonymous(range.start, range.len(), prot, libc::MAP_FIXED)? };
    let taken = map_pages(range.len(), page).and_then(|made| {
        // SAFETY: nobody else knows the mapping.
        unsafe { memory::protect(made, prot)? };
        move_into_place(made, range.start)
    });
    if taken.is_err() {
        state.table.update(range, |i| i.backing = Backing::Plain);
        manager.stats().note(Note::HugetlbPoolEmpty);
        copy::count_demotions(manager, state, part);
    }
    copy::restore(part);
    Ok(())
}

/// Zeroes what is there of a writable piece. What was never touched holds zeros,
/// and touching it would take a page.
fn zero(piece: AddrRange) {
    for run in copy::populated(piece) {
        // SAFETY: the piece is mapped writable, and the program gave its
        // contents up.
        unsafe { std::ptr::write_bytes(run.start.as_ptr(), 0, run.len().0 as usize) };
    }
}

/// Pages of a pool that a change of `range` meets in part go to smaller pages
/// first, to 2 MiB as far as the pool has them.
///
/// # Errors
/// When there is no memory for the copy. The pages are then what they were, and
/// the change must not be made.
pub(crate) fn soften(manager: &Manager, state: &mut State, range: AddrRange) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    for at in edges(range) {
        while let Some((part, page)) = met_in_part(&state.table, range, at) {
            let smaller = page
                .smaller()
                .filter(|smaller| copy::into_pool(state, &part, *smaller).is_ok());
            if smaller.is_none() {
                demote(manager, state, &part)?;
            }
        }
    }
    Ok(())
}

/// The page of a pool at one end of a range that the range covers in part.
fn met_in_part(table: &Table, range: AddrRange, at: VirtAddr) -> Option<(Interval, PoolPage)> {
    let interval = table.interval_at(at)?;
    let Backing::Pool(page) = interval.backing else {
        return None;
    };
    let whole = page.met_in_part(range, at)?;
    Some((interval.clip(whole), page))
}

/// A fork of a process with memory from the hugetlb pools. The first write on
/// either side needs another page, and when the pool has none left the kernel
/// takes the child's and ends it. So the child copies its pool memory to base
/// pages at once. The parent's forking thread waits for that, and so do all others
/// that want to write to pool memory. The pipe closes
/// when the child has its copy, or is gone; without one, nobody waits.
#[derive(Debug)]
pub(crate) struct PoolCopy {
    held: Option<Hold>,
    pipe: Option<(OwnedFd, OwnedFd)>,
}

impl PoolCopy {
    /// For the moment before a fork; nothing where no memory is a pool's.
    pub fn prepare(table: &Table) -> Option<PoolCopy> {
        let parts: Vec<(AddrRange, PoolPage)> = table
            .intervals()
            .filter_map(|i| match i.backing {
                Backing::Pool(page) => Some((i.range, page)),
                _ => None,
            })
            .collect();
        if parts.is_empty() {
            return None;
        }
        // However many pages are free now: others may take them until the child has its copy.
        Some(PoolCopy {
            held: hold_writers(&parts),
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
        if let Some(held) = self.held {
            held.end();
        }
    }
}

/// Holds back writers to pool memory, where the kernel grants that. What the
/// calling thread needs to go on, its stack and its variables, is left out.
fn hold_writers(parts: &[(AddrRange, PoolPage)]) -> Option<Hold> {
    let mut hold = Hold::open()?;
    let own = thread::own_memory();
    for (range, page) in parts {
        page.cut(*range)
            .filter(|piece| !own.iter().any(|at| page.around(*at) == *piece))
            .for_each(|piece| hold.add(piece));
    }
    Some(hold)
}
