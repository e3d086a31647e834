//! Successive over-relaxation on a square grid, in place: each point goes beyond the
//! mean of its four neighbours.

use crate::kernels::Numbers;
use crate::kernels::access::{Recorder, load, store};

/// How far beyond the mean.
const OMEGA: f64 = 1.25;

/// A grid, row after row.
#[derive(Debug)]
pub struct Grid<'a> {
    values: &'a mut [f64],
    dim: usize,
}

fn dim(room: usize) -> usize {
    room.isqrt().max(3)
}

/// How many of `room` words, nine at least, the largest square grid takes.
pub fn words(room: usize) -> usize {
    dim(room) * dim(room)
}

impl Grid<'_> {
    /// The largest grid in `room`, with numbers between 0 and 1.
    pub fn new(room: &mut [f64]) -> Grid<'_> {
        let dim = dim(room.len());
        let mut numbers = Numbers::new(3);
        let values = &mut room[..dim * dim];
        values.fill_with(|| numbers.unit());
        Grid { values, dim }
    }

    /// One sweep over all points that have four neighbours.
    pub fn sweep<R: Recorder>(&mut self, recorder: &mut R) {
        let dim = self.dim;
        for row in 1..dim - 1 {
            for at in row * dim + 1..(row + 1) * dim - 1 {
                let mut value = |at: usize| load(self.values, at, recorder);
                let around = value(at - dim) + value(at + dim) + value(at - 1) + value(at + 1);
                let new = OMEGA / 4.0 * around + (1.0 - OMEGA) * value(at);
                store(self.values, at, new, recorder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::access::Silent;
    use crate::kernels::access::tests::All;

    /// The same with a grid of rows.
    fn naive(grid: &mut [Vec<f64>]) {
        for i in 1..grid.len() - 1 {
            for j in 1..grid.len() - 1 {
                let mean =
                    (grid[i - 1][j] + grid[i + 1][j] + grid[i][j - 1] + grid[i][j + 1]) / 4.0;
                grid[i][j] += OMEGA * (mean - grid[i][j]);
            }
        }
    }

    proptest! {
        #[test]
        fn it_is_what_rows_of_points_do(dim in 3usize..12, sweeps in 1usize..5) {
            let mut room = vec![0.0; dim * dim];
            let mut grid = Grid::new(&mut room);
            let mut rows: Vec<Vec<f64>> = grid.values.chunks(dim).map(<[f64]>::to_vec).collect();
            for _ in 0..sweeps {
                grid.sweep(&mut Silent);
                naive(&mut rows);
            }
            for (a, b) in grid.values.iter().zip(rows.iter().flatten()) {
                prop_assert!((a - b).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn a_point_takes_six_accesses() {
        let mut room = vec![0.0; 9];
        let mut all = All::default();
        Grid::new(&mut room).sweep(&mut all);
        assert_eq!(all.0.len(), 6);
    }
}
