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
        false => tails.map(|tail| quantile(draws, tail)),
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

/// The first so many draws tell roughly where a quantile is.
const FIRST: usize = 512;
/// And so many times more draws are wanted for that to be worth it.
const WORTH: usize = 4;

/// The quantile `q` of values that are not empty, as [`crate::quantile`] has it, without
/// sorting them all.
fn quantile(values: &mut [f64], q: f64) -> f64 {
    let place = q * (values.len() - 1) as f64;
    near_end(values, q).unwrap_or_else(|| select(values, place))
}

/// The same, found among the values beyond what the first ones say: few, where the quantile is near
/// an end. Nothing where the first ones were wrong, or it is not.
fn near_end(values: &[f64], q: f64) -> Option<f64> {
    // By how much quantiles of so few may be off: four deviations.
    let reach = q.min(1.0 - q) + 4.0 * (q * (1.0 - q) / FIRST as f64).sqrt();
    if values.len() < FIRST * WORTH || reach > 0.25 {
        return None;
    }
    let mut first = values[..FIRST].to_vec();
    let is_low = q < 0.5;
    let place = match is_low {
        true => reach * FIRST as f64,
        false => (1.0 - reach) * FIRST as f64,
    };
    let (_, limit, _) = first.select_nth_unstable_by(place as usize, f64::total_cmp);
    let limit = *limit;
    let is_beyond = |value: &&f64| {
        if is_low {
            **value < limit
        } else {
            **value > limit
        }
    };
    let mut beyond: Vec<f64> = values.iter().filter(is_beyond).copied().collect();
    // Those on the other side of the limit all lie before, or after.
    let below = if is_low {
        0
    } else {
        values.len() - beyond.len()
    };
    let place = q * (values.len() - 1) as f64 - below as f64;
    let is_there = place >= 0.0 && place + 1.0 < beyond.len() as f64;
    is_there.then(|| select(&mut beyond, place))
}

/// The value at a place of the values in order, between two of them as [`crate::quantile`] has it.
fn select(values: &mut [f64], place: f64) -> f64 {
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
    use crate::random::SplitMix64;

    proptest! {
        #[test]
        fn selection_agrees_with_sorting(
            values in vec(-1e6f64..1e6, 1..60),
            q in 0.0f64..=1.0,
        ) {
            let sorted = crate::quantile(&values, q).unwrap();
            prop_assert_eq!(quantile(&mut values.clone(), q), sorted);
        }

        #[test]
        fn quantiles_near_an_end_are_those_of_all(
            seed: u64,
            most in 1usize..10_000,
            q in 0.0f64..0.1,
            in_order: bool,
        ) {
            let mut random = SplitMix64::new(seed);
            let mut values: Vec<f64> = (0..5000).map(|_| random.below(most) as f64).collect();
            if in_order {
                values.sort_unstable_by(f64::total_cmp);
            }
            for q in [q, 1.0 - q] {
                let sorted = crate::quantile(&values, q).unwrap();
                prop_assert_eq!(quantile(&mut values.clone(), q), sorted);
            }
        }
    }

    #[test]
    fn random_draws_need_not_be_sorted() {
        let mut random = SplitMix64::new(1);
        let values: Vec<f64> = (0..5000).map(|_| random.below(1 << 40) as f64).collect();
        assert!(near_end(&values, 0.025).is_some() && near_end(&values, 0.995).is_some());
        assert!(near_end(&values, 0.5).is_none());
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
