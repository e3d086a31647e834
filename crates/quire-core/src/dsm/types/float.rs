//! The formats of floating point numbers, and their conversion one by one, with care.
//!
//! All formats are a sign, an exponent and a fraction, in this order from the top, with a
//! leading 1 that is not stored. What they differ in:
//!
//! | format | exponent | fraction | 1.0 has exponent | smallest | largest |
//! |---|---|---|---|---|---|
//! | IEEE single | 8 bits | 23 bits | 127 | denormals, 2^-149 | below 2^128 |
//! | VAX F | 8 | 23 | 129 | 2^-128 | below 2^127 |
//! | IEEE double | 11 | 52 | 1023 | denormals, 2^-1074 | below 2^1024 |
//! | VAX D | 8 | 55 | 129 | 2^-128 | below 2^127 |
//! | VAX G | 11 | 52 | 1025 | 2^-1024 | below 2^1023 |
//!
//! In IEEE the largest exponent means infinity or NaN, and exponent 0 a zero or a
//! denormal. On a VAX the largest exponent is an ordinary one. Exponent 0 with a clear sign
//! is zero whatever the fraction says (a *dirty* zero, if it says something). With the
//! sign set it is a *reserved operand*, on which instructions fault. A VAX has no infinity,
//! no denormals and no negative zero.
//!
//! Here a number is its bits in this order, whatever the order of bytes in memory is. The
//! functions are the specification in code; the fast loops of [`super::translate`] hand
//! over to them whatever is out of the ordinary.

use super::machine::FloatFormat;
use super::report::Kind;

/// The layout of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bits of a number, 32 or 64.
    pub width: u32,
    /// Bits of the fraction, without the leading 1.
    pub fraction: u32,
    /// The exponent of 1.0.
    pub bias: i32,
    /// Whether zero and the ends of the range are as on a VAX.
    pub vax: bool,
}

impl Layout {
    /// IEEE 754 binary32.
    pub const IEEE_SINGLE: Layout = Layout::new(32, 23, 127, false);
    /// IEEE 754 binary64.
    pub const IEEE_DOUBLE: Layout = Layout::new(64, 52, 1023, false);
    /// VAX F.
    pub const VAX_F: Layout = Layout::new(32, 23, 129, true);
    /// VAX D.
    pub const VAX_D: Layout = Layout::new(64, 55, 129, true);
    /// VAX G.
    pub const VAX_G: Layout = Layout::new(64, 52, 1025, true);

    const fn new(width: u32, fraction: u32, bias: i32, vax: bool) -> Layout {
        Layout {
            width,
            fraction,
            bias,
            vax,
        }
    }

    /// The layout of a format's numbers of 4 bytes.
    #[must_use]
    pub const fn of_float32(format: FloatFormat) -> Layout {
        match format {
            FloatFormat::Ieee => Layout::IEEE_SINGLE,
            FloatFormat::VaxF | FloatFormat::VaxD | FloatFormat::VaxG => Layout::VAX_F,
        }
    }

    /// The layout of a format's numbers of 8 bytes.
    #[must_use]
    pub const fn of_float64(format: FloatFormat) -> Layout {
        match format {
            FloatFormat::VaxD => Layout::VAX_D,
            FloatFormat::VaxG => Layout::VAX_G,
            FloatFormat::Ieee | FloatFormat::VaxF => Layout::IEEE_DOUBLE,
        }
    }

    /// The bit of the sign.
    #[must_use]
    pub const fn sign(self) -> u64 {
        1 << (self.width - 1)
    }

    /// The exponent with all bits set.
    const fn full_exponent(self) -> u64 {
        (1 << (self.width - 1 - self.fraction)) - 1
    }

    /// The largest exponent of an ordinary number.
    pub(super) const fn largest_exponent(self) -> i32 {
        self.full_exponent() as i32 - !self.vax as i32
    }

    /// The largest number.
    const fn largest(self) -> u64 {
        ((self.largest_exponent() as u64 + 1) << self.fraction) - 1
    }

    /// The bits of the fraction.
    const fn fraction_mask(self) -> u64 {
        (1 << self.fraction) - 1
    }
}

/// What the bits of a number mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Zero.
    Zero {
        /// IEEE's negative zero.
        negative: bool,
        /// A VAX zero with bits in its fraction.
        dirty: bool,
    },
    /// A number other than zero.
    Finite {
        /// Its sign.
        negative: bool,
        /// 2 to this power is the value of the highest bit of the significand.
        exponent: i32,
        /// With the highest bit set.
        significand: u64,
    },
    /// IEEE's infinities.
    Infinity {
        /// Its sign.
        negative: bool,
    },
    /// IEEE's NaN, or a VAX reserved operand: no number at all.
    NotANumber,
}

/// What the bits of a number mean.
#[must_use]
pub const fn decode(layout: Layout, bits: u64) -> Value {
    let negative = bits & layout.sign() != 0;
    let exponent = (bits >> layout.fraction) & layout.full_exponent();
    let fraction = bits & layout.fraction_mask();
    if exponent == 0 {
        return decode_zero_exponent(layout, negative, fraction);
    }
    if exponent == layout.full_exponent() && !layout.vax {
        return match fraction {
            0 => Value::Infinity { negative },
            _ => Value::NotANumber,
        };
    }
    Value::Finite {
        negative,
        exponent: exponent as i32 - layout.bias,
        significand: (fraction | 1 << layout.fraction) << (63 - layout.fraction),
    }
}

/// What a number means whose exponent is 0.
const fn decode_zero_exponent(layout: Layout, negative: bool, fraction: u64) -> Value {
    if layout.vax && negative {
        return Value::NotANumber;
    }
    if layout.vax || fraction == 0 {
        return Value::Zero {
            negative,
            dirty: fraction != 0,
        };
    }
    let significand = fraction << (63 - layout.fraction);
    let shift = significand.leading_zeros();
    Value::Finite {
        negative,
        exponent: 1 - layout.bias - shift as i32,
        significand: significand << shift,
    }
}

/// The bits of a number in a format, and what happened to the value, if anything.
///
/// Rounding is to nearest, ties to even. What is closer to zero than the smallest number
/// of a VAX becomes zero, as on a VAX. The stand-in for a value without a number is the
/// reserved operand whose fraction is 0, or the quiet NaN with nothing else set. For what is
/// too large, and for infinity, it is the largest number of that sign.
#[must_use]
pub const fn encode(layout: Layout, value: Value) -> (u64, Option<Kind>) {
    match value {
        Value::Zero { negative, dirty } => {
            let kind = match (dirty, negative) {
                (true, _) => Some(Kind::DirtyZero),
                (false, true) => Some(Kind::NegativeZero),
                (false, false) => None,
            };
            (0, kind)
        }
        Value::Finite {
            negative,
            exponent,
            significand,
        } => {
            let (bits, kind) = encode_finite(layout, exponent, significand);
            (with_sign(layout, bits, negative), kind)
        }
        Value::Infinity { negative } => {
            let bits = with_sign(layout, layout.largest(), negative);
            (bits, Some(Kind::Infinity))
        }
        Value::NotANumber if layout.vax => (layout.sign(), Some(Kind::NotANumber)),
        Value::NotANumber => {
            let quiet = layout.full_exponent() << layout.fraction | 1 << (layout.fraction - 1);
            (quiet, Some(Kind::Reserved))
        }
    }
}

/// The sign, where there is a number; zero has none here.
const fn with_sign(layout: Layout, magnitude: u64, negative: bool) -> u64 {
    if negative && magnitude != 0 {
        magnitude | layout.sign()
    } else {
        magnitude
    }
}

/// The bits of a number other than zero, without its sign.
const fn encode_finite(layout: Layout, exponent: i32, significand: u64) -> (u64, Option<Kind>) {
    let exponent = exponent + layout.bias;
    let normal_drop = 63 - layout.fraction;
    // An IEEE denormal keeps fewer bits; it has no leading 1 and exponent 0.
    let denormal = exponent < 1 && !layout.vax;
    let drop = if denormal {
        normal_drop + (1 - exponent) as u32
    } else {
        normal_drop
    };
    let (kept, inexact) = round(significand, drop);
    // The leading 1 adds one to the exponent below it, as does a carry out of the fraction.
    let below = if denormal { 0 } else { exponent as i128 - 1 };
    let magnitude = (below << layout.fraction) + kept as i128;
    let smallest = if layout.vax { 1 << layout.fraction } else { 1 };
    if magnitude < smallest {
        return (0, Some(Kind::Underflow));
    }
    if magnitude > layout.largest() as i128 {
        return (layout.largest(), Some(Kind::Overflow));
    }
    let kind = if inexact { Some(Kind::Inexact) } else { None };
    (magnitude as u64, kind)
}

/// A significand without its lowest `drop` bits, at least 1, to nearest and ties to even;
/// and whether anything was lost.
const fn round(significand: u64, drop: u32) -> (u64, bool) {
    if drop > 64 {
        return (0, true);
    }
    let (kept, rest) = match drop {
        64 => (0, significand),
        _ => (significand >> drop, significand << (64 - drop)),
    };
    let half = 1 << 63;
    let up = rest > half || rest == half && kept & 1 == 1;
    (kept + up as u64, rest != 0)
}

/// A number of one format in another, and what happened to it, if anything. A NaN of the
/// target's own kind of arithmetic is nothing that happens: a reserved operand stays one
/// from VAX to VAX.
#[must_use]
pub const fn convert(from: Layout, to: Layout, bits: u64) -> (u64, Option<Kind>) {
    match (encode(to, decode(from, bits)), from.vax && to.vax) {
        ((bits, Some(Kind::NotANumber)), true) => (bits, None),
        (result, _) => result,
    }
}
