//! A report as an HTML page that needs nothing else: no script, nothing loaded. It is
//! light or dark as the reader's system is, and fits a phone. For each benchmark the answer comes
//! first, then a picture and a short table; all else is folded away.

mod misses;

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::figures::svg::{escape, range};
use crate::figures::{counters, ecdf, ranks, sequence, spread};
use crate::judge;
use crate::parallel;
use crate::report::experiment::{Experiment, Figure};
use crate::report::markdown::{
    CHANGES, change_cells, experiment_cells, experiment_columns, kind, share,
};
use crate::report::{Pair, Ranking, Report, Standing, notes, number};

/// How the page looks.
pub const STYLE: &str = include_str!("html/style.css");
/// What the figures mean.
const METHODS: &str = include_str!("html/methods.html");
/// Ranks say something of so many benchmarks, and more.
const RANKED: usize = 3;
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
    let panels = report.experiments.iter().filter(|e| e.primary).count();
    let most = (POINTS / panels.max(1)).clamp(100, 2000);
    page.benchmarks(report, most);
    page.standings(report);
    page.about(report);
    page.folded("How to read this", |page| page.text.push_str(METHODS));
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
        let failed = match report.run.failures.len() {
            0 => String::new(),
            n => format!(", {n} failed"),
        };
        self.paragraph(&format!(
            "{benchmarks} {noun}, {} executions{failed}.",
            report.executions,
        ));
        let warnings = &report.run.header.warnings;
        if !warnings.is_empty() {
            self.folded(&format!("Warnings ({})", warnings.len()), |page| {
                page.list("warnings", warnings.iter().map(String::as_str));
            });
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

    /// What is there for those who look for it.
    fn folded(&mut self, title: &str, draw: impl FnOnce(&mut Page)) {
        let title = escape(title);
        let _ = writeln!(self.text, "<details><summary>{title}</summary>");
        draw(self);
        self.text.push_str("</details>\n");
    }

    /// What several benchmarks say together.
    fn standings(&mut self, report: &Report) {
        let several = |standing: &&Standing| standing.benchmarks.len() >= RANKED;
        let standings: Vec<&Standing> = report.standings.iter().filter(several).collect();
        if !standings.is_empty() {
            self.folded("Over all benchmarks", |page| {
                for standing in standings {
                    page.standing(report, standing);
                }
            });
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

    /// All benchmarks. Their figures are numbered one after the other, and each is drawn by itself.
    fn benchmarks(&mut self, report: &Report, most: usize) {
        let mut sections = Vec::new();
        for (n, rows) in report.by_benchmark().enumerate() {
            sections.push((n, rows, self.figures));
            self.figures += 2 * primary_metrics(rows).len() + misses::of(rows).len();
        }
        let drawn = parallel::map(sections, |(n, rows, figures)| {
            let mut page = Page {
                figures,
                ..Page::default()
            };
            page.benchmark(report, n, rows, most);
            page.text
        });
        for section in drawn {
            self.text.push_str(&section);
        }
    }

    /// The n-th benchmark.
    fn benchmark(&mut self, report: &Report, n: usize, rows: &[Experiment], most: usize) {
        let name = &rows[0].benchmark;
        let _ = writeln!(self.text, "<section id=\"b{n}\">");
        self.heading(2, name);
        let pairs = report.pairs.iter().filter(|pair| pair.benchmark == *name);
        let pairs: Vec<&Pair> = pairs.collect();
        for pair in &pairs {
            let verdict = pair.effect.verdict(report.metric(&pair.metric).better);
            let (class, sentence) = (super::data::verdict(verdict), escape(&pair.sentence));
            let _ = writeln!(self.text, "<p class=\"answer {class}\">{sentence}</p>");
        }
        for metric in primary_metrics(rows) {
            let rows: Vec<&Experiment> = rows.iter().filter(|e| e.metric == metric).collect();
            self.spread(&report.metric(metric).unit, &rows);
            let size = rows.iter().map(|one| one.average.abs()).fold(0.0, f64::max);
            let times = rows.iter().map(|one| times(report, &pairs, one, size));
            self.text.push_str("<div class=\"times\">");
            self.table(&TIMES, times);
            self.text.push_str("</div>");
        }
        self.folded("More of it", |page| page.more(report, rows, most));
        self.text.push_str("</section>\n");
    }

    /// All figures of a benchmark, what to bear in mind of them, and the other plots.
    fn more(&mut self, report: &Report, rows: &[Experiment], most: usize) {
        self.paragraph(&notes::on_intervals(report));
        let cells = |one: &Experiment| experiment_cells(one, &report.metric(&one.metric).unit);
        let mut sorted: Vec<&Experiment> = rows.iter().collect();
        sorted.sort_by_key(|one| (!one.primary, &one.metric));
        self.table(&experiment_columns(), sorted.into_iter().map(cells));
        let notes = notes::of(rows);
        if !notes.is_empty() {
            self.list("notes", notes.iter().map(String::as_str));
        }
        for metric in primary_metrics(rows) {
            let rows: Vec<&Experiment> = rows.iter().filter(|e| e.metric == metric).collect();
            self.sequence(&report.metric(metric).unit, &rows, most);
        }
        self.misses(rows);
    }

    /// How executions are distributed, in one metric; measurements, where there is one execution.
    fn spread<'a>(&mut self, unit: &str, rows: &[&'a Experiment]) {
        let values = |one: &Experiment| match one.sample.executions() {
            [one] => one.clone(),
            all => all
                .iter()
                .map(|v| v.iter().sum::<f64>() / v.len() as f64)
                .collect(),
        };
        let row = |one: &&'a Experiment| spread::Row {
            name: &one.variant,
            values: values(one),
            mean: one.figure(Figure::Mean).copied(),
        };
        let all: Vec<spread::Row> = rows.iter().map(row).collect();
        let title = format!("{}: {}", rows[0].benchmark, rows[0].metric);
        self.figure(
            &title,
            |id| spread::draw(id, &title, unit, &all),
            "Each execution is a dot; the long line is their median, and below is the mean with its \
             interval.",
            &[],
        );
    }

    /// The run sequences of a benchmark in one metric.
    fn sequence<'a>(&mut self, unit: &str, rows: &[&'a Experiment], most: usize) {
        let (benchmark, metric) = (&rows[0].benchmark, &rows[0].metric);
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
        for found in misses::of(rows) {
            let misses::Misses {
                names, variants, ..
            } = &found;
            let title = format!("{}: {} against {}", rows[0].benchmark, names[0], names[1]);
            let lines = [(names[0], &*found.times), (names[1], &*found.counts)];
            let numbered = variants
                .iter()
                .zip(1..)
                .map(|(name, n)| format!("{n}: {name}"));
            let numbered: Vec<String> = numbered.collect();
            self.figure(
                &title,
                |id| counters::draw(id, &title, variants.len(), lines),
                &format!(
                    "Means as deviations from their mean over the variants ({}). Where the lines lie \
                     upon each other, the misses may explain the times.",
                    numbered.join("; ")
                ),
                &names.map(str::to_owned),
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
        let environment = &report.run.header.environment;
        self.folded("Environment", |page| {
            if environment.is_empty() {
                page.paragraph("The results say nothing of the machine.");
                return;
            }
            let rows = environment
                .iter()
                .map(|(name, value)| [name.clone(), value.clone()]);
            page.table(&["what", "value"], rows);
        });
    }
}

/// The columns of [`times`]. The last two are not shown on a narrow screen.
const TIMES: [&str; 6] = [
    "variant",
    "mean",
    "over the first",
    "median",
    "least",
    "largest",
];

/// An experiment in short, in the unit that `size` has; the pairs are those of its benchmark.
fn times(report: &Report, pairs: &[&Pair], one: &Experiment, size: f64) -> [String; 6] {
    let unit = &report.metric(&one.metric).unit;
    let value = |value: f64| number::like(value, size, unit);
    let values: Vec<f64> = one.sample.values().collect();
    let ends = range(values.iter().copied()).unwrap_or((0.0, 0.0));
    let is_it = |pair: &&&Pair| (&pair.metric, &pair.new) == (&one.metric, &one.variant);
    let ratio = pairs.iter().find(is_it).map(|pair| pair.ratio());
    [
        one.variant.clone(),
        match one.figure(Figure::Mean) {
            Some(mean) => number::estimate_like(mean, size, unit),
            None => value(one.average),
        },
        match ratio {
            None => "1".to_owned(),
            Some(Ok(ratio)) => number::ratio(&ratio),
            Some(Err(_)) => "absent".to_owned(),
        },
        value(quire_stats::median(&values).unwrap_or(one.average)),
        value(ends.0),
        value(ends.1),
    ]
}

/// The primary metrics of a benchmark's experiments, in order.
fn primary_metrics(rows: &[Experiment]) -> Vec<&str> {
    let primary = rows.iter().filter(|one| one.primary);
    let metrics: BTreeSet<&str> = primary.map(|one| &*one.metric).collect();
    metrics.into_iter().collect()
}
