//! A map from superpage-sized slots to what is known of them.
//!
//! Slots that are in use mostly lie side by side, thousands of them in a large
//! mapping. So they are kept in chunks of 32 neighbours: a bit for each slot
//! that is there, and the values of those in a row. That takes little more memory than
//! the values themselves, half of what a B-tree with a key for each takes.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};

use crate::units::Slot;

/// Slots in a chunk: as many as the bits of its mask.
const SLOTS: u64 = u32::BITS as u64;

/// The map.
#[derive(Clone, Debug)]
pub struct SlotMap<V> {
    /// By slot divided by [`SLOTS`]. No chunk is empty.
    chunks: BTreeMap<u64, Chunk<V>>,
}

#[derive(Clone, Debug)]
struct Chunk<V> {
    /// Which slots are there.
    present: u32,
    /// Their values, in order.
    values: Vec<V>,
}

impl<V> SlotMap<V> {
    /// Nothing.
    #[must_use]
    pub const fn new() -> SlotMap<V> {
        SlotMap {
            chunks: BTreeMap::new(),
        }
    }

    /// The value of a slot.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Option<&V> {
        let chunk = self.chunks.get(&number(slot))?;
        chunk.index(bit(slot)).map(|at| &chunk.values[at])
    }

    /// The value of a slot, to be changed.
    #[must_use]
    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut V> {
        let chunk = self.chunks.get_mut(&number(slot))?;
        chunk.index(bit(slot)).map(|at| &mut chunk.values[at])
    }

    /// Whether a slot has a value.
    #[must_use]
    pub fn contains(&self, slot: Slot) -> bool {
        self.get(slot).is_some()
    }

    /// Sets the value of a slot, and returns what it was.
    pub fn insert(&mut self, slot: Slot, value: V) -> Option<V> {
        let chunk = self.chunks.entry(number(slot)).or_insert(Chunk {
            present: 0,
            values: Vec::new(),
        });
        match chunk.index(bit(slot)) {
            Some(at) => Some(std::mem::replace(&mut chunk.values[at], value)),
            None => {
                let at = chunk.count_before(bit(slot));
                chunk.values.insert(at, value);
                chunk.present |= 1 << bit(slot);
                None
            }
        }
    }

    /// Removes the value of a slot, and returns it.
    pub fn remove(&mut self, slot: Slot) -> Option<V> {
        let chunk = self.chunks.get_mut(&number(slot))?;
        let at = chunk.index(bit(slot))?;
        let value = chunk.values.remove(at);
        chunk.present &= !(1 << bit(slot));
        if chunk.present == 0 {
            self.chunks.remove(&number(slot));
        }
        Some(value)
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.chunks.clear();
    }

    /// Whether no slot has a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// All slots with their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &V)> {
        self.range(..)
    }

    /// The slots in a range with their values, in order.
    pub fn range(&self, range: impl RangeBounds<Slot>) -> impl Iterator<Item = (Slot, &V)> {
        let span = Span::of(&range);
        let chunks = span.map(|span| self.chunks.range(span.chunks()));
        chunks.into_iter().flatten().flat_map(move |(at, chunk)| {
            let wanted = span.map_or(0, |span| span.mask(*at));
            let values = &chunk.values[chunk.indices(wanted)];
            slots(*at, chunk.present & wanted).zip(values)
        })
    }

    /// The same, to be changed.
    pub fn range_mut(
        &mut self,
        range: impl RangeBounds<Slot>,
    ) -> impl Iterator<Item = (Slot, &mut V)> {
        let span = Span::of(&range);
        let chunks = span.map(|span| self.chunks.range_mut(span.chunks()));
        chunks.into_iter().flatten().flat_map(move |(at, chunk)| {
            let wanted = span.map_or(0, |span| span.mask(*at));
            let indices = chunk.indices(wanted);
            slots(*at, chunk.present & wanted).zip(&mut chunk.values[indices])
        })
    }
}

impl<V> Default for SlotMap<V> {
    fn default() -> SlotMap<V> {
        SlotMap::new()
    }
}

impl<V> Chunk<V> {
    /// Where the value of a slot is.
    fn index(&self, bit: u32) -> Option<usize> {
        (self.present >> bit & 1 == 1).then(|| self.count_before(bit))
    }

    /// How many slots before this one are there.
    fn count_before(&self, bit: u32) -> usize {
        (self.present & !(u32::MAX << bit)).count_ones() as usize
    }

    /// Where the values of `wanted` slots are, which lie side by side.
    fn indices(&self, wanted: u32) -> std::ops::Range<usize> {
        let first = self.count_before(wanted.trailing_zeros().min(u32::BITS - 1));
        first..first + (self.present & wanted).count_ones() as usize
    }
}

/// Slots without a gap, which are not none.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u64,
    last: u64,
}

impl Span {
    fn of(range: &impl RangeBounds<Slot>) -> Option<Span> {
        let first = match range.start_bound() {
            Bound::Included(slot) => slot.0,
            Bound::Excluded(slot) => slot.0.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let last = match range.end_bound() {
            Bound::Included(slot) => slot.0,
            Bound::Excluded(slot) => slot.0.checked_sub(1)?,
            Bound::Unbounded => u64::MAX,
        };
        (first <= last).then_some(Span { first, last })
    }

    fn chunks(self) -> std::ops::RangeInclusive<u64> {
        self.first / SLOTS..=self.last / SLOTS
    }

    /// Which slots of a chunk lie in the span.
    fn mask(self, chunk: u64) -> u32 {
        let mut mask = u32::MAX;
        if chunk == self.first / SLOTS {
            mask &= u32::MAX << bit(Slot(self.first));
        }
        if chunk == self.last / SLOTS {
            mask &= u32::MAX >> (u32::BITS - 1 - bit(Slot(self.last)));
        }
        mask
    }
}

const fn number(slot: Slot) -> u64 {
    slot.0 / SLOTS
}

const fn bit(slot: Slot) -> u32 {
    (slot.0 % SLOTS) as u32
}

/// The slots of a chunk whose bits are set, in order.
fn slots(chunk: u64, mut bits: u32) -> impl Iterator<Item = Slot> {
    std::iter::from_fn(move || {
        let next = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(Slot(chunk * SLOTS + u64::from(next)))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Slots of four chunks, and the last ones there are.
    fn slot() -> impl Strategy<Value = Slot> {
        prop_oneof![
            8 => (0..4 * SLOTS).prop_map(Slot),
            1 => (0..SLOTS).prop_map(|n| Slot(u64::MAX - n)),
        ]
    }

    fn bound() -> impl Strategy<Value = Bound<Slot>> {
        prop_oneof![
            slot().prop_map(Bound::Included),
            slot().prop_map(Bound::Excluded),
            Just(Bound::Unbounded),
        ]
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Slot, u32),
        Remove(Slot),
        Change(Slot, u32),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (slot(), any::<u32>()).prop_map(|(slot, value)| Step::Insert(slot, value)),
            4 => slot().prop_map(Step::Remove),
            2 => (slot(), any::<u32>()).prop_map(|(slot, value)| Step::Change(slot, value)),
            1 => Just(Step::Clear),
        ]
    }

    /// Whether `BTreeMap::range` takes these bounds.
    fn is_range(range: &(Bound<Slot>, Bound<Slot>)) -> bool {
        use Bound::{Excluded, Included};
        match range {
            (Excluded(a), Excluded(b)) => a < b,
            (Included(a) | Excluded(a), Included(b) | Excluded(b)) => a <= b,
            _ => true,
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec(step(), 0..200), range in (bound(), bound())) {
            let mut map = SlotMap::new();
            let mut model = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Insert(slot, value) => {
                        prop_assert_eq!(map.insert(slot, value), model.insert(slot, value));
                    }
                    Step::Remove(slot) => {
                        prop_assert_eq!(map.remove(slot), model.remove(&slot));
                    }
                    Step::Change(slot, value) => {
                        prop_assert_eq!(map.contains(slot), model.contains_key(&slot));
                        let (own, other) = (map.get_mut(slot), model.get_mut(&slot));
                        prop_assert_eq!(&own, &other);
                        if let (Some(own), Some(other)) = (own, other) {
                            (*own, *other) = (value, value);
                        }
                        prop_assert_eq!(map.get(slot), model.get(&slot));
                    }
                    Step::Clear => {
                        map.clear();
                        model.clear();
                    }
                }
                prop_assert_eq!(map.is_empty(), model.is_empty());
            }
            let all: Vec<(Slot, u32)> = map.iter().map(|(slot, value)| (slot, *value)).collect();
            prop_assert_eq!(all, model.iter().map(|(s, v)| (*s, *v)).collect::<Vec<_>>());
            let found: Vec<Slot> = map.range(range).map(|(slot, _)| slot).collect();
            let expected: Vec<Slot> = match is_range(&range) {
                true => model.range(range).map(|(slot, _)| *slot).collect(),
                false => Vec::new(),
            };
            prop_assert_eq!(found, expected);
            map.range_mut(range).for_each(|(slot, value)| *value = slot.0 as u32);
            if is_range(&range) {
                model.range_mut(range).for_each(|(slot, value)| *value = slot.0 as u32);
            }
            prop_assert!(map.iter().eq(model.iter().map(|(slot, value)| (*slot, value))));
        }
    }
}
