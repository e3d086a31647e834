//! The end of a pause that was meant for a sparse phase of a program: see
//! `crate::pauses`.

use std::ops::Range;

use quire_core::units::Slot;

use super::{Pager, first_run};
use crate::extent::Work;
use crate::files;
use crate::manager::State;
use crate::table::{ExtentState, RegionId};

impl Pager {
    /// Notes an extent that is left to base pages, to see what becomes of it.
    pub(super) fn watch_left(&self, slot: Slot) {
        let mut state = self.manager.state.lock();
        let state = &mut *state;
        let id = state.table.extents.get(slot).map(|e| e.region);
        if let Some(region) = id.and_then(|id| state.table.regions.get_mut(&id)) {
            region.left |= region.history.pauses();
            state.watched.add(slot);
        }
    }

    /// Looks at how extents are used that were left to base pages. Where a pause
    /// has ended, touches of those that hold nothing are reported again.
    pub(super) fn look_at_left(&mut self) {
        let mut state = self.manager.state.lock();
        let due = state.watched.due();
        for slot in &due {
            Work::new(self.manager, &self.handles, &mut state).look_at_left(*slot);
        }
        let regions = state.table.regions.iter_mut();
        let ended: Vec<RegionId> = regions
            .filter(|(_, region)| region.left && !region.history.pauses())
            .map(|(id, region)| {
                region.left = false;
                *id
            })
            .collect();
        drop(state);
        if !ended.is_empty() {
            files::announce();
        }
        for id in ended {
            let mut next = Slot(0);
            while let Some(run) = self.resume_run(next, id) {
                next = run.end;
                self.answer_faults();
            }
        }
    }

    fn resume_run(&self, from: Slot, id: RegionId) -> Option<Range<Slot>> {
        let mut state = self.manager.state.lock();
        let run = next_base(&state, from, id)?;
        Work::new(self.manager, &self.handles, &mut state).empty_again(&run);
        Some(run)
    }
}

/// The first run of a region's extents with base pages, at or after `from`.
fn next_base(state: &State, from: Slot, id: RegionId) -> Option<Range<Slot>> {
    let extents = state.table.extents.range(from..);
    let base = extents.filter(|(_, e)| e.region == id && e.state == ExtentState::Base);
    first_run(base.map(|(slot, _)| slot))
}
