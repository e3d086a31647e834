//! The adaptive policy at work: what regions did is measured when they end, or
//! as soon as it is clear, and decides how the next ones of their size begin
//! (`quire_core::kin`; paper 001).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quire_core::config::Policy;
use quire_core::kin::{Outcome, PROBE, Start};
use quire_core::stat::RegionKind;
use quire_core::units::{AddrRange, Bytes, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE, Slot};
use quire_linux::pagemap::{self, Filter};
use quire_linux::raw::Result;

use crate::extent::{Work, by_slot, now_ms};
use crate::manager::{Manager, State};
use crate::table::{ExtentState, Region, RegionId, Table};

/// How much of a region is measured at most.
const MEASURED: Bytes = Bytes(64 * SUPERPAGE);

impl Manager {
    /// How a new mapping of the program begins.
    pub(crate) fn start_of(&self, state: &mut State, len: Bytes) -> Start {
        if self.policy() != Policy::Adaptive || state.is_gated() {
            return Start::Reserve;
        }
        match state.kinship.start(len) {
            Start::Base if !state.left.has_room() => Start::Reserve,
            start => start,
        }
    }

    /// Measures the regions that end with a range, before it is unmapped.
    pub(crate) fn measure_ending(&self, state: &mut State, range: AddrRange) {
        if !was_touched(&state.table, range) {
            return;
        }
        for (id, first) in ending(&state.table, range) {
            let part = AddrRange::new(first.start, first.len().min(MEASURED));
            if !was_touched(&state.table, part) {
                continue;
            }
            // Without descriptors the next one is measured.
            let _ = self.with_handles(|handles| Work::new(self, handles, state).measure(id, part));
        }
    }
}

/// The measured regions of which everything lies in a range, each with its first
/// interval.
fn ending(table: &Table, range: AddrRange) -> Vec<(RegionId, AddrRange)> {
    let mut found: BTreeMap<RegionId, (AddrRange, Bytes)> = BTreeMap::new();
    let measured = |id| table.regions.get(&id).is_some_and(Region::is_measured);
    for part in table.overlaps(range).filter(|part| measured(part.region)) {
        let known = found
            .entry(part.region)
            .or_insert((part.range, Bytes::ZERO));
        known.1 += part.range.len();
    }
    let all = |id: RegionId, len| table.regions.get(&id).is_some_and(|r| r.mapped == len);
    let ending = found.into_iter().filter(|(id, (_, len))| all(*id, *len));
    ending.map(|(id, (first, _))| (id, first)).collect()
}

/// Whether a range may hold something: some touch of it was answered, or may have
/// been one that nobody reports.
fn was_touched(table: &Table, range: AddrRange) -> bool {
    let slots = range.whole_slots();
    let extents = table.extents.range(Slot(slots.start)..Slot(slots.end));
    let mut states = extents.map(|(_, extent)| extent.state);
    states.any(|state| state != ExtentState::Empty)
}

impl Region {
    /// Whether what it does is to be noted for its kin.
    pub(crate) fn is_measured(&self) -> bool {
        self.policy == Policy::Adaptive
            && self.kind == RegionKind::Anon
            && self.start == Start::Reserve
            && !self.noted
    }
}

impl Work<'_> {
    /// Notes how much of a region was touched when it ends.
    fn measure(&mut self, id: RegionId, range: AddrRange) -> Result<()> {
        let mut touched = BTreeSet::new();
        let mut populated = PageCount(0);
        pagemap::scan(self.handles.pagemap(), range, Filter::PRESENT, |run| {
            for (slot, part) in by_slot(run.range()) {
                touched.insert(slot);
                populated += part.len().to_pages();
            }
        })?;
        let Some(region) = self.state.table.regions.get_mut(&id) else {
            return Ok(());
        };
        region.noted = true;
        let outcome = Outcome {
            extents: touched.len() as u64,
            populated,
            lifetime: Some(Duration::from_millis(now_ms() - region.born_ms)),
        };
        self.state.kinship.note(region.size, &outcome);
        Ok(())
    }

    /// Notes that a region is dense, as soon as a run of its extents shows it.
    pub fn note_dense(&mut self, id: RegionId, extents: u64) {
        let region = self.state.table.regions.get_mut(&id);
        if let Some(region) = region.filter(|region| region.is_measured()) {
            region.noted = true;
            let outcome = Outcome {
                extents,
                populated: PageCount(extents * PAGES_PER_SUPERPAGE as u64),
                lifetime: None,
            };
            self.state.kinship.note(region.size, &outcome);
        }
    }

    /// Whether an extent that is given up stays ready to be mapped whole: it was
    /// a superpage, or was to be one, and what was dense will be dense again. Now
    /// and then one is reserved instead, to see whether that still holds. Where it
    /// does not, what is given up begins as under `reserve`, until one becomes a
    /// superpage again.
    pub fn stays_whole(&mut self, slot: Slot) -> bool {
        let Some(extent) = self.state.table.extents.get_mut(slot) else {
            return false;
        };
        let whole = matches!(extent.state, ExtentState::Promoted | ExtentState::Whole);
        match self.state.table.regions.get_mut(&extent.region) {
            Some(region) if region.policy == Policy::Eager => true,
            Some(region) if region.policy == Policy::Adaptive && whole => {
                region.dense_again |= extent.state == ExtentState::Promoted;
                region.given_up = (region.given_up + 1) % PROBE;
                extent.probe = region.dense_again && region.given_up == 0;
                region.dense_again && !extent.probe
            }
            _ => false,
        }
    }

    /// Looks at what became of a reservation that is given up. It may have lived
    /// too short a time for anybody else to see that it stayed sparse.
    pub fn end_reservation(&mut self, slot: Slot) {
        let Some(extent) = self.state.table.extents.get_mut(slot) else {
            return;
        };
        let probed = std::mem::take(&mut extent.probe);
        let (id, told) = (extent.region, extent.told);
        let reserved = extent.is_reservation();
        let region = self.state.table.regions.get(&id);
        if !reserved || told || region.is_none_or(|r| r.policy != Policy::Adaptive) {
            return;
        }
        let populated = self.population(slot).map(|(map, _)| map.count());
        let region = self.state.table.regions.get_mut(&id);
        if let (Ok(populated), Some(region)) = (populated, region)
            && 2 * populated.0 < PAGES_PER_SUPERPAGE as u64
        {
            region.dense_again &= !probed;
            region.history.note_sparse(slot, populated);
        }
    }
}
