//! Which arrays of translations a machine has, and how a user writes them.
//!
//! A geometry is written as a list such as
//! `l1d=64:full:4K+2M+1G,l1i=64:full:4K+2M,l2=2048:8:4K+2M`: for each array
//! its place, its entries, its ways, and the page sizes that it holds. A place
//! that is named more than once has several arrays. `l2d` and `l2i` instead of
//! `l2` say that the second level is split; `coalesce` lets one entry hold four
//! base pages.

use std::fmt;
use std::str::FromStr;

use super::PageSize;
use super::array::Array;

/// A text that is no geometry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}`: {1}; write a geometry as l1d=64:full:4K+2M,l1i=64:full:4K+2M,l2=2048:8:4K+2M (entries:ways:page sizes)"
)]
pub struct GeometryError(String, &'static str);

/// A set of page sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageSizes(u8);

impl PageSizes {
    /// None.
    pub const NONE: PageSizes = PageSizes(0);

    /// The set of these sizes.
    #[must_use]
    pub fn of(sizes: &[PageSize]) -> PageSizes {
        sizes
            .iter()
            .fold(PageSizes::NONE, |set, size| set.with(*size))
    }

    /// The set with `size` in it.
    #[must_use]
    pub const fn with(self, size: PageSize) -> PageSizes {
        PageSizes(self.0 | 1 << size as u8)
    }

    /// Whether `size` is in it.
    #[must_use]
    pub const fn has(self, size: PageSize) -> bool {
        self.0 & (1 << size as u8) != 0
    }

    /// Whether it is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for PageSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = PageSize::ALL.into_iter().filter(|size| self.has(*size));
        let names: Vec<&str> = held.map(PageSize::name).collect();
        f.write_str(&names.join("+"))
    }
}

/// One array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Structure {
    entries: u32,
    ways: u32,
    sizes: PageSizes,
}

impl Structure {
    /// The most entries that are taken for true.
    const MAX_ENTRIES: u32 = 1 << 20;

    /// An array of `entries` entries in sets of `ways`, for pages of `sizes`.
    /// `None` where the entries do not make up whole sets, or are none or
    /// absurdly many, or where it would hold no page size.
    #[must_use]
    pub fn new(entries: u32, ways: u32, sizes: PageSizes) -> Option<Structure> {
        let whole = (1..=Self::MAX_ENTRIES).contains(&entries)
            && (1..=entries).contains(&ways)
            && entries.is_multiple_of(ways);
        (whole && !sizes.is_empty()).then_some(Structure {
            entries,
            ways,
            sizes,
        })
    }

    /// A fully associative array.
    #[must_use]
    pub fn full(entries: u32, sizes: PageSizes) -> Option<Structure> {
        Structure::new(entries, entries, sizes)
    }

    /// Its entries.
    #[must_use]
    pub const fn entries(self) -> u32 {
        self.entries
    }

    /// The page sizes that it holds.
    #[must_use]
    pub const fn sizes(self) -> PageSizes {
        self.sizes
    }

    pub(super) fn array(self) -> Array {
        Array::new((self.entries / self.ways) as usize, self.ways as usize)
    }
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.entries)?;
        if self.ways == self.entries {
            write!(f, "full:{}", self.sizes)
        } else {
            write!(f, "{}:{}", self.ways, self.sizes)
        }
    }
}

/// The second level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecondLevel {
    /// For data and instructions alike.
    Unified(Vec<Structure>),
    /// For each its own.
    Split {
        /// For data.
        data: Vec<Structure>,
        /// For instructions.
        code: Vec<Structure>,
    },
}

/// All arrays of a processor core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// First level, for data.
    pub l1_data: Vec<Structure>,
    /// First level, for instructions.
    pub l1_code: Vec<Structure>,
    /// Second level.
    pub l2: SecondLevel,
    /// Whether one entry holds four base pages that lie in 16 KiB. Some AMD
    /// processors do so where the frames lie together, too; the model takes
    /// it that they always do.
    pub coalesce: bool,
}

impl Geometry {
    /// What is assumed where a machine does not say: arrays of the size that
    /// common servers of the years from 2019 have.
    #[must_use]
    pub fn assumed() -> Geometry {
        let first = PageSizes::of(&PageSize::ALL);
        let second = PageSizes::of(&[PageSize::Base, PageSize::Super]);
        let one = |entries, ways, sizes| Structure::new(entries, ways, sizes).into_iter().collect();
        Geometry {
            l1_data: one(64, 64, first),
            l1_code: one(64, 64, first),
            l2: SecondLevel::Unified(one(1536, 12, second)),
            coalesce: false,
        }
    }
}

impl fmt::Display for Geometry {
    /// Prints the geometry as it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut list = |place: &str, structures: &[Structure]| {
            parts.extend(structures.iter().map(|one| format!("{place}={one}")));
        };
        list("l1d", &self.l1_data);
        list("l1i", &self.l1_code);
        match &self.l2 {
            SecondLevel::Unified(both) => list("l2", both),
            SecondLevel::Split { data, code } => {
                list("l2d", data);
                list("l2i", code);
            }
        }
        if self.coalesce {
            parts.push("coalesce".to_owned());
        }
        f.write_str(&parts.join(","))
    }
}

impl FromStr for Geometry {
    type Err = GeometryError;

    fn from_str(text: &str) -> Result<Geometry, GeometryError> {
        let bad = |part: &str, why| GeometryError(part.to_owned(), why);
        let (mut l1_data, mut l1_code) = (Vec::new(), Vec::new());
        let (mut both, mut data, mut code) = (Vec::new(), Vec::new(), Vec::new());
        let mut coalesce = false;
        for part in text.split(',').map(str::trim) {
            if part == "coalesce" {
                coalesce = true;
                continue;
            }
            let (place, array) = part.split_once('=').ok_or_else(|| bad(part, "no `=`"))?;
            let list = match place {
                "l1d" => &mut l1_data,
                "l1i" => &mut l1_code,
                "l2" => &mut both,
                "l2d" => &mut data,
                "l2i" => &mut code,
                _ => return Err(bad(part, "the places are l1d, l1i, l2, l2d and l2i")),
            };
            list.push(structure(array).map_err(|why| bad(part, why))?);
        }
        if l1_data.is_empty() || l1_code.is_empty() {
            return Err(bad(text, "l1d and l1i must be there"));
        }
        let is_split = !data.is_empty() || !code.is_empty();
        if is_split && !both.is_empty() {
            return Err(bad(text, "l2 cannot be there beside l2d or l2i"));
        }
        let l2 = if is_split {
            SecondLevel::Split { data, code }
        } else {
            SecondLevel::Unified(both)
        };
        Ok(Geometry {
            l1_data,
            l1_code,
            l2,
            coalesce,
        })
    }
}

/// Reads one array, such as `2048:8:4K+2M`.
fn structure(text: &str) -> Result<Structure, &'static str> {
    let mut fields = text.split(':');
    let (Some(entries), Some(ways), Some(sizes), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err("an array has three fields");
    };
    let entries = entries.parse().map_err(|_| "entries must be a number")?;
    let ways = match ways {
        "full" => entries,
        number => number
            .parse()
            .map_err(|_| "ways must be a number or `full`")?,
    };
    let mut held = PageSizes::NONE;
    for name in sizes.split('+') {
        let size = PageSize::ALL.into_iter().find(|size| size.name() == name);
        held = held.with(size.ok_or("the page sizes are 4K, 2M and 1G")?);
    }
    Structure::new(entries, ways, held)
        .ok_or("the entries must be a multiple of the ways, and at least one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_read() {
        for text in [
            "l1d=64:full:4K+2M+1G,l1i=64:full:4K+2M,l2d=2048:8:4K+2M,l2i=512:4:4K",
            "l1d=64:4:4K,l1d=32:4:2M,l1d=4:full:1G,l1i=64:8:4K,l2=1536:12:4K+2M,l2=16:4:1G",
            "l1d=4:2:4K,l1i=4:full:4K,coalesce",
        ] {
            assert_eq!(text.parse::<Geometry>().unwrap().to_string(), text);
        }
        let assumed = Geometry::assumed();
        assert_eq!(assumed.to_string().parse(), Ok(assumed));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "l1d=64:full:4K",
            "l1d=64:full:4K,l1i=64",
            "l1d=64:full:8K,l1i=64:full:4K",
            "l1d=0:full:4K,l1i=64:full:4K",
            "l1d=64:5:4K,l1i=64:full:4K",
            "l1d=64:full:4K,l1i=64:full:4K,l3=9:full:4K",
            "l1d=64:full:4K,l1i=64:full:4K,l2=8:full:4K,l2d=8:full:4K",
            "l1d=4294967295:full:4K,l1i=64:full:4K",
        ] {
            let error = text.parse::<Geometry>().unwrap_err().to_string();
            assert!(error.contains("write a geometry as"), "{error}");
        }
    }
}
