//! Whether and from when on the measurements of one execution are steady.
//!
//! The measurements are cut where mean or variance change (PELT: Killick, Fearnhead and
//! Eckley 2012; cost: twice the negative log likelihood of a normal distribution; penalty:
//! 10 ln n for each cut), and classified by their segments, as Barrett et al. 2017
//! ("Virtual machine warmup blows hot and cold") do. What differs from them:
//! - The penalty there is 15 ln n, for series of 2,000. In series of 50 to 100 that hides
//!   steps of three standard deviations; 10 ln n finds nine of ten and still takes noise
//!   for steady (`docs/statistics.md` has the figures).
//! - A segment counts as the last one where the 95 % interval (or what
//!   [`Settings::confidence`] says) of the difference of their means holds zero, or the
//!   difference is below 0.5 % of the last mean. There it is 1 ms.
//! - A last segment that is rather a line, by the same penalty, than a level never becomes
//!   steady: cuts do not see a slow drift.
//! - Outliers, which are left out, are single measurements or pairs. Longer runs may be
//!   phases, and those at the very beginning are the warm-up.

use crate::estimate::{Absent, Result, Settings};
use crate::layout::Moments;
use crate::order::{quantile_of_sorted, sorted};
use crate::student;

/// Fewer measurements say nothing.
const LEAST: usize = 10;
/// The shortest segment.
const SHORTEST: usize = 3;
/// What each cut costs, times ln n.
const PENALTY: f64 = 10.0;
/// Means that differ by less than this part are the same.
const SAME: f64 = 0.005;
/// Outliers are told by so many neighbours on either side.
const NEIGHBOURS: usize = 100;

/// Whether measurements are steady. A smaller one is the faster one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steady {
    /// From the first one on.
    Flat,
    /// It warms up: steady from this measurement, counted from 0, on, and faster than
    /// everything before.
    After(usize),
    /// Steady from this measurement, counted from 0, on, but slower than something before.
    SlowsDown(usize),
    /// Not before the last quarter, if ever.
    Never,
}

/// Looks at `values`, the measurements of one execution in the order in which they were
/// made. Nothing is drawn at random.
///
/// # Errors
/// With fewer than ten measurements, and where one is not finite.
pub fn look(values: &[f64], settings: &Settings) -> Result<Steady> {
    settings.check()?;
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        return Err(Absent::NotFinite {
            execution: 1,
            measurement: at + 1,
        });
    }
    if values.len() < LEAST {
        return Err(Absent::FewMeasurements {
            execution: 1,
            needed: LEAST,
            got: values.len(),
        });
    }
    let largest = values.iter().fold(0.0, |max: f64, v| max.max(v.abs()));
    if largest == 0.0 {
        return Ok(Steady::Flat);
    }
    let values: Vec<f64> = values.iter().map(|value| value / largest).collect();
    let segments = segments(&values);
    Ok(classify(&segments, values.len(), settings.confidence))
}

/// A stretch of measurements that are alike.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: usize,
    moments: Moments,
    /// Whether a line with a slope describes it better.
    drifts: bool,
}

impl Segment {
    fn new(start: usize, values: &[f64], penalty: f64) -> Segment {
        let costs = Costs::new(values);
        let gain = costs.of(0, values.len()) - costs.of_line(values);
        Segment {
            start,
            moments: Moments::of(values.iter().copied()),
            drifts: gain > penalty,
        }
    }
}

fn classify(segments: &[Segment], count: usize, confidence: f64) -> Steady {
    let Some((last, before)) = segments.split_last() else {
        return Steady::Flat;
    };
    if last.drifts {
        return Steady::Never;
    }
    let differs = |segment: &Segment| !is_same(&segment.moments, &last.moments, confidence);
    let Some(place) = before.iter().rposition(differs) else {
        return Steady::Flat;
    };
    let from = segments[place + 1].start;
    let faster = |segment: &Segment| segment.moments.mean < last.moments.mean;
    if from > count - count / 4 {
        Steady::Never
    } else if before.iter().any(|s| differs(s) && faster(s)) {
        Steady::SlowsDown(from)
    } else {
        Steady::After(from)
    }
}

/// Whether the means of two segments differ too little, or too uncertainly (Welch 1947).
fn is_same(a: &Moments, b: &Moments, confidence: f64) -> bool {
    let apart = (a.mean - b.mean).abs();
    if apart <= SAME * b.mean.abs() {
        return true;
    }
    if a.n < 2.0 || b.n < 2.0 {
        return false;
    }
    let (of_a, of_b) = (a.variance() / a.n, b.variance() / b.n);
    let both = of_a + of_b;
    if both == 0.0 {
        return false;
    }
    let degrees = both * both / (of_a * of_a / (a.n - 1.0) + of_b * of_b / (b.n - 1.0));
    apart <= student::quantile((1.0 + confidence) / 2.0, degrees) * both.sqrt()
}

/// Cuts `values`, without outliers, into segments.
fn segments(values: &[f64]) -> Vec<Segment> {
    let far = far_off(values);
    let lead = far.iter().take_while(|far| **far).count();
    let outliers = short_runs(&far);
    let kept: Vec<usize> = (lead..values.len()).filter(|at| !outliers[*at]).collect();
    let steady: Vec<f64> = kept.iter().map(|at| values[*at]).collect();
    let penalty = PENALTY * (values.len() as f64).ln();
    let mut starts = cuts(&steady, penalty);
    starts.insert(0, 0);
    let mut segments = Vec::new();
    if lead > 0 {
        segments.push(Segment::new(0, &values[..lead], penalty));
    }
    let ends = starts.iter().skip(1).copied().chain([steady.len()]);
    segments.extend(starts.iter().zip(ends).map(|(&start, end)| {
        let place = if start == 0 { lead } else { kept[start] };
        Segment::new(place, &steady[start..end], penalty)
    }));
    segments
}

/// Which values are further from the median of their neighbours than three times the
/// distance of the tenth from the ninetieth percentile (Barrett et al. 2017, section 4).
fn far_off(values: &[f64]) -> Vec<bool> {
    let count = values.len();
    let mut near = sorted(&values[..count.min(NEIGHBOURS)]).unwrap_or_default();
    let place =
        |near: &[f64], value: f64| near.partition_point(|other| other.total_cmp(&value).is_lt());
    let is_far = |at: usize| {
        // The neighbours of one are those of the one before, but for two.
        if let Some(next) = values.get(at + NEIGHBOURS) {
            near.insert(place(&near, *next), *next);
        }
        if let Some(last) = at.checked_sub(NEIGHBOURS + 1) {
            near.remove(place(&near, values[last]));
        }
        let quantile = |q| quantile_of_sorted(&near, q);
        (values[at] - quantile(0.5)).abs() > 3.0 * (quantile(0.9) - quantile(0.1))
    };
    (0..count).map(is_far).collect()
}

/// Those of `far` that stand alone or in pairs.
fn short_runs(far: &[bool]) -> Vec<bool> {
    let runs = far.chunk_by(|a, b| a == b);
    runs.flat_map(|run| std::iter::repeat_n(run[0] && run.len() < SHORTEST, run.len()))
        .collect()
}

/// Where a last segment may begin.
struct Start {
    at: usize,
    /// From this end on it cannot be the best.
    until: usize,
    /// What all up to the present end costs, but for the penalty.
    cost: f64,
}

impl Start {
    fn at(at: usize) -> Start {
        Start {
            at,
            until: usize::MAX,
            cost: f64::INFINITY,
        }
    }
}

/// Where PELT cuts `values`, without the beginning.
fn cuts(values: &[f64], penalty: f64) -> Vec<usize> {
    let costs = Costs::new(values);
    let n = values.len();
    // The least cost of the first so many values, and where their last segment begins.
    let mut best = vec![(f64::INFINITY, 0); n + 1];
    best[0] = (-penalty, 0);
    let mut starts = vec![Start::at(0)];
    for end in SHORTEST..=n {
        starts.retain(|start| start.until > end);
        for start in &mut starts {
            start.cost = best[start.at].0 + costs.of(start.at, end);
            let cost = start.cost + penalty;
            if cost < best[end].0 {
                best[end] = (cost, start.at);
            }
        }
        for start in &mut starts {
            // From the next place on where a segment can end that begins here.
            if start.cost > best[end].0 {
                start.until = start.until.min(end + SHORTEST);
            }
        }
        let next = end + 1 - SHORTEST;
        if next >= SHORTEST {
            starts.push(Start::at(next));
        }
    }
    let mut cuts = Vec::new();
    let mut end = n;
    while best[end].1 > 0 {
        end = best[end].1;
        cuts.push(end);
    }
    cuts.reverse();
    cuts
}

/// What segments cost.
struct Costs {
    /// Sums of the values, and of their squares, up to each place.
    sums: Vec<(f64, f64)>,
    /// The least variance there is: that of a clock's ticks.
    floor: f64,
}

impl Costs {
    fn new(values: &[f64]) -> Costs {
        let sorted = sorted(values).unwrap_or_default();
        let middle = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        let gaps = sorted.windows(2).map(|pair| pair[1] - pair[0]);
        let tick = gaps.filter(|gap| *gap > 0.0).fold(f64::INFINITY, f64::min);
        let tick = if tick.is_finite() {
            tick * tick / 12.0
        } else {
            0.0
        };
        // A change by less than a ten thousandth is none.
        let least = (1e-4 * middle).powi(2).max(1e-16);
        let mut sums = vec![(0.0, 0.0)];
        let mut sum = (0.0, 0.0);
        for value in values {
            let apart = value - middle;
            sum = (sum.0 + apart, sum.1 + apart * apart);
            sums.push(sum);
        }
        Costs {
            sums,
            floor: tick.max(least),
        }
    }

    /// Twice the negative log likelihood of values `start..end`, without what is common to
    /// all ways to cut: the variance that fits best, if it is not below the floor.
    fn of(&self, start: usize, end: usize) -> f64 {
        let n = (end - start) as f64;
        let sum = self.sums[end].0 - self.sums[start].0;
        let squares = self.sums[end].1 - self.sums[start].1;
        let variance = (squares / n - (sum / n) * (sum / n)).max(0.0);
        self.of_variance(n, variance)
    }

    /// The same for all `values` around the straight line that fits them best.
    fn of_line(&self, values: &[f64]) -> f64 {
        let moments = Moments::of(values.iter().copied());
        let middle = (moments.n - 1.0) / 2.0;
        let along = (0u32..).zip(values).map(|(at, value)| {
            let place = f64::from(at) - middle;
            (place * (value - moments.mean), place * place)
        });
        let (along, places) = along.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let explained = if places > 0.0 {
            along * along / places
        } else {
            0.0
        };
        let squares = (moments.squares - explained).max(0.0);
        self.of_variance(moments.n, squares / moments.n)
    }

    fn of_variance(&self, n: f64, found: f64) -> f64 {
        let variance = found.max(self.floor);
        n * (variance.ln() + found / variance)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::random::SplitMix64;

    /// About normal with deviation 1, from -6 to 6.
    fn noise(random: &mut SplitMix64) -> f64 {
        (0..12)
            .map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20))
            .sum::<f64>()
            - 6.0
    }

    /// Measurements of 100 that vary by 1, times what `shape` says.
    fn series(count: usize, seed: u64, shape: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut random = SplitMix64::new(seed);
        (0..count)
            .map(|at| shape(at) * (100.0 + noise(&mut random)))
            .collect()
    }

    fn steady(values: &[f64]) -> Steady {
        look(values, &Settings::default()).unwrap()
    }

    #[test]
    fn noise_is_flat_mostly() {
        let flat = (0..300)
            .filter(|seed| steady(&series(50, *seed, |_| 1.0)) == Steady::Flat)
            .count();
        assert!(flat >= 294, "{flat} of 300");
        assert_eq!(steady(&[7.0; 20]), Steady::Flat);
        assert_eq!(steady(&[0.0; 20]), Steady::Flat);
    }

    #[test]
    fn a_warm_up_ends_where_it_ends() {
        for seed in 0..50 {
            let warm = series(60, seed, |at| if at < 15 { 1.5 } else { 1.0 });
            assert_eq!(steady(&warm), Steady::After(15));
            let first = series(60, seed, |at| if at < 1 { 3.0 } else { 1.0 });
            assert_eq!(steady(&first), Steady::After(1));
            let steps = series(90, seed, |at| [1.6, 1.3, 1.0][(at / 20).min(2)]);
            assert_eq!(steady(&steps), Steady::After(40));
        }
        let mut exact = vec![10.0; 4];
        exact.resize(50, 5.0);
        assert_eq!(steady(&exact), Steady::After(4));
    }

    #[test]
    fn a_slowdown_is_told() {
        let slow = series(60, 3, |at| if at < 20 { 0.7 } else { 1.0 });
        assert_eq!(steady(&slow), Steady::SlowsDown(20));
    }

    #[test]
    fn what_never_settles_is_told() {
        let late = series(60, 3, |at| if at < 50 { 1.5 } else { 1.0 });
        assert_eq!(steady(&late), Steady::Never);
        let drift = series(100, 3, |at| 1.0 + at as f64 / 50.0);
        assert_eq!(steady(&drift), Steady::Never);
        let slow = series(100, 3, |at| 1.0 + at as f64 / 100.0);
        assert_eq!(steady(&slow), Steady::Never);
        let cycle = series(120, 3, |at| if at / 10 % 2 == 0 { 1.0 } else { 1.4 });
        assert_eq!(steady(&cycle), Steady::Never);
    }

    #[test]
    fn outliers_are_no_phases() {
        let collections = series(100, 3, |at| if at % 25 == 24 { 4.0 } else { 1.0 });
        assert_eq!(steady(&collections), Steady::Flat);
    }

    #[test]
    fn too_few_and_not_finite_are_refused() {
        assert!(matches!(
            look(&[1.0; 9], &Settings::default()),
            Err(Absent::FewMeasurements { got: 9, .. })
        ));
        let mut bad = vec![1.0; 20];
        bad[3] = f64::NAN;
        assert!(matches!(
            look(&bad, &Settings::default()),
            Err(Absent::NotFinite { measurement: 4, .. })
        ));
    }

    #[test]
    fn neighbours_are_those_on_either_side() {
        for count in [10, 100, 101, 150, 350] {
            let mut values = series(count, 5, |at| if at % 40 == 7 { 5.0 } else { 1.0 });
            values[3] = values[5];
            let is_far = |at: usize| {
                let (from, to) = (at.saturating_sub(NEIGHBOURS), at + NEIGHBOURS + 1);
                let near = sorted(&values[from..to.min(count)]).unwrap();
                let quantile = |q| quantile_of_sorted(&near, q);
                (values[at] - quantile(0.5)).abs() > 3.0 * (quantile(0.9) - quantile(0.1))
            };
            let right: Vec<bool> = (0..count).map(is_far).collect();
            assert_eq!(far_off(&values), right);
            assert_eq!(right.contains(&true), count > 7);
        }
    }

    /// The least cost of cutting `values`, tried in every way.
    fn naive(costs: &Costs, n: usize, penalty: f64) -> f64 {
        let mut best = vec![f64::INFINITY; n + 1];
        best[0] = -penalty;
        for end in SHORTEST..=n {
            for start in 0..=end - SHORTEST {
                best[end] = best[end].min(best[start] + costs.of(start, end) + penalty);
            }
        }
        best[n]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn pruning_loses_nothing(
            levels in vec((0.5f64..2.0, 1usize..15), 1..6),
            seed: u64,
            penalty in 1.0f64..60.0,
        ) {
            let mut random = SplitMix64::new(seed);
            let values: Vec<f64> = levels
                .iter()
                .flat_map(|(level, count)| vec![*level; *count])
                .map(|level| level + 0.05 * noise(&mut random))
                .collect();
            prop_assume!(values.len() >= SHORTEST);
            let costs = Costs::new(&values);
            let cuts = cuts(&values, penalty);
            let starts = [0].into_iter().chain(cuts.iter().copied());
            let ends = cuts.iter().copied().chain([values.len()]);
            let cost: f64 = starts.zip(ends).map(|(s, e)| costs.of(s, e) + penalty).sum();
            let least = naive(&costs, values.len(), penalty);
            prop_assert!((cost - penalty - least).abs() <= 1e-6 * (1.0 + least.abs()));
        }

        #[test]
        fn the_unit_does_not_matter(seed in 0u64..1000, unit in 1e-9f64..1e9) {
            let warm = series(60, seed, |at| if at < 15 { 1.5 } else { 1.0 });
            let scaled: Vec<f64> = warm.iter().map(|value| value * unit).collect();
            prop_assert_eq!(steady(&warm), steady(&scaled));
        }
    }
}
