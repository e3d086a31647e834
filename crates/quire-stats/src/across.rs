//! Groups of one measurement from each of several different executions, and what their standard
//! deviation, or their coefficient of variation, is on average.
//!
//! The average over all groups has no closed form, but the averages of a group's variance and
//! mean have, and those of the square of its variance, and of the product with its mean: sums over
//! executions say them. They give the average of the deviation to the second order
//! ([`Expected`]).
//! - For the sample itself, groups are drawn at random, and the chance in their variances and
//!   means, which is known, is taken out: control variates (Davison and Hinkley 1997, section
//!   9.3).
//! - When executions are drawn anew, their average is the one to the second order, times what that
//!   was off for the sample itself.

use crate::layout::{Layout, Moments};
use crate::random::SplitMix64;

/// How many groups are drawn of a sample.
const GROUPS: usize = 1024;
/// What is summed over executions.
pub(crate) const SUMS: usize = 11;

/// What is wanted of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statistic {
    /// Its standard deviation.
    Deviation,
    /// That over its mean; not a number where the mean is not above zero.
    Coefficient,
}

/// Sample variance and mean of a group, or their expectations.
#[derive(Clone, Copy, Debug)]
struct Group {
    variance: f64,
    mean: f64,
}

impl Statistic {
    fn of(self, group: Group) -> f64 {
        match self {
            Statistic::Deviation => group.variance.sqrt(),
            Statistic::Coefficient if group.mean > 0.0 => group.variance.sqrt() / group.mean,
            Statistic::Coefficient => f64::NAN,
        }
    }
}

/// Averages over groups across the executions of a sample.
#[derive(Debug)]
pub(crate) struct Across<'a> {
    layout: &'a Layout,
    statistic: Statistic,
    /// How many measurements a group has: from 2 to as many as there are executions.
    size: usize,
    /// What each execution adds to the sums.
    sums: Vec<[f64; SUMS]>,
    /// The origin of all moments: the mean of the sample.
    origin: f64,
    /// Of groups across all executions.
    counts: Counts,
    /// What the second order is off by, as a factor.
    factor: f64,
}

impl<'a> Across<'a> {
    /// Groups of `size` across the executions of `layout`.
    pub(crate) fn new(layout: &'a Layout, size: usize, statistic: Statistic) -> Across<'a> {
        let mean = |values: &[f64]| Moments::of(values.iter().copied()).mean;
        let origin = Moments::of(layout.executions().map(mean)).mean;
        Across {
            layout,
            statistic,
            size,
            sums: layout.executions().map(|one| sums(one, origin)).collect(),
            counts: Counts::new(layout.places().len(), size),
            origin,
            factor: 1.0,
        }
    }

    /// What each execution adds to what [`Across::average`] takes.
    pub(crate) fn sums(&self) -> &[[f64; SUMS]] {
        &self.sums
    }

    /// The average over groups across the sample's own executions. Fits the factor that
    /// [`Across::average`] uses. Not a number where a group has no such statistic.
    pub(crate) fn fit(&mut self, random: &mut SplitMix64) -> f64 {
        self.fit_to(GROUPS, random)
    }

    fn fit_to(&mut self, groups: usize, random: &mut SplitMix64) -> f64 {
        let expected = Expected::new(&self.total(), &self.counts, self.origin);
        let Expected { group, .. } = expected;
        let second = expected.second_order(self.statistic);
        let unit = self.statistic.of(group);
        let is_single = self.layout.longest() == 1 && self.size == self.sums.len();
        if is_single || unit.is_nan() || unit == 0.0 {
            return unit;
        }
        let mut fit = Fit::default();
        let mut slots: Vec<usize> = (0..self.sums.len()).collect();
        for _ in 0..groups {
            let one = self.draw(&mut slots, random);
            fit.add(self.statistic.of(one) / unit, controls(one, group));
        }
        let value = unit * fit.mean();
        self.factor = value / second;
        value
    }

    /// The average over groups across as many executions as there are, of which these are the sums.
    /// Not a number where there is none.
    #[inline]
    pub(crate) fn average(&self, sums: &[f64; SUMS]) -> f64 {
        self.average_of(sums, &self.counts)
    }

    #[inline]
    fn average_of(&self, sums: &[f64; SUMS], counts: &Counts) -> f64 {
        Expected::new(sums, counts, self.origin).second_order(self.statistic) * self.factor
    }

    /// The average over groups across all executions but one, for each of them.
    pub(crate) fn without_each(&self) -> Vec<f64> {
        let total = self.total();
        let counts = Counts::new(self.sums.len() - 1, self.size);
        let without = |one: &[f64; SUMS]| {
            let rest = std::array::from_fn(|n| total[n] - one[n]);
            self.average_of(&rest, &counts)
        };
        self.sums.iter().map(without).collect()
    }

    fn total(&self) -> [f64; SUMS] {
        let of = |n: usize| self.sums.iter().map(|one| one[n]).sum();
        std::array::from_fn(of)
    }

    /// A group across the sample's executions.
    fn draw(&self, slots: &mut [usize], random: &mut SplitMix64) -> Group {
        if self.size < slots.len() {
            choose(slots, self.size, random);
        }
        let value = |slot: &usize| {
            let values = &self.layout.values()[self.layout.places()[*slot].clone()];
            values[random.below(values.len())]
        };
        let moments = Moments::of(slots[..self.size].iter().map(value));
        Group {
            variance: moments.variance(),
            mean: moments.mean,
        }
    }
}

/// What an execution adds to the sums: products of the first four moments a, b, c and d of its
/// measurements about a common origin: a, b, c, d, a², ab, b², ac, a²b, a³, a⁴.
fn sums(values: &[f64], origin: f64) -> [f64; SUMS] {
    let moment = |power: i32| {
        let powers = values.iter().map(|value| (value - origin).powi(power));
        powers.sum::<f64>() / values.len() as f64
    };
    let [a, b, c, d] = [1, 2, 3, 4].map(moment);
    let square = a * a;
    [
        a,
        b,
        c,
        d,
        square,
        a * b,
        b * b,
        a * c,
        square * b,
        square * a,
        square * square,
    ]
}

/// Numbers of groups of so many of so many executions, of which the averages are made.
#[derive(Clone, Copy, Debug)]
struct Counts {
    n: f64,
    /// One over the number of ordered pairs of executions.
    per_pair: f64,
    /// What a group's mean square over the same pair and over two pairs with one measurement in
    /// common counts, and what that over pairs without counts.
    joined: f64,
    apart: f64,
    /// One over how many more executions there are for a third, and for a third and a fourth.
    per_third: f64,
    per_fourth: f64,
}

impl Counts {
    fn new(executions: usize, size: usize) -> Counts {
        let [n, size] = [executions, size.min(executions)].map(|count| count as f64);
        let per_pair = 1.0 / (n * (n - 1.0));
        let of_group = size * (size - 1.0) / 2.0;
        let per = |count: f64| if size > 3.0 { 1.0 / count } else { 0.0 };
        Counts {
            n,
            per_pair,
            joined: (size - 1.0) / of_group / 2.0 * per_pair,
            apart: (size - 2.0) * (size - 3.0) / 2.0 / of_group * per_pair,
            per_third: per(n - 2.0),
            per_fourth: per((n - 2.0) * (n - 3.0)),
        }
    }
}

/// What is known of groups on average.
#[derive(Clone, Copy, Debug)]
struct Expected {
    group: Group,
    /// The square of a group's variance.
    square: f64,
    /// The variance of its mean.
    of_mean: f64,
    /// The covariance of its variance and its mean.
    of_both: f64,
}

impl Expected {
    /// Of groups of executions whose measurements are all independent. The variance of a group is
    /// the mean of (x - y)²/2 over its pairs, so its square is the mean over pairs of pairs: of the
    /// same, of two with one measurement in common, and of two without. These means over the group
    /// are on average those over all executions, which follow from sums over sets of different
    /// executions.
    #[inline]
    fn new(sums: &[f64; SUMS], counts: &Counts, origin: f64) -> Expected {
        let [a, b, c, d, aa, ab, bb, ac, aab, aaa, aaaa] = *sums;
        let n = counts.n;
        let different = (n - 1.0) * b - (a * a - aa);
        // Where it is but what rounding leaves, nothing varies.
        let variance = match different > 1e-13 * n * b {
            true => different * counts.per_pair,
            false => 0.0,
        };
        let two = b * b - bb;
        let joined = (n - 1.0) * d - 4.0 * (a * c - ac) + 3.0 * two;
        let square = a * a;
        let three = square * b - aa * b - 2.0 * a * ab + 2.0 * aab;
        let four = square * (square - 6.0 * aa) + 3.0 * aa * aa + 8.0 * a * aaa - 6.0 * aaaa;
        let apart = two + four * counts.per_fourth - 2.0 * three * counts.per_third;
        let square = counts.joined * joined + counts.apart * apart;
        // Of groups of all executions; only these are asked for their coefficients.
        let of_all = (n - 1.0) * counts.per_pair;
        let mean = a * of_all;
        let third = c - 3.0 * ab + 2.0 * aaa;
        let both = (n - 1.0) * of_all * third + 2.0 * (ab - aaa - mean * (b - aa));
        Expected {
            group: Group {
                variance,
                mean: origin + mean,
            },
            square: square.max(variance * variance),
            of_mean: (b - aa) * of_all * of_all,
            of_both: both * counts.per_pair,
        }
    }

    /// The average of a statistic, to the second order: that of the deviation is √s / √(1 + v/4),
    /// where s is the average variance and v its squared coefficient of variation. That is 1 - v/8
    /// times √s for small v, and close to what it is of the gamma distribution for larger ones.
    #[inline]
    fn second_order(&self, statistic: Statistic) -> f64 {
        let Group { variance, mean } = self.group;
        if variance == 0.0 {
            return statistic.of(self.group);
        }
        let square = variance * variance;
        let deviation = (4.0 * variance * square / (3.0 * square + self.square)).sqrt();
        match statistic {
            Statistic::Deviation => deviation,
            Statistic::Coefficient if mean > 0.0 => {
                let per_mean = 1.0 / mean;
                let both = self.of_both / (2.0 * variance);
                // Beyond these bounds two orders say nothing.
                let rest = 1.0 + (self.of_mean * per_mean - both) * per_mean;
                deviation * per_mean * rest.clamp(0.5, 2.0)
            }
            Statistic::Coefficient => f64::NAN,
        }
    }
}

/// Brings `count` of `items` at random to the front.
pub(crate) fn choose<T>(items: &mut [T], count: usize, random: &mut SplitMix64) {
    for place in 0..count {
        let other = place + random.below(items.len() - place);
        items.swap(place, other);
    }
}

/// What in a group is known to be chance: both are zero on average.
#[inline]
fn controls(group: Group, expected: Group) -> [f64; 2] {
    [
        group.variance / expected.variance - 1.0,
        (group.mean - expected.mean) / expected.variance.sqrt(),
    ]
}

/// The least squares fit of a statistic by two controls.
#[derive(Debug, Default)]
struct Fit {
    n: f64,
    /// Sums of the statistic and the controls.
    sums: [f64; 3],
    /// Sums of products of the statistic with the controls.
    along: [f64; 2],
    /// Sums of the products of the controls: first with first, with second, second with
    /// second.
    controls: [f64; 3],
}

impl Fit {
    fn add(&mut self, statistic: f64, [a, b]: [f64; 2]) {
        self.n += 1.0;
        for (sum, value) in self.sums.iter_mut().zip([statistic, a, b]) {
            *sum += value;
        }
        self.along = [self.along[0] + statistic * a, self.along[1] + statistic * b];
        for (sum, value) in self.controls.iter_mut().zip([a * a, a * b, b * b]) {
            *sum += value;
        }
    }

    fn coefficients(&self) -> [f64; 2] {
        let [statistic, a, b] = self.sums.map(|sum| sum / self.n);
        let along = [
            self.along[0] / self.n - statistic * a,
            self.along[1] / self.n - statistic * b,
        ];
        let [aa, ab, bb] = self.controls.map(|sum| sum / self.n);
        let (aa, ab, bb) = (aa - a * a, ab - a * b, bb - b * b);
        let determinant = aa * bb - ab * ab;
        if determinant > 1e-9 * aa * bb {
            [
                (along[0] * bb - along[1] * ab) / determinant,
                (along[1] * aa - along[0] * ab) / determinant,
            ]
        } else if aa > 0.0 {
            [along[0] / aa, 0.0]
        } else {
            [0.0; 2]
        }
    }

    /// The mean of the statistic without what its controls say is chance.
    fn mean(&self) -> f64 {
        let coefficients = self.coefficients();
        let [statistic, a, b] = self.sums;
        (statistic - coefficients[0] * a - coefficients[1] * b) / self.n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn layout() -> Layout {
        let executions = [
            vec![10.0, 11.0, 12.0],
            vec![14.0],
            vec![9.0, 9.0],
            vec![20.0, 10.0, 11.0, 13.0],
        ];
        Layout::of(&Sample::new(executions.to_vec()).unwrap())
    }

    /// The mean of a figure over all groups there are, which are few.
    fn over_all(layout: &Layout, size: usize, figure: impl Fn(Group) -> f64) -> f64 {
        let executions: Vec<&[f64]> = layout.executions().collect();
        let (mut sum, mut weights) = (0.0, 0.0);
        for chosen in (0u32..16).filter(|set| set.count_ones() as usize == size) {
            let chosen: Vec<&[f64]> = (0..4)
                .filter(|e| chosen & (1 << e) != 0)
                .map(|e| executions[e])
                .collect();
            let all: usize = chosen.iter().map(|values| values.len()).product();
            for mut number in 0..all {
                let mut pick = |values: &&[f64]| {
                    let value = values[number % values.len()];
                    number /= values.len();
                    value
                };
                let moments = Moments::of(chosen.iter().map(&mut pick).collect::<Vec<_>>());
                let group = Group {
                    variance: moments.variance(),
                    mean: moments.mean,
                };
                sum += figure(group) / all as f64;
            }
            weights += 1.0;
        }
        sum / weights
    }

    const BOTH: [Statistic; 2] = [Statistic::Deviation, Statistic::Coefficient];

    #[test]
    fn the_mean_over_groups_agrees_with_all_of_them() {
        let layout = layout();
        for statistic in BOTH {
            for size in 2..=4 {
                let random = &mut SplitMix64::new(3);
                let found = Across::new(&layout, size, statistic).fit_to(100_000, random);
                let right = over_all(&layout, size, |group| statistic.of(group));
                assert!(
                    (found / right - 1.0).abs() < 3e-3,
                    "{statistic:?} {size}: {found} {right}"
                );
            }
        }
    }

    #[test]
    fn what_is_expected_is_the_mean_over_all_groups() {
        let layout = layout();
        let close =
            |found: f64, right: f64| assert!((found / right - 1.0).abs() < 1e-9, "{found} {right}");
        for size in 2..=4 {
            let across = Across::new(&layout, size, Statistic::Deviation);
            let expected = Expected::new(&across.total(), &across.counts, across.origin);
            let all = |of: fn(Group) -> f64| over_all(&layout, size, of);
            let (variance, mean) = (all(|g| g.variance), all(|g| g.mean));
            close(expected.group.variance, variance);
            close(expected.group.mean, mean);
            close(expected.square, all(|g| g.variance * g.variance));
            if size == 4 {
                close(expected.of_mean, all(|g| g.mean * g.mean) - mean * mean);
                let both = all(|g| g.variance * g.mean) - variance * mean;
                close(expected.of_both, both);
            }
        }
    }

    /// Executions that are drawn anew, as they are for an interval: what their sums say is the mean
    /// over many groups of them.
    #[test]
    fn the_second_order_follows_executions_that_are_drawn_anew() {
        let mut random = SplitMix64::new(8);
        let mut number = || random.below(1000) as f64 / 1000.0;
        let execution = |_| {
            let own = 10.0 + number().powi(3);
            (0..8).map(|_| own + 0.5 * number().powi(2)).collect()
        };
        let sample: Vec<Vec<f64>> = (0..12).map(execution).collect();
        let layout = Layout::of(&Sample::new(sample).unwrap());
        for (statistic, size) in [
            (Statistic::Deviation, 12),
            (Statistic::Deviation, 6),
            (Statistic::Coefficient, 12),
        ] {
            let mut across = Across::new(&layout, size, statistic);
            across.fit(&mut SplitMix64::new(1));
            for seed in 0..20 {
                let mut random = SplitMix64::new(seed);
                let drawn: Vec<usize> = (0..12).map(|_| random.below(12)).collect();
                let of = |n: usize| drawn.iter().map(|one| across.sums()[*one][n]).sum();
                let found = across.average(&std::array::from_fn(of));
                let again = drawn.iter().map(|one| {
                    let values = &layout.values()[layout.places()[*one].clone()];
                    values.iter().map(|value| value * layout.scale).collect()
                });
                let again = Layout::of(&Sample::new(again.collect()).unwrap());
                let right = Across::new(&again, size, statistic).fit_to(20_000, &mut random);
                let right = match statistic {
                    Statistic::Deviation => right * again.scale / layout.scale,
                    Statistic::Coefficient => right,
                };
                assert!(
                    (found / right - 1.0).abs() < 0.02,
                    "{statistic:?} {size} {seed}: {found} {right}"
                );
            }
        }
    }
}
