//! Resampling: executions are drawn anew, with replacement, and for means the measurements within
//! each that was drawn, too (Davison and Hinkley 1997, section 3.8; Kalibera and Jones 2013,
//! section 7).
//!
//! What is needed of a resample are sums, over the executions that were drawn, of figures that
//! each execution has. Two things make [`sums`] fast, and neither changes what is drawn:
//! - A few draws from E executions are one draw from the sums of all their tuples, which are made
//!   beforehand.
//! - One random word gives several numbers ([`crate::random`]).
//!
//! Where executions have many measurements ([`MANY`]), the sum of their redrawn means has the mean
//! and the variance that follow from the executions that were drawn, and is close to normal; its
//! skewness is known, too. So one number of a normal distribution takes the place of all draws of
//! measurements. Else the measurements are drawn, execution by execution, for all resamples that
//! want it, so that its values stay in the nearest cache.

use std::sync::LazyLock;

use crate::layout::{Layout, Moments};
use crate::normal;
use crate::random::{SplitMix64, per_word};

/// So many resamples are made together: enough to be worth the sums of pairs.
const TOGETHER: usize = 1024;
/// Executions of up to so many measurements have their sums of pairs made: 32 KiB.
const PAIRED: usize = 64;
/// With so many measurements in an execution, and more, means of them are close to normal.
const MANY: usize = 16;
/// A table of tuples has at most so many entries.
const ENTRIES: usize = 1024;
/// So many numbers stand for the normal distribution.
const NORMALS: usize = 1024;

/// For each resample, the sums of what the executions have that were drawn: as many as there are,
/// with replacement.
pub(crate) fn sums<const N: usize>(
    features: &[[f64; N]],
    resamples: usize,
    random: &mut SplitMix64,
    mut each: impl FnMut(&[f64; N]),
) {
    let together = tuple(features.len(), resamples);
    let tuples = tuples(features, together);
    let (draws, rest) = (features.len() / together, features.len() % together);
    let rest = self::tuples(features, rest);
    for _ in 0..resamples {
        let mut sums = [0.0; N];
        draw(draws, tuples.len(), random, |place| {
            add(&mut sums, &tuples[place]);
        });
        if rest.len() > 1 {
            add(&mut sums, &rest[random.below(rest.len())]);
        }
        each(&sums);
    }
}

/// How many executions are drawn together: as many as have few enough tuples.
fn tuple(executions: usize, resamples: usize) -> usize {
    let most = ENTRIES.min(resamples);
    let fits = |count: &u32| {
        executions
            .checked_pow(*count)
            .is_some_and(|all| all <= most)
    };
    let most = (2..=executions as u32).take_while(fits).last();
    most.map_or(1, |count| count as usize)
}

/// The sums of all tuples of so many; one that is zero where that is none.
fn tuples<const N: usize>(features: &[[f64; N]], count: usize) -> Vec<[f64; N]> {
    let mut all = vec![[0.0; N]];
    for _ in 0..count {
        let with = |sums: &[f64; N]| {
            let sums = *sums;
            features.iter().map(move |one| {
                let mut sums = sums;
                add(&mut sums, one);
                sums
            })
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

#[inline]
fn add<const N: usize>(sums: &mut [f64; N], other: &[f64; N]) {
    for (sum, other) in sums.iter_mut().zip(other) {
        *sum += other;
    }
}

/// `resamples` means of execution means, in units of the layout's scale.
pub(crate) fn means(layout: &Layout, resamples: usize, random: &mut SplitMix64) -> Vec<f64> {
    let shortest = layout.executions().map(<[f64]>::len).min().unwrap_or(0);
    match (layout.longest(), shortest >= MANY) {
        (1, _) => means_of_singles(layout, resamples, random),
        (_, true) => means_by_moments(layout, resamples, random),
        (_, false) => means_from_values(layout, resamples, random),
    }
}

/// The same, where executions have one measurement each: nothing is drawn within them.
fn means_of_singles(layout: &Layout, resamples: usize, random: &mut SplitMix64) -> Vec<f64> {
    let values: Vec<[f64; 1]> = layout.values().iter().map(|value| [*value]).collect();
    let part = 1.0 / values.len() as f64;
    let mut means = Vec::with_capacity(resamples);
    sums(&values, resamples, random, |[sum]| means.push(sum * part));
    means
}

/// The same, of what is known of the redrawn mean of each execution: its mean, variance and third
/// central moment.
fn means_by_moments(layout: &Layout, resamples: usize, random: &mut SplitMix64) -> Vec<f64> {
    let moments = |values: &[f64]| {
        let moments = Moments::of(values.iter().copied());
        let cubes: f64 = values.iter().map(|v| (v - moments.mean).powi(3)).sum();
        let n = moments.n;
        // Four, so that they are added two by two.
        [
            moments.mean,
            moments.squares / n / n,
            cubes / n / n / n / 6.0,
            0.0,
        ]
    };
    let features: Vec<[f64; 4]> = layout.executions().map(moments).collect();
    let part = 1.0 / features.len() as f64;
    let mut normals = SplitMix64::new(random.word());
    let mut means = Vec::with_capacity(resamples);
    sums(
        &features,
        resamples,
        random,
        |[mean, variance, cubes, _]| {
            let z = NORMAL[normals.below(NORMALS)];
            // Cornish and Fisher's correction for skewness.
            let skewed = match *variance > 0.0 {
                true => cubes / variance * (z * z - 1.0),
                false => 0.0,
            };
            means.push((mean + variance.sqrt() * z + skewed) * part);
        },
    );
    means
}

/// Numbers that are distributed as normal ones are, with the variance 1.
static NORMAL: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let place = |n: usize| (n as f64 + 0.5) / NORMALS as f64;
    let numbers: Vec<f64> = (0..NORMALS).map(|n| normal::quantile(place(n))).collect();
    let squares: f64 = numbers.iter().map(|z| z * z).sum();
    let scale = (NORMALS as f64 / squares).sqrt();
    numbers.iter().map(|z| z * scale).collect()
});

/// The same, of the values themselves.
fn means_from_values(layout: &Layout, resamples: usize, random: &mut SplitMix64) -> Vec<f64> {
    let executions = layout.places().len();
    let mut means = vec![0.0; resamples];
    // For each execution the resamples that it was drawn for.
    let mut drawn: Vec<Vec<usize>> = vec![Vec::new(); executions];
    let mut pairs = Vec::new();
    for together in means.chunks_mut(TOGETHER) {
        drawn.iter_mut().for_each(Vec::clear);
        for resample in 0..together.len() {
            draw(executions, executions, random, |execution| {
                drawn[execution].push(resample);
            });
        }
        for (values, drawn) in layout.executions().zip(&drawn) {
            let source = Source::new(values, drawn.len(), &mut pairs);
            for &resample in drawn {
                together[resample] += source.mean(random);
            }
        }
        together
            .iter_mut()
            .for_each(|sum| *sum /= executions as f64);
    }
    means
}

/// Calls `each` with `count` numbers below `bound`.
#[inline]
pub(crate) fn draw(
    count: usize,
    bound: usize,
    random: &mut SplitMix64,
    mut each: impl FnMut(usize),
) {
    let per_word = per_word(bound);
    let mut left = count;
    while left > 0 {
        let mut fraction = random.fraction();
        for _ in 0..per_word.min(left) {
            each(fraction.take(bound));
        }
        left = left.saturating_sub(per_word);
    }
}

/// What the mean of one execution is drawn from.
struct Source<'a> {
    values: &'a [f64],
    /// The sums of all pairs of values; empty where they are not worth making.
    pairs: &'a [f64],
}

impl<'a> Source<'a> {
    fn new(values: &'a [f64], uses: usize, buffer: &'a mut Vec<f64>) -> Source<'a> {
        buffer.clear();
        if (2..=PAIRED).contains(&values.len()) && uses >= values.len() {
            for a in values {
                buffer.extend(values.iter().map(|b| a + b));
            }
        }
        Source {
            values,
            pairs: buffer,
        }
    }

    /// The mean of as many draws as there are values.
    #[inline]
    fn mean(&self, random: &mut SplitMix64) -> f64 {
        let n = self.values.len();
        if n == 1 {
            return self.values[0];
        }
        let sum = if self.pairs.is_empty() {
            sum_of_draws(self.values, n, random)
        } else {
            sum_of_draws(self.pairs, n / 2, random) + sum_of_draws(self.values, n % 2, random)
        };
        sum / n as f64
    }
}

/// The sum of `draws` values of `table`, drawn with replacement.
#[inline]
fn sum_of_draws(table: &[f64], draws: usize, random: &mut SplitMix64) -> f64 {
    let n = table.len();
    let mut sums = [0.0; 3];
    let mut left = draws;
    if per_word(n) >= 3 {
        while left >= 3 {
            let mut fraction = random.fraction();
            for sum in &mut sums {
                *sum += table[fraction.take(n)];
            }
            left -= 3;
        }
    }
    draw(left, n, random, |place| sums[0] += table[place]);
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn sample(sizes: &[usize]) -> Sample {
        let mut random = SplitMix64::new(4);
        let mut value = || random.below(1000) as f64;
        let execution = |n: &usize| (0..*n).map(|_| value()).collect();
        Sample::new(sizes.iter().map(execution).collect()).unwrap()
    }

    /// Mean and variance of a resampled mean follow from the data: the mean is that of the
    /// execution means; the variance is that of one draw over the number of executions,
    /// and that of one draw is that of the means plus the mean of that within them.
    #[test]
    fn the_draws_have_the_moments_that_follow_from_the_data() {
        for sizes in [
            &[1, 1, 1, 1, 1, 1][..],
            &[2, 3, 50, 51],
            &[64, 65, 1],
            &[5000, 2, 3],
        ] {
            let layout = Layout::of(&sample(sizes));
            let within: Vec<Moments> = layout
                .executions()
                .map(|values| Moments::of(values.iter().copied()))
                .collect();
            let means = Moments::of(within.iter().map(|m| m.mean));
            let inner = within.iter().map(|m| m.squares / m.n / m.n);
            let inner = inner.sum::<f64>() / within.len() as f64;
            let variance = (means.squares / means.n + inner) / means.n;
            let drawn = super::means(&layout, 20_000, &mut SplitMix64::new(1));
            let drawn = Moments::of(drawn);
            let error = (variance / drawn.n).sqrt();
            assert!((drawn.mean - means.mean).abs() < 4.0 * error, "{sizes:?}");
            let ratio = drawn.variance() / variance;
            assert!((0.95..1.05).contains(&ratio), "{sizes:?}: {ratio}");
        }
    }

    /// The fast way and the slow one draw from the same distribution: their quantiles agree.
    #[test]
    fn moments_give_the_quantiles_that_values_give() {
        for sizes in [&[50; 20][..], &[16; 5], &[200, 16, 40, 30]] {
            let layout = Layout::of(&sample(sizes));
            let fast = means_by_moments(&layout, 40_000, &mut SplitMix64::new(1));
            let slow = means_from_values(&layout, 40_000, &mut SplitMix64::new(2));
            let spread = Moments::of(slow.iter().copied()).variance().sqrt();
            for q in [0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975] {
                let [fast, slow] = [&fast, &slow].map(|draws| crate::quantile(draws, q).unwrap());
                assert!(
                    (fast - slow).abs() < 0.06 * spread,
                    "{sizes:?} {q}: {fast} {slow}"
                );
            }
        }
    }
}
