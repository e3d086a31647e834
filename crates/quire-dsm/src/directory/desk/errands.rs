//! What is to be asked, each from a time on: what is due goes in the order of these times, and in
//! that in which it came where they are the same. So what waits for its time holds nothing up.
//! No I/O.

use std::collections::BTreeMap;
use std::time::Instant;

/// What is to be asked, by when.
#[derive(Debug)]
pub struct Errands<T> {
    all: BTreeMap<(Instant, u64), T>,
    /// How many there ever were.
    count: u64,
}

impl<T> Default for Errands<T> {
    fn default() -> Errands<T> {
        Errands {
            all: BTreeMap::new(),
            count: 0,
        }
    }
}

impl<T> Errands<T> {
    /// Something is to be asked from this time on.
    pub fn add(&mut self, from: Instant, errand: T) {
        self.count += 1;
        self.all.insert((from, self.count), errand);
    }

    /// What is to be asked next, if its time has come.
    pub fn next(&mut self, now: Instant) -> Option<T> {
        let first = self.all.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// When the time of the next one comes, or has come.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.all.keys().next().map(|(from, _)| *from)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each is asked once, when its time has come, and before whatever came later for the same
        /// time or a later one.
        #[test]
        fn all_is_asked_at_its_time_and_in_order(
            steps in vec(prop_oneof![(0u64..5).prop_map(Some), Just(None)], 0..60),
        ) {
            let begin = Instant::now();
            let at = |time: u64| begin + Duration::from_millis(time);
            let (mut errands, mut asked) = (Errands::default(), Vec::new());
            let mut added: Vec<(u64, usize)> = Vec::new();
            let mut now = 0;
            for step in steps {
                match step {
                    Some(pause) => {
                        errands.add(at(now + pause), (now + pause, added.len()));
                        added.push((now + pause, added.len()));
                    }
                    None => {
                        now += 1;
                        while let Some(errand) = errands.next(at(now)) {
                            asked.push(errand);
                        }
                        let left = added.iter().filter(|(time, _)| *time > now);
                        let next = left.map(|(time, _)| at(*time)).min();
                        prop_assert_eq!(errands.due(), next);
                    }
                }
            }
            asked.extend(std::iter::from_fn(|| errands.next(at(now + 9))));
            let earlier = |other: &&(u64, usize), errand: &(u64, usize)| **other < *errand;
            for (place, errand) in asked.iter().enumerate() {
                let later = asked[place..].iter().find(|other| earlier(other, errand));
                // What came when this was asked already could not be before it.
                prop_assert!(later.is_none_or(|later| later.1 > errand.1));
            }
            asked.sort_unstable_by_key(|errand| errand.1);
            prop_assert_eq!(asked, added);
        }
    }
}
