//! A model of a machine's translation lookaside buffers: what they make of a
//! stream of addresses.
//!
//! The model has two levels of set-associative arrays, each for the page sizes
//! that it can hold, with least-recently-used replacement. It is fed with
//! addresses and the size of the page that each lies on, and counts hits,
//! misses and page walks. It knows no time: no prefetching of translations, no
//! speculation, no caches of the walker, no second thread on the same core.
//! `docs/tlb.md` says what that means for its figures.
//!
//! | module | holds |
//! |---|---|
//! | [`mod@array`] | one set-associative array |
//! | [`geometry`] | which arrays a machine has, and how a user writes them |
//! | [`cpuid`] | the geometry from what CPUID says |
//! | [`model`] | the two levels, and the counts |

pub mod array;
pub mod cpuid;
pub mod geometry;
pub mod model;

pub use geometry::{Geometry, GeometryError, PageSizes, SecondLevel, Structure};
pub use model::{Access, Counts, Kind, Tlb};

use serde::{Deserialize, Serialize};

use crate::units::{BASE_PAGE, Bytes, SUPERPAGE, VirtAddr};

/// The page sizes of x86-64, from the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PageSize {
    /// 4 KiB.
    Base,
    /// 2 MiB.
    Super,
    /// 1 GiB.
    Giant,
}

impl PageSize {
    /// All of them, from the smallest.
    pub const ALL: [PageSize; 3] = [PageSize::Base, PageSize::Super, PageSize::Giant];

    /// Its size.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(match self {
            PageSize::Base => BASE_PAGE,
            PageSize::Super => SUPERPAGE,
            PageSize::Giant => 1 << 30,
        })
    }

    /// The levels of the page table that a walk touches with paging of four
    /// levels and nothing cached.
    #[must_use]
    pub const fn walk_levels(self) -> u64 {
        match self {
            PageSize::Base => 4,
            PageSize::Super => 3,
            PageSize::Giant => 2,
        }
    }

    /// The number of the page of this size that holds `addr`.
    #[must_use]
    pub const fn page_of(self, addr: VirtAddr) -> u64 {
        addr.0 / self.bytes().0
    }

    /// How the size is written: `4K`, `2M` or `1G`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            PageSize::Base => "4K",
            PageSize::Super => "2M",
            PageSize::Giant => "1G",
        }
    }
}
