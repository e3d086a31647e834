//! The empirical cumulative distribution function (paper 002, figure 9).

use crate::order::sorted;

/// Each value that is there, in order, and the share of `values` that are not above it.
/// Equal values make one point. Empty where `values` are, and where one is not finite.
#[must_use]
pub fn points(values: &[f64]) -> Vec<(f64, f64)> {
    let sorted = sorted(values).unwrap_or_default();
    let count = sorted.len() as f64;
    let mut points: Vec<(f64, f64)> = Vec::with_capacity(sorted.len());
    for (place, value) in (1..).zip(sorted) {
        let share = f64::from(place) / count;
        match points.last_mut() {
            Some(last) if last.0 == value => last.1 = share,
            _ => points.push((value, share)),
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_points() {
        assert_eq!(
            points(&[3.0, 1.0, 3.0, 2.0]),
            [(1.0, 0.25), (2.0, 0.5), (3.0, 1.0)]
        );
        assert_eq!(points(&[]), []);
        assert_eq!(points(&[1.0, f64::NAN]), []);
    }

    proptest! {
        #[test]
        fn shares_agree_with_counting(values in vec(-5i8..5, 1..40)) {
            let values: Vec<f64> = values.into_iter().map(f64::from).collect();
            let points = points(&values);
            for (value, share) in &points {
                let count = values.iter().filter(|v| *v <= value).count();
                prop_assert_eq!(*share, count as f64 / values.len() as f64);
            }
            prop_assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
            prop_assert_eq!(points.last().unwrap().1, 1.0);
        }
    }
}
