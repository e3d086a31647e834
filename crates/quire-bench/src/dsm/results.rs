//! Figures with their spread, and whether targets are reached.

use quire_stats::Summary;
use serde::Serialize;

use crate::dsm::Part;
use crate::target::Outcome;

/// What the intervals depend on.
const SEED: u64 = 3;

/// A figure: one value for each round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The part that it belongs to.
    pub part: Part,
    /// Between which nodes it was measured: `loopback`, `50 us`, or nothing.
    pub setting: String,
    /// What it is.
    pub name: String,
    /// Its unit.
    pub unit: &'static str,
    /// The value of each round.
    pub values: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// The 95 % interval of the median.
    pub interval: [f64; 2],
    /// What paper 003 has, in words.
    pub paper: Option<String>,
}

/// A target with what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The part that it belongs to.
    pub part: Part,
    /// In which setting.
    pub setting: String,
    /// The target in words.
    pub text: String,
    /// What was measured.
    pub measured: f64,
    /// Whether the target is reached.
    pub outcome: Outcome,
}

/// What has to hold of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtMost(most) => value <= most,
            Bound::AtLeast(least) => value >= least,
        }
    }
}

/// All that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Results {
    /// The figures.
    pub figures: Vec<Figure>,
    /// The targets.
    pub verdicts: Vec<Verdict>,
    /// What has to be known of them.
    pub notes: Vec<String>,
}

impl Results {
    /// Adds a figure. Returns its median; `None`, and nothing is added, where there is no
    /// value or one is no number.
    pub fn add(
        &mut self,
        part: Part,
        setting: &str,
        name: &str,
        unit: &'static str,
        values: Vec<f64>,
    ) -> Option<f64> {
        let summary = Summary::of(&values, SEED)?;
        self.figures.push(Figure {
            part,
            setting: setting.to_owned(),
            name: name.to_owned(),
            unit,
            values,
            median: summary.median,
            interval: [summary.ci_low, summary.ci_high],
            paper: None,
        });
        Some(summary.median)
    }

    /// Says what the paper has beside the figure that was added last.
    pub fn paper(&mut self, text: impl Into<String>) {
        if let Some(figure) = self.figures.last_mut() {
            figure.paper = Some(text.into());
        }
    }

    /// Judges a value.
    pub fn judge(
        &mut self,
        part: Part,
        setting: &str,
        text: impl Into<String>,
        measured: Option<f64>,
        bound: Bound,
    ) {
        let outcome = match measured {
            Some(value) if bound.holds(value) => Outcome::Holds,
            Some(_) => Outcome::Missed,
            None => Outcome::NotMeasured,
        };
        self.verdicts.push(Verdict {
            part,
            setting: setting.to_owned(),
            text: text.into(),
            measured: measured.unwrap_or(f64::NAN),
            outcome,
        });
    }

    /// Adds what has to be known, once.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_included() {
        let mut results = Results::default();
        for (value, bound) in [
            (Some(2.0), Bound::AtMost(2.0)),
            (Some(2.1), Bound::AtMost(2.0)),
            (Some(1.8), Bound::AtLeast(1.8)),
            (Some(1.7), Bound::AtLeast(1.8)),
            (None, Bound::AtLeast(0.0)),
        ] {
            results.judge(Part::Faults, "", "a target", value, bound);
        }
        let outcomes: Vec<Outcome> = results.verdicts.iter().map(|v| v.outcome).collect();
        let [holds, missed] = [Outcome::Holds, Outcome::Missed];
        assert_eq!(
            outcomes,
            [holds, missed, holds, missed, Outcome::NotMeasured]
        );
    }

    #[test]
    fn a_figure_has_its_median() {
        let mut results = Results::default();
        let values = vec![3.0, 1.0, 2.0];
        let median = results.add(Part::Faults, "", "x", "us", values);
        assert_eq!(median, Some(2.0));
        results.paper("4 ms");
        assert_eq!(results.figures[0].paper.as_deref(), Some("4 ms"));
        assert_eq!(results.add(Part::Faults, "", "y", "us", Vec::new()), None);
        assert_eq!(results.figures.len(), 1);
    }
}
