//! The HTML page: one file, nothing loaded from elsewhere.

use std::fmt::Write;

use anyhow::Result;

use crate::report::figure3;
use crate::report::plot::{self, Bar, Line};
use crate::report::{Report, gain, median, number};
use crate::results::Summary;
use crate::spec::{Better, Metric, Workload};
use crate::system::Machine;
use crate::target::{Outcome, Rule, Verdict};
use crate::variant::Variant;

/// How pages look.
const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:.8rem 0;font-size:13px}\
td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:left}\
td.n{text-align:right;font-variant-numeric:tabular-nums}\
svg{display:block;max-width:100%;height:auto;margin:.5rem 0}\
h2{margin-top:2.5rem;border-top:1px solid #ccc;padding-top:1rem}\
.holds{color:#176b2c;font-weight:600}.missed{color:#b3261e;font-weight:700}\
.not-measured{color:#777}.warn{background:#fff3cd;padding:.5rem 1rem}";

/// Text that may stand in HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// The beginning of a page.
pub fn begin(title: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    )
}

/// Says that a run was quick, if it was.
pub fn warn_if(quick: bool, page: &mut String) {
    if quick {
        page.push_str(
            "<p class=\"warn\">Quick run: sizes are small, the figures say nothing.</p>\n",
        );
    }
}

/// The whole page.
pub fn page(report: &Report) -> Result<String> {
    let mut page = begin("Quire: superpage experiments");
    head(&mut page, report);
    for workload in report.results.workloads() {
        section(&mut page, report, workload)?;
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
         medians of {} interleaved repetitions with bootstrapped 95 % intervals; a gain of 2 means \
         twice as fast, or half the memory. {:.0} s in all.</p>",
        report.repetitions, report.seconds
    );
    machine(page, &report.machine);
    verdicts(page, report.verdicts.iter());
    page.push_str("<h3>Variants</h3><table>");
    let runs = &report.results.runs;
    let mut variants: Vec<Variant> = runs.iter().map(|r| r.turn.variant).collect();
    variants.sort();
    variants.dedup();
    for variant in variants {
        let _ = write!(
            page,
            "<tr><td>{}</td><td><code>{}</code></td></tr>",
            variant.name(),
            escape(variant.description())
        );
    }
    for skipped in &report.skipped {
        let (what, reason) = (escape(&skipped.what), escape(&skipped.reason));
        let _ = write!(page, "<tr><td>{what}</td><td>skipped: {reason}</td></tr>");
    }
    page.push_str("</table>\n");
}

/// A table of what the machine is.
pub fn machine(page: &mut String, m: &Machine) {
    let thp: Vec<String> = m
        .thp
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let rows = [
        ("Kernel", m.kernel.clone()),
        ("Processor", format!("{} x {}", m.cpus, m.cpu)),
        (
            "Virtual machine",
            if m.virtual_machine { "yes" } else { "no" }.to_owned(),
        ),
        ("Memory", format!("{} MiB", m.memory_bytes >> 20)),
        ("C library", m.libc.clone()),
        ("Huge pages, system setting", thp.join(", ")),
    ];
    page.push_str("<table>");
    for (name, value) in rows {
        let _ = write!(page, "<tr><th>{name}</th><td>{}</td></tr>", escape(&value));
    }
    page.push_str("</table>\n");
}

fn verdicts<'a>(page: &mut String, verdicts: impl Iterator<Item = &'a Verdict>) {
    page.push_str("<table><tr><th>Workload</th><th>Target</th><th>Measured</th><th></th></tr>");
    for verdict in verdicts {
        let measured = match (verdict.target.rule, verdict.measured) {
            (_, None) => "-".to_owned(),
            (Rule::Gain { .. } | Rule::NoWorse { .. }, measured) => gain(measured),
            (Rule::AtMost(_) | Rule::AtLeast(_) | Rule::Excess { .. }, Some(m)) => {
                let [value, low, high] = m.map(number);
                format!("{value} [{low}, {high}]")
            }
        };
        let class = match verdict.outcome {
            Outcome::Holds => "holds",
            Outcome::Missed => "missed",
            Outcome::NotMeasured => "not-measured",
        };
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{measured}</td><td class=\"{class}\">{}</td></tr>",
            verdict.target.workload.name(),
            escape(&verdict.text),
            verdict.outcome.text()
        );
    }
    page.push_str("</table>\n");
}

fn section(page: &mut String, report: &Report, workload: Workload) -> Result<()> {
    let _ = writeln!(page, "<h2 id=\"{0}\">{0}</h2>", workload.name());
    let _ = writeln!(page, "<p>{}</p>", escape(workload.description()));
    if report.verdicts_of(workload).next().is_some() {
        verdicts(page, report.verdicts_of(workload));
    }
    if workload == Workload::Figure3 {
        page.push_str(&figure3::html(&report.results)?);
    }
    for metric in workload.metrics() {
        figure(
            page,
            &report.results.of_metric(workload, metric.name),
            metric,
        )?;
    }
    let remarks = report.remarks(workload);
    if !remarks.is_empty() {
        page.push_str("<ul>");
        for remark in remarks {
            let _ = write!(page, "<li>{}</li>", escape(&remark));
        }
        page.push_str("</ul>\n");
    }
    Ok(())
}

/// A plot and a table of one metric.
fn figure(page: &mut String, rows: &[&Summary], metric: &Metric) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    if rows.iter().all(|s| s.workload == Workload::Figure3) {
        // Its plots show all programs side by side.
        let _ = write!(page, "<h3>{}</h3>", metric.label);
    } else if rows.iter().any(|s| s.metric.contains('@')) {
        let time = by_size(rows, |s| Some(s.median));
        page.push_str(&plot::lines(metric.label, metric.unit, &time)?);
        let gains = by_size(rows, |s| s.gain_over_4k.map(|g| g[0]));
        if !gains.is_empty() {
            let title = format!("{}: gain over 4k", metric.label);
            page.push_str(&plot::lines(&title, "times as fast", &gains)?);
        }
    } else {
        let bars: Vec<Bar> = rows.iter().map(|row| Bar::from(*row)).collect();
        page.push_str(&plot::bars(metric.label, metric.unit, &bars)?);
    }
    page.push_str("<details><summary>Figures</summary>");
    table(page, rows, metric);
    page.push_str("</details>\n");
    Ok(())
}

/// A line for each variant, over the sizes.
fn by_size(rows: &[&Summary], value: impl Fn(&Summary) -> Option<f64>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let size = row
            .metric
            .split_once('@')
            .and_then(|(_, size)| size.parse().ok());
        let (Some(size), Some(value)) = (size, value(row)) else {
            continue;
        };
        match lines.iter_mut().find(|l| l.variant == row.variant) {
            Some(line) => line.points.push((size, value)),
            None => lines.push(Line {
                variant: row.variant,
                points: vec![(size, value)],
            }),
        }
    }
    lines.sort_by_key(|l| l.variant);
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

fn table(page: &mut String, rows: &[&Summary], metric: &Metric) {
    let compared = metric.better != Better::Neither;
    let _ = write!(
        page,
        "<table><tr><th>Figure</th><th>Variant</th><th>Median ({})</th>",
        metric.unit
    );
    if compared {
        page.push_str(
            "<th>Gain over 4k</th><th>Gain over thp</th><th>Gain over quire-reserve</th>",
        );
    }
    page.push_str("<th>n</th></tr>");
    for row in rows {
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td>",
            escape(&row.metric),
            row.variant.name(),
            median(row)
        );
        if compared {
            for over in [row.gain_over_4k, row.gain_over_thp, row.gain_over_reserve] {
                let _ = write!(page, "<td class=\"n\">{}</td>", gain(over));
            }
        }
        let _ = write!(page, "<td class=\"n\">{}</td></tr>", row.samples.len());
    }
    page.push_str("</table>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
    }
}
