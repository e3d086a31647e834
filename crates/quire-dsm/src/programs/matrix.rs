//! The product of two matrices. Each member computes some rows of the result (paper 003,
//! section 7.3), so that nobody waits for anybody before the end.
//!
//! The factors have small whole numbers, so that the product is exact. It is checked by a
//! third factor, a column: whether (A B) x is A (B x).

use super::{Numbers, Team, Trouble, Word, read, share, whole_pages, write};

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
    for row in mine.clone() {
        let at = row * rows..(row + 1) * rows;
        write(&a[at.clone()], &numbers(row as u64, rows));
        write(&b[at], &numbers((rows + row) as u64, rows));
    }
    team.barrier()?;
    let panels = panels(b, rows);
    for first in mine.clone().step_by(ROWS) {
        let some = first..mine.end.min(first + ROWS);
        let at = some.start * rows..some.end * rows;
        let mut factor = vec![0.0; at.len()];
        read(&a[at.clone()], &mut factor);
        write(&c[at], &product(&factor, &panels, rows));
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

/// A matrix by columns: [`COLUMNS`] of the first row, the same of all other rows, and so on with
/// the next. Where the last columns are fewer, zeros follow.
fn panels(matrix: &[Word], rows: usize) -> Vec<f64> {
    let mut panels = vec![0.0; rows * rows.next_multiple_of(COLUMNS)];
    for (number, row) in matrix.chunks_exact(rows).take(rows).enumerate() {
        for (panel, words) in row.chunks(COLUMNS).enumerate() {
            let at = (panel * rows + number) * COLUMNS;
            read(words, &mut panels[at..at + COLUMNS]);
        }
    }
    panels
}

/// Some rows times a matrix.
fn product(factor: &[f64], panels: &[f64], rows: usize) -> Vec<f64> {
    let mut product = vec![0.0; factor.len()];
    for (number, panel) in panels.chunks_exact(rows * COLUMNS).enumerate() {
        let first = number * COLUMNS;
        let columns = first..rows.min(first + COLUMNS);
        for (row, sums) in factor
            .chunks_exact(rows)
            .zip(product.chunks_exact_mut(rows))
        {
            multiply(row, panel, &mut sums[columns.clone()]);
        }
    }
    product
}

/// A row times some columns.
fn multiply(row: &[f64], panel: &[f64], product: &mut [f64]) {
    let mut sums = [0.0; COLUMNS];
    for (number, others) in row.iter().zip(panel.chunks_exact(COLUMNS)) {
        for (sum, other) in sums.iter_mut().zip(others) {
            *sum += number * other;
        }
    }
    product.copy_from_slice(&sums[..product.len()]);
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
