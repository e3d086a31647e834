//! The page sizes of the kernel's hugetlb pools (paper 001, static variable
//! pages), and how a range of addresses is divided among them.
//!
//! The kernel changes a page of a pool only as a whole, so what a program does
//! to a part of one is decided here by page, and what is copied out of one by
//! the parts that hold something.

use std::fmt;
use std::str::FromStr;

use crate::units::{AddrRange, Bytes, SUPERPAGE, VirtAddr};

/// Size of a page that one PUD entry maps on x86-64, in bytes.
pub const GIGAPAGE: u64 = 1 << 30;

/// The size of a page of the hugetlb pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolPage {
    /// 2 MiB.
    Superpage,
    /// 1 GiB.
    #[default]
    Gigapage,
}

/// A range, divided for pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// What lies before the pages.
    pub before: AddrRange,
    /// Whole pages; empty where none fits or none is free.
    pub pages: AddrRange,
    /// What lies behind them.
    pub after: AddrRange,
}

impl PoolPage {
    /// Every size, from small to large.
    pub const ALL: [PoolPage; 2] = [PoolPage::Superpage, PoolPage::Gigapage];

    /// The size.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        match self {
            PoolPage::Superpage => Bytes(SUPERPAGE),
            PoolPage::Gigapage => Bytes(GIGAPAGE),
        }
    }

    /// The name that the command line uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            PoolPage::Superpage => "2M",
            PoolPage::Gigapage => "1G",
        }
    }

    /// The next smaller size; below the superpage are base pages, which no pool
    /// holds.
    #[must_use]
    pub const fn smaller(self) -> Option<PoolPage> {
        match self {
            PoolPage::Superpage => None,
            PoolPage::Gigapage => Some(PoolPage::Superpage),
        }
    }

    /// The page that holds an address.
    #[must_use]
    pub const fn around(self, at: VirtAddr) -> AddrRange {
        let size = self.bytes();
        AddrRange::new(VirtAddr(at.0 / size.0 * size.0), size)
    }

    /// How many pages fill a range of whole pages.
    #[must_use]
    pub const fn count(self, range: AddrRange) -> u64 {
        range.len().0 / self.bytes().0
    }

    /// The range, cut at the boundaries of pages.
    pub fn cut(self, range: AddrRange) -> impl Iterator<Item = AddrRange> {
        let size = self.bytes().0;
        (range.start.0 / size..range.end.0.div_ceil(size))
            .map(move |n| AddrRange::new(VirtAddr(n * size), Bytes(size)).intersect(range))
            .filter(|piece| !piece.is_empty())
    }

    /// Divides a range into the first whole pages in it, `free` at most, and
    /// the rest.
    #[must_use]
    pub fn divide(self, range: AddrRange, free: u64) -> Division {
        let size = self.bytes().0;
        let (first, end) = (range.start.0.div_ceil(size), range.end.0 / size);
        let count = end.saturating_sub(first).min(free);
        if count == 0 {
            let (before, rest) = range.split_at(range.end);
            return Division {
                before,
                pages: rest,
                after: rest,
            };
        }
        let pages = AddrRange::new(VirtAddr(first * size), Bytes(count * size));
        Division {
            before: range.split_at(pages.start).0,
            pages,
            after: range.split_at(pages.end).1,
        }
    }

    /// The page that a change of `changed` meets in part where it begins or
    /// ends, `at` being the first or the last address.
    #[must_use]
    pub fn met_in_part(self, changed: AddrRange, at: VirtAddr) -> Option<AddrRange> {
        let page = self.around(at);
        (!changed.contains(page)).then_some(page)
    }
}

/// The parts of a range that hold something, looked at in pieces of `grain`
/// from its start; neighbours are one part.
pub fn parts_that_hold(
    range: AddrRange,
    grain: Bytes,
    mut holds: impl FnMut(AddrRange) -> bool,
) -> Vec<AddrRange> {
    let mut parts: Vec<AddrRange> = Vec::new();
    let mut rest = range;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.start + grain);
        rest = behind;
        if !holds(piece) {
            continue;
        }
        match parts.last_mut() {
            Some(last) if last.end == piece.start => last.end = piece.end,
            _ => parts.push(piece),
        }
    }
    parts
}

/// The first and the last address of a range that is not empty.
#[must_use]
pub const fn edges(range: AddrRange) -> [VirtAddr; 2] {
    [range.start, VirtAddr(range.end.0 - 1)]
}

impl fmt::Display for PoolPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A page size that no pool has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no page size of a hugetlb pool: choose 2M or 1G")]
pub struct PoolPageError(pub String);

impl FromStr for PoolPage {
    type Err = PoolPageError;

    fn from_str(text: &str) -> Result<PoolPage, PoolPageError> {
        let size: Option<Bytes> = text.parse().ok();
        PoolPage::ALL
            .into_iter()
            .find(|page| size == Some(page.bytes()))
            .ok_or_else(|| PoolPageError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::BASE_PAGE;

    #[test]
    fn sizes_are_read() {
        for page in PoolPage::ALL {
            assert_eq!(page.to_string().parse(), Ok(page));
        }
        assert_eq!("1024M".parse(), Ok(PoolPage::Gigapage));
        let refused = "4K".parse::<PoolPage>().unwrap_err().to_string();
        assert!(refused.contains("2M or 1G"));
    }

    fn pages() -> impl Strategy<Value = PoolPage> {
        prop::sample::select(PoolPage::ALL.to_vec())
    }

    /// Ranges whose ends are base pages near the boundaries of both sizes.
    fn ranges() -> impl Strategy<Value = AddrRange> {
        let end = (0u64..6, 0u64..4, -2i64..3).prop_map(|(giga, large, small)| {
            let at = giga * GIGAPAGE + large * SUPERPAGE + 8 * GIGAPAGE;
            at.wrapping_add_signed(small * BASE_PAGE as i64)
        });
        (end.clone(), end).prop_map(|(a, b)| AddrRange {
            start: VirtAddr(a.min(b)),
            end: VirtAddr(a.max(b)),
        })
    }

    /// The pages wholly inside a range, one by one.
    fn whole_pages(page: PoolPage, range: AddrRange) -> Vec<AddrRange> {
        let whole = |piece: &AddrRange| *piece == page.around(piece.start);
        page.cut(range).filter(whole).collect()
    }

    proptest! {
        #[test]
        fn a_division_takes_the_first_whole_pages(page in pages(), range in ranges(), free in 0u64..4) {
            let division = page.divide(range, free);
            let wanted = whole_pages(page, range);
            let taken = wanted.len().min(free as usize);
            prop_assert_eq!(page.cut(division.pages).collect::<Vec<_>>(), wanted[..taken].to_vec());
            let pieces = [division.before, division.pages, division.after];
            let mut at = range.start;
            for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
                prop_assert_eq!(piece.start, at);
                at = piece.end;
            }
            prop_assert_eq!(at, range.end);
        }

        #[test]
        fn cutting_loses_nothing(page in pages(), range in ranges()) {
            let mut at = range.start;
            for piece in page.cut(range) {
                prop_assert_eq!(piece.start, at);
                prop_assert!(!piece.is_empty() && page.around(at).contains(piece));
                at = piece.end;
            }
            prop_assert_eq!(at, range.end);
        }

        #[test]
        fn pages_met_in_part_are_those_cut(page in pages(), range in ranges()) {
            prop_assume!(!range.is_empty());
            let whole = whole_pages(page, range);
            let cut: Vec<AddrRange> = page
                .cut(range)
                .map(|piece| page.around(piece.start))
                .filter(|found| !whole.contains(found))
                .collect();
            let mut met: Vec<AddrRange> = edges(range)
                .into_iter()
                .filter_map(|at| page.met_in_part(range, at))
                .collect();
            met.dedup();
            prop_assert_eq!(met, cut);
        }

        #[test]
        fn what_holds_something_is_found(
            pieces in prop::collection::vec(any::<bool>(), 0..40),
            tail in 0u64..2,
        ) {
            let grain = Bytes(2 * BASE_PAGE);
            let len = Bytes(pieces.len() as u64 * grain.0 + tail * BASE_PAGE);
            let range = AddrRange::new(VirtAddr(GIGAPAGE), len);
            let index = |at: VirtAddr| (at.0 - GIGAPAGE) / grain.0;
            let holds = |at: VirtAddr| pieces.get(index(at) as usize).copied().unwrap_or(false);
            let parts = parts_that_hold(range, grain, |piece| holds(piece.start));
            let covered = |at: VirtAddr| parts.iter().any(|p| p.start <= at && at < p.end);
            for page in 0..len.0 / BASE_PAGE {
                let at = range.start + Bytes(page * BASE_PAGE);
                prop_assert_eq!(covered(at), holds(at));
            }
            prop_assert!(parts.windows(2).all(|two| two[0].end < two[1].start));
        }
    }
}
