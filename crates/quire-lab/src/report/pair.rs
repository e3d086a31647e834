//! Two variants of a benchmark: how they differ, and what can be concluded from it.

use crate::caution::{self, Few, Of};
use crate::judge::{self, Absent, Estimate, Judged, Sample, Settings};
use crate::report::experiment::{Experiment, Figure};
use crate::report::number;
use crate::run::{Better, Metric};

/// What two variants of a benchmark say.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Of which benchmark.
    pub benchmark: String,
    /// In which metric.
    pub metric: String,
    /// The variant that is compared with.
    pub old: String,
    /// The variant that is compared.
    pub new: String,
    /// How they differ.
    pub effect: Effect,
    /// What can and what cannot be concluded.
    pub sentence: String,
}

/// How large a difference is.
#[derive(Clone, Debug)]
pub struct Effect {
    /// The mean of the new over the mean of the old.
    pub ratio: Judged,
    /// Each has one execution only, so that the interval holds for these executions, and
    /// says nothing of others.
    pub of_one_execution: bool,
    /// Why the interval is too narrow, where there are few executions.
    pub few: Option<Few>,
}

/// What an interval of a ratio allows to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The new is better.
    Better,
    /// The new is worse.
    Worse,
    /// Neither can be concluded.
    Undecided,
    /// Nothing could be computed.
    Unknown,
}

impl Effect {
    /// Compares two samples. Where both have one execution of several measurements, these
    /// stand for themselves.
    #[must_use]
    pub fn of(new: &Sample, old: &Sample, settings: &Settings) -> Effect {
        let single = |sample: &Sample| sample.executions().len() == 1 && sample.has_groups();
        let of_one_execution = single(new) || single(old);
        let ratio = if of_one_execution {
            flat(new).and_then(|new| judge::ratio(&new, &flat(old)?, settings))
        } else {
            judge::ratio(new, old, settings)
        };
        let executions = new.executions().len().min(old.executions().len());
        let is_of_few = ratio.is_ok() && !of_one_execution;
        Effect {
            few: Few::of(Of::Ratio, executions, settings).filter(|_| is_of_few),
            ratio,
            of_one_execution,
        }
    }

    /// Why the interval is too narrow, in a sentence.
    #[must_use]
    pub fn caution(&self) -> Option<String> {
        caution::sentence(self.few.as_slice())
    }

    /// What can be said where this direction is better.
    #[must_use]
    pub fn verdict(&self, better: Better) -> Verdict {
        let Ok(ratio) = &self.ratio else {
            return Verdict::Unknown;
        };
        match (ratio.ci_high < 1.0, ratio.ci_low > 1.0, better) {
            (true, _, Better::Lower) | (_, true, Better::Higher) => Verdict::Better,
            (_, true, Better::Lower) | (true, _, Better::Higher) => Verdict::Worse,
            _ => Verdict::Undecided,
        }
    }
}

/// A sample in which every measurement counts as an execution.
fn flat(sample: &Sample) -> Result<Sample, Absent> {
    Sample::new(sample.values().map(|value| vec![value]).collect())
}

impl Pair {
    /// Compares two experiments that differ in their variant.
    pub(crate) fn of(
        new: &Experiment,
        old: &Experiment,
        metric: &Metric,
        settings: &Settings,
    ) -> Pair {
        let effect = Effect::of(&new.sample, &old.sample, settings);
        let sentence = sentence(new, old, metric, &effect, settings.confidence);
        Pair {
            benchmark: new.benchmark.clone(),
            metric: new.metric.clone(),
            old: old.variant.clone(),
            new: new.variant.clone(),
            effect,
            sentence,
        }
    }
}

fn sentence(
    new: &Experiment,
    old: &Experiment,
    metric: &Metric,
    effect: &Effect,
    confidence: f64,
) -> String {
    let ratio = match &effect.ratio {
        Ok(ratio) => ratio,
        Err(why) => return format!("Nothing can be concluded: {why}."),
    };
    let names = [new, old].map(|one| one.variant.as_str());
    let mut text = conclusion(names, &new.metric, metric, ratio, confidence);
    for caveat in caveats(new, old, effect) {
        text.push(' ');
        text.push_str(&caveat);
    }
    text
}

/// What the interval says.
fn conclusion(
    [new, old]: [&str; 2],
    name: &str,
    metric: &Metric,
    ratio: &Estimate,
    confidence: f64,
) -> String {
    let change = |ratio: f64| match ratio < 1.0 {
        true => format!("{} less", number::percent(1.0 - ratio)),
        false => format!("{} more", number::percent(ratio - 1.0)),
    };
    let [value, low, high] = [ratio.value, ratio.ci_low, ratio.ci_high].map(change);
    let sure = number::percent(confidence);
    if ratio.ci_low <= 1.0 && ratio.ci_high >= 1.0 {
        return format!(
            "It cannot be concluded that {new} and {old} differ in {name}: anything from {low} \
             to {high} agrees with these measurements ({sure} confidence). That they are equal \
             cannot be concluded either; only larger differences are ruled out."
        );
    }
    let good = (ratio.value < 1.0) == (metric.better == Better::Lower);
    let word = if good { "better" } else { "worse" };
    format!(
        "{new} is {word} than {old}: its mean {name} is {value} (from {low} to {high}, {sure} \
         confidence)."
    )
}

/// What readers should bear in mind.
fn caveats(new: &Experiment, old: &Experiment, effect: &Effect) -> Vec<String> {
    let mut caveats = Vec::new();
    if effect.of_one_execution {
        caveats.push(
            "This holds for these executions only: with one execution, how executions differ is \
             not known, and another one may say the opposite."
                .to_owned(),
        );
    }
    caveats.extend(effect.caution());
    let varies = |one: &&Experiment| one.figure(Figure::Impact).is_some_and(|i| i.ci_low > 1.0);
    let all = [new, old];
    let names: Vec<&str> = all
        .iter()
        .copied()
        .filter(|e| varies(e))
        .map(|e| e.variant.as_str())
        .collect();
    if !names.is_empty() {
        caveats.push(format!(
            "Executions of {} differ more than the measurements within one: more executions, not \
             longer ones, would make this more precise.",
            names.join(" and ")
        ));
    }
    caveats
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(value: f64, ci_low: f64, ci_high: f64) -> Estimate {
        Estimate {
            value,
            ci_low,
            ci_high,
        }
    }

    #[test]
    fn a_sentence_says_what_the_interval_says() {
        let time = Metric::default();
        let rate = Metric {
            better: Better::Higher,
            ..Metric::default()
        };
        let say = |metric: &Metric, ratio: Estimate| {
            conclusion(["new", "old"], "time", metric, &ratio, 0.95)
        };
        let faster = ratio(0.9, 0.88, 0.93);
        assert!(
            say(&time, faster).starts_with("new is better than old: its mean time is 10.0 % less")
        );
        assert!(say(&rate, faster).starts_with("new is worse than old"));
        let unsure = say(&time, ratio(1.01, 0.99, 1.03));
        assert!(
            unsure.contains("cannot be concluded that new and old differ"),
            "{unsure}"
        );
        assert!(unsure.contains("1.00 % less to 3.00 % more"), "{unsure}");
    }

    #[test]
    fn a_verdict_follows_the_direction() {
        let of = |ratio| Effect {
            ratio: Ok(ratio),
            of_one_execution: false,
            few: None,
        };
        assert_eq!(
            of(ratio(0.9, 0.8, 0.95)).verdict(Better::Lower),
            Verdict::Better
        );
        assert_eq!(
            of(ratio(0.9, 0.8, 0.95)).verdict(Better::Higher),
            Verdict::Worse
        );
        assert_eq!(
            of(ratio(1.2, 1.1, 1.3)).verdict(Better::Lower),
            Verdict::Worse
        );
        assert_eq!(
            of(ratio(1.2, 1.0, 1.3)).verdict(Better::Lower),
            Verdict::Undecided
        );
    }
}
