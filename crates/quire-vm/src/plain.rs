//! Managed memory that becomes plain private memory, with its contents: for calls that only the
//! kernel can carry out, or that it would carry out otherwise on memory of the object; and
//! mappings of the program that take the place of managed memory.

use quire_core::stat::Privilege;
use quire_core::units::{AddrRange, BASE_PAGE, Slot, VirtAddr};
use quire_linux::huge_file;
use quire_linux::raw::Result;

use crate::extent::{Work, by_slot, pages_in_slot};
use crate::manager::{Handles, Manager, State};
use crate::mapping::{break_edges, forget_extents};
use crate::pool::{copy_inherited, copy_object, demote, soften};
use crate::table::{Backing, ExtentState, Interval};

impl Manager {
    /// Makes what is managed of a range plain and gives it up, before a call that only the kernel
    /// can carry out. What is called there later may wait for a thread of the program, as with a
    /// `userfaultfd`, so no lock is taken for it from then on.
    ///
    /// # Errors
    /// When there is no memory for a copy. What is not plain by then is managed still.
    pub fn make_plain(&self, range: AddrRange) -> Result<()> {
        if self.is_unmanaged(range) {
            return Ok(());
        }
        let mut state = self.state.lock();
        state.clear_spare(range);
        if state.table.touches(range) {
            make_plain(self, &mut state, range)?;
            let parts = state.table.remove(range);
            forget_extents(&mut state, range, &parts);
            self.note_mapped(&mut state);
        }
        Ok(())
    }

    /// What is not managed of a range.
    pub fn unmanaged_parts(&self, range: AddrRange) -> Vec<AddrRange> {
        let state = self.state.lock();
        let is_plain =
            |backing| matches!(backing, Backing::Plain | Backing::Anonymous | Backing::Left);
        let pieces = state.table.pieces(range).into_iter();
        pieces
            .filter(|(_, part)| part.is_none_or(|part| is_plain(part.backing)))
            .map(|(piece, _)| piece)
            .collect()
    }

    /// Of each extent in a range of which the kernel would tell what lies ready: the index of its
    /// first page in the range, and which of its pages are in use.
    pub fn resident_pages(&self, range: AddrRange) -> Vec<(usize, Vec<bool>)> {
        if self.is_unmanaged(range) {
            return Vec::new();
        }
        let mut state = self.state.lock();
        // What is on base pages of the object is there because it is in use.
        let unclear = |(slot, _): &(Slot, AddrRange)| {
            let extent = state.table.extents.get(*slot);
            extent.is_some_and(|e| e.state != ExtentState::Base)
                && state.table.slot_is_shared(*slot)
        };
        let unclear: Vec<(Slot, AddrRange)> = by_slot(range).filter(unclear).collect();
        let look = |handles: &Handles| {
            let work = Work::new(self, handles, &mut state);
            let pages = |(slot, part): &(Slot, AddrRange)| {
                let (mapped, _) = work.population(*slot)?;
                let known = work.state.table.extents.get(*slot).map(|e| e.popmap);
                let in_use = mapped.union(&known.unwrap_or_default());
                let first = ((part.start - range.start).0 / BASE_PAGE) as usize;
                let pages = pages_in_slot(*slot, *part);
                Ok((first, pages.map(|page| in_use.contains(page)).collect()))
            };
            unclear.iter().map(pages).collect::<Result<Vec<_>>>()
        };
        self.with_handles(look).unwrap_or_default()
    }

    /// `mseal`, which `seal` carries out. What is sealed can never be mapped anew, not even for a
    /// fork.
    ///
    /// # Errors
    /// As `mseal`, and where there is no memory to make the range plain.
    pub fn seal_by(&self, range: AddrRange, seal: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = self.state.lock();
        state.clear_spare(range);
        make_plain(self, &mut state, range)?;
        seal()?;
        state.table.update(range, |i| i.sealed = true);
        Ok(())
    }

    /// Maps something else over a range by `change`, which the kernel may refuse: then the range
    /// is what it was. `change` must not touch managed memory.
    ///
    /// # Errors
    /// As `change`; and when a part of a hugetlb page lies in the range and there is no memory
    /// for a copy of the rest.
    pub fn replace_by<T>(&self, range: AddrRange, change: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.is_unmanaged(range) && !self.has_left() {
            return change();
        }
        let mut state = self.state.lock();
        state.clear_spare(range);
        self.end_left(&mut state, range);
        if !state.table.touches(range) {
            drop(state);
            return change();
        }
        soften(self, &mut state, range)?;
        self.measure_ending(&mut state, range);
        break_edges(self, &mut state, range);
        let changed = change()?;
        let parts = state.table.remove(range);
        for part in &parts {
            give_back(self, &mut state, part);
        }
        forget_extents(&mut state, range, &parts);
        self.note_mapped(&mut state);
        Ok(changed)
    }
}

/// Makes what is managed of a range plain. Extents of which a part lies in it become plain as a
/// whole, so that the kernel has fewer mappings; but without the privilege to hold back writers
/// in kernel mode, only what must.
pub(crate) fn make_plain(manager: &Manager, state: &mut State, range: AddrRange) -> Result<()> {
    let range = match manager.privilege() {
        Privilege::Full => around(state, range),
        _ => range,
    };
    soften(manager, state, range)?;
    break_edges(manager, state, range);
    let parts: Vec<Interval> = state.table.overlaps(range).collect();
    for part in parts {
        match part.backing {
            Backing::Left => continue,
            Backing::Plain | Backing::Anonymous => {}
            Backing::Pool(_) => demote(manager, state, &part)?,
            Backing::Shared | Backing::Private => manager.with_handles(|handles| {
                let work = Work::new(manager, handles, state);
                if part.backing == Backing::Shared {
                    work.arm_base(part.range)?;
                }
                copy_object(handles, &part)
            })?,
            Backing::Inherited => copy_inherited(&part)?,
        }
        give_back(manager, state, &part);
        state
            .table
            .update(part.range, |i| i.backing = Backing::Left);
        forget_extents(state, part.range, &[]);
    }
    Ok(())
}

/// The range with the managed rest of its first and its last extent.
fn around(state: &State, range: AddrRange) -> AddrRange {
    let mut around = range;
    let first = range.start.slot().range();
    let last = VirtAddr(range.end.0 - 1).slot().range();
    for part in state.table.overlaps(first) {
        if part.range.start < range.start && part.range.end >= range.start {
            around.start = part.range.start;
        }
    }
    for part in state.table.overlaps(last) {
        if part.range.start <= range.end && part.range.end > range.end {
            around.end = part.range.end;
        }
    }
    around
}

/// Gives back what the object holds of a part that nobody here maps from it any more; while
/// children may look at it, later.
fn give_back(manager: &Manager, state: &mut State, part: &Interval) {
    // Behind plain memory there is nothing; what comes from a pool has not even a place there.
    if !part.is_of_object() || part.backing == Backing::Plain {
        return;
    }
    if state.children {
        state.garbage.push((part.offset, part.range.len()));
        return;
    }
    // Where the kernel refuses, the memory stays in the object until exit.
    let _ = manager
        .with_handles(|handles| huge_file::punch(handles.object(), part.offset, part.range.len()));
}
