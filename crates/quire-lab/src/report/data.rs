//! A report for programs: JSON, and CSV with a line for each figure.

use std::fmt::Write;

use quire_stats::{Estimate, estimate};
use serde_json::{Value, json};

use crate::import::csv::quoted;
use crate::report::{Change, Experiment, Pair, Ranking, Report, Standing, Verdict};

/// The whole report as JSON. Numbers are in the units of their metrics; what is absent is
/// an object with the member `absent`, which says why.
#[must_use]
pub fn json(report: &Report) -> Value {
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
    json!({
        "title": run.header.title,
        "started": run.header.started,
        "confidence": report.settings.confidence,
        "resamples": report.settings.resamples,
        "seed": report.settings.seed,
        "metrics": metrics.collect::<serde_json::Map<_, _>>(),
        "experiments": report.experiments.iter().map(experiment).collect::<Vec<_>>(),
        "pairs": report.pairs.iter().map(|p| pair(report, p)).collect::<Vec<_>>(),
        "standings": report.standings.iter().map(standing).collect::<Vec<_>>(),
        "environment": run.header.environment,
        "warnings": run.header.warnings,
        "failures": run.failures,
    })
}

/// An estimate, or why there is none.
#[must_use]
pub fn result(result: &estimate::Result<Estimate>) -> Value {
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
    });
    for (figure, estimate) in &one.figures {
        value[figure.key()] = result(estimate);
    }
    value
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
        "ratio_of_means": result(&pair.effect.ratio),
        "of_one_execution": pair.effect.of_one_execution,
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

/// A line for each figure of each experiment, and for each pair.
#[must_use]
pub fn csv(report: &Report) -> String {
    let mut text = "benchmark,variant,metric,unit,figure,value,low,high,absent\n".to_owned();
    let mut row = |cells: [&str; 5], result: &estimate::Result<Estimate>| {
        let cells = cells.map(quoted).join(",");
        let _ = match result {
            Ok(Estimate {
                value,
                ci_low,
                ci_high,
            }) => {
                writeln!(text, "{cells},{value},{ci_low},{ci_high},")
            }
            Err(why) => writeln!(text, "{cells},,,,{}", quoted(&why.to_string())),
        };
    };
    for one in &report.experiments {
        let unit = report.metric(&one.metric).unit;
        for (figure, result) in &one.figures {
            let unit = if figure.key() == "mean" {
                unit.as_str()
            } else {
                ""
            };
            let cells = [
                &*one.benchmark,
                &one.variant,
                &one.metric,
                unit,
                figure.key(),
            ];
            row(cells, result);
        }
    }
    for pair in &report.pairs {
        let figure = format!("ratio of means over {}", pair.old);
        let cells = [&*pair.benchmark, &pair.new, &pair.metric, "", &figure];
        row(cells, &pair.effect.ratio);
    }
    text
}
