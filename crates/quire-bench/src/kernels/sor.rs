//! Successive over-relaxation on a square grid, in place: each point goes beyond the
//! mean of its four neighbours.

use crate::kernels::Numbers;
use crate::kernels::access::{Recorder, load, store};

/// How far beyond the mean.
const OMEGA: f64 = 1.25;

/// What the numbers of a grid follow from.
const SEED: u64 = 3;

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
        let grid = Grid::of(room);
        let mut numbers = Numbers::new(SEED);
        grid.values.fill_with(|| numbers.unit());
        grid
    }

    /// The largest grid in `room`, with what is there.
    pub fn of(room: &mut [f64]) -> Grid<'_> {
        let dim = dim(room.len());
        let values = &mut room[..dim * dim];
        Grid { values, dim }
    }

    /// How far a grid of [`new`](Grid::new) after so many sweeps is from this one at
    /// most, in any point. It is computed with rows of points.
    pub fn off_by(&self, sweeps: u64) -> f64 {
        let mut numbers = Numbers::new(SEED);
        let mut row = |_| (0..self.dim).map(|_| numbers.unit()).collect();
        let mut rows: Vec<Vec<f64>> = (0..self.dim).map(&mut row).collect();
        (0..sweeps).for_each(|_| by_rows(&mut rows));
        let pairs = self.values.iter().zip(rows.iter().flatten());
        // Not `max`, which passes over what is no number.
        let larger = |most: f64, far: f64| match most.is_nan() || far <= most {
            true => most,
            false => far,
        };
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, larger)
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

/// A sweep over a grid of rows, to compare with.
fn by_rows(grid: &mut [Vec<f64>]) {
    for i in 1..grid.len() - 1 {
        for j in 1..grid.len() - 1 {
            let mean = (grid[i - 1][j] + grid[i + 1][j] + grid[i][j - 1] + grid[i][j + 1]) / 4.0;
            grid[i][j] += OMEGA * (mean - grid[i][j]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::access::Silent;
    use crate::kernels::access::tests::All;

    proptest! {
        #[test]
        fn it_is_what_rows_of_points_do(dim in 3usize..12, sweeps in 1usize..5) {
            let mut room = vec![0.0; dim * dim];
            let mut grid = Grid::new(&mut room);
            let mut rows: Vec<Vec<f64>> = grid.values.chunks(dim).map(<[f64]>::to_vec).collect();
            for _ in 0..sweeps {
                grid.sweep(&mut Silent);
                by_rows(&mut rows);
            }
            for (a, b) in grid.values.iter().zip(rows.iter().flatten()) {
                prop_assert!((a - b).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn a_wrong_point_is_off() {
        let mut room = vec![0.0; 64];
        let mut grid = Grid::new(&mut room);
        (0..3).for_each(|_| grid.sweep(&mut Silent));
        assert!(grid.off_by(3) < 1e-12);
        assert!(grid.off_by(2) > 1e-3);
        room[20] = f64::NAN;
        assert!(Grid::of(&mut room).off_by(3).is_nan());
    }

    #[test]
    fn a_point_takes_six_accesses() {
        let mut room = vec![0.0; 9];
        let mut all = All::default();
        Grid::new(&mut room).sweep(&mut all);
        assert_eq!(all.0.len(), 6);
    }
}
