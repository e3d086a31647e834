//! What a page looks like: a hue for each colour, light where a superpage maps it, and
//! shades of grey for what has no colour.

use quire_core::frames::colour::{self, Colours};
use quire_core::frames::mapping::{Kind, Run};
use quire_core::units::Frame;

/// Red, green, blue.
pub type Colour = [u8; 3];

/// No page is there.
pub const ABSENT: Colour = [0, 0, 0];
/// The page is in swap.
pub const SWAPPED: Colour = [255, 255, 255];
/// The kernel's page of zeros.
pub const ZERO: Colour = [150, 150, 150];
/// No mapping is there.
pub const OUTSIDE: Colour = [56, 56, 56];
/// The page is there, but its frame is hidden.
pub const HIDDEN: Colour = [84, 104, 140];

/// What the largest part of a colour is, what the smallest.
const RANGE: (f64, f64) = (235.0, 30.0);
/// How far a superpage's colour is on the way to white.
const LIGHTER: f64 = 0.45;

/// The looks of pages.
pub struct Palette<'a> {
    colours: &'a Colours,
    hues: Vec<Colour>,
}

impl Palette<'_> {
    /// Hues for these colours, as far apart as can be.
    pub fn new(colours: &Colours) -> Palette<'_> {
        let count = colours.count();
        let hues = (0..count).map(|n| hue(f64::from(n) / f64::from(count)));
        Palette {
            colours,
            hues: hues.collect(),
        }
    }

    /// The look of page `n` of a run.
    pub fn of(&self, run: &Run, n: u64) -> Colour {
        let plain = match run.kind {
            Kind::Swapped => return SWAPPED,
            Kind::Zero => return ZERO,
            Kind::Anonymous | Kind::File | Kind::Shared => self.look(run.frame_of(n)),
        };
        if run.is_super() {
            lighter(plain)
        } else {
            plain
        }
    }

    fn look(&self, frame: Option<Frame>) -> Colour {
        let colour = frame.map(|frame| self.colours.of(frame));
        let hue = colour.and_then(|colour::Colour(n)| self.hues.get(n as usize));
        hue.copied().unwrap_or(HIDDEN)
    }
}

/// The hue at a part of the way around the circle: red at 0, green at 1/3, blue at 2/3.
fn hue(turn: f64) -> Colour {
    [0.0, 1.0 / 3.0, 2.0 / 3.0].map(|own| {
        let away = (turn - own).abs();
        let away = away.min(1.0 - away);
        // Full within a sixth of the circle, none beyond a third.
        let strength = (2.0 - 6.0 * away).clamp(0.0, 1.0);
        (RANGE.1 + strength * (RANGE.0 - RANGE.1)) as u8
    })
}

fn lighter(colour: Colour) -> Colour {
    colour.map(|part| {
        let part = f64::from(part);
        (part + LIGHTER * (255.0 - part)) as u8
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn hues_go_around_the_circle() {
        assert_eq!(hue(0.0), [235, 30, 30]);
        assert_eq!(hue(1.0 / 3.0), [30, 235, 30]);
        assert_eq!(hue(2.0 / 3.0), [30, 30, 235]);
        assert_eq!(hue(1.0 / 6.0), [235, 235, 30]);
        let colours = Colours::plain(4096 << 6);
        let palette = Palette::new(&colours);
        let both = palette.hues.iter().flat_map(|hue| [*hue, lighter(*hue)]);
        let looks: BTreeSet<Colour> = both
            .chain([ABSENT, SWAPPED, ZERO, OUTSIDE, HIDDEN])
            .collect();
        assert_eq!(looks.len(), 2 * 64 + 5);
    }
}
