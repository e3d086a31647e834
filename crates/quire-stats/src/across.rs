//! Groups of one measurement from each of several different executions, and what a
//! statistic of such a group is on average.
//!
//! The average over all groups has no closed form, but the averages of a group's variance
//! and mean have: with execution means m and variances within them v, they are the mean of
//! v plus the sample variance of m, and the mean of m. So groups are drawn at random, and
//! the chance in their variances and means, which is known, is taken out of the statistic:
//! control variates (Davison and Hinkley 1997, section 9.3). Their coefficients are fitted
//! once, to groups across the sample's own executions. What is left of the chance is about
//! a tenth of what it was for groups of 20 of normal data, so that [`GROUPS`] do the work
//! of hundreds.

use crate::layout::{Layout, Moments};
use crate::random::{SplitMix64, per_word};
use crate::resample::draw;

/// How many groups are drawn for each resample: a multiple of the three numbers that a
/// random word gives.
const GROUPS: usize = 3;

/// Sample variance and mean of a group, or their expectations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub variance: f64,
    pub mean: f64,
}

/// Draws executions, and groups across them.
#[derive(Debug)]
pub(crate) struct Across<'a, F> {
    layout: &'a Layout,
    /// Mean and population variance of each execution.
    executions: Vec<Group>,
    /// A figure of a group, in proportion to its standard deviation.
    statistic: F,
    /// How many measurements a group has: from 2 to as many as there are executions.
    size: usize,
    /// How many numbers below the length of the longest execution one word gives.
    per_word: usize,
    /// The executions that groups are drawn from; one may be there several times.
    slots: Vec<usize>,
    /// How much of the statistic goes along with each of [`controls`].
    coefficients: [f64; 2],
}

impl<'a, F: Fn(Group) -> f64> Across<'a, F> {
    /// Groups of `size` across the executions of `layout`, and their `statistic`.
    pub(crate) fn new(layout: &'a Layout, size: usize, statistic: F) -> Across<'a, F> {
        let group = |values: &[f64]| {
            let moments = Moments::of(values.iter().copied());
            Group {
                variance: moments.population_variance(),
                mean: moments.mean,
            }
        };
        let executions: Vec<Group> = layout.executions().map(group).collect();
        Across {
            layout,
            statistic,
            size,
            per_word: per_word(layout.longest()),
            slots: (0..executions.len()).collect(),
            executions,
            coefficients: [0.0; 2],
        }
    }

    /// The mean of the statistic over groups across the sample's own executions, of which
    /// `groups` are drawn, or a few more. Fits the coefficients that [`Across::resampled`]
    /// uses. Not a number where a group has no such statistic.
    pub(crate) fn fit(&mut self, groups: usize, random: &mut SplitMix64) -> f64 {
        let expected = self.expected();
        let unit = (self.statistic)(expected);
        if self.is_single() || unit == 0.0 {
            return unit;
        }
        let mut fit = Fit::default();
        for _ in 0..groups.div_ceil(GROUPS) {
            for group in self.groups(random) {
                fit.add((self.statistic)(group) / unit, controls(group, expected));
            }
        }
        self.coefficients = fit.coefficients();
        unit * fit.mean(self.coefficients)
    }

    /// Draws executions anew and returns the mean of the statistic over groups across
    /// them. Not a number where a group has no such statistic.
    pub(crate) fn resampled(&mut self, random: &mut SplitMix64) -> f64 {
        let executions = self.executions.len();
        let mut next = 0;
        draw(executions, executions, random, |execution| {
            self.slots[next] = execution;
            next += 1;
        });
        let expected = self.expected();
        let unit = (self.statistic)(expected);
        if self.is_single() || unit == 0.0 {
            return unit;
        }
        let (mut sum, mut chance) = (0.0, [0.0; 2]);
        for group in self.groups(random) {
            sum += (self.statistic)(group);
            let [a, b] = controls(group, expected);
            chance = [chance[0] + a, chance[1] + b];
        }
        let [a, b] = self.coefficients;
        (sum - unit * (a * chance[0] + b * chance[1])) / GROUPS as f64
    }

    /// The statistic of what is expected of groups across all executions but one, for each
    /// of them. Not a number where there is none.
    pub(crate) fn without_each(&mut self) -> Vec<f64> {
        let all = 0..self.executions.len();
        let without = all.clone().map(|left_out| {
            self.slots.clear();
            self.slots
                .extend(all.clone().filter(|one| *one != left_out));
            (self.statistic)(self.expected())
        });
        let without = without.collect();
        self.slots = all.collect();
        without
    }

    /// The executions that the last call of [`Across::resampled`] drew.
    pub(crate) fn drawn(&self) -> &[usize] {
        &self.slots
    }

    /// Whether there is but one group, whose variance and mean are what is expected.
    fn is_single(&self) -> bool {
        self.layout.longest() == 1 && self.size == self.slots.len()
    }

    /// What variance and mean of a group are on average.
    fn expected(&self) -> Group {
        let slots = || self.slots.iter().map(|slot| self.executions[*slot]);
        let means = Moments::of(slots().map(|execution| execution.mean));
        let within: f64 = slots().map(|execution| execution.variance).sum();
        Group {
            variance: within / means.n + means.variance(),
            mean: means.mean,
        }
    }

    /// Draws groups.
    fn groups(&mut self, random: &mut SplitMix64) -> [Group; GROUPS] {
        if self.size < self.slots.len() {
            return std::array::from_fn(|_| {
                choose(&mut self.slots, self.size, random);
                let [group] = self.groups_across::<1, 1>(random);
                group
            });
        }
        // One slot after the other, for all groups: so no sum waits for the one before.
        if self.per_word == 3 {
            self.groups_across::<GROUPS, 3>(random)
        } else {
            self.groups_across::<GROUPS, 1>(random)
        }
    }

    /// Draws `N` groups across the first slots, and `PER_WORD` numbers from each word.
    #[inline]
    fn groups_across<const N: usize, const PER_WORD: usize>(
        &self,
        random: &mut SplitMix64,
    ) -> [Group; N] {
        let slots = &self.slots[..self.size];
        // Reckoned from a place within the group's spread, so that no digits are lost, and
        // equal values have no variance.
        let from = self.executions[slots[0]].mean;
        let mut sums = [(0.0, 0.0); N];
        for slot in slots {
            let values = &self.layout.values()[self.layout.places()[*slot].clone()];
            for sums in sums.chunks_exact_mut(PER_WORD) {
                let mut fraction = random.fraction();
                for (sum, squares) in sums {
                    let value = values[fraction.take(values.len())] - from;
                    *sum += value;
                    *squares += value * value;
                }
            }
        }
        let n = self.size as f64;
        sums.map(|(sum, squares)| Group {
            variance: ((squares - sum * sum / n) / (n - 1.0)).max(0.0),
            mean: from + sum / n,
        })
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
    fn mean(&self, coefficients: [f64; 2]) -> f64 {
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

    /// The mean of the statistic over all groups there are, which are few.
    fn over_all(layout: &Layout, size: usize, statistic: impl Fn(Group) -> f64) -> f64 {
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
                sum += statistic(group) / all as f64;
            }
            weights += 1.0;
        }
        sum / weights
    }

    #[test]
    fn the_mean_over_groups_agrees_with_all_of_them() {
        let layout = layout();
        let deviation = |group: Group| group.variance.sqrt();
        let variation = |group: Group| group.variance.sqrt() / group.mean;
        for size in 2..=4 {
            let random = &mut SplitMix64::new(3);
            let found = Across::new(&layout, size, deviation).fit(100_000, random);
            let right = over_all(&layout, size, deviation);
            assert!(
                (found / right - 1.0).abs() < 3e-3,
                "{size}: {found} {right}"
            );
            let found = Across::new(&layout, size, variation).fit(100_000, random);
            let right = over_all(&layout, size, variation);
            assert!(
                (found / right - 1.0).abs() < 3e-3,
                "{size}: {found} {right}"
            );
        }
    }

    #[test]
    fn what_is_expected_is_the_mean_over_all_groups() {
        let layout = layout();
        for size in 2..=4 {
            let across = Across::new(&layout, size, |group| group.mean);
            let (expected, all) = (across.expected(), |of: fn(Group) -> f64| {
                over_all(&layout, size, of)
            });
            assert!((expected.variance / all(|g| g.variance) - 1.0).abs() < 1e-12);
            assert!((expected.mean / all(|g| g.mean) - 1.0).abs() < 1e-12);
        }
    }

    /// Means over groups across equal executions differ by chance alone: they are the same
    /// on average with and without control variates, and vary far less with them.
    #[test]
    fn control_variates_take_out_chance_only() {
        let values = [1.0, 2.0, 4.0, 5.0, 5.0, 6.0, 7.0, 8.0, 9.0, 13.0];
        let layout = Layout::of(&Sample::new(vec![values.to_vec(); 20]).unwrap());
        for statistic in [
            |group: Group| group.variance.sqrt(),
            |group: Group| group.variance.sqrt() / (group.mean + 1.0),
        ] {
            let moments = |fit: bool| {
                let random = &mut SplitMix64::new(8);
                let mut across = Across::new(&layout, 20, statistic);
                if fit {
                    across.fit(10_000, random);
                }
                Moments::of((0..20_000).map(|_| across.resampled(random)))
            };
            let (with, without) = (moments(true), moments(false));
            let error = (without.variance() / without.n).sqrt();
            assert!((with.mean - without.mean).abs() < 4.0 * error);
            assert!(
                with.variance() < without.variance() / 20.0,
                "{with:?} {without:?}"
            );
        }
    }
}
