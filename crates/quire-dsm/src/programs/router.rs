//! Routes wires on a circuit of standard cells (paper 003, section 7.3; after the idea of
//! LocusRoute). An array that everybody shares says how many wires run through each cell.
//! Members take the wires that begin in their part of the circuit, from left to right, try all
//! ways with at most two bends, choose the one through the least crowded cells, and count it in the
//! array. In a second pass each wire is taken out and laid anew.
//!
//! Cells of a column lie side by side, and wires that begin near each other have the same
//! member: a wire is in a few pages, which others want only where their parts meet.
//!
//! Members see what others lay meanwhile, or not yet, so the routes differ from run to run.
//! What is checked is that the array is what the routes make.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use super::{Team, Trouble, Word, share, whole_pages};
use crate::random::Numbers;

/// Cells of the circuit from left to right.
const COLUMNS: usize = 512;
/// Cells of the circuit from top to bottom.
const ROWS: usize = 64;
/// The ends of a wire are at most so many columns from each other.
const REACH: usize = 48;
/// How often each wire is laid.
const PASSES: usize = 2;

/// Words that it needs.
#[must_use]
pub const fn words(wires: usize) -> usize {
    whole_pages(COLUMNS * ROWS) + whole_pages(wires)
}

/// A wire: where its ends are, the left one first.
#[derive(Clone, Copy, Debug)]
struct Wire {
    from: (usize, usize),
    to: (usize, usize),
}

/// How a wire runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// Along its first row to a column, along that, and along its last row.
    Column(usize),
    /// Along its first column to a row, along that, and along its last column.
    Row(usize),
}

/// Lays so many wires.
///
/// # Errors
/// When the members cannot synchronise.
pub fn run(team: &dyn Team, memory: &[Word], wires: usize) -> Result<(), Trouble> {
    let (cells, routes) = memory.split_at(whole_pages(COLUMNS * ROWS));
    let wires = from_left(wires);
    let mine = share(team, wires.len());
    let (wires, routes) = (&wires[mine.clone()], &routes[mine]);
    for _ in 0..PASSES {
        for (wire, route) in wires.iter().zip(routes) {
            lay(cells, route, *wire);
        }
        team.barrier()?;
    }
    Ok(())
}

/// So many wires, those that begin farther left first.
fn from_left(wires: usize) -> Vec<Wire> {
    let mut wires: Vec<Wire> = (0..wires).map(Wire::of).collect();
    wires.sort_by_key(|wire| wire.from.0);
    wires
}

/// Lays a wire, for the first time or anew.
fn lay(cells: &[Word], word: &Word, wire: Wire) {
    if let Some(before) = Route::from_word(word.load(Ordering::Relaxed)) {
        for cell in wire.cells(before) {
            cells[cell].fetch_sub(1, Ordering::Relaxed);
        }
    }
    let crowd = |route: &Route| -> u64 {
        let cells = wire
            .cells(*route)
            .map(|cell| cells[cell].load(Ordering::Relaxed));
        cells.sum()
    };
    // A wire has one way at least.
    let best = wire
        .routes()
        .min_by_key(crowd)
        .unwrap_or(Route::Column(wire.from.0));
    for cell in wire.cells(best) {
        cells[cell].fetch_add(1, Ordering::Relaxed);
    }
    word.store(best.to_word(), Ordering::Relaxed);
}

impl Wire {
    /// The ends of a wire by its number.
    fn of(number: usize) -> Wire {
        let mut numbers = Numbers(number as u64);
        let left = numbers.below(COLUMNS - REACH);
        let right = left + numbers.below(REACH);
        Wire {
            from: (left, numbers.below(ROWS)),
            to: (right, numbers.below(ROWS)),
        }
    }

    fn routes(self) -> impl Iterator<Item = Route> {
        let columns = (self.from.0..=self.to.0).map(Route::Column);
        columns.chain(between(self.from.1, self.to.1).map(Route::Row))
    }

    /// The cells through which it runs; those where it bends count twice.
    fn cells(self, route: Route) -> impl Iterator<Item = usize> {
        let ((x1, y1), (x2, y2)) = (self.from, self.to);
        let (first, middle, last) = match route {
            Route::Column(x) => (
                (x1..=x, y1..=y1),
                (x..=x, between(y1, y2)),
                (x..=x2, y2..=y2),
            ),
            Route::Row(y) => (
                (x1..=x1, between(y1, y)),
                (x1..=x2, y..=y),
                (x2..=x2, between(y, y2)),
            ),
        };
        let cells = |(columns, rows): (RangeInclusive<usize>, RangeInclusive<usize>)| {
            columns.flat_map(move |x| rows.clone().map(move |y| x * ROWS + y))
        };
        [first, middle, last].into_iter().flat_map(cells)
    }
}

fn between(a: usize, b: usize) -> RangeInclusive<usize> {
    a.min(b)..=a.max(b)
}

impl Route {
    /// A number above 0.
    fn to_word(self) -> u64 {
        match self {
            Route::Column(x) => 1 + 2 * x as u64,
            Route::Row(y) => 2 + 2 * y as u64,
        }
    }

    fn from_word(word: u64) -> Option<Route> {
        let at = (word.checked_sub(1)? / 2) as usize;
        match word % 2 {
            1 => Some(Route::Column(at)),
            _ => Some(Route::Row(at)),
        }
    }
}

/// Counts anew how many wires run through each cell.
///
/// # Errors
/// Which wire or cell is wrong.
pub fn check(memory: &[Word], wires: usize) -> Result<(), Trouble> {
    let (cells, routes) = memory.split_at(whole_pages(COLUMNS * ROWS));
    let mut counted = vec![0; COLUMNS * ROWS];
    for (number, (wire, word)) in from_left(wires).into_iter().zip(routes).enumerate() {
        let route = Route::from_word(word.load(Ordering::Relaxed));
        let route = route.filter(|route| wire.routes().any(|possible| possible == *route));
        let Some(route) = route else {
            return Err(Trouble::Wrong(format!("wire {number} has no route")));
        };
        wire.cells(route).for_each(|cell| counted[cell] += 1);
    }
    let is_wrong = |cell: &usize| cells[*cell].load(Ordering::Relaxed) != counted[*cell];
    match (0..counted.len()).find(is_wrong) {
        Some(cell) => Err(Trouble::Wrong(format!(
            "row {}, column {}: {} wires instead of {}",
            cell % ROWS,
            cell / ROWS,
            cells[cell].load(Ordering::Relaxed),
            counted[cell]
        ))),
        None => Ok(()),
    }
}
