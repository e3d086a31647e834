//! The product of two matrices. Each member computes some rows of the result (paper 003,
//! section 7.3), so that nobody waits for anybody before the end. It begins with what the rows
//! of the second factor give that it has written itself, and a thread gets the others meanwhile.
//!
//! The factors have small whole numbers, so that the product is exact. It is checked by a
//! third factor, a column: whether (A B) x is A (B x).

use std::ops::Range;

use quire_core::dsm::message::Access;

use super::{Team, Trouble, Word, Writing, read, share, share_of, whole_pages, write};
use crate::random::Numbers;

/// Columns of the second factor that lie together and are used at once, by so many rows of the
/// first, so that they stay in the cache.
const COLUMNS: usize = 64;
const ROWS: usize = 16;

/// Words that it needs.
#[must_use]
pub const fn words(rows: usize) -> usize {
    3 * whole_pages(rows * rows)
}

/// Multiplies two matrices of so many rows.
///
/// # Errors
/// When the members cannot synchronise.
pub fn run(team: &dyn Team, memory: &[Word], rows: usize) -> Result<(), Trouble> {
    let [a, b, c] = parts(memory, rows);
    let mine = share(team, rows);
    let own = |matrix| some_rows(matrix, &mine, rows);
    let mut writing = [a, b].map(|factor| Writing::of(team, own(factor)));
    for row in mine.clone() {
        let at = row * rows..(row + 1) * rows;
        let written = at.start - mine.start * rows;
        writing.iter_mut().for_each(|factor| factor.reach(written));
        write(&a[at.clone()], &numbers(row as u64, rows));
        write(&b[at], &numbers((rows + row) as u64, rows));
    }
    // Before others read them, which takes them from here.
    let most = (0..team.size())
        .map(|it| share_of(team, it, rows).len())
        .max();
    let mut room = vec![0.0; most.unwrap_or(0) * rows.next_multiple_of(COLUMNS)];
    let first = panels(own(b), rows, &mut room).len();
    team.barrier()?;
    let others = (1..team.size()).map(|next| (team.me() + next) % team.size());
    let others: Vec<_> = others.map(|it| share_of(team, it, rows)).collect();
    for theirs in &others {
        team.will_need(some_rows(b, theirs, rows), Access::Read);
    }
    let mut product = Product {
        factor: own(a),
        result: own(c),
        writing: Writing::of(team, own(c)),
        sums: vec![0.0; mine.len() * rows],
        rows,
    };
    product.add(&mine, &room[..first], others.is_empty());
    for (left, theirs) in (0..others.len()).rev().zip(&others) {
        let panels = panels(some_rows(b, theirs, rows), rows, &mut room);
        product.add(theirs, panels, left == 0);
    }
    team.barrier()
}

/// Both factors and the product.
fn parts(memory: &[Word], rows: usize) -> [&[Word]; 3] {
    let part = whole_pages(rows * rows);
    let (a, rest) = memory.split_at(part);
    let (b, c) = rest.split_at(part);
    [a, b, c]
}

/// Some rows of a matrix.
fn some_rows<'a>(matrix: &'a [Word], some: &Range<usize>, rows: usize) -> &'a [Word] {
    &matrix[some.start * rows..some.end * rows]
}

/// Some rows of a matrix by columns: [`COLUMNS`] of the first row, the same of all other rows, and
/// so on with the next. Where the last columns are fewer, something follows that is never used. They
/// are put into the same room each time, because new memory has to be zeroed first.
fn panels<'a>(some: &[Word], rows: usize, room: &'a mut [f64]) -> &'a [f64] {
    let count = some.len() / rows;
    let panels = &mut room[..count * rows.next_multiple_of(COLUMNS)];
    for (number, row) in some.chunks_exact(rows).enumerate() {
        for (panel, words) in row.chunks(COLUMNS).enumerate() {
            let at = (panel * count + number) * COLUMNS;
            read(words, &mut panels[at..at + words.len()]);
        }
    }
    panels
}

/// Some rows of the product.
struct Product<'a> {
    /// The same rows of the first factor.
    factor: &'a [Word],
    /// Where the product is to be.
    result: &'a [Word],
    writing: Writing<'a>,
    /// What it is so far.
    sums: Vec<f64>,
    /// How many rows the matrices have.
    rows: usize,
}

impl Product<'_> {
    /// Adds what some rows of the second factor give; after the last ones, this is the result.
    fn add(&mut self, some: &Range<usize>, panels: &[f64], last: bool) {
        let mut factor = vec![0.0; ROWS * self.rows];
        for (block, sums) in self.sums.chunks_mut(ROWS * self.rows).enumerate() {
            let first = block * ROWS * self.rows;
            let at = first..first + sums.len();
            let factor = &mut factor[..sums.len()];
            read(&self.factor[at.clone()], factor);
            add_product((factor, some), panels, sums, self.rows);
            if last {
                self.writing.reach(first);
                write(&self.result[at], sums);
            }
        }
    }
}

/// Adds to some rows of the product what some columns of the first factor give with the same
/// rows of the second.
fn add_product(
    (factor, some): (&[f64], &Range<usize>),
    panels: &[f64],
    sums: &mut [f64],
    rows: usize,
) {
    let panels = panels.chunks_exact(some.len().max(1) * COLUMNS);
    for (number, panel) in panels.enumerate() {
        let first = number * COLUMNS;
        let to = first..rows.min(first + COLUMNS);
        for (row, sums) in factor.chunks_exact(rows).zip(sums.chunks_exact_mut(rows)) {
            multiply(&row[some.clone()], panel, &mut sums[to.clone()]);
        }
    }
}

/// Adds a row times some columns.
fn multiply(row: &[f64], panel: &[f64], product: &mut [f64]) {
    let mut sums = [0.0; COLUMNS];
    for (number, others) in row.iter().zip(panel.chunks_exact(COLUMNS)) {
        for (sum, other) in sums.iter_mut().zip(others) {
            *sum += number * other;
        }
    }
    for (to, sum) in product.iter_mut().zip(sums) {
        *to += sum;
    }
}

/// A row of a factor.
fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut numbers = Numbers(seed);
    (0..count).map(|_| numbers.below(17) as f64 - 8.0).collect()
}

/// A matrix in shared memory times a column.
fn times_column(matrix: &[Word], column: &[f64]) -> Vec<f64> {
    let mut row = vec![0.0; column.len()];
    let rows = matrix.chunks_exact(column.len()).take(column.len());
    rows.map(|words| {
        read(words, &mut row);
        row.iter().zip(column).map(|(a, b)| a * b).sum()
    })
    .collect()
}

/// Whether the product is right.
///
/// # Errors
/// Which row is wrong.
pub fn check(memory: &[Word], rows: usize) -> Result<(), Trouble> {
    let [a, b, c] = parts(memory, rows);
    let column = numbers(u64::MAX, rows);
    let expected = times_column(a, &times_column(b, &column));
    let found = times_column(c, &column);
    let is_wrong = |row: &usize| expected[*row] != found[*row];
    match (0..rows).find(is_wrong) {
        Some(row) => Err(Trouble::Wrong(format!("row {row} of the product is wrong"))),
        None => Ok(()),
    }
}
