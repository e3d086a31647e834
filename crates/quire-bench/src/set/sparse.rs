//! A sparse matrix times a vector, as SciMark2 has it: compressed rows, in each of which
//! as many elements lie at equal distances.

use anyhow::{Result, ensure};
use quire_core::units::Bytes;

use crate::kernels::Numbers;
use crate::set::Work;
use crate::set::numeric::batch;
use crate::set::size::Size;

/// Elements of a row where the size follows from the cache.
const PER_ROW: usize = 8;

/// The matrix and both vectors.
pub struct Product {
    values: Vec<f64>,
    /// The column of each value.
    columns: Vec<u32>,
    /// The first value of each row, and the end of the last row.
    begins: Vec<u32>,
    vector: Vec<f64>,
    result: Vec<f64>,
}

/// Bytes of a row with so many elements: these, their columns, a number of each vector,
/// and where the row begins.
const fn bytes(per_row: usize) -> usize {
    per_row * (8 + 4) + 2 * 8 + 4
}

/// Rows, and elements of each.
fn shape(size: Size, cache: Bytes) -> (usize, usize) {
    match size {
        Size::Small => (1000, 5),
        Size::Large => (100_000, 10),
        _ => {
            let room = size.choose(cache, cache, cache);
            let rows = room.0 as usize / bytes(PER_ROW);
            (rows.max(PER_ROW), PER_ROW)
        }
    }
}

impl Product {
    /// A matrix and a vector of numbers between 0 and 1.
    pub fn new(size: Size, cache: Bytes) -> Product {
        let (rows, per_row) = shape(size, cache);
        let mut numbers = Numbers::new(6);
        let mut some = |count| (0..count).map(|_| numbers.unit()).collect();
        let column = |row: usize, n: usize| n * (row / per_row).max(1);
        let columns = (0..rows).flat_map(|row| (0..per_row).map(move |n| column(row, n) as u32));
        Product {
            values: some(rows * per_row),
            columns: columns.collect(),
            begins: (0..=rows).map(|row| (row * per_row) as u32).collect(),
            vector: some(rows),
            result: vec![0.0; rows],
        }
    }
}

impl Work for Product {
    fn batch(&self) -> u32 {
        batch(self.values.len() * 3)
    }

    fn operate(&mut self) -> Result<()> {
        for (row, result) in self.result.iter_mut().enumerate() {
            let mut sum = 0.0;
            for at in self.begins[row] as usize..self.begins[row + 1] as usize {
                sum += self.values[at] * self.vector[self.columns[at] as usize];
            }
            *result = sum;
        }
        Ok(())
    }

    /// Goes over the elements from the last one on, and finds the row of each.
    fn check(&mut self) -> Result<()> {
        let mut expected = vec![0.0; self.result.len()];
        for (at, value) in self.values.iter().enumerate().rev() {
            let row = self.begins.partition_point(|begin| *begin as usize <= at) - 1;
            expected[row] += value * self.vector[self.columns[at] as usize];
        }
        for (row, (found, expected)) in self.result.iter().zip(&expected).enumerate() {
            ensure!(
                (found - expected).abs() < 1e-12,
                "row {row} is {found} and not {expected}"
            );
        }
        Ok(())
    }

    fn spoil(&mut self) -> Result<()> {
        let middle = self.result.len() / 2;
        self.result[middle] += 1e-9;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_elements_inside_the_matrix() {
        for size in Size::ALL {
            let product = Product::new(size, Bytes(100_000));
            let rows = product.result.len() as u32;
            assert!(product.columns.iter().all(|column| *column < rows));
            let used = product.values.len() * 12 + product.result.len() * 20;
            if Size::BY_CACHE.contains(&size) {
                let room = size.choose(Bytes(0), Bytes(0), Bytes(100_000)).0 as f64;
                assert!((0.99..=1.0).contains(&(used as f64 / room)), "{size:?}");
            }
        }
        let small = Product::new(Size::Small, Bytes(0));
        assert_eq!((small.result.len(), small.values.len()), (1000, 5000));
        let large = Product::new(Size::Large, Bytes(0));
        assert_eq!(
            (large.result.len(), large.values.len()),
            (100_000, 1_000_000)
        );
    }
}
