//! Extents that rest. Where a reservation has failed, the empty extents around
//! it are left to base pages until another may be tried: touching them meanwhile
//! costs what it costs without Quire, and not a report to the pager each (paper
//! 004, section 5, asks for failures that cost nothing).

use std::ops::Range;

use quire_core::stat::Privilege;
use quire_core::units::{Bytes, ObjectOffset, SUPERPAGE, Slot};
use quire_linux::huge_file;

use super::Pager;
use crate::extent::{Work, now_ms, run_range};
use crate::table::{ExtentState, RegionId};

/// How many extents rest at most on either side of a failure.
const AROUND: u64 = 1024;

impl Pager {
    /// Lets the empty extents around `slot` rest, if its region holds
    /// reservations back.
    pub(super) fn rest_around(&self, slot: Slot) {
        let mut state = self.manager.state.lock();
        let table = &state.table;
        let Some(id) = table.extents.get(&slot).map(|e| e.region) else {
            return;
        };
        let holds_back = |id| {
            let region = table.regions.get(&id);
            region.is_some_and(|r| !r.backoff.may_try(now_ms()))
        };
        if self.manager.privilege() != Privilege::Full || !holds_back(id) {
            return;
        }
        let empty = |slot: &Slot| {
            let extent = table.extents.get(slot);
            extent.is_some_and(|e| e.region == id && e.state == ExtentState::Empty && !e.busy)
                && table.slot_is_uniform(*slot)
        };
        let above = (slot.0 + 1..=slot.0 + AROUND).map(Slot);
        let below = (slot.0.saturating_sub(AROUND)..slot.0).rev().map(Slot);
        let end = above.take_while(empty).last().map_or(slot, Slot::next);
        let start = below.take_while(empty).last().unwrap_or(slot);
        for run in [start..slot, slot.next()..end] {
            if run.start >= run.end {
                continue;
            }
            Work::new(self.manager, &self.handles, &mut state).make_base(run.clone());
            for (_, extent) in state.table.extents.range_mut(run) {
                extent.resting = true;
            }
        }
        if let Some(region) = state.table.regions.get_mut(&id) {
            region.resting = Some(match region.resting.take() {
                Some(known) => known.start.min(start)..known.end.max(end),
                None => start..end,
            });
        }
    }

    /// Ends the rest in regions that may reserve again: what has not been
    /// touched meanwhile is empty as before.
    pub(super) fn end_rests(&self) {
        let now = now_ms();
        let mut state = self.manager.state.lock();
        let due: Vec<(RegionId, Range<Slot>)> = state
            .table
            .regions
            .iter_mut()
            .filter(|(_, region)| region.backoff.may_try(now))
            .filter_map(|(id, region)| Some((*id, region.resting.take()?)))
            .collect();
        for (id, range) in due {
            let mut rested = Vec::new();
            for (slot, extent) in state.table.extents.range_mut(range) {
                let rests = std::mem::take(&mut extent.resting);
                if rests && extent.region == id && extent.state == ExtentState::Base {
                    rested.push(*slot);
                }
            }
            rested.retain(|slot| state.table.slot_is_uniform(*slot));
            for run in rested.chunk_by(|a, b| a.next() == *b) {
                let run = run[0]..run[run.len() - 1].next();
                Work::new(self.manager, &self.handles, &mut state).end_rest(&run);
            }
        }
    }
}

impl Work<'_> {
    /// Arms a run of extents again. What was touched before that is in the
    /// object, and stays with base pages.
    fn end_rest(&mut self, run: &Range<Slot>) {
        if self.arm(run_range(run)).is_err() {
            self.make_base(run.clone());
            return;
        }
        let mut hole = ObjectOffset(0)..ObjectOffset(0);
        for slot in (run.start.0..run.end.0).map(Slot) {
            let Some(offset) = self.state.table.slot_offset(slot) else {
                continue;
            };
            let end = offset + Bytes(SUPERPAGE);
            if offset < hole.start || hole.end < end {
                let data = huge_file::next_data(self.handles.object(), offset);
                let data = data.map_or(offset, |at| at.unwrap_or(ObjectOffset(u64::MAX)));
                hole = offset..data;
            }
            if hole.end < end {
                self.make_base(slot..slot.next());
            } else if let Some(extent) = self.state.table.extents.get_mut(&slot) {
                extent.state = ExtentState::Empty;
            }
        }
    }
}
