//! Which part of a process is meant: a range of addresses, or the mappings of a name.

use std::str::FromStr;

use crate::units::{AddrRange, BASE_PAGE, VirtAddr};

/// Programs have addresses below this one, with page tables of five levels.
pub const ADDRESS_END: VirtAddr = VirtAddr(1 << 56);

/// A part of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// These addresses, from whole page to whole page.
    Addresses(AddrRange),
    /// All mappings of this name.
    Name(String),
}

/// Why a text names no part of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// Neither addresses nor a name.
    #[error(
        "write START-END in hexadecimal, as in /proc/PID/maps, or a mapping's name such as [heap] or /usr/lib/libx.so"
    )]
    NotAPart,
    /// There is nothing between the addresses.
    #[error("the range holds nothing: its end must be larger than its start")]
    Empty,
    /// No program has such addresses.
    #[error(
        "the range lies outside of the address space: addresses of programs are below {:#x}",
        ADDRESS_END.0
    )]
    Outside,
}

impl Part {
    /// What the mapping at `range` with this name has in common with the part; empty
    /// where that is nothing.
    #[must_use]
    pub fn of(&self, range: AddrRange, name: &str) -> AddrRange {
        match self {
            Part::Addresses(part) => range.intersect(*part),
            Part::Name(wanted) if wanted == name => range,
            Part::Name(_) => AddrRange::default(),
        }
    }
}

impl FromStr for Part {
    type Err = PartError;

    /// Reads `7f00-8000` or `0x7f00-0x8000`, rounded to whole pages, or a name.
    fn from_str(text: &str) -> Result<Part, PartError> {
        if text.contains(['[', '/', ':']) {
            return Ok(Part::Name(text.to_owned()));
        }
        let (start, end) = text.split_once('-').ok_or(PartError::NotAPart)?;
        let (start, end) = (address(start)?, address(end)?);
        if end > ADDRESS_END {
            return Err(PartError::Outside);
        }
        if start >= end {
            return Err(PartError::Empty);
        }
        Ok(Part::Addresses(AddrRange {
            start: start.page_floor(),
            end: VirtAddr(end.0.next_multiple_of(BASE_PAGE)),
        }))
    }
}

/// Reads an address. One that does not fit in 64 bits lies outside of any address
/// space.
fn address(text: &str) -> Result<VirtAddr, PartError> {
    let digits = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    let digits = digits.unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(PartError::NotAPart);
    }
    let number = u64::from_str_radix(digits, 16);
    number.map(VirtAddr).map_err(|_| PartError::Outside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> AddrRange {
        AddrRange {
            start: VirtAddr(start),
            end: VirtAddr(end),
        }
    }

    #[test]
    fn addresses_are_read() {
        let part = |text: &str| text.parse::<Part>();
        let pages = Ok(Part::Addresses(range(0x7f00_0000, 0x7f00_3000)));
        assert_eq!(part("7f000000-7f003000"), pages);
        assert_eq!(part("0x7F000000-0x7f003000"), pages);
        assert_eq!(part("7f000fff-7f002001"), pages);
        assert_eq!(
            part("0-100000000000000"),
            Ok(Part::Addresses(range(0, 1 << 56)))
        );
        assert_eq!(part("2000-1000"), Err(PartError::Empty));
        assert_eq!(part("1000-1000"), Err(PartError::Empty));
        assert_eq!(part("0-100000000000001"), Err(PartError::Outside));
        assert_eq!(
            part("ffffffffff600000-ffffffffff601000"),
            Err(PartError::Outside)
        );
        assert_eq!(part("0-10000000000000000"), Err(PartError::Outside));
        for text in [
            "", "-", "heap", "1000", "1000-", "-1000", "0x-0x", "+1-+2", "1-2-3",
        ] {
            assert_eq!(part(text), Err(PartError::NotAPart), "{text}");
        }
    }

    #[test]
    fn names_are_read() {
        for name in ["[heap]", "/usr/lib/a-b.so", "anon_inode:[x]"] {
            let part: Part = name.parse().unwrap();
            assert_eq!(part, Part::Name(name.to_owned()));
            assert_eq!(part.of(range(1, 2), name), range(1, 2));
            assert!(part.of(range(1, 2), "other").is_empty());
        }
    }

    #[test]
    fn a_part_cuts_mappings() {
        let part: Part = "3000-5000".parse().unwrap();
        assert_eq!(part.of(range(0x1000, 0x4000), ""), range(0x3000, 0x4000));
        assert!(part.of(range(0x1000, 0x3000), "").is_empty());
        assert!(part.of(range(0x8000, 0x9000), "").is_empty());
    }
}
