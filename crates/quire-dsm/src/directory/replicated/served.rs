//! Which questions were done. One whose answer does not come is said again, to the same leader
//! or the next, and may arrive twice, the second time much later: it is done once.
//!
//! Who asks numbers its questions from 1 on. Of each, the last number is known, and which of
//! the 63 before it are done; what is older counts as done. Of those who ask, the last 64 to
//! have done so are known.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Of so many who ask something is known.
const ASKERS: usize = 64;

/// What is known of one who asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Window {
    last: u64,
    /// Bit n is for the number n before the last.
    done: u64,
    /// When it asked last, counted in questions.
    at: u64,
}

/// Which questions were done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Served {
    askers: BTreeMap<u64, Window>,
    count: u64,
}

impl Served {
    /// A question is about to be done; whether it was not done before.
    pub fn is_new(&mut self, asker: u64, number: u64) -> bool {
        self.count += 1;
        let at = self.count;
        let (last, done) = (number, 0);
        let window = self
            .askers
            .entry(asker)
            .or_insert(Window { last, done, at });
        let is_new = window.take(number);
        window.at = at;
        if self.askers.len() > ASKERS {
            let oldest = self.askers.iter().min_by_key(|(_, window)| window.at);
            if let Some(oldest) = oldest.map(|(asker, _)| *asker) {
                self.askers.remove(&oldest);
            }
        }
        is_new
    }
}

impl Window {
    fn take(&mut self, number: u64) -> bool {
        if let Some(more) = number.checked_sub(self.last) {
            self.done =
                u32::try_from(more).map_or(0, |more| self.done.checked_shl(more).unwrap_or(0));
            self.last = number;
        }
        let bit = u32::try_from(self.last - number);
        let Some(bit) = bit.ok().and_then(|before| 1u64.checked_shl(before)) else {
            return false;
        };
        let is_new = self.done & bit == 0;
        self.done |= bit;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a set of all that was done.
        #[test]
        fn each_question_is_done_once(asked in prop::collection::vec((1u64..4, 1u64..200), 0..400)) {
            let mut served = Served::default();
            let mut done = BTreeSet::new();
            let mut last = BTreeMap::new();
            for (asker, number) in asked {
                let newest = last.entry(asker).or_insert(number);
                *newest = number.max(*newest);
                let is_old = *newest - number >= 64;
                let is_first = done.insert((asker, number)) && !is_old;
                prop_assert_eq!(served.is_new(asker, number), is_first);
            }
        }
    }

    #[test]
    fn few_who_ask_are_known() {
        let mut served = Served::default();
        for asker in 1..1000 {
            assert!(served.is_new(asker, 1));
            assert!(served.is_new(5000, asker));
            assert!(served.askers.len() <= ASKERS);
        }
        assert!(!served.is_new(5000, 999));
    }
}
