//! Fast Fourier transformation of complex numbers, in place: radix 2, decimation in
//! time. A stage uses each of its factors for all blocks before the next one, so that
//! its accesses go in strides.

use std::f64::consts::PI;

use crate::kernels::Numbers;
use crate::kernels::access::{Recorder, load, store};

/// What the numbers of [`fill`] follow from.
pub const SEED: u64 = 1;

/// How many of `room` words the data takes: two for each of the largest power of two
/// of numbers, four at least.
pub fn words(room: usize) -> usize {
    let numbers = (room / 2).max(4);
    2 << numbers.ilog2()
}

/// Numbers between 0 and 1, as real and imaginary parts.
pub fn fill(data: &mut [f64]) {
    let mut numbers = Numbers::new(SEED);
    data.fill_with(|| numbers.unit());
}

/// Transforms the data, a power of two of pairs of real and imaginary part, and
/// transforms it back.
pub fn there_and_back<R: Recorder>(data: &mut [f64], recorder: &mut R) {
    transform(data, -1.0, recorder);
    transform(data, 1.0, recorder);
    let scale = 2.0 / data.len() as f64;
    for at in 0..data.len() {
        let value = load(data, at, recorder) * scale;
        store(data, at, value, recorder);
    }
}

/// Sums of the data times powers of a root of unity; `sign` is that of its angle.
pub fn transform<R: Recorder>(data: &mut [f64], sign: f64, recorder: &mut R) {
    let numbers = data.len() / 2;
    reverse_bits(data, recorder);
    let mut half = 1;
    while half < numbers {
        stage(data, half, sign * PI / half as f64, recorder);
        half *= 2;
    }
}

/// Swaps each number with the one whose place has the same bits in reverse.
fn reverse_bits<R: Recorder>(data: &mut [f64], recorder: &mut R) {
    let numbers = data.len() / 2;
    let unused = usize::BITS - numbers.ilog2();
    for at in 0..numbers {
        let other = at.reverse_bits() >> unused;
        if at < other {
            let (one, two) = (number(data, at, recorder), number(data, other, recorder));
            put(data, at, two, recorder);
            put(data, other, one, recorder);
        }
    }
}

/// Joins transforms of `half` numbers to transforms of twice as many. The factor turns
/// by `angle` from number to number.
fn stage<R: Recorder>(data: &mut [f64], half: usize, angle: f64, recorder: &mut R) {
    let numbers = data.len() / 2;
    // To turn by an angle without losing digits: 1 - cos is twice a sine's square.
    let (sine, versine) = (angle.sin(), 2.0 * (angle / 2.0).sin().powi(2));
    let mut factor = (1.0, 0.0);
    for first in 0..half {
        for at in (first..numbers).step_by(2 * half) {
            butterfly(data, at, at + half, factor, recorder);
        }
        let (re, im) = factor;
        factor = (re - versine * re - sine * im, im - versine * im + sine * re);
    }
}

#[inline(always)]
fn butterfly<R: Recorder>(
    data: &mut [f64],
    at: usize,
    other: usize,
    factor: (f64, f64),
    recorder: &mut R,
) {
    let (re, im) = number(data, other, recorder);
    let turned = (re * factor.0 - im * factor.1, re * factor.1 + im * factor.0);
    let (re, im) = number(data, at, recorder);
    put(data, other, (re - turned.0, im - turned.1), recorder);
    put(data, at, (re + turned.0, im + turned.1), recorder);
}

#[inline(always)]
fn number<R: Recorder>(data: &[f64], at: usize, recorder: &mut R) -> (f64, f64) {
    let re = load(data, 2 * at, recorder);
    (re, load(data, 2 * at + 1, recorder))
}

#[inline(always)]
fn put<R: Recorder>(data: &mut [f64], at: usize, value: (f64, f64), recorder: &mut R) {
    store(data, 2 * at, value.0, recorder);
    store(data, 2 * at + 1, value.1, recorder);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::access::Silent;

    /// By the definition.
    fn naive(data: &[f64]) -> Vec<f64> {
        let numbers = data.len() / 2;
        let term = |k: usize, n: usize| {
            let (sin, cos) = (-2.0 * PI * (k * n % numbers) as f64 / numbers as f64).sin_cos();
            let (re, im) = (data[2 * n], data[2 * n + 1]);
            [re * cos - im * sin, re * sin + im * cos]
        };
        let sum = |k: usize| {
            (0..numbers).fold([0.0, 0.0], |[re, im], n| {
                let [x, y] = term(k, n);
                [re + x, im + y]
            })
        };
        (0..numbers).flat_map(sum).collect()
    }

    fn close(a: &[f64], b: &[f64], within: f64) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= within)
    }

    proptest! {
        #[test]
        fn it_is_the_transform_by_definition(
            bits in 2u32..8,
            values in prop::collection::vec(-1.0f64..1.0, 256),
        ) {
            let mut data = values[..2 << bits].to_vec();
            let expected = naive(&data);
            transform(&mut data, -1.0, &mut Silent);
            prop_assert!(close(&data, &expected, 1e-10));
        }
    }

    #[test]
    fn there_and_back_changes_nothing() {
        let mut data = vec![0.0; 2 << 14];
        fill(&mut data);
        let before = data.clone();
        for _ in 0..20 {
            there_and_back(&mut data, &mut Silent);
        }
        assert!(close(&data, &before, 1e-9));
    }

    #[test]
    fn the_largest_power_of_two_is_taken() {
        assert_eq!(
            [8, 15, 16, 131_072, 200_000].map(words),
            [8, 8, 16, 131_072, 131_072]
        );
    }
}
