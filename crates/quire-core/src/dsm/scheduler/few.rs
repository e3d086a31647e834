//! A set of which most have one element or none, and there is one for each page: the clients
//! that have a copy, or wait. A `BTreeSet` would take 200 bytes for the first element, 5 % of a
//! page of 4 KiB; this takes nothing beside itself for it, and then what the elements take. They
//! are kept in order.

use std::iter::Chain;
use std::mem::take;
use std::{option, slice, vec};

/// A set of few.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Few<T> {
    None,
    One(T),
    /// Two at least, in order.
    More(Vec<T>),
}

impl<T> Few<T> {
    pub(super) const fn new() -> Few<T> {
        Few::None
    }

    fn sorted(&self) -> &[T] {
        match self {
            Few::None => &[],
            Few::One(one) => slice::from_ref(one),
            Few::More(more) => more,
        }
    }

    /// A set of these, which are in order.
    fn of(mut sorted: Vec<T>) -> Few<T> {
        match sorted.len() {
            2.. => Few::More(sorted),
            _ => sorted.pop().map_or(Few::None, Few::One),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sorted().len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sorted().is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Few::None;
    }

    pub(super) fn iter(&self) -> slice::Iter<'_, T> {
        self.sorted().iter()
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        *self = match take(self) {
            Few::None => Few::None,
            Few::One(one) if keep(&one) => Few::One(one),
            Few::One(_) => Few::None,
            Few::More(mut more) => {
                more.retain(keep);
                Few::of(more)
            }
        };
    }
}

impl<T: Ord> Few<T> {
    pub(super) fn contains(&self, element: &T) -> bool {
        self.sorted().binary_search(element).is_ok()
    }

    /// Whether it was not there.
    pub(super) fn insert(&mut self, element: T) -> bool {
        let place = self.sorted().binary_search(&element);
        if let Err(at) = place {
            *self = match take(self) {
                Few::None => Few::One(element),
                Few::One(one) if at == 0 => Few::More(vec![element, one]),
                Few::One(one) => Few::More(vec![one, element]),
                Few::More(mut more) => {
                    more.insert(at, element);
                    Few::More(more)
                }
            };
        }
        place.is_err()
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, element: &T) -> bool {
        let place = self.sorted().binary_search(element);
        if let Ok(at) = place {
            *self = match take(self) {
                Few::None | Few::One(_) => Few::None,
                Few::More(mut more) => {
                    more.remove(at);
                    Few::of(more)
                }
            };
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
    type IntoIter = Chain<option::IntoIter<T>, vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        let (one, more) = match self {
            Few::None => (None, Vec::new()),
            Few::One(one) => (Some(one), Vec::new()),
            Few::More(more) => (None, more),
        };
        one.into_iter().chain(more)
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> slice::Iter<'a, T> {
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
                prop_assert!(few.clone().into_iter().eq(set.iter().copied()));
                prop_assert!((0..12).all(|it| few.contains(&it) == set.contains(&it)));
                prop_assert_eq!(&set.iter().rev().copied().collect::<Few<u8>>(), &few);
            }
        }
    }

    #[test]
    fn one_takes_nothing_beside_the_set() {
        assert_eq!(size_of::<Few<[u64; 2]>>(), size_of::<Vec<u8>>());
    }
}
