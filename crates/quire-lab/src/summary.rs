//! What a run says, in a table for each benchmark and metric, with a plain sentence of
//! what can be concluded and what cannot.

use crate::caution::{Few, Of, each_once, listed};
use crate::judge::{self, Absent, Family, Judged, Sample, Settings};
use crate::report::experiment;
use crate::report::pair::together;
use crate::report::{Effect, Verdict};
use crate::run::{Failure, Metric, Run, are_in_rounds};
use crate::settling::Settling;
use crate::usage::{SYSTEM_TIME, USER_TIME};

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
    /// What can be concluded of each variant but the first.
    pub conclusions: Vec<Conclusion>,
    /// What to bear in mind: intervals that are too narrow, executions that are not
    /// steady, and what helps.
    pub notes: Vec<String>,
}

/// What can be concluded of a variant beside the first one.
#[derive(Clone, Debug, PartialEq)]
pub struct Conclusion {
    /// In a word.
    pub verdict: Verdict,
    /// In a sentence.
    pub text: String,
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
    /// The same without an interval, which a single execution has, too.
    pub average: Option<f64>,
    /// The coefficient of variation.
    pub variation: Judged,
    /// The least and the largest measurement.
    pub range: Option<(f64, f64)>,
    /// The median of all measurements.
    pub median: Option<f64>,
    /// The mean time that the processor was in the program, and in the kernel for it, in seconds.
    pub processor: Option<(f64, f64)>,
    /// How many times as large it is as the first variant, by the rule of all comparisons; nothing
    /// for the first.
    pub ratio: Option<Judged>,
}

/// A table that is not read together with the others yet.
struct Draft {
    table: Table,
    /// Of each row but the first.
    effects: Vec<Effect>,
}

/// The tables of a run.
#[must_use]
pub fn tables(run: &Run) -> Vec<Table> {
    let mut drafts = Vec::new();
    for benchmark in benchmarks(run) {
        for metric in run.primary_metrics() {
            drafts.extend(draft(run, &benchmark, metric));
        }
    }
    together(drafts.iter_mut().flat_map(|draft| &mut draft.effects));
    drafts.into_iter().map(Draft::finish).collect()
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

/// The variants of a benchmark, those that only failed, too.
fn variants(run: &Run, benchmark: &str) -> Vec<String> {
    let made = run.variants(benchmark);
    let failed = run.failures.iter().filter(|f| f.benchmark == benchmark);
    let failed: Vec<&str> = failed.map(|f| &*f.variant).collect();
    let mut names = run.all_variants();
    names.retain(|name| made.contains(name) || failed.contains(name));
    names.into_iter().map(String::from).collect()
}

fn draft(run: &Run, benchmark: &str, metric: &str) -> Option<Draft> {
    let kind = run.header.metrics.get(metric)?.clone();
    let settings = judge::settings(run.header.seed);
    let sample = |name: &String| Sample::new(run.measurements(benchmark, name, metric));
    let names = variants(run, benchmark);
    let samples: Vec<Result<Sample, Absent>> = names.iter().map(sample).collect();
    let row = |(n, name): (usize, &String)| {
        let failed = |f: &&Failure| f.benchmark == benchmark && f.variant == *name;
        let failures = run.failures.iter().filter(failed).count();
        let average = |metric: &str| average(&run.measurements(benchmark, name, metric));
        Row {
            processor: average(USER_TIME).zip(average(SYSTEM_TIME)),
            ..row(name, failures, &samples[n], &settings)
        }
    };
    let rows: Vec<Row> = names.iter().enumerate().map(row).collect();
    let orders = |n: usize| run.orders(benchmark, &names[n], metric);
    let effect = |n: usize| match (&samples[n], &samples[0]) {
        (Ok(new), Ok(old)) => {
            let in_rounds = are_in_rounds(&orders(n), &orders(0));
            Effect::of(new, old, in_rounds, &settings)
        }
        (Err(why), _) | (_, Err(why)) => Effect {
            shift: Err(why.clone()),
            family: Family {
                confidence: settings.confidence,
                comparisons: 1,
            },
        },
    };
    let discarded = run.header.experiment["discard"].as_u64().unwrap_or(0);
    Some(Draft {
        effects: (1..names.len()).map(effect).collect(),
        table: Table {
            conclusions: Vec::new(),
            notes: notes(&rows, &samples, &kind, discarded, &settings),
            benchmark: benchmark.into(),
            metric: metric.into(),
            kind,
            rows,
        },
    })
}

impl Draft {
    /// The table with its ratios, conclusions and what to bear in mind of them.
    fn finish(self) -> Table {
        let Draft { mut table, effects } = self;
        let first = table
            .rows
            .first()
            .map_or(String::new(), |row| row.variant.clone());
        let mut caveats = Vec::new();
        for (row, effect) in table.rows.iter_mut().skip(1).zip(&effects) {
            row.ratio = Some(effect.ratio());
            table.conclusions.push(Conclusion {
                verdict: effect.verdict(table.kind.better),
                text: effect.sentence([&row.variant, &first], &table.metric, table.kind.better),
            });
            let of_row = effect.caveats().into_iter();
            caveats.extend(of_row.map(|text| (judge::quoted(&row.variant), text)));
        }
        let all = effects.len();
        let of_whom = |(names, text): (Vec<String>, String)| match names.len() == all {
            true => text,
            false => format!("{}: {text}", listed(&names)),
        };
        let caveats = each_once(caveats).into_iter().map(of_whom);
        table.notes.splice(0..0, caveats);
        table
    }
}

/// The mean of all measurements; nothing where there are none.
fn average(executions: &[Vec<f64>]) -> Option<f64> {
    let count = executions.iter().map(Vec::len).sum::<usize>();
    let sum: f64 = executions.iter().flatten().sum();
    (count > 0).then(|| sum / count as f64)
}

/// A variant, which is not compared yet.
fn row(name: &str, failures: usize, sample: &Result<Sample, Absent>, settings: &Settings) -> Row {
    let own = || sample.as_ref().map_err(Absent::clone);
    let all = || sample.iter().flat_map(Sample::values);
    Row {
        variant: name.into(),
        executions: sample.as_ref().map_or(0, |s| s.executions().len()),
        failures,
        mean: own().and_then(|sample| judge::mean(sample, settings)),
        average: sample.as_ref().ok().map(experiment::average),
        variation: own().and_then(|sample| judge::variation(sample, settings)),
        range: (all().reduce(f64::min)).zip(all().reduce(f64::max)),
        median: quire_stats::median(&all().collect::<Vec<f64>>()),
        processor: None,
        ratio: None,
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
    let few = known().filter_map(|(row, sample)| {
        let (own, enough) = (row.executions, wanted(row, sample, settings)?);
        let text =
            format!("{own} executions are few: the CV is known badly. About {enough} would do.");
        Some((own, (name(row), text)))
    });
    let mut few: Vec<(usize, (String, String))> = few.collect();
    few.sort_by_key(|(executions, _)| *executions);
    let steady = known().filter_map(|(row, sample)| {
        let settling = Settling::of(sample, kind.better, settings).ok()?;
        Some((name(row), unsteady(&settling, discarded)?))
    });
    let far = known().filter_map(|(row, sample)| Some((name(row), far(sample)?)));
    let of_all = known().count();
    let said = each_once(far)
        .into_iter()
        .chain(each_once(few.into_iter().map(|(_, said)| said)))
        .chain(each_once(steady));
    let text = |(names, text): (Vec<String>, String)| match names.len() == of_all {
        true => text,
        false => format!("{}: {text}", listed(&names)),
    };
    said.map(text).collect()
}

fn name(row: &Row) -> String {
    judge::quoted(&row.variant)
}

/// How many executions it takes to know the variation of a row well; nothing where it has as many.
fn wanted(row: &Row, sample: &Sample, settings: &Settings) -> Option<usize> {
    let of = match sample.has_groups() {
        true => Of::Within,
        false => Of::Unclassified,
    };
    let few = Few::of(of, row.executions, settings)?;
    row.variation.is_ok().then(|| few.of.enough())
}

/// Which executions lie far from the others, and what may help.
fn far(sample: &Sample) -> Option<String> {
    let far = judge::outliers(sample);
    let all = sample.executions().len();
    match far[..] {
        [] => None,
        [0] => Some(
            "The first execution lies far from the others: --warmup or --prepare may help.".into(),
        ),
        _ => Some(format!(
            "{} of {all} executions are outliers: something else may have run on the machine.",
            far.len()
        )),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Better, Execution, TIME};

    fn run(variants: &[(&str, f64, f64)]) -> Run {
        let mut run = Run::default();
        for n in 0..20 {
            for (name, mean, spread) in variants {
                let step = f64::from(n % 5) / 2.0 - 1.0;
                run.add(Execution {
                    benchmark: "b".into(),
                    variant: (*name).into(),
                    metrics: [(TIME.into(), vec![mean + spread * step])].into(),
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
        let conclusions = &tables[0].conclusions;
        assert!(
            conclusions[0]
                .text
                .starts_with("b is better than a: its time is 50 % less"),
            "{conclusions:?}"
        );
        assert!(
            conclusions[1].text.starts_with("Nothing can be concluded"),
            "{conclusions:?}"
        );
        let verdicts = conclusions
            .iter()
            .map(|one| one.verdict)
            .collect::<Vec<_>>();
        assert_eq!(verdicts, [Verdict::Better, Verdict::Undecided]);
        assert!(tables[0].rows[0].ratio.is_none());
    }

    #[test]
    fn more_is_better_where_it_is_a_rate() {
        let mut run = run(&[("a", 1.0, 0.1), ("b", 2.0, 0.1)]);
        run.header.metrics.get_mut(TIME).unwrap().better = Better::Higher;
        assert!(
            tables(&run)[0].conclusions[0]
                .text
                .starts_with("b is better")
        );
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
        assert!(
            table.conclusions[0]
                .text
                .starts_with("Nothing can be concluded of broken and a: ")
        );
    }

    #[test]
    fn few_executions_are_told_once() {
        let mut run = run(&[("a", 1.0, 0.1), ("b", 2.0, 0.1)]);
        run.executions.truncate(20);
        let notes = &tables(&run)[0].notes;
        assert_eq!(
            notes[..],
            ["10 executions are few: the CV is known badly. About 50 would do."]
        );
        run.executions.pop();
        let notes = &tables(&run)[0].notes;
        assert!(
            notes[1].starts_with("a: 10 executions are few"),
            "{notes:?}"
        );
        assert!(notes[0].starts_with("b: 9 executions are few"), "{notes:?}");
        let alone = self::run(&[("a", 1.0, 0.1)]);
        let notes = &tables(&alone)[0].notes;
        assert!(notes[0].starts_with("20 executions are few"), "{notes:?}");
    }

    /// Executions of 40 measurements of these levels.
    fn in_time(level: fn(usize) -> f64) -> Run {
        let mut run = Run::default();
        for n in 0..50 {
            let value = |at: usize| level(at) * (1.0 + ((at * 42 + n * 7) % 101) as f64 / 5050.0);
            run.add(Execution {
                benchmark: "b".into(),
                variant: "v".into(),
                metrics: [(TIME.into(), (0..40).map(value).collect())].into(),
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
