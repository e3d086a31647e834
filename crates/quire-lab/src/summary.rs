//! What a run says, in a table for each benchmark and metric, with a plain sentence of
//! what can be concluded and what cannot.

use quire_stats::Estimate;

use crate::judge::{self, Judged};
use crate::run::{Better, Metric, Run};

/// What a benchmark says of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The benchmark.
    pub benchmark: String,
    /// The metric.
    pub metric: String,
    /// What it is.
    pub kind: Metric,
    /// Its variants.
    pub rows: Vec<Row>,
    /// What can be concluded, in a sentence for each variant but the first.
    pub sentences: Vec<String>,
}

/// A variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its name.
    pub variant: String,
    /// How many executions gave something.
    pub executions: usize,
    /// How many did not.
    pub failures: usize,
    /// The mean.
    pub mean: Judged,
    /// The coefficient of variation.
    pub variation: Judged,
    /// The least and the largest measurement.
    pub range: Option<(f64, f64)>,
    /// How many times the mean of the first variant the mean is; nothing for the first.
    pub ratio: Option<Judged>,
}

/// The tables of a run.
#[must_use]
pub fn tables(run: &Run) -> Vec<Table> {
    let mut tables = Vec::new();
    for benchmark in benchmarks(run) {
        for metric in run.primary_metrics() {
            tables.extend(table(run, &benchmark, metric));
        }
    }
    tables
}

/// The benchmarks, those that only failed, too.
fn benchmarks(run: &Run) -> Vec<String> {
    let mut names: Vec<String> = run.benchmarks().into_iter().map(String::from).collect();
    for failure in &run.failures {
        if !names.contains(&failure.benchmark) {
            names.push(failure.benchmark.clone());
        }
    }
    names
}

/// The variants of a benchmark, in the order of the experiment as far as it is known.
fn variants(run: &Run, benchmark: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let listed = run.header.experiment["variants"].as_array();
    let listed = listed
        .into_iter()
        .flatten()
        .filter_map(|v| v["name"].as_str());
    let failed = run.failures.iter().filter(|f| f.benchmark == benchmark);
    let failed: Vec<&str> = failed.map(|f| &*f.variant).collect();
    let made = run.variants(benchmark);
    let is_there = |name: &&str| made.contains(name) || failed.contains(name);
    for name in listed
        .filter(is_there)
        .chain(made.iter().copied())
        .chain(failed.iter().copied())
    {
        if !names.iter().any(|known| known == name) {
            names.push(name.into());
        }
    }
    names
}

fn table(run: &Run, benchmark: &str, metric: &str) -> Option<Table> {
    let kind = run.header.metrics.get(metric)?.clone();
    let seed = run.header.seed;
    let names = variants(run, benchmark);
    let values = names
        .iter()
        .map(|name| run.measurements(benchmark, name, metric));
    let values: Vec<judge::Values> = values.collect();
    let first = values.first()?.clone();
    let row = |(n, name): (usize, &String)| {
        let values = &values[n];
        let failed = |f: &&crate::run::Failure| f.benchmark == benchmark && f.variant == *name;
        let all = || values.iter().flatten().copied();
        let range = (all().reduce(f64::min)).zip(all().reduce(f64::max));
        Row {
            variant: name.clone(),
            executions: values.len(),
            failures: run.failures.iter().filter(failed).count(),
            mean: judge::mean(values, seed),
            variation: judge::variation(values, seed),
            range,
            ratio: (n > 0).then(|| judge::ratio(values, &first, seed)),
        }
    };
    let rows: Vec<Row> = names.iter().enumerate().map(row).collect();
    let sentences = rows
        .iter()
        .skip(1)
        .map(|row| sentence(&rows[0], row, &kind));
    let sentences = sentences.collect();
    let (benchmark, metric) = (benchmark.into(), metric.into());
    Some(Table {
        benchmark,
        metric,
        kind,
        rows,
        sentences,
    })
}

/// What can be concluded of a variant beside the first one.
fn sentence(first: &Row, row: &Row, kind: &Metric) -> String {
    let (a, b) = (format!("`{}`", row.variant), format!("`{}`", first.variant));
    let judged = (&row.mean, &first.mean, &row.ratio);
    let (own, other, ratio) = match judged {
        (Ok(own), Ok(other), Some(Ok(ratio))) => (own, other, ratio),
        (Err(why), _, _) => return format!("Nothing can be said of {a}: {why}."),
        (_, Err(why), _) => return format!("Nothing can be compared with {b}: {why}."),
        (_, _, Some(Err(why))) => return format!("{a} cannot be compared with {b}: {why}."),
        (_, _, None) => return String::new(),
    };
    let Estimate {
        value,
        ci_low,
        ci_high,
    } = ratio;
    let excludes_one = *ci_low > 1.0 || *ci_high < 1.0;
    if judge::differ(own, other) && excludes_one {
        let is_better = (*value < 1.0) == (kind.better == Better::Lower);
        let word = if is_better { "better" } else { "worse" };
        return format!(
            "{a} is {word} than {b}: {value:.3} times its mean, and with 95 % confidence {ci_low:.3} to {ci_high:.3} times."
        );
    }
    let change = |ratio: &f64| format!("{:+.1} %", (ratio - 1.0) * 100.0);
    format!(
        "Nothing can be concluded of {a} and {b}: their intervals overlap. If they differ, the difference is between {} and {}; more executions would narrow that.",
        change(ci_low),
        change(ci_high)
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::run::{Execution, Failure, TIME};

    fn run(variants: &[(&str, f64, f64)]) -> Run {
        let mut run = Run::default();
        for n in 0..20 {
            for (name, mean, spread) in variants {
                let step = f64::from(n % 5) / 2.0 - 1.0;
                run.add(Execution {
                    benchmark: "b".into(),
                    variant: (*name).into(),
                    metrics: BTreeMap::from([(TIME.into(), vec![mean + spread * step])]),
                    ..Execution::default()
                })
                .unwrap();
            }
        }
        run
    }

    #[test]
    fn a_difference_is_told_and_no_difference_is_not() {
        let tables = tables(&run(&[("a", 1.0, 0.1), ("b", 0.5, 0.05), ("c", 1.01, 0.1)]));
        assert_eq!(tables.len(), 1);
        let sentences = &tables[0].sentences;
        assert!(
            sentences[0].starts_with("`b` is better than `a`: 0.500"),
            "{sentences:?}"
        );
        assert!(
            sentences[1].starts_with("Nothing can be concluded"),
            "{sentences:?}"
        );
        assert!(tables[0].rows[0].ratio.is_none());
    }

    #[test]
    fn more_is_better_where_it_is_a_rate() {
        let mut run = run(&[("a", 1.0, 0.1), ("b", 2.0, 0.1)]);
        run.header.metrics.get_mut(TIME).unwrap().better = Better::Higher;
        assert!(tables(&run)[0].sentences[0].starts_with("`b` is better"));
    }

    #[test]
    fn what_only_failed_is_shown_and_said() {
        let mut run = run(&[("a", 1.0, 0.1)]);
        run.failures.push(Failure {
            benchmark: "b".into(),
            variant: "broken".into(),
            ..Failure::default()
        });
        let table = &tables(&run)[0];
        assert_eq!((table.rows[1].executions, table.rows[1].failures), (0, 1));
        assert!(table.rows[1].mean.is_err());
        assert!(table.sentences[0].starts_with("Nothing can be said of `broken`"));
    }
}
