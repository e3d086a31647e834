//! Two variants of a benchmark: how they differ, and what can be concluded from it.

use crate::judge::{
    self, Absent, Estimate, Family, Finding, Judged, Names, Sample, Settings, Shift,
};
use crate::report::experiment::Experiment;
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
    /// How many times as large the new is as the old, by the rule of all comparisons.
    pub shift: Result<Shift, Absent>,
    /// The comparisons that are read together with it.
    pub family: Family,
}

/// What can be said of a difference.
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
    /// Compares two samples, alone as yet.
    #[must_use]
    pub fn of(new: &Sample, old: &Sample, in_rounds: bool, settings: &Settings) -> Effect {
        Effect {
            shift: judge::shift(new, old, in_rounds),
            family: Family {
                confidence: settings.confidence,
                comparisons: 1,
            },
        }
    }

    /// The same, read together with these.
    #[must_use]
    pub fn among(self, comparisons: usize) -> Effect {
        let family = Family {
            comparisons,
            ..self.family
        };
        Effect { family, ..self }
    }

    /// The ratio with its interval.
    ///
    /// # Errors
    /// Why there is none.
    pub fn ratio(&self) -> Judged {
        let shift = self.shift.as_ref().map_err(Absent::clone)?;
        Ok(shift.interval(self.family.each()))
    }

    /// What can be said where this direction is better.
    #[must_use]
    pub fn verdict(&self, better: Better) -> Verdict {
        let Ok(shift) = &self.shift else {
            return Verdict::Unknown;
        };
        match shift.finding(self.family.each(), better == Better::Higher) {
            Finding::Better => Verdict::Better,
            Finding::Worse => Verdict::Worse,
            Finding::Open => Verdict::Undecided,
        }
    }

    /// Whether the ratio is farther from 1 than this.
    #[must_use]
    pub fn is_beyond(&self, threshold: f64) -> bool {
        let ratio = self.shift.as_ref().map(Shift::ratio);
        ratio.is_ok_and(|ratio| (ratio - 1.0).abs() > threshold)
    }

    /// What can be concluded, in a sentence.
    #[must_use]
    pub fn sentence(&self, [new, old]: [&str; 2], metric: &str, better: Better) -> String {
        let names = Names {
            new,
            old,
            metric,
            higher_is_better: better == Better::Higher,
        };
        match &self.shift {
            Ok(shift) => judge::sentence(shift, names, &self.family),
            Err(why) => {
                let [new, old] = [new, old].map(judge::quoted);
                format!("Nothing can be concluded of {new} and {old}: {why}.")
            }
        }
    }

    /// What readers should bear in mind of it.
    #[must_use]
    pub fn caveats(&self) -> Vec<String> {
        let Ok(shift) = &self.shift else {
            return Vec::new();
        };
        let mut caveats = Vec::new();
        if shift.of_one_execution {
            caveats.push(
                "This holds for these executions only: with one execution, how executions differ \
                 is not known, and another one may say the opposite."
                    .to_owned(),
            );
        }
        if shift.set_aside > 0 {
            let (out, all) = (shift.set_aside, shift.of);
            let what = if shift.by_rounds {
                "rounds"
            } else {
                "executions"
            };
            caveats.push(format!(
                "{out} of {all} {what} lie far from the others and are left out of this comparison."
            ));
        }
        if shift.by_rounds {
            caveats.push("The machine drifts, so the rounds are compared one by one.".to_owned());
        }
        caveats
    }
}

/// The effects that can be computed are read together.
pub(crate) fn together<'a>(effects: impl Iterator<Item = &'a mut Effect>) {
    let effects: Vec<&mut Effect> = effects.filter(|effect| effect.shift.is_ok()).collect();
    let comparisons = effects.len();
    for effect in effects {
        effect.family.comparisons = comparisons;
    }
}

impl Pair {
    /// What an effect of two experiments says that differ in their variant.
    pub(crate) fn of(new: &Experiment, old: &Experiment, metric: &Metric, effect: Effect) -> Pair {
        let names = [new, old].map(|one| one.variant.as_str());
        let mut sentence = effect.sentence(names, &new.metric, metric.better);
        let differing = effect.shift.is_ok().then(|| executions_differ(&[new, old]));
        for caveat in effect.caveats().into_iter().chain(differing.flatten()) {
            sentence.push(' ');
            sentence.push_str(&caveat);
        }
        Pair {
            benchmark: new.benchmark.clone(),
            metric: new.metric.clone(),
            old: old.variant.clone(),
            new: new.variant.clone(),
            effect,
            sentence,
        }
    }

    /// The ratio with its interval.
    ///
    /// # Errors
    /// Why there is none.
    pub fn ratio(&self) -> Result<Estimate, Absent> {
        self.effect.ratio()
    }
}

/// Whose executions differ more than the measurements within one, in a sentence.
fn executions_differ(both: &[&Experiment]) -> Option<String> {
    let differ = both
        .iter()
        .filter(|one| judge::executions_differ(&one.sample));
    let names: Vec<String> = differ.map(|one| judge::quoted(&one.variant)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "Executions of {} differ more than the measurements within one: more executions, not \
             longer ones, would make this more precise.",
            names.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_follows_the_direction_and_the_company() {
        let sample = |factor: f64| {
            let value = |n: u8| vec![factor * (1.0 + 0.01 * f64::from(n))];
            Sample::new((0..5).map(value).collect()).unwrap()
        };
        let of = |factor| Effect::of(&sample(factor), &sample(1.0), false, &Settings::default());
        assert_eq!(of(0.9).verdict(Better::Lower), Verdict::Better);
        assert_eq!(of(0.9).verdict(Better::Higher), Verdict::Worse);
        assert_eq!(of(1.001).verdict(Better::Lower), Verdict::Undecided);
        assert_eq!(of(1.03).verdict(Better::Lower), Verdict::Worse);
        let among = of(1.03).among(100);
        assert_eq!(among.verdict(Better::Lower), Verdict::Undecided);
        let sentence = among.sentence(["a b", "c"], "time", Better::Lower);
        assert!(sentence.starts_with("Nothing can be concluded of `a b` and c: "));
        assert!(
            sentence.contains("for all 100 comparisons together"),
            "{sentence}"
        );
    }
}
