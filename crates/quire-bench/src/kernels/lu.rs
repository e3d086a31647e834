//! LU factorisation of a dense square matrix, in place, with partial pivoting.

use crate::kernels::Numbers;
use crate::kernels::access::{Recorder, load, store};

/// What the numbers of a matrix follow from.
const SEED: u64 = 2;

/// A matrix, row after row.
#[derive(Debug)]
pub struct Matrix<'a> {
    values: &'a mut [f64],
    dim: usize,
    /// For each column, the row that was swapped to the diagonal.
    pivots: Vec<usize>,
}

fn dim(room: usize) -> usize {
    room.isqrt().max(1)
}

/// How many of `room` words the largest square matrix takes.
pub fn words(room: usize) -> usize {
    dim(room) * dim(room)
}

impl Matrix<'_> {
    /// The largest matrix in `room`.
    pub fn new(room: &mut [f64]) -> Matrix<'_> {
        let pivots = vec![0; dim(room.len())];
        Matrix::with_pivots(room, pivots)
    }

    /// The same with pivots that were kept: one for each row.
    pub fn with_pivots(room: &mut [f64], pivots: Vec<usize>) -> Matrix<'_> {
        let dim = dim(room.len());
        Matrix {
            values: &mut room[..dim * dim],
            dim,
            pivots,
        }
    }

    /// The pivots, to be kept.
    pub fn into_pivots(self) -> Vec<usize> {
        self.pivots
    }

    /// The matrix times a vector, by its factors.
    pub fn times(&self, vector: &[f64]) -> Vec<f64> {
        let rows = || self.values.chunks_exact(self.dim).enumerate();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let upper: Vec<f64> = rows()
            .map(|(n, row)| dot(&row[n..], &vector[n..]))
            .collect();
        let lower = |(n, row): (usize, &[f64])| upper[n] + dot(&row[..n], &upper[..n]);
        let mut product: Vec<f64> = rows().map(lower).collect();
        for (row, pivot) in self.pivots.iter().enumerate().rev() {
            product.swap(row, *pivot);
        }
        product
    }

    /// What [`fill`](Matrix::fill) makes of a matrix of so many rows, times a vector.
    pub fn filled_times(vector: &[f64]) -> Vec<f64> {
        let mut numbers = Numbers::new(SEED);
        let row = |_| vector.iter().map(|x| x * numbers.unit()).sum();
        (0..vector.len()).map(row).collect()
    }

    /// Gives every element the value that it had at the beginning.
    pub fn fill<R: Recorder>(&mut self, recorder: &mut R) {
        let mut numbers = Numbers::new(SEED);
        for at in 0..self.values.len() {
            store(self.values, at, numbers.unit(), recorder);
        }
    }

    /// Puts both factors in the place of the matrix: below the diagonal one whose
    /// diagonal is 1, the other from the diagonal on.
    pub fn factorise<R: Recorder>(&mut self, recorder: &mut R) {
        for column in 0..self.dim {
            let pivot = self.largest_from(column, recorder);
            self.pivots[column] = pivot;
            self.swap_rows(column, pivot, recorder);
            self.eliminate(column, recorder);
        }
    }

    /// The row from the diagonal on with the largest element of a column.
    fn largest_from<R: Recorder>(&self, column: usize, recorder: &mut R) -> usize {
        let mut most = (0.0, column);
        for row in column..self.dim {
            let size = load(self.values, row * self.dim + column, recorder).abs();
            if size > most.0 {
                most = (size, row);
            }
        }
        most.1
    }

    fn swap_rows<R: Recorder>(&mut self, one: usize, other: usize, recorder: &mut R) {
        if one == other {
            return;
        }
        for column in 0..self.dim {
            let (at, to) = (one * self.dim + column, other * self.dim + column);
            let value = load(self.values, at, recorder);
            let swapped = load(self.values, to, recorder);
            store(self.values, at, swapped, recorder);
            store(self.values, to, value, recorder);
        }
    }

    /// Subtracts multiples of the row with the pivot from those below it.
    fn eliminate<R: Recorder>(&mut self, column: usize, recorder: &mut R) {
        let (above, below) = self.values.split_at_mut((column + 1) * self.dim);
        let pivot_row = &above[column * self.dim..];
        let pivot = load(pivot_row, column, recorder);
        if pivot == 0.0 {
            return;
        }
        for row in below.chunks_exact_mut(self.dim) {
            let factor = load(row, column, recorder) / pivot;
            store(row, column, factor, recorder);
            for at in column + 1..self.dim {
                let value = load(row, at, recorder) - factor * load(pivot_row, at, recorder);
                store(row, at, value, recorder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::access::Silent;

    /// The product of both factors, with its rows where they were at the beginning.
    fn product(matrix: &Matrix) -> Vec<f64> {
        let dim = matrix.dim;
        let value = |row: usize, column: usize| matrix.values[row * dim + column];
        let element = |row: usize, column: usize| -> f64 {
            let terms = (0..=row.min(column)).map(|k| {
                let lower = if k == row { 1.0 } else { value(row, k) };
                lower * value(k, column)
            });
            terms.sum()
        };
        let places = (0..dim).flat_map(|row| (0..dim).map(move |column| (row, column)));
        let mut product: Vec<f64> = places.map(|(r, c)| element(r, c)).collect();
        for (column, pivot) in matrix.pivots.iter().enumerate().rev() {
            for at in 0..dim {
                product.swap(column * dim + at, pivot * dim + at);
            }
        }
        product
    }

    proptest! {
        #[test]
        fn the_factors_make_the_matrix(
            dim in 1usize..14,
            values in prop::collection::vec(-4i8..5, 13 * 13),
        ) {
            // Small whole numbers: many pivots are equal, many matrices singular.
            let mut room: Vec<f64> = values[..dim * dim].iter().map(|v| f64::from(*v)).collect();
            let before = room.clone();
            let mut matrix = Matrix::new(&mut room);
            matrix.factorise(&mut Silent);
            let after = product(&matrix);
            for (a, b) in after.iter().zip(&before) {
                prop_assert!((a - b).abs() < 1e-9, "{after:?}");
            }
        }
    }

    #[test]
    fn the_factors_times_a_vector_are_the_matrix_times_it() {
        let mut room = vec![0.0; 30 * 30];
        let mut matrix = Matrix::new(&mut room);
        matrix.fill(&mut Silent);
        matrix.factorise(&mut Silent);
        let vector: Vec<f64> = (0..30).map(|n| f64::from(n) - 11.0).collect();
        let (found, expected) = (matrix.times(&vector), Matrix::filled_times(&vector));
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-9, "{a} {b}");
        }
    }

    #[test]
    fn a_pass_begins_with_the_same_matrix() {
        let mut room = vec![0.0; 30 * 30 + 5];
        let mut matrix = Matrix::new(&mut room);
        matrix.fill(&mut Silent);
        let before = matrix.values.to_vec();
        matrix.factorise(&mut Silent);
        assert_ne!(matrix.values, before);
        let largest = |at: usize| {
            matrix.values[at..]
                .iter()
                .fold(0.0f64, |m, v| m.max(v.abs()))
        };
        assert!(largest(0) < 100.0, "factors stay small");
        matrix.fill(&mut Silent);
        assert_eq!(matrix.values, before);
    }
}
