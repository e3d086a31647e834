//! The picture of `quire map`: the colours of a process's frames by address.
//!
//! A block of pixels, a cell, stands for a page, or for a power of two of pages where
//! there are too many; a cell of several pages has the mean of their colours. Rows
//! begin at multiples of their length, so pages that are as far apart as a row is long
//! lie one below the other. Rows in which no page is present are left out; a thin gap
//! shows where, and where a mapping begins.
//!
//! Drawing is pure: runs in, pixels out.

mod layout;
mod palette;

use std::collections::BTreeMap;
use std::fmt;

use quire_core::frames::colour::Colours;
use quire_core::frames::mapping::Mapped;
use quire_core::units::{AddrRange, PageCount, VirtAddr};

use layout::{GAP, Layout, RowKey};
use palette::{ABSENT, Colour, OUTSIDE, Palette};

/// A picture in rows from the top, three bytes for each pixel: red, green, blue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels in a row.
    pub width: u32,
    /// Rows of pixels.
    pub height: u32,
    /// The pixels.
    pub pixels: Vec<u8>,
    layout: Layout,
}

/// The cells of a row.
type Row = Vec<Cell>;

/// What is known of a cell while its pages are entered.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Sums over the pages.
    sum: [u64; 3],
    /// How many pages were entered.
    pages: u64,
    /// Whether a mapping has addresses here.
    is_mapped: bool,
}

impl Cell {
    fn enter(&mut self, colour: Colour) {
        self.pages += 1;
        for (sum, part) in self.sum.iter_mut().zip(colour) {
            *sum += u64::from(part);
        }
    }

    fn colour(&self) -> Colour {
        match self.is_mapped {
            _ if self.pages > 0 => self.sum.map(|sum| (sum / self.pages) as u8),
            true => ABSENT,
            false => OUTSIDE,
        }
    }
}

/// Draws the mappings of a process.
pub fn draw(mappings: &[Mapped], colours: &Colours) -> Picture {
    let layout = Layout::choose(mappings);
    paint(layout, &rows(layout, mappings, &Palette::new(colours)))
}

/// The cells of all rows that have a page.
fn rows(layout: Layout, mappings: &[Mapped], palette: &Palette<'_>) -> BTreeMap<RowKey, Row> {
    let empty = || vec![Cell::default(); layout.columns as usize];
    let mut rows: BTreeMap<RowKey, Row> = BTreeMap::new();
    for (number, mapped) in mappings.iter().enumerate() {
        for run in mapped.runs() {
            for n in 0..run.pages.0 {
                let at = run.address + PageCount(n).to_bytes();
                let row = rows.entry(layout.row(number, at)).or_insert_with(empty);
                row[layout.column(at)].enter(palette.of(run, n));
            }
        }
        mark(layout, number, mapped.range, &mut rows);
    }
    rows
}

/// Marks the cells of rows in which the mapping with a number has addresses.
fn mark(layout: Layout, number: usize, range: AddrRange, rows: &mut BTreeMap<RowKey, Row>) {
    let end = VirtAddr(range.end.0 - 1);
    let (first, last) = (layout.row(number, range.start), layout.row(number, end));
    for (key, row) in rows.range_mut(first..=last) {
        let from = if *key == first {
            layout.column(range.start)
        } else {
            0
        };
        let to = if *key == last {
            layout.column(end)
        } else {
            row.len() - 1
        };
        row[from..=to]
            .iter_mut()
            .for_each(|cell| cell.is_mapped = true);
    }
}

/// The pixels of the rows, one below the other.
fn paint(layout: Layout, rows: &BTreeMap<RowKey, Row>) -> Picture {
    let width = layout.width() as usize;
    let line_of = |colour: Colour| colour.repeat(width);
    let mut pixels = Vec::new();
    let mut last: Option<RowKey> = None;
    for (key, row) in rows {
        if last.is_some_and(|last| !last.is_followed_by(*key)) {
            pixels.extend(line_of(OUTSIDE).repeat(GAP as usize));
        }
        let cells = row.iter().map(Cell::colour);
        let line: Vec<u8> = cells
            .flat_map(|colour| colour.repeat(layout.side as usize))
            .collect();
        pixels.extend(line.repeat(layout.side as usize));
        last = Some(*key);
    }
    if pixels.is_empty() {
        pixels = line_of(OUTSIDE);
    }
    Picture {
        width: layout.width(),
        height: (pixels.len() / (3 * width)) as u32,
        pixels,
        layout,
    }
}

/// The picture as a PNG file.
pub fn encode(picture: &Picture) -> Result<Vec<u8>, png::EncodingError> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, picture.width, picture.height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&picture.pixels)?;
    writer.finish()?;
    Ok(file)
}

impl fmt::Display for Picture {
    /// Its size and its scale.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout {
            columns,
            side,
            group,
            ..
        } = self.layout;
        let pages = match group {
            1 => "a page".to_owned(),
            n => format!("{n} pages"),
        };
        write!(
            f,
            "{} x {} pixels: {pages} for each {side} x {side}, {} in a row",
            self.width,
            self.height,
            PageCount(u64::from(columns) * group).to_bytes()
        )
    }
}

#[cfg(test)]
mod tests;
