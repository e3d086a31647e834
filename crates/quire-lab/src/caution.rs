//! How far intervals of few executions fall short of what they say.
//!
//! Where executions are drawn anew for an interval (the percentile bootstrap), few of them
//! make it too narrow, that of a coefficient of variation most. How often such intervals
//! hold the true value was simulated; `docs/statistics.md` has the table, for normal data.
//! The intervals of the mean and of comparisons are Student's, and need no such caution.

use crate::judge::{Intervals, Settings};
use crate::report::Figure;

/// The numbers of executions that were simulated.
const SIMULATED: [usize; 5] = [5, 10, 20, 50, 100];
/// So many executions are enough.
const ENOUGH: usize = 50;
/// The confidence that was simulated.
const CONFIDENCE: f64 = 0.95;

/// What an interval is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The coefficient of variation within executions.
    Within,
    /// The impact factor.
    Impact,
    /// The coefficient of variation of one measurement per execution.
    Unclassified,
}

impl Of {
    /// Of a figure; nothing where its interval needs no caution.
    #[must_use]
    pub fn figure(figure: Figure) -> Option<Of> {
        match figure {
            Figure::Mean => None,
            Figure::Within => Some(Of::Within),
            Figure::Impact => Some(Of::Impact),
            Figure::Unclassified => Some(Of::Unclassified),
        }
    }

    /// Its name in files.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Of::Within => Figure::Within.key(),
            Of::Impact => Figure::Impact.key(),
            Of::Unclassified => Figure::Unclassified.key(),
        }
    }

    /// Its name in sentences.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Of::Within => Figure::Within.title(),
            Of::Impact => Figure::Impact.title(),
            Of::Unclassified => Figure::Unclassified.title(),
        }
    }

    /// About so many executions are enough: of intervals of 95 %, 91 % or more hold the
    /// true value.
    #[must_use]
    pub fn enough(self) -> usize {
        ENOUGH
    }

    /// How many per cent of simulated intervals held the true value, by [`SIMULATED`].
    fn held(self, intervals: Intervals) -> [f64; 5] {
        match (self, intervals) {
            (Of::Within, _) => [82.8, 90.0, 92.8, 94.3, 94.2],
            (Of::Impact, Intervals::Percentile) => [68.5, 81.0, 88.0, 92.8, 94.3],
            (Of::Impact, Intervals::Bca) => [67.5, 82.7, 90.0, 92.6, 94.2],
            (Of::Unclassified, Intervals::Percentile) => [62.5, 76.6, 84.7, 91.1, 93.5],
            (Of::Unclassified, Intervals::Bca) => [63.2, 81.5, 88.8, 91.8, 93.8],
        }
    }

    /// The share of intervals of 95 % that hold the true value, with so many executions:
    /// between those that were simulated by the logarithm, below the least as of it.
    fn holds(self, executions: usize, intervals: Intervals) -> f64 {
        let held = self.held(intervals);
        let place = SIMULATED.iter().rposition(|size| *size <= executions);
        let Some(place) = place else {
            return held[0] / 100.0;
        };
        let Some(next) = SIMULATED.get(place + 1) else {
            return held[place] / 100.0;
        };
        let log = |size: usize| (size as f64).ln();
        let from = log(SIMULATED[place]);
        let part = (log(executions) - from) / (log(*next) - from);
        (held[place] + part * (held[place + 1] - held[place])) / 100.0
    }
}

/// An interval of too few executions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Few {
    /// What it is of.
    pub of: Of,
    /// How many executions there are.
    pub executions: usize,
    /// The share of such intervals that hold the true value, or less with fewer than five
    /// executions; nothing where it was not simulated.
    pub holds: Option<f64>,
}

impl Few {
    /// Of an interval of so many executions; nothing where they are enough.
    #[must_use]
    pub fn of(of: Of, executions: usize, settings: &Settings) -> Option<Few> {
        let is_simulated = (settings.confidence - CONFIDENCE).abs() < 1e-9;
        (executions < of.enough()).then(|| Few {
            of,
            executions,
            holds: is_simulated.then(|| of.holds(executions, settings.intervals)),
        })
    }
}

/// What to bear in mind of intervals that are of the same number of executions. Nothing
/// where there is nothing.
#[must_use]
pub fn sentence(few: &[Few]) -> Option<String> {
    let executions = few.first()?.executions;
    let enough = few.iter().map(|few| few.of.enough()).max()?;
    let of = |few: &Few| match few.holds {
        Some(holds) => format!("{:.0} % ({})", 100.0 * holds, few.of.title()),
        None => few.of.title().to_owned(),
    };
    let of = listed(&few.iter().map(of).collect::<Vec<_>>());
    let word = match executions < SIMULATED[0] {
        true => "less than",
        false => "about",
    };
    let short = match few.iter().all(|few| few.holds.is_some()) {
        true => format!("in simulations, {word} {of} of intervals of 95 % held the true value"),
        false => format!("intervals are too narrow ({of})"),
    };
    Some(format!(
        "{executions} executions are few: {short}. About {enough} would do."
    ))
}

/// Each text once, in the order in which they first came, with the names of all that it
/// was said of.
#[must_use]
pub fn each_once(said: impl IntoIterator<Item = (String, String)>) -> Vec<(Vec<String>, String)> {
    let mut once: Vec<(Vec<String>, String)> = Vec::new();
    for (name, text) in said {
        match once.iter_mut().find(|(_, known)| *known == text) {
            Some((names, _)) => names.push(name),
            None => once.push((vec![name], text)),
        }
    }
    once
}

/// `a`, `a and b`, `a, b and c`.
#[must_use]
pub fn listed(texts: &[String]) -> String {
    match texts {
        [] => String::new(),
        [one] => one.clone(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Of; 3] = [Of::Within, Of::Impact, Of::Unclassified];

    /// The table of the documentation, which the simulation printed.
    #[test]
    fn the_shares_are_those_of_the_documentation() {
        let text = include_str!("../../../docs/statistics.md");
        for of in ALL {
            let name = match of {
                Of::Within => "Within",
                Of::Impact => "Impact",
                Of::Unclassified => "Unclassified",
            };
            for intervals in [Intervals::Percentile, Intervals::Bca] {
                let held = of.held(intervals).map(|held| format!("{held:.1}"));
                let row = format!("| Normal | {name} | {} |", held.join(" | "));
                assert!(text.contains(&row), "{row}");
            }
        }
    }

    #[test]
    fn more_executions_hold_more_and_enough_are_enough() {
        for of in ALL {
            let few = |executions| Few::of(of, executions, &Settings::default());
            let holds = |executions: usize| few(executions).and_then(|few| few.holds).unwrap();
            for executions in 2..of.enough() - 1 {
                assert!(holds(executions) <= holds(executions + 1), "{of:?}");
                assert!(holds(executions) < 0.95);
            }
            assert!(
                of.holds(of.enough(), Intervals::Percentile) > 0.91,
                "{of:?}"
            );
            assert_eq!(few(of.enough()), None);
            let held = of.held(Intervals::Percentile);
            assert_eq!(of.holds(1000, Intervals::Percentile), held[4] / 100.0);
        }
        let holds = |of: Of, executions| of.holds(executions, Intervals::Percentile);
        assert!((holds(Of::Impact, 20) - 0.88).abs() < 1e-9);
        assert!((0.79..0.81).contains(&holds(Of::Unclassified, 14)));
        let corrected = Of::Unclassified.holds(20, Intervals::Bca);
        assert!(corrected > holds(Of::Unclassified, 20));
    }

    #[test]
    fn a_sentence_names_the_shares_and_how_many_would_do() {
        let settings = Settings::default();
        let few = |of, executions| Few::of(of, executions, &settings).unwrap();
        let text = sentence(&[few(Of::Impact, 20), few(Of::Unclassified, 20)]).unwrap();
        assert_eq!(
            text,
            "20 executions are few: in simulations, about 88 % (impact factor) and 85 % \
             (unclassified CV) of intervals of 95 % held the true value. About 50 would do."
        );
        let text = sentence(&[few(Of::Within, 3)]).unwrap();
        assert!(
            text.contains("less than 83 % (CV within executions)"),
            "{text}"
        );
        assert!(text.contains("About 50 would do"), "{text}");
        let other = Settings {
            confidence: 0.9,
            ..settings
        };
        let text = sentence(&[Few::of(Of::Impact, 5, &other).unwrap()]).unwrap();
        assert!(!text.contains('%'), "{text}");
        assert_eq!(sentence(&[]), None);
    }

    #[test]
    fn a_text_is_said_once() {
        let said = [("a", "x"), ("b", "y"), ("c", "x")].map(|(a, b)| (a.into(), b.into()));
        let once = each_once(said);
        assert_eq!(once.len(), 2);
        assert_eq!(listed(&once[0].0), "a and c");
        assert_eq!(listed(&["a", "b", "c"].map(String::from)), "a, b and c");
    }
}
