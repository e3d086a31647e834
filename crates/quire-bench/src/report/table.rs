//! The table on the terminal.

use crate::report::figure3;
use crate::report::{Report, gain, median};
use crate::results::Summary;
use crate::spec::{Better, Workload};
use crate::target::Rule;
use crate::variant::Variant;

/// Prints every figure, and which targets are reached.
pub fn print(report: &Report) {
    for workload in report.results.workloads() {
        println!("\n{}", workload.name());
        if workload == Workload::Figure3 {
            figure3::print(&report.results);
        }
        for metric in workload.metrics() {
            let rows = report.results.of_metric(workload, metric.name);
            let rows: Vec<_> = rows
                .into_iter()
                .filter(|s| !s.metric.contains('@'))
                .collect();
            if rows.is_empty() {
                continue;
            }
            println!("  {} ({})", metric.label, metric.unit);
            for summary in rows {
                row(summary, metric.better);
            }
        }
        for remark in report.remarks(workload) {
            println!("  note: {remark}");
        }
    }
    verdicts(report);
}

fn row(summary: &Summary, better: Better) {
    let name = summary.variant.name();
    let median = median(summary);
    if better == Better::Neither {
        println!("    {name:<20} {median:<32}");
        return;
    }
    let (base, thp) = (gain(summary.gain_over_4k), gain(summary.gain_over_thp));
    print!("    {name:<20} {median:<32} x4k {base:<24} xthp {thp:<24}");
    if summary.variant == Variant::QuireAdaptive {
        print!(" xreserve {}", gain(summary.gain_over_reserve));
    }
    println!();
}

fn verdicts(report: &Report) {
    println!("\nTargets");
    for verdict in &report.verdicts {
        let measured = match verdict.target.rule {
            Rule::AtMost(_) | Rule::AtLeast(_) | Rule::Excess { .. } => {
                verdict.measured.map(|m| format!("{:.3}", m[0]))
            }
            Rule::Gain { .. } | Rule::NoWorse { .. } => {
                verdict.measured.map(|_| gain(verdict.measured))
            }
        };
        let measured = measured.unwrap_or_else(|| "-".to_owned());
        let workload = verdict.target.workload.name();
        println!(
            "  {:<13} {workload}: {}: {measured}",
            verdict.outcome.text(),
            verdict.text
        );
    }
    let [holds, missed, unmeasured] = report.tally();
    println!("  {holds} hold, {missed} missed, {unmeasured} not measured");
    for skipped in &report.skipped {
        println!("  skipped {}: {}", skipped.what, skipped.reason);
    }
    if report.quick {
        println!("  --quick: sizes are small, the figures say nothing");
    }
}
