//! Which parts of a mapping are left after a program has unmapped some of it, and what they
//! allow. After a fork a child maps all of it anew, and makes it so again.

use std::collections::BTreeMap;
use std::ops::Range;

/// Protection, as `mprotect` takes it.
pub type Protection = i32;

/// Ranges of addresses with one protection each. They do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// By their starts: the end, and the protection.
    all: BTreeMap<u64, (u64, Protection)>,
}

impl Pieces {
    /// One piece.
    pub fn new(range: Range<u64>, protection: Protection) -> Pieces {
        Pieces {
            all: BTreeMap::from([(range.start, (range.end, protection))]),
        }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them, in the order of addresses.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, Protection)> {
        let whole =
            |(start, (end, protection)): (&u64, &(u64, Protection))| (*start..*end, *protection);
        self.all.iter().map(whole)
    }

    /// Those in a range, cut to it.
    pub fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let cut = |(piece, _): (Range<u64>, Protection)| {
            piece.start.max(range.start)..piece.end.min(range.end)
        };
        self.iter().map(cut).filter(|cut| !cut.is_empty()).collect()
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: &Range<u64>) {
        self.cut(range.start);
        self.cut(range.end);
        self.all.retain(|start, _| !range.contains(start));
    }

    /// Gives what is left in a range another protection.
    pub fn protect(&mut self, range: &Range<u64>, protection: Protection) {
        self.cut(range.start);
        self.cut(range.end);
        for (start, (_, old)) in &mut self.all {
            if range.contains(start) {
                *old = protection;
            }
        }
    }

    /// Divides the piece that an address lies in.
    fn cut(&mut self, at: u64) {
        if let Some((_, (end, protection))) = self.all.range_mut(..at).next_back()
            && *end > at
        {
            let rest = (*end, *protection);
            *end = at;
            self.all.insert(at, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEN: u64 = 24;

    /// What can be done to a mapping.
    #[derive(Clone, Debug)]
    enum Change {
        Remove(Range<u64>),
        Protect(Range<u64>, Protection),
    }

    fn change() -> impl Strategy<Value = Change> {
        // Some go beyond the mapping.
        let range = (0..LEN + 8, 0..12u64).prop_map(|(start, len)| start..start + len);
        let remove = range.clone().prop_map(Change::Remove);
        let protect = (range, 0..4).prop_map(|(range, prot)| Change::Protect(range, prot));
        prop_oneof![remove, protect]
    }

    proptest! {
        #[test]
        fn pieces_are_as_if_each_address_had_its_own(
            changes in prop::collection::vec(change(), 0..16),
            asked in (0..LEN, 0..LEN),
        ) {
            let mapped = 4..LEN;
            let mut pieces = Pieces::new(mapped.clone(), 3);
            let mut naive: BTreeMap<u64, Protection> = mapped.map(|at| (at, 3)).collect();
            for change in changes {
                match change {
                    Change::Remove(range) => {
                        pieces.remove(&range);
                        naive.retain(|at, _| !range.contains(at));
                    }
                    Change::Protect(range, prot) => {
                        pieces.protect(&range, prot);
                        let within = naive.iter_mut().filter(|(at, _)| range.contains(at));
                        within.for_each(|(_, old)| *old = prot);
                    }
                }
            }
            let each: BTreeMap<u64, Protection> = pieces
                .iter()
                .flat_map(|(range, prot)| range.map(move |at| (at, prot)))
                .collect();
            prop_assert_eq!(&each, &naive);
            prop_assert_eq!(pieces.is_empty(), naive.is_empty());
            let asked = asked.0..asked.1;
            let within: Vec<u64> = pieces.within(&asked).into_iter().flatten().collect();
            let wanted: Vec<u64> = naive.keys().copied().filter(|at| asked.contains(at)).collect();
            prop_assert_eq!(within, wanted);
        }
    }
}
