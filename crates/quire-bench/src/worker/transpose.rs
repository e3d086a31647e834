//! Matrix transposition by load and store stride: the experiment of paper 004,
//! Figures 8 to 11. One side of the copy goes along rows, the other along
//! columns, so that with a large dimension every element of the strided side
//! lies in another page.

use std::hint::black_box;

use anyhow::{Context, Result};
use quire_core::units::BASE_PAGE;

use crate::results::Sample;
use crate::worker::{Setup, seconds};

/// Powers of two, of which all elements of a column compete for few cache
/// sets, and dimensions between them.
const DIMENSIONS: [usize; 11] = [256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192];
const QUICK: [usize; 3] = [256, 512, 1024];
/// A measurement goes over at least so many elements.
const LEAST: usize = 1 << 24;

/// Both strides at every dimension.
pub fn run(setup: &Setup) -> Result<Sample> {
    let dimensions = setup.size(&DIMENSIONS[..], &QUICK[..]);
    let largest = dimensions.iter().max().context("no dimensions")?;
    let bytes = largest * largest * size_of::<f64>();
    let (mut a, mut b) = (setup.memory(bytes)?, setup.memory(bytes)?);
    a.touch(BASE_PAGE as usize);
    b.touch(BASE_PAGE as usize);
    let (a, b) = (a.doubles(), b.doubles());
    setup.sleep(1000);
    let mut sample = Sample::default();
    let mut times = (Vec::new(), Vec::new());
    for &dim in dimensions {
        let (a, b) = (&mut a[..dim * dim], &b[..dim * dim]);
        times
            .0
            .push(per_element(dim, setup, || load_stride(a, b, dim)));
        times
            .1
            .push(per_element(dim, setup, || store_stride(a, b, dim)));
    }
    for (name, times) in [("load", &times.0), ("store", &times.1)] {
        for (dim, time) in dimensions.iter().zip(times) {
            sample.put(format!("{name}_ns@{dim}"), *time);
        }
        sample.put_some(
            &format!("{name}_mean_ns"),
            quire_stats::geometric_mean(times),
        );
    }
    Ok(sample)
}

/// Nanoseconds per element, after one pass that is not counted where passes
/// are short.
fn per_element(dim: usize, setup: &Setup, mut pass: impl FnMut()) -> f64 {
    let least = setup.size(LEAST, LEAST >> 4);
    let passes = least.div_ceil(dim * dim);
    if passes > 1 {
        pass();
    }
    let time = seconds(|| (0..passes).for_each(|_| pass()));
    time * 1e9 / (passes * dim * dim) as f64
}

/// `a[i][j] = b[j][i]`
fn load_stride(a: &mut [f64], b: &[f64], dim: usize) {
    for (i, row) in a.chunks_exact_mut(dim).enumerate() {
        for (to, from) in row.iter_mut().zip(b[i..].iter().step_by(dim)) {
            *to = *from;
        }
    }
    black_box(a);
}

/// `a[j][i] = b[i][j]`
fn store_stride(a: &mut [f64], b: &[f64], dim: usize) {
    for (i, row) in b.chunks_exact(dim).enumerate() {
        for (to, from) in a[i..].iter_mut().step_by(dim).zip(row) {
            *to = *from;
        }
    }
    black_box(a);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_strides_transpose() {
        let b: Vec<f64> = (0..9).map(f64::from).collect();
        let expected = [0., 3., 6., 1., 4., 7., 2., 5., 8.];
        let mut a = vec![0.; 9];
        load_stride(&mut a, &b, 3);
        assert_eq!(a, expected);
        a.fill(0.);
        store_stride(&mut a, &b, 3);
        assert_eq!(a, expected);
    }
}
