//! The order in which reservations are preempted.
//!
//! Reservations are kept sorted by the time of their most recent allocation,
//! and the one that was allocated from least recently goes first (paper 000,
//! section 3.4): a program that still fills an extent has touched it lately.

use std::collections::BTreeMap;

/// Reservations in the order of their most recent allocation. Every operation
/// on one reservation takes O(log n).
#[derive(Clone, Debug)]
pub struct ReservationQueue<K: Copy + Ord> {
    by_stamp: BTreeMap<u64, K>,
    stamps: BTreeMap<K, u64>,
    next_stamp: u64,
}

impl<K: Copy + Ord> ReservationQueue<K> {
    /// An empty queue.
    #[must_use]
    pub const fn new() -> ReservationQueue<K> {
        ReservationQueue {
            by_stamp: BTreeMap::new(),
            stamps: BTreeMap::new(),
            next_stamp: 0,
        }
    }

    /// Notes an allocation from `key`: it is inserted, or moved, to the end
    /// that is preempted last.
    pub fn touch(&mut self, key: K) {
        let stamp = self.next_stamp;
        self.next_stamp += 1;
        if let Some(old) = self.stamps.insert(key, stamp) {
            self.by_stamp.remove(&old);
        }
        self.by_stamp.insert(stamp, key);
    }

    /// Removes `key`, and says whether it was there.
    pub fn remove(&mut self, key: K) -> bool {
        match self.stamps.remove(&key) {
            Some(stamp) => self.by_stamp.remove(&stamp).is_some(),
            None => false,
        }
    }

    /// Whether `key` is queued.
    #[must_use]
    pub fn contains(&self, key: K) -> bool {
        self.stamps.contains_key(&key)
    }

    /// The reservation to preempt first, which stays queued; `None` when
    /// nothing is reserved.
    #[must_use]
    pub fn least_recent(&self) -> Option<K> {
        self.by_stamp.first_key_value().map(|(_, key)| *key)
    }

    /// The reservations, the one to preempt first foremost.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = K> {
        self.by_stamp.values().copied()
    }

    /// The reservations from `first` on, in the order of their keys.
    pub fn from(&self, first: K) -> impl Iterator<Item = K> {
        self.stamps.range(first..).map(|(key, _)| *key)
    }

    /// How many reservations are queued.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stamps.len()
    }

    /// Whether nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stamps.is_empty()
    }

    /// Removes every reservation.
    pub fn clear(&mut self) {
        self.by_stamp.clear();
        self.stamps.clear();
    }
}

impl<K: Copy + Ord> Default for ReservationQueue<K> {
    fn default() -> ReservationQueue<K> {
        ReservationQueue::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_least_recently_touched_goes_first() {
        let mut queue = ReservationQueue::new();
        assert_eq!(queue.least_recent(), None);
        for key in [1, 2, 3, 1] {
            queue.touch(key);
        }
        assert_eq!(queue.least_recent(), Some(2));
        assert!(queue.iter().eq([2, 3, 1]));
        assert!(queue.from(2).eq([2, 3]));
        assert!(queue.remove(2) && !queue.remove(2) && !queue.contains(2));
        assert!(queue.iter().eq([3, 1]));
        queue.clear();
        assert!(queue.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Touch(u8),
        Remove(u8),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0u8..20).prop_map(Step::Touch),
            4 => (0u8..20).prop_map(Step::Remove),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_list(steps in vec(step(), 0..80)) {
            let mut queue = ReservationQueue::default();
            let mut model: Vec<u8> = Vec::new();
            for step in steps {
                match step {
                    Step::Touch(key) => {
                        model.retain(|k| *k != key);
                        model.push(key);
                        queue.touch(key);
                    }
                    Step::Remove(key) => {
                        prop_assert_eq!(queue.remove(key), model.contains(&key));
                        model.retain(|k| *k != key);
                    }
                    Step::Clear => {
                        model.clear();
                        queue.clear();
                    }
                }
                prop_assert!(queue.iter().eq(model.iter().copied()));
                prop_assert_eq!(queue.len(), model.len());
                prop_assert_eq!(queue.by_stamp.len(), queue.stamps.len());
                prop_assert_eq!(queue.is_empty(), model.is_empty());
                prop_assert_eq!(queue.least_recent(), model.first().copied());
                prop_assert!((0..20).all(|k| queue.contains(k) == model.contains(&k)));
            }
        }
    }
}
