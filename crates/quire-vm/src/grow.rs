//! Full extents that grow into superpages by a copy: what was filled on base pages
//! while reservations failed or paused, and what small folios hold (paper 000,
//! section 3.4). They are full, so a superpage takes no more memory.
//!
//! The thread of `files` makes the copies, because one takes a third of a
//! millisecond, and to find a block for it may take many, in which the pager would
//! answer no fault. It holds the lock only before and after; meanwhile the extent is
//! marked busy, and the program may do with it what it likes: whatever is mapped
//! there keeps its contents.

use std::time::Duration;

use quire_core::config::Policy;
use quire_core::level::Level;
use quire_core::popmap::Popmap;
use quire_core::stat::Counter;
use quire_core::units::{ObjectOffset, Slot};
use quire_linux::memory::{self, Advice};
use quire_linux::raw::Result;

use crate::extent::now_ms;
use crate::manager::{Manager, State};
use crate::table::{Backing, ExtentState};

/// How many extents are gone through under one hold of the lock.
const AT_ONCE: usize = 1024;

/// Where an extent that may grow has its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Small folios of the object.
    Small,
    /// Base pages of the object.
    Object,
    /// Plain memory.
    Plain,
}

/// An extent that grows if it is full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growable {
    pub slot: Slot,
    /// As far as is known, it is plain memory that has grown already.
    pub grown: bool,
}

/// An extent that is growing.
#[derive(Debug)]
pub(crate) struct Growth {
    slot: Slot,
    offset: ObjectOffset,
    source: Source,
}

impl Manager {
    /// Lists extents, from `from` on, that grow if they are full. Returns where to
    /// go on, or `None` at the end.
    pub(crate) fn list_growable(&self, from: Slot, found: &mut Vec<Growable>) -> Option<Slot> {
        let state = self.state.lock();
        let mut extents = state.table.extents.range(from..);
        let next = extents.by_ref().take(AT_ONCE);
        found.extend(next.filter_map(|(slot, extent)| {
            source(&state, slot)?;
            let grown = extent.grown;
            Some(Growable { slot, grown })
        }));
        extents.next().map(|(slot, _)| slot)
    }

    /// Notes whether a superpage maps an extent. Of plain memory the kernel takes one
    /// apart after a fork, or where a part is given up. Of the object it can have made
    /// one after it had said that it could not.
    pub(crate) fn note_grown(&self, slot: Slot, grown: bool) {
        let mut state = self.state.lock();
        match source(&state, slot) {
            Some(Source::Plain) => {
                if let Some(extent) = state.table.extents.get_mut(slot) {
                    extent.grown = grown;
                }
            }
            Some(Source::Small | Source::Object) if grown => {
                drop(state);
                if let Some(growth) = self.begin_growth(slot) {
                    self.end_growth(&growth, true, Duration::ZERO);
                }
            }
            _ => {}
        }
    }

    /// Makes an extent ready to grow and marks it busy; `None` where it is not to
    /// grow any more.
    pub(crate) fn begin_growth(&self, slot: Slot) -> Option<Growth> {
        let mut state = self.state.lock();
        let source = source(&state, slot)?;
        let offset = state.table.slot_offset(slot)?;
        if source != Source::Small {
            // The extent will be a mapping of its own, if only for a while.
            let left = state.mappings_left.checked_sub(2)?;
            if source == Source::Object {
                state.mappings_left = left;
            }
        }
        if source != Source::Small && advise(slot, Advice::HugePage).is_err() {
            advise_base(slot);
            return None;
        }
        state.table.extents.get_mut(slot)?.busy = true;
        Some(Growth {
            slot,
            offset,
            source,
        })
    }

    /// Enters what has become of an extent, wherever the program has it now: whether
    /// it is a superpage, and how long the copy took.
    pub(crate) fn end_growth(&self, growth: &Growth, whole: bool, took: Duration) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(slot) = state.table.slot_of(growth.offset) else {
            // What the program has given up, it has given back.
            return;
        };
        // What was copied may not be what the program has moved meanwhile.
        let whole = whole && slot == growth.slot;
        let Some(extent) = state.table.extents.get_mut(slot) else {
            return;
        };
        extent.busy = false;
        let expected = match growth.source {
            Source::Small => ExtentState::Small,
            Source::Object | Source::Plain => ExtentState::Base,
        };
        if extent.state != expected {
            return;
        }
        if growth.source == Source::Plain || (growth.source == Source::Object && !whole) {
            advise_base(slot);
        }
        if !whole {
            return;
        }
        match growth.source {
            // Its touches are the kernel's business, and so stays its state.
            Source::Plain => extent.grown = true,
            Source::Small | Source::Object => {
                extent.state = ExtentState::Promoted;
                extent.popmap = Popmap::full();
                extent.changed_ms = now_ms();
            }
        }
        let id = extent.region;
        if let Some(region) = state.table.regions.get_mut(&id) {
            region.promotions += 1;
            if growth.source != Source::Small {
                region.history.note_full(slot);
            }
        }
        let stats = self.stats();
        stats.add(Counter::PromotionTime, took.as_nanos() as u64);
        stats.add(Counter::Promotions, 1);
        if growth.source == Source::Small {
            stats.add(Counter::SmallPromotions, 1);
        }
    }
}

/// Where an extent has its pages, if it grows when it is full.
fn source(state: &State, slot: Slot) -> Option<Source> {
    if state.short || state.config.largest < Level::SUPERPAGE {
        return None;
    }
    let extent = state.table.extents.get(slot)?;
    let region = state.table.regions.get(&extent.region)?;
    if extent.busy || matches!(region.policy, Policy::Base | Policy::Static) {
        return None;
    }
    let part = state.table.interval_at(slot.start())?;
    if !part.range.contains(slot.range()) || part.locked {
        return None;
    }
    match (extent.state, part.backing) {
        // While children look at the object, what is full here may be theirs, too.
        (ExtentState::Small, Backing::Shared) if !state.children => {
            extent.popmap.is_full().then_some(Source::Small)
        }
        (ExtentState::Base, Backing::Shared) if !state.children => Some(Source::Object),
        (ExtentState::Base, Backing::Plain) => Some(Source::Plain),
        _ => None,
    }
}

/// Advises the kernel about the page size of an extent.
pub(crate) fn advise(slot: Slot, advice: Advice) -> Result<()> {
    // SAFETY: advice about page sizes changes no contents.
    unsafe { memory::advise(slot.range(), advice) }
}

/// Forbids superpages where the extent has none: what is given up there and touched
/// again is touched page by page. Where the kernel refuses, it may be a superpage
/// again.
fn advise_base(slot: Slot) {
    let _ = advise(slot, Advice::NoHugePage);
}
