//! Extents of small folios. Where no block of 2 MiB is free, an extent is given
//! the largest folios that there are (paper 000, section 3.4: reservations of
//! several sizes). The kernel then zeroes and maps a whole folio at a touch, so
//! that filling the extent takes a fraction of the faults of base pages. When it
//! is full and a block is free again, it grows into a superpage, by a copy.
//!
//! It counts as a reservation: what it holds unpopulated is given back when
//! memory is short.

use quire_core::level::Level;
use quire_core::policy::Decision;
use quire_core::stat::Counter;
use quire_core::units::{Bytes, ObjectOffset, SUPERPAGE, Slot};
use quire_linux::huge_file;

use super::Pager;
use crate::extent::{Work, now_ms};
use crate::files;
use crate::manager::State;
use crate::table::{ExtentState, Region};

impl Pager {
    /// What is done with an extent whose region would have it reserved, while
    /// superpages of 2 MiB are not to be tried.
    pub(super) fn decide_small(&mut self, decision: Decision) -> Decision {
        match decision {
            Decision::Reserve | Decision::Whole if self.blocks.has_small() => Decision::Reserve,
            _ => Decision::Base,
        }
    }

    /// Gives the extent at `offset`, which was claimed, small folios. They are
    /// zeroed when they are touched. Says whether it did.
    pub(super) fn fill_small(&mut self, offset: ObjectOffset) -> bool {
        if !self.blocks.has_small() {
            return false;
        }
        let largest = self.manager.state.lock().config.largest;
        let object = self.handles.object();
        let sown = match largest {
            Level::SUPERPAGE => Ok(()),
            // Two of the size would otherwise be one of the next.
            _ => {
                let every = Bytes(2 * largest.bytes().0);
                let sown = self.window.sow(object, offset, every);
                self.window.close();
                sown
            }
        };
        let filled = sown.and_then(|()| huge_file::allocate(object, offset, Bytes(SUPERPAGE)));
        let filled = filled.is_ok();
        if filled {
            self.budget = self.budget.saturating_sub(Bytes(SUPERPAGE));
        }
        filled
    }

    /// Enters an extent that was given small folios, wherever the program has
    /// moved it meanwhile. Says whether it has them.
    pub(super) fn complete_small(&self, offset: ObjectOffset) -> bool {
        let mut state = self.manager.state.lock();
        let Some(slot) = self.unclaim(&mut state, offset) else {
            return false;
        };
        let shared = state.table.slot_is_shared(slot);
        let discarded = Work::new(self.manager, &self.handles, &mut state).is_hole(slot);
        let Some(extent) = state.table.extents.get_mut(slot) else {
            return false;
        };
        if discarded || extent.state != ExtentState::Empty {
            return false;
        }
        extent.changed_ms = now_ms();
        extent.folio = true;
        extent.state = ExtentState::Small;
        state.queue.touch(slot);
        self.manager.stats().add(Counter::SmallReservations, 1);
        if shared {
            Work::new(self.manager, &self.handles, &mut state).arm_small(slot);
        }
        shared
    }
}

/// Whether superpages of 2 MiB may be tried in a region.
pub(super) fn may_try_whole(state: &State, region: &Region) -> bool {
    state.config.largest == Level::SUPERPAGE && region.backoff.may_try(now_ms())
}

impl Work<'_> {
    /// Lets a touch of an extent map a folio whole, however large it is.
    pub fn arm_small(&mut self, slot: Slot) {
        if !self.may_split() || self.arm_whole(slot.range()).is_err() {
            self.make_base(slot..slot.next());
        }
    }

    /// Whether an extent has small folios.
    pub fn is_small(&self, slot: Slot) -> bool {
        let extent = self.state.table.extents.get(slot);
        extent.is_some_and(|e| e.state == ExtentState::Small)
    }

    /// Notes that an extent of small folios is full.
    pub fn settle_small(&mut self, slot: Slot) {
        self.state.queue.remove(slot);
        let region = self.state.table.extents.get(slot).map(|e| e.region);
        if let Some(region) = region.and_then(|id| self.state.table.regions.get_mut(&id)) {
            region.history.note_full(slot);
        }
        files::announce();
    }
}
