//! Quantiles and means of one series of values.

/// The median of `values`: the mean of the two middle ones where their number
/// is even. `None` when there is no value or one is not finite.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The quantile `q`, between 0 and 1, of `values`, interpolated linearly
/// between the two nearest (type 7 of Hyndman and Fan, the default of R and
/// NumPy). `None` when there is no value, one is not finite, or `q` is out of
/// range.
#[must_use]
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    if !(0.0..=1.0).contains(&q) {
        return None;
    }
    sorted(values).map(|sorted| quantile_of_sorted(&sorted, q))
}

/// The geometric mean of `values`, the mean that suits ratios. `None` when
/// there is no value, or one is not finite or not above zero.
#[must_use]
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values)?;
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    if min <= 0.0 {
        return None;
    }
    let logs: f64 = sorted.iter().map(|v| v.ln()).sum();
    Some((logs / sorted.len() as f64).exp().clamp(min, max))
}

/// The values in order; `None` when there is none or one is not finite.
pub(crate) fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || !values.iter().all(|v| v.is_finite()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    Some(sorted)
}

/// The quantile `q` of values that are in order, not empty and finite.
pub(crate) fn quantile_of_sorted(sorted: &[f64], q: f64) -> f64 {
    let place = q * (sorted.len() - 1) as f64;
    let (low, high) = (
        sorted[place.floor() as usize],
        sorted[place.ceil() as usize],
    );
    let part = place.fract();
    (low * (1.0 - part) + high * part).clamp(low, high)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(quantile(&[10.0, 20.0, 30.0, 40.0], 0.25), Some(17.5));
        assert_eq!(quantile(&[7.0], 0.9), Some(7.0));
        let mean = geometric_mean(&[1.0, 2.0, 4.0]).unwrap();
        assert!((mean - 2.0).abs() < 1e-12);
    }

    #[test]
    fn what_has_no_answer_gets_none() {
        for bad in [&[][..], &[f64::NAN], &[1.0, f64::INFINITY]] {
            assert_eq!(median(bad), None);
            assert_eq!(geometric_mean(bad), None);
        }
        for q in [-0.1, 1.1, f64::NAN] {
            assert_eq!(quantile(&[1.0, 2.0], q), None);
        }
        assert_eq!(geometric_mean(&[1.0, 0.0]), None);
        assert_eq!(geometric_mean(&[1.0, -2.0]), None);
    }

    #[test]
    fn extremes_do_not_overflow() {
        assert_eq!(median(&[f64::MIN, f64::MAX]), Some(0.0));
        assert_eq!(median(&[f64::MAX, f64::MAX]), Some(f64::MAX));
    }

    /// Type 7 as the textbook has it, with ranks found by counting.
    fn naive(values: &[f64], q: f64) -> f64 {
        let rank = |k: usize| {
            *values
                .iter()
                .find(|v| {
                    let less = values.iter().filter(|w| w < v).count();
                    let same = values.iter().filter(|w| w == v).count();
                    (less..less + same).contains(&k)
                })
                .unwrap()
        };
        let h = q * (values.len() - 1) as f64;
        let (low, high) = (rank(h.floor() as usize), rank(h.ceil() as usize));
        low + (high - low) * (h - h.floor())
    }

    proptest! {
        #[test]
        fn quantiles_agree_with_counting(
            values in vec(-1e6f64..1e6, 1..40),
            q in 0.0f64..=1.0,
        ) {
            let found = quantile(&values, q).unwrap();
            prop_assert!((found - naive(&values, q)).abs() <= 1e-6);
        }

        #[test]
        fn quantiles_are_monotone(
            values in vec(-1e6f64..1e6, 1..40),
            a in 0.0f64..=1.0,
            b in 0.0f64..=1.0,
        ) {
            let (low, high) = (a.min(b), a.max(b));
            let (low, high) = (quantile(&values, low), quantile(&values, high));
            prop_assert!(low.unwrap() <= high.unwrap() + 1e-6);
            prop_assert!(quantile(&values, 0.0) <= low && high <= quantile(&values, 1.0));
        }

        #[test]
        fn the_geometric_mean_lies_between(values in vec(1e-6f64..1e6, 1..40)) {
            let mean = geometric_mean(&values).unwrap();
            let arithmetic = values.iter().sum::<f64>() / values.len() as f64;
            prop_assert!(quantile(&values, 0.0).unwrap() <= mean);
            prop_assert!(mean <= quantile(&values, 1.0).unwrap());
            prop_assert!(mean <= arithmetic * (1.0 + 1e-12));
        }
    }
}
