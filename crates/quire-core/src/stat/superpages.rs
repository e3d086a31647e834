//! The regions that had the most superpages: a table of fixed size, because a program
//! has given most of its memory back when it ends. It is kept where frames are given by
//! strategy, to tell which memory was on superpages instead.
//!
//! There is one writer at a time. A row is read without a lock: its number of superpages
//! is written last, and is zero while it holds nothing.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use serde::{Deserialize, Serialize};

use super::{RegionKind, RegionStat};
use crate::config::Policy;
use crate::units::{AddrRange, VirtAddr};

/// Regions that have a row.
pub const MAX_SUPERPAGE_REGIONS: usize = 16;

/// A region that had superpages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuperpageRegion {
    /// Its addresses, when it had the most.
    #[serde(flatten)]
    pub range: AddrRange,
    /// What it was.
    pub kind: RegionKind,
    /// Its policy.
    pub policy: Policy,
    /// The largest number of superpages that it was seen with.
    pub superpages_peak: u64,
}

#[repr(C)]
struct Row {
    start: AtomicU64,
    end: AtomicU64,
    kind: AtomicU64,
    peak: AtomicU64,
}

/// The table.
#[repr(C)]
pub(super) struct SuperpageTable([Row; MAX_SUPERPAGE_REGIONS]);

impl SuperpageTable {
    pub(super) const fn new() -> SuperpageTable {
        SuperpageTable(
            [const {
                Row {
                    start: AtomicU64::new(0),
                    end: AtomicU64::new(0),
                    kind: AtomicU64::new(0),
                    peak: AtomicU64::new(0),
                }
            }; MAX_SUPERPAGE_REGIONS],
        )
    }

    /// Forgets everything.
    pub(super) fn reset(&self) {
        self.0
            .iter()
            .for_each(|row| row.peak.store(0, Ordering::Relaxed));
    }

    /// Takes note of a region as it is now.
    pub(super) fn note(&self, region: &RegionStat) {
        if region.superpages == 0 || region.kind == RegionKind::Rest {
            return;
        }
        let is_same = |row: &&Row| {
            let known = row.range();
            row.peak() > 0 && !known.intersect(region.range).is_empty()
        };
        let same = self.0.iter().find(is_same);
        let row = same.or_else(|| self.0.iter().min_by_key(|row| row.peak()));
        if let Some(row) = row.filter(|row| row.peak() < region.superpages) {
            row.write(region);
        }
    }

    /// The regions, those with the most superpages first.
    pub(super) fn read(&self) -> Vec<SuperpageRegion> {
        let mut regions: Vec<SuperpageRegion> = self.0.iter().filter_map(Row::read).collect();
        regions.sort_by_key(|region| (u64::MAX - region.superpages_peak, region.range.start));
        regions
    }
}

impl Row {
    fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn range(&self) -> AddrRange {
        AddrRange {
            start: VirtAddr(self.start.load(Ordering::Relaxed)),
            end: VirtAddr(self.end.load(Ordering::Relaxed)),
        }
    }

    fn write(&self, region: &RegionStat) {
        let (kind, policy) = (region.kind.code(), region.policy.code());
        self.peak.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(region.range.start.0, Ordering::Relaxed);
        self.end.store(region.range.end.0, Ordering::Relaxed);
        let kind = u64::from(kind) | u64::from(policy) << 8;
        self.kind.store(kind, Ordering::Relaxed);
        self.peak.store(region.superpages, Ordering::Release);
    }

    /// What the row holds, unless it is being written.
    fn read(&self) -> Option<SuperpageRegion> {
        let peak = self.peak.load(Ordering::Acquire);
        let kind = self.kind.load(Ordering::Relaxed) as u32;
        let region = SuperpageRegion {
            range: self.range(),
            kind: RegionKind::from_code(kind & 0xff),
            policy: Policy::from_code(kind >> 8).unwrap_or_default(),
            superpages_peak: peak,
        };
        fence(Ordering::Acquire);
        (peak > 0 && self.peak() == peak).then_some(region)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::units::{Bytes, SUPERPAGE};

    fn region(slot: u64, superpages: u64) -> RegionStat {
        let size = Bytes(64 * SUPERPAGE);
        let range = AddrRange::new(VirtAddr(slot * size.0), size);
        RegionStat {
            superpages,
            ..RegionStat::untouched(range, RegionKind::Anon, Policy::Eager)
        }
    }

    #[test]
    fn a_region_that_is_gone_is_known() {
        let table = SuperpageTable::new();
        [0, 3, 7, 2, 0]
            .into_iter()
            .for_each(|now| table.note(&region(5, now)));
        let wanted = SuperpageRegion {
            range: region(5, 0).range,
            kind: RegionKind::Anon,
            policy: Policy::Eager,
            superpages_peak: 7,
        };
        assert_eq!(table.read(), [wanted]);
        table.reset();
        assert_eq!(table.read(), []);
    }

    proptest! {
        /// Against the peaks of all regions.
        #[test]
        fn the_largest_regions_are_kept(steps in vec((1u64..40, 0u64..60), 0..200)) {
            let table = SuperpageTable::new();
            let mut peaks = std::collections::BTreeMap::new();
            for (slot, superpages) in steps {
                table.note(&region(slot, superpages));
                if superpages > 0 {
                    let peak = peaks.entry(slot).or_insert(0);
                    *peak = superpages.max(*peak);
                }
            }
            let mut wanted: Vec<u64> = peaks.into_values().collect();
            wanted.sort_unstable_by_key(|peak| u64::MAX - peak);
            wanted.truncate(MAX_SUPERPAGE_REGIONS);
            let found: Vec<u64> = table.read().iter().map(|r| r.superpages_peak).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}
