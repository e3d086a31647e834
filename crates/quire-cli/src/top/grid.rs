//! Which columns of a table fit on a line, and where.

/// A column of a table on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its number.
    pub column: usize,
    /// Its width in characters.
    pub width: usize,
}

/// Blanks between two columns.
pub const GAP: usize = 1;

/// The columns that are shown on lines of `room` characters: the first `fixed`
/// ones, and behind them as many as fit, from the left, but so far to the right
/// that column `wanted` is among them.
pub fn place(widths: &[usize], room: usize, fixed: usize, wanted: usize) -> Vec<Placed> {
    let placed = |column: usize| Placed {
        column,
        width: widths[column],
    };
    let fixed = fixed.min(widths.len());
    let mut first = fixed;
    loop {
        let order = (0..fixed).chain(first..widths.len());
        let mut used = 0;
        let shown: Vec<Placed> = order
            .map(placed)
            .take_while(|p| {
                used += p.width + GAP;
                used <= room + GAP
            })
            .collect();
        let is_shown = shown.iter().any(|p| p.column == wanted);
        // The last column has nothing behind it that could make way.
        if is_shown || first >= wanted || wanted >= widths.len() {
            return shown;
        }
        first += 1;
    }
}

/// The width of each column: that of its longest text.
pub fn widths(header: &[String], rows: &[Vec<String>]) -> Vec<usize> {
    let mut widths: Vec<usize> = header.iter().map(|text| text.chars().count()).collect();
    for row in rows {
        for (width, text) in widths.iter_mut().zip(row) {
            *width = (*width).max(text.chars().count());
        }
    }
    widths
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn columns(placed: &[Placed]) -> Vec<usize> {
        placed.iter().map(|p| p.column).collect()
    }

    #[test]
    fn the_wanted_column_is_shown() {
        let widths = [3, 3, 3, 3, 3];
        assert_eq!(columns(&place(&widths, 19, 1, 4)), [0, 1, 2, 3, 4]);
        assert_eq!(columns(&place(&widths, 18, 1, 0)), [0, 1, 2, 3]);
        assert_eq!(columns(&place(&widths, 11, 1, 4)), [0, 3, 4]);
        assert_eq!(columns(&place(&widths, 11, 1, 2)), [0, 1, 2]);
        assert!(place(&widths, 2, 1, 2).is_empty());
    }

    #[test]
    fn the_longest_text_makes_the_width() {
        let texts = |list: &[&str]| list.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            widths(&texts(&["PID", "C"]), &[texts(&["1", "äöü"])]),
            [3, 3]
        );
    }

    proptest! {
        #[test]
        fn no_line_is_too_long(
            widths in vec(1usize..12, 0..12), room in 0usize..90, fixed in 0usize..4, wanted in 0usize..14,
        ) {
            let shown = place(&widths, room, fixed, wanted);
            let used: usize = shown.iter().map(|p| p.width + GAP).sum();
            prop_assert!(used <= room + GAP);
            let columns = columns(&shown);
            prop_assert!(columns.is_sorted());
            prop_assert!(shown.iter().all(|p| p.width == widths[p.column]));
        }
    }
}
