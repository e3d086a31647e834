//! A sample laid out for draws: one array in a fixed order and on a fixed scale.
//!
//! The estimators that draw say nothing about the order of executions, or of measurements
//! in one. So that not a digit depends on it, each execution is sorted, and the executions
//! are. All values are divided by a power of two, which is exact, so that the largest is
//! about 1: then squares neither overflow nor vanish.

use std::ops::Range;

use crate::sample::Sample;

/// The values of a sample, execution by execution.
#[derive(Debug)]
pub(crate) struct Layout {
    values: Vec<f64>,
    places: Vec<Range<usize>>,
    /// What the values were divided by.
    pub scale: f64,
}

impl Layout {
    /// Lays `sample` out.
    pub(crate) fn of(sample: &Sample) -> Layout {
        let mut executions = sample.executions().to_vec();
        for values in &mut executions {
            values.sort_unstable_by(f64::total_cmp);
        }
        executions.sort_unstable_by(|a, b| compare(a, b));
        let largest = sample.values().fold(0.0, |max: f64, v| max.max(v.abs()));
        let scale = power_of_two_below(largest);
        let mut values = Vec::with_capacity(executions.iter().map(Vec::len).sum());
        let mut places = Vec::with_capacity(executions.len());
        for execution in &executions {
            let start = values.len();
            values.extend(execution.iter().map(|value| value / scale));
            places.push(start..values.len());
        }
        Layout {
            values,
            places,
            scale,
        }
    }

    /// All values.
    pub(crate) fn values(&self) -> &[f64] {
        &self.values
    }

    /// Where the values of each execution are.
    pub(crate) fn places(&self) -> &[Range<usize>] {
        &self.places
    }

    /// The values of each execution.
    pub(crate) fn executions(&self) -> impl ExactSizeIterator<Item = &[f64]> {
        self.places.iter().map(|place| &self.values[place.clone()])
    }

    /// How many measurements the longest execution has.
    pub(crate) fn longest(&self) -> usize {
        self.places.iter().map(Range::len).max().unwrap_or(0)
    }
}

fn compare(a: &[f64], b: &[f64]) -> std::cmp::Ordering {
    let unequal = a.iter().zip(b).map(|(a, b)| a.total_cmp(b));
    let unequal = unequal.into_iter().find(|order| order.is_ne());
    unequal.unwrap_or_else(|| a.len().cmp(&b.len()))
}

/// The largest power of two that is not above `value`, which is not negative; 1 for zero.
fn power_of_two_below(value: f64) -> f64 {
    const EXPONENT: u64 = 0x7ff0_0000_0000_0000;
    if value == 0.0 {
        return 1.0;
    }
    f64::from_bits(value.to_bits() & EXPONENT).max(f64::MIN_POSITIVE)
}

/// Mean and variation of one series.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments {
    /// How many values there are.
    pub n: f64,
    /// Their mean.
    pub mean: f64,
    /// The sum of the squares of their deviations from it.
    pub squares: f64,
}

impl Moments {
    /// Those of `values`, which are not empty. Everything is reckoned from the first value
    /// on, so that equal values have exactly no variation.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Moments {
        let mut values = values.into_iter();
        let first = values.next().unwrap_or(0.0);
        let (mut n, mut sum, mut squares) = (1.0, 0.0, 0.0);
        for value in values {
            let apart = value - first;
            n += 1.0;
            sum += apart;
            squares += apart * apart;
        }
        Moments {
            n,
            mean: first + sum / n,
            squares: (squares - sum * sum / n).max(0.0),
        }
    }

    /// The variance that a larger population would have; there are at least two values.
    pub(crate) fn variance(&self) -> f64 {
        self.squares / (self.n - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter_and_scale_is_exact() {
        let layout = |executions: &[&[f64]]| {
            let executions = executions.iter().map(|values| values.to_vec()).collect();
            Layout::of(&Sample::new(executions).unwrap())
        };
        let a = layout(&[&[3.0, 1.0], &[5.0], &[1.0, 2.0]]);
        let b = layout(&[&[2.0, 1.0], &[1.0, 3.0], &[5.0]]);
        assert_eq!((a.values(), a.places()), (b.values(), b.places()));
        assert_eq!(a.scale, 4.0);
        assert_eq!(a.values(), [0.25, 0.5, 0.25, 0.75, 1.25]);
        assert_eq!(layout(&[&[f64::MAX]]).scale, 2f64.powi(1023));
        assert_eq!(layout(&[&[0.0]]).scale, 1.0);
        assert_eq!(layout(&[&[5e-324]]).scale, f64::MIN_POSITIVE);
    }

    #[test]
    fn equal_values_do_not_vary() {
        let moments = Moments::of([0.1; 7]);
        assert_eq!((moments.mean, moments.variance()), (0.1, 0.0));
        let moments = Moments::of([1.0, 2.0, 3.0, 4.0]);
        assert_eq!((moments.mean, moments.squares), (2.5, 5.0));
    }
}
