//! Extents that are left to base pages because reserving pauses in their region
//! (`quire_core::policy`).
//!
//! When the program gives one up while the pause lasts, it stays what it is: its
//! next touch costs what it costs without Quire, and not a report to the pager.
//! How such extents are used decides whether the pause ends early. That is looked
//! at when they are given up, and by the pager a while after their first touch,
//! for a program that keeps what it has.

use std::collections::BTreeSet;

use quire_core::units::{PageCount, Slot};

use crate::extent::Work;
use crate::table::ExtentState;

/// How many are watched at a time. More would only say the same.
const WATCHED: usize = 256;

/// The extents that the pager looks at, since its last look and before it.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    young: BTreeSet<Slot>,
    old: BTreeSet<Slot>,
}

impl Watched {
    /// Nothing.
    pub const fn new() -> Watched {
        Watched {
            young: BTreeSet::new(),
            old: BTreeSet::new(),
        }
    }

    /// Watches one more.
    pub fn add(&mut self, slot: Slot) {
        if self.young.len() < WATCHED {
            self.young.insert(slot);
        }
    }

    /// Those of before the last look: by now they hold what the program wanted
    /// there.
    pub fn due(&mut self) -> BTreeSet<Slot> {
        std::mem::replace(&mut self.old, std::mem::take(&mut self.young))
    }
}

impl Work<'_> {
    /// Whether an extent that is given up stays with base pages, because reserving
    /// pauses and goes on to do so.
    pub fn stays_base(&mut self, slot: Slot) -> bool {
        let Some(populated) = self.tell(slot) else {
            return false;
        };
        let extent = self.state.table.extents.get(slot);
        let id = extent.map(|extent| extent.region);
        let Some(region) = id.and_then(|id| self.state.table.regions.get_mut(&id)) else {
            return false;
        };
        if populated.0 > 0 {
            region.history.note_unreported();
        }
        let stays = region.history.pauses();
        region.left |= stays;
        if stays {
            self.state.watched.add(slot);
        }
        stays
    }

    /// Looks at an extent that was left some time ago, and watches it on if it has
    /// not been touched.
    pub fn look_at_left(&mut self, slot: Slot) {
        if self.tell(slot) == Some(PageCount(0)) {
            self.state.watched.add(slot);
        }
    }

    /// Tells the history of a region that pauses how an extent is used that was
    /// left to base pages, once. Says how much it holds.
    fn tell(&mut self, slot: Slot) -> Option<PageCount> {
        let extent = self.state.table.extents.get(slot)?;
        let (id, told) = (extent.region, extent.told);
        let left = extent.state == ExtentState::Base && self.state.table.slot_is_shared(slot);
        if !left || !self.state.table.regions.get(&id)?.history.pauses() {
            return None;
        }
        let populated = self.population(slot).ok()?.0.count();
        if populated.0 > 0 && !told {
            self.state.table.extents.get_mut(slot)?.told = true;
            let region = self.state.table.regions.get_mut(&id)?;
            region.history.note_left(populated);
        }
        Some(populated)
    }
}
