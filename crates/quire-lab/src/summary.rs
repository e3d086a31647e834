//! What a run says, in a table for each benchmark and metric, with a plain sentence of
//! what can be concluded and what cannot.

use std::collections::BTreeSet;

use crate::caution::{self, Few, Of, each_once, listed};
use crate::judge::{self, Absent, Estimate, Judged, Sample, Settings};
use crate::report::Figure;
use crate::run::{Better, Failure, Metric, Run};
use crate::settling::Settling;

/// It is worth a note where this share of the executions never becomes steady; less may
/// be noise.
const UNSTEADY: f64 = 0.1;

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
    /// What to bear in mind: intervals that are too narrow, executions that are not
    /// steady, and what helps.
    pub notes: Vec<String>,
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
    let settings = judge::settings(run.header.seed);
    let sample = |name: &String| Sample::new(run.measurements(benchmark, name, metric));
    let names = variants(run, benchmark);
    let samples: Vec<Result<Sample, Absent>> = names.iter().map(sample).collect();
    let first = samples.first()?;
    let row = |(n, name): (usize, &String)| {
        let failed = |f: &&Failure| f.benchmark == benchmark && f.variant == *name;
        let failures = run.failures.iter().filter(failed).count();
        let first = (n > 0).then_some(first);
        row(name, failures, &samples[n], first, &settings)
    };
    let rows: Vec<Row> = names.iter().enumerate().map(row).collect();
    let sentences = rows.iter().skip(1);
    let sentences = sentences.map(|row| sentence(&rows[0], row, &kind));
    let discarded = run.header.experiment["discard"].as_u64().unwrap_or(0);
    Some(Table {
        sentences: sentences.collect(),
        notes: notes(&rows, &samples, &kind, discarded, &settings),
        benchmark: benchmark.into(),
        metric: metric.into(),
        kind,
        rows,
    })
}

/// A variant, beside the first one unless it is that.
fn row(
    name: &str,
    failures: usize,
    sample: &Result<Sample, Absent>,
    first: Option<&Result<Sample, Absent>>,
    settings: &Settings,
) -> Row {
    let own = || sample.as_ref().map_err(Absent::clone);
    let ratio = |first: &Result<Sample, Absent>| {
        let first = first.as_ref().map_err(Absent::clone)?;
        judge::ratio(own()?, first, settings)
    };
    let all = || sample.iter().flat_map(Sample::values);
    Row {
        variant: name.into(),
        executions: sample.as_ref().map_or(0, |s| s.executions().len()),
        failures,
        mean: own().and_then(|sample| judge::mean(sample, settings)),
        variation: own().and_then(|sample| judge::variation(sample, settings)),
        range: (all().reduce(f64::min)).zip(all().reduce(f64::max)),
        ratio: first.map(ratio),
    }
}

/// What to bear in mind of the rows of a table, of which so many measurements were left
/// out at the beginning of each execution.
fn notes(
    rows: &[Row],
    samples: &[Result<Sample, Absent>],
    kind: &Metric,
    discarded: u64,
    settings: &Settings,
) -> Vec<String> {
    let known = || {
        let both = rows.iter().zip(samples);
        both.filter_map(|(row, sample)| Some((row, sample.as_ref().ok()?)))
    };
    let first = rows.first().map_or(0, |row| row.executions);
    let few = known().map(|(row, sample)| (name(row), few(row, first, sample, settings)));
    let steady = known().filter_map(|(row, sample)| {
        let settling = Settling::of(sample, kind.better, settings).ok()?;
        Some((name(row), unsteady(&settling, discarded)?))
    });
    let of_all = known().count();
    let few = few_by_executions(&few.collect::<Vec<_>>());
    let said = few.into_iter().chain(each_once(steady));
    let text = |(names, text): (Vec<String>, String)| match names.len() == of_all {
        true => text,
        false => format!("{}: {text}", listed(&names)),
    };
    said.map(text).collect()
}

/// What is to be said of each number of executions, with the names of the rows that have it.
fn few_by_executions(rows: &[(String, Vec<Few>)]) -> Vec<(Vec<String>, String)> {
    let counts = rows
        .iter()
        .flat_map(|(_, few)| few.iter().map(|few| few.executions));
    let counts: BTreeSet<usize> = counts.collect();
    let of = |count: usize| {
        let (mut names, mut all) = (Vec::new(), Vec::new());
        for (name, few) in rows {
            let alike: Vec<Few> = few
                .iter()
                .copied()
                .filter(|few| few.executions == count)
                .collect();
            if !alike.is_empty() {
                names.push(name.clone());
            }
            for few in alike {
                if !all.contains(&few) {
                    all.push(few);
                }
            }
        }
        Some((names, caution::sentence(&all)?))
    };
    counts.into_iter().filter_map(of).collect()
}

fn name(row: &Row) -> String {
    format!("`{}`", row.variant)
}

/// Which intervals of a row are too narrow; `first` is the number of executions that it is
/// compared with.
fn few(row: &Row, first: usize, sample: &Sample, settings: &Settings) -> Vec<Few> {
    let variation = match sample.has_groups() {
        true => Of::Within,
        false => Of::Unclassified,
    };
    let ratio = row.ratio.as_ref().is_some_and(Result::is_ok);
    let executions = row.executions;
    let computed = [
        Of::figure(Figure::Mean, sample)
            .filter(|_| row.mean.is_ok())
            .map(|of| (of, executions)),
        row.variation.is_ok().then_some((variation, executions)),
        ratio.then_some((Of::Ratio, executions.min(first))),
    ];
    let computed = computed.into_iter().flatten();
    computed
        .filter_map(|(of, executions)| Few::of(of, executions, settings))
        .collect()
}

/// What is not steady, and what to leave out so that it is. Nothing where all but a few
/// executions are.
fn unsteady(settling: &Settling, discarded: u64) -> Option<String> {
    let discard = settling.discard();
    if discard.is_none() && settling.never_share() < UNSTEADY {
        return None;
    }
    let hint = discard.map(|more| {
        let all = discarded + more as u64;
        format!(" `--discard {all}` leaves out the warm-up of nine in ten of them.")
    });
    Some(settling.sentence() + &hint.unwrap_or_default())
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
    if judge::differ(own, other, 0.0) && excludes_one {
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
    use crate::run::{Execution, TIME};

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

    #[test]
    fn few_executions_are_told_once() {
        let mut run = run(&[("a", 1.0, 0.1), ("b", 2.0, 0.1)]);
        run.executions.truncate(20);
        let notes = &tables(&run)[0].notes;
        assert_eq!(
            notes[..],
            [
                "10 executions are few: in simulations, about 90 % (mean), 77 % (unclassified CV) \
              and 91 % (ratio of means) of intervals of 95 % held the true value. About 50 would \
              do."
            ]
        );
        run.executions.pop();
        let notes = &tables(&run)[0].notes;
        assert!(
            notes[1].starts_with("`a`: 10 executions are few"),
            "{notes:?}"
        );
        assert!(
            notes[0].starts_with("`b`: 9 executions are few"),
            "{notes:?}"
        );
        let alone = self::run(&[("a", 1.0, 0.1)]);
        let notes = &tables(&alone)[0].notes;
        assert!(notes[0].starts_with("20 executions are few"), "{notes:?}");
        assert!(!notes[0].contains("(mean)"), "20 are enough: {notes:?}");
    }

    /// Executions of 40 measurements of these levels.
    fn in_time(level: fn(usize) -> f64) -> Run {
        let mut run = Run::default();
        for n in 0..50 {
            let value = |at: usize| level(at) * (1.0 + ((at * 42 + n * 7) % 101) as f64 / 5050.0);
            run.add(Execution {
                benchmark: "b".into(),
                variant: "v".into(),
                metrics: BTreeMap::from([(TIME.into(), (0..40).map(value).collect())]),
                ..Execution::default()
            })
            .unwrap();
        }
        run
    }

    #[test]
    fn a_warm_up_is_hinted_at_beyond_what_is_discarded() {
        let mut run = in_time(|at| if at < 7 { 2.0 } else { 1.0 });
        let hint = |run: &Run| tables(run)[0].notes.concat();
        assert!(
            hint(&run).contains("`--discard 7` leaves out"),
            "{}",
            hint(&run)
        );
        run.header.experiment = serde_json::json!({"discard": 3});
        assert!(hint(&run).contains("`--discard 10` leaves out"));
    }

    #[test]
    fn what_never_settles_is_said_and_what_is_steady_is_not() {
        let never = in_time(|at| if at / 8 % 2 == 0 { 1.0 } else { 1.5 });
        let notes = &tables(&never)[0].notes;
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(
            notes[0].contains("50 never become steady (100 %)"),
            "{notes:?}"
        );
        assert!(!notes[0].contains("--discard"), "{notes:?}");
        assert_eq!(tables(&in_time(|_| 1.0))[0].notes, [""; 0]);
    }
}
