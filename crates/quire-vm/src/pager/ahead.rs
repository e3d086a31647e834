//! What is done ahead of need: reservations before a region's growing end,
//! zeroed superpages before a program that touches them in order, and the pool.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use quire_core::policy::{Decision, next_to_prepare};
use quire_core::stat::Counter;
use quire_core::units::{Bytes, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE, Slot};
use quire_linux::pagemap;

use super::settings::needs_pager;
use super::small::may_try_whole;
use super::{LOOK_RUN, Pager};
use crate::extent::{Work, run_range};
use crate::manager::State;
use crate::table::{ExtentState, RegionId, Table};

/// The pool is filled when looks have become rarer than this.
const POOL_IDLE: Duration = Duration::from_millis(8);
/// How far ahead of the program whole extents are zeroed, in extents.
const WHOLE_LEAD: u64 = 32;
/// How many extents follow a populated one at most, reserved, where first
/// touches are not reported.
const UNREPORTED_AHEAD: u64 = 8;
/// How full an extent is before others follow it there: what is reserved cannot be given back,
/// so sparse memory must not be taken for the beginning of dense memory.
const DENSE: PageCount = PageCount(PAGES_PER_SUPERPAGE as u64 / 2);

/// A run of extents that are mapped whole at their first touch, in one region.
#[derive(Clone, Debug)]
pub(super) struct Predicted {
    run: Range<Slot>,
    /// No extent of the run before this one is untouched, as far as is known.
    touched: Slot,
    /// The end of what was zeroed ahead.
    done: Slot,
    /// There may be something to zero now.
    pub(super) pending: bool,
}

impl Pager {
    pub(super) fn plan_ahead(&mut self, slot: Slot) {
        let state = self.manager.state.lock();
        let Some(extent) = state.table.extents.get(slot) else {
            return;
        };
        let Some(region) = state.table.regions.get(&extent.region) else {
            return;
        };
        let count = region.history.ahead();
        let small = !may_try_whole(&state, region);
        let id = extent.region;
        let follows = |slot: &Slot| {
            state
                .table
                .extents
                .get(*slot)
                .is_some_and(|e| e.region == id && e.state == ExtentState::Empty)
        };
        let wanted = |slot: Slot| match region.history.decide(slot) {
            Decision::Reserve => true,
            Decision::Whole => small,
            Decision::Base => false,
        };
        let next = (slot.0 + 1..=slot.0 + count).map(Slot);
        let next: Vec<Slot> = next
            .take_while(|s| state.table.extents.contains(*s))
            .collect();
        self.ahead = next
            .into_iter()
            .filter(|s| follows(s) && wanted(*s))
            .collect();
    }

    /// Where first touches are not reported, plans from the populations: what
    /// follows the extents that were allocated from most recently.
    pub(super) fn plan_unreported(&mut self) {
        let recent: Vec<Slot> = {
            let state = self.manager.state.lock();
            let dense = |slot: &Slot| {
                let extent = state.table.extents.get(*slot);
                extent.is_some_and(|e| e.popmap.count() >= DENSE)
            };
            state.queue.iter().rev().filter(dense).take(4).collect()
        };
        for slot in recent {
            let next = (slot.0 + 1..=slot.0 + UNREPORTED_AHEAD).map(Slot);
            self.ahead
                .extend(next.filter(|s| !self.ahead.contains(s)).collect::<Vec<_>>());
        }
    }

    /// Maps whole what the regions' histories predict, and plans to zero it
    /// ahead of the program.
    pub(super) fn extend_whole(&mut self) {
        let manager = self.manager;
        let mut state = manager.state.lock();
        if state.is_gated() {
            return;
        }
        let regions: Vec<(RegionId, Range<Slot>)> = state
            .table
            .regions
            .iter()
            .filter(|(_, r)| r.policy.reserves() && may_try_whole(&state, r))
            .filter_map(|(id, r)| Some((*id, r.history.whole_run()?)))
            .collect();
        let mut before = std::mem::take(&mut self.predicted);
        for (id, run) in regions {
            let known = before.remove(&id).filter(|p| p.run.start == run.start);
            let mut predicted = known.unwrap_or_else(|| Predicted::new(run.start));
            if predicted.run.end < run.end {
                let clipped = clip_to_region(&state.table, &(predicted.run.end..run.end), id);
                if !clipped.is_empty() {
                    predicted.run.end = clipped.end;
                    let mut work = Work::new(manager, &self.handles, &mut state);
                    work.note_dense(id, clipped.end.0 - clipped.start.0);
                    work.make_whole(clipped);
                }
            }
            predicted.pending = true;
            self.predicted.insert(id, predicted);
        }
    }

    /// Zeroes one extent that is mapped whole before the program gets there.
    /// Says whether there was one.
    pub(super) fn zero_ahead(&mut self) -> bool {
        let pagemap = self.handles.pagemap();
        let pending = self.predicted.values_mut().find(|p| p.pending);
        let Some(slot) = pending.and_then(|p| p.next(pagemap)) else {
            return false;
        };
        let room = self.budget.0 >= SUPERPAGE && self.blocks.has_superpage();
        let prepared = room && self.prepare(slot);
        self.zeroed |= prepared;
        prepared
    }

    fn prepare(&mut self, slot: Slot) -> bool {
        let offset = {
            let state = self.manager.state.lock();
            let whole = state
                .table
                .extents
                .get(slot)
                .is_some_and(|e| e.state == ExtentState::Whole && e.popmap.is_empty());
            if !whole || !state.table.slot_is_shared(slot) {
                return false;
            }
            state.table.slot_offset(slot)
        };
        let Some(offset) = offset else { return false };
        let huge = self.take_superpage(offset);
        let mut state = self.manager.state.lock();
        let state = &mut *state;
        let Some(slot) = state.table.slot_of(offset) else {
            self.drop_extent(state, offset);
            return huge;
        };
        if let Some(extent) = state.table.extents.get_mut(slot)
            && huge
        {
            extent.folio = true;
            state.queue.touch(slot);
        }
        huge
    }

    pub(super) fn pool_missing(&self, state: &State) -> bool {
        if !needs_pager(state.config.policy) {
            return false;
        }
        let have = state.pool_end.0.saturating_sub(state.next_offset.0);
        have + SUPERPAGE <= state.config.ahead.0
    }

    /// Whether nothing has changed for a while, so that zeroing for the pool is
    /// in nobody's way.
    pub(super) fn is_idle(&self) -> bool {
        self.pause >= POOL_IDLE
    }

    /// Adds one zeroed superpage to the pool, when idle.
    pub(super) fn fill_pool(&mut self) {
        if self.budget.0 < SUPERPAGE || !self.is_idle() {
            return;
        }
        if !self.blocks.has_superpage() {
            // Until memory is looked at again.
            self.budget = Bytes::ZERO;
            return;
        }
        let offset = {
            let mut state = self.manager.state.lock();
            if !self.pool_missing(&state) {
                return;
            }
            state.pool_end = state.pool_end.max(state.next_offset);
            state.pool_busy = Some(state.pool_end);
            state.pool_end
        };
        let huge = self.take_superpage(offset);
        let mut state = self.manager.state.lock();
        state.pool_busy = None;
        if state.next_offset.0 <= offset.0 && huge {
            state.pool_end = offset + Bytes(SUPERPAGE);
            let ready = (state.pool_end.0 - state.next_offset.0) / SUPERPAGE;
            self.manager.stats().set(Counter::PoolReady, ready);
            return;
        }
        drop(state);
        self.complete(offset, huge);
        if !huge {
            self.budget = Bytes::ZERO;
        }
    }
}

impl Predicted {
    /// A run that begins at `start` and of which no extent is known yet.
    fn new(start: Slot) -> Predicted {
        Predicted {
            run: start..start,
            touched: start,
            done: start,
            pending: true,
        }
    }

    /// The extent to zero next, if there is one.
    fn next(&mut self, pagemap: BorrowedFd<'_>) -> Option<Slot> {
        let before = self.touched;
        let ahead = before..Slot((before.0 + LOOK_RUN).min(self.run.end.0));
        // Whether or not it is still mapped: what is prepared is looked up again.
        let present = pagemap::Filter::PRESENT;
        let scanned = pagemap::scan(pagemap, run_range(&ahead), present, |found| {
            self.touched = found.range().end.slot();
        });
        let toucher = Slot(self.touched.0.saturating_sub(1));
        let limit = Slot((self.touched.0 + WHOLE_LEAD).min(self.run.end.0));
        let runs = self.touched > before;
        let next = next_to_prepare(toucher, self.done, limit, runs).filter(|_| scanned.is_ok());
        match next {
            Some(slot) => self.done = slot.next(),
            None => self.pending = false,
        }
        next
    }
}

/// The part of a run that lies in one region, without gaps, from its start.
pub(super) fn clip_to_region(table: &Table, run: &Range<Slot>, region: RegionId) -> Range<Slot> {
    let mut end = run.start;
    for (slot, extent) in table.extents.range(run.clone()) {
        if slot != end || extent.region != region {
            break;
        }
        end = slot.next();
    }
    run.start..end
}
