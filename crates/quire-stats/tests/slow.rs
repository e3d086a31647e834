//! Every estimator against closed forms, and against slow implementations that are written
//! from the definitions, with a generator of their own.

use quire_stats::components::{self, Level, Nested};
use quire_stats::{
    Absent, Estimate, Intervals, Sample, Settings, impact, mean, median, ratio, student, variation,
};

/// A generator that has nothing in common with the library's (Marsaglia 2003).
struct Xorshift(u64);

impl Xorshift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        ((self.next() >> 11) % bound as u64) as usize
    }

    fn normal(&mut self) -> f64 {
        let mut uniform = || ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let (a, b) = (uniform(), uniform());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// `count` different ones.
    fn choose<T: Clone>(&mut self, items: &[T], count: usize) -> Vec<T> {
        let mut left = items.to_vec();
        (0..count)
            .map(|_| left.swap_remove(self.below(left.len())))
            .collect()
    }
}

type Data = Vec<Vec<f64>>;

fn average(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    let mean = average(values);
    let squares = values.iter().map(|v| (v - mean).powi(2));
    squares.sum::<f64>() / (values.len() - 1) as f64
}

/// Every level drawn anew.
fn redraw(data: &Data, random: &mut Xorshift) -> Data {
    let execution = |random: &mut Xorshift| {
        let values = random.pick(data).clone();
        values.iter().map(|_| *random.pick(&values)).collect()
    };
    data.iter().map(|_| execution(random)).collect()
}

/// Only executions drawn anew.
fn redraw_executions(data: &Data, random: &mut Xorshift) -> Data {
    data.iter().map(|_| random.pick(data).clone()).collect()
}

fn grand_mean(data: &Data) -> f64 {
    average(
        &data
            .iter()
            .map(|values| average(values))
            .collect::<Vec<_>>(),
    )
}

fn interval(mut draws: Vec<f64>) -> (f64, f64) {
    draws.sort_by(f64::total_cmp);
    let at = |q: f64| draws[(q * (draws.len() - 1) as f64).round() as usize];
    (at(0.025), at(0.975))
}

/// Whether the value and both ends agree, to `part` of the width of the interval.
#[track_caller]
fn assert_agrees(found: Estimate, value: f64, (low, high): (f64, f64), part: f64) {
    let within = part * (high - low);
    for (found, right) in [
        (found.value, value),
        (found.ci_low, low),
        (found.ci_high, high),
    ] {
        assert!(
            (found - right).abs() <= within,
            "{found} is not {right} ({within})"
        );
    }
}

/// Normal, skewed and ragged data; groups of 3 to 7.
fn cases() -> Vec<Data> {
    let mut random = Xorshift(88_172_645_463_325_252);
    let normal = (0..12).map(|_| {
        let own = 100.0 + 3.0 * random.normal();
        (0..7).map(|_| own + 2.0 * random.normal()).collect()
    });
    let normal: Data = normal.collect();
    let skewed = (0..8).map(|e| {
        let own = random.normal();
        let count = 3 + e % 5;
        (0..count)
            .map(|_| (0.3 * (own + random.normal())).exp())
            .collect()
    });
    let skewed: Data = skewed.collect();
    let mut long: Data = vec![(0..70).map(|_| 10.0 + random.normal()).collect(); 5];
    long[0].iter_mut().for_each(|value| *value += 2.0);
    long[3].iter_mut().for_each(|value| *value += 4.0);
    long[4].truncate(65);
    vec![normal, skewed, long]
}

fn settings() -> Settings {
    Settings {
        resamples: 40_000,
        ..Settings::default()
    }
}

fn sample(data: &Data) -> Sample {
    Sample::new(data.clone()).unwrap()
}

fn repeat(count: usize, draw: impl FnMut() -> f64) -> Vec<f64> {
    std::iter::repeat_with(draw).take(count).collect()
}

#[test]
fn the_two_level_mean_has_a_closed_form() {
    // Means 1, 2 and 6: mean 3, variance 7, t of 2 degrees 4.3027.
    let data = vec![vec![0.0, 2.0], vec![1.0, 2.0, 3.0], vec![6.0]];
    let found = mean::of(&sample(&data), &settings()).unwrap();
    let error = 4.302_652_729_911 * (7.0f64 / 3.0).sqrt();
    assert!((found.value - 3.0).abs() < 1e-12);
    assert!((found.error() - error).abs() < 1e-9);
    assert!((student::quantile(0.975, 2.0) - 4.302_652_729_911).abs() < 1e-9);
    for data in cases() {
        let means: Vec<f64> = data.iter().map(|values| average(values)).collect();
        let n = means.len() as f64;
        let error = student::quantile(0.975, n - 1.0) * (variance(&means) / n).sqrt();
        let found = mean::of(&sample(&data), &settings()).unwrap();
        let ends = (average(&means) - error, average(&means) + error);
        assert_agrees(found, average(&means), ends, 1e-9);
    }
}

#[test]
fn the_bootstrapped_mean_of_single_measurements_agrees() {
    let data: Data = cases()[1].iter().map(|values| vec![values[0]]).collect();
    let found = mean::bootstrap(&sample(&data), &settings()).unwrap();
    let random = &mut Xorshift(5);
    let draws = repeat(40_000, || grand_mean(&redraw(&data, random)));
    assert_agrees(found, grand_mean(&data), interval(draws), 0.03);
}

#[test]
fn the_bootstrapped_mean_agrees() {
    for data in cases() {
        let random = &mut Xorshift(5);
        let draws = repeat(40_000, || grand_mean(&redraw(&data, random)));
        let found = mean::bootstrap(&sample(&data), &settings()).unwrap();
        assert_agrees(found, grand_mean(&data), interval(draws), 0.03);
    }
}

#[test]
fn the_median_agrees() {
    for data in cases() {
        let random = &mut Xorshift(6);
        let of = |data: &Data| {
            let mut values = data.concat();
            values.sort_by(f64::total_cmp);
            let n = values.len();
            (values[(n - 1) / 2] + values[n / 2]) / 2.0
        };
        let draws = repeat(20_000, || of(&redraw(&data, random)));
        let found = median::of(&sample(&data), &settings()).unwrap();
        assert_agrees(found, of(&data), interval(draws), 0.05);
    }
}

#[test]
fn variation_within_agrees() {
    for data in cases() {
        let random = &mut Xorshift(7);
        let of = |data: &Data| {
            let one = |values: &Vec<f64>| variance(values).sqrt() / average(values);
            average(&data.iter().map(one).collect::<Vec<_>>())
        };
        let draws = repeat(40_000, || of(&redraw_executions(&data, random)));
        let found = variation::within(&sample(&data), &settings()).unwrap();
        assert_agrees(found, of(&data), interval(draws), 0.03);
    }
}

/// The mean over many groups of one measurement of each execution.
fn slow_unclassified(data: &Data, groups: usize, random: &mut Xorshift) -> f64 {
    let one = || {
        let group: Vec<f64> = data.iter().map(|values| *random.pick(values)).collect();
        variance(&group).sqrt() / average(&group)
    };
    average(&repeat(groups, one))
}

#[test]
fn unclassified_variation_agrees() {
    for data in cases() {
        let random = &mut Xorshift(8);
        let value = slow_unclassified(&data, 100_000, random);
        let draws = repeat(3000, || {
            slow_unclassified(&redraw_executions(&data, random), 300, random)
        });
        let found = variation::unclassified(&sample(&data), &settings()).unwrap();
        assert_agrees(found, value, interval(draws), 0.06);
    }
}

#[test]
fn unclassified_variation_of_single_measurements_has_a_closed_form() {
    let data = vec![vec![1.0], vec![2.0], vec![3.0], vec![6.0]];
    let found = variation::unclassified(&sample(&data), &settings()).unwrap();
    assert!((found.value - (14.0f64 / 3.0).sqrt() / 3.0).abs() < 1e-12);
    let random = &mut Xorshift(9);
    let of = |data: &Data| variance(&data.concat()).sqrt() / average(&data.concat());
    let draws = repeat(40_000, || of(&redraw(&data, random)));
    assert_agrees(found, of(&data), interval(draws), 0.03);
}

/// The mean of the ratios of pairs of groups, as paper 002 has it, pair by pair. `None`
/// where a group within does not vary in any pair.
fn slow_impact(data: &Data, pairs: usize, random: &mut Xorshift) -> Option<f64> {
    let shortest = data.iter().map(Vec::len).min().unwrap();
    let size = shortest.min(data.len());
    let mut ratios = Vec::new();
    for _ in 0..pairs {
        let executions = random.choose(data, size);
        let across: Vec<f64> = executions.iter().map(|v| *random.pick(v)).collect();
        let execution = random.pick(data).clone();
        let within = random.choose(&execution, size);
        if variance(&within) > 0.0 {
            ratios.push((variance(&across) / variance(&within)).sqrt());
        }
    }
    (!ratios.is_empty()).then(|| average(&ratios))
}

#[test]
fn the_impact_factor_agrees_with_ratios_pair_by_pair() {
    for data in cases() {
        let random = &mut Xorshift(10);
        let value = slow_impact(&data, 200_000, random).unwrap();
        let draws = repeat(1000, || {
            slow_impact(&redraw_executions(&data, random), 1000, random).unwrap()
        });
        let found = impact::factor(&sample(&data), &settings()).unwrap();
        assert_agrees(found, value, interval(draws), 0.08);
    }
}

#[test]
fn groups_that_do_not_vary_are_left_out() {
    let mut data = cases()[0].clone();
    data[2] = vec![99.0; 7];
    data[5] = vec![101.0, 101.0, 101.0, 101.0, 101.0, 101.0, 103.0];
    let value = slow_impact(&data, 200_000, &mut Xorshift(11)).unwrap();
    let found = impact::factor(&sample(&data), &settings()).unwrap();
    assert!(
        (found.value / value - 1.0).abs() < 0.01,
        "{found:?} {value}"
    );
    assert!(found.ci_high.is_finite());
}

#[test]
fn an_impact_factor_of_whole_executions_has_a_closed_form() {
    // Three executions of three: within, the group is the execution, with deviations 1, 2
    // and 1. Across, executions lie so far apart that it hardly matters which measurement
    // is drawn: the deviation is 1e6 times that of 0, 1 and 2, which is 1.
    let execution = |own: f64, step: f64| vec![own - step, own, own + step];
    let data = vec![
        execution(1e6, 1.0),
        execution(2e6, 2.0),
        execution(3e6, 1.0),
    ];
    let found = impact::factor(&sample(&data), &settings()).unwrap();
    let right = 1e6 * (1.0 + 0.5 + 1.0) / 3.0;
    assert!((found.value / right - 1.0).abs() < 1e-6, "{found:?}");
}

#[test]
fn ratios_of_means_agree() {
    let cases = cases();
    for (new, old) in [(&cases[0], &cases[2]), (&cases[1], &cases[0])] {
        let random = &mut Xorshift(12);
        let draws = repeat(40_000, || {
            grand_mean(&redraw(new, random)) / grand_mean(&redraw(old, random))
        });
        let found = ratio::of_means(&sample(new), &sample(old), &settings()).unwrap();
        let value = grand_mean(new) / grand_mean(old);
        assert_agrees(found, value, interval(draws), 0.03);
    }
}

#[test]
fn a_geometric_mean_weighs_doubling_and_halving_alike() {
    let ratio = |value| Estimate {
        value,
        ci_low: value,
        ci_high: value,
    };
    let mean = ratio::geometric_mean(&[ratio(2.0), ratio(0.5)]).unwrap();
    assert!((mean - 1.0).abs() < 1e-12);
    assert_eq!(
        ratio::geometric_mean(&[ratio(2.0), ratio(0.0)]),
        Err(Absent::MeanNotPositive)
    );
    assert!(ratio::geometric_mean(&[]).is_err());
}

fn close(found: f64, right: f64) -> bool {
    (found - right).abs() <= 1e-9 * right.abs().max(1.0)
}

#[test]
fn components_of_two_levels_are_those_of_the_analysis_of_variance() {
    let data = &cases()[0];
    let within = average(&data.iter().map(|v| variance(v)).collect::<Vec<_>>());
    let means: Vec<f64> = data.iter().map(|values| average(values)).collect();
    let levels = components::of(&Nested::from(&sample(data))).unwrap();
    assert_eq!((levels[0].size, levels[1].size), (12.0, 7.0));
    assert!(close(levels[1].variance, within));
    assert!(close(levels[0].variance, variance(&means) - within / 7.0));
}

#[test]
fn a_component_may_be_negative() {
    let data = vec![vec![1.0, 5.0], vec![5.0, 1.0], vec![2.0, 4.0]];
    let levels = components::of(&Nested::from(&sample(&data))).unwrap();
    // Means are all 3; within: 8, 8 and 2.
    assert!(close(levels[1].variance, 6.0));
    assert!(close(levels[0].variance, -3.0));
}

/// Builds of executions of measurements, `sizes` of each; deviations 3, 2 and 1.
fn three_levels(sizes: &[&[usize]], random: &mut Xorshift) -> Nested {
    let builds = sizes.iter().map(|executions| {
        let build = 3.0 * random.normal();
        let executions = executions.iter().map(|count| {
            let own = build + 2.0 * random.normal();
            Nested::Group(
                (0..*count)
                    .map(|_| Nested::Value(own + random.normal()))
                    .collect(),
            )
        });
        Nested::Group(executions.collect())
    });
    Nested::Group(builds.collect())
}

fn held(nested: &Nested) -> &[Nested] {
    match nested {
        Nested::Group(held) => held,
        Nested::Value(_) => &[],
    }
}

fn mean_of(nested: &Nested) -> f64 {
    match nested {
        Nested::Value(value) => *value,
        Nested::Group(held) => average(&held.iter().map(mean_of).collect::<Vec<_>>()),
    }
}

/// The biased components of Kalibera and Jones at one level: the mean over its groups of
/// the variance of the means of what they hold.
fn biased(groups: &[&Nested]) -> f64 {
    let variance = |group: &&Nested| variance(&held(group).iter().map(mean_of).collect::<Vec<_>>());
    average(&groups.iter().map(variance).collect::<Vec<_>>())
}

#[test]
fn components_of_three_levels_are_those_of_kalibera_and_jones() {
    let executions: &[usize] = &[5; 4];
    let nested = three_levels(&[executions; 6], &mut Xorshift(13));
    let builds: Vec<&Nested> = held(&nested).iter().collect();
    let executions: Vec<&Nested> = builds.iter().flat_map(|build| held(build)).collect();
    let (outer, middle, inner) = (biased(&[&nested]), biased(&builds), biased(&executions));
    let levels = components::of(&nested).unwrap();
    assert!(close(levels[2].variance, inner));
    assert!(close(levels[1].variance, middle - inner / 5.0));
    assert!(close(levels[0].variance, outer - middle / 4.0));
}

#[test]
fn components_of_ragged_data_have_no_bias() {
    let sizes: [&[usize]; 5] = [&[1, 2, 9], &[4], &[3, 3], &[1, 1, 1, 6], &[2, 8]];
    let mut random = Xorshift(14);
    let trials = 20_000;
    let mut sums = [0.0; 3];
    for _ in 0..trials {
        let levels = components::of(&three_levels(&sizes, &mut random)).unwrap();
        assert_eq!(levels.len(), 3);
        for (sum, level) in sums.iter_mut().zip(levels) {
            *sum += level.variance / f64::from(trials);
        }
    }
    // Standard errors are about 0.06, 0.03 and 0.003.
    for (found, right) in sums.into_iter().zip([9.0, 4.0, 1.0]) {
        assert!((found / right - 1.0).abs() < 0.03, "{sums:?}");
    }
}

/// The cost at which `repetitions` reach a given precision, but for a factor: variance of
/// the mean of one unit of the outermost level, times its cost.
fn price(levels: &[Level], costs: &[f64], repetitions: &[f64]) -> f64 {
    let (mut variance, mut cost, mut units) = (0.0, 0.0, 1.0);
    for (place, level) in levels.iter().enumerate() {
        if place > 0 {
            units *= repetitions[place - 1];
        }
        variance += level.variance.max(0.0) / units;
        cost += costs[place] * units;
    }
    variance * cost
}

#[test]
fn no_plan_on_a_grid_is_cheaper() {
    let mut random = Xorshift(15);
    for _ in 0..100 {
        let any = |random: &mut Xorshift| (2.0 * random.normal()).exp();
        let levels: Vec<Level> = (0..3)
            .map(|_| Level {
                size: 2.0,
                variance: any(&mut random) - 0.1,
            })
            .collect();
        let costs: Vec<f64> = (0..3).map(|_| any(&mut random)).collect();
        let Ok(plan) = components::plan(&levels, &costs) else {
            assert!(levels[0].variance <= 0.0);
            continue;
        };
        assert!(plan.iter().all(|count| *count >= 1.0));
        let best = price(&levels, &costs, &plan);
        for outer in 0..60 {
            for inner in 0..60 {
                let grid = [outer, inner].map(|at| 1.2f64.powi(at));
                assert!(
                    best <= price(&levels, &costs, &grid) * (1.0 + 1e-9),
                    "{plan:?}"
                );
            }
        }
    }
}

/// The part of the normal distribution below `z`, by Simpson's rule over its density.
fn normal_below(z: f64) -> f64 {
    let density = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let (steps, width) = (2000, z / 2000.0);
    let inner = (1..steps).map(|i| density(f64::from(i) * width) * f64::from(2 + 2 * (i % 2)));
    0.5 + (density(0.0) + inner.sum::<f64>() + density(z)) * width / 3.0
}

fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        match normal_below(middle) < p {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

/// The corrected interval from the definitions of Efron 1987: `draws` of `value`, and the
/// influences of executions.
fn bca(value: f64, mut draws: Vec<f64>, influences: &[f64]) -> (f64, f64) {
    draws.sort_by(f64::total_cmp);
    let below = draws.iter().filter(|draw| **draw < value).count();
    let bias = normal_quantile(below as f64 / draws.len() as f64);
    let cubes: f64 = influences.iter().map(|one| one.powi(3)).sum();
    let squares: f64 = influences.iter().map(|one| one.powi(2)).sum();
    let acceleration = cubes / (6.0 * squares.powf(1.5));
    let at = |tail: f64| {
        let z = bias + normal_quantile(tail);
        let part = normal_below(bias + z / (1.0 - acceleration * z));
        draws[(part * (draws.len() - 1) as f64).round() as usize]
    };
    (at(0.025), at(0.975))
}

/// How much each execution moves `statistic`: by leaving each out.
fn jackknife(data: &Data, statistic: impl Fn(&Data) -> f64) -> Vec<f64> {
    let without = |left_out: usize| {
        let mut rest = data.clone();
        rest.remove(left_out);
        statistic(&rest)
    };
    let without: Vec<f64> = (0..data.len()).map(without).collect();
    let mean = average(&without);
    without.iter().map(|value| mean - value).collect()
}

fn corrected() -> Settings {
    Settings {
        intervals: Intervals::Bca,
        ..settings()
    }
}

/// One measurement an execution, of which some are far off.
fn singles() -> Data {
    let mut random = Xorshift(4_711);
    (0..15)
        .map(|_| vec![(0.5 * random.normal()).exp()])
        .collect()
}

#[test]
fn corrected_intervals_of_unclassified_variation() {
    let data = singles();
    let random = &mut Xorshift(99);
    let of = |data: &Data| variance(&data.concat()).sqrt() / average(&data.concat());
    let draws = repeat(40_000, || of(&redraw_executions(&data, random)));
    let right = bca(of(&data), draws, &jackknife(&data, of));
    let found = variation::unclassified(&sample(&data), &corrected()).unwrap();
    assert_agrees(found, of(&data), right, 0.03);
    // They are other ones than the percentile intervals.
    let plain = variation::unclassified(&sample(&data), &settings()).unwrap();
    assert!(
        found.ci_high - plain.ci_high > 0.1 * plain.error(),
        "{found:?} {plain:?}"
    );
}

#[test]
fn corrected_intervals_of_variation_across_several_measurements() {
    let data = cases().remove(1);
    let random = &mut Xorshift(8);
    let draws = repeat(3000, || {
        slow_unclassified(&redraw_executions(&data, random), 300, random)
    });
    let of = |data: &Data| slow_unclassified(data, 100_000, &mut Xorshift(9));
    let right = bca(of(&data), draws, &jackknife(&data, of));
    let found = variation::unclassified(&sample(&data), &corrected()).unwrap();
    assert_agrees(found, of(&data), right, 0.08);
}

#[test]
fn what_is_not_corrected_is_as_it_is() {
    let data = cases().remove(0);
    for estimator in [mean::of, mean::bootstrap, median::of, variation::within] {
        let [plain, other] = [settings(), corrected()].map(|s| estimator(&sample(&data), &s));
        assert_eq!(plain, other);
    }
}

#[test]
fn corrected_intervals_of_the_impact_factor() {
    let data = cases().remove(0);
    let random = &mut Xorshift(7);
    let of = |data: &Data, pairs| slow_impact(data, pairs, &mut Xorshift(8)).unwrap();
    let value = of(&data, 200_000);
    let draws = repeat(1500, || {
        slow_impact(&redraw_executions(&data, random), 1000, random).unwrap()
    });
    let influences = jackknife(&data, |rest| of(rest, 50_000));
    let right = bca(value, draws, &influences);
    let found = impact::factor(&sample(&data), &corrected()).unwrap();
    assert_agrees(found, value, right, 0.12);
}
