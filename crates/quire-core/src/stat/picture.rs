//! The picture of a region: what each of its extents is, and how much of it is
//! populated, in one byte per cell (the population maps of paper 000, section
//! 3.3, at the grain at which people look at them).
//!
//! A cell stands for one extent, in order of address. The statistics page has
//! room for a fixed number of cells; where that is not enough, the largest
//! regions are folded: one cell stands for several neighbours.

use serde::{Deserialize, Serialize};

use crate::units::{PAGES_PER_SUPERPAGE, PageCount};

/// What an extent is, as pictures show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CellState {
    /// Nothing is there.
    #[default]
    Empty,
    /// Left to the kernel's base pages.
    Base,
    /// A folio is reserved and populated page by page.
    Reserved,
    /// It has folios smaller than a superpage; a touch maps one of them.
    Small,
    /// The first touch maps a superpage, or has done so.
    Whole,
    /// Became a superpage when it was full.
    Promoted,
}

impl CellState {
    /// Every state; the place in this list is its code.
    pub const ALL: [CellState; 6] = [
        CellState::Empty,
        CellState::Base,
        CellState::Reserved,
        CellState::Small,
        CellState::Whole,
        CellState::Promoted,
    ];

    /// The letter that stands for the state in JSON.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            CellState::Empty => '.',
            CellState::Base => 'b',
            CellState::Reserved => 'r',
            CellState::Small => 's',
            CellState::Whole => 'w',
            CellState::Promoted => 'p',
        }
    }
}

/// One cell of a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cell {
    /// What the extent is.
    pub state: CellState,
    sixteenths: u8,
}

const POPULATION_BITS: u32 = 5;

impl Cell {
    /// How many parts of an extent a cell tells apart.
    pub const PARTS: u8 = 16;

    /// The cell of an extent of which `populated` pages are in use.
    #[must_use]
    pub fn new(state: CellState, populated: PageCount) -> Cell {
        let whole = PAGES_PER_SUPERPAGE as u64;
        let parts = u64::from(Cell::PARTS);
        let sixteenths = match populated.0 {
            0 => 0,
            pages if pages >= whole => parts,
            // What is neither empty nor full never looks so.
            pages => (pages * parts / whole).clamp(1, parts - 1),
        };
        Cell {
            state,
            sixteenths: sixteenths as u8,
        }
    }

    /// A cell with a population in sixteenths; more than all is all.
    #[must_use]
    pub const fn of_sixteenths(state: CellState, sixteenths: u8) -> Cell {
        let sixteenths = if sixteenths < Cell::PARTS {
            sixteenths
        } else {
            Cell::PARTS
        };
        Cell { state, sixteenths }
    }

    /// The populated part, in sixteenths. 0 is nothing at all, 16 is every page.
    #[must_use]
    pub const fn sixteenths(self) -> u8 {
        self.sixteenths
    }

    /// Whether every page is populated.
    #[must_use]
    pub const fn is_full(self) -> bool {
        self.sixteenths == Cell::PARTS
    }

    /// Whether the extent is mapped by a superpage.
    #[must_use]
    pub fn is_superpage(self) -> bool {
        match self.state {
            CellState::Promoted => true,
            CellState::Whole => self.is_full(),
            _ => false,
        }
    }

    /// The byte that stands for the cell in a statistics page.
    #[must_use]
    pub fn encode(self) -> u8 {
        let code = CellState::ALL.iter().position(|s| *s == self.state);
        (code.unwrap_or(0) as u8) << POPULATION_BITS | self.sixteenths
    }

    /// The cell that a byte stands for; one that no cell has is an empty one.
    #[must_use]
    pub fn decode(byte: u8) -> Cell {
        let state = CellState::ALL.get(usize::from(byte >> POPULATION_BITS));
        let sixteenths = byte & ((1 << POPULATION_BITS) - 1);
        match state {
            Some(&state) if sixteenths <= Cell::PARTS => Cell { state, sixteenths },
            _ => Cell::default(),
        }
    }

    /// The cell that stands for several: the state of most of them (of two with
    /// as many, the one nearer to a superpage), and their mean population, which
    /// is nothing or everything only where it is so for all.
    #[must_use]
    pub fn fold(cells: &[Cell]) -> Cell {
        let votes = |state| cells.iter().filter(|cell| cell.state == state).count();
        let state = CellState::ALL.into_iter().max_by_key(|state| votes(*state));
        let sum: usize = cells.iter().map(|cell| usize::from(cell.sixteenths)).sum();
        let parts = usize::from(Cell::PARTS);
        let sixteenths = match sum {
            0 => 0,
            sum if sum == cells.len() * parts => parts,
            sum => (sum / cells.len()).clamp(1, parts - 1),
        };
        Cell {
            state: state.unwrap_or_default(),
            sixteenths: sixteenths as u8,
        }
    }
}

/// The picture of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Drawn", try_from = "Drawn")]
pub struct Picture {
    /// How many neighbouring extents one cell stands for; the last cell may
    /// stand for fewer.
    pub extents_per_cell: u32,
    /// The cells, in order of address.
    pub cells: Vec<Cell>,
}

impl Picture {
    /// A picture with a cell for each extent.
    #[must_use]
    pub fn of_extents(cells: Vec<Cell>) -> Picture {
        Picture {
            extents_per_cell: 1,
            cells,
        }
    }

    /// A picture of extents with `most` cells at most, which is never larger in memory.
    #[must_use]
    pub fn folding(extents: impl ExactSizeIterator<Item = Cell>, most: usize) -> Picture {
        let factor = extents.len().div_ceil(most.max(1)).max(1);
        let mut cells = Vec::with_capacity(extents.len().div_ceil(factor));
        let mut part = Vec::with_capacity(factor);
        for cell in extents {
            part.push(cell);
            if part.len() == factor {
                cells.push(Cell::fold(&part));
                part.clear();
            }
        }
        if !part.is_empty() {
            cells.push(Cell::fold(&part));
        }
        Picture {
            extents_per_cell: u32::try_from(factor).unwrap_or(u32::MAX),
            cells,
        }
    }

    /// The picture with `factor` cells made one.
    #[must_use]
    pub fn folded(&self, factor: usize) -> Picture {
        let factor = factor.max(1);
        Picture {
            extents_per_cell: self.extents_per_cell.saturating_mul(factor as u32),
            cells: self.cells.chunks(factor).map(Cell::fold).collect(),
        }
    }
}

/// By how much each of several pictures must be folded to find room in `room`
/// cells: the largest ones first, so that small regions keep a cell for each
/// extent.
#[must_use]
pub fn fold_factors(lengths: &[usize], room: usize) -> Vec<usize> {
    let factors = |bound: usize| lengths.iter().map(move |len| len.div_ceil(bound).max(1));
    let mut bound = room.max(1);
    loop {
        let needed: usize = lengths
            .iter()
            .zip(factors(bound))
            .map(|(len, factor)| len.div_ceil(factor))
            .sum();
        if needed <= room || bound == 1 {
            return factors(bound).collect();
        }
        bound /= 2;
    }
}

/// How JSON shows a picture: one character for each cell.
#[derive(Serialize, Deserialize)]
struct Drawn {
    extents_per_cell: u32,
    states: String,
    sixteenths: String,
}

/// A text that is no picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a picture of a region")]
pub struct PictureError;

/// The digits of a population: one more than hexadecimal ones.
const DIGITS: u32 = Cell::PARTS as u32 + 1;

impl From<Picture> for Drawn {
    fn from(picture: Picture) -> Drawn {
        let digit = |cell: &Cell| char::from_digit(cell.sixteenths.into(), DIGITS).unwrap_or('?');
        Drawn {
            extents_per_cell: picture.extents_per_cell,
            states: picture.cells.iter().map(|c| c.state.letter()).collect(),
            sixteenths: picture.cells.iter().map(digit).collect(),
        }
    }
}

impl TryFrom<Drawn> for Picture {
    type Error = PictureError;

    fn try_from(drawn: Drawn) -> Result<Picture, PictureError> {
        if drawn.states.chars().count() != drawn.sixteenths.chars().count() {
            return Err(PictureError);
        }
        let cell = |(letter, digit): (char, char)| {
            let state = CellState::ALL.into_iter().find(|s| s.letter() == letter)?;
            let sixteenths = digit.to_digit(DIGITS)? as u8;
            Some(Cell { state, sixteenths })
        };
        let cells = drawn.states.chars().zip(drawn.sixteenths.chars());
        Ok(Picture {
            extents_per_cell: drawn.extents_per_cell,
            cells: cells.map(cell).collect::<Option<_>>().ok_or(PictureError)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const FULL: u64 = PAGES_PER_SUPERPAGE as u64;

    fn cells() -> impl Strategy<Value = Cell> {
        let states = prop::sample::select(CellState::ALL.to_vec());
        (states, 0..=FULL).prop_map(|(state, pages)| Cell::new(state, PageCount(pages)))
    }

    #[test]
    fn bytes_that_no_cell_has_are_empty_cells() {
        let all: Vec<Cell> = (0..=u8::MAX).map(Cell::decode).collect();
        let known = all.iter().filter(|c| **c != Cell::default()).count();
        assert_eq!(known, CellState::ALL.len() * 17 - 1);
    }

    #[test]
    fn what_json_cannot_mean_is_refused() {
        let read = |text: String| serde_json::from_str::<Picture>(&text);
        let text = |states, digits| {
            format!(r#"{{"extents_per_cell":1,"states":"{states}","sixteenths":"{digits}"}}"#)
        };
        assert_eq!(read(text("pr.", "g80")).unwrap().cells.len(), 3);
        for (states, digits) in [("pr", "g"), ("x", "0"), ("p", "h")] {
            assert!(read(text(states, digits)).is_err(), "{states} {digits}");
        }
    }

    #[test]
    fn small_pictures_are_folded_last() {
        assert_eq!(fold_factors(&[10, 1000, 3], 2000), [1, 1, 1]);
        assert_eq!(fold_factors(&[10, 1000, 3], 512), [1, 4, 1]);
        assert!(fold_factors(&[], 512).is_empty());
    }

    proptest! {
        #[test]
        fn a_cell_survives_the_page(cell in cells()) {
            prop_assert_eq!(Cell::decode(cell.encode()), cell);
        }

        #[test]
        fn nothing_and_everything_are_exact(pages in 0..=FULL) {
            let cell = Cell::new(CellState::Reserved, PageCount(pages));
            prop_assert_eq!(cell.sixteenths() == 0, pages == 0);
            prop_assert_eq!(cell.is_full(), pages == FULL);
            let exact = pages as f64 * 16.0 / FULL as f64;
            prop_assert!((f64::from(cell.sixteenths()) - exact).abs() <= 1.0);
        }

        #[test]
        fn a_picture_survives_json(cells in vec(cells(), 0..80), extents_per_cell: u32) {
            let picture = Picture { extents_per_cell, cells };
            let text = serde_json::to_string(&picture).unwrap();
            prop_assert_eq!(serde_json::from_str::<Picture>(&text).unwrap(), picture);
        }

        #[test]
        fn a_folded_cell_is_the_majority_and_the_mean(cells in vec(cells(), 1..40)) {
            let cell = Cell::fold(&cells);
            let votes = |state| cells.iter().filter(|c| c.state == state).count();
            prop_assert!(CellState::ALL.iter().all(|s| votes(*s) <= votes(cell.state)));
            let sum: u32 = cells.iter().map(|c| u32::from(c.sixteenths())).sum();
            let mean = f64::from(sum) / cells.len() as f64;
            prop_assert!((f64::from(cell.sixteenths()) - mean).abs() <= 1.0);
            prop_assert_eq!(cell.is_full(), cells.iter().all(|c| c.is_full()));
            prop_assert_eq!(cell.sixteenths() == 0, cells.iter().all(|c| c.sixteenths() == 0));
        }

        #[test]
        fn pictures_find_room(lengths in vec(0usize..3000, 0..20), room in 20usize..4000) {
            let factors = fold_factors(&lengths, room);
            let folded = |(len, factor): (&usize, &usize)| len.div_ceil(*factor);
            let needed: usize = lengths.iter().zip(&factors).map(folded).sum();
            prop_assert!(needed <= room);
            let unfolded = factors.iter().all(|factor| *factor == 1);
            prop_assert_eq!(unfolded, lengths.iter().sum::<usize>() <= room);
        }
    }
}
