//! The table on the terminal.

use std::fmt::Write;

use crate::colours::experiment::Experiment;
use crate::colours::report::{Report, measured, median};
use crate::colours::results::Summary;
use crate::report::{gain, number};

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

/// What is printed of first touches, and of kernels: a column for each figure, with its
/// width. The files have all others.
const POPULATE: &[(&str, &str, usize)] = &[
    ("gib_ms", "ms for 1 GiB", 26),
    ("page_ns", "ns for a page", 26),
    ("fault_ns", "ns for a fault", 26),
    ("cpu_gib_ms", "CPU ms for 1 GiB", 26),
];
const KERNEL: &[(&str, &str, usize)] = &[
    ("pass_us", "us for a pass", 26),
    ("conflict", "conflict misses", 26),
    ("capacity", "capacity", 10),
    ("cold", "first uses", 10),
    ("pmu_misses", "counted", 10),
];

fn write_experiment(text: &mut String, report: &Report, experiment: Experiment) {
    let results = &report.results;
    let shown = match experiment {
        Experiment::Kernel(..) => KERNEL,
        _ => POPULATE,
    };
    let columns = shown
        .iter()
        .filter(|(metric, ..)| !results.of_metric(experiment, metric).is_empty());
    let columns: Vec<_> = columns.collect();
    let (name, bytes) = (experiment.name(), report.bytes(experiment));
    let _ = writeln!(text, "\n{name}, {bytes}");
    let mut head = format!("  {:<14} {:<22}", "", "of default");
    for (_, label, width) in &columns {
        let _ = write!(head, " {label:<width$}");
    }
    let _ = writeln!(text, "{}", head.trim_end());
    let Some((main, ..)) = columns.first() else {
        return;
    };
    for row in results.of_metric(experiment, main) {
        let mut line = format!(
            "  {:<14} {:<22}",
            row.allocation.name(),
            gain(row.of_default)
        );
        for (metric, _, width) in &columns {
            let cell = results.summary(experiment, row.allocation, metric);
            let cell = cell.map_or_else(String::new, |cell| figure(cell, *width));
            let _ = write!(line, " {cell:<width$}");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

/// A median, with its interval where there is room.
fn figure(summary: &Summary, width: usize) -> String {
    let whole = median(summary);
    if whole.len() <= width {
        whole
    } else {
        number(summary.median)
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
