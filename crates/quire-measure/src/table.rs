//! Aligned columns: text to the left, numbers to the right.

use std::io::{self, Write};

/// Text without characters that a terminal would obey.
pub fn shown(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(plain).collect()
}

/// A table that is aligned when all its rows are known.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    left: usize,
}

impl Table {
    /// A table with this header (none where it is empty), of which the first `left` columns are text.
    pub fn new(left: usize, header: &[&str]) -> Table {
        let header: Vec<String> = header.iter().map(|text| (*text).to_owned()).collect();
        Table {
            rows: if header.is_empty() {
                Vec::new()
            } else {
                vec![header]
            },
            left,
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes the table, each line after `indent` blanks.
    pub fn write(&self, out: &mut impl Write, indent: usize) -> io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if column > 0 {
                    line.push_str("  ");
                }
                if column < self.left {
                    line.push_str(&format!("{cell:<width$}"));
                } else {
                    line.push_str(&format!("{cell:>width$}"));
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(1, &["NAME", "N"]);
        table.row(vec!["a".into(), "1000".into()]);
        let mut out = Vec::new();
        table.write(&mut out, 2).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "  NAME     N\n  a     1000\n"
        );
    }
}
