//! The calls that a program makes on its mappings, with the meaning that they
//! have for private anonymous memory.
//!
//! Each call either handles the request or says that it is the kernel's
//! ([`Handled::No`]): then nothing has been changed and the caller passes the
//! request on. A range that is managed in part is handled as a whole.

use std::sync::atomic::Ordering;

use quire_core::config::Policy;
use quire_core::kin::Start;
use quire_core::stat::{Counter, Note, Privilege, RegionKind};
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, SUPERPAGE, Slot, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::raw::{Errno, Result};
use quire_linux::thread;

use crate::advice::copy_advice;
use crate::extent::Work;
use crate::hands;
use crate::manager::{HeapSpace, Manager, State};
use crate::pool::{map_from_pool, soften};
use crate::region::{Owner, grow_heap};
use crate::remap::{Remap, remap_as_mapped};
use crate::table::{Backing, ExtentState, Interval};

pub(crate) const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
pub(crate) const PLACED: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
const UNDERSTOOD: i32 =
    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_POPULATE | PLACED;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled<T> {
    /// It was carried out, or refused as the kernel would have refused it.
    Yes(Result<T>),
    /// It is the kernel's; nothing has been changed.
    No,
}

impl Manager {
    /// Maps memory for a program that uses this library. `None` when memory
    /// is not managed or there is none.
    pub fn allocate(&'static self, len: Bytes) -> Option<AddrRange> {
        let len = len.to_pages().to_bytes();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        match self.map(VirtAddr(0), len, READ_WRITE, flags) {
            Handled::Yes(Ok(start)) => Some(AddrRange::new(start, len)),
            _ => None,
        }
    }

    /// Unmaps memory.
    ///
    /// # Errors
    /// As `munmap`.
    ///
    /// # Safety
    /// Nothing may use the range afterwards.
    pub unsafe fn free(&self, range: AddrRange) -> Result<()> {
        match self.unmap(range) {
            Handled::Yes(result) => result,
            // SAFETY: passed on to the caller.
            Handled::No => unsafe { memory::unmap(range) },
        }
    }

    /// `mmap` of private anonymous memory.
    pub fn map(
        &'static self,
        hint: VirtAddr,
        len: Bytes,
        prot: i32,
        flags: i32,
    ) -> Handled<VirtAddr> {
        let wanted = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let ours = self.is_started()
            && self.policy() != Policy::Base
            && prot == READ_WRITE
            && flags & !UNDERSTOOD == 0
            && flags & wanted == wanted
            && hint.is_page_aligned()
            && len.0 >= SUPERPAGE
            && len.0 <= self.memory_total.load(Ordering::Relaxed)
            && self.kernel_need_not_count();
        let fixed = flags & libc::MAP_FIXED != 0;
        if !ours {
            return Handled::No;
        }
        let began = thread::now_ns();
        let len = len.to_pages().to_bytes();
        let mut state = self.state.lock();
        if !state.forkers.is_empty() {
            return Handled::No;
        }
        if hint.0 != 0 {
            state.clear_spare(AddrRange::new(hint, len));
        }
        if fixed {
            self.end_left(&mut state, AddrRange::new(hint, len));
        }
        if fixed && is_sealed(&state, AddrRange::new(hint, len)) {
            return Handled::Yes(Err(Errno(libc::EPERM)));
        }
        if fixed && !clear_target(self, &mut state, AddrRange::new(hint, len)) {
            return Handled::No;
        }
        let start = self.start_of(&mut state, len);
        if start == Start::Base {
            return Handled::Yes(self.leave(&mut state, hint, len, flags));
        }
        let mapped = match self.policy() {
            Policy::Static => map_from_pool(self, &mut state, hint, len, flags),
            _ => self.map_object(&mut state, hint, len, flags, start),
        };
        self.note_mapped(&mut state);
        drop(state);
        self.stats()
            .add(Counter::CallTime, thread::now_ns() - began);
        match mapped {
            Ok(at) => {
                if flags & libc::MAP_POPULATE != 0 {
                    let range = AddrRange::new(at, len);
                    // SAFETY: populating a fresh mapping changes no contents.
                    let _ = unsafe { memory::advise(range, Advice::PopulateWrite) };
                }
                Handled::Yes(Ok(at))
            }
            Err(Errno(libc::EEXIST)) => Handled::Yes(Err(Errno(libc::EEXIST))),
            Err(_) => Handled::No,
        }
    }

    /// New memory of the object, ready or made now.
    fn map_object(
        &'static self,
        state: &mut State,
        hint: VirtAddr,
        len: Bytes,
        flags: i32,
        start: Start,
    ) -> Result<VirtAddr> {
        let free = hint.0 == 0 && flags & (PLACED | libc::MAP_POPULATE) == 0;
        let spare = free && self.spare_suits(state, len, start);
        if spare && let Some(at) = self.map_spare(state, len, start) {
            if std::mem::take(&mut state.pager_rests) {
                hands::wake_pager();
            }
            return Ok(at);
        }
        self.with_handles(|handles| {
            let mut work = Work::new(self, handles, state);
            let ready = spare && work.renew_spare(start).is_ok();
            let at = match ready.then(|| self.map_spare(work.state, len, start)) {
                Some(Some(at)) => at,
                _ => {
                    let owner = Owner::New(RegionKind::Anon, start);
                    work.map_region(hint, len, flags, owner)?
                }
            };
            let reported = self.privilege() == Privilege::Full;
            if std::mem::take(&mut state.pager_rests) || !reported {
                thread::signal_event(&handles.event);
            }
            Ok(at)
        })
    }

    /// Memory for the allocator: like [`Manager::map`], but consecutive calls
    /// get consecutive addresses, so that the heap's extents are whole.
    pub fn map_heap(&'static self, len: Bytes, align: Bytes) -> Option<VirtAddr> {
        // What is more than there is, the kernel refuses by its own rules.
        let ours = self.is_started()
            && self.policy() != Policy::Base
            && len.0 <= self.memory_total.load(Ordering::Relaxed);
        if !ours || !self.kernel_need_not_count() {
            return None;
        }
        let mut state = self.state.lock();
        if !state.forkers.is_empty() {
            return None;
        }
        let placed =
            |heap: &HeapSpace| VirtAddr(heap.next.0.next_multiple_of(align.0.max(BASE_PAGE)));
        let mut at = placed(&state.heap);
        if at + len > state.heap.end {
            let missing = Bytes((at + len).0.saturating_sub(state.heap.end.0));
            grow_heap(self, &mut state, missing, len + align).ok()?;
            at = placed(&state.heap);
        }
        state.heap.next = at + len;
        self.note_mapped(&mut state);
        Some(at)
    }

    /// Whether the kernel's own accounting of private memory can be left out:
    /// shared memory does not count against `RLIMIT_DATA`.
    fn kernel_need_not_count(&self) -> bool {
        let unlimited = thread::soft_limit(libc::RLIMIT_DATA) == libc::RLIM64_INFINITY;
        if !unlimited {
            self.stats().note(Note::DataLimit);
        }
        unlimited
    }

    /// `munmap`.
    pub fn unmap(&self, range: AddrRange) -> Handled<()> {
        if self.is_unmanaged(range) && !self.has_left() {
            return Handled::No;
        }
        let mut state = self.state.lock();
        state.clear_spare(range);
        self.end_left(&mut state, range);
        if !state.table.touches(range) {
            return Handled::No;
        }
        if is_sealed(&state, range) {
            return Handled::Yes(Err(Errno(libc::EPERM)));
        }
        // SAFETY: the program gives the range up.
        let unmapped =
            release(self, &mut state, range).and_then(|()| unsafe { memory::unmap(range) });
        self.note_mapped(&mut state);
        Handled::Yes(unmapped)
    }

    /// `mprotect`.
    pub fn protect(&self, range: AddrRange, prot: i32) -> Handled<()> {
        self.protect_by(range, prot, || {
            // SAFETY: the program asked for it.
            unsafe { memory::protect(range, prot) }
        })
    }

    /// A change of protection that `change` makes.
    pub fn protect_by(
        &self,
        range: AddrRange,
        prot: i32,
        change: impl FnOnce() -> Result<()>,
    ) -> Handled<()> {
        if self.is_unmanaged(range) {
            return Handled::No;
        }
        let mut state = self.state.lock();
        state.clear_spare(range);
        if !state.table.touches(range) {
            return Handled::No;
        }
        let result = soften(self, &mut state, range).and_then(|()| change());
        let changed = match result {
            Ok(()) => range,
            // The kernel has changed what lies before a hole, or before what is sealed.
            Err(Errno(libc::ENOMEM)) => memory::mapped_start(range),
            Err(Errno(libc::EPERM)) => before_sealed(&state, range),
            Err(_) => return Handled::Yes(result),
        };
        state.table.update(changed, |i| i.prot = prot);
        for slot in changed.slots().map(Slot) {
            demote_if_split(self, &mut state, slot);
        }
        Handled::Yes(result)
    }

    /// `mlock`, `munlock` and the like, which `change` carries out.
    pub fn lock_by(
        &self,
        range: AddrRange,
        locked: bool,
        change: impl Fn() -> Result<()>,
    ) -> Handled<()> {
        if self.is_unmanaged(range) {
            return Handled::No;
        }
        self.state.lock().clear_spare(range);
        // Locking faults the range in, which may need the pager, so it is done
        // without the lock.
        let mut result = change();
        if result.is_ok() {
            self.state.lock().table.update(range, |i| i.locked = locked);
        }
        if result.is_ok() {
            // What was mapped anew before the table knew.
            result = change();
        }
        Handled::Yes(result)
    }

    /// `mremap`.
    pub fn remap(
        &'static self,
        old: AddrRange,
        new_len: Bytes,
        flags: i32,
        new: VirtAddr,
    ) -> Handled<VirtAddr> {
        let fixed = flags & libc::MREMAP_FIXED != 0;
        let target = AddrRange::new(new, new_len.to_pages().to_bytes());
        let touches_new = fixed && !self.is_unmanaged(target);
        if self.is_unmanaged(old) && !touches_new {
            return Handled::No;
        }
        let old_len = old.len().to_pages().to_bytes();
        let new_len = new_len.to_pages().to_bytes();
        let old = AddrRange::new(old.start, old_len);
        let mut state = self.state.lock();
        state.clear_spare(old);
        state.clear_spare(target);
        if !state.table.touches(old) {
            return Handled::No;
        }
        if new_len.0 > self.memory_total.load(Ordering::Relaxed) {
            return Handled::Yes(Err(Errno(libc::ENOMEM)));
        }
        let overlap = fixed && !old.intersect(target).is_empty();
        if !old.start.is_page_aligned()
            || new_len.0 == 0
            || old_len.0 == 0
            || flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0
            || (fixed && (!new.is_page_aligned() || flags & libc::MREMAP_MAYMOVE == 0 || overlap))
        {
            return Handled::Yes(Err(Errno(libc::EINVAL)));
        }
        let asked = Remap {
            old,
            new_len,
            flags,
            new,
        };
        let result = match is_sealed(&state, old) || (fixed && is_sealed(&state, target)) {
            true => Err(Errno(libc::EPERM)),
            false => remap_as_mapped(self, &mut state, asked),
        };
        self.note_mapped(&mut state);
        Handled::Yes(result)
    }

    /// Whether a range certainly is not managed, without taking the lock.
    pub(crate) fn is_unmanaged(&self, range: AddrRange) -> bool {
        range.is_empty() || self.table_empty.load(Ordering::Acquire)
    }
}

/// Whether the program has sealed something of a range.
fn is_sealed(state: &State, range: AddrRange) -> bool {
    state.table.overlaps(range).any(|part| part.sealed)
}

/// The part of a range that lies before what is sealed or not mapped.
fn before_sealed(state: &State, range: AddrRange) -> AddrRange {
    let sealed = state.table.overlaps(range).find(|part| part.sealed);
    let end = sealed.map_or(range.start, |part| part.range.start);
    memory::mapped_start(range.split_at(end).0)
}

/// A target of `MAP_FIXED`: what is managed there is released. Says whether
/// the request may go on here.
fn clear_target(manager: &Manager, state: &mut State, range: AddrRange) -> bool {
    let cleared = !state.table.touches(range) || release(manager, state, range).is_ok();
    cleared && range.start.0.checked_add(range.len().0).is_some()
}

/// After a fork, memory that reads from the object is replaced by fresh
/// anonymous memory, because dropping its pages would bring the object's
/// contents back instead of zeros.
pub(crate) fn make_anonymous(state: &mut State, part: &Interval) -> Result<()> {
    let flags = libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the program gives the contents up.
    unsafe { memory::map_anonymous(part.range.start, part.range.len(), part.prot, flags)? };
    copy_advice(part.range, part);
    if part.backing == Backing::Inherited {
        state.table.remove(part.range);
    } else {
        state
            .table
            .update(part.range, |i| i.backing = Backing::Anonymous);
    }
    Ok(())
}

/// A superpage that one protection no longer covers is base pages now.
fn demote_if_split(manager: &Manager, state: &mut State, slot: Slot) {
    let Some(extent) = state.table.extents.get(slot).copied() else {
        return;
    };
    if extent.is_superpage() && !state.table.slot_is_uniform(slot) {
        if let Some(extent) = state.table.extents.get_mut(slot) {
            extent.state = ExtentState::Whole;
            extent.popmap = quire_core::popmap::Popmap::new();
            extent.folio = false;
        }
        if let Some(region) = state.table.regions.get_mut(&extent.region) {
            region.demotions += 1;
        }
        manager.stats().add(Counter::Demotions, 1);
    }
}

/// Takes a range out of the table and gives its memory back, before it is
/// unmapped or mapped over.
///
/// # Errors
/// When a part of a hugetlb page lies in it and there is no memory for a copy of
/// the rest. Nothing has been changed then.
pub(crate) fn release(manager: &Manager, state: &mut State, range: AddrRange) -> Result<()> {
    soften(manager, state, range)?;
    manager.measure_ending(state, range);
    break_edges(manager, state, range);
    let parts = state.table.remove(range);
    for part in &parts {
        match part.backing {
            Backing::Shared => {
                if part.locked {
                    let _ = unlock(part.range);
                }
                if !holds_nothing(manager, state, part.range) {
                    // SAFETY: the program gives the range up. Where the kernel
                    // refuses, the memory stays in the object until exit.
                    let _ = unsafe { memory::advise(part.range, Advice::Remove) };
                }
            }
            Backing::Private | Backing::Anonymous => {
                state.garbage.push((part.offset, part.range.len()));
            }
            Backing::Plain | Backing::Inherited | Backing::Left | Backing::Pool(_) => {}
        }
    }
    forget_extents(state, range, &parts);
    Ok(())
}

/// Takes out of the table what was known of a range, of which these parts were managed.
pub(crate) fn forget_extents(state: &mut State, range: AddrRange, parts: &[Interval]) {
    for slot in range.slots().map(Slot) {
        if state.table.slot_offset(slot).is_none() {
            state.table.extents.remove(slot);
            state.queue.remove(slot);
        }
    }
    state
        .table
        .drop_dead_regions(parts.iter().map(|part| part.region));
    if state.heap.end > range.start && range.end > state.heap.next {
        state.heap.end = state.heap.next;
    }
}

/// Whether it is known without asking the kernel that the object holds nothing
/// of a range: no touch of its extents has been reported. Since a fork, reads are
/// not reported everywhere.
pub(crate) fn holds_nothing(manager: &Manager, state: &State, range: AddrRange) -> bool {
    let untouched = |slot: u64| {
        let extent = state.table.extents.get(Slot(slot));
        extent.is_some_and(|e| e.state == ExtentState::Empty && !e.busy && !e.folio)
    };
    manager.privilege() == Privilege::Full
        && state.fork_count == 0
        && range.whole_superpages() == range
        && range.slots().all(untouched)
}

/// Extents that lose only a part of their range leave the reservation to base
/// pages first.
pub(crate) fn break_edges(manager: &Manager, state: &mut State, range: AddrRange) {
    for at in [range.start, range.end] {
        let slot = at.slot();
        let Some(extent) = state.table.extents.get(slot).copied() else {
            continue;
        };
        if at.is_superpage_aligned() || range.contains(slot.range()) {
            continue;
        }
        if extent.is_superpage() {
            manager.stats().add(Counter::Demotions, 1);
            if let Some(region) = state.table.regions.get_mut(&extent.region) {
                region.demotions += 1;
            }
        }
        if !state.table.slot_is_shared(slot) {
            continue;
        }
        // Where it fails, the rest of the extent stays reserved until exit.
        let _ = manager.with_handles(|handles| {
            let mut work = Work::new(manager, handles, state);
            if extent.is_reservation() && manager.privilege() == Privilege::Full {
                work.preempt(slot)?;
            }
            if extent.state == ExtentState::Empty || extent.is_reservation() {
                work.make_base(slot..slot.next());
            }
            Ok(())
        });
    }
}

pub(crate) fn unlock(range: AddrRange) -> Result<()> {
    // SAFETY: unlocking changes neither contents nor protection.
    unsafe {
        quire_linux::raw::check(quire_linux::raw::syscall_raw(
            libc::SYS_munlock,
            [range.start.0 as usize, range.len().0 as usize, 0, 0, 0, 0],
        ))
    }
    .map(drop)
}
