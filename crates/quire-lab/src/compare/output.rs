//! A comparison as JSON, and as Markdown for a pull request.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::compare::{Comparison, Item, Lone, Outcome};
use crate::report::data::result;
use crate::report::markdown::{cell, header, row};
use crate::report::number;

/// All of it. Ratios are new over old.
#[must_use]
pub fn json(comparison: &Comparison) -> Value {
    json!({
        "old": comparison.old,
        "new": comparison.new,
        "threshold": comparison.threshold,
        "confidence": comparison.settings.confidence,
        "resamples": comparison.settings.resamples,
        "seed": comparison.settings.seed,
        "regressions": comparison.count(Outcome::Regression),
        "compared": comparison.items.iter().map(item).collect::<Vec<_>>(),
        "in_one_only": comparison.lone.iter().map(lone).collect::<Vec<_>>(),
        "warnings": comparison.warnings,
    })
}

fn item(item: &Item) -> Value {
    let side = |one: &crate::report::Experiment| {
        let mean = one.figures.first().map(|(_, mean)| result(mean));
        json!({"executions": one.executions(), "average": one.average, "mean": mean})
    };
    json!({
        "benchmark": item.new.benchmark,
        "variant": item.new.variant,
        "metric": item.new.metric,
        "unit": item.metric.unit,
        "old": side(&item.old),
        "new": side(&item.new),
        "ratio": result(&item.effect.ratio()),
        "of_one_execution": item.effect.shift.as_ref().is_ok_and(|shift| shift.of_one_execution),
        "sentence": item.sentence(),
        "outcome": item.outcome.name(),
    })
}

fn lone(lone: &Lone) -> Value {
    json!({
        "in": if lone.is_new { "new" } else { "old" },
        "benchmark": lone.benchmark,
        "variant": lone.variant,
        "metric": lone.metric,
        "failed": lone.failed,
    })
}

/// The columns of [`cells`].
pub const COLUMNS: [&str; 7] = [
    "benchmark",
    "variant",
    "metric",
    "old",
    "new",
    "new / old",
    "outcome",
];

/// An item as a row of a table.
#[must_use]
pub fn cells(item: &Item) -> [String; 7] {
    let [old, new] = item.means();
    [
        item.new.benchmark.clone(),
        item.new.variant.clone(),
        item.new.metric.clone(),
        old,
        new,
        item.ratio(),
        item.outcome.name().to_owned(),
    ]
}

/// What only one has, in a line.
#[must_use]
pub fn lone_line(lone: &Lone) -> String {
    let Lone {
        benchmark,
        variant,
        metric,
        ..
    } = lone;
    let side = if lone.is_new { "new" } else { "old" };
    let why = match &lone.failed {
        Some(reason) => format!("; it failed in the other: {reason}"),
        None => String::new(),
    };
    format!("only in {side}: {benchmark}, {variant}, {metric}{why}")
}

/// What counted as a regression, and how sure that is.
#[must_use]
pub fn method(comparison: &Comparison) -> String {
    format!(
        "A regression is worse by more than {}, and beyond noise: the interval of the ratio does \
         not contain 1. All of these intervals together hold the true ratios with {} confidence.",
        number::percent(comparison.threshold),
        number::percent(comparison.settings.confidence)
    )
}

/// A table, the worst first, and what else there is to know.
#[must_use]
pub fn markdown(comparison: &Comparison) -> String {
    let mut text = format!("### Benchmarks: {}\n\n", cell(&comparison.summary()));
    header(&mut text, &COLUMNS);
    let mut items: Vec<&Item> = comparison.items.iter().collect();
    items.sort_by_key(|item| item.outcome);
    for item in items {
        let mut cells = cells(item).map(|text| cell(&text));
        if item.outcome == Outcome::Regression {
            cells[6] = format!("**{}**", cells[6]);
        }
        row(&mut text, &cells);
    }
    text.push('\n');
    let lone = comparison.lone.iter().map(lone_line);
    for line in lone.chain(comparison.warnings.iter().map(|w| format!("warning: {w}"))) {
        let _ = writeln!(text, "- {}", cell(&line));
    }
    let _ = writeln!(text, "\n{}", cell(&method(comparison)));
    text
}
