//! The page with plots: one file, nothing loaded from elsewhere.

use std::fmt::Write;

use anyhow::Result;
use plotters::style::RGBColor;

use crate::colours::allocation::Allocation;
use crate::colours::experiment::{Experiment, Size};
use crate::colours::report::{Report, measured, median};
use crate::colours::results::Summary;
use crate::kernels::Kernel;
use crate::report::gain;
use crate::report::groups::Groups;
use crate::report::html::{begin, escape, machine, warn_if};
use crate::report::plot::{self, Bar};
use crate::spec::Metric;
use crate::target::Outcome;

/// Greys for the kernel, a hue for each kind of strategy.
fn colour(allocation: Allocation) -> RGBColor {
    let (r, g, b) = match allocation {
        Allocation::Default => (150, 150, 150),
        Allocation::Aged => (70, 70, 70),
        Allocation::Colour => (205, 60, 40),
        Allocation::Hashed => (235, 140, 50),
        Allocation::BinHop => (50, 120, 190),
        Allocation::BinHopThread => (120, 170, 220),
        Allocation::Modulo => (40, 120, 60),
    };
    RGBColor(r, g, b)
}

/// The whole page. Writing to a string does not fail.
pub fn page(report: &Report) -> Result<String> {
    let mut page = begin("Quire: frames by strategy");
    head(&mut page, report);
    let experiments = report.results.experiments();
    for experiment in [Experiment::Populate, Experiment::PopulateRandom] {
        if experiments.contains(&experiment) {
            populated(&mut page, report, experiment)?;
        }
    }
    let mut kernels: Vec<Kernel> = Vec::new();
    for experiment in experiments {
        match experiment {
            Experiment::Kernel(kernel, _) if !kernels.contains(&kernel) => kernels.push(kernel),
            _ => (),
        }
    }
    for kernel in kernels {
        section(&mut page, report, kernel)?;
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn head(page: &mut String, report: &Report) {
    warn_if(report.quick, page);
    let [holds, missed, unmeasured] = report.tally();
    let _ = writeln!(
        page,
        "<p>{holds} targets hold, {missed} missed, {unmeasured} not measured. Bars and figures are \
         medians of {} rounds with bootstrapped 95 % intervals; ratios are to the kernel's own \
         choice of frames in the same round. {:.0} s in all.</p>",
        report.rounds, report.seconds
    );
    machine(page, &report.machine);
    page.push_str("<table>");
    for (name, fact) in report.facts() {
        let _ = write!(page, "<tr><th>{name}</th><td>{}</td></tr>", escape(&fact));
    }
    page.push_str("</table>\n");
    verdicts(page, report);
    allocations(page, report);
    let remarks = report.results.remarks();
    if !remarks.is_empty() {
        page.push_str("<ul>");
        for remark in remarks {
            let _ = write!(page, "<li>{}</li>", escape(&remark));
        }
        page.push_str("</ul>\n");
    }
}

fn verdicts(page: &mut String, report: &Report) {
    page.push_str("<table><tr><th>Experiment</th><th>Frames by</th><th>Target</th><th>Measured</th><th></th></tr>");
    for verdict in &report.verdicts {
        let class = match verdict.outcome {
            Outcome::Holds => "holds",
            Outcome::Missed => "missed",
            Outcome::NotMeasured => "not-measured",
        };
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"{class}\">{}</td></tr>",
            verdict.experiment.name(),
            verdict.allocation.name(),
            escape(&verdict.text),
            measured(verdict),
            verdict.outcome.text()
        );
    }
    page.push_str("</table>\n");
}

/// The allocations that were compared, and what was left out.
fn allocations(page: &mut String, report: &Report) {
    page.push_str("<h3>Frames by</h3><table>");
    for allocation in compared(report) {
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td></tr>",
            allocation.name(),
            escape(allocation.description())
        );
    }
    for skipped in &report.skipped {
        let (what, reason) = (escape(&skipped.what), escape(&skipped.reason));
        let _ = write!(page, "<tr><td>{what}</td><td>skipped: {reason}</td></tr>");
    }
    page.push_str("</table>\n");
}

fn compared(report: &Report) -> Vec<Allocation> {
    let mut all: Vec<Allocation> = report
        .results
        .runs
        .iter()
        .map(|run| run.allocation)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn populated(page: &mut String, report: &Report, experiment: Experiment) -> Result<()> {
    heading(page, &experiment.name(), experiment);
    for metric in experiment.metrics().iter().take(3) {
        let rows = report.results.of_metric(experiment, metric.name);
        if rows.is_empty() {
            continue;
        }
        let bars: Vec<Bar> = rows.iter().map(|row| bar(row)).collect();
        page.push_str(&plot::bars(metric.label, metric.unit, &bars)?);
    }
    figures(page, report, &[experiment]);
    Ok(())
}

fn heading(page: &mut String, name: &str, experiment: Experiment) {
    let _ = writeln!(page, "<h2 id=\"{name}\">{name}</h2>");
    let _ = writeln!(page, "<p>{}</p>", escape(experiment.description()));
}

fn bar(row: &Summary) -> Bar<'static> {
    Bar {
        name: row.allocation.name(),
        colour: colour(row.allocation),
        value: row.median,
        low: row.ci_low,
        high: row.ci_high,
    }
}

/// A kernel at all sizes.
fn section(page: &mut String, report: &Report, kernel: Kernel) -> Result<()> {
    let experiments = Size::ALL.map(|size| Experiment::Kernel(kernel, size));
    heading(page, kernel.name(), experiments[0]);
    type Shown = fn(&Summary) -> Option<[f64; 3]>;
    let plots: [(&str, &str, Option<f64>, Shown); 2] = [
        (
            "conflict",
            "conflict misses of a pass, modelled",
            None,
            |s| Some([s.median, s.ci_low, s.ci_high]),
        ),
        ("pass_us", "time of a pass, default = 1", Some(1.0), |s| {
            s.of_default
        }),
    ];
    for (metric, title, line, value) in plots {
        let allocations = compared(report);
        let sizes = experiments.map(|e| report.bytes(e));
        let names = [0, 1, 2].map(|n| format!("{}, {}", Size::ALL[n].name(), sizes[n]));
        let groups = Groups {
            title,
            groups: names.iter().map(String::as_str).collect(),
            series: allocations.iter().map(|a| (a.name(), colour(*a))).collect(),
            line,
        };
        page.push_str(&groups.draw(|group, series| {
            let summary = report
                .results
                .summary(experiments[group], allocations[series], metric);
            summary.and_then(value)
        })?);
    }
    figures(page, report, &experiments);
    Ok(())
}

/// A table of all figures.
fn figures(page: &mut String, report: &Report, experiments: &[Experiment]) {
    page.push_str("<details><summary>Figures</summary><table><tr><th>Experiment</th><th>Figure</th><th>Frames by</th><th>Median</th><th>Of default</th><th>n</th></tr>");
    for experiment in experiments {
        for metric in experiment.metrics() {
            for row in report.results.of_metric(*experiment, metric.name) {
                figure(page, row, metric);
            }
        }
    }
    page.push_str("</table></details>\n");
}

fn figure(page: &mut String, row: &Summary, metric: &Metric) {
    let label = match metric.unit {
        "" => metric.label.to_owned(),
        unit => format!("{} ({unit})", metric.label),
    };
    let _ = write!(
        page,
        "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
        row.experiment.name(),
        escape(&label),
        row.allocation.name(),
        median(row),
        gain(row.of_default),
        row.samples.len()
    );
}
