//! The table on the terminal.

use std::fmt::Write;

use crate::colours::allocation::Allocation;
use crate::colours::experiment::Experiment;
use crate::colours::report::{Report, measured, median};
use crate::report::gain;

/// All of it. Writing to a string does not fail.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    for (name, fact) in report.facts() {
        let _ = writeln!(text, "{name}: {fact}");
    }
    for experiment in report.results.experiments() {
        write_experiment(&mut text, report, experiment);
    }
    let remarks = report.results.remarks();
    if !remarks.is_empty() {
        text.push('\n');
    }
    for remark in remarks {
        let _ = writeln!(text, "note: {remark}");
    }
    write_verdicts(&mut text, report);
    text
}

fn write_experiment(text: &mut String, report: &Report, experiment: Experiment) {
    let (name, bytes) = (experiment.name(), report.bytes(experiment));
    let _ = writeln!(text, "\n{name}, {bytes}");
    for metric in experiment.metrics() {
        let rows = report.results.of_metric(experiment, metric.name);
        if rows.is_empty() {
            continue;
        }
        let unit = match metric.unit {
            "" => String::new(),
            unit => format!(" ({unit})"),
        };
        let _ = writeln!(text, "  {}{unit}", metric.label);
        for row in rows {
            let name = row.allocation.name();
            let ratio = row
                .of_default
                .filter(|_| row.allocation != Allocation::Default);
            let ratio = ratio.map_or_else(String::new, |r| format!("x default {}", gain(Some(r))));
            let line = format!("    {name:<14} {:<34} {ratio}", median(row));
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
}

fn write_verdicts(text: &mut String, report: &Report) {
    let _ = writeln!(text, "\nTargets");
    for verdict in &report.verdicts {
        let _ = writeln!(
            text,
            "  {:<13} {} {}: {}: {}",
            verdict.outcome.text(),
            verdict.experiment.name(),
            verdict.allocation.name(),
            verdict.text,
            measured(verdict)
        );
    }
    let [holds, missed, unmeasured] = report.tally();
    let _ = writeln!(
        text,
        "  {holds} hold, {missed} missed, {unmeasured} not measured"
    );
    for skipped in &report.skipped {
        let _ = writeln!(text, "  skipped {}: {}", skipped.what, skipped.reason);
    }
    if report.quick {
        let _ = writeln!(text, "  --quick: sizes are small, the figures say nothing");
    }
}
