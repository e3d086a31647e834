//! Hierarchical resampling of the mean: executions are drawn anew, with replacement, then
//! the measurements within each that was drawn (Davison and Hinkley 1997, section 3.8;
//! Kalibera and Jones 2013, section 7).
//!
//! Where executions have many measurements, the mean of each is drawn so often beforehand as makes
//! a table ([`TABLE`]), and resamples draw from that. The table has exactly the mean and the
//! variance that such draws have, so only the shape of their distribution, which is close to normal
//! then, is known from so many. Else three things make it fast, and none changes what is drawn:
//! - Which executions are drawn is decided first; the means of one execution are then drawn
//!   for all resamples that want it, so that its values stay in the nearest cache.
//! - Two draws from M values are one draw from their M² sums, which are made beforehand.
//! - One random word gives three numbers ([`crate::random`]).

use crate::layout::{Layout, Moments};
use crate::random::{SplitMix64, per_word};

/// So many resamples are made together: enough to be worth the sums of pairs.
const TOGETHER: usize = 1024;
/// Executions of up to so many measurements have their sums of pairs made: 32 KiB.
const PAIRED: usize = 64;

/// With so many measurements in an execution, and more, resamples draw from tables of means.
const MANY: usize = 16;
/// So many means a table has.
const TABLE: usize = 512;

/// `resamples` means of execution means, in units of the layout's scale.
pub(crate) fn means(layout: &Layout, resamples: usize, random: &mut SplitMix64) -> Vec<f64> {
    let shortest = layout.executions().map(<[f64]>::len).min().unwrap_or(0);
    match shortest >= MANY && resamples > TABLE {
        true => means_from_tables(layout, resamples, random),
        false => means_from_values(layout, resamples, random),
    }
}

/// The same, of tables of means of each execution.
fn means_from_tables(layout: &Layout, resamples: usize, random: &mut SplitMix64) -> Vec<f64> {
    let executions = layout.places().len();
    let mut tables = Vec::with_capacity(executions * TABLE);
    let mut pairs = Vec::new();
    for values in layout.executions() {
        let source = Source::new(values, TABLE, &mut pairs);
        let first = tables.len();
        tables.extend((0..TABLE).map(|_| source.mean(random)));
        fit(&mut tables[first..], values);
    }
    let mean = |_| {
        let mut sum = 0.0;
        draw(executions, tables.len(), random, |place| {
            sum += tables[place]
        });
        sum / executions as f64
    };
    (0..resamples).map(mean).collect()
}

/// Gives a table of means of drawn values the mean and the variance that such means have.
fn fit(table: &mut [f64], values: &[f64]) {
    let (own, wanted) = (
        Moments::of(table.iter().copied()),
        Moments::of(values.iter().copied()),
    );
    let wanted_variance = wanted.population_variance() / wanted.n;
    let factor = match own.population_variance() > 0.0 {
        true => (wanted_variance / own.population_variance()).sqrt(),
        false => 0.0,
    };
    for mean in table {
        *mean = wanted.mean + (*mean - own.mean) * factor;
    }
}

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
    if per_word(n) == 3 {
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
            let inner = within.iter().map(|m| m.population_variance() / m.n);
            let inner = inner.sum::<f64>() / within.len() as f64;
            let variance = (means.population_variance() + inner) / means.n;
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
    fn tables_give_the_quantiles_that_values_give() {
        for sizes in [&[50; 20][..], &[16; 5], &[200, 16, 40, 30]] {
            let layout = Layout::of(&sample(sizes));
            let fast = means_from_tables(&layout, 40_000, &mut SplitMix64::new(1));
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
