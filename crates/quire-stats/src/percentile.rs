//! The percentile interval: the middle part of what draws yield (Davison and Hinkley 1997,
//! section 5.3).

use crate::estimate::{Absent, Estimate, Result, Settings};

/// `value` with the percentile interval of `draws`, all times `scale`. The interval is
/// widened to hold the value where it would not, as it may for few and uneven executions.
///
/// # Errors
/// Where an end is not finite.
pub(crate) fn estimate(
    value: f64,
    draws: &mut [f64],
    scale: f64,
    settings: &Settings,
) -> Result<Estimate> {
    let tail = settings.lower_tail();
    between(value, draws, [tail, 1.0 - tail], scale)
}

/// The same between these quantiles of the draws.
///
/// # Errors
/// Where an end is not finite.
pub(crate) fn between(
    value: f64,
    draws: &mut [f64],
    tails: [f64; 2],
    scale: f64,
) -> Result<Estimate> {
    let [low, high] = match draws.is_empty() {
        true => [value; 2],
        false => tails.map(|tail| select(draws, tail)),
    };
    if !(low.is_finite() && high.is_finite()) {
        return Err(Absent::TooLarge);
    }
    finite(Estimate {
        value: value * scale,
        ci_low: low.min(value) * scale,
        ci_high: high.max(value) * scale,
    })
}

/// `estimate`, if all of it is finite.
pub(crate) fn finite(estimate: Estimate) -> Result<Estimate> {
    let Estimate {
        value,
        ci_low,
        ci_high,
    } = estimate;
    if value.is_finite() && ci_low.is_finite() && ci_high.is_finite() {
        Ok(estimate)
    } else {
        Err(Absent::TooLarge)
    }
}

/// The quantile `q` of values that are not empty, as [`crate::quantile`] has it, without
/// sorting them all.
fn select(values: &mut [f64], q: f64) -> f64 {
    let place = q * (values.len() - 1) as f64;
    let (_, low, above) = values.select_nth_unstable_by(place as usize, f64::total_cmp);
    let low = *low;
    let high = above.iter().copied().min_by(f64::total_cmp).unwrap_or(low);
    let part = place.fract();
    if part == 0.0 {
        return low;
    }
    (low * (1.0 - part) + high * part).max(low).min(high)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn selection_agrees_with_sorting(
            values in vec(-1e6f64..1e6, 1..60),
            q in 0.0f64..=1.0,
        ) {
            let sorted = crate::quantile(&values, q).unwrap();
            prop_assert_eq!(select(&mut values.clone(), q), sorted);
        }
    }

    #[test]
    fn the_interval_holds_the_value_and_is_finite() {
        let settings = Settings::default();
        let wide = estimate(9.0, &mut [1.0, 2.0], 2.0, &settings).unwrap();
        assert_eq!((wide.value, wide.ci_high), (18.0, 18.0));
        let too_large = estimate(1.0, &mut [f64::INFINITY], 1.0, &settings);
        assert_eq!(too_large, Err(Absent::TooLarge));
        assert!(estimate(1.0, &mut [f64::NAN], 1.0, &settings).is_err());
    }
}
