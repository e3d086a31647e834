//! A map from ranges of addresses to what is known of them, for ranges that do
//! not overlap and that come and go in parts, as mappings do.

use std::collections::BTreeMap;

use crate::units::{AddrRange, VirtAddr};

/// The map. Each range keeps its value when a part of it is taken out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeMap<V>(BTreeMap<VirtAddr, (VirtAddr, V)>);

impl<V: Copy> RangeMap<V> {
    /// Nothing.
    #[must_use]
    pub const fn new() -> RangeMap<V> {
        RangeMap(BTreeMap::new())
    }

    /// Enters a range, in place of what was known of its addresses.
    pub fn insert(&mut self, range: AddrRange, value: V) {
        self.remove(range);
        if !range.is_empty() {
            self.0.insert(range.start, (range.end, value));
        }
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: AddrRange) {
        let touched: Vec<(AddrRange, V)> = self.overlaps(range).collect();
        for (whole, value) in touched {
            self.0.remove(&whole.start);
            let (before, _) = whole.split_at(range.start);
            let (_, after) = whole.split_at(range.end);
            for rest in [before, after] {
                if !rest.is_empty() {
                    self.0.insert(rest.start, (rest.end, value));
                }
            }
        }
    }

    /// The ranges that have addresses in common with `range`, whole, in falling
    /// order.
    pub fn overlaps(&self, range: AddrRange) -> impl Iterator<Item = (AddrRange, V)> {
        let upward = (!range.is_empty()).then(|| self.0.range(..range.end));
        upward
            .into_iter()
            .flat_map(Iterator::rev)
            .map(|(start, (end, value))| {
                (
                    AddrRange {
                        start: *start,
                        end: *end,
                    },
                    *value,
                )
            })
            .take_while(move |(whole, _)| whole.end > range.start)
    }

    /// All ranges, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = (AddrRange, V)> {
        self.from(VirtAddr(0))
    }

    /// The ranges that begin at an address or after it, in order.
    pub fn from(&self, at: VirtAddr) -> impl Iterator<Item = (AddrRange, V)> {
        self.0.range(at..).map(|(start, (end, value))| {
            (
                AddrRange {
                    start: *start,
                    end: *end,
                },
                *value,
            )
        })
    }

    /// How many ranges there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::units::Bytes;

    fn range(first: u64, count: u64) -> AddrRange {
        AddrRange::new(VirtAddr(first), Bytes(count))
    }

    proptest! {
        /// Against one cell per address.
        #[test]
        fn each_address_has_its_last_value(
            steps in vec((prop::option::of(0u8..4), 0u64..60, 0u64..20), 1..60)
        ) {
            let mut map = RangeMap::new();
            let mut model = [None; 80];
            for (value, first, count) in steps {
                match value {
                    Some(value) => map.insert(range(first, count), value),
                    None => map.remove(range(first, count)),
                }
                model[first as usize..(first + count) as usize].fill(value);
                for (address, wanted) in model.iter().enumerate() {
                    let here = range(address as u64, 1);
                    let found: Vec<_> = map.overlaps(here).collect();
                    prop_assert_eq!(found.first().map(|(_, value)| *value), *wanted);
                    prop_assert!(found.len() <= 1);
                    prop_assert!(found.iter().all(|(whole, _)| whole.contains(here)));
                }
                prop_assert_eq!(map.iter().count(), map.len());
                let total: u64 = map.iter().map(|(whole, _)| whole.len().0).sum();
                prop_assert_eq!(total, model.iter().flatten().count() as u64);
            }
        }
    }
}
