//! The caches of a machine, and which of them has colours.
//!
//! A cache has colours where bits of the physical address above the offset in a page
//! choose among its sets, and where it is known which. A first level whose ways are no
//! larger than a page has one colour; one with larger ways is looked up by the virtual
//! address, and a last level that is made of slices by a hash that its maker keeps to
//! himself. Users who know better can say so.
//!
//! | module | holds |
//! |---|---|
//! | [`cpuid`] | caches from what CPUID says |
//! | [`set`] | what a user says of them (`--set`) |

use std::fmt;

use serde::{Serialize, Serializer};

use super::colour::Colours;
use crate::units::{BASE_PAGE, Bytes};

pub mod cpuid;
pub mod set;

pub use set::{ApplyError, Override, OverrideError, apply};

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

/// The sets, ways and lines of a cache: none of them zero, and the size of a line a
/// power of two. The sets need not be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Shape {
    sets: u32,
    ways: u32,
    #[serde(rename = "line_bytes")]
    line: u32,
}

impl Shape {
    /// The smallest line that is taken for true, in bytes.
    pub const MIN_LINE: u32 = 16;
    /// The largest: a line lies in one page.
    pub const MAX_LINE: u32 = BASE_PAGE as u32;
    /// The largest cache that is taken for true.
    pub const MAX_SIZE: Bytes = Bytes(4 << 30);

    /// A cache of so many sets and ways, with lines of `line` bytes. `None` where
    /// there can be no such cache.
    #[must_use]
    pub fn new(sets: u32, ways: u32, line: u32) -> Option<Shape> {
        let is_line = line.is_power_of_two() && (Self::MIN_LINE..=Self::MAX_LINE).contains(&line);
        let lines = u64::from(sets) * u64::from(ways);
        let size = lines.checked_mul(u64::from(line))?;
        let exists = lines > 0 && is_line && size <= Self::MAX_SIZE.0;
        exists.then_some(Shape { sets, ways, line })
    }

    /// How many sets there are.
    #[must_use]
    pub const fn sets(self) -> u32 {
        self.sets
    }

    /// How many lines a set holds.
    #[must_use]
    pub const fn ways(self) -> u32 {
        self.ways
    }

    /// The size of a line.
    #[must_use]
    pub const fn line(self) -> Bytes {
        Bytes(self.line as u64)
    }

    /// How many lines the whole cache holds.
    #[must_use]
    pub const fn lines(self) -> u64 {
        self.sets as u64 * self.ways as u64
    }

    /// The size of one way: one line of each set.
    #[must_use]
    pub const fn way(self) -> Bytes {
        Bytes(self.sets as u64 * self.line as u64)
    }

    /// The size of the whole cache.
    #[must_use]
    pub const fn size(self) -> Bytes {
        Bytes(self.lines() * self.line as u64)
    }
}

/// How an address becomes the number of a set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// The bits just above the offset in a line.
    Plain,
    /// A function of many address bits, and the processor does not say which.
    Hashed,
    /// The processor does not say whether it is a hash.
    Unknown,
    /// The user gave the bits above the offset in a page.
    Given(Colours),
}

impl Index {
    /// What is assumed of a cache of which nothing is said: the first two levels have
    /// a plain index; one behind them may be made of slices.
    #[must_use]
    pub const fn assumed(level: u32) -> Index {
        if level <= 2 {
            Index::Plain
        } else {
            Index::Unknown
        }
    }
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Index::Plain => f.pad("plain"),
            Index::Hashed => f.pad("hashed"),
            Index::Unknown => f.pad("unknown"),
            Index::Given(colours) => f.pad(&colours.to_string()),
        }
    }
}

impl Serialize for Index {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Which address chooses the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexedBy {
    /// The offset in a page, which virtual and physical addresses have in common.
    Offset,
    /// The virtual address.
    Virtual,
    /// The physical address.
    Physical,
}

impl IndexedBy {
    /// How it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            IndexedBy::Offset => "page offset",
            IndexedBy::Virtual => "virtual address",
            IndexedBy::Physical => "physical address",
        }
    }
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Cache {
    /// The level, 1 for the one that is nearest to the core.
    pub level: u32,
    /// What it holds.
    pub kind: Kind,
    /// Its sets, ways and lines.
    #[serde(flatten)]
    pub shape: Shape,
    /// How its index is made.
    pub index: Index,
    /// How many logical processors share one such cache, where that is known.
    pub shared_by: Option<u32>,
}

/// Why a cache has no colours that mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoColours {
    /// Frames do not decide about its sets.
    #[error("it is looked up by the virtual address, whatever the frame")]
    Virtual,
    /// Its index is a hash.
    #[error("its index is a hash that the processor does not disclose, so colours mean nothing")]
    Hashed,
    /// Its index may be a hash.
    #[error("the processor does not say whether its index is a hash, so colours mean nothing")]
    Unknown,
    /// Address bits alone do not choose among its sets.
    #[error("it has {0} sets, no power of two, so its index is not made of address bits alone")]
    NotPowerOfTwo(u32),
}

impl Cache {
    /// Which address chooses the set.
    #[must_use]
    pub fn indexed_by(&self) -> IndexedBy {
        match self.index {
            Index::Plain if self.shape.way().0 <= BASE_PAGE => IndexedBy::Offset,
            Index::Plain if self.level == 1 => IndexedBy::Virtual,
            _ => IndexedBy::Physical,
        }
    }

    /// How frames are coloured for this cache; one colour where a way is no larger
    /// than a page.
    ///
    /// # Errors
    /// Where colours mean nothing.
    pub fn colours(&self) -> Result<Colours, NoColours> {
        let sets = self.shape.sets();
        match (&self.index, self.indexed_by()) {
            (Index::Given(colours), _) => Ok(colours.clone()),
            (Index::Hashed, _) => Err(NoColours::Hashed),
            (Index::Unknown, _) => Err(NoColours::Unknown),
            (Index::Plain, IndexedBy::Virtual) => Err(NoColours::Virtual),
            (Index::Plain, IndexedBy::Offset) => Ok(Colours::default()),
            (Index::Plain, IndexedBy::Physical) if sets.is_power_of_two() => {
                Ok(Colours::plain(self.shape.way().0))
            }
            (Index::Plain, IndexedBy::Physical) => Err(NoColours::NotPowerOfTwo(sets)),
        }
    }

    /// Whether it holds data.
    #[must_use]
    pub fn holds_data(&self) -> bool {
        self.kind != Kind::Instruction
    }

    /// Its name, such as `L1d` or `L2`.
    #[must_use]
    pub fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Data => "d",
            Kind::Instruction => "i",
            Kind::Unified => "",
        };
        format!("L{}{kind}", self.level)
    }
}

/// The cache whose colours matter unless somebody says otherwise: the largest of those
/// that hold data and have more than one colour. `None` where there is none.
#[must_use]
pub fn colour_cache(caches: &[Cache]) -> Option<&Cache> {
    colour_cache_at(caches).and_then(|at| caches.get(at))
}

/// Where it is in the list.
fn colour_cache_at(caches: &[Cache]) -> Option<usize> {
    let has_colours = |cache: &Cache| cache.colours().is_ok_and(|colours| colours.count() > 1);
    let coloured = caches
        .iter()
        .enumerate()
        .filter(|(_, cache)| cache.holds_data() && has_colours(cache));
    coloured
        .max_by_key(|(_, cache)| (cache.shape.size(), cache.level))
        .map(|(at, _)| at)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A cache of `sets` sets and `ways` ways with lines of 64 bytes.
    pub fn cache(level: u32, kind: Kind, sets: u32, ways: u32, index: Index) -> Cache {
        Cache {
            level,
            kind,
            shape: Shape::new(sets, ways, 64).unwrap(),
            index,
            shared_by: Some(1),
        }
    }

    /// A Xeon of 2019: a plain second level, a hashed last one.
    pub fn cascade_lake() -> Vec<Cache> {
        vec![
            cache(1, Kind::Data, 64, 8, Index::Plain),
            cache(1, Kind::Instruction, 64, 8, Index::Plain),
            cache(2, Kind::Unified, 1024, 16, Index::Plain),
            cache(3, Kind::Unified, 53248, 11, Index::Hashed),
        ]
    }

    /// A Zen 1: its first level for instructions has ways of 16 KiB.
    pub fn naples() -> Vec<Cache> {
        vec![
            cache(1, Kind::Data, 64, 8, Index::Plain),
            cache(1, Kind::Instruction, 256, 4, Index::Plain),
            cache(2, Kind::Unified, 1024, 8, Index::Plain),
            cache(3, Kind::Unified, 8192, 16, Index::Unknown),
        ]
    }

    #[test]
    fn intels_second_level_has_colours() {
        let caches = cascade_lake();
        assert_eq!(caches[0].indexed_by(), IndexedBy::Offset);
        assert_eq!(caches[0].colours().unwrap().count(), 1);
        assert_eq!(caches[3].colours(), Err(NoColours::Hashed));
        let chosen = colour_cache(&caches).unwrap();
        assert_eq!(chosen.name(), "L2");
        assert_eq!(chosen.indexed_by(), IndexedBy::Physical);
        assert_eq!(chosen.colours().unwrap().to_string(), "12,13,14,15");
    }

    #[test]
    fn amds_large_first_level_is_virtual() {
        let caches = naples();
        assert_eq!(caches[1].indexed_by(), IndexedBy::Virtual);
        assert_eq!(caches[1].colours(), Err(NoColours::Virtual));
        assert_eq!(caches[3].colours(), Err(NoColours::Unknown));
        assert_eq!(colour_cache(&caches).unwrap().level, 2);
    }

    #[test]
    fn a_plain_last_level_comes_first() {
        // A Core 2 with 4 MiB, and one of paper 002's time with 512 KiB.
        let mut caches = vec![
            cache(1, Kind::Data, 64, 8, Index::Plain),
            cache(2, Kind::Unified, 4096, 16, Index::Plain),
        ];
        assert_eq!(
            colour_cache(&caches).unwrap().colours().unwrap().count(),
            64
        );
        caches[1].shape = Shape::new(1024, 8, 64).unwrap();
        caches.push(cache(3, Kind::Unified, 98304, 16, Index::Plain));
        assert_eq!(
            caches[2].colours(),
            Err(NoColours::NotPowerOfTwo(98304)),
            "96 MiB"
        );
        assert_eq!(colour_cache(&caches), Some(&caches[1]));
        assert_eq!(colour_cache(&caches[..1]), None);
        assert_eq!(colour_cache(&[]), None);
    }

    #[test]
    fn what_a_user_gave_counts_like_a_plain_index() {
        let mut caches = cascade_lake();
        caches[3].index = Index::Given("12^18,13^19".parse().unwrap());
        let chosen = colour_cache(&caches).unwrap();
        assert_eq!((chosen.level, chosen.colours().unwrap().count()), (3, 4));
    }

    #[test]
    fn json_is_flat() {
        let caches = cascade_lake();
        let value = serde_json::to_value(&caches[3]).unwrap();
        let expected = serde_json::json!({
            "level": 3, "kind": "unified", "sets": 53248, "ways": 11, "line_bytes": 64,
            "index": "hashed", "shared_by": 1,
        });
        assert_eq!(value, expected);
        let given = Index::Given("12^18".parse().unwrap());
        assert_eq!(serde_json::to_value(given).unwrap(), "12^18");
    }

    #[test]
    fn absurd_shapes_are_refused() {
        for (sets, ways, line) in [
            (0, 8, 64),
            (64, 0, 64),
            (64, 8, 0),
            (64, 8, 48),
            (64, 8, 8192),
        ] {
            assert_eq!(Shape::new(sets, ways, line), None, "{sets} {ways} {line}");
        }
        assert_eq!(Shape::new(u32::MAX, u32::MAX, 4096), None);
        assert_eq!(Shape::new(1 << 26, 1, 64).unwrap().size(), Shape::MAX_SIZE);
    }

    proptest! {
        #[test]
        fn a_plain_cache_has_a_colour_for_each_page_of_a_way(
            sets_bits in 0u32..20,
            ways in 1u32..32,
            line_bits in 4u32..8,
        ) {
            let shape = Shape::new(1 << sets_bits, ways, 1 << line_bits).unwrap();
            let cache = Cache { shape, ..cache(2, Kind::Unified, 1, 1, Index::Plain) };
            let pages = (shape.way().0 / BASE_PAGE).max(1);
            prop_assert_eq!(u64::from(cache.colours().unwrap().count()), pages);
            let is_alike = cache.indexed_by() == IndexedBy::Offset;
            prop_assert_eq!(is_alike, pages == 1);
            prop_assert_eq!(shape.size().0, shape.way().0 * u64::from(ways));
        }
    }
}
