//! `mremap` of managed memory: it shrinks, grows where it is or moves, and its
//! extents go with it where superpages still fit.

use quire_core::config::Policy;
use quire_core::units::{AddrRange, Bytes, SUPERPAGE, Slot, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::raw::{Errno, Result};
use quire_linux::{sysinfo, thread, uffd};

use crate::advice::{copy_advice, keep_out_of_dumps};
use crate::extent::{Work, by_slot};
use crate::manager::{Handles, Manager, State};
use crate::mapping::{READ_WRITE, break_edges, release};
use crate::pool::{demote, soften};
use crate::region::Owner;
use crate::table::{Backing, ExtentState, Interval};

/// What a program asks of `mremap`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remap {
    pub old: AddrRange,
    pub new_len: Bytes,
    pub flags: i32,
    pub new: VirtAddr,
}

impl Remap {
    /// The program says where it wants the memory.
    pub fn fixed(&self) -> bool {
        self.flags & libc::MREMAP_FIXED != 0
    }

    /// The memory may move.
    pub fn may_move(&self) -> bool {
        self.flags & libc::MREMAP_MAYMOVE != 0
    }

    /// The old addresses stay mapped, to zeros.
    pub fn dont_unmap(&self) -> bool {
        self.flags & libc::MREMAP_DONTUNMAP != 0
    }
}

/// Moves or resizes a range as the kernel would, were it plain memory: what lies in one mapping;
/// and, since Linux 6.17, where neither the size nor anything else changes, mapping by mapping,
/// with the holes between them.
pub(crate) fn remap_as_mapped(
    manager: &'static Manager,
    state: &mut State,
    asked: Remap,
) -> Result<VirtAddr> {
    let Remap { old, new_len, .. } = asked;
    let runs = memory::mapped_runs(old);
    if runs.first().is_none_or(|first| first.start != old.start) {
        return Err(Errno(libc::EFAULT));
    }
    let in_place = !asked.fixed() && !asked.dont_unmap() && new_len <= old.len();
    let parts: Vec<Interval> = state.table.overlaps(old).collect();
    let is_one = runs.len() == 1 && runs[0] == old && parts.is_sorted_by(|a, b| a.is_like(b));
    if is_one || in_place {
        return remap_managed(manager, state, asked);
    }
    let moves_only = asked.fixed() && !asked.dont_unmap() && new_len == old.len();
    if !moves_only || !moves_several() {
        return Err(Errno(libc::EFAULT));
    }
    for run in runs {
        let new = asked.new + (run.start - old.start);
        let (old, new_len) = (run, run.len());
        let asked = Remap {
            old,
            new_len,
            new,
            ..asked
        };
        remap_managed(manager, state, asked)?;
    }
    Ok(asked.new)
}

/// Whether the kernel moves several mappings by one call.
fn moves_several() -> bool {
    sysinfo::system_checks::running_kernel().is_some_and(|version| version >= (6, 17))
}

fn remap_managed(manager: &'static Manager, state: &mut State, asked: Remap) -> Result<VirtAddr> {
    let Remap { old, new_len, .. } = asked;
    let (fixed, dont_unmap) = (asked.fixed(), asked.dont_unmap());
    if dont_unmap && new_len != old.len() {
        return Err(Errno(libc::EINVAL));
    }
    let parts: Vec<Interval> = state.table.overlaps(old).collect();
    let prot = parts.last().map_or(READ_WRITE, |p| p.prot);
    if new_len < old.len() && !fixed {
        cut(manager, state, old, new_len)?;
        return Ok(old.start);
    }
    if !fixed && !dont_unmap {
        if new_len == old.len() {
            return Ok(old.start);
        }
        let how = libc::MAP_FIXED_NOREPLACE;
        if extend(manager, state, old, new_len, prot, how).is_ok() {
            return Ok(old.start);
        }
        if !asked.may_move() {
            return Err(Errno(libc::ENOMEM));
        }
    }
    // Pages of the hugetlb pools cannot be moved.
    soften(manager, state, old)?;
    let parts: Vec<Interval> = state.table.overlaps(old).collect();
    for part in parts
        .iter()
        .filter(|p| matches!(p.backing, Backing::Pool(_)))
    {
        demote(manager, state, part)?;
    }
    let to = find_place(manager, state, old, new_len, fixed.then_some(asked.new))?;
    let mut kept = old;
    if new_len < old.len() {
        kept = cut(manager, state, old, new_len)?;
    }
    let how = asked.flags & libc::MREMAP_DONTUNMAP;
    move_pieces(manager, state, kept, to, how)?;
    if new_len > kept.len() {
        let moved = AddrRange::new(to, kept.len());
        extend(manager, state, moved, new_len, prot, libc::MAP_FIXED)?;
    }
    if dont_unmap {
        // SAFETY: the move took all pages, and left the mappings only so that no other thread
        // of the program gets these addresses before there is new memory.
        unsafe { memory::map_anonymous(old.start, old.len(), prot, libc::MAP_FIXED)? };
        if let Some(part) = parts.last() {
            copy_advice(old, part);
        }
    }
    Ok(to)
}

/// Unmaps what lies behind the first `new_len` bytes and returns the rest.
fn cut(manager: &Manager, state: &mut State, old: AddrRange, new_len: Bytes) -> Result<AddrRange> {
    let (kept, tail) = old.split_at(old.start + new_len);
    release(manager, state, tail)?;
    // SAFETY: the program gives the tail up.
    unsafe { memory::unmap(tail)? };
    Ok(kept)
}

/// Reserves address space for a move: where the program wants it, or where
/// superpages fit as they did.
fn find_place(
    manager: &Manager,
    state: &mut State,
    old: AddrRange,
    new_len: Bytes,
    wanted: Option<VirtAddr>,
) -> Result<VirtAddr> {
    let Some(new) = wanted else {
        return memory::reserve_space(new_len, old.start.0);
    };
    let target = AddrRange::new(new, new_len);
    if state.table.touches(target) {
        release(manager, state, target)?;
    }
    let flags = libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the program asked for this place.
    unsafe { memory::map_anonymous(new, new_len, libc::PROT_NONE, flags) }
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
    let managed = last.is_some_and(|i| matches!(i.backing, Backing::Shared | Backing::Plain))
        && !matches!(manager.policy(), Policy::Base | Policy::Static)
        && state.forkers.is_empty()
        && prot == READ_WRITE;
    if let Some(last) = last.filter(|_| managed) {
        let grown = manager.with_handles(|handles| {
            let mut work = Work::new(manager, handles, state);
            let owner = Owner::Known(last.region);
            work.map_region(growth.start, growth.len(), how, owner)?;
            thread::signal_event(&handles.event);
            Ok(())
        });
        if grown.is_ok() {
            state.table.update(growth, |i| {
                i.dont_fork = last.dont_fork;
                i.wipe_on_fork = last.wipe_on_fork;
                i.dont_dump = last.dont_dump;
            });
            keep_out_of_dumps(growth, &last);
            return Ok(());
        }
    }
    // SAFETY: the place is free or reserved for this.
    unsafe { memory::map_anonymous(growth.start, growth.len(), prot, how)? };
    if let Some(last) = last {
        copy_advice(growth, &last);
    }
    Ok(())
}

/// Moves every piece of `old`, managed or not, to `to`. With `MREMAP_DONTUNMAP` in `how`
/// the old addresses stay taken.
fn move_pieces(
    manager: &'static Manager,
    state: &mut State,
    old: AddrRange,
    to: VirtAddr,
    how: i32,
) -> Result<()> {
    break_edges(manager, state, old);
    let parts: Vec<Interval> = state.table.overlaps(old).collect();
    unify(manager, &parts);
    let destination = |at: VirtAddr| to + (at - old.start);
    for (piece, _) in state.table.pieces(old) {
        move_piece(piece, destination(piece.start), how)?;
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
    let unregister = |handles: &Handles| {
        for part in parts.iter().filter(|p| p.backing == Backing::Shared) {
            if let Ok(uffd) = handles.uffd() {
                // A range that was not registered is no failure.
                let _ = uffd::unregister(uffd, part.range);
            }
            // SAFETY: advice about page sizes does not change contents.
            unsafe { memory::advise(part.range, Advice::NoHugePage)? };
        }
        Ok(())
    };
    // Where it fails, the move may fail too, and the program is told.
    let _ = manager.with_handles(unregister);
}

/// Moves a piece as a whole, or slot by slot where the kernel has several
/// mappings for it.
fn move_piece(piece: AddrRange, to: VirtAddr, how: i32) -> Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | how;
    let move_to = |range: AddrRange| {
        // SAFETY: the target is address space reserved for this move.
        unsafe { memory::remap(range, range.len(), flags, to + (range.start - piece.start)) }
    };
    match move_to(piece) {
        Err(Errno(libc::EFAULT)) => {
            by_slot(piece).try_for_each(|(_, part)| move_to(part).map(drop))
        }
        moved => moved.map(drop),
    }
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
        let Some(extent) = state.table.extents.remove(slot) else {
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
        if extent.resting {
            state.table.note_resting(moved);
        }
        if state.table.slot_is_shared(moved) {
            rearm(manager, state, moved, extent.state);
        }
    }
}

fn rearm(manager: &Manager, state: &mut State, slot: Slot, was: ExtentState) {
    let armed = manager.with_handles(|handles| {
        let mut work = Work::new(manager, handles, state);
        let armed = match was {
            ExtentState::Empty | ExtentState::Reserved => work.arm(slot.range()),
            ExtentState::Small | ExtentState::Whole | ExtentState::Promoted => {
                work.arm_whole(slot.range())
            }
            ExtentState::Base => Ok(()),
        };
        if armed.is_err() {
            work.make_base(slot..slot.next());
        }
        Ok(())
    });
    if armed.is_err()
        && let Some(extent) = state.table.extents.get_mut(slot)
    {
        // A move unregisters, and without page-size advice of its own the
        // memory is the kernel's.
        extent.state = ExtentState::Base;
    }
}
