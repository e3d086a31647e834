//! Extents that rest. Where a reservation has failed, the empty extents around
//! it are given to plain private memory until another may be tried: touching
//! them meanwhile costs what it costs without Quire, and not a report to the
//! pager each (paper 004, section 5, asks for failures that cost nothing).
//!
//! The object holds nothing of such an extent, so that the memory need not be
//! kept apart at a fork. When the rest ends, what has not been touched becomes
//! an empty extent of the object again. What has been touched stays plain until
//! the program discards it.

use std::collections::BTreeSet;
use std::ops::Range;

use quire_core::stat::Privilege;
use quire_core::units::{AddrRange, Slot, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::pagemap::{self, Filter};
use quire_linux::raw::Result;
use quire_linux::uffd::{self, Mode};

use super::{CHILDREN_MS, Pager};
use crate::extent::{Work, by_slot, now_ms, run_range};
use crate::kernel_access;
use crate::table::{Backing, Extent, ExtentState, Interval, RegionId};

/// How many extents rest at most on either side of a failure.
const AROUND: u64 = 1024;

/// Pages that hold something, also those in swap.
const IN_USE: Filter = Filter {
    all: 0,
    none: 0,
    any: pagemap::PRESENT | pagemap::SWAPPED,
    report: pagemap::PRESENT,
};

impl Pager {
    /// Lets the empty extents around `slot` rest, if its region holds
    /// reservations back.
    pub(super) fn rest_around(&mut self, slot: Slot) {
        let mut state = self.manager.state.lock();
        let Some(id) = state.table.extents.get(slot).map(|e| e.region) else {
            return;
        };
        let region = state.table.regions.get(&id);
        let ends = region.map_or(0, |r| r.backoff.retry_at_ms());
        if self.manager.privilege() != Privilege::Full || ends <= now_ms() {
            return;
        }
        self.next_rest_ms = self.next_rest_ms.min(ends);
        let mut work = Work::new(self.manager, &self.handles, &mut state);
        let may_rest = |slot: &Slot| work.may_rest(*slot, id);
        let above = (slot.0 + 1..=slot.0 + AROUND).map(Slot);
        let below = (slot.0.saturating_sub(AROUND)..slot.0).rev().map(Slot);
        let end = above.take_while(may_rest).last().map_or(slot, Slot::next);
        let start = below.take_while(may_rest).last().unwrap_or(slot);
        for run in [start..slot, slot.next()..end] {
            if run.start < run.end {
                work.rest(&run);
            }
        }
    }

    /// Ends the rest in regions that may reserve again; while a thread forks,
    /// later, because what becomes part of the object is left out of forks. Where
    /// no block could be had, nothing changes until the statistics are shared.
    pub(super) fn end_rests(&mut self) {
        let now = now_ms();
        let hopeless = self.blocks.effort().is_none() && !self.blocks.has_small();
        let mut state = self.manager.state.lock();
        if !state.forkers.is_empty() {
            self.next_rest_ms = now + CHILDREN_MS;
            return;
        }
        if hopeless {
            self.next_rest_ms = u64::MAX;
            return;
        }
        self.next_rest_ms = u64::MAX;
        let due: Vec<(RegionId, Range<Slot>)> = state
            .table
            .regions
            .iter_mut()
            .filter(|(_, region)| region.backoff.may_try(now))
            .filter_map(|(id, region)| Some((*id, region.resting.take()?)))
            .collect();
        let waiting = state.table.regions.values().filter(|r| r.resting.is_some());
        if let Some(next) = waiting.map(|r| r.backoff.retry_at_ms()).min() {
            self.next_rest_ms = next;
        }
        for (id, range) in due {
            let extents = state.table.extents.range_mut(range);
            let ours = extents.filter(|(_, extent)| extent.region == id);
            let rested: Vec<Slot> = ours
                .filter_map(|(slot, extent)| std::mem::take(&mut extent.resting).then_some(slot))
                .collect();
            for run in rested.chunk_by(|a, b| a.next() == *b) {
                let run = run_range(&(run[0]..run[run.len() - 1].next()));
                let parts: Vec<Interval> = state.table.overlaps(run).collect();
                let mut work = Work::new(self.manager, &self.handles, &mut state);
                for part in parts
                    .iter()
                    .filter(|p| p.backing == Backing::Plain && !p.locked)
                {
                    work.end_rest(part);
                }
            }
        }
    }
}

impl Work<'_> {
    /// Whether an extent of a region is certain to hold nothing, and is like
    /// memory that a program has just mapped.
    fn may_rest(&self, slot: Slot, region: RegionId) -> bool {
        let table = &self.state.table;
        let empty = |e: &Extent| e.region == region && e.state == ExtentState::Empty && !e.busy;
        let part = table.interval_at(slot.start());
        table.extents.get(slot).is_some_and(empty)
            && table.slot_is_uniform(slot)
            && part.is_some_and(|p| !(p.locked || p.dont_fork || p.wipe_on_fork || p.dont_dump))
            && self.is_hole(slot)
    }

    /// Gives a run of extents that hold nothing to plain memory. Where the
    /// kernel refuses, they stay as they are.
    fn rest(&mut self, run: &Range<Slot>) {
        let parts: Vec<Interval> = self.state.table.overlaps(run_range(run)).collect();
        for part in parts {
            if self.remap_private(&part, Backing::Plain).is_err() {
                continue;
            }
            // SAFETY: advice about page sizes does not change contents.
            let _ = unsafe { memory::advise(part.range, Advice::NoHugePage) };
            for slot in part.range.slots().map(Slot) {
                if let Some(extent) = self.state.table.extents.get_mut(slot) {
                    extent.state = ExtentState::Base;
                }
                self.state.table.note_resting(slot);
            }
        }
    }

    /// Takes what is untouched of some plain memory back. What is in use is left
    /// out from the beginning: to register it and to end that costs a walk over
    /// its pages, while the program waits.
    fn end_rest(&mut self, part: &Interval) {
        let runs = self.untouched_runs(part.range);
        if has_room_for(&runs, part.range) {
            for run in runs {
                self.end_rest_of(&part.clip(run_range(&run)));
            }
        }
    }

    /// The runs of slots that lie in a range as a whole and hold nothing.
    fn untouched_runs(&self, range: AddrRange) -> Vec<Range<Slot>> {
        let Ok(used) = self.slots_in_use(range, IN_USE) else {
            return Vec::new();
        };
        let untouched = |slot: &Slot| !used.contains(slot) && range.contains(slot.range());
        let slots: Vec<Slot> = range.slots().map(Slot).filter(untouched).collect();
        let runs = slots.chunk_by(|a, b| a.next() == *b);
        runs.map(|run| run[0]..run[run.len() - 1].next()).collect()
    }

    /// The same for memory that held nothing a moment ago. What is missing while
    /// touches are reported stays so.
    fn end_rest_of(&mut self, part: &Interval) {
        let Ok(uffd) = self.handles.uffd() else {
            return;
        };
        if uffd::register(uffd, part.range, Mode::MissingAndProtect).is_err() {
            return;
        }
        let runs = self.untouched_runs(part.range);
        let room = has_room_for(&runs, part.range);
        let mut end = part.range.start;
        for run in runs {
            let run = run_range(&run);
            self.rest_on(end, run.start);
            if room && self.manage_again(&part.clip(run)).is_ok() {
                let _ = uffd::wake(uffd, run);
            } else {
                self.rest_on(run.start, run.end);
            }
            end = run.end;
        }
        self.rest_on(end, part.range.end);
    }

    /// Ends the reports of touches between two addresses, and lets those who wait
    /// go on.
    fn rest_on(&self, start: VirtAddr, end: VirtAddr) {
        let range = AddrRange { start, end };
        if let Ok(uffd) = self.handles.uffd()
            && !range.is_empty()
        {
            // Where the kernel refuses, the pager answers.
            let _ = uffd::unregister(uffd, range);
            let _ = uffd::wake(uffd, range);
        }
    }

    /// Maps the object over plain memory that holds nothing. What is touched
    /// before it is armed is not reported, and stays with base pages.
    fn manage_again(&mut self, part: &Interval) -> Result<()> {
        let object = self.handles.object();
        // SAFETY: neither the memory nor the object holds anything here, and a
        // touch meanwhile waits for the pager.
        unsafe { memory::replace_shared(part.range, part.prot, object, part.offset, &[])? };
        self.state
            .table
            .update(part.range, |i| i.backing = Backing::Shared);
        let armed = self.arm(part.range);
        let used = self.slots_in_use(part.range, Filter::PRESENT);
        for slot in part.range.slots().map(Slot) {
            let empty = armed.is_ok() && used.as_ref().is_ok_and(|used| !used.contains(&slot));
            if !empty {
                self.make_base(slot..slot.next());
            } else if let Some(extent) = self.state.table.extents.get_mut(slot) {
                extent.state = ExtentState::Empty;
                kernel_access::note_empty();
            }
        }
        Ok(())
    }

    /// The slots of a range that have pages which pass a filter.
    fn slots_in_use(&self, range: AddrRange, filter: Filter) -> Result<BTreeSet<Slot>> {
        let mut slots = BTreeSet::new();
        pagemap::scan(self.handles.pagemap(), range, filter, |run| {
            slots.extend(by_slot(run.range()).map(|(slot, _)| slot));
        })?;
        Ok(slots)
    }
}

/// Whether runs of a mapping may become mappings of their own.
fn has_room_for(runs: &[Range<Slot>], all: AddrRange) -> bool {
    let pieces = 2 * runs.len() as u64 + 1;
    match runs {
        [] => true,
        [run] if run_range(run) == all => true,
        _ => memory::has_room_for_mappings(2 * pieces),
    }
}
