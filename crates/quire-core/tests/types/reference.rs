//! Translation as slowly and plainly as can be, after the definitions of the formats: a
//! number is taken apart bit by bit from memory, its exact value is compared with the exact
//! values of the target's numbers, and the nearest of these is searched for.

use std::cmp::Ordering;

use quire_core::dsm::types::{Kind, Machine, TypeTag};

/// A format as the manuals define it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The bytes in memory, from the one with the sign to the one with the lowest bits.
    bytes: &'static [usize],
    exponent_bits: usize,
    /// What is subtracted from the exponent where the fraction is `0.1...`.
    excess: i32,
    vax: bool,
}

const FORWARD: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const BACKWARD4: [usize; 4] = [3, 2, 1, 0];
const BACKWARD8: [usize; 8] = [7, 6, 5, 4, 3, 2, 1, 0];
/// Words of two bytes: bit 15 of the first, which is in the second byte, is the sign.
const WORDS: [usize; 8] = [1, 0, 3, 2, 5, 4, 7, 6];

impl Format {
    /// What a machine uses for a type.
    pub fn of(machine: Machine, tag: TypeTag) -> Format {
        let single = tag == TypeTag::Float32;
        let (exponent_bits, excess) = match (machine, single) {
            (Machine::Little | Machine::Big, true) => (8, 126),
            (Machine::Little | Machine::Big, false) => (11, 1022),
            (Machine::VaxD, _) | (Machine::VaxG, true) => (8, 128),
            (Machine::VaxG, false) => (11, 1024),
        };
        let bytes: &[usize] = match (machine, single) {
            (Machine::Little, true) => &BACKWARD4,
            (Machine::Little, false) => &BACKWARD8,
            (Machine::Big, true) => &FORWARD[..4],
            (Machine::Big, false) => &FORWARD,
            (Machine::VaxD | Machine::VaxG, true) => &WORDS[..4],
            (Machine::VaxD | Machine::VaxG, false) => &WORDS,
        };
        Format {
            bytes,
            exponent_bits,
            excess,
            vax: matches!(machine, Machine::VaxD | Machine::VaxG),
        }
    }

    /// The size of the fraction, without the leading 1.
    pub fn fraction_bits(self) -> usize {
        self.bytes.len() * 8 - 1 - self.exponent_bits
    }

    /// The bits of a number in memory, the sign first.
    fn bits(self, memory: &[u8]) -> Vec<bool> {
        let bytes = self.bytes.iter().map(|at| memory[*at]);
        bytes
            .flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1))
            .collect()
    }

    /// The sign, the exponent and the fraction of a number in memory.
    fn fields(self, memory: &[u8]) -> (bool, u64, u64) {
        let number = |bits: &[bool]| bits.iter().fold(0, |n, bit| n * 2 + u64::from(*bit));
        let bits = self.bits(memory);
        let (exponent, fraction) = bits[1..].split_at(self.exponent_bits);
        (bits[0], number(exponent), number(fraction))
    }

    /// Whether a number in memory is a reserved operand.
    pub fn is_reserved(self, memory: &[u8]) -> bool {
        let (negative, exponent, _) = self.fields(memory);
        self.vax && negative && exponent == 0
    }

    /// A number in memory, from its sign, and from its exponent and fraction as one number.
    pub fn memory(self, negative: bool, magnitude: u64) -> Vec<u8> {
        let mut memory = vec![0; self.bytes.len()];
        let width = memory.len() * 8;
        let sign = u64::from(negative) << (width - 1);
        for (place, at) in self.bytes.iter().enumerate() {
            memory[*at] = ((sign | magnitude) >> (width - 8 - 8 * place)) as u8;
        }
        memory
    }

    /// The exponents of ordinary numbers end before this one.
    fn end_exponent(self) -> u64 {
        let all = 1 << self.exponent_bits;
        if self.vax { all } else { all - 1 }
    }

    /// The exact value of a magnitude: a number, times 2 to a power.
    fn value(self, magnitude: u64) -> Exact {
        let bits = self.fraction_bits();
        let exponent = (magnitude >> bits) as i32;
        let fraction = u128::from(magnitude) & ((1 << bits) - 1);
        let (leading, exponent) = match exponent {
            0 if self.vax => return Exact(0, 0),
            0 => (0, 1),
            _ => (1 << bits, exponent),
        };
        Exact(leading + fraction, exponent - self.excess - bits as i32 - 1)
    }

    /// The largest and the smallest magnitude other than zero.
    fn ends(self) -> (u64, u64) {
        let largest = (self.end_exponent() << self.fraction_bits()) - 1;
        let smallest = if self.vax {
            1 << self.fraction_bits()
        } else {
            1
        };
        (largest, smallest)
    }
}

/// A number, times 2 to a power.
#[derive(Clone, Copy, Debug)]
struct Exact(u128, i32);

impl Exact {
    fn compare(self, other: Exact) -> Ordering {
        if self.0 == 0 || other.0 == 0 {
            return self.0.cmp(&other.0);
        }
        let top = |exact: Exact| exact.1 - exact.0.leading_zeros() as i32;
        let shifted = |exact: Exact| exact.0 << exact.0.leading_zeros();
        let by_power = top(self).cmp(&top(other));
        by_power.then(shifted(self).cmp(&shifted(other)))
    }

    /// The number half way between two, whose powers are close.
    fn middle(self, other: Exact) -> Exact {
        let power = self.1.min(other.1);
        let at = |exact: Exact| match exact.0 {
            0 => 0,
            number => number << (exact.1 - power),
        };
        let power = if self.0 == 0 { other.1 } else { power };
        Exact(at(self) + at(other), power - 1)
    }
}

/// What a number in memory becomes on another machine, and what happened to it.
pub fn translate(
    tag: TypeTag,
    from: Machine,
    to: Machine,
    memory: &[u8],
) -> (Vec<u8>, Option<Kind>) {
    let (from, to) = (Format::of(from, tag), Format::of(to, tag));
    let (largest, _) = to.ends();
    let (negative, exponent, fraction) = from.fields(memory);
    let full = (1 << from.exponent_bits) - 1;
    if from.is_reserved(memory) {
        let quiet = (full_of(to) << to.fraction_bits()) | 1 << (to.fraction_bits() - 1);
        return match to.vax {
            true => (to.memory(true, 0), None),
            false => (to.memory(false, quiet), Some(Kind::Reserved)),
        };
    }
    if !from.vax && exponent == full {
        return match fraction {
            0 => (to.memory(negative, largest), Some(Kind::Infinity)),
            _ => (to.memory(true, 0), Some(Kind::NotANumber)),
        };
    }
    let magnitude = exponent << from.fraction_bits() | fraction;
    let value = from.value(magnitude);
    if value.0 == 0 {
        let kind = if magnitude != 0 {
            Some(Kind::DirtyZero)
        } else if negative {
            Some(Kind::NegativeZero)
        } else {
            None
        };
        return (to.memory(false, 0), kind);
    }
    let (magnitude, kind) = nearest(to, value);
    (to.memory(negative && magnitude != 0, magnitude), kind)
}

fn full_of(format: Format) -> u64 {
    (1 << format.exponent_bits) - 1
}

/// The magnitude whose value is nearest to a value, by a search among all.
fn nearest(format: Format, value: Exact) -> (u64, Option<Kind>) {
    let (largest, smallest) = format.ends();
    if value.compare(format.value(largest)) == Ordering::Greater {
        return (largest, Some(Kind::Overflow));
    }
    if value.compare(format.value(smallest)) == Ordering::Less {
        return (0, Some(Kind::Underflow));
    }
    let (mut below, mut above) = (smallest, largest);
    while above - below > 1 {
        let half = below + (above - below) / 2;
        match format.value(half).compare(value) {
            Ordering::Greater => above = half,
            Ordering::Less | Ordering::Equal => below = half,
        }
    }
    for exact in [below, above] {
        if format.value(exact).compare(value) == Ordering::Equal {
            return (exact, None);
        }
    }
    let middle = format.value(below).middle(format.value(above));
    let nearest = match value.compare(middle) {
        Ordering::Less => below,
        Ordering::Greater => above,
        Ordering::Equal if below & 1 == 0 => below,
        Ordering::Equal => above,
    };
    (nearest, Some(Kind::Inexact))
}
