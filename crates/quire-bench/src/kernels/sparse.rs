//! A sparse matrix, in compressed rows, times a vector.

use crate::kernels::Numbers;
use crate::kernels::access::{Recorder, load, store};

/// Elements of each row that are not zero.
const PER_ROW: usize = 8;

/// The matrix and both vectors. They lie one after the other, without a gap: first
/// what is floating-point, then where the elements are.
#[derive(Debug)]
pub struct Product<'a> {
    values: &'a mut [f64],
    vector: &'a mut [f64],
    result: &'a mut [f64],
    /// The column of each value.
    columns: &'a mut [u64],
    /// The first value of each row, and the end of the last row.
    begins: &'a mut [u64],
}

/// How many rows there are in `room` words, at least one.
pub const fn rows(room: usize) -> usize {
    let rows = room.saturating_sub(1) / (2 * PER_ROW + 3);
    if rows == 0 { 1 } else { rows }
}

/// How many words of floating-point numbers belong to so many rows.
pub const fn doubles(rows: usize) -> usize {
    rows * (PER_ROW + 2)
}

/// How many of `room` words all of it takes.
pub const fn words(room: usize) -> usize {
    rows(room) * (2 * PER_ROW + 3) + 1
}

impl<'a> Product<'a> {
    /// A matrix of `rows` rows and columns with elements at random places. `numbers`
    /// has as many as [`doubles`] says, `places` the rest of [`words`].
    pub fn new(rows: usize, numbers: &'a mut [f64], places: &'a mut [u64]) -> Product<'a> {
        let (values, vectors) = numbers.split_at_mut(rows * PER_ROW);
        let (vector, result) = vectors.split_at_mut(rows);
        let (columns, begins) = places.split_at_mut(rows * PER_ROW);
        let begins = &mut begins[..=rows];
        let mut random = Numbers::new(4);
        values.fill_with(|| random.unit());
        vector.fill_with(|| random.unit());
        for row in columns.chunks_exact_mut(PER_ROW) {
            row.fill_with(|| random.below(rows) as u64);
            row.sort_unstable();
        }
        for (row, begin) in begins.iter_mut().enumerate() {
            *begin = (row * PER_ROW) as u64;
        }
        Product {
            values,
            vector,
            result,
            columns,
            begins,
        }
    }

    /// Multiplies once.
    pub fn multiply<R: Recorder>(&mut self, recorder: &mut R) {
        let mut begin = load(self.begins, 0, recorder) as usize;
        for row in 0..self.result.len() {
            let end = load(self.begins, row + 1, recorder) as usize;
            let mut sum = 0.0;
            for at in begin..end {
                let column = load(self.columns, at, recorder) as usize;
                let value = load(self.values, at, recorder);
                sum += value * load(self.vector, column, recorder);
            }
            store(self.result, row, sum, recorder);
            begin = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::access::Silent;

    proptest! {
        #[test]
        fn it_is_the_product_of_the_whole_matrix(room in 1usize..900) {
            let rows = rows(room);
            let mut numbers = vec![0.0; doubles(rows)];
            let mut places = vec![0; words(room) - doubles(rows)];
            let mut product = Product::new(rows, &mut numbers, &mut places);
            product.multiply(&mut Silent);
            let mut dense = vec![0.0; rows * rows];
            for (at, column) in product.columns.iter().enumerate() {
                dense[at / PER_ROW * rows + *column as usize] += product.values[at];
            }
            for (row, found) in dense.chunks(rows).zip(product.result.iter()) {
                let terms = row.iter().zip(product.vector.iter());
                let expected: f64 = terms.map(|(a, x)| a * x).sum();
                prop_assert!((expected - found).abs() < 1e-12);
            }
        }
    }
}
