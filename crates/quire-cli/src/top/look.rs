//! What the screen can show: colours or none, Unicode or ASCII. The characters
//! alone say everything; colours make it easier to see.

use quire_core::stat::{Cell, CellState};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::border;

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// It may be coloured.
    pub colour: bool,
    /// It shows Unicode.
    pub unicode: bool,
}

/// What stands for each state in the legend.
pub const LEGEND: [(Cell, &str); 7] = [
    (cell(CellState::Promoted, 16), "promoted"),
    (cell(CellState::Whole, 16), "whole"),
    (cell(CellState::Whole, 0), "whole, not full"),
    (cell(CellState::Reserved, 8), "reserved"),
    (cell(CellState::Small, 8), "small folios"),
    (cell(CellState::Base, 8), "base pages"),
    (cell(CellState::Empty, 0), "empty"),
];

const fn cell(state: CellState, sixteenths: u8) -> Cell {
    Cell::of_sixteenths(state, sixteenths)
}

const ASCII_BORDER: border::Set<'static> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

impl Look {
    /// What the environment says: `NO_COLOR`, and the locale's character set.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Look {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        let unicode = locale.is_some_and(|locale| {
            let locale = locale.to_ascii_lowercase();
            locale.contains("utf-8") || locale.contains("utf8")
        });
        Look {
            colour: set("NO_COLOR").is_none(),
            unicode,
        }
    }

    /// The character of a cell.
    pub fn glyph(self, cell: Cell) -> char {
        let part = usize::from(cell.sixteenths());
        let full = usize::from(Cell::PARTS);
        match (cell.state, self.unicode) {
            (CellState::Promoted, true) => '█',
            (CellState::Promoted, false) => '#',
            (CellState::Whole, true) => ['□', '■'][part / full],
            (CellState::Whole, false) => ['w', 'W'][part / full],
            // Never as high as a promoted one.
            (CellState::Reserved, true) => ['▁', '▂', '▃', '▄', '▅', '▆', '▇'][part * 6 / full],
            (CellState::Reserved, false) => (b'0' + (part * 9 / full) as u8) as char,
            (CellState::Small, true) => ['▘', '▚', '▜'][part * 2 / full],
            (CellState::Small, false) => ['s', 'S'][part / full],
            (CellState::Base, true) => ['░', '▒', '▓'][part * 2 / full],
            (CellState::Base, false) => ['b', 'B'][part / full],
            (CellState::Empty, true) => '·',
            (CellState::Empty, false) => '.',
        }
    }

    /// The colour of a cell.
    pub fn cell_style(self, state: CellState) -> Style {
        self.coloured(match state {
            CellState::Promoted => Color::Green,
            CellState::Whole => Color::Cyan,
            CellState::Reserved => Color::Yellow,
            CellState::Small => Color::Blue,
            CellState::Base => Color::Magenta,
            CellState::Empty => Color::DarkGray,
        })
    }

    /// A bar of `part` of the whole (0 to 1), one character wide and `rows`
    /// high, from top to bottom. What is more than nothing shows.
    pub fn bar(self, part: f64, rows: usize) -> Vec<char> {
        let levels: [char; 9] = if self.unicode {
            [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
        } else {
            [' ', '.', ':', '-', '=', '+', '*', '%', '#']
        };
        let steps = levels.len() - 1;
        let height = (part.clamp(0.0, 1.0) * (rows * steps) as f64).ceil() as usize;
        let level = |row: usize| levels[height.saturating_sub(row * steps).min(steps)];
        (0..rows).rev().map(level).collect()
    }

    /// A colour, where there are colours.
    pub fn coloured(self, colour: Color) -> Style {
        if self.colour {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    /// What is wrong.
    pub fn alarm(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// The frame of a window over the rest.
    pub fn border(self) -> border::Set<'static> {
        if self.unicode {
            border::PLAIN
        } else {
            ASCII_BORDER
        }
    }

    /// The mark of the column by which a table is sorted.
    pub fn sort_mark(self, reversed: bool) -> char {
        match (self.unicode, reversed) {
            (true, false) => '▼',
            (true, true) => '▲',
            (false, false) => 'v',
            (false, true) => '^',
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const RICH: Look = Look {
        colour: true,
        unicode: true,
    };
    const POOR: Look = Look {
        colour: false,
        unicode: false,
    };

    fn look(variables: &[(&str, &str)]) -> Look {
        Look::from_environment(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_decides() {
        assert_eq!(look(&[("LANG", "de_DE.UTF-8")]), RICH);
        assert_eq!(look(&[("LANG", "C.utf8"), ("NO_COLOR", "")]), RICH);
        let poor = [("LANG", "de_DE.UTF-8"), ("LC_ALL", "C"), ("NO_COLOR", "1")];
        assert_eq!(look(&poor), POOR);
    }

    #[test]
    fn states_are_told_apart_without_colour() {
        for look in [RICH, POOR] {
            let mut seen = BTreeSet::new();
            for state in CellState::ALL {
                let glyphs: BTreeSet<char> = (0..=16).map(|n| look.glyph(cell(state, n))).collect();
                assert!(glyphs.iter().all(|glyph| seen.insert(*glyph)), "{state:?}");
            }
            if !look.unicode {
                assert!(seen.iter().all(char::is_ascii));
            }
        }
    }

    #[test]
    fn bars_grow_from_the_bottom() {
        assert_eq!(RICH.bar(0.0, 2), [' ', ' ']);
        assert_eq!(RICH.bar(0.001, 2), [' ', '▁']);
        assert_eq!(RICH.bar(0.75, 2), ['▄', '█']);
        assert_eq!(POOR.bar(1.0, 1), ['#']);
    }
}
