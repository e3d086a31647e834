//! What all estimators must hold to: units and the order of executions do not matter, what
//! is drawn depends on the seed only, and bad data are refused.

use proptest::collection::vec;
use proptest::prelude::*;
use quire_stats::{Absent, Estimate, Sample, Settings, impact, mean, median, ratio, variation};

type Estimator = fn(&Sample, &Settings) -> Result<Estimate, Absent>;

/// Those in the unit of the measurements.
const LOCATIONS: [Estimator; 3] = [mean::of, mean::bootstrap, median::of];
/// Those without a unit.
const PURE: [Estimator; 3] = [variation::within, variation::unclassified, impact::factor];

fn all() -> impl Iterator<Item = Estimator> {
    LOCATIONS.into_iter().chain(PURE)
}

fn settings(seed: u64) -> Settings {
    Settings {
        resamples: 200,
        seed,
        ..Settings::default()
    }
}

/// Three to seven executions of three to seven measurements above zero.
fn data() -> impl Strategy<Value = Vec<Vec<f64>>> {
    vec(vec(0.5f64..10.0, 3..8), 3..8)
}

fn map(data: &[Vec<f64>], by: impl Fn(f64) -> f64) -> Sample {
    let execution = |values: &Vec<f64>| values.iter().map(|value| by(*value)).collect();
    Sample::new(data.iter().map(execution).collect()).unwrap()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * (a.abs() + b.abs())
}

fn agree(a: &Estimate, b: &Estimate) -> bool {
    close(a.value, b.value) && close(a.ci_low, b.ci_low) && close(a.ci_high, b.ci_high)
}

fn times(estimate: &Estimate, factor: f64) -> Estimate {
    Estimate {
        value: estimate.value * factor,
        ci_low: estimate.ci_low * factor,
        ci_high: estimate.ci_high * factor,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_unit_does_not_matter(data in data(), unit in 1e-6f64..1e6, seed: u64) {
        let (plain, scaled) = (map(&data, |v| v), map(&data, |v| v * unit));
        for estimator in LOCATIONS {
            let plain = estimator(&plain, &settings(seed)).unwrap();
            let scaled = estimator(&scaled, &settings(seed)).unwrap();
            prop_assert!(agree(&scaled, &times(&plain, unit)), "{plain:?} {scaled:?}");
        }
        for estimator in PURE {
            let plain = estimator(&plain, &settings(seed)).unwrap();
            let scaled = estimator(&scaled, &settings(seed)).unwrap();
            prop_assert!(agree(&scaled, &plain), "{plain:?} {scaled:?}");
        }
        let found = ratio::of_means(&scaled, &plain, &settings(seed)).unwrap();
        prop_assert!(close(found.value, unit));
    }

    #[test]
    fn a_shift_moves_locations_and_not_the_impact_factor(
        data in data(),
        shift in 0.0f64..1000.0,
        seed: u64,
    ) {
        let (plain, shifted) = (map(&data, |v| v), map(&data, |v| v + shift));
        for estimator in LOCATIONS {
            let plain = estimator(&plain, &settings(seed)).unwrap();
            let shifted = estimator(&shifted, &settings(seed)).unwrap();
            prop_assert!(close(shifted.value, plain.value + shift));
            prop_assert!(close(shifted.ci_low, plain.ci_low + shift));
            prop_assert!(close(shifted.ci_high, plain.ci_high + shift));
        }
        let factor = |sample| impact::factor(sample, &settings(seed)).unwrap();
        prop_assert!(agree(&factor(&plain), &factor(&shifted)));
        // What varies as much around a larger mean varies less in proportion.
        let within = |sample| variation::within(sample, &settings(seed)).unwrap().value;
        prop_assert!(within(&shifted) <= within(&plain) * (1.0 + 1e-9));
    }

    #[test]
    fn not_a_digit_depends_on_the_order(data in data(), seed: u64) {
        let plain = map(&data, |v| v);
        let mut turned = data.clone();
        turned.rotate_left(1);
        turned.iter_mut().for_each(|values| values.reverse());
        let turned = map(&turned, |v| v);
        for estimator in all() {
            let settings = settings(seed);
            prop_assert_eq!(estimator(&plain, &settings), estimator(&turned, &settings));
        }
    }

    #[test]
    fn the_value_lies_in_its_interval_and_within_the_data(data in data(), seed: u64) {
        let sample = map(&data, |v| v);
        for estimator in all() {
            let found = estimator(&sample, &settings(seed)).unwrap();
            prop_assert!(found.ci_low <= found.value && found.value <= found.ci_high);
            prop_assert_eq!(Ok(found), estimator(&sample, &settings(seed)));
        }
        let least = sample.values().fold(f64::INFINITY, f64::min);
        let most = sample.values().fold(0.0, f64::max);
        for estimator in [mean::bootstrap, median::of] {
            let found = estimator(&sample, &settings(seed)).unwrap();
            prop_assert!(least <= found.ci_low * (1.0 + 1e-12));
            prop_assert!(found.ci_high <= most * (1.0 + 1e-12));
        }
    }

    #[test]
    fn less_confidence_makes_narrower_intervals(data in data(), seed: u64) {
        let sample = map(&data, |v| v);
        for estimator in all() {
            let wide = estimator(&sample, &settings(seed)).unwrap();
            let narrow = Settings { confidence: 0.5, ..settings(seed) };
            let narrow = estimator(&sample, &narrow).unwrap();
            prop_assert!(wide.ci_low <= narrow.ci_low && narrow.ci_high <= wide.ci_high);
        }
    }

    #[test]
    fn bad_values_are_refused(data in data(), execution: u8, measurement: u8) {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut data = data.clone();
            let execution = usize::from(execution) % data.len();
            let measurement = usize::from(measurement) % data[execution].len();
            data[execution][measurement] = bad;
            let place = Absent::NotFinite {
                execution: execution + 1,
                measurement: measurement + 1,
            };
            prop_assert_eq!(Sample::new(data), Err(place));
        }
    }

    /// Any finite values give finite figures, or a reason why not; never a panic.
    #[test]
    fn any_data_give_finite_figures_or_a_reason(
        data in vec(vec(prop_oneof![
            any::<f64>().prop_filter("finite", |v| v.is_finite()),
            -1.0f64..1.0,
            Just(0.0),
        ], 1..5), 1..5),
        seed: u64,
    ) {
        let sample = map(&data, |v| v);
        let results = all().map(|estimator| estimator(&sample, &settings(seed)));
        for result in results.chain([ratio::of_means(&sample, &sample, &settings(seed))]) {
            let Ok(found) = result else { continue };
            prop_assert!(found.ci_low.is_finite() && found.ci_high.is_finite());
            prop_assert!(found.ci_low <= found.value && found.value <= found.ci_high);
        }
    }
}

fn sample(data: &[&[f64]]) -> Sample {
    Sample::new(data.iter().map(|values| values.to_vec()).collect()).unwrap()
}

#[test]
fn the_seed_matters_and_only_the_seed() {
    let sample = sample(&[&[1.0, 2.0, 4.0], &[3.0, 3.5, 9.0], &[2.0, 7.0, 8.0]]);
    for estimator in [mean::bootstrap, variation::unclassified, impact::factor] {
        let of = |seed| estimator(&sample, &settings(seed)).unwrap();
        assert_eq!(of(1), of(1));
        assert!((2..9).any(|seed| of(seed) != of(1)));
    }
}

#[test]
fn few_executions_and_measurements_are_refused() {
    let single = sample(&[&[1.0, 2.0, 3.0]]);
    let needed = |needed, got| Err(Absent::FewExecutions { needed, got });
    for (estimator, least) in all().zip([2, 2, 2, 2, 2, 3]) {
        assert_eq!(estimator(&single, &settings(1)), needed(least, 1));
    }
    let ragged = sample(&[&[1.0, 2.0, 3.0], &[1.0, 2.0], &[1.0, 2.0, 3.0]]);
    let few = Absent::FewMeasurements {
        execution: 2,
        needed: 3,
        got: 2,
    };
    assert_eq!(impact::factor(&ragged, &settings(1)), Err(few));
    let singles = sample(&[&[1.0], &[2.0]]);
    assert!(matches!(
        variation::within(&singles, &settings(1)),
        Err(Absent::FewMeasurements { execution: 1, .. })
    ));
    assert!(ratio::of_means(&single, &ragged, &settings(1)).is_err());
    assert!(ratio::of_means(&ragged, &single, &settings(1)).is_err());
}

#[test]
fn constant_data_are_certain_and_have_no_impact_factor() {
    let constant = sample(&[&[0.1; 4], &[0.1; 5], &[0.1; 3]]);
    let certain = |value| {
        Ok(Estimate {
            value,
            ci_low: value,
            ci_high: value,
        })
    };
    assert_eq!(mean::of(&constant, &settings(1)), certain(0.1));
    assert_eq!(median::of(&constant, &settings(1)), certain(0.1));
    assert_eq!(variation::within(&constant, &settings(1)), certain(0.0));
    assert_eq!(
        variation::unclassified(&constant, &settings(1)),
        certain(0.0)
    );
    assert_eq!(
        impact::factor(&constant, &settings(1)),
        Err(Absent::Constant)
    );
    let one_varies = sample(&[&[0.1; 4], &[0.2; 4], &[0.1, 0.2, 0.3, 0.4]]);
    assert_eq!(
        impact::factor(&one_varies, &settings(1)),
        Err(Absent::MostlyConstant)
    );
}

#[test]
fn means_that_are_not_positive_are_no_divisors() {
    let zero = sample(&[&[-1.0, 1.0], &[-2.0, 2.0], &[0.0, 0.0]]);
    let not_positive = Err(Absent::MeanNotPositive);
    assert_eq!(variation::within(&zero, &settings(1)), not_positive);
    assert_eq!(variation::unclassified(&zero, &settings(1)), not_positive);
    assert_eq!(ratio::of_means(&zero, &zero, &settings(1)), not_positive);
    assert_eq!(mean::of(&zero, &settings(1)).unwrap().value, 0.0);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let sample = sample(&[&[1.0, 2.0, 3.0], &[2.0, 2.0, 5.0], &[4.0, 1.0, 3.0]]);
    for (resamples, confidence) in [(0, 0.95), (10, 0.0), (10, 1.0), (10, f64::NAN)] {
        let settings = Settings {
            resamples,
            confidence,
            ..settings(1)
        };
        for estimator in all() {
            let found = estimator(&sample, &settings);
            assert!(matches!(found, Err(Absent::OutOfRange { .. })));
        }
    }
}
