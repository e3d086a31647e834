//! When the executions of an experiment become steady, if they do: how many are so from
//! their first measurement on, warm up, slow down, or never settle.

use quire_stats::warmup::Steady;

use crate::caution::listed;
use crate::judge::{self, Absent, Sample, Settings};
use crate::run::Better;

/// A warm-up is worth a hint where one in so many executions has one; fewer may be noise.
const WORTH: usize = 10;
/// The share of the executions that warm up which is steady after what a hint says.
const MOST: f64 = 0.9;

/// What became of the executions of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settling {
    /// So many were looked at: those with enough measurements.
    pub executions: usize,
    /// So many are steady from their first measurement on.
    pub flat: usize,
    /// For each of those that warm up, how many measurements that takes, in order.
    pub warm_up: Vec<usize>,
    /// For each of those that become slower, how many measurements that takes, in order.
    pub slow_down: Vec<usize>,
    /// So many never become steady.
    pub never: usize,
}

impl Settling {
    /// Looks at each execution of a sample. Those with too few measurements are passed
    /// over.
    ///
    /// # Errors
    /// Where all have too few.
    pub fn of(sample: &Sample, better: Better, settings: &Settings) -> Result<Settling, Absent> {
        let mut all = Settling::default();
        let mut short = None;
        for (execution, values) in (1..).zip(sample.executions()) {
            match judge::steady(values, better, settings) {
                Ok(steady) => all.add(steady),
                Err(Absent::FewMeasurements { needed, got, .. }) => {
                    short.get_or_insert(Absent::FewMeasurements {
                        execution,
                        needed,
                        got,
                    });
                }
                Err(other) => return Err(other),
            }
        }
        all.warm_up.sort_unstable();
        all.slow_down.sort_unstable();
        match short.filter(|_| all.executions == 0) {
            Some(why) => Err(why),
            None => Ok(all),
        }
    }

    fn add(&mut self, steady: Steady) {
        self.executions += 1;
        match steady {
            Steady::Flat => self.flat += 1,
            Steady::After(count) => self.warm_up.push(count),
            Steady::SlowsDown(count) => self.slow_down.push(count),
            Steady::Never => self.never += 1,
        }
    }

    /// The share of executions that never become steady.
    #[must_use]
    pub fn never_share(&self) -> f64 {
        self.never as f64 / self.executions.max(1) as f64
    }

    /// How many measurements to leave out at the beginning of each execution, so that nine
    /// in ten of those that warm up are steady; nothing where few warm up, or none.
    #[must_use]
    pub fn discard(&self) -> Option<usize> {
        let count = self.warm_up.len();
        if count == 0 || count * WORTH < self.executions {
            return None;
        }
        let place = (count as f64 * MOST).ceil() as usize;
        self.warm_up.get(place.saturating_sub(1)).copied()
    }

    /// All of it in a sentence or two.
    #[must_use]
    pub fn sentence(&self) -> String {
        let all = self.executions;
        if self.flat == all {
            return match all {
                1 => "The execution is steady from its first measurement on.".into(),
                _ => format!("All {all} executions are steady from their first measurement on."),
            };
        }
        let most = |counts: &[usize]| counts.last().copied().unwrap_or(0);
        let share = format!("({:.0} %)", 100.0 * self.never_share());
        let parts = [
            (
                self.flat,
                ["is steady", "are steady"],
                " from the first measurement on".to_owned(),
            ),
            (
                self.warm_up.len(),
                ["warms up and is steady", "warm up and are steady"],
                format!(" after {} measurements at most", most(&self.warm_up)),
            ),
            (
                self.slow_down.len(),
                ["slows down and is steady", "slow down and are steady"],
                format!(" after {} measurements at most", most(&self.slow_down)),
            ),
            (
                self.never,
                ["never becomes steady", "never become steady"],
                format!(" {share}"),
            ),
        ];
        let some = parts.into_iter().filter(|(count, ..)| *count > 0);
        let said = some.map(|(count, verbs, rest)| {
            let verb = verbs[usize::from(count > 1)];
            format!("{count} {verb}{rest}")
        });
        let noun = if all == 1 { "execution" } else { "executions" };
        let said = listed(&said.collect::<Vec<_>>());
        let mut text = format!("Of {all} {noun}, {said}.");
        if self.never > 0 {
            text.push_str(
                " A mean of what never becomes steady depends on how long it is measured.",
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An execution of 60 measurements: `level` says the mean of each, in parts of the last.
    fn execution(seed: usize, level: impl Fn(usize) -> f64) -> Vec<f64> {
        // Numbers that repeat only after 101, about evenly spread over 2 %.
        let noise = |at: usize| ((at * 37 + seed * 11) * 53 % 101) as f64 / 5050.0;
        (0..60).map(|at| level(at) * (1.0 + noise(at))).collect()
    }

    fn settling(executions: Vec<Vec<f64>>) -> Settling {
        let sample = Sample::new(executions).unwrap();
        Settling::of(&sample, Better::Lower, &Settings::default()).unwrap()
    }

    #[test]
    fn what_never_settles_is_counted_and_said() {
        let cycle = |at: usize| {
            if (at / 10).is_multiple_of(2) {
                1.0
            } else {
                1.5
            }
        };
        let all = settling((0..20).map(|seed| execution(seed, cycle)).collect());
        assert_eq!((all.executions, all.never), (20, 20));
        assert_eq!(all.never_share(), 1.0);
        assert_eq!(all.discard(), None);
        let text = all.sentence();
        assert!(
            text.starts_with("Of 20 executions, 20 never become steady (100 %)."),
            "{text}"
        );
    }

    #[test]
    fn a_warm_up_is_measured_and_hinted_at() {
        let level = |length: usize| move |at: usize| if at < length { 1.5 } else { 1.0 };
        let flat = (0..8).map(|seed| execution(seed, level(0)));
        let warm = (8..12).map(|seed| execution(seed, level(seed)));
        let all = settling(flat.chain(warm).collect());
        assert_eq!((all.flat, &*all.warm_up), (8, &[8, 9, 10, 11][..]));
        assert_eq!(all.discard(), Some(11));
        assert_eq!(
            all.sentence(),
            "Of 12 executions, 8 are steady from the first measurement on and 4 warm up and are \
             steady after 11 measurements at most."
        );
    }

    #[test]
    fn a_single_warm_up_among_many_is_no_hint() {
        let mut all = Settling {
            executions: 20,
            flat: 19,
            warm_up: vec![7],
            ..Settling::default()
        };
        assert_eq!(all.discard(), None);
        assert!(all.sentence().contains("1 warms up and is steady after 7"));
        all.warm_up = (1..=10).collect();
        all.flat = 10;
        assert_eq!(all.discard(), Some(9));
    }

    #[test]
    fn short_executions_are_passed_over() {
        let mut executions = vec![vec![1.0, 2.0]];
        let few = Sample::new(executions.clone()).unwrap();
        let why = Settling::of(&few, Better::Lower, &Settings::default()).unwrap_err();
        assert!(why.to_string().contains("execution 1 has 2"), "{why}");
        executions.push(execution(1, |_| 1.0));
        let all = settling(executions);
        assert_eq!((all.executions, all.flat), (1, 1));
        assert!(all.sentence().starts_with("The execution is steady"));
    }
}
