//! The quantities that cross crate boundaries, each with its own type, so that
//! a count of pages is never taken for a count of bytes nor a frame for an
//! address.

use std::fmt;
use std::ops::{Add, AddAssign, Range, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Size of a base page on x86-64, in bytes.
pub const BASE_PAGE: u64 = 4096;
/// Size of a superpage (one PMD entry on x86-64), in bytes.
pub const SUPERPAGE: u64 = 2 << 20;
/// Base pages in one superpage.
pub const PAGES_PER_SUPERPAGE: usize = (SUPERPAGE / BASE_PAGE) as usize;

/// A size in bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A number of base pages.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PageCount(pub u64);

/// A physical page frame number.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Frame(pub u64);

/// A virtual address of the managed process.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct VirtAddr(pub u64);

/// A byte offset in a memory object.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ObjectOffset(pub u64);

/// The number of a superpage-sized, superpage-aligned slot of the address
/// space: the address divided by [`SUPERPAGE`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Slot(pub u64);

impl Bytes {
    /// Nothing.
    pub const ZERO: Bytes = Bytes(0);

    /// The size of `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    /// The base pages that hold this many bytes, the last one counted whole.
    #[must_use]
    pub const fn to_pages(self) -> PageCount {
        PageCount(self.0.div_ceil(BASE_PAGE))
    }

    /// The difference, or zero where `other` is larger.
    #[must_use]
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl PageCount {
    /// The size of these pages.
    #[must_use]
    pub const fn to_bytes(self) -> Bytes {
        Bytes(self.0 * BASE_PAGE)
    }
}

impl Slot {
    /// The first address of the slot.
    #[must_use]
    pub const fn start(self) -> VirtAddr {
        VirtAddr(self.0 * SUPERPAGE)
    }

    /// The addresses of the slot.
    #[must_use]
    pub const fn range(self) -> AddrRange {
        AddrRange {
            start: self.start(),
            end: VirtAddr((self.0 + 1) * SUPERPAGE),
        }
    }

    /// The slot after this one.
    #[must_use]
    pub const fn next(self) -> Slot {
        Slot(self.0 + 1)
    }
}

impl VirtAddr {
    /// The slot that holds this address.
    #[must_use]
    pub const fn slot(self) -> Slot {
        Slot(self.0 / SUPERPAGE)
    }

    /// The address rounded down to a base page.
    #[must_use]
    pub const fn page_floor(self) -> VirtAddr {
        VirtAddr(self.0 & !(BASE_PAGE - 1))
    }

    /// Whether the address is a multiple of the base page size.
    #[must_use]
    pub const fn is_page_aligned(self) -> bool {
        self.0.is_multiple_of(BASE_PAGE)
    }

    /// Whether the address is a multiple of the superpage size.
    #[must_use]
    pub const fn is_superpage_aligned(self) -> bool {
        self.0.is_multiple_of(SUPERPAGE)
    }

    /// The address as the kernel takes it.
    #[must_use]
    pub const fn as_ptr(self) -> *mut u8 {
        self.0 as *mut u8
    }
}

/// A half-open range of virtual addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AddrRange {
    /// First address.
    pub start: VirtAddr,
    /// First address after the range.
    pub end: VirtAddr,
}

impl AddrRange {
    /// The range of `len` bytes from `start`.
    #[must_use]
    pub const fn new(start: VirtAddr, len: Bytes) -> AddrRange {
        AddrRange {
            start,
            end: VirtAddr(start.0 + len.0),
        }
    }

    /// Its size.
    #[must_use]
    pub const fn len(self) -> Bytes {
        Bytes(self.end.0.saturating_sub(self.start.0))
    }

    /// Whether it holds no address.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end.0 <= self.start.0
    }

    /// What it has in common with `other`; empty where that is nothing.
    #[must_use]
    pub fn intersect(self, other: AddrRange) -> AddrRange {
        AddrRange {
            start: self.start.max(other.start),
            end: self.end.min(other.end),
        }
    }

    /// The parts before and from `at`, of which one may be empty.
    #[must_use]
    pub fn split_at(self, at: VirtAddr) -> (AddrRange, AddrRange) {
        let (start, end) = (self.start, self.end);
        let at = at.clamp(start, end);
        (AddrRange { start, end: at }, AddrRange { start: at, end })
    }

    /// Whether all of `other` lies inside.
    #[must_use]
    pub fn contains(self, other: AddrRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The slots that it touches, in part or wholly.
    #[must_use]
    pub fn slots(self) -> Range<u64> {
        self.start.slot().0..self.end.0.div_ceil(SUPERPAGE).max(self.start.slot().0)
    }

    /// The superpages that lie wholly inside; empty where there is none.
    #[must_use]
    pub const fn whole_superpages(self) -> AddrRange {
        AddrRange {
            start: VirtAddr(self.start.0.next_multiple_of(SUPERPAGE)),
            end: VirtAddr(self.end.0 / SUPERPAGE * SUPERPAGE),
        }
    }

    /// The slots that lie wholly inside.
    #[must_use]
    pub fn whole_slots(self) -> Range<u64> {
        self.whole_superpages().slots()
    }
}

impl fmt::Display for AddrRange {
    /// Hexadecimal, as in `/proc/PID/maps`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}-{:012x}", self.start.0, self.end.0)
    }
}

impl Add<Bytes> for VirtAddr {
    type Output = VirtAddr;
    fn add(self, rhs: Bytes) -> VirtAddr {
        VirtAddr(self.0 + rhs.0)
    }
}

impl Sub<VirtAddr> for VirtAddr {
    type Output = Bytes;
    fn sub(self, rhs: VirtAddr) -> Bytes {
        Bytes(self.0 - rhs.0)
    }
}

impl Add<Bytes> for ObjectOffset {
    type Output = ObjectOffset;
    fn add(self, rhs: Bytes) -> ObjectOffset {
        ObjectOffset(self.0 + rhs.0)
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, rhs: Bytes) -> Bytes {
        Bytes(self.0 + rhs.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, rhs: Bytes) {
        self.0 += rhs.0;
    }
}

impl Add for PageCount {
    type Output = PageCount;
    fn add(self, rhs: PageCount) -> PageCount {
        PageCount(self.0 + rhs.0)
    }
}

impl AddAssign for PageCount {
    fn add_assign(&mut self, rhs: PageCount) {
        self.0 += rhs.0;
    }
}

impl fmt::Display for Bytes {
    /// Prints the size with the largest binary unit that keeps it at least 1,
    /// with one decimal where it is not whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut unit = 0;
        let mut scale = 1u64;
        while unit + 1 < UNITS.len() && self.0 / scale >= 1024 {
            scale *= 1024;
            unit += 1;
        }
        if self.0.is_multiple_of(scale) {
            write!(f, "{} {}", self.0 / scale, UNITS[unit])
        } else {
            write!(f, "{:.1} {}", self.0 as f64 / scale as f64, UNITS[unit])
        }
    }
}

/// A size that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size: write a number with an optional suffix K, M, G or T, such as 256M")]
pub struct SizeError(pub String);

impl FromStr for Bytes {
    type Err = SizeError;

    /// Reads `4096`, `512K`, `256M`, `1.5G` or `2T`; the suffixes are binary
    /// and may be followed by `B` or `iB`.
    fn from_str(text: &str) -> Result<Bytes, SizeError> {
        let bad = || SizeError(text.to_owned());
        let lower = text.trim().to_ascii_lowercase();
        let end = lower
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(lower.len());
        let (number, suffix) = lower.split_at(end);
        let shift = match suffix.trim() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(bad()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(1 << shift).map(Bytes).ok_or_else(bad);
        }
        let value: f64 = number.parse().map_err(|_| bad())?;
        let bytes = value * (1u64 << shift) as f64;
        if bytes.is_finite() && bytes < (1u64 << 63) as f64 {
            Ok(Bytes(bytes as u64))
        } else {
            Err(bad())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_printed() {
        assert_eq!("256M".parse(), Ok(Bytes::mib(256)));
        assert_eq!("1.5GiB".parse(), Ok(Bytes(3 << 29)));
        assert_eq!("4096".parse(), Ok(Bytes(4096)));
        assert!("12x".parse::<Bytes>().is_err());
        assert!("".parse::<Bytes>().is_err());
        assert!("99999999999T".parse::<Bytes>().is_err());
        assert_eq!(Bytes(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(Bytes(4096).to_string(), "4 KiB");
        assert_eq!(Bytes::ZERO.to_string(), "0 B");
    }

    #[test]
    fn slots_cover_partial_superpages() {
        let range = AddrRange::new(VirtAddr(SUPERPAGE - BASE_PAGE), Bytes(2 * BASE_PAGE));
        assert_eq!(range.slots(), 0..2);
        assert_eq!(AddrRange::new(VirtAddr(0), Bytes(0)).slots(), 0..0);
        assert!(range.whole_slots().is_empty());
        let range = AddrRange::new(VirtAddr(BASE_PAGE), Bytes(3 * SUPERPAGE));
        assert_eq!(range.whole_slots(), 1..3);
    }
}
