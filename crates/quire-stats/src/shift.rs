//! Whether two variants differ, and by how much: the one rule by which every comparison of
//! two samples is decided, and the one sentence that says what came of it.
//!
//! *The figure* is the ratio of the typical execution of one to that of the other: the
//! difference of the means of the logarithms of executions (of the mean of each, where it has
//! several measurements). *The interval* is Student's, with Welch's degrees of freedom. Two
//! things are done before:
//!
//! - *Outliers.* An execution that lies more than [`FAR`] deviations from the median of its
//!   variant is set aside, because one such execution hides a difference that all others show, where
//!   such are rare: at most one in [`RARE`] of all lies half as far off. A deviation is 1.4826 times
//!   the median absolute deviation of both together; what is set aside is as far off by that of its
//!   variant, too. The error is larger then, by all over those that lie less than half as far off:
//!   had it been a long tail, the limit, too, would be by chance where it is. Executions that are
//!   not rare are a mode, and stay.
//! - *Rounds.* Where both were executed in the same rounds, and what was slow in a round of the
//!   one was slow in that of the other (the rank correlation is positive, by a test of 0.5 %), the
//!   machine drifts. Then the differences of each round are taken, in which it is not seen.
//!
//! They differ where the interval does not hold 1. A reader of several comparisons wants all of
//! them to be right: so each has the confidence with which all together have what is said
//! ([`Family`]; Šidák 1967). `docs/statistics.md` has the simulations that this was chosen by.
//!
//! Where the mean of an execution is not above zero, there is no logarithm; the interval is that
//! of the logarithm of the ratio of means then, by the delta method, and nothing is set aside.

use crate::estimate::{Absent, Estimate, Result};
use crate::layout::Moments;
use crate::order::median;
use crate::sample::Sample;
use crate::student;

/// So many deviations from the median an execution is an outlier.
pub const FAR: f64 = 6.0;
/// What lies half as far off may be the rest of a mode, or of a long tail.
const HALF_FAR: f64 = FAR / 2.0;
/// Outliers are rare where at most one in so many executions lies half as far off.
pub const RARE: usize = 10;
/// With fewer executions in both, none is called an outlier: two modes would look like that.
const LEAST_TOLD: usize = 16;
/// With fewer rounds nothing is said of a drift.
const LEAST_ROUNDS: usize = 5;
/// The chance of taking chance for a drift.
const DRIFT: f64 = 0.005;
/// What a median absolute deviation is multiplied by to be the standard deviation of normal data.
const NORMAL: f64 = 1.4826;
/// Logarithms of ratios beyond this say nothing.
const LARGEST: f64 = 600.0;

/// How many times as large one sample is as another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    log: f64,
    /// The squared standard error of the logarithm.
    error: f64,
    degrees: f64,
    /// So many executions, or differences of rounds, were set aside as outliers.
    pub set_aside: usize,
    /// Of so many.
    pub of: usize,
    /// Whether rounds were compared, because the machine drifts.
    pub by_rounds: bool,
    /// Whether measurements stand for executions, of which there is one only: then the interval
    /// holds for this execution, and says nothing of others.
    pub of_one_execution: bool,
}

/// What an interval allows to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It is better.
    Better,
    /// It is worse.
    Worse,
    /// Neither can be concluded.
    Open,
}

/// Comparisons that are read together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Family {
    /// The chance that all that is said of them is right, at least.
    pub confidence: f64,
    /// How many they are.
    pub comparisons: usize,
}

impl Family {
    /// The confidence that each of them has to have (Šidák 1967).
    #[must_use]
    pub fn each(&self) -> f64 {
        let comparisons = self.comparisons.max(1) as f64;
        self.confidence.powf(1.0 / comparisons)
    }

    /// How sure they are, for people.
    #[must_use]
    pub fn words(&self) -> String {
        let sure = format!("{} confidence", percent(self.confidence));
        match self.comparisons {
            0 | 1 => sure,
            all => format!("{sure} for all {all} comparisons together"),
        }
    }
}

impl Shift {
    /// How many times as large `new` is as `old`. `in_rounds` says that the executions of both
    /// were made in rounds, the first of each in the same one, and so on.
    ///
    /// # Errors
    /// With fewer than two executions in one of them (and fewer than two measurements, where there
    /// is one execution), and where a mean is not above zero.
    pub fn of(new: &Sample, old: &Sample, in_rounds: bool) -> Result<Shift> {
        let single = |sample: &Sample| sample.executions().len() == 1 && sample.has_groups();
        let of_one_execution = single(new) || single(old);
        let values = |sample: &Sample| match of_one_execution {
            true => sample.values().collect(),
            false => means(sample),
        };
        let (new, old): (Vec<f64>, Vec<f64>) = (values(new), values(old));
        for sample in [&new, &old] {
            if sample.len() < 2 {
                let got = sample.len();
                return Err(Absent::FewExecutions { needed: 2, got });
            }
        }
        let found = match (logs(&new), logs(&old)) {
            (Some(new), Some(old)) => of_logs(&new, &old, in_rounds && !of_one_execution),
            _ => of_means(&new, &old)?,
        };
        match found.log.is_finite() && found.error.is_finite() {
            true => Ok(Shift {
                of_one_execution,
                ..found
            }),
            false => Err(Absent::TooLarge),
        }
    }

    /// A ratio of which the logarithm is known, its squared standard error, and of how many degrees
    /// of freedom that is.
    #[must_use]
    pub fn of_logarithm(log: f64, error: f64, degrees: f64) -> Shift {
        Shift {
            log,
            error,
            degrees,
            set_aside: 0,
            of: 0,
            by_rounds: false,
            of_one_execution: false,
        }
    }

    /// Whether the ratio is above a limit, with this confidence.
    #[must_use]
    pub fn is_above(&self, limit: f64, confidence: f64) -> bool {
        self.ratio() > limit && self.interval(confidence).ci_low > limit
    }

    /// The ratio.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.log.clamp(-LARGEST, LARGEST).exp()
    }

    /// The ratio with its interval.
    #[must_use]
    pub fn interval(&self, confidence: f64) -> Estimate {
        let error = match self.error {
            0.0 => 0.0,
            error => student::quantile(0.5 + confidence / 2.0, self.degrees) * error.sqrt(),
        };
        let at = |log: f64| log.clamp(-LARGEST, LARGEST).exp();
        Estimate {
            value: self.ratio(),
            ci_low: at(self.log - error),
            ci_high: at(self.log + error),
        }
    }

    /// The ratio of the old to the new.
    #[must_use]
    pub fn inverse(self) -> Shift {
        Shift {
            log: -self.log,
            ..self
        }
    }

    /// What the interval of this confidence allows to say.
    #[must_use]
    pub fn finding(&self, confidence: f64, higher_is_better: bool) -> Finding {
        let Estimate {
            ci_low, ci_high, ..
        } = self.interval(confidence);
        match (ci_low > 1.0, ci_high < 1.0) {
            (false, false) => Finding::Open,
            (more, _) if more == higher_is_better => Finding::Better,
            _ => Finding::Worse,
        }
    }
}

/// What is compared, for a sentence.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// What is compared.
    pub new: &'a str,
    /// What it is compared with.
    pub old: &'a str,
    /// In what.
    pub metric: &'a str,
    /// Whether more of it is better.
    pub higher_is_better: bool,
}

/// What can be concluded, in a sentence.
#[must_use]
pub fn sentence(shift: &Shift, names: Names, family: &Family) -> String {
    let [new, old] = [names.new, names.old].map(quoted);
    let Estimate {
        value,
        ci_low,
        ci_high,
    } = shift.interval(family.each());
    let [value, low, high] = [value, ci_low, ci_high].map(change);
    let sure = family.words();
    let word = match shift.finding(family.each(), names.higher_is_better) {
        Finding::Better => "better",
        Finding::Worse => "worse",
        Finding::Open => {
            if ci_low == ci_high {
                return format!(
                    "Nothing can be concluded of {new} and {old}: what is compared of them is equal \
                     to the last digit."
                );
            }
            let agrees = match ci_low < 0.01 || ci_high > 100.0 {
                true => "almost any difference agrees with so few measurements".to_owned(),
                false => format!("anything from {low} to {high} agrees with these measurements"),
            };
            return format!(
                "Nothing can be concluded of {new} and {old}: {agrees} ({sure}). More executions \
                 would narrow that."
            );
        }
    };
    let metric = names.metric;
    format!("{new} is {word} than {old}: its {metric} is {value} (from {low} to {high}, {sure}).")
}

/// A name that can be told from the words around it.
#[must_use]
pub fn quoted(name: &str) -> String {
    match name.is_empty() || name.contains(char::is_whitespace) {
        true => format!("`{name}`"),
        false => name.to_owned(),
    }
}

/// A ratio as a change: `1.60 % less`, `3.00 % more`, `1955 times as much`.
#[must_use]
pub fn change(ratio: f64) -> String {
    match ratio {
        _ if !(1e-4..1e7).contains(&ratio) => format!("{ratio:.2e} times as much"),
        _ if ratio >= 100.0 => format!("{ratio:.0} times as much"),
        _ if ratio >= 10.0 => format!("{ratio:.1} times as much"),
        _ if ratio >= 2.0 => format!("{ratio:.2} times as much"),
        _ if ratio < 1.0 => format!("{} less", percent(1.0 - ratio)),
        _ => format!("{} more", percent(ratio - 1.0)),
    }
}

/// A fraction as a percentage: with as many digits as matter.
fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    let digits = match percent.abs() {
        x if (99.0..99.995).contains(&x) => 2,
        x if x >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{percent:.digits$}");
    let short = text.strip_suffix(".00").or(text.strip_suffix(".0"));
    format!("{} %", short.unwrap_or(&text))
}

/// The mean of each execution.
fn means(sample: &Sample) -> Vec<f64> {
    let mean = |values: &Vec<f64>| Moments::of(values.iter().copied()).mean;
    sample.executions().iter().map(mean).collect()
}

fn logs(values: &[f64]) -> Option<Vec<f64>> {
    let are_positive = values.iter().all(|value| *value > 0.0);
    are_positive.then(|| values.iter().map(|value| value.ln()).collect())
}

fn of_logs(new: &[f64], old: &[f64], in_rounds: bool) -> Shift {
    if in_rounds && new.len() == old.len() && drifts(new, old) {
        return by_rounds(new, old);
    }
    let Some((kept, error)) = without_outliers(new, old) else {
        return welch(new, old);
    };
    let of = new.len() + old.len();
    let found = welch(&kept[0], &kept[1]);
    Shift {
        error: found.error * error,
        set_aside: of - found.of,
        of,
        ..found
    }
}

/// Welch's comparison of the means of two series.
fn welch(new: &[f64], old: &[f64]) -> Shift {
    let of = new.len() + old.len();
    let [new, old] = [new, old].map(|values| Moments::of(values.iter().copied()));
    let [a, b] = [new, old].map(|one| (one.n, one.variance() / one.n));
    Shift {
        of,
        ..Shift::of_logarithm(new.mean - old.mean, a.1 + b.1, degrees(a, b))
    }
}

/// Welch's degrees of freedom, of two numbers of values and squared standard errors.
fn degrees((n, a): (f64, f64), (m, b): (f64, f64)) -> f64 {
    // In parts of their sum, which may be small.
    let (a, b) = (a / (a + b), b / (a + b));
    1.0 / (a * a / (n - 1.0) + b * b / (m - 1.0))
}

/// Student's comparison of the differences of each round.
fn by_rounds(new: &[f64], old: &[f64]) -> Shift {
    let differences = new.iter().zip(old).map(|(new, old)| new - old);
    let all: Vec<f64> = differences.collect();
    let deviation = deviation(&[&all]);
    let of = all.len();
    let off = of - within(&all, HALF_FAR * deviation).len();
    let mut kept = within(&all, FAR * deviation);
    if of < LEAST_TOLD / 2 || off * RARE / 2 > of {
        kept = all;
    }
    let kept = Moments::of(kept);
    let set_aside = of - kept.n as usize;
    let error = kept.variance() / kept.n * error_without(set_aside, off, of);
    Shift {
        set_aside,
        of,
        by_rounds: true,
        ..Shift::of_logarithm(kept.mean, error, kept.n - 1.0)
    }
}

/// Both without their outliers, and by how much the squared error is larger for it; nothing where
/// there are none.
fn without_outliers(new: &[f64], old: &[f64]) -> Option<([Vec<f64>; 2], f64)> {
    let of = new.len() + old.len();
    let both = deviation(&[new, old]);
    let out = |[a, b]: &[Vec<f64>; 2]| of - a.len() - b.len();
    let off = out(&[new, old].map(|values| within(values, HALF_FAR * both)));
    if of < LEAST_TOLD || off * RARE > of {
        return None;
    }
    let kept = [new, old].map(|values| within(values, FAR * both.max(deviation(&[values]))));
    let set_aside = out(&kept);
    let is_enough = kept.iter().all(|values| values.len() >= 2);
    (is_enough && set_aside > 0).then(|| (kept, error_without(set_aside, off, of)))
}

/// By how much a squared error is larger where so many are set aside, `off` lie half as far off, or
/// farther, and all are `of`.
fn error_without(set_aside: usize, off: usize, of: usize) -> f64 {
    match set_aside {
        0 => 1.0,
        _ => (of as f64 / (of - off) as f64).powi(2),
    }
}

/// Which executions of a sample lie far from the others, from 0 on: by the measure of [`Shift`],
/// however many they are. None, where there are fewer than eight, or a mean is not above zero.
#[must_use]
pub fn outliers(sample: &Sample) -> Vec<usize> {
    let logs = logs(&means(sample)).filter(|logs| logs.len() * 2 >= LEAST_TOLD);
    let logs = logs.unwrap_or_default();
    let (middle, far) = (median(&logs).unwrap_or(0.0), FAR * deviation(&[&logs]));
    let is_far = |(_, log): &(usize, &f64)| (**log - middle).abs() > far;
    let far = logs.iter().enumerate().filter(is_far);
    far.map(|(n, _)| n).collect()
}

/// Those that are at most so far from their median.
fn within(values: &[f64], far: f64) -> Vec<f64> {
    let middle = median(values).unwrap_or(0.0);
    let is_near = |value: &&f64| (**value - middle).abs() <= far;
    values.iter().filter(is_near).copied().collect()
}

/// The standard deviation of each series about its own median, told by the median. The value that
/// is the median itself says nothing of how far the others are, so it does not count.
fn deviation(series: &[&[f64]]) -> f64 {
    let mut all = Vec::new();
    for values in series {
        let middle = median(values).unwrap_or(0.0);
        let mut apart: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
        apart.sort_unstable_by(f64::total_cmp);
        all.extend_from_slice(&apart[values.len() % 2..]);
    }
    NORMAL * median(&all).unwrap_or(0.0)
}

/// Whether what was more in a round of the one was more in that of the other.
fn drifts(new: &[f64], old: &[f64]) -> bool {
    let n = new.len() as f64;
    if new.len() < LEAST_ROUNDS {
        return false;
    }
    let (a, b) = (ranks(new), ranks(old));
    let middle = (n - 1.0) / 2.0;
    let along: f64 = a
        .iter()
        .zip(&b)
        .map(|(a, b)| (a - middle) * (b - middle))
        .sum();
    let square = |ranks: &[f64]| ranks.iter().map(|r| (r - middle).powi(2)).sum::<f64>();
    let correlation = along / (square(&a) * square(&b)).sqrt();
    let t = correlation * ((n - 2.0) / (1.0 - correlation * correlation)).sqrt();
    t > student::quantile(1.0 - DRIFT, n - 2.0)
}

/// The rank of each value, from 0 on; equal ones share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let less = values.iter().filter(|other| *other < value).count();
        let same = values.iter().filter(|other| *other == value).count();
        less as f64 + (same as f64 - 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

/// The logarithm of the ratio of means, by the delta method.
fn of_means(new: &[f64], old: &[f64]) -> Result<Shift> {
    let of = new.len() + old.len();
    let [new, old] = [new, old].map(|values| Moments::of(values.iter().copied()));
    if new.mean <= 0.0 || old.mean <= 0.0 {
        return Err(Absent::MeanNotPositive);
    }
    let [a, b] = [new, old].map(|one| (one.n, one.variance() / one.n / one.mean / one.mean));
    let log = (new.mean / old.mean).ln();
    Ok(Shift {
        of,
        ..Shift::of_logarithm(log, a.1 + b.1, degrees(a, b))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::new(values.iter().map(|value| vec![*value]).collect()).unwrap()
    }

    fn shift(new: &[f64], old: &[f64], in_rounds: bool) -> Shift {
        Shift::of(&sample(new), &sample(old), in_rounds).unwrap()
    }

    const SOME: [f64; 10] = [1.0, 1.02, 0.98, 1.01, 0.99, 1.03, 0.97, 1.005, 0.995, 1.0];

    fn times(factor: f64) -> Vec<f64> {
        SOME.iter().map(|value| factor * value).collect()
    }

    #[test]
    fn an_interval_is_welchs_of_the_logarithms() {
        // R: t.test(log(c(1.1,1.2,1.4)), log(c(1,1.1,1.05,1.2)))
        let found = shift(&[1.1, 1.2, 1.4], &[1.0, 1.1, 1.05, 1.2], false);
        let interval = found.interval(0.95);
        assert!((interval.value - 1.130_993).abs() < 1e-5, "{interval:?}");
        assert!((interval.ci_low - 0.883_162).abs() < 1e-4, "{interval:?}");
        assert!((interval.ci_high - 1.448_370).abs() < 1e-4, "{interval:?}");
    }

    #[test]
    fn an_outlier_does_not_hide_a_difference_and_a_mode_is_none() {
        let mut new = times(1.05);
        new[3] = 9.0;
        let found = shift(&new, &SOME, false);
        assert_eq!((found.set_aside, found.of), (1, 20));
        assert_eq!(found.finding(0.95, false), Finding::Worse);
        for value in &mut new[..4] {
            *value = 9.0;
        }
        assert_eq!(shift(&new, &SOME, false).set_aside, 0);
    }

    /// Two of ten in the lower mode look like outliers, until the other variant shows both modes.
    #[test]
    fn a_mode_that_one_variant_shows_is_one_in_the_other() {
        let per_mille = |values: [f64; 10]| values.map(|value| 1.0 + value / 1000.0);
        let few = per_mille([-28.0, -22.0, 13.0, 14.0, 15.0, 19.0, 20.0, 21.0, 21.0, 22.0]);
        let many = per_mille([
            -24.0, -23.0, -16.0, -16.0, -14.0, -11.0, 11.0, 18.0, 23.0, 31.0,
        ]);
        assert_eq!(shift(&few, &many, false).set_aside, 0);
        assert_eq!(shift(&few, &few, false).set_aside, 0);
    }

    /// What is left of a long tail is no better known than all of it.
    #[test]
    fn the_error_counts_all_that_lie_far_off() {
        let mut new = [times(1.0), times(1.0)].concat();
        let (off, out) = (1.06, 1.2);
        new[0] = off;
        let whole = shift(&new, &SOME, false);
        assert_eq!((whole.set_aside, whole.of), (0, 30));
        new[1] = out;
        let found = shift(&new, &SOME, false);
        assert_eq!((found.set_aside, found.of), (1, 30));
        new.remove(1);
        let [new, old] = [&new, &SOME[..]].map(|values| logs(values).unwrap());
        let kept = welch(&new, &old);
        assert!((found.error / kept.error - (30.0f64 / 28.0).powi(2)).abs() < 1e-12);
    }

    #[test]
    fn outliers_are_named() {
        let mut values = SOME;
        values[3] = 9.0;
        assert_eq!(outliers(&sample(&values)), [3]);
        assert_eq!(outliers(&sample(&SOME)), []);
        assert_eq!(outliers(&sample(&values[..5])), []);
    }

    #[test]
    fn a_drift_is_not_seen_in_rounds() {
        let drift = |values: &[f64]| -> Vec<f64> {
            let at = |(n, value): (usize, &f64)| value * (1.0 + 0.3 * n as f64);
            values.iter().enumerate().map(at).collect()
        };
        let mut other = times(1.03);
        other.reverse();
        let (old, new) = (drift(&SOME), drift(&other));
        let apart = shift(&new, &old, false);
        assert_eq!(apart.finding(0.95, false), Finding::Open);
        let together = shift(&new, &old, true);
        assert!(together.by_rounds);
        assert_eq!(together.finding(0.95, false), Finding::Worse);
        assert_eq!(together.finding(0.95, true), Finding::Better);
    }

    #[test]
    fn what_cannot_be_compared_says_why() {
        let of = |new: &[f64], old: &[f64]| Shift::of(&sample(new), &sample(old), false);
        assert_eq!(
            of(&[1.0], &[1.0, 2.0]),
            Err(Absent::FewExecutions { needed: 2, got: 1 })
        );
        assert_eq!(of(&[-1.0, 0.0], &[1.0, 2.0]), Err(Absent::MeanNotPositive));
        let zeros = of(&[0.0, 1.0, 2.0], &[1.0, 1.0, 1.1]).unwrap();
        assert_eq!(zeros.finding(0.95, false), Finding::Open);
        let equal = of(&[1.0, 1.0], &[1.0, 1.0]).unwrap();
        assert_eq!(equal.finding(0.95, false), Finding::Open);
        let exact = of(&[2.0, 2.0], &[1.0, 1.0]).unwrap().interval(0.95);
        assert!((exact.ci_low - 2.0).abs() < 1e-12 && exact.ci_low == exact.ci_high);
    }

    #[test]
    fn measurements_of_one_execution_stand_for_themselves() {
        let one = Sample::new(vec![SOME.to_vec()]).unwrap();
        let found = Shift::of(&one, &one, true).unwrap();
        assert!(found.of_one_execution && !found.by_rounds);
        assert_eq!(found.finding(0.95, false), Finding::Open);
    }

    #[test]
    fn sentences_say_what_intervals_say() {
        let names = Names {
            new: "new",
            old: "old",
            metric: "time",
            higher_is_better: false,
        };
        let of = |factor| shift(&times(factor), &SOME, false);
        let say = |factor, comparisons| {
            let family = Family {
                confidence: 0.95,
                comparisons,
            };
            sentence(&of(factor), names, &family)
        };
        assert!(say(0.9, 1).starts_with("new is better than old: its time is 10 % less (from "));
        assert!(say(0.9, 1).ends_with(", 95 % confidence)."));
        assert!(say(0.9, 3).contains("95 % confidence for all 3 comparisons together"));
        assert!(say(1955.0, 1).contains("its time is 1955 times as much"));
        let open = say(1.001, 1);
        assert!(open.starts_with("Nothing can be concluded of new and old: anything from "));
        assert!(
            open.contains(" % less to ") && open.contains(" % more agrees"),
            "{open}"
        );
        let one = Family {
            confidence: 0.95,
            comparisons: 1,
        };
        let wide = sentence(&shift(&[1.0, 9.0], &[1.0, 5.0], false), names, &one);
        assert!(wide.contains("almost any difference"), "{wide}");
        assert_eq!(change(1.0), "0 % more");
        assert_eq!(change(2.5), "2.50 times as much");
        assert_eq!(change(0.0005), "99.95 % less");
        assert_eq!(change(1e-9), "1.00e-9 times as much");
        let equal = sentence(&shift(&[1.0, 1.0], &[1.0, 1.0], false), names, &one);
        assert!(equal.contains("equal to the last digit"), "{equal}");
    }

    #[test]
    fn together_they_are_as_sure_as_is_said() {
        let each = |comparisons| {
            let confidence = 0.95;
            let family = Family {
                confidence,
                comparisons,
            };
            family.each()
        };
        assert_eq!((each(0), each(1)), (0.95, 0.95));
        assert!((each(5).powi(5) - 0.95).abs() < 1e-12);
        assert_eq!(quoted("gzip -9"), "`gzip -9`");
        assert_eq!(quoted(""), "``");
    }

    proptest! {
        #[test]
        fn a_shift_can_be_turned_around_and_follows_scale(
            a in prop::collection::vec(1.0f64..100.0, 3..30),
            b in prop::collection::vec(1.0f64..100.0, 3..30),
            scale in 0.01f64..100.0,
        ) {
            let found = shift(&a, &b, false);
            let back = shift(&b, &a, false).inverse();
            prop_assert!((back.ratio() / found.ratio() - 1.0).abs() < 1e-9);
            let [x, y] = [found, back].map(|shift| shift.interval(0.9));
            prop_assert!((x.ci_low / y.ci_low - 1.0).abs() < 1e-6);
            prop_assert!(x.ci_low <= x.value && x.value <= x.ci_high);
            let scaled: Vec<f64> = a.iter().map(|value| value * scale).collect();
            let times = shift(&scaled, &b, false);
            prop_assert!((times.ratio() / found.ratio() / scale - 1.0).abs() < 1e-9);
        }
    }
}
