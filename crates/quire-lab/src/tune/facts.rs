//! What executions gave, by candidate and round.

use std::collections::BTreeMap;

use crate::judge::Values;
use crate::run::{Better, Run, TIME};

/// What a candidate gave in a part of the race.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Measurements, by round.
    pub values: BTreeMap<u64, Vec<f64>>,
    /// Why executions failed, by round.
    pub failures: BTreeMap<u64, String>,
}

impl Series {
    /// The measurements of rounds from `first` to before `end`.
    #[must_use]
    pub fn between(&self, first: u64, end: u64) -> Values {
        match first < end {
            true => self
                .values
                .range(first..end)
                .map(|(_, v)| v.clone())
                .collect(),
            false => Values::new(),
        }
    }

    /// How many executions failed before round `end`, and why the last one did.
    #[must_use]
    pub fn failed(&self, end: u64) -> (usize, &str) {
        let before = self.failures.range(..end);
        let last = before.clone().next_back();
        (before.count(), last.map_or("", |(_, why)| why))
    }

    /// The first round in which it gave something.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.values.keys().next().copied()
    }
}

/// What there is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Whether less is better.
    pub better: Better,
    /// What candidates gave in the search, by number. Rounds count from 0.
    pub search: Vec<Series>,
    /// The same in the confirmation. Its rounds count from 0, too.
    pub confirmation: Vec<Series>,
    /// The round of the run in which the confirmation began, where it has.
    pub confirmed_from: Option<u64>,
}

impl Facts {
    /// Facts of nothing, for so many candidates.
    #[must_use]
    pub fn none(candidates: usize) -> Facts {
        Facts {
            search: vec![Series::default(); candidates],
            confirmation: vec![Series::default(); candidates],
            ..Facts::default()
        }
    }

    /// The facts about `metric` that a run holds. Its first benchmark is the search, and
    /// its second the confirmation; every round has a place for each candidate in both.
    #[must_use]
    pub fn of(run: &Run, names: &[String], metric: &str) -> Facts {
        let mut facts = Facts::none(names.len());
        let kind = run.header.metrics.get(metric);
        facts.better = kind.map_or(Better::Lower, |kind| kind.better);
        let places = Places::of(run, names);
        let executions = run.executions.iter();
        let made = executions.clone().map(|e| (&e.benchmark, e.order));
        let all = made.chain(run.failures.iter().map(|f| (&f.benchmark, f.order)));
        let confirmed = all.filter(|(benchmark, _)| places.is_confirmation(benchmark));
        facts.confirmed_from = confirmed.map(|(_, order)| places.round(order)).min();
        for e in executions {
            if let Some((series, round)) =
                places.find(&mut facts, &e.benchmark, &e.variant, e.order)
                && let Some(values) = e.metrics.get(metric)
            {
                series.values.insert(round, values.clone());
            }
        }
        for f in &run.failures {
            if let Some((series, round)) =
                places.find(&mut facts, &f.benchmark, &f.variant, f.order)
            {
                series.failures.insert(round, f.reason.clone());
            }
        }
        facts
    }
}

/// Where an execution belongs.
struct Places<'a> {
    search: &'a str,
    confirmation: &'a str,
    names: &'a [String],
}

impl<'a> Places<'a> {
    fn of(run: &'a Run, names: &'a [String]) -> Places<'a> {
        let benchmarks = &run.header.experiment["benchmarks"];
        let name = |n: usize| benchmarks[n]["name"].as_str().unwrap_or_default();
        let (search, confirmation) = (name(0), name(1));
        Places {
            search,
            confirmation,
            names,
        }
    }

    fn is_confirmation(&self, benchmark: &str) -> bool {
        benchmark == self.confirmation
    }

    /// The round of the run.
    fn round(&self, order: u64) -> u64 {
        order / (2 * self.names.len() as u64).max(1)
    }

    /// The series of an execution, and its round there.
    fn find<'f>(
        &self,
        facts: &'f mut Facts,
        benchmark: &str,
        variant: &str,
        order: u64,
    ) -> Option<(&'f mut Series, u64)> {
        let number = self.names.iter().position(|name| name == variant)?;
        let round = self.round(order);
        if self.is_confirmation(benchmark) {
            let from = facts.confirmed_from.unwrap_or(0);
            return Some((&mut facts.confirmation[number], round - from));
        }
        (benchmark == self.search).then(|| (&mut facts.search[number], round))
    }
}

/// The metric that is judged: the one that is wanted, else the run's own time if it is the
/// only one, else the first that the program reports.
///
/// # Errors
/// A line that says which there are, where the wanted one is not among them.
pub fn metric(run: &Run, wanted: Option<&str>) -> Result<String, String> {
    let primary = run.primary_metrics();
    match wanted {
        Some(wanted)
            if run
                .executions
                .iter()
                .any(|e| e.metrics.get(wanted).is_some()) =>
        {
            Ok(wanted.into())
        }
        Some(wanted) if !run.executions.is_empty() => Err(format!(
            "the program reports no {wanted}; it reports {}",
            primary.join(", ")
        )),
        Some(wanted) => Ok(wanted.into()),
        None => Ok(primary.first().map_or(TIME, |name| name).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Execution, Failure};

    #[test]
    fn executions_are_found_by_their_place() {
        let names = ["plain", "eager"].map(String::from);
        let benchmarks =
            serde_json::json!([{ "name": "x (search)" }, { "name": "x (confirmation)" }]);
        let mut run = Run::default();
        run.header.experiment = serde_json::json!({ "benchmarks": benchmarks });
        let execution = |benchmark: &str, variant: &str, order| Execution {
            benchmark: benchmark.into(),
            variant: variant.into(),
            order,
            metrics: [(TIME.into(), vec![order as f64])].into(),
            ..Execution::default()
        };
        // Four places a round: two rounds of search, then the confirmation.
        for (benchmark, variant, order) in [
            ("x (search)", "plain", 1),
            ("x (search)", "eager", 7),
            ("x (confirmation)", "plain", 10),
            ("x (confirmation)", "eager", 14),
            ("other", "plain", 15),
        ] {
            run.add(execution(benchmark, variant, order)).unwrap();
        }
        run.fail(Failure {
            benchmark: "x (search)".into(),
            variant: "eager".into(),
            order: 2,
            reason: "why".into(),
            ..Failure::default()
        });
        let facts = Facts::of(&run, &names, TIME);
        assert_eq!(facts.confirmed_from, Some(2));
        assert_eq!(facts.search[0].between(0, 9), [vec![1.0]]);
        assert_eq!(facts.search[1].first(), Some(1));
        assert_eq!(facts.search[1].failed(0), (0, ""));
        assert_eq!(facts.search[1].failed(1), (1, "why"));
        assert_eq!(facts.confirmation[0].between(0, 1), [vec![10.0]]);
        assert_eq!(facts.confirmation[1].between(0, 1), Vec::<Vec<f64>>::new());
        assert_eq!(facts.confirmation[1].between(1, 2), [vec![14.0]]);
        assert_eq!(
            Facts::of(&run, &names, "other").search[0],
            Series::default()
        );
    }

    #[test]
    fn the_metric_is_the_wanted_one_or_the_first() {
        let mut run = Run::default();
        assert_eq!(metric(&run, None).unwrap(), TIME);
        assert_eq!(metric(&run, Some("rate")).unwrap(), "rate");
        run.add(Execution {
            metrics: [(TIME.into(), vec![1.0])].into(),
            ..Execution::default()
        })
        .unwrap();
        assert_eq!(metric(&run, None).unwrap(), TIME);
        assert!(metric(&run, Some("rate")).unwrap_err().contains("time"));
    }
}
