//! The present state of the process, for its statistics page.

use std::collections::BTreeMap;

use quire_core::config::Policy;
use quire_core::pool::PoolPage;
use quire_core::stat::{Cell, CellState, Counter, RegionStat};
use quire_core::units::{Bytes, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE, Slot};

use super::{Watch, watched_run};
use crate::extent::{Work, now_ms};
use crate::manager::{Manager, State};
use crate::table::{Backing, Extent, ExtentState, Interval, RegionId, Table};

impl Manager {
    /// Notes how much is managed, after a call that may have changed it. Under
    /// `static` there is no pager that says more from time to time.
    pub(crate) fn note_mapped(&self, state: &mut State) {
        if self.policy() == Policy::Static {
            self.share_state(state);
        } else {
            self.stats().set(Counter::Mapped, state.table.mapped().0);
        }
    }

    /// Writes the present state into the statistics page.
    pub(crate) fn share_state(&self, state: &mut State) {
        let regions = region_stats(&state.table);
        let stats = self.stats();
        let sum = |f: fn(&RegionStat) -> u64| regions.iter().map(f).sum::<u64>();
        let populated = sum(|r| r.populated_bytes.0);
        let reserved = state.reserved_unpopulated().0;
        let superpages = sum(|r| r.superpages);
        stats.set(Counter::Mapped, state.table.mapped().0);
        stats.set(Counter::Populated, populated);
        stats.raise(Counter::PopulatedPeak, populated);
        stats.set(Counter::Reserved, reserved);
        stats.raise(Counter::ReservedPeak, reserved);
        stats.set(Counter::Superpages, superpages);
        stats.raise(Counter::SuperpagesPeak, superpages);
        let gigapages = gigapages(&state.table);
        stats.set(Counter::Gigapages, gigapages);
        stats.raise(Counter::GigapagesPeak, gigapages);
        stats.set_oldest(state.oldest_ms(), state.group);
        stats.set_regions(regions);
    }

    /// Brings the statistics page up to date at the end of the process.
    pub fn share_final(&'static self) {
        if !self.is_started() {
            return;
        }
        let mut state = self.state.lock();
        // Without descriptors the last look of the pager has to do.
        let _ = self.with_handles(|handles| {
            let mut next = Slot(0);
            while let Some(run) = watched_run(&state, next, Watch::All) {
                next = run.end;
                let state = &mut *state;
                Work::new(self, handles, state).look(&run, now_ms())?;
            }
            Ok(())
        });
        self.share_state(&mut state);
    }
}

fn region_stats(table: &Table) -> Vec<RegionStat> {
    let mut stats: BTreeMap<RegionId, RegionStat> = BTreeMap::new();
    for interval in table.intervals() {
        let Some(region) = table.regions.get(&interval.region) else {
            continue;
        };
        let entry = stats.entry(interval.region).or_insert(RegionStat {
            mapped_bytes: Bytes::ZERO,
            promotions: region.promotions,
            demotions: region.demotions,
            preemptions: region.preemptions,
            failed_reservations: region.failed,
            ..RegionStat::untouched(interval.range, region.kind, region.policy)
        });
        entry.range.end = interval.range.end;
        entry.mapped_bytes += interval.range.len();
        if let Backing::Pool(_) = interval.backing {
            entry.superpages += PoolPage::Superpage.count(interval.range);
        }
        if region.policy == Policy::Static {
            entry.picture.cells.extend(static_cells(table, interval));
        }
    }
    for (slot, extent) in table.extents.iter() {
        let Some(entry) = stats.get_mut(&extent.region) else {
            continue;
        };
        let populated = if extent.grown {
            PageCount(PAGES_PER_SUPERPAGE as u64)
        } else {
            extent.popmap.count()
        };
        entry.populated_bytes += populated.to_bytes();
        if extent.is_reservation() {
            entry.reserved_bytes += Bytes(SUPERPAGE).saturating_sub(populated.to_bytes());
        }
        // Since a fork, what was a superpage may be read through base pages.
        let whole = extent.grown || (extent.is_superpage() && table.slot_is_shared(slot));
        entry.superpages += u64::from(whole);
        let cell = Cell::new(cell_state(extent, whole), populated);
        entry.picture.cells.push(cell);
    }
    stats.into_values().collect()
}

/// Pages of 1 GiB.
fn gigapages(table: &Table) -> u64 {
    let page = PoolPage::Gigapage;
    let of_size = table
        .intervals()
        .filter(|i| i.backing == Backing::Pool(page));
    of_size.map(|i| page.count(i.range)).sum()
}

/// What a picture shows of memory that has no extents: superpages of a pool, and
/// what has gone from there to base pages. A slot belongs to the interval in
/// which it begins.
fn static_cells(table: &Table, interval: &Interval) -> impl Iterator<Item = Cell> {
    let cell = match interval.backing {
        Backing::Pool(_) => {
            let all = PageCount(PAGES_PER_SUPERPAGE as u64);
            Some(Cell::new(CellState::Whole, all))
        }
        Backing::Plain => Some(Cell::new(CellState::Base, PageCount(0))),
        _ => None,
    };
    let range = interval.range;
    let begins = move |slot: &Slot| slot.start() >= range.start;
    let slots = range.slots().map(Slot).filter(begins);
    slots
        .filter(|slot| !table.extents.contains(*slot))
        .filter_map(move |_| cell)
}

/// What a picture shows of an extent, which is mapped by a superpage or not.
fn cell_state(extent: &Extent, is_superpage: bool) -> CellState {
    match extent.state {
        _ if extent.grown => CellState::Promoted,
        _ if extent.is_superpage() && !is_superpage => CellState::Base,
        ExtentState::Empty => CellState::Empty,
        ExtentState::Reserved => CellState::Reserved,
        ExtentState::Small => CellState::Small,
        ExtentState::Whole => CellState::Whole,
        ExtentState::Promoted => CellState::Promoted,
        ExtentState::Base => CellState::Base,
    }
}
