//! Matrix multiplication, row by row and by columns (paper 001).

use std::hint::black_box;

use anyhow::Result;

use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::worker::{Setup, seconds};

/// Both orders of the loops.
pub fn run(setup: &Setup) -> Result<Sample> {
    let dim = setup.size(2048, 256);
    let bytes = dim * dim * size_of::<f64>();
    let mut blocks = [
        setup.memory(bytes)?,
        setup.memory(bytes)?,
        setup.memory(bytes)?,
    ];
    let [a, b, c] = blocks.each_mut().map(|block| block.doubles());
    for (i, (x, y)) in a.iter_mut().zip(b.iter_mut()).enumerate() {
        (*x, *y) = ((i % 7) as f64, (i % 5) as f64);
    }
    setup.sleep(1000);
    let mut sample = Sample::default();
    sample.put("ikj_s", seconds(|| by_rows(a, b, c, dim)));
    sample.put("ijk_s", seconds(|| by_columns(a, b, c, dim / 2)));
    let huge = procfs::huge_mapped(std::process::id());
    sample.put_some("huge_mib", huge.map(|bytes| bytes as f64 / MIB));
    Ok(sample)
}

/// Loops i, k, j: everything along rows.
fn by_rows(a: &[f64], b: &[f64], c: &mut [f64], dim: usize) {
    for (a_row, c_row) in a.chunks_exact(dim).zip(c.chunks_exact_mut(dim)) {
        c_row.fill(0.0);
        for (x, b_row) in a_row.iter().zip(b.chunks_exact(dim)) {
            for (sum, y) in c_row.iter_mut().zip(b_row) {
                *sum += x * y;
            }
        }
    }
    black_box(c);
}

/// Loops i, j, k: the inner loop goes down a column of `b`.
fn by_columns(a: &[f64], b: &[f64], c: &mut [f64], dim: usize) {
    for (a_row, c_row) in a.chunks_exact(dim).zip(c.chunks_exact_mut(dim)).take(dim) {
        for (j, sum) in c_row.iter_mut().enumerate() {
            let column = b[j..].iter().step_by(dim);
            *sum = a_row.iter().zip(column).map(|(x, y)| x * y).sum();
        }
    }
    black_box(c);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_multiply() {
        let (a, b) = ([1., 2., 3., 4.], [5., 6., 7., 8.]);
        let mut c = [0.; 4];
        by_rows(&a, &b, &mut c, 2);
        assert_eq!(c, [19., 22., 43., 50.]);
        c.fill(0.0);
        by_columns(&a, &b, &mut c, 2);
        assert_eq!(c, [19., 22., 43., 50.]);
    }
}
