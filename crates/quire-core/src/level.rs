//! The sizes of superpages (paper 000, section 3.4: reservations of several
//! sizes; paper 001: pages of variable size).
//!
//! x86-64 maps 2 MiB by one entry of a page table. Folios of 16 KiB to 1 MiB are
//! mapped by an entry for each base page, and gain all the same: the kernel
//! zeroes and maps such a folio at one fault, and processors that join entries of
//! neighbouring frames in the TLB find neighbours there. They serve where no
//! block of 2 MiB is free.

use std::fmt;
use std::str::FromStr;

use crate::units::{BASE_PAGE, Bytes, PAGES_PER_SUPERPAGE, PageCount, SizeError};

/// The size of a superpage: a power of two of base pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

/// So much free memory must be in blocks of a level, at least, and this part of
/// all, so that folios of it can be counted on. Looking for them in vain costs more
/// than base pages.
const PLENTY: Bytes = Bytes::mib(32);
const PART: u64 = 4;

impl Level {
    /// 16 KiB, the smallest that processors and the kernel make something of.
    pub const SMALLEST: Level = Level(2);
    /// 2 MiB, the superpage that page tables know.
    pub const SUPERPAGE: Level = Level(PAGES_PER_SUPERPAGE.trailing_zeros() as u8);

    /// Every level, from small to large.
    pub fn all() -> impl DoubleEndedIterator<Item = Level> {
        (Level::SMALLEST.0..=Level::SUPERPAGE.0).map(Level)
    }

    /// The order of a block of this size, as `/proc/buddyinfo` counts.
    #[must_use]
    pub const fn order(self) -> usize {
        self.0 as usize
    }

    /// How many base pages it has.
    #[must_use]
    pub const fn pages(self) -> PageCount {
        PageCount(1 << self.0)
    }

    /// Its size.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(BASE_PAGE << self.0)
    }

    /// The level of a size.
    #[must_use]
    pub fn of(size: Bytes) -> Option<Level> {
        Level::all().find(|level| level.bytes() == size)
    }

    /// The largest level below the superpage of which there are plenty of free
    /// blocks; `free_blocks[n]` counts those of 2ⁿ base pages. `None` where free
    /// memory lies in smaller pieces: then an extent is best left to base pages.
    #[must_use]
    pub fn plentiful(free_blocks: &[u64]) -> Option<Level> {
        let blocks = free_blocks.iter().enumerate();
        let free_in = |level: Level| -> u64 {
            let large = blocks.clone().skip(level.order());
            large
                .map(|(order, count)| count * (BASE_PAGE << order))
                .sum()
        };
        let all: u64 = blocks
            .clone()
            .map(|(n, count)| count * (BASE_PAGE << n))
            .sum();
        Level::all()
            .rev()
            .skip(1)
            .find(|level| free_in(*level) >= PLENTY.0.max(all / PART))
    }
}

impl Default for Level {
    fn default() -> Level {
        Level::SUPERPAGE
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// A size that is no superpage's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelError {
    /// Not a size at all.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// Not one of the sizes.
    #[error("`{0}` is no size of a superpage: choose a power of two from 16K to 2M")]
    NoLevel(String),
}

impl FromStr for Level {
    type Err = LevelError;

    fn from_str(text: &str) -> Result<Level, LevelError> {
        Level::of(text.parse()?).ok_or_else(|| LevelError::NoLevel(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn levels_go_from_16_kib_to_2_mib() {
        let sizes: Vec<u64> = Level::all().map(|level| level.bytes().0 >> 10).collect();
        assert_eq!(sizes, [16, 32, 64, 128, 256, 512, 1024, 2048]);
        assert!(Level::all().all(|level| level.pages().to_bytes() == level.bytes()));
        assert_eq!(Level::SUPERPAGE.order(), 9);
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!("64K".parse::<Level>().map(Level::order), Ok(4));
        assert_eq!("2M".parse::<Level>(), Ok(Level::SUPERPAGE));
        for wrong in ["8K", "48K", "4M", "0"] {
            let error = wrong.parse::<Level>().unwrap_err().to_string();
            assert!(error.contains("16K to 2M"), "{error}");
        }
        assert!("many".parse::<Level>().is_err());
    }

    #[test]
    fn scattered_base_pages_are_no_superpages() {
        assert_eq!(Level::plentiful(&[1 << 20, 1 << 20]), None);
        assert_eq!(Level::plentiful(&[]), None);
        // A little of it among much that is scattered is soon gone.
        let scattered = [1 << 18, 0, 0, 0, 1 << 10];
        assert_eq!(Level::plentiful(&scattered), None);
        let mut blocks = [0; 11];
        blocks[10] = 8;
        assert_eq!(Level::plentiful(&blocks), Level::of(Bytes::mib(1)));
        blocks[10] = 7;
        assert_eq!(Level::plentiful(&blocks), None);
        blocks[4] = 64;
        assert_eq!(Level::plentiful(&blocks), Level::of(Bytes(64 << 10)));
    }

    proptest! {
        #[test]
        fn more_blocks_of_a_level_never_lower_it(
            blocks in vec(0u64..2000, 11),
            order in 0usize..11,
            more in 0u64..5000,
        ) {
            let before = Level::plentiful(&blocks);
            let mut after = blocks;
            after[order] += more;
            if before.is_some_and(|level| order >= level.order()) {
                prop_assert!(Level::plentiful(&after) >= before);
            }
        }

        #[test]
        fn a_level_survives_its_text(order in 2u8..=9) {
            let level = Level(order);
            prop_assert_eq!(level.bytes().0.to_string().parse(), Ok(level));
        }
    }
}
