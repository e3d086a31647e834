//! Which addresses have a strategy of their own (paper 002, section 3: hints are
//! indexed by virtual addresses, and one is the default).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::record::{ADDRESS_END, hex};
use super::spec::{SpecError, StrategySpec};
use crate::ranges::RangeMap;
use crate::units::{AddrRange, VirtAddr};

/// How the name of a mapping begins in a hint.
const MAP: &str = "map:";

/// What a hint is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Addresses, whole base pages: `7f0000000000-7f0000200000`.
    Range(AddrRange),
    /// The heap: `heap`.
    Heap,
    /// The stack: `stack`.
    Stack,
    /// Mappings of this name: `map:NAME`. A name with an equals sign or a line break
    /// cannot be written.
    Map(String),
}

/// A strategy for a part of a program's memory: `TARGET=STRATEGY`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hint {
    /// What it is for.
    pub target: Target,
    /// The strategy.
    pub strategy: StrategySpec,
}

/// Hints, no two of which are for the same memory by their text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    hints: Vec<Hint>,
    /// Which hint is for a range.
    ranges: RangeMap<usize>,
    /// Which hint is for a target that is no range.
    named: BTreeMap<String, usize>,
}

/// Why a text is no hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HintError {
    /// No equals sign.
    #[error("{0:?} is no hint: write TARGET=STRATEGY, such as heap=colour")]
    NoStrategy(String),
    /// No such target.
    #[error(
        "unknown target `{0}`: choose one of heap, stack, map:NAME, or START-END with hexadecimal addresses"
    )]
    UnknownTarget(String),
    /// A name that cannot be passed on.
    #[error("{0:?} has a line break, which separates hints: write the addresses instead")]
    LineBreak(String),
    /// An address inside a page.
    #[error("`{0}` does not begin and end with a page: give multiples of 1000 (hexadecimal)")]
    NotAligned(String),
    /// No addresses.
    #[error("`{0}` has no addresses: the end has to be above the start")]
    Empty(String),
    /// Addresses that do not exist.
    #[error(
        "`{0}` reaches beyond 7fffffffffff, the last address that a program has: give a lower end"
    )]
    BeyondAddresses(String),
    /// The strategy does not exist.
    #[error(transparent)]
    Strategy(#[from] SpecError),
}

/// Why hints do not go together, or one of them is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HintsError {
    /// A hint that could not be read.
    #[error(transparent)]
    Hint(#[from] HintError),
    /// Two hints for an address.
    #[error("hints for {0} and {1} overlap: give each address one strategy")]
    Overlap(Target, Target),
    /// Two hints for a target.
    #[error("two hints for {0}: give one")]
    Twice(Target),
}

impl Hints {
    /// The hints, if they go together.
    ///
    /// # Errors
    /// When two are for the same target, or for ranges that overlap.
    pub fn new(hints: Vec<Hint>) -> Result<Hints, HintsError> {
        let mut ranges: RangeMap<usize> = RangeMap::new();
        let mut named = BTreeMap::new();
        for (n, hint) in hints.iter().enumerate() {
            let target = &hint.target;
            if let Target::Range(range) = target {
                if let Some((_, other)) = ranges.overlaps(*range).next() {
                    let other = hints[other].target.clone();
                    return Err(HintsError::Overlap(other, target.clone()));
                }
                ranges.insert(*range, n);
            } else if named.insert(target.to_string(), n).is_some() {
                return Err(HintsError::Twice(target.clone()));
            }
        }
        Ok(Hints {
            hints,
            ranges,
            named,
        })
    }

    /// The hints, in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = &Hint> {
        self.hints.iter()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hints.is_empty()
    }

    /// The strategy for an address, and the range that it is for, in O(log n). Hints for
    /// other targets than ranges are not looked at.
    #[must_use]
    pub fn at(&self, address: VirtAddr) -> Option<(AddrRange, &StrategySpec)> {
        let page = address.page_floor();
        let end = VirtAddr(page.0.saturating_add(1));
        self.overlapping(AddrRange { start: page, end }).next()
    }

    /// The ranges that have addresses in common with `range`, whole and in falling
    /// order, and their strategies.
    pub fn overlapping(
        &self,
        range: AddrRange,
    ) -> impl Iterator<Item = (AddrRange, &StrategySpec)> {
        let hints = self.ranges.overlaps(range);
        hints.map(|(range, n)| (range, &self.hints[n].strategy))
    }

    /// The parts of a range, in falling order: each with the number of the hint for its
    /// addresses, in the order of [`Hints::iter`], or with none.
    pub fn parts(&self, range: AddrRange) -> impl Iterator<Item = (AddrRange, Option<usize>)> {
        let hinted = self.ranges.overlaps(range);
        let hinted = hinted.map(move |(whole, n)| (whole.intersect(range), Some(n)));
        let lowest = range.split_at(range.start).0;
        let mut above = range.end;
        let with_gaps = hinted.chain([(lowest, None)]).flat_map(move |(part, n)| {
            let gap = AddrRange {
                start: part.end,
                end: above,
            };
            above = part.start;
            [(gap, None), (part, n)]
        });
        with_gaps.filter(|(part, _)| !part.is_empty())
    }

    /// The strategy of the hint for just this target.
    #[must_use]
    pub fn of(&self, target: &Target) -> Option<&StrategySpec> {
        match target {
            Target::Range(range) => {
                let (found, strategy) = self.at(range.start)?;
                (found == *range).then_some(strategy)
            }
            _ => {
                let hint = self.named.get(&target.to_string())?;
                Some(&self.hints[*hint].strategy)
            }
        }
    }
}

impl FromStr for Hints {
    type Err = HintsError;

    /// Reads a hint from each line that is not empty.
    fn from_str(text: &str) -> Result<Hints, HintsError> {
        let lines = text.lines().filter(|line| !line.is_empty());
        let hints = lines.map(str::parse).collect::<Result<Vec<Hint>, _>>()?;
        Hints::new(hints)
    }
}

impl fmt::Display for Hints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, hint) in self.hints.iter().enumerate() {
            let separator = if n > 0 { "\n" } else { "" };
            write!(f, "{separator}{hint}")?;
        }
        Ok(())
    }
}

impl FromStr for Hint {
    type Err = HintError;

    /// Reads `TARGET=STRATEGY`. The first equals sign ends the target.
    fn from_str(text: &str) -> Result<Hint, HintError> {
        let parts = text.split_once('=');
        let (target, strategy) = parts.ok_or_else(|| HintError::NoStrategy(text.to_owned()))?;
        Ok(Hint {
            target: target.parse()?,
            strategy: strategy.parse()?,
        })
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.target, self.strategy)
    }
}

impl FromStr for Target {
    type Err = HintError;

    fn from_str(text: &str) -> Result<Target, HintError> {
        if text.contains(['\n', '\r']) {
            return Err(HintError::LineBreak(text.to_owned()));
        }
        match text {
            "heap" => return Ok(Target::Heap),
            "stack" => return Ok(Target::Stack),
            _ => (),
        }
        let name = text.strip_prefix(MAP).filter(|name| !name.is_empty());
        if let Some(name) = name {
            return Ok(Target::Map(name.to_owned()));
        }
        parse_range(text).map(Target::Range)
    }
}

/// Reads a range of addresses: whole base pages, such as `7f0000000000-7f0000200000`.
///
/// # Errors
/// When it is none, is empty, begins or ends inside a page, or reaches beyond the
/// addresses that a program has.
pub fn parse_range(text: &str) -> Result<AddrRange, HintError> {
    let unknown = || HintError::UnknownTarget(text.to_owned());
    let (start, end) = text.split_once('-').ok_or_else(unknown)?;
    let address = |text| hex(text).map(VirtAddr).ok_or_else(unknown);
    let (start, end) = (address(start)?, address(end)?);
    if !start.is_page_aligned() || !end.is_page_aligned() {
        return Err(HintError::NotAligned(text.to_owned()));
    }
    if start >= end {
        return Err(HintError::Empty(text.to_owned()));
    }
    if end > ADDRESS_END {
        return Err(HintError::BeyondAddresses(text.to_owned()));
    }
    Ok(AddrRange { start, end })
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Range(range) => write!(f, "{:x}-{:x}", range.start.0, range.end.0),
            Target::Heap => f.write_str("heap"),
            Target::Stack => f.write_str("stack"),
            Target::Map(name) => write!(f, "{MAP}{name}"),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frames::spec::tests::specs;
    use crate::units::{BASE_PAGE, Bytes};

    fn pages(first: u64, count: u64) -> AddrRange {
        AddrRange::new(VirtAddr(first * BASE_PAGE), Bytes(count * BASE_PAGE))
    }

    /// Hints, some of which may not go together.
    pub fn any_hints() -> impl Strategy<Value = Vec<Hint>> {
        let target = prop_oneof![
            6 => (0u64..100, 1u64..8).prop_map(|(first, count)| Target::Range(pages(first, count))),
            1 => Just(Target::Heap),
            1 => Just(Target::Stack),
            1 => "[a-z\\[\\] /.:-]{1,8}".prop_map(Target::Map),
        ];
        let hint = (target, specs()).prop_map(|(target, strategy)| Hint { target, strategy });
        prop::collection::vec(hint, 0..12)
    }

    #[test]
    fn hints_are_read() {
        let hint: Hint = "0x7f0000000000-7f0000200000=color".parse().unwrap();
        assert_eq!(hint.to_string(), "7f0000000000-7f0000200000=colour");
        let hint: Hint = "map:/lib/x.so=exact:a=b".parse().unwrap();
        assert_eq!(hint.target, Target::Map("/lib/x.so".to_owned()));
        assert_eq!(hint.strategy, StrategySpec::Exact("a=b".to_owned()));
        let hints: Hints = "heap=binhop\n\nstack=default\n".parse().unwrap();
        assert_eq!(hints.iter().count(), 2);
        assert_eq!(hints.of(&Target::Stack), Some(&StrategySpec::Default));
        assert_eq!(hints.of(&Target::Map("heap".to_owned())), None);
        assert!("".parse::<Hints>().unwrap().is_empty());
        let last: Target = "7ffffffff000-800000000000".parse().unwrap();
        assert_eq!(last.to_string(), "7ffffffff000-800000000000");
    }

    #[test]
    fn nonsense_is_refused() {
        let error = |text: &str| text.parse::<Hint>().unwrap_err();
        let own = str::to_owned;
        assert_eq!(error("heap"), HintError::NoStrategy(own("heap")));
        for target in [
            "map:",
            "",
            "Heap",
            "1000",
            "1000-x",
            "-2000",
            "-",
            "1000-+2000",
        ] {
            let text = format!("{target}=colour");
            assert_eq!(error(&text), HintError::UnknownTarget(own(target)));
        }
        let range = |text: &str| error(&format!("{text}=colour"));
        assert_eq!(range("1000-2fff"), HintError::NotAligned(own("1000-2fff")));
        assert_eq!(range("2000-2000"), HintError::Empty(own("2000-2000")));
        let beyond = "1000-800000001000";
        assert_eq!(range(beyond), HintError::BeyondAddresses(own(beyond)));
        assert!(matches!(error("heap=x"), HintError::Strategy(_)));
        assert_eq!(
            error("map:a\nb=colour"),
            HintError::LineBreak(own("map:a\nb"))
        );
        let error = |text: &str| text.parse::<Hints>().unwrap_err().to_string();
        assert_eq!(
            error("1000-3000=colour\nheap=colour\n2000-4000=binhop"),
            "hints for 1000-3000 and 2000-4000 overlap: give each address one strategy"
        );
        assert_eq!(
            error("map:x=colour\nmap:y=colour\nmap:x=binhop"),
            "two hints for map:x: give one"
        );
    }

    proptest! {
        #[test]
        fn each_address_has_its_hint(
            hints in any_hints(),
            window in (0u64..100, 0u64..20),
        ) {
            let has = |target: &Target, page: u64| match target {
                Target::Range(range) => range.contains(pages(page, 1)),
                _ => false,
            };
            let for_page = |page| hints.iter().filter(move |hint| has(&hint.target, page));
            let alike = |target: &Target| hints.iter().filter(|h| h.target == *target).count();
            let overlap = (0..120).any(|page| for_page(page).count() > 1);
            let twice = hints.iter().any(|hint| alike(&hint.target) > 1);
            let Ok(valid) = Hints::new(hints.clone()) else {
                prop_assert!(overlap || twice);
                return Ok(());
            };
            prop_assert!(!overlap && !twice);
            for page in 0..120 {
                let found = valid.at(VirtAddr(page * BASE_PAGE + 7));
                let expected = for_page(page).next();
                prop_assert_eq!(found.map(|(_, strategy)| strategy), expected.map(|h| &h.strategy));
            }
            let (first, count) = window;
            let parts: Vec<_> = valid.parts(pages(first, count)).collect();
            for page in 0..120 {
                let here = pages(page, 1);
                let inside = pages(first, count).contains(here);
                let own = hints.iter().position(|hint| has(&hint.target, page));
                let found: Vec<_> = parts.iter().filter(|part| part.0.contains(here)).collect();
                prop_assert_eq!(found.len(), usize::from(inside));
                prop_assert!(found.iter().all(|part| part.1 == own));
            }
            prop_assert!(parts.windows(2).all(|pair| pair[1].0.end == pair[0].0.start));
            for hint in &hints {
                prop_assert_eq!(valid.of(&hint.target), Some(&hint.strategy));
            }
            prop_assert_eq!(valid.to_string().parse::<Hints>(), Ok(valid));
        }
    }
}
