//! Extents of small folios. Where no block of 2 MiB is free, an extent is given
//! the largest folios that there are (paper 000, section 3.4: reservations of
//! several sizes). The kernel then zeroes and maps a whole folio at a touch, so
//! that filling the extent takes a fraction of the faults of base pages. When it
//! is full and a block is free again, it grows into a superpage, by a copy.
//!
//! It counts as a reservation: what it holds unpopulated is given back when
//! memory is short.

use quire_core::level::Level;
use quire_core::policy::{Backoff, Decision};
use quire_core::popmap::Popmap;
use quire_core::stat::Counter;
use quire_core::units::{Bytes, ObjectOffset, SUPERPAGE, Slot};
use quire_linux::memory::{self, Advice};
use quire_linux::{huge_file, thread};

use super::Pager;
use crate::extent::{Work, now_ms};
use crate::manager::State;
use crate::table::{Extent, ExtentState, Region};

/// How many extents grow into superpages at one sharing of the statistics: each
/// is a copy of 2 MiB.
const GROWN_AT_ONCE: usize = 8;

/// What is known of small folios.
#[derive(Debug, Default)]
pub(super) struct Small {
    /// Where the search for extents that may grow goes on.
    next: Slot,
    /// Holds growing back after a failure.
    backoff: Backoff,
}

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
            _ => self
                .window
                .sow(object, offset, Bytes(2 * largest.bytes().0)),
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
        let Some(extent) = state.table.extents.get_mut(&slot) else {
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

    /// Lets full extents of small folios grow into superpages, where the kernel
    /// has blocks for them.
    pub(super) fn grow_small(&mut self) {
        for _ in 0..GROWN_AT_ONCE {
            if !self.small.backoff.may_try(now_ms()) {
                return;
            }
            let Some((slot, offset)) = self.claim_small() else {
                return;
            };
            let began = thread::now_ns();
            // Whatever is mapped there meanwhile keeps its contents.
            //
            // SAFETY: collapsing changes where pages are, not what they hold.
            let _ = unsafe { memory::advise(slot.range(), Advice::Collapse) };
            if self.complete_growth(offset, began) {
                self.small.backoff.succeeded();
            } else {
                self.small.backoff.failed(now_ms());
            }
            self.answer_faults();
        }
    }

    /// Finds a full extent of small folios and marks it as being worked on.
    fn claim_small(&mut self) -> Option<(Slot, ObjectOffset)> {
        let manager = self.manager;
        let mut state = manager.state.lock();
        if state.children || state.short || state.config.largest < Level::SUPERPAGE {
            return None;
        }
        let from = self.small.next;
        let slots = state.table.extents.range(from..).map(|(slot, _)| *slot);
        let found = { slots }.find(|slot| may_grow(&state, *slot));
        self.small.next = found.map_or(Slot(0), Slot::next);
        let slot = found.filter(|_| self.blocks.has_superpage())?;
        let offset = state.table.slot_offset(slot)?;
        state.table.extents.get_mut(&slot)?.busy = true;
        Some((slot, offset))
    }

    /// Enters the outcome of an attempt to make a superpage of the extent at
    /// `offset`. Says whether it is one.
    fn complete_growth(&self, offset: ObjectOffset, began_ns: u64) -> bool {
        let mut state = self.manager.state.lock();
        let Some(slot) = self.unclaim(&mut state, offset) else {
            return false;
        };
        let whole = Work::new(self.manager, &self.handles, &mut state).is_mapped_whole(slot);
        let Some(extent) = state.table.extents.get_mut(&slot) else {
            return false;
        };
        if !whole || extent.state != ExtentState::Small {
            return false;
        }
        extent.state = ExtentState::Promoted;
        extent.popmap = Popmap::full();
        extent.changed_ms = now_ms();
        let id = extent.region;
        if let Some(region) = state.table.regions.get_mut(&id) {
            region.promotions += 1;
        }
        let stats = self.manager.stats();
        stats.add(Counter::PromotionTime, thread::now_ns() - began_ns);
        stats.add(Counter::Promotions, 1);
        stats.add(Counter::SmallPromotions, 1);
        true
    }
}

/// Whether superpages of 2 MiB may be tried in a region.
pub(super) fn may_try_whole(state: &State, region: &Region) -> bool {
    state.config.largest == Level::SUPERPAGE && region.backoff.may_try(now_ms())
}

fn may_grow(state: &State, slot: Slot) -> bool {
    let full = |e: &Extent| e.state == ExtentState::Small && e.popmap.is_full() && !e.busy;
    state.table.extents.get(&slot).is_some_and(full)
        && state.table.slot_is_shared(slot)
        && state.table.slot_is_uniform(slot)
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
        let extent = self.state.table.extents.get(&slot);
        extent.is_some_and(|e| e.state == ExtentState::Small)
    }

    /// Notes that an extent of small folios is full.
    pub fn settle_small(&mut self, slot: Slot) {
        self.state.queue.remove(slot);
        let region = self.state.table.extents.get(&slot).map(|e| e.region);
        if let Some(region) = region.and_then(|id| self.state.table.regions.get_mut(&id)) {
            region.history.note_full(slot);
        }
    }
}
