//! A set of which most have one element or none, and there is one for each page: the clients
//! that have a copy, or wait. A `BTreeSet` would take 200 bytes for the first element, 5 % of a
//! page of 4 KiB; this takes what the elements take. They are kept in order.

use std::vec;

/// A set of few.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Few<T> {
    sorted: Vec<T>,
}

impl<T> Few<T> {
    pub(super) const fn new() -> Few<T> {
        Few { sorted: Vec::new() }
    }

    pub(super) const fn len(&self) -> usize {
        self.sorted.len()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.sorted.clear();
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.sorted.iter()
    }

    pub(super) fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        self.sorted.retain(keep);
    }
}

impl<T: Ord> Few<T> {
    pub(super) fn contains(&self, element: &T) -> bool {
        self.sorted.binary_search(element).is_ok()
    }

    /// Whether it was not there.
    pub(super) fn insert(&mut self, element: T) -> bool {
        let place = self.sorted.binary_search(&element);
        if let Err(at) = place {
            if self.sorted.capacity() == 0 {
                self.sorted.reserve_exact(1);
            }
            self.sorted.insert(at, element);
        }
        place.is_err()
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, element: &T) -> bool {
        let place = self.sorted.binary_search(element);
        if let Ok(at) = place {
            self.sorted.remove(at);
        }
        place.is_ok()
    }
}

impl<T> Default for Few<T> {
    fn default() -> Few<T> {
        Few::new()
    }
}

impl<T: Ord> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        for element in elements {
            self.insert(element);
        }
    }
}

impl<'a, T: Ord + Copy + 'a> Extend<&'a T> for Few<T> {
    fn extend<I: IntoIterator<Item = &'a T>>(&mut self, elements: I) {
        self.extend(elements.into_iter().copied());
    }
}

impl<T: Ord> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Few<T> {
        let mut few = Few::new();
        few.extend(elements);
        few
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = vec::IntoIter<T>;

    fn into_iter(self) -> vec::IntoIter<T> {
        self.sorted.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> std::slice::Iter<'a, T> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8),
        Remove(u8),
        Retain(u8),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0u8..12).prop_map(Step::Insert),
            6 => (0u8..12).prop_map(Step::Remove),
            1 => (2u8..4).prop_map(Step::Retain),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        /// It is as a set of the standard library.
        #[test]
        fn it_is_a_set(steps in prop::collection::vec(step(), 0..60)) {
            let (mut few, mut set) = (Few::new(), BTreeSet::new());
            for step in steps {
                match step {
                    Step::Insert(it) => prop_assert_eq!(few.insert(it), set.insert(it)),
                    Step::Remove(it) => prop_assert_eq!(few.remove(&it), set.remove(&it)),
                    Step::Retain(by) => {
                        few.retain(|it| it % by == 0);
                        set.retain(|it| it % by == 0);
                    }
                    Step::Clear => {
                        few.clear();
                        set.clear();
                    }
                }
                prop_assert!(few.iter().eq(&set));
                prop_assert_eq!((few.len(), few.is_empty()), (set.len(), set.is_empty()));
                prop_assert!((0..12).all(|it| few.contains(&it) == set.contains(&it)));
                prop_assert_eq!(&set.iter().rev().copied().collect::<Few<u8>>(), &few);
            }
        }
    }
}
