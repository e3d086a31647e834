//! The colour of a frame: the part of a cache's index that page allocation decides.
//!
//! Each bit of a colour is the parity of some bits of the physical address. In a
//! cache with a plain index it is one bit, the first of them the one just above the
//! offset in a page; where the index is a hash, it is an XOR of several (paper 002,
//! section 2.2, has the plain case).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::strategy::Block;
use crate::units::{BASE_PAGE, Frame};

/// The bits of an address below this one are the offset in a page.
const PAGE_BITS: u32 = BASE_PAGE.trailing_zeros();
/// Physical addresses have no more bits.
const ADDRESS_BITS: u32 = 52;
/// A cache with more colours than 2 to this power does not exist.
pub const MAX_COLOUR_BITS: usize = 16;

/// A colour: frames of different colours do not compete in the cache.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Colour(pub u32);

/// How frames are coloured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Colours {
    /// For each bit of a colour, the bits of the physical address of which it is
    /// the parity.
    masks: Vec<u64>,
}

/// Why a text does not say how frames are coloured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColoursError {
    /// A part is no number.
    #[error("{0:?} is not the number of an address bit: write bits as 12,13,14 or 12^18,13^19")]
    NotABit(String),
    /// The bit is no part of a frame's number.
    #[error(
        "address bit {0} says nothing about a frame: colours come from bits {PAGE_BITS} to {max}",
        max = ADDRESS_BITS - 1
    )]
    OutOfRange(u32),
    /// Some colours could not occur.
    #[error("the bits of {0:?} depend on each other, so some colours have no frames")]
    Dependent(String),
    /// Too many bits.
    #[error("{0} colour bits: no cache has more than {MAX_COLOUR_BITS}")]
    TooMany(usize),
}

impl Colours {
    /// Colours of a cache with a plain index, of which one way holds `way_bytes`, a
    /// power of two: as many as there are pages in a way.
    #[must_use]
    pub fn plain(way_bytes: u64) -> Colours {
        let bits = way_bytes.checked_ilog2().unwrap_or(0).min(ADDRESS_BITS);
        let masks = (PAGE_BITS..bits).map(|bit| 1 << bit);
        Colours {
            masks: masks.take(MAX_COLOUR_BITS).collect(),
        }
    }

    /// How many colours there are, a power of two.
    #[must_use]
    pub fn count(&self) -> u32 {
        1 << self.masks.len()
    }

    /// The colour of a frame.
    #[must_use]
    pub fn of(&self, frame: Frame) -> Colour {
        let address = frame.0 << PAGE_BITS;
        let bits = self.masks.iter().enumerate();
        let colour = bits.map(|(bit, mask)| ((address & mask).count_ones() & 1) << bit);
        Colour(colour.sum())
    }

    /// The first frame of this colour in a block; `None` where it has none. The XOR
    /// equations of the colour are solved for the bits that differ inside the block,
    /// so that the time does not grow with its size.
    #[must_use]
    pub fn first_in(&self, block: Block, colour: Colour) -> Option<Frame> {
        let differing = self.of(block.first).0 ^ colour.0;
        if differing == 0 {
            return Some(block.first);
        }
        if block.order == 0 || colour.0 >= self.count() {
            return None;
        }
        let inside = block.frames() - 1;
        let bits = self.masks.iter().enumerate();
        let equations =
            bits.map(|(bit, mask)| (mask >> PAGE_BITS & inside, differing >> bit & 1 == 1));
        smallest_solution(equations).map(|offset| Frame(block.first.0 | offset))
    }

    /// The lowest bit of the address above all that matter: frames that are this
    /// power of two bytes apart have the same colour. A block of so many bytes that is
    /// aligned to its size has all colours, wherever it lies.
    #[must_use]
    pub fn period_bits(&self) -> u32 {
        let highest = self.masks.iter().map(|mask| mask.ilog2() + 1).max();
        highest.unwrap_or(PAGE_BITS)
    }
}

impl FromStr for Colours {
    type Err = ColoursError;

    /// Reads `12,13,14,15` or, for a hashed index, `12^18,13^19`: a colour bit for
    /// each part, the lowest first.
    fn from_str(text: &str) -> Result<Colours, ColoursError> {
        let parts = text.split(',');
        let masks = parts
            .map(mask)
            .collect::<Result<Vec<u64>, ColoursError>>()?;
        if masks.len() > MAX_COLOUR_BITS {
            return Err(ColoursError::TooMany(masks.len()));
        }
        if !are_independent(&masks) {
            return Err(ColoursError::Dependent(text.to_owned()));
        }
        Ok(Colours { masks })
    }
}

impl TryFrom<String> for Colours {
    type Error = ColoursError;

    fn try_from(text: String) -> Result<Colours, ColoursError> {
        match text.as_str() {
            "" => Ok(Colours::default()),
            text => text.parse(),
        }
    }
}

impl From<Colours> for String {
    fn from(colours: Colours) -> String {
        colours.to_string()
    }
}

impl fmt::Display for Colours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, mask) in self.masks.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            let bits = (0..u64::BITS).filter(|bit| mask >> bit & 1 == 1);
            let bits: Vec<String> = bits.map(|bit| bit.to_string()).collect();
            write!(f, "{comma}{}", bits.join("^"))?;
        }
        Ok(())
    }
}

/// Reads `12^18`.
fn mask(text: &str) -> Result<u64, ColoursError> {
    text.split('^').try_fold(0, |mask, bit| {
        let number: u32 = bit
            .trim()
            .parse()
            .map_err(|_| ColoursError::NotABit(bit.to_owned()))?;
        if !(PAGE_BITS..ADDRESS_BITS).contains(&number) {
            return Err(ColoursError::OutOfRange(number));
        }
        Ok(mask ^ 1 << number)
    })
}

/// Whether no mask is the XOR of others, so that every colour occurs: each is reduced
/// by the leading bits of those before it.
fn are_independent(masks: &[u64]) -> bool {
    let mut reduced: Vec<u64> = Vec::new();
    masks.iter().all(|mask| {
        let rest = reduced.iter().fold(*mask, |rest, other| {
            let leads = rest >> other.ilog2() & 1 == 1;
            if leads { rest ^ other } else { rest }
        });
        if rest != 0 {
            reduced.push(rest);
            reduced.sort_unstable_by(|a, b| b.cmp(a));
        }
        rest != 0
    })
}

/// The smallest number whose bits solve the equations, each of which gives the parity
/// of some of them. At most [`MAX_COLOUR_BITS`] equations.
///
/// Every equation is kept so that its lowest bit occurs in no other. The number in
/// which the remaining bits are zero is then the smallest: to set one of them changes
/// lower bits only.
fn smallest_solution(equations: impl Iterator<Item = (u64, bool)>) -> Option<u64> {
    let mut solved = [(0, false); MAX_COLOUR_BITS];
    let mut count = 0;
    for (mut bits, mut odd) in equations {
        for (other, other_odd) in &solved[..count] {
            if bits & lowest(*other) != 0 {
                bits ^= other;
                odd ^= other_odd;
            }
        }
        match (bits, odd) {
            (0, true) => return None,
            (0, false) => continue,
            _ => (),
        }
        for (other, other_odd) in &mut solved[..count] {
            if *other & lowest(bits) != 0 {
                *other ^= bits;
                *other_odd ^= odd;
            }
        }
        solved[count] = (bits, odd);
        count += 1;
    }
    let odd = solved[..count].iter().filter(|(_, odd)| *odd);
    Some(odd.map(|(bits, _)| lowest(*bits)).sum())
}

/// The lowest bit that is set.
const fn lowest(bits: u64) -> u64 {
    bits & bits.wrapping_neg()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_plain_index_has_a_colour_for_each_page_of_a_way() {
        // Paper 002, section 2.2: 1024 sets of 64 bytes.
        let colours = Colours::plain(1024 * 64);
        assert_eq!(colours.count(), 16);
        assert_eq!(colours.to_string(), "12,13,14,15");
        assert_eq!(colours.of(Frame(0x1234_5678)), Colour(8));
        assert_eq!(colours.period_bits(), 16);
        assert_eq!(Colours::plain(4096).count(), 1);
        assert_eq!(Colours::plain(64).count(), 1);
        assert_eq!(Colours::plain(0).of(Frame(7)), Colour(0));
    }

    #[test]
    fn bits_can_be_given() {
        let colours: Colours = "12^18,13^19".parse().unwrap();
        assert_eq!(colours.count(), 4);
        assert_eq!(colours.of(Frame(1)), Colour(1));
        assert_eq!(colours.of(Frame(1 << 6)), Colour(1));
        assert_eq!(colours.of(Frame(1 << 6 | 1)), Colour(0));
        assert_eq!(colours.of(Frame(1 << 7 | 1)), Colour(3));
        assert_eq!(colours.to_string(), "12^18,13^19");
    }

    #[test]
    fn nonsense_is_refused() {
        let error = |text: &str| text.parse::<Colours>().unwrap_err();
        assert_eq!(error("12,x"), ColoursError::NotABit("x".to_owned()));
        assert_eq!(error(""), ColoursError::NotABit(String::new()));
        assert_eq!(error("11"), ColoursError::OutOfRange(11));
        assert_eq!(error("12,60"), ColoursError::OutOfRange(60));
        assert_eq!(error("12,12"), ColoursError::Dependent("12,12".to_owned()));
        let dependent = "12^13,13^14,12^14";
        assert_eq!(
            error(dependent),
            ColoursError::Dependent(dependent.to_owned())
        );
        let many: Vec<String> = (12..30).map(|bit| bit.to_string()).collect();
        assert_eq!(error(&many.join(",")), ColoursError::TooMany(18));
    }

    proptest! {
        #[test]
        fn a_period_has_all_colours_alike(
            masks in prop::collection::vec(1u64..1 << 8, 1..5),
            block in 0u64..1 << 20,
        ) {
            let masks: Vec<u64> = masks.iter().map(|mask| mask << PAGE_BITS).collect();
            prop_assume!(are_independent(&masks));
            let colours = Colours { masks };
            let frames = 1 << (colours.period_bits() - PAGE_BITS);
            let of = |n: u64| colours.of(Frame(block * frames + n));
            let found: BTreeSet<Colour> = (0..frames).map(of).collect();
            prop_assert_eq!(found.len() as u32, colours.count());
            let zeros = (0..frames).filter(|n| of(*n) == Colour(0)).count() as u64;
            prop_assert_eq!(zeros * u64::from(colours.count()), frames);
            prop_assert_eq!(colours.to_string().parse::<Colours>(), Ok(colours));
        }

        #[test]
        fn the_first_of_a_colour_is_what_a_scan_finds(
            masks in prop::collection::vec(1u64..1 << 12, 0..6),
            order in 0u32..=10,
            block in 0u64..1 << 12,
        ) {
            let masks: Vec<u64> = masks.iter().map(|mask| mask << PAGE_BITS).collect();
            prop_assume!(are_independent(&masks));
            let colours = Colours { masks };
            let block = Block { first: Frame(block << order), order };
            for colour in (0..colours.count() + 2).map(Colour) {
                let mut frames = (0..block.frames()).map(|n| Frame(block.first.0 + n));
                let scanned = frames.find(|frame| colours.of(*frame) == colour);
                prop_assert_eq!(colours.first_in(block, colour), scanned);
            }
        }

        #[test]
        fn independence_is_that_all_colours_occur(masks in prop::collection::vec(0u64..1 << 6, 0..6)) {
            let masks: Vec<u64> = masks.iter().map(|mask| mask << PAGE_BITS).collect();
            let colours = Colours { masks: masks.clone() };
            let found: BTreeSet<Colour> = (0..1 << 6).map(|n| colours.of(Frame(n))).collect();
            prop_assert_eq!(are_independent(&masks), found.len() as u32 == colours.count());
        }
    }
}
