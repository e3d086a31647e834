//! A report as Markdown: tables and sentences, without plots.

use std::fmt::Write;

use crate::figures::ranks::rank;
use crate::report::experiment::{Experiment, Figure};
use crate::report::{Ranking, Report, Standing, notes, number};

/// Text that may stand in a cell of a table.
#[must_use]
pub fn cell(text: &str) -> String {
    let mut cell = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '\\' | '`' | '*' | '_' | '<' | '[' | ']' | '#' | '@' => cell.extend(['\\', c]),
            c if c.is_control() => cell.push(' '),
            c => cell.push(c),
        }
    }
    cell
}

/// A row of a table.
pub fn row<T: AsRef<str>>(text: &mut String, cells: &[T]) {
    let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

/// The header of a table.
pub fn header<T: AsRef<str>>(text: &mut String, cells: &[T]) {
    row(text, cells);
    row(text, &vec!["---"; cells.len()]);
}

/// The whole report.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut text = format!("# {}\n\n", cell(&report.run.header.title));
    let _ = writeln!(text, "{}\n", notes::on_intervals(report));
    for standing in &report.standings {
        of_standing(&mut text, standing);
    }
    for rows in report.by_benchmark() {
        benchmark(&mut text, report, rows);
    }
    about(&mut text, report);
    text
}

/// What a set of benchmarks is called.
#[must_use]
pub fn kind(standing: &Standing) -> String {
    let measurements = match standing.grouped {
        true => "several measurements",
        false => "one measurement",
    };
    let benchmarks = match standing.benchmarks.len() {
        1 => "1 benchmark".to_owned(),
        n => format!("{n} benchmarks"),
    };
    format!(
        "{}: {benchmarks} with {measurements} per execution",
        standing.metric
    )
}

/// How often a variant is the best, of all benchmarks that are counted.
#[must_use]
pub fn share(count: usize, ranking: &Ranking) -> String {
    format!(
        "{:.0} %",
        100.0 * count as f64 / ranking.counted.max(1) as f64
    )
}

fn of_standing(text: &mut String, standing: &Standing) {
    let _ = writeln!(text, "## {}\n", cell(&kind(standing)));
    for ranking in &standing.rankings {
        let _ = writeln!(
            text,
            "Ranks by {} ({} counted):\n",
            ranking.figure.title(),
            ranking.counted
        );
        let mut names = vec!["variant".to_owned()];
        names.extend((0..standing.variants.len()).map(rank));
        header(text, &names);
        for (variant, places) in standing.variants.iter().zip(&ranking.places) {
            let mut cells = vec![cell(variant)];
            cells.extend(places.iter().map(|count| share(*count, ranking)));
            row(text, &cells);
        }
        let _ = writeln!(
            text,
            "\nBest, where differences below the threshold do not count:\n"
        );
        let mut names = vec!["variant".to_owned()];
        names.extend(
            ranking
                .best
                .iter()
                .map(|(threshold, _)| format!("{:.0} %", threshold * 100.0)),
        );
        header(text, &names);
        for (n, variant) in standing.variants.iter().enumerate() {
            let mut cells = vec![cell(variant)];
            cells.extend(ranking.best.iter().map(|(_, best)| share(best[n], ranking)));
            row(text, &cells);
        }
        text.push('\n');
    }
    changes(text, standing);
}

fn changes(text: &mut String, standing: &Standing) {
    let first = standing.variants.first().map_or("", |name| name.as_str());
    let _ = writeln!(text, "Means over those of {}:\n", cell(first));
    header(text, &CHANGES);
    for change in &standing.changes {
        row(text, &change_cells(change).map(|text| cell(&text)));
    }
    text.push('\n');
}

/// The columns of [`change_cells`].
pub const CHANGES: [&str; 6] = [
    "variant",
    "geometric mean",
    "better",
    "worse",
    "not decided",
    "significant ratios",
];

/// A variant beside the first one.
#[must_use]
pub fn change_cells(change: &crate::report::Change) -> [String; 6] {
    let [better, worse, undecided] = change.counts.map(|count| count.to_string());
    let mean = change
        .mean
        .map_or_else(|| "absent".to_owned(), |mean| format!("{mean:.4}"));
    let extremes = match change.extremes {
        Some((low, high)) => format!("{low:.4} to {high:.4}"),
        None => "none".to_owned(),
    };
    [
        change.variant.clone(),
        mean,
        better,
        worse,
        undecided,
        extremes,
    ]
}

/// The columns of [`experiment_cells`].
#[must_use]
pub fn experiment_columns() -> Vec<&'static str> {
    let mut columns = vec!["metric", "variant", "executions", "measurements"];
    columns.extend(Figure::ALL.map(Figure::title));
    columns
}

/// An experiment's row: what is absent says why.
#[must_use]
pub fn experiment_cells(one: &Experiment, unit: &str) -> Vec<String> {
    let mut cells = vec![
        one.metric.clone(),
        one.variant.clone(),
        one.executions().to_string(),
        one.measurements(),
    ];
    for figure in Figure::ALL {
        let found = one.figures.iter().find(|(other, _)| *other == figure);
        cells.push(match found.map(|(_, result)| result) {
            None => "-".to_owned(),
            Some(Ok(estimate)) => figure.text(estimate, unit),
            Some(Err(why)) if figure == Figure::Mean => {
                format!(
                    "{} (no interval: {why})",
                    number::with_unit(one.average, unit)
                )
            }
            Some(Err(why)) => format!("absent: {why}"),
        });
    }
    cells
}

fn benchmark(text: &mut String, report: &Report, rows: &[Experiment]) {
    let name = &rows[0].benchmark;
    let _ = writeln!(text, "## {}\n", cell(name));
    header(text, &experiment_columns());
    let mut sorted: Vec<&Experiment> = rows.iter().collect();
    sorted.sort_by_key(|one| (!one.primary, &one.metric));
    for one in sorted {
        let cells = experiment_cells(one, &report.metric(&one.metric).unit);
        let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
        row(text, &cells);
    }
    text.push('\n');
    for note in notes::of(rows) {
        let _ = writeln!(text, "- {}", cell(&note));
    }
    for pair in report.pairs.iter().filter(|pair| pair.benchmark == *name) {
        let names = format!("{} over {} ({})", pair.new, pair.old, pair.metric);
        let ratio = pair
            .ratio()
            .as_ref()
            .map_or("absent".to_owned(), number::ratio);
        let sentence = cell(&pair.sentence);
        let _ = writeln!(text, "- {}: {}. {sentence}", cell(&names), cell(&ratio));
    }
    text.push('\n');
}

fn about(text: &mut String, report: &Report) {
    let header = &report.run.header;
    if !header.warnings.is_empty() {
        text.push_str("## Warnings\n\n");
        for warning in &header.warnings {
            let _ = writeln!(text, "- {}", cell(warning));
        }
        text.push('\n');
    }
    if !report.run.failures.is_empty() {
        text.push_str("## Failures\n\n");
        for failure in &report.run.failures {
            let what = format!(
                "{}, {}: {}",
                failure.benchmark, failure.variant, failure.reason
            );
            let _ = writeln!(text, "- {}", cell(&what));
        }
        text.push('\n');
    }
    if !header.environment.is_empty() {
        text.push_str("## Environment\n\n");
        self::header(text, &["what", "value"]);
        for (name, value) in &header.environment {
            row(text, &[cell(name), cell(value)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cannot_break_the_table() {
        assert_eq!(cell("a|b\n<c> @d"), "a\\|b \\<c> \\@d");
    }
}
