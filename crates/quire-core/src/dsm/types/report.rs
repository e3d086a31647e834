//! What a translation could not carry over exactly.
//!
//! There are two sorts. A value that the target cannot hold is *replaced* by a stand-in;
//! it is counted, and the first places are kept. A value whose nearest neighbour the
//! target holds is *rounded*; it is counted only, because that is the ordinary course of
//! arithmetic on different machines.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::TypeTag;
use crate::units::ObjectOffset;

/// Places that a report keeps.
pub const PLACES: usize = 8;

/// What happened to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Replaced: IEEE NaN, by a VAX reserved operand.
    NotANumber,
    /// Replaced: IEEE infinity, by the target's largest number of that sign.
    Infinity,
    /// Replaced: a number that is too large, by the target's largest of that sign.
    Overflow,
    /// Replaced: a number that is closer to zero than any of the target's, by zero.
    Underflow,
    /// Replaced: a VAX reserved operand, by IEEE's quiet NaN.
    Reserved,
    /// Rounded: to nearest, ties to even. Only from a VAX can this happen: from D, which
    /// has 3 bits more than IEEE and G, and to IEEE's denormals.
    Inexact,
    /// Rounded: IEEE negative zero, to zero; a VAX has only one.
    NegativeZero,
    /// Rounded: a VAX zero with bits in its fraction, which mean nothing, to the clean
    /// zero.
    DirtyZero,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 8] = [
        Kind::NotANumber,
        Kind::Infinity,
        Kind::Overflow,
        Kind::Underflow,
        Kind::Reserved,
        Kind::Inexact,
        Kind::NegativeZero,
        Kind::DirtyZero,
    ];

    /// Whether a stand-in took the place of a value that the target cannot hold.
    #[must_use]
    pub const fn is_replaced(self) -> bool {
        match self {
            Kind::NotANumber
            | Kind::Infinity
            | Kind::Overflow
            | Kind::Underflow
            | Kind::Reserved => true,
            Kind::Inexact | Kind::NegativeZero | Kind::DirtyZero => false,
        }
    }

    /// What it is called in a report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::NotANumber => "NaN",
            Kind::Infinity => "infinity",
            Kind::Overflow => "overflow",
            Kind::Underflow => "underflow",
            Kind::Reserved => "reserved operand",
            Kind::Inexact => "inexact",
            Kind::NegativeZero => "negative zero",
            Kind::DirtyZero => "dirty zero",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where a value was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The element's place in the object.
    pub offset: ObjectOffset,
    /// Its type.
    pub tag: TypeTag,
    /// What it was.
    pub kind: Kind,
}

/// What became of the values of one or more spans. It allocates nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    counts: [u64; Kind::ALL.len()],
    places: [Option<Place>; PLACES],
}

impl Report {
    /// Nothing happened.
    #[must_use]
    pub const fn new() -> Report {
        Report {
            counts: [0; Kind::ALL.len()],
            places: [None; PLACES],
        }
    }

    /// How many values this happened to.
    #[must_use]
    pub const fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }

    /// How many values were replaced.
    #[must_use]
    pub fn replaced(&self) -> u64 {
        self.sum(true)
    }

    /// How many values were rounded.
    #[must_use]
    pub fn rounded(&self) -> u64 {
        self.sum(false)
    }

    fn sum(&self, replaced: bool) -> u64 {
        let kinds = Kind::ALL.into_iter();
        kinds
            .filter(|kind| kind.is_replaced() == replaced)
            .map(|kind| self.count(kind))
            .sum()
    }

    /// Where the first [`PLACES`] values were replaced, in the order of translation.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        self.places.iter().flatten().copied()
    }

    /// Counts one value, and keeps its place if that is asked for and there is room.
    pub fn note(&mut self, place: Place) {
        self.counts[place.kind as usize] += 1;
        if place.kind.is_replaced()
            && let Some(room) = self.places.iter_mut().find(|room| room.is_none())
        {
            *room = Some(place);
        }
    }

    /// Counts values that were rounded.
    pub(super) fn count_inexact(&mut self, values: u64) {
        self.counts[Kind::Inexact as usize] += values;
    }

    /// Adds what happened later.
    pub fn merge(&mut self, later: &Report) {
        for (count, more) in self.counts.iter_mut().zip(later.counts) {
            *count += more;
        }
        let rooms = self.places.iter_mut().filter(|room| room.is_none());
        for (room, place) in rooms.zip(later.places()) {
            *room = Some(place);
        }
    }
}

impl fmt::Display for Report {
    /// One line, such as `2 values replaced (1 NaN, 1 overflow; the first at 0x1008, a
    /// float64), 3 rounded`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values replaced", self.replaced())?;
        if let Some(first) = self.places().next() {
            let kinds = Kind::ALL.into_iter();
            let counted = kinds.filter(|kind| kind.is_replaced() && self.count(*kind) > 0);
            let list: Vec<String> = counted
                .map(|kind| format!("{} {kind}", self.count(kind)))
                .collect();
            let (offset, tag) = (first.offset.0, first.tag);
            let list = list.join(", ");
            write!(f, " ({list}; the first at {offset:#x}, a {tag})")?;
        }
        write!(f, ", {} rounded", self.rounded())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(offset: u64, kind: Kind) -> Place {
        Place {
            offset: ObjectOffset(offset),
            tag: TypeTag::Float64,
            kind,
        }
    }

    #[test]
    fn all_are_counted_and_the_first_replaced_are_kept() {
        let mut report = Report::new();
        for element in 0..20 {
            report.note(place(element * 8, Kind::Inexact));
            report.note(place(element * 8, Kind::Infinity));
        }
        assert_eq!(report.count(Kind::Inexact), 20);
        assert_eq!((report.replaced(), report.rounded()), (20, 20));
        let places: Vec<u64> = report.places().map(|place| place.offset.0).collect();
        assert_eq!(places, [0, 8, 16, 24, 32, 40, 48, 56]);
    }

    #[test]
    fn merging_is_the_same_as_one_report() {
        let kinds = [Kind::Overflow, Kind::DirtyZero, Kind::NotANumber];
        let places: Vec<Place> = (0..15)
            .map(|at| place(at * 8, kinds[at as usize % 3]))
            .collect();
        let of = |places: &[Place]| {
            let mut report = Report::new();
            places.iter().for_each(|place| report.note(*place));
            report
        };
        for cut in 0..=places.len() {
            let mut merged = of(&places[..cut]);
            merged.merge(&of(&places[cut..]));
            assert_eq!(merged, of(&places));
        }
    }

    #[test]
    fn a_report_is_a_line() {
        let mut report = Report::new();
        assert_eq!(report.to_string(), "0 values replaced, 0 rounded");
        report.note(place(0x1008, Kind::NotANumber));
        report.note(place(0x1010, Kind::NegativeZero));
        assert_eq!(
            report.to_string(),
            "1 values replaced (1 NaN; the first at 0x1008, a float64), 1 rounded"
        );
    }
}
