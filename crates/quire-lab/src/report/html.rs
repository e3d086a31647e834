//! A report as an HTML page that needs nothing else: no script, nothing loaded. It is
//! light or dark as the reader's system is, and fits a phone.

use std::fmt::Write;

use crate::figures::svg::escape;
use crate::figures::{counters, ecdf, means, ranks, sequence};
use crate::judge;
use crate::report::experiment::{Experiment, Figure};
use crate::report::markdown::{
    CHANGES, change_cells, experiment_cells, experiment_columns, kind, share,
};
use crate::report::{Ranking, Report, Standing, notes, number};

/// How the page looks.
pub const STYLE: &str = include_str!("html/style.css");
/// What the figures mean.
const METHODS: &str = include_str!("html/methods.html");
/// How many measurements all run-sequence plots together show at most, so that the page
/// stays small enough for a phone.
const POINTS: usize = 200_000;

/// The page.
#[must_use]
pub fn page(report: &Report) -> String {
    let mut page = Page::default();
    let title = escape(&report.run.header.title);
    let _ = write!(
        page.text,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><link rel=\"icon\" href=\"data:,\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    );
    page.head(report);
    for standing in &report.standings {
        page.standing(report, standing);
    }
    let panels = report.experiments.iter().filter(|e| e.primary).count();
    let most = (POINTS / panels.max(1)).clamp(100, 2000);
    for rows in report.by_benchmark() {
        page.benchmark(report, rows, most);
    }
    page.about(report);
    page.text.push_str(METHODS);
    page.text.push_str("</body></html>\n");
    page.text
}

/// A page that grows.
#[derive(Debug, Default)]
struct Page {
    text: String,
    figures: usize,
}

impl Page {
    fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.text, "<p>{}</p>", escape(text));
    }

    /// A heading.
    fn heading(&mut self, level: u8, text: &str) {
        let _ = writeln!(self.text, "<h{level}>{}</h{level}>", escape(text));
    }

    fn table<R: AsRef<[String]>>(&mut self, columns: &[&str], rows: impl IntoIterator<Item = R>) {
        self.text
            .push_str("<div class=\"scroll\" tabindex=\"0\"><table><tr>");
        for column in columns {
            let _ = write!(self.text, "<th scope=\"col\">{}</th>", escape(column));
        }
        self.text.push_str("</tr>");
        for row in rows {
            self.text.push_str("<tr>");
            for cell in row.as_ref() {
                let _ = write!(self.text, "<td>{}</td>", escape(cell));
            }
            self.text.push_str("</tr>\n");
        }
        self.text.push_str("</table></div>\n");
    }

    /// A plot with what is to be seen in it, and the names of its colours.
    fn figure(
        &mut self,
        title: &str,
        draw: impl FnOnce(&str) -> String,
        caption: &str,
        names: &[String],
    ) {
        self.figures += 1;
        let svg = draw(&format!("f{}", self.figures));
        let (title, caption) = (escape(title), escape(caption));
        let _ = write!(
            self.text,
            "<figure><h3>{title}</h3>{svg}<figcaption>{caption}"
        );
        for (n, name) in names.iter().enumerate() {
            let colour = crate::figures::svg::colour(n);
            let name = escape(name);
            let _ = write!(
                self.text,
                " <span class=\"key\"><i style=\"background:{colour}\"></i>{name}</span>"
            );
        }
        self.text.push_str("</figcaption></figure>\n");
    }

    fn list<'a>(&mut self, class: &str, items: impl IntoIterator<Item = &'a str>) {
        let _ = write!(self.text, "<ul class=\"{class}\">");
        for item in items {
            let _ = writeln!(self.text, "<li>{}</li>", escape(item));
        }
        self.text.push_str("</ul>\n");
    }

    fn head(&mut self, report: &Report) {
        let benchmarks = report.by_benchmark().count();
        let noun = if benchmarks == 1 {
            "benchmark"
        } else {
            "benchmarks"
        };
        self.paragraph(&format!(
            "{benchmarks} {noun}, {} executions, {} failed. {}",
            report.run.executions.len(),
            report.run.failures.len(),
            notes::on_intervals(report),
        ));
        if !report.run.header.warnings.is_empty() {
            self.heading(2, "Warnings");
            self.list(
                "warnings",
                report.run.header.warnings.iter().map(String::as_str),
            );
        }
        if benchmarks > 1 {
            self.text
                .push_str("<details><summary>Benchmarks</summary><ul>");
            for (n, rows) in report.by_benchmark().enumerate() {
                let name = escape(&rows[0].benchmark);
                let _ = write!(self.text, "<li><a href=\"#b{n}\">{name}</a></li>");
            }
            self.text.push_str("</ul></details>\n");
        }
    }

    fn standing(&mut self, report: &Report, standing: &Standing) {
        self.heading(2, &kind(standing));
        for ranking in &standing.rankings {
            self.ranking(standing, ranking);
        }
        for figure in Figure::ALL {
            if !standing
                .rankings
                .iter()
                .any(|ranking| ranking.figure == figure)
            {
                self.paragraph(&format!(
                    "No ranks by {}: in no benchmark all variants have it; the tables below say \
                     why.",
                    figure.title()
                ));
            }
        }
        let first = standing.variants.first().map_or("", |name| name.as_str());
        self.paragraph(&format!(
            "Means over those of {first}, over all benchmarks:"
        ));
        self.table(&CHANGES, standing.changes.iter().map(change_cells));
        self.distribution(report, standing);
    }

    fn ranking(&mut self, standing: &Standing, ranking: &Ranking) {
        let figure = ranking.figure.title();
        let title = format!("Ranks by {figure}, {}", standing.metric);
        let caption = format!(
            "In which share of {} benchmarks each variant is the best, the second, and so on, by \
             {figure}. Where intervals overlap, ranks are shared.",
            ranking.counted
        );
        let names: Vec<String> = (0..standing.variants.len()).map(ranks::rank).collect();
        let Ranking {
            places, counted, ..
        } = ranking;
        let draw = |id: &str| ranks::draw(id, &title, &standing.variants, places, *counted);
        self.figure(&title, draw, &caption, &names);
        self.paragraph(&format!(
            "Share of benchmarks in which a variant is the best by {figure}, where smaller \
             differences than this do not count:"
        ));
        let thresholds: Vec<String> = ranking
            .best
            .iter()
            .map(|(threshold, _)| format!("{:.0} %", threshold * 100.0))
            .collect();
        let mut columns = vec!["variant"];
        columns.extend(thresholds.iter().map(String::as_str));
        let row = |(n, variant): (usize, &String)| {
            let mut cells = vec![variant.clone()];
            cells.extend(ranking.best.iter().map(|(_, best)| share(best[n], ranking)));
            cells
        };
        self.table(&columns, standing.variants.iter().enumerate().map(row));
    }

    /// The distribution of impact factors, where there are any.
    fn distribution<'a>(&mut self, report: &Report, standing: &'a Standing) {
        let of = |variant: &String| -> Vec<f64> {
            let ours = report.experiments.iter().filter(|e| {
                e.variant == *variant
                    && e.metric == standing.metric
                    && standing.benchmarks.contains(&e.benchmark)
            });
            ours.filter_map(|e| Some(e.figure(Figure::Impact)?.value))
                .collect()
        };
        let curve = |variant: &'a String| ecdf::Curve {
            name: variant,
            points: judge::ecdf(&of(variant)),
        };
        let curves: Vec<ecdf::Curve> = standing.variants.iter().map(curve).collect();
        if curves.iter().all(|curve| curve.points.is_empty()) {
            return;
        }
        let title = format!("Distribution of impact factors, {}", standing.metric);
        self.figure(
            &title,
            |id| ecdf::draw(id, &title, &curves),
            "Share of benchmarks whose impact factor of non-determinism in execution is at most \
             so large. Higher is better.",
            &standing.variants,
        );
    }

    fn benchmark(&mut self, report: &Report, rows: &[Experiment], most: usize) {
        let name = &rows[0].benchmark;
        let n = report
            .by_benchmark()
            .position(|other| other[0].benchmark == *name);
        let _ = writeln!(self.text, "<section id=\"b{}\">", n.unwrap_or(0));
        self.heading(2, name);
        let cells = |one: &Experiment| experiment_cells(one, &report.metric(&one.metric).unit);
        let mut sorted: Vec<&Experiment> = rows.iter().collect();
        sorted.sort_by_key(|one| (!one.primary, &one.metric));
        self.table(&experiment_columns(), sorted.into_iter().map(cells));
        let notes = notes::of(rows);
        if !notes.is_empty() {
            self.list("notes", notes.iter().map(String::as_str));
        }
        for pair in report.pairs.iter().filter(|pair| pair.benchmark == *name) {
            let ratio = match &pair.effect.ratio {
                Ok(ratio) => number::ratio(ratio),
                Err(_) => "absent".to_owned(),
            };
            let _ = writeln!(
                self.text,
                "<p class=\"{}\"><b>{} over {}, {}: {ratio}</b><br>{}</p>",
                super::data::verdict(pair.effect.verdict(report.metric(&pair.metric).better)),
                escape(&pair.new),
                escape(&pair.old),
                escape(&pair.metric),
                escape(&pair.sentence)
            );
        }
        let mut metrics: Vec<&str> = rows
            .iter()
            .filter(|e| e.primary)
            .map(|e| &*e.metric)
            .collect();
        metrics.sort_unstable();
        metrics.dedup();
        for metric in metrics {
            let rows: Vec<&Experiment> = rows.iter().filter(|e| e.metric == metric).collect();
            self.plots(&report.metric(metric).unit, &rows, most);
        }
        self.misses(rows);
        self.text.push_str("</section>\n");
    }

    /// The means and the run sequences of a benchmark in one metric.
    fn plots<'a>(&mut self, unit: &str, rows: &[&'a Experiment], most: usize) {
        let (benchmark, metric) = (&rows[0].benchmark, &rows[0].metric);
        let mean = |one: &&'a Experiment| {
            let estimate = *one.figure(Figure::Mean)?;
            let name = one.variant.as_str();
            Some(means::Row { name, estimate })
        };
        let found: Vec<means::Row> = rows.iter().filter_map(mean).collect();
        if found.len() > 1 {
            let title = format!("{benchmark}: mean {metric}");
            self.figure(
                &title,
                |id| means::draw(id, &title, unit, &found),
                "Means and their intervals. The axis need not begin at zero.",
                &[],
            );
        }
        let panel = |one: &&'a Experiment| sequence::Panel {
            name: one.variant.as_str(),
            sample: &one.sample,
        };
        let panels: Vec<sequence::Panel> = rows.iter().map(panel).collect();
        let thinned = rows.iter().any(|e| e.sample.values().count() > most);
        let rest = match thinned {
            true => " Only some of the measurements are drawn, evenly spread, and the extremes.",
            false => "",
        };
        let title = format!("{benchmark}: {metric}, measurement by measurement");
        let caption = format!(
            "All measurements in their order; every second execution is shaded. Levels that \
             change from execution to execution are non-determinism in execution.{rest}"
        );
        self.figure(
            &title,
            |id| sequence::draw(id, &title, unit, &panels, most),
            &caption,
            &[],
        );
    }

    /// Time against cache misses, where both were measured for two variants or more.
    fn misses(&mut self, rows: &[Experiment]) {
        let is_misses = |name: &str| {
            let name = name.to_ascii_lowercase();
            name.contains("cache") && name.contains("miss")
        };
        let Some(time) = rows.iter().find(|e| e.primary) else {
            return;
        };
        let mut metrics: Vec<&str> = rows
            .iter()
            .map(|e| &*e.metric)
            .filter(|m| is_misses(m))
            .collect();
        metrics.sort_unstable();
        metrics.dedup();
        for misses in metrics {
            let average = |metric: &str, variant: &str| {
                let one = rows
                    .iter()
                    .find(|e| e.metric == metric && e.variant == variant)?;
                Some(one.average)
            };
            let counted = rows.iter().filter(|e| e.metric == misses);
            let found = counted.map(|e| e.variant.as_str()).filter_map(|variant| {
                let time = average(&time.metric, variant)?;
                Some((variant, time, average(misses, variant)?))
            });
            let found: Vec<(&str, f64, f64)> = found.collect();
            let variants: Vec<&str> = found.iter().map(|one| one.0).collect();
            let times: Vec<f64> = found.iter().map(|one| one.1).collect();
            let counts: Vec<f64> = found.iter().map(|one| one.2).collect();
            let (Some(times), Some(counts)) =
                (counters::normalised(&times), counters::normalised(&counts))
            else {
                continue;
            };
            let title = format!("{}: {} against {misses}", rows[0].benchmark, time.metric);
            let names = [time.metric.clone(), misses.to_owned()];
            let lines = [(names[0].as_str(), &*times), (names[1].as_str(), &*counts)];
            self.figure(
                &title,
                |id| counters::draw(id, &title, &variants, lines),
                "Means as deviations from their mean over the variants. Where the lines lie upon \
                 each other, the misses may explain the times.",
                &names,
            );
        }
    }

    fn about(&mut self, report: &Report) {
        if !report.run.failures.is_empty() {
            self.heading(2, "Failures");
            let text = report.run.failures.iter().map(|f| {
                [
                    f.benchmark.clone(),
                    f.variant.clone(),
                    f.order.to_string(),
                    f.reason.clone(),
                ]
            });
            self.table(&["benchmark", "variant", "place in the run", "why"], text);
        }
        self.heading(2, "Environment");
        let environment = &report.run.header.environment;
        if environment.is_empty() {
            self.paragraph("The results say nothing of the machine.");
            return;
        }
        let rows = environment
            .iter()
            .map(|(name, value)| [name.clone(), value.clone()]);
        self.table(&["what", "value"], rows);
    }
}
