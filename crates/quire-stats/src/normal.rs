//! The normal distribution: what lies below a number, and the number below which a part
//! lies. Near the middle by the series of Marsaglia (2004), further out by Laplace's
//! continued fraction (Abramowitz and Stegun 26.2.14). Exact to about 14 digits.

/// From here on the continued fraction converges fast.
const FAR: f64 = 3.0;
/// So deep it is reckoned.
const DEPTH: u32 = 200;
/// Nothing lies beyond this many deviations.
const END: f64 = 38.0;

/// The part of the distribution that is below `z` deviations.
pub(crate) fn below(z: f64) -> f64 {
    match z < 0.0 {
        true => beyond(-z),
        false => 1.0 - beyond(z),
    }
}

/// The part that is above `z`, which is not negative.
fn beyond(z: f64) -> f64 {
    let density = (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt();
    if z < FAR {
        return 0.5 - density * series(z);
    }
    let fraction = (1..=DEPTH).rev().fold(z, |rest, k| z + f64::from(k) / rest);
    density / fraction
}

/// z + z³/3 + z⁵/(3·5) + z⁷/(3·5·7) + ...
fn series(z: f64) -> f64 {
    let (mut sum, mut term, mut odd) = (z, z, 1.0);
    while term > sum * 1e-17 {
        odd += 2.0;
        term *= z * z / odd;
        sum += term;
    }
    sum
}

/// The number of deviations below which the part `p`, between 0 and 1, lies. Found by
/// halving an interval.
pub(crate) fn quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-END, END);
    loop {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high || high - low < 1e-14 {
            return middle;
        }
        if below(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::student;

    #[test]
    fn as_the_tables_say() {
        for (z, part) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_543),
            (1.959_963_984_540_054, 0.975),
            (-2.575_829_303_548_901, 0.005),
            (4.0, 0.999_968_328_758_167),
            (-6.0, 9.865_876_450_377e-10),
        ] {
            assert!((below(z) / part - 1.0).abs() < 1e-12, "{z}: {}", below(z));
        }
        assert!((quantile(0.975) - 1.959_963_984_540_054).abs() < 1e-12);
        assert!(quantile(0.0) < -30.0 && quantile(1.0) > 8.0);
    }

    #[test]
    fn both_ways_agree_where_they_meet() {
        let apart = below(-FAR) - below(-FAR + 1e-9);
        assert!(apart.abs() < 1e-10, "{apart}");
    }

    proptest! {
        #[test]
        fn students_distribution_of_many_degrees_is_normal(p in 0.0001f64..0.9999) {
            let z = quantile(p);
            prop_assert!((below(z) - p).abs() < 1e-12);
            prop_assert!((z - student::quantile(p, 1e7)).abs() < 1e-5 * (1.0 + z.abs()));
            prop_assert!((z + quantile(1.0 - p)).abs() < 1e-9);
        }
    }
}
