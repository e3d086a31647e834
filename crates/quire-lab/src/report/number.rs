//! Numbers as people read them, with their unit.

use quire_stats::Estimate;

/// Values and their units as they are shown: the factor is chosen by the value, so that
/// its interval is in the same unit.
const SECONDS: &[(f64, &str)] = &[(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")];
const BYTES: &[(f64, &str)] = &[
    (1_073_741_824.0, "GiB"),
    (1_048_576.0, "MiB"),
    (1024.0, "KiB"),
    (1.0, "bytes"),
];
/// Units that nothing is known of.
const PLAIN: &[(f64, &str)] = &[(1.0, "")];
const COUNTS: &[(f64, &str)] = &[(1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];

/// The factor by which values of about this size are divided, and the unit they get.
pub fn scale(value: f64, unit: &str) -> (f64, String) {
    let (steps, rest) = match unit {
        "s" => (SECONDS, ""),
        "bytes" => (BYTES, ""),
        "bytes/s" => (BYTES, "/s"),
        "" => (COUNTS, ""),
        "1/s" => (COUNTS, "/s"),
        other => (PLAIN, other),
    };
    let fits = steps.iter().find(|(factor, _)| value.abs() >= *factor);
    let zero = value == 0.0;
    let (factor, name) = match fits {
        Some(step) if !zero => *step,
        _ if zero && unit != "s" => (1.0, steps.last().map_or("", |step| step.1)),
        _ if zero => (1.0, "s"),
        // Counts below one stay as they are.
        _ => *steps.last().unwrap_or(&(1.0, "")),
    };
    (factor, format!("{name}{rest}"))
}

/// A number of four significant digits.
pub fn plain(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        x if !(1e-4..1e7).contains(&x) => format!("{value:.3e}"),
        x => {
            let digits = 3 - x.log10().floor() as i32;
            let digits = usize::try_from(digits).unwrap_or(0);
            format!("{value:.digits$}")
        }
    }
}

/// A value with its unit.
pub fn with_unit(value: f64, unit: &str) -> String {
    like(value, value, unit)
}

/// A value with the unit that `size` has, so that it can be compared with others.
pub fn like(value: f64, size: f64, unit: &str) -> String {
    let (factor, name) = scale(size, unit);
    joined(&plain(value / factor), &name)
}

/// A value with its interval and unit, such as `1.234 ms [1.200, 1.260]`.
pub fn estimate(estimate: &Estimate, unit: &str) -> String {
    estimate_like(estimate, estimate.value, unit)
}

/// The same, with the unit that `size` has.
pub fn estimate_like(estimate: &Estimate, size: f64, unit: &str) -> String {
    let (factor, name) = scale(size, unit);
    let [value, low, high] =
        [estimate.value, estimate.ci_low, estimate.ci_high].map(|value| plain(value / factor));
    format!("{} [{low}, {high}]", joined(&value, &name))
}

/// A ratio with its interval.
pub fn ratio(estimate: &Estimate) -> String {
    let Estimate {
        value,
        ci_low,
        ci_high,
    } = estimate;
    let text = |ratio: f64| match (0.01..1e4).contains(&ratio) {
        true => format!("{ratio:.4}"),
        false => plain(ratio),
    };
    format!("{} [{}, {}]", text(*value), text(*ci_low), text(*ci_high))
}

/// A fraction as a percentage with three significant digits or so.
pub fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    match percent.abs() {
        x if x >= 99.95 => format!("{percent:.0} %"),
        x if x >= 9.995 => format!("{percent:.1} %"),
        _ => format!("{percent:.2} %"),
    }
}

/// A fraction with its interval, as percentages.
pub fn percent_estimate(estimate: &Estimate) -> String {
    let [value, low, high] = [estimate.value, estimate.ci_low, estimate.ci_high].map(percent);
    format!("{value} [{low}, {high}]")
}

fn joined(number: &str, unit: &str) -> String {
    match unit {
        "" => number.to_owned(),
        unit => format!("{number} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_suit_the_value() {
        for (value, unit, text) in [
            (1.5, "s", "1.500 s"),
            (0.00123456, "s", "1.235 ms"),
            (2e-11, "s", "0.02000 ns"),
            (0.0, "s", "0 s"),
            (3.0 * 1024.0, "bytes", "3.000 KiB"),
            (123_456_789.0, "", "123.5 M"),
            (0.5, "", "0.5000"),
            (12_000.0, "1/s", "12.00 k/s"),
            (12_000.0, "pages", "12000 pages"),
            (-0.002, "s", "-2.000 ms"),
        ] {
            assert_eq!(with_unit(value, unit), text);
        }
    }

    #[test]
    fn an_interval_has_the_unit_of_its_value() {
        let wide = Estimate {
            value: 0.002,
            ci_low: 0.0009,
            ci_high: 1.5,
        };
        assert_eq!(estimate(&wide, "s"), "2.000 ms [0.9000, 1500]");
        assert_eq!(percent_estimate(&wide), "0.20 % [0.09 %, 150 %]");
        assert_eq!(ratio(&wide), "0.002000 [0.0009000, 1.5000]");
    }
}
