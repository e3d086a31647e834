//! Where a page lies in the picture: how large cells are, how many pages each stands
//! for, and how many of them make a row, so that the picture has a bounded size.

use quire_core::frames::mapping::{Mapped, Run};
use quire_core::units::{BASE_PAGE, VirtAddr};

/// No picture has more pixels.
pub const MOST_PIXELS: u64 = 4_000_000;
/// Lines of pixels between rows that do not follow each other.
pub const GAP: u32 = 2;
/// Columns and sides of cells, from few pages to many: rows become longer before cells
/// become small.
const SHAPES: [(u32, u32); 5] = [(64, 8), (128, 8), (256, 8), (512, 4), SMALL];
const SMALL: (u32, u32) = (1024, 2);
/// As powers of two: so many pages a cell stands for before mappings share rows.
const MOST_GROUPED: u32 = 12;
/// With so many, a few rows hold the whole address space.
const ALL_GROUPED: u32 = 26;

/// How pages become cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Cells in a row.
    pub columns: u32,
    /// Pixels along a side of a cell.
    pub side: u32,
    /// Pages that a cell stands for, a power of two.
    pub group: u64,
    /// Whether each mapping has rows of its own.
    is_apart: bool,
}

/// Names a row; in the order of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowKey {
    /// The mapping, where each has rows of its own.
    mapping: usize,
    /// The number of the row in the address space.
    number: u64,
}

impl RowKey {
    /// Whether the other row continues this one.
    pub fn is_followed_by(self, next: RowKey) -> bool {
        self.mapping == next.mapping && self.number + 1 == next.number
    }
}

impl Layout {
    /// The first layout, from large cells to small ones and from few pages to many, in
    /// which the picture is small enough.
    pub fn choose(mappings: &[Mapped]) -> Layout {
        let mut candidates = Layout::candidates();
        let chosen = candidates.find(|layout| layout.is_enough(mappings));
        chosen.unwrap_or(Layout::of(SMALL, ALL_GROUPED, false))
    }

    fn candidates() -> impl Iterator<Item = Layout> {
        let single = SHAPES.into_iter().map(|shape| Layout::of(shape, 0, true));
        let grouped = (1..=MOST_GROUPED).map(|power| Layout::of(SMALL, power, true));
        let shared = (0..=ALL_GROUPED).map(|power| Layout::of(SMALL, power, false));
        single.chain(grouped).chain(shared)
    }

    fn of((columns, side): (u32, u32), power: u32, is_apart: bool) -> Layout {
        Layout {
            columns,
            side,
            group: 1 << power,
            is_apart,
        }
    }

    /// Whether the picture is neither too large nor much taller than wide.
    fn is_enough(self, mappings: &[Mapped]) -> bool {
        let (width, height) = (u64::from(self.width()), self.height(mappings));
        height <= 2 * width && width * height <= MOST_PIXELS
    }

    /// Pixels in a row.
    pub fn width(self) -> u32 {
        self.columns * self.side
    }

    /// Lines of pixels of the whole picture.
    fn height(self, mappings: &[Mapped]) -> u64 {
        let mut last: Option<RowKey> = None;
        let (mut rows, mut gaps) = (0, 0);
        for (mapping, run) in runs(mappings) {
            let (from, to) = self.rows_of(mapping, run);
            let is_begun = last == Some(from);
            let is_next = last.is_none_or(|last| is_begun || last.is_followed_by(from));
            rows += to.number - from.number + u64::from(!is_begun);
            gaps += u64::from(!is_next);
            last = Some(to);
        }
        rows * u64::from(self.side) + gaps * u64::from(GAP)
    }

    /// The first and the last row of a run.
    fn rows_of(self, mapping: usize, run: &Run) -> (RowKey, RowKey) {
        let end = VirtAddr(run.end().0 - BASE_PAGE);
        (self.row(mapping, run.address), self.row(mapping, end))
    }

    /// The row of an address.
    pub fn row(self, mapping: usize, at: VirtAddr) -> RowKey {
        RowKey {
            mapping: if self.is_apart { mapping } else { 0 },
            number: at.0 / self.cell_bytes() / u64::from(self.columns),
        }
    }

    /// The place of an address in its row.
    pub fn column(self, at: VirtAddr) -> usize {
        (at.0 / self.cell_bytes() % u64::from(self.columns)) as usize
    }

    fn cell_bytes(self) -> u64 {
        self.group * BASE_PAGE
    }
}

/// All runs, each with the number of its mapping.
fn runs(mappings: &[Mapped]) -> impl Iterator<Item = (usize, &Run)> {
    let numbered = mappings.iter().enumerate();
    numbered.flat_map(|(number, mapped)| mapped.runs().iter().map(move |run| (number, run)))
}
