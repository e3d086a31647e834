//! How large numerical benchmarks are: as in SciMark2, and in relation to the cache.

use quire_core::units::Bytes;
use quire_linux::sysinfo::caches;

/// The level of the cache that the paper's sizes are about.
const LEVEL: u32 = 2;

/// The size of the data of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// SciMark2's, for data in the cache.
    Small,
    /// SciMark2's, for data in memory.
    Large,
    /// Half of the cache.
    Half,
    /// As much as the cache.
    Equal,
    /// Twice the cache.
    Double,
}

impl Size {
    /// All sizes.
    pub const ALL: [Size; 5] = [
        Size::Small,
        Size::Large,
        Size::Half,
        Size::Equal,
        Size::Double,
    ];
    /// Those in relation to the cache.
    pub const BY_CACHE: [Size; 3] = [Size::Half, Size::Equal, Size::Double];

    /// The name in those of benchmarks.
    pub const fn name(self) -> &'static str {
        match self {
            Size::Small => "small",
            Size::Large => "large",
            Size::Half => "half",
            Size::Equal => "equal",
            Size::Double => "double",
        }
    }

    /// SciMark2's own size, where it is one of those, else what a cache gives room for.
    pub fn choose(self, small: Bytes, large: Bytes, cache: Bytes) -> Bytes {
        match self {
            Size::Small => small,
            Size::Large => large,
            Size::Half => Bytes(cache.0 / 2),
            Size::Equal => cache,
            Size::Double => Bytes(cache.0 * 2),
        }
    }
}

/// The size of the second-level cache of this machine.
///
/// # Errors
/// A line with the remedy where nobody describes it.
pub fn of_cache() -> Result<Bytes, String> {
    let caches = caches::of_this_machine();
    let found = caches.iter().find(|c| c.level == LEVEL && c.holds_data());
    let size = found.map(|cache| cache.shape.size());
    size.ok_or_else(|| "this machine describes no L2 cache: give its size with --cache-size".into())
}
