//! The product of two matrices. Each member computes some rows of the result (paper 003,
//! section 7.3), so that nobody waits for anybody before the end.
//!
//! The factors have small whole numbers, so that the product is exact. It is checked by a
//! third factor, a column: whether (A B) x is A (B x).

use super::{Numbers, Team, Trouble, Word, read, share, whole_pages, write};

/// Columns of the second factor that are used at once, so that they stay in the cache.
const BLOCK: usize = 64;

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
    let mut factor = vec![0.0; rows * rows];
    read(b, &mut factor);
    let (mut row_of_a, mut row_of_c) = (vec![0.0; rows], vec![0.0; rows]);
    for row in mine {
        let at = row * rows..(row + 1) * rows;
        read(&a[at.clone()], &mut row_of_a);
        multiply(&row_of_a, &factor, &mut row_of_c);
        write(&c[at], &row_of_c);
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

/// A row times a matrix.
fn multiply(row: &[f64], matrix: &[f64], product: &mut [f64]) {
    product.fill(0.0);
    let columns = row.len();
    for first in (0..columns).step_by(BLOCK) {
        let block = first..columns.min(first + BLOCK);
        for (number, of_matrix) in row.iter().zip(matrix.chunks_exact(columns)) {
            let sums = product[block.clone()].iter_mut();
            for (sum, other) in sums.zip(&of_matrix[block.clone()]) {
                *sum += number * other;
            }
        }
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
