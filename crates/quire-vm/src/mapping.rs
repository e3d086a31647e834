//! The calls that a program makes on its mappings, with the meaning that they
//! have for private anonymous memory.
//!
//! Each call either handles the request or says that it is the kernel's
//! ([`Handled::No`]): then nothing has been changed and the caller passes the
//! request on. A range that is managed in part is handled as a whole.

use std::ops::Range;

use quire_core::config::Policy;
use quire_core::stat::{Counter, Note, Privilege, RegionKind};
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, SUPERPAGE, Slot, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::raw::{Errno, Result};
use quire_linux::{pagemap, thread};

use crate::extent::{Work, slots_needed};
use crate::manager::{Manager, State};
use crate::table::{Backing, ExtentState, Interval, Region, RegionId};

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PLACED: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
const UNDERSTOOD: i32 =
    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_POPULATE | PLACED;
const MADV_FREE: i32 = libc::MADV_FREE;

/// The allocator's requests below this size are not served from the hugetlb
/// pool: between a fork and its handlers the C library may write to small
/// blocks in the child, and an empty pool would kill it.
const STATIC_HEAP: Bytes = Bytes::mib(8);

/// How many extents are reserved at the time of a mapping where it cannot be
/// done at the first touch.
const AT_ONCE: usize = 8;

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
            && prot == READ_WRITE
            && flags & !UNDERSTOOD == 0
            && flags & wanted == wanted
            && hint.is_page_aligned()
            && len.0 >= SUPERPAGE
            && len.0 <= self.memory_total.load(std::sync::atomic::Ordering::Relaxed)
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
        if fixed && !clear_target(self, &mut state, AddrRange::new(hint, len)) {
            return Handled::No;
        }
        let mapped = match self.policy() {
            Policy::Static => map_from_pool(self, &mut state, hint, len, flags),
            _ => self.with_handles(|handles| {
                let mut work = Work {
                    manager: self,
                    handles,
                    state: &mut state,
                };
                let at = work.map_region(hint, len, flags, RegionKind::Anon, None)?;
                thread::signal_event(&handles.event);
                Ok(at)
            }),
        };
        state.count_mapped(self.stats());
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

    /// Memory for the allocator: like [`Manager::map`], but consecutive calls
    /// get consecutive addresses, so that the heap's extents are whole.
    pub fn map_heap(&'static self, len: Bytes, align: Bytes) -> Option<VirtAddr> {
        if !self.is_started() || !self.kernel_need_not_count() {
            return None;
        }
        let mut state = self.state.lock();
        if !state.forkers.is_empty() {
            return None;
        }
        let placed = |heap: &crate::manager::HeapSpace| {
            VirtAddr(heap.next.0.next_multiple_of(align.0.max(BASE_PAGE)))
        };
        let mut at = placed(&state.heap);
        if at + len > state.heap.end {
            let missing = Bytes((at + len).0.saturating_sub(state.heap.end.0));
            grow_heap(self, &mut state, missing, len + align).ok()?;
            at = placed(&state.heap);
        }
        state.heap.next = at + len;
        state.count_mapped(self.stats());
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
        if self.is_unmanaged(range) {
            return Handled::No;
        }
        let mut state = self.state.lock();
        if !state.table.touches(range) {
            return Handled::No;
        }
        release(self, &mut state, range);
        state.count_mapped(self.stats());
        // SAFETY: the program gives the range up.
        Handled::Yes(unsafe { memory::unmap(range) })
    }

    /// Makes way for a mapping that the kernel will place over `range`.
    pub fn make_way(&self, range: AddrRange) {
        if !self.is_unmanaged(range) {
            let mut state = self.state.lock();
            if state.table.touches(range) {
                release(self, &mut state, range);
            }
        }
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
        if !state.table.touches(range) {
            return Handled::No;
        }
        soften(&state, range);
        let result = change();
        if result.is_ok() {
            state.table.update(range, |i| i.prot = prot);
            for slot in range.slots().map(Slot) {
                demote_if_split(self, &mut state, slot);
            }
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
        // Locking faults the range in, which may need the pager, so it is done
        // without the lock.
        let mut result = change();
        if result.is_ok() {
            self.state.lock().table.update(range, |i| i.locked = locked);
        }
        if result.is_ok() && locked {
            // What was mapped anew before it was marked as locked.
            result = change();
        }
        Handled::Yes(result)
    }

    /// `madvise`.
    pub fn advise(&self, range: AddrRange, advice: i32) -> Handled<()> {
        if self.is_unmanaged(range) || !range.start.is_page_aligned() {
            return Handled::No;
        }
        let range = AddrRange::new(range.start, range.len().to_pages().to_bytes());
        let mut state = self.state.lock();
        if !state.table.touches(range) {
            return Handled::No;
        }
        let result = match advice {
            libc::MADV_DONTNEED | MADV_FREE => self.discard_all(&mut state, range, advice),
            libc::MADV_DONTFORK | libc::MADV_DOFORK => {
                let dont = advice == libc::MADV_DONTFORK;
                set_fork_behaviour(&mut state, range, advice, |i| i.dont_fork = dont)
            }
            libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => {
                let wipe = advice == libc::MADV_WIPEONFORK;
                set_fork_behaviour(&mut state, range, advice, |i| i.wipe_on_fork = wipe)
            }
            // Private anonymous memory cannot be punched out.
            libc::MADV_REMOVE => Err(Errno(libc::EINVAL)),
            // Page sizes are this library's business; merging is only advice,
            // and shared memory cannot follow it.
            libc::MADV_HUGEPAGE
            | libc::MADV_NOHUGEPAGE
            | libc::MADV_MERGEABLE
            | libc::MADV_UNMERGEABLE => Ok(()),
            _ => {
                drop(state);
                // SAFETY: the program asked for it, and none of the remaining
                // advice changes what the memory holds.
                return Handled::Yes(unsafe { memory::advise_raw(range, advice) });
            }
        };
        Handled::Yes(result)
    }

    /// Gives up the contents of a range, for the allocator.
    ///
    /// # Errors
    /// When the kernel refuses; the contents are then unchanged or zero.
    pub fn discard(&self, range: AddrRange) -> Result<()> {
        match self.advise(range, libc::MADV_DONTNEED) {
            Handled::Yes(result) => result,
            // SAFETY: the allocator has given the contents up.
            Handled::No => unsafe { memory::advise(range, Advice::DontNeed) },
        }
    }

    fn discard_all(&self, state: &mut State, range: AddrRange, advice: i32) -> Result<()> {
        let parts: Vec<Interval> = state.table.overlaps(range).collect();
        if parts.iter().any(|i| i.locked) && advice == libc::MADV_DONTNEED {
            return Err(Errno(libc::EINVAL));
        }
        let mut next = range.start;
        for part in parts {
            let gap = AddrRange {
                start: next,
                end: part.range.start,
            };
            next = part.range.end;
            if !gap.is_empty() {
                // SAFETY: the program gives the contents up.
                unsafe { memory::advise_raw(gap, advice)? };
            }
            self.discard_interval(state, &part)?;
        }
        let rest = AddrRange {
            start: next,
            end: range.end,
        };
        if rest.is_empty() {
            return Ok(());
        }
        // SAFETY: the program gives the contents up.
        unsafe { memory::advise_raw(rest, advice) }
    }

    fn discard_interval(&self, state: &mut State, part: &Interval) -> Result<()> {
        match part.backing {
            Backing::Shared => self.with_handles(|handles| {
                let mut work = Work {
                    manager: self,
                    handles,
                    state,
                };
                work.discard(part.range)
            }),
            // SAFETY: the program gives the contents up.
            Backing::Anonymous => unsafe { memory::advise(part.range, Advice::DontNeed) },
            Backing::Private | Backing::Inherited => make_anonymous(state, part),
            Backing::Pool if part.prot & libc::PROT_WRITE == 0 => {
                soften(state, part.range);
                // SAFETY: the program gives the contents up.
                unsafe { memory::advise(part.range, Advice::DontNeed) }
            }
            Backing::Pool => discard_pool(part),
        }
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
        if !state.table.touches(old) {
            if fixed && new.is_page_aligned() && state.table.touches(target) {
                release(self, &mut state, target);
            }
            return Handled::No;
        }
        if new_len.0 > self.memory_total.load(std::sync::atomic::Ordering::Relaxed) {
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
        let result = remap_managed(self, &mut state, old, new_len, flags, new);
        state.count_mapped(self.stats());
        Handled::Yes(result)
    }

    /// Whether a range certainly is not managed, without taking the lock.
    fn is_unmanaged(&self, range: AddrRange) -> bool {
        range.is_empty() || self.table_empty.load(std::sync::atomic::Ordering::Acquire)
    }
}

/// A target of `MAP_FIXED`: what is managed there is released. Says whether
/// the request may go on here.
fn clear_target(manager: &Manager, state: &mut State, range: AddrRange) -> bool {
    if state.table.touches(range) {
        release(manager, state, range);
    }
    range.start.0.checked_add(range.len().0).is_some()
}

impl Work<'_> {
    /// Maps a new run of the object and enters it into the table.
    pub fn map_region(
        &mut self,
        hint: VirtAddr,
        len: Bytes,
        flags: i32,
        kind: RegionKind,
        region: Option<RegionId>,
    ) -> Result<VirtAddr> {
        let slots = slots_needed(hint, len);
        let before = (self.state.next_offset, self.state.pool_end);
        let (first, ready) = self.state.take_offsets(slots);
        let offset = first + Bytes(hint.0 % SUPERPAGE);
        let placed = self.place(hint, len, flags, offset);
        if placed.is_err() {
            (self.state.next_offset, self.state.pool_end) = before;
        }
        let at = placed?;
        let range = AddrRange::new(at, len);
        let policy = self.manager.policy();
        let whole = policy == Policy::Eager || flags & libc::MAP_POPULATE != 0;
        let ready_slots = range.start.slot().0..range.start.slot().0 + ready;
        // SAFETY: advice on a mapping that was just made and nobody uses.
        let hidden = unsafe { memory::advise(range, Advice::DontFork) };
        let armed = hidden.and_then(|()| {
            let ready_end = Slot(ready_slots.end).start();
            self.arm_fresh(range, if whole { range.end } else { ready_end })
        });
        if let Err(errno) = armed {
            // SAFETY: the mapping was just made and nobody uses it.
            let _ = unsafe { memory::unmap(range) };
            return Err(errno);
        }
        // `mlockall` makes the kernel populate what is mapped.
        let locked = self.holds_pages(range)?;
        let whole = whole || locked;
        if locked {
            self.arm_whole(range)?;
        }
        let region = match region {
            Some(region) => region,
            None => self.state.table.add_region(Region::new(kind, policy)),
        };
        self.state.table.insert(Interval {
            range,
            offset,
            prot: READ_WRITE,
            region,
            backing: Backing::Shared,
            dont_fork: false,
            wipe_on_fork: false,
            locked,
        });
        let initial = if whole {
            ExtentState::Whole
        } else {
            ExtentState::Empty
        };
        self.state.table.add_extents(range, initial, region);
        self.adopt_pool(ready_slots);
        if self.manager.privilege() == Privilege::User && initial == ExtentState::Empty {
            self.reserve_at_once(range);
        }
        self.manager
            .table_empty
            .store(false, std::sync::atomic::Ordering::Release);
        Ok(at)
    }

    /// Where touches of missing pages cannot be reported, the first extents are
    /// reserved before the program can touch them; the pager goes on from
    /// there.
    fn reserve_at_once(&mut self, range: AddrRange) {
        for slot in range.slots().map(Slot).take(AT_ONCE) {
            let Some(offset) = self.state.table.slot_offset(slot) else {
                continue;
            };
            let empty = self.state.table.extents.get_mut(&slot);
            let Some(extent) = empty.filter(|e| e.state == ExtentState::Empty && !e.busy) else {
                continue;
            };
            let len = Bytes(SUPERPAGE);
            if quire_linux::huge_file::allocate(self.handles.object(), offset, len).is_err() {
                return;
            }
            extent.state = ExtentState::Reserved;
            extent.folio = true;
            self.state.queue.touch(slot);
            self.manager.stats().add(Counter::Reservations, 1);
        }
    }

    fn holds_pages(&self, range: AddrRange) -> Result<bool> {
        let mut any = false;
        let filter = pagemap::Filter::PRESENT;
        pagemap::scan(self.handles.pagemap(), range, filter, |_| any = true)?;
        Ok(any)
    }

    /// Extents whose offsets came from the pool hold their folio already, so
    /// mapping them whole takes no more memory than they have.
    fn adopt_pool(&mut self, ready: Range<u64>) {
        for slot in ready.map(Slot) {
            if let Some(extent) = self.state.table.extents.get_mut(&slot) {
                extent.state = ExtentState::Whole;
                extent.folio = true;
                self.state.queue.touch(slot);
            }
        }
        let busy = self.state.pool_busy;
        let busy = busy.and_then(|offset| self.state.table.slot_of(offset));
        if let Some(extent) = busy.and_then(|slot| self.state.table.extents.get_mut(&slot)) {
            extent.busy = true;
        }
    }

    /// Finds a place for `len` bytes whose addresses are congruent to their
    /// offsets, and maps them there.
    fn place(
        &self,
        hint: VirtAddr,
        len: Bytes,
        flags: i32,
        offset: quire_core::units::ObjectOffset,
    ) -> Result<VirtAddr> {
        let object = self.handles.object();
        let map = |at, how| {
            let how = libc::MAP_SHARED | libc::MAP_NORESERVE | how;
            // SAFETY: only `MAP_FIXED` replaces anything, and it is used where
            // the program asked for it or where address space was reserved.
            unsafe { memory::map_file(at, len, READ_WRITE, how, object, offset) }
        };
        if flags & PLACED != 0 {
            return map(hint, flags & PLACED);
        }
        if hint.0 != 0
            && let Ok(at) = map(hint, libc::MAP_FIXED_NOREPLACE)
        {
            return Ok(at);
        }
        if offset.0.is_multiple_of(SUPERPAGE) {
            let at = map(VirtAddr(0), 0)?;
            if at.is_superpage_aligned() {
                return Ok(at);
            }
            // SAFETY: the mapping was just made and nobody uses it.
            unsafe { memory::unmap(AddrRange::new(at, len))? };
        }
        map(memory::reserve_space(len, offset.0)?, libc::MAP_FIXED)
    }

    /// Arms a fresh mapping: up to `whole_end` to be mapped whole, the
    /// superpages behind it for reservation. Its edges, which belong to no
    /// extent, are left to the kernel.
    fn arm_fresh(&self, range: AddrRange, whole_end: VirtAddr) -> Result<()> {
        let (whole, rest) = range.split_at(whole_end);
        if !whole.is_empty() {
            self.arm_whole(whole)?;
        }
        if rest.is_empty() {
            return Ok(());
        }
        // SAFETY: advice about page sizes does not change contents.
        unsafe { memory::advise(rest, Advice::NoHugePage)? };
        let inner = AddrRange {
            start: VirtAddr(rest.start.0.next_multiple_of(SUPERPAGE)),
            end: VirtAddr(range.end.0 / SUPERPAGE * SUPERPAGE),
        };
        if inner.is_empty() {
            return Ok(());
        }
        self.arm(inner)
    }
}

/// Extends the heap by `missing` bytes where it is, or else begins a new run
/// of `fresh` bytes.
fn grow_heap(
    manager: &'static Manager,
    state: &mut State,
    missing: Bytes,
    fresh: Bytes,
) -> Result<()> {
    let whole = |b: Bytes| Bytes(b.0.next_multiple_of(SUPERPAGE));
    if manager.policy() == Policy::Static {
        if fresh < STATIC_HEAP {
            return Err(Errno(libc::ENOMEM));
        }
        let at = map_from_pool(manager, state, VirtAddr(0), whole(fresh), 0)?;
        state.heap.next = at;
        state.heap.end = at + whole(fresh);
        return Ok(());
    }
    let (region, end) = (state.heap.region, state.heap.end);
    manager.with_handles(|handles| {
        let mut work = Work {
            manager,
            handles,
            state,
        };
        let kind = RegionKind::Heap;
        let extended = if end.0 == 0 {
            Err(Errno(libc::ENOMEM))
        } else {
            let flags = libc::MAP_FIXED_NOREPLACE;
            work.map_region(end, whole(missing), flags, kind, region)
        };
        if extended.is_err() {
            let at = work.map_region(VirtAddr(0), whole(fresh), 0, kind, region)?;
            state.heap.next = at;
            state.heap.end = at + whole(fresh);
        } else {
            state.heap.end = end + whole(missing);
        }
        let last = state.table.interval_at(VirtAddr(state.heap.end.0 - 1));
        state.heap.region = last.map(|i| i.region);
        thread::signal_event(&handles.event);
        Ok(())
    })
}

/// Takes superpages from the hugetlb pool for the whole superpages of a
/// mapping; the rest, and all of it when the pool is empty, is base pages.
fn map_from_pool(
    manager: &Manager,
    state: &mut State,
    hint: VirtAddr,
    len: Bytes,
    flags: i32,
) -> Result<VirtAddr> {
    let at = if hint.0 != 0 {
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
        })?
    } else {
        let at = memory::reserve_space(len, 0)?;
        // SAFETY: the address space was just reserved.
        unsafe { memory::map_anonymous(at, len, READ_WRITE, libc::MAP_FIXED)? }
    };
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
                range: pages,
                offset: quire_core::units::ObjectOffset(0),
                prot: READ_WRITE,
                region,
                backing: Backing::Pool,
                dont_fork: false,
                wipe_on_fork: false,
                locked: false,
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

/// Gives up the contents of superpages from the pool. The kernel drops whole
/// ones; parts are zeroed.
fn discard_pool(part: &Interval) -> Result<()> {
    for (slot, piece) in crate::extent::by_slot(part.range) {
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

/// After a fork, memory that reads from the object is replaced by fresh
/// anonymous memory, because dropping its pages would bring the object's
/// contents back instead of zeros.
fn make_anonymous(state: &mut State, part: &Interval) -> Result<()> {
    let flags = libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the program gives the contents up.
    unsafe { memory::map_anonymous(part.range.start, part.range.len(), part.prot, flags)? };
    if part.backing == Backing::Inherited {
        state.table.remove(part.range);
    } else {
        state
            .table
            .update(part.range, |i| i.backing = Backing::Anonymous);
    }
    Ok(())
}

fn set_fork_behaviour(
    state: &mut State,
    range: AddrRange,
    advice: i32,
    change: impl FnMut(&mut Interval),
) -> Result<()> {
    soften(state, range);
    // Memory that is not the object, shared, takes the advice itself.
    for part in state.table.overlaps(range).collect::<Vec<_>>() {
        if part.backing != Backing::Shared {
            // SAFETY: the advice does not change contents in this process.
            let _ = unsafe { memory::advise_raw(part.range, advice) };
        }
    }
    state.table.update(range, change);
    Ok(())
}

/// A superpage that one protection no longer covers is base pages now.
fn demote_if_split(manager: &Manager, state: &mut State, slot: Slot) {
    let Some(extent) = state.table.extents.get(&slot).copied() else {
        return;
    };
    if extent.is_superpage() && !state.table.slot_is_uniform(slot) {
        if let Some(extent) = state.table.extents.get_mut(&slot) {
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
pub(crate) fn release(manager: &Manager, state: &mut State, range: AddrRange) {
    soften(state, range);
    break_edges(manager, state, range);
    let parts = state.table.remove(range);
    for part in &parts {
        match part.backing {
            Backing::Shared => {
                if part.locked {
                    let _ = unlock(part.range);
                }
                // SAFETY: the program gives the range up. Where the kernel
                // refuses, the memory stays in the object until exit.
                let _ = unsafe { memory::advise(part.range, Advice::Remove) };
            }
            Backing::Private | Backing::Anonymous => {
                state.garbage.push((part.offset, part.range.len()));
            }
            Backing::Inherited | Backing::Pool => {}
        }
    }
    for slot in range.slots().map(Slot) {
        if state.table.slot_offset(slot).is_none() {
            state.table.extents.remove(&slot);
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

/// The kernel changes superpages of the hugetlb pool only as a whole. Those
/// that a range covers in part go to base pages first.
fn soften(state: &State, range: AddrRange) {
    for slot in [range.start.slot(), VirtAddr(range.end.0 - 1).slot()] {
        let pool = state
            .table
            .overlaps(slot.range())
            .find(|i| i.backing == Backing::Pool && i.range == slot.range());
        if let Some(part) = pool.filter(|_| !range.contains(slot.range())) {
            crate::fork::leave_pool(&part);
        }
    }
}

/// Extents that lose only a part of their range leave the reservation to base
/// pages first.
fn break_edges(manager: &Manager, state: &mut State, range: AddrRange) {
    for at in [range.start, range.end] {
        let slot = at.slot();
        let Some(extent) = state.table.extents.get(&slot).copied() else {
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
            let mut work = Work {
                manager,
                handles,
                state,
            };
            if extent.state == ExtentState::Reserved && manager.privilege() == Privilege::Full {
                work.preempt(slot)?;
            }
            if matches!(extent.state, ExtentState::Empty | ExtentState::Reserved) {
                work.make_base(slot..slot.next());
            }
            Ok(())
        });
    }
}

fn unlock(range: AddrRange) -> Result<()> {
    // SAFETY: unlocking changes neither contents nor protection.
    unsafe {
        quire_linux::raw::check(quire_linux::raw::syscall_raw(
            libc::SYS_munlock,
            [range.start.0 as usize, range.len().0 as usize, 0, 0, 0, 0],
        ))
    }
    .map(drop)
}

fn remap_managed(
    manager: &'static Manager,
    state: &mut State,
    old: AddrRange,
    new_len: Bytes,
    flags: i32,
    new: VirtAddr,
) -> Result<VirtAddr> {
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let dont_unmap = flags & libc::MREMAP_DONTUNMAP != 0;
    if dont_unmap && new_len != old.len() {
        return Err(Errno(libc::EINVAL));
    }
    let kept = Bytes(old.len().0.min(new_len.0));
    let parts: Vec<Interval> = state.table.overlaps(old).collect();
    let prot = parts.last().map_or(READ_WRITE, |p| p.prot);
    let pool = parts.iter().any(|p| p.backing == Backing::Pool);
    let shrinks = new_len < old.len() && !fixed;
    if pool && !shrinks {
        return remap_pool(manager, state, old, new_len, flags, new);
    }
    if shrinks {
        let tail = AddrRange {
            start: old.start + new_len,
            end: old.end,
        };
        release(manager, state, tail);
        // SAFETY: the program gives the tail up.
        unsafe { memory::unmap(tail)? };
        return Ok(old.start);
    }
    if !fixed && !dont_unmap {
        if new_len == old.len() {
            return Ok(old.start);
        }
        if grow_in_place(manager, state, old, new_len, prot).is_ok() {
            return Ok(old.start);
        }
        if flags & libc::MREMAP_MAYMOVE == 0 {
            return Err(Errno(libc::ENOMEM));
        }
    }
    let to = if fixed {
        let target = AddrRange::new(new, new_len);
        if state.table.touches(target) {
            release(manager, state, target);
        }
        // SAFETY: the program asked for this place.
        unsafe {
            memory::map_anonymous(
                new,
                new_len,
                libc::PROT_NONE,
                libc::MAP_FIXED | libc::MAP_NORESERVE,
            )?
        }
    } else {
        memory::reserve_space(new_len, old.start.0)?
    };
    if new_len < old.len() {
        let tail = AddrRange {
            start: old.start + new_len,
            end: old.end,
        };
        release(manager, state, tail);
        // SAFETY: the program gives the tail up.
        unsafe { memory::unmap(tail)? };
    }
    move_pieces(manager, state, AddrRange::new(old.start, kept), to)?;
    if new_len > kept {
        extend(
            manager,
            state,
            AddrRange::new(to, kept),
            new_len,
            prot,
            libc::MAP_FIXED,
        )?;
    }
    if dont_unmap {
        // SAFETY: the range was vacated by the move.
        unsafe {
            memory::map_anonymous(old.start, old.len(), prot, libc::MAP_FIXED_NOREPLACE)?;
        }
    }
    Ok(to)
}

/// Superpages from the pool cannot be resized or moved: the contents are
/// copied to base pages.
fn remap_pool(
    manager: &Manager,
    state: &mut State,
    old: AddrRange,
    new_len: Bytes,
    flags: i32,
    new: VirtAddr,
) -> Result<VirtAddr> {
    let fixed = flags & libc::MREMAP_FIXED != 0;
    if new_len == old.len() && flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) == 0 {
        return Ok(old.start);
    }
    if flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) == 0 {
        let growth = Bytes(new_len.0 - old.len().0);
        let place = libc::MAP_FIXED_NOREPLACE;
        // SAFETY: the kernel refuses where anything is mapped.
        if unsafe { memory::map_anonymous(old.end, growth, READ_WRITE, place) }.is_ok() {
            return Ok(old.start);
        }
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return Err(Errno(libc::ENOMEM));
    }
    let (hint, place) = if fixed {
        release(manager, state, AddrRange::new(new, new_len));
        (new, libc::MAP_FIXED)
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
    if flags & libc::MREMAP_DONTUNMAP != 0 {
        // SAFETY: the range was just vacated.
        unsafe {
            memory::map_anonymous(old.start, old.len(), READ_WRITE, libc::MAP_FIXED_NOREPLACE)?
        };
    }
    Ok(to)
}

fn grow_in_place(
    manager: &'static Manager,
    state: &mut State,
    old: AddrRange,
    new_len: Bytes,
    prot: i32,
) -> Result<()> {
    extend(
        manager,
        state,
        old,
        new_len,
        prot,
        libc::MAP_FIXED_NOREPLACE,
    )
}

/// Maps fresh memory after `kept`, up to `new_len` bytes from its start.
fn extend(
    manager: &'static Manager,
    state: &mut State,
    kept: AddrRange,
    new_len: Bytes,
    prot: i32,
    how: i32,
) -> Result<()> {
    let growth = AddrRange::new(kept.end, Bytes(new_len.0 - kept.len().0));
    let last = state.table.interval_at(VirtAddr(kept.end.0 - 1)).copied();
    let managed = last.is_some_and(|i| i.backing == Backing::Shared)
        && state.forkers.is_empty()
        && prot == READ_WRITE;
    let Some(last) = last.filter(|_| managed) else {
        // SAFETY: the place is free or reserved for this.
        unsafe { memory::map_anonymous(growth.start, growth.len(), prot, how)? };
        return Ok(());
    };
    manager.with_handles(|handles| {
        let mut work = Work {
            manager,
            handles,
            state,
        };
        let kind = RegionKind::Anon;
        work.map_region(growth.start, growth.len(), how, kind, Some(last.region))?;
        thread::signal_event(&handles.event);
        Ok(())
    })
}

/// Moves every piece of `old`, managed or not, to `to`.
fn move_pieces(
    manager: &'static Manager,
    state: &mut State,
    old: AddrRange,
    to: VirtAddr,
) -> Result<()> {
    break_edges(manager, state, old);
    let parts: Vec<Interval> = state.table.overlaps(old).collect();
    unify(manager, &parts);
    let destination = |at: VirtAddr| to + (at - old.start);
    let mut next = old.start;
    for part in &parts {
        let gap = AddrRange {
            start: next,
            end: part.range.start,
        };
        next = part.range.end;
        for piece in [gap, part.range] {
            if !piece.is_empty() {
                move_piece(piece, destination(piece.start))?;
            }
        }
    }
    let rest = AddrRange {
        start: next,
        end: old.end,
    };
    if !rest.is_empty() {
        move_piece(rest, destination(rest.start))?;
    }
    state.table.remove(old);
    for part in &parts {
        state.table.insert(Interval {
            range: AddrRange::new(destination(part.range.start), part.range.len()),
            ..*part
        });
    }
    rekey_extents(manager, state, old, to);
    Ok(())
}

/// Gives each piece one look to the kernel, which moves a mapping at a time:
/// what extents had of their own is renewed after the move.
fn unify(manager: &Manager, parts: &[Interval]) {
    let unregister = |handles: &crate::manager::Handles| {
        for part in parts.iter().filter(|p| p.backing == Backing::Shared) {
            if let Ok(uffd) = handles.uffd() {
                // A range that was not registered is no failure.
                let _ = quire_linux::uffd::unregister(uffd, part.range);
            }
            // SAFETY: advice about page sizes does not change contents.
            unsafe { memory::advise(part.range, Advice::NoHugePage)? };
        }
        Ok(())
    };
    // Where it fails, the move may fail too, and the program is told.
    let _ = manager.with_handles(unregister);
}

fn move_piece(piece: AddrRange, to: VirtAddr) -> Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the target is address space reserved for this move.
    unsafe { memory::remap(piece, piece.len(), flags, to) }.map(drop)
}

/// Extents follow their memory where the new place is congruent, and are armed
/// again as they were.
fn rekey_extents(manager: &'static Manager, state: &mut State, old: AddrRange, to: VirtAddr) {
    let congruent = old.start.0 % SUPERPAGE == to.0 % SUPERPAGE;
    for slot in old.slots().map(Slot) {
        if state.table.slot_offset(slot).is_some() {
            continue;
        }
        let queued = state.queue.remove(slot);
        let Some(extent) = state.table.extents.remove(&slot) else {
            continue;
        };
        let shifted = slot.start().0.wrapping_sub(old.start.0);
        let moved = VirtAddr(shifted.wrapping_add(to.0)).slot();
        if !congruent || state.table.slot_offset(moved).is_none() {
            continue;
        }
        state.table.extents.insert(moved, extent);
        if queued {
            state.queue.touch(moved);
        }
        if state.table.slot_is_shared(moved) {
            rearm(manager, state, moved, extent.state);
        }
    }
}

fn rearm(manager: &Manager, state: &mut State, slot: Slot, was: ExtentState) {
    let armed = manager.with_handles(|handles| {
        let mut work = Work {
            manager,
            handles,
            state,
        };
        let armed = match was {
            ExtentState::Empty | ExtentState::Reserved => work.arm(slot.range()),
            ExtentState::Whole | ExtentState::Promoted => work.arm_whole(slot.range()),
            ExtentState::Base => Ok(()),
        };
        if armed.is_err() {
            work.make_base(slot..slot.next());
        }
        Ok(())
    });
    if armed.is_err()
        && let Some(extent) = state.table.extents.get_mut(&slot)
    {
        // A move unregisters, and without page-size advice of its own the
        // memory is the kernel's.
        extent.state = ExtentState::Base;
    }
}
