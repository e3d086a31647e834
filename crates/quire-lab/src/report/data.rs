//! A report for programs: JSON, and CSV with a line for each figure.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::caution::{self, Few};
use crate::import::csv::quoted;
use crate::judge::{self, Absent, Estimate, Judged};
use crate::report::{Change, Experiment, Figure, Pair, Ranking, Report, Standing, Verdict};
use crate::settling::Settling;

/// The whole report as JSON. Numbers are in the units of their metrics; what is absent is
/// an object with the member `absent`, which says why.
///
/// # Errors
/// Where it cannot be written as JSON.
pub fn json(report: &Report) -> serde_json::Result<String> {
    let run = &report.run;
    let metrics = run.header.metrics.iter().map(|(name, metric)| {
        let primary = report
            .experiments
            .iter()
            .any(|e| e.primary && e.metric == *name);
        let better = metric.better;
        (
            name.clone(),
            json!({"unit": metric.unit, "better": better, "primary": primary}),
        )
    });
    let whole = Whole {
        confidence: report.settings.confidence,
        environment: &run.header.environment,
        experiments: Each(&report.experiments, &experiment),
        failures: json!(run.failures),
        intervals: judge::key(report.settings.intervals),
        metrics: metrics.collect(),
        pairs: Each(&report.pairs, &|one| pair(report, one)),
        resamples: report.settings.resamples,
        seed: report.settings.seed,
        standings: Each(&report.standings, &standing),
        started: run.header.started,
        title: &run.header.title,
        warnings: &run.header.warnings,
    };
    serde_json::to_string_pretty(&whole).map(|text| text + "\n")
}

/// A report, in the order of its members' names, in which other objects are, too.
#[derive(Serialize)]
struct Whole<'a> {
    confidence: f64,
    environment: &'a BTreeMap<String, String>,
    experiments: Each<'a, Experiment>,
    failures: Value,
    intervals: &'a str,
    metrics: Map<String, Value>,
    pairs: Each<'a, Pair>,
    resamples: usize,
    seed: u64,
    standings: Each<'a, Standing>,
    started: f64,
    title: &'a str,
    warnings: &'a [String],
}

/// Things, and what is written of each. It is made one by one: of a large report it would take ten
/// times the memory of its text.
struct Each<'a, T>(&'a [T], &'a dyn Fn(&T) -> Value);

impl<T> Serialize for Each<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(self.1))
    }
}

/// An estimate, or why there is none.
#[must_use]
pub fn result(result: &Judged) -> Value {
    match result {
        Ok(estimate) => {
            let Estimate {
                value,
                ci_low,
                ci_high,
            } = estimate;
            json!({"value": value, "low": ci_low, "high": ci_high})
        }
        Err(why) => json!({"absent": why.to_string()}),
    }
}

fn experiment(one: &Experiment) -> Value {
    let counts = one.sample.executions().iter().map(Vec::len);
    let mut value = json!({
        "benchmark": one.benchmark,
        "variant": one.variant,
        "metric": one.metric,
        "executions": one.executions(),
        "measurements": counts.collect::<Vec<_>>(),
        "average": one.average,
        "few_executions": few(&one.few),
        "steady": one.settling.as_ref().map(settling),
    });
    for (figure, estimate) in &one.figures {
        value[figure.key()] = result(estimate);
    }
    value
}

/// Whose intervals are too narrow, and which share of such intervals holds the true value;
/// null where there are enough executions.
#[must_use]
pub fn few(few: &[Few]) -> Value {
    let holds = few
        .iter()
        .map(|few| (few.of.key().to_owned(), json!(few.holds)));
    let enough = few.iter().map(|few| few.of.enough()).max();
    match caution::sentence(few) {
        None => Value::Null,
        Some(sentence) => json!({
            "holds": holds.collect::<Map<_, _>>(),
            "enough": enough,
            "sentence": sentence,
        }),
    }
}

/// When executions become steady, or why that is not known.
fn settling(settling: &Result<Settling, Absent>) -> Value {
    match settling {
        Err(why) => json!({"absent": why.to_string()}),
        Ok(settling) => json!({
            "executions": settling.executions,
            "from_the_first_measurement_on": settling.flat,
            "warm_up": settling.warm_up,
            "slow_down": settling.slow_down,
            "never": settling.never,
            "never_share": settling.never_share(),
            "sentence": settling.sentence(),
        }),
    }
}

/// The name of a verdict in files.
#[must_use]
pub fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Undecided => "undecided",
        Verdict::Unknown => "unknown",
    }
}

fn pair(report: &Report, pair: &Pair) -> Value {
    let better = report.metric(&pair.metric).better;
    json!({
        "benchmark": pair.benchmark,
        "metric": pair.metric,
        "old": pair.old,
        "new": pair.new,
        "ratio": result(&pair.ratio()),
        "comparisons": pair.effect.family.comparisons,
        "set_aside": pair.effect.shift.as_ref().map_or(0, |shift| shift.set_aside),
        "of_one_execution": pair.effect.shift.as_ref().is_ok_and(|shift| shift.of_one_execution),
        "verdict": verdict(pair.effect.verdict(better)),
        "sentence": pair.sentence,
    })
}

fn standing(standing: &Standing) -> Value {
    let ranking = |ranking: &Ranking| {
        let best = ranking
            .best
            .iter()
            .map(|(threshold, best)| json!({"threshold": threshold, "best": best}));
        json!({
            "figure": ranking.figure.key(),
            "counted": ranking.counted,
            "places": ranking.places,
            "best": best.collect::<Vec<_>>(),
        })
    };
    let change = |change: &Change| {
        let [better, worse, undecided] = change.counts;
        json!({
            "variant": change.variant,
            "geometric_mean_ratio": change.mean,
            "better": better,
            "worse": worse,
            "undecided": undecided,
            "significant_ratios": change.extremes.map(|(low, high)| [low, high]),
        })
    };
    json!({
        "metric": standing.metric,
        "several_measurements_per_execution": standing.grouped,
        "variants": standing.variants,
        "benchmarks": standing.benchmarks,
        "rankings": standing.rankings.iter().map(ranking).collect::<Vec<_>>(),
        "changes": standing.changes.iter().map(change).collect::<Vec<_>>(),
    })
}

/// A line for each figure of each experiment, and for each pair. Where there are too few
/// executions, `holds` is the share of such intervals that hold the true value, and
/// `enough` says how many executions would do.
#[must_use]
pub fn csv(report: &Report) -> String {
    let mut text =
        "benchmark,variant,metric,unit,figure,value,low,high,absent,holds,enough\n".to_owned();
    let mut row = |cells: [&str; 5], result: &Judged, few: Option<&Few>| {
        let cells = cells.map(quoted).join(",");
        let result = match result {
            Ok(Estimate {
                value,
                ci_low,
                ci_high,
            }) => format!("{value},{ci_low},{ci_high},"),
            Err(why) => format!(",,,{}", quoted(&why.to_string())),
        };
        let holds = few.and_then(|few| few.holds).map(|holds| holds.to_string());
        let enough = few.map(|few| few.of.enough().to_string());
        let [holds, enough] = [holds, enough].map(Option::unwrap_or_default);
        let _ = writeln!(text, "{cells},{result},{holds},{enough}");
    };
    for one in &report.experiments {
        let of_metric = report.metric(&one.metric).unit;
        for (figure, result) in &one.figures {
            let unit = match figure {
                Figure::Mean => of_metric.as_str(),
                _ => "",
            };
            let few = one.few.iter().find(|few| few.of.key() == figure.key());
            let names = [
                &*one.benchmark,
                &one.variant,
                &one.metric,
                unit,
                figure.key(),
            ];
            row(names, result, few);
        }
    }
    for pair in &report.pairs {
        let figure = format!("ratio over {}", pair.old);
        let cells = [&*pair.benchmark, &pair.new, &pair.metric, "", &figure];
        row(cells, &pair.ratio(), None);
    }
    text
}
