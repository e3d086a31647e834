//! Which parts of a mapping are left after a program has unmapped some of it, what they allow, and
//! whether children have them. After a fork a child maps all of it anew, and makes it so again.

use std::collections::BTreeMap;
use std::ops::Range;

/// Protection, as `mprotect` takes it.
pub type Protection = i32;

/// What holds for a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub protection: Protection,
    /// Whether children have it that are forked.
    pub is_inherited: bool,
}

/// Ranges of addresses with rules for each. They do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// By their starts: the end, and the rules.
    all: BTreeMap<u64, (u64, Rules)>,
}

impl Pieces {
    /// One piece, which children have.
    pub fn new(range: Range<u64>, protection: Protection) -> Pieces {
        let rules = Rules {
            protection,
            is_inherited: true,
        };
        Pieces {
            all: BTreeMap::from([(range.start, (range.end, rules))]),
        }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them, in the order of addresses.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, Rules)> {
        let whole = |(start, (end, rules)): (&u64, &(u64, Rules))| (*start..*end, *rules);
        self.all.iter().map(whole)
    }

    /// Those in a range, cut to it.
    pub fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let cut = |(piece, _): (Range<u64>, Rules)| {
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
        self.change(range, |rules| rules.protection = protection);
    }

    /// From now on children have what is left in a range, or have it not.
    pub fn inherit(&mut self, range: &Range<u64>, is_inherited: bool) {
        self.change(range, |rules| rules.is_inherited = is_inherited);
    }

    /// Whether children have any of it.
    pub fn are_inherited(&self) -> bool {
        self.all.values().any(|(_, rules)| rules.is_inherited)
    }

    /// In a child: only what it has is left.
    pub fn drop_apart(&mut self) {
        self.all.retain(|_, (_, rules)| rules.is_inherited);
    }

    fn change(&mut self, range: &Range<u64>, change: impl Fn(&mut Rules)) {
        self.cut(range.start);
        self.cut(range.end);
        for (start, (_, rules)) in &mut self.all {
            if range.contains(start) {
                change(rules);
            }
        }
    }

    /// Divides the piece that an address lies in.
    fn cut(&mut self, at: u64) {
        if let Some((_, (end, rules))) = self.all.range_mut(..at).next_back()
            && *end > at
        {
            let rest = (*end, *rules);
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
        Inherit(Range<u64>, bool),
    }

    fn change() -> impl Strategy<Value = Change> {
        // Some go beyond the mapping.
        let range = (0..LEN + 8, 0..12u64).prop_map(|(start, len)| start..start + len);
        let remove = range.clone().prop_map(Change::Remove);
        let protect = (range.clone(), 0..4).prop_map(|(range, prot)| Change::Protect(range, prot));
        let inherit = (range, any::<bool>()).prop_map(|(range, is)| Change::Inherit(range, is));
        prop_oneof![remove, protect, inherit]
    }

    proptest! {
        #[test]
        fn pieces_are_as_if_each_address_had_its_own(
            changes in prop::collection::vec(change(), 0..16),
            asked in (0..LEN, 0..LEN),
        ) {
            let mapped = 4..LEN;
            let mut pieces = Pieces::new(mapped.clone(), 3);
            let first = Rules { protection: 3, is_inherited: true };
            let mut naive: BTreeMap<u64, Rules> = mapped.map(|at| (at, first)).collect();
            for change in changes {
                match change {
                    Change::Remove(range) => {
                        pieces.remove(&range);
                        naive.retain(|at, _| !range.contains(at));
                    }
                    Change::Protect(range, prot) => {
                        pieces.protect(&range, prot);
                        let within = naive.iter_mut().filter(|(at, _)| range.contains(at));
                        within.for_each(|(_, rules)| rules.protection = prot);
                    }
                    Change::Inherit(range, is) => {
                        pieces.inherit(&range, is);
                        let within = naive.iter_mut().filter(|(at, _)| range.contains(at));
                        within.for_each(|(_, rules)| rules.is_inherited = is);
                    }
                }
            }
            let each = |pieces: &Pieces| -> BTreeMap<u64, Rules> {
                let each = pieces.iter().flat_map(|(range, rules)| range.map(move |at| (at, rules)));
                each.collect()
            };
            prop_assert_eq!(&each(&pieces), &naive);
            prop_assert_eq!(pieces.is_empty(), naive.is_empty());
            let asked = asked.0..asked.1;
            let within: Vec<u64> = pieces.within(&asked).into_iter().flatten().collect();
            let wanted: Vec<u64> = naive.keys().copied().filter(|at| asked.contains(at)).collect();
            prop_assert_eq!(within, wanted);
            pieces.drop_apart();
            naive.retain(|_, rules| rules.is_inherited);
            prop_assert_eq!(&each(&pieces), &naive);
        }
    }
}
