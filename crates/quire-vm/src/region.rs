//! New managed memory: where it goes in the address space and in the object,
//! and how its extents begin.

use std::ops::Range;
use std::sync::atomic::Ordering;

use quire_core::config::Policy;
use quire_core::kin::Start;
use quire_core::stat::{Counter, Privilege, RegionKind};
use quire_core::units::{AddrRange, Bytes, ObjectOffset, SUPERPAGE, Slot, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::raw::{Errno, Result};
use quire_linux::{huge_file, pagemap, thread};

use crate::extent::{Work, now_ms, slots_needed};
use crate::kernel_access;
use crate::manager::{Manager, State};
use crate::mapping::{PLACED, READ_WRITE};
use crate::pool::map_from_pool;
use crate::table::{ExtentState, Interval, Region, RegionId};

/// The allocator's requests below this size are not served from the hugetlb
/// pool: between a fork and its handlers the C library may write to small
/// blocks in the child, and an empty pool would kill it.
const STATIC_HEAP: Bytes = Bytes::mib(8);

/// How many extents are reserved at the time of a mapping where it cannot be
/// done at the first touch. They cannot be given back where memory turns out to be
/// sparse, so there is one, whose population says whether others follow it.
const AT_ONCE: usize = 1;

/// Which region new memory belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    /// One that exists.
    Known(RegionId),
    /// A new one.
    New(RegionKind, Start),
}

impl Work<'_> {
    /// Maps a new run of the object and enters it into the table.
    pub fn map_region(
        &mut self,
        hint: VirtAddr,
        len: Bytes,
        flags: i32,
        owner: Owner,
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
        let given = match owner {
            Owner::New(_, start) => self.manager.given(start),
            Owner::Known(_) => self.manager.given(Start::Reserve),
        };
        let whole = given == u64::MAX || flags & libc::MAP_POPULATE != 0;
        let first_slot = range.start.slot().0;
        let ready_slots = first_slot..first_slot + ready;
        let given_slots = first_slot..first_slot.saturating_add(given);
        let given_slots = given_slots.start..given_slots.end.min(range.end.slot().0);
        // SAFETY: advice on a mapping that was just made and nobody uses.
        let hidden = unsafe { memory::advise(range, Advice::DontFork) };
        let armed = hidden.and_then(|()| {
            let given_end = Slot(ready_slots.end.max(given_slots.end)).start();
            self.arm_fresh(range, if whole { range.end } else { given_end })
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
        let place = (range, offset);
        enter(self.manager, self.state, owner, place, (whole, locked));
        for slot in given_slots.map(Slot) {
            if let Some(extent) = self.state.table.extents.get_mut(slot) {
                extent.state = ExtentState::Whole;
            }
        }
        self.adopt_pool(ready_slots);
        if self.manager.privilege() == Privilege::User && !whole {
            self.reserve_at_once(range);
        }
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
            let empty = self.state.table.extents.get_mut(slot);
            let Some(extent) = empty.filter(|e| e.state == ExtentState::Empty && !e.busy) else {
                continue;
            };
            let len = Bytes(SUPERPAGE);
            if huge_file::allocate(self.handles.object(), offset, len).is_err() {
                return;
            }
            extent.state = ExtentState::Reserved;
            extent.folio = true;
            self.state.queue.touch(slot);
            self.manager.stats().add(Counter::Reservations, 1);
        }
    }

    pub fn holds_pages(&self, range: AddrRange) -> Result<bool> {
        let mut any = false;
        let filter = pagemap::Filter::PRESENT;
        pagemap::scan(self.handles.pagemap(), range, filter, |_| any = true)?;
        Ok(any)
    }

    /// Extents whose offsets came from the pool hold their folio already, so
    /// mapping them whole takes no more memory than they have.
    fn adopt_pool(&mut self, ready: Range<u64>) {
        for slot in ready.map(Slot) {
            if let Some(extent) = self.state.table.extents.get_mut(slot) {
                extent.state = ExtentState::Whole;
                extent.folio = true;
                self.state.queue.touch(slot);
            }
        }
        let busy = self.state.pool_busy;
        let busy = busy.and_then(|offset| self.state.table.slot_of(offset));
        if let Some(extent) = busy.and_then(|slot| self.state.table.extents.get_mut(slot)) {
            extent.busy = true;
        }
    }

    /// Finds a place for `len` bytes whose addresses are congruent to their
    /// offsets, and maps them there.
    pub fn place(
        &self,
        hint: VirtAddr,
        len: Bytes,
        flags: i32,
        offset: ObjectOffset,
    ) -> Result<VirtAddr> {
        let object = self.handles.object();
        let map = |at, how| {
            let how = libc::MAP_SHARED | libc::MAP_NORESERVE | how;
            // SAFETY: only `MAP_FIXED` replaces anything, and it is used where
            // the program asked for it or where address space was reserved.
            unsafe { memory::map_file(at, len, READ_WRITE, how, object, offset) }
        };
        if flags & PLACED == libc::MAP_FIXED {
            // The program knows this place already.
            let range = AddrRange::new(hint, len);
            // SAFETY: the program asked for new memory here, or the address
            // space was reserved for it.
            unsafe { memory::replace_shared(range, READ_WRITE, object, offset, &[])? };
            return Ok(hint);
        }
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
    pub fn arm_fresh(&self, range: AddrRange, whole_end: VirtAddr) -> Result<()> {
        let (whole, rest) = range.split_at(whole_end);
        if !whole.is_empty() {
            // SAFETY: advice about page sizes does not change contents.
            unsafe { memory::advise(whole, Advice::HugePage)? };
        }
        if rest.is_empty() {
            return Ok(());
        }
        // SAFETY: advice about page sizes does not change contents.
        unsafe { memory::advise(rest, Advice::NoHugePage)? };
        let inner = rest.whole_superpages();
        if inner.is_empty() {
            return Ok(());
        }
        self.register(inner)
    }
}

/// Enters a new mapping into the table: where it is, in which region, and
/// whether its first touches map superpages and it is locked.
pub(crate) fn enter(
    manager: &Manager,
    state: &mut State,
    owner: Owner,
    (range, offset): (AddrRange, ObjectOffset),
    (whole, locked): (bool, bool),
) {
    let region = match owner {
        Owner::Known(region) => region,
        Owner::New(kind, start) => state.table.add_region(Region {
            start,
            size: range.len(),
            born_ms: now_ms(),
            ..Region::new(kind, manager.policy())
        }),
    };
    state.table.insert(Interval {
        locked,
        ..Interval::fresh(range, offset, region)
    });
    let initial = match whole {
        true => ExtentState::Whole,
        false => ExtentState::Empty,
    };
    state.table.add_extents(range, initial, region);
    kernel_access::note_empty();
    manager.table_empty.store(false, Ordering::Release);
}

/// Extends the heap by `missing` bytes where it is, or else begins a new run
/// of `fresh` bytes.
pub(crate) fn grow_heap(
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
    let end = state.heap.end;
    let known = |id: &RegionId| state.table.regions.contains_key(id);
    let owner = match state.heap.region.filter(known) {
        Some(id) => Owner::Known(id),
        None => Owner::New(RegionKind::Heap, Start::Reserve),
    };
    manager.with_handles(|handles| {
        let mut work = Work::new(manager, handles, state);
        let extended = if end.0 == 0 {
            Err(Errno(libc::ENOMEM))
        } else {
            let flags = libc::MAP_FIXED_NOREPLACE;
            work.map_region(end, whole(missing), flags, owner)
        };
        if extended.is_err() {
            let at = work.map_region(VirtAddr(0), whole(fresh), 0, owner)?;
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
