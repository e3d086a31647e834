//! Prints what came of it, for people.

use std::io::{self, Write};

use quire_lab::judge::{Estimate, Judged};
use quire_lab::report::Verdict;
use quire_lab::run::{Better, Run, TIME};
use quire_lab::summary::{Conclusion, Row, Table};

use crate::args::{Style, TimeUnit};
use crate::table;

/// What colours are printed.
pub struct Look {
    colours: bool,
}

impl Look {
    /// Colours on a terminal, unless `NO_COLOR` is set or a style says otherwise.
    pub fn of(is_terminal: bool, style: Style) -> Look {
        let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colours = match style {
            Style::Full | Style::Color => true,
            Style::Basic | Style::Nocolor | Style::None => false,
            Style::Auto => is_terminal && !forbidden,
        };
        Look { colours }
    }

    /// A heading.
    pub fn bold(&self, text: &str) -> String {
        match self.colours {
            true => format!("\x1b[1m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    fn conclusion(&self, of: &Conclusion) -> String {
        let colour = match of.verdict {
            _ if !self.colours => return table::shown(&of.text),
            Verdict::Better => 32,
            Verdict::Worse => 31,
            Verdict::Undecided | Verdict::Unknown => 33,
        };
        format!("\x1b[{colour}m{}\x1b[0m", table::shown(&of.text))
    }
}

/// How tables are printed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    /// The unit of times; as they are read easily unless given.
    pub unit: Option<TimeUnit>,
    /// In the order of their means, the best first.
    pub by_mean: bool,
}

/// Prints what came of it: the answer, the table, and what to bear in mind.
pub fn tables(
    out: &mut impl Write,
    run: &Run,
    tables: &[Table],
    look: &Look,
    wish: Wish,
) -> io::Result<()> {
    for (n, of) in tables.iter().enumerate() {
        if n > 0 {
            writeln!(out)?;
        }
        let metric = match of.kind.unit.as_str() {
            "" => of.metric.clone(),
            unit => format!("{} in {}", of.metric, scale(of, wish).1.unwrap_or(unit)),
        };
        writeln!(out, "{}", look.bold(&format!("{}: {metric}", of.benchmark)))?;
        for conclusion in &of.conclusions {
            writeln!(out, "{}", look.conclusion(conclusion))?;
        }
        rows(of, wish).write(out, 2)?;
        if !of.notes.is_empty() {
            writeln!(out, "{}", of.notes.join(" "))?;
        }
        if let Some((first, Err(why))) = of.rows.first().map(|row| (row, &row.mean)) {
            let what = match first.average {
                Some(_) => "interval of the mean",
                None => "mean",
            };
            writeln!(out, "No {what} of {}: {why}.", first.variant)?;
        }
    }
    let failed = run.failures.len();
    if failed > 0 {
        let all = failed + run.executions.len();
        let last = run.failures.last();
        let last = last.map(|last| format!("{}: {}", last.variant, last.reason));
        let last = last.unwrap_or_default();
        writeln!(
            out,
            "{failed} of {all} executions failed; the last one: {last}"
        )?;
    }
    Ok(())
}

fn rows(of: &Table, wish: Wish) -> table::Table {
    let has_failures = of.rows.iter().any(|row| row.failures > 0);
    let has_processor = of.metric == TIME && of.rows.iter().any(|row| row.processor.is_some());
    let mut header = vec!["VARIANT", "RUNS"];
    if has_failures {
        header.push("FAILED");
    }
    header.extend(["MEAN", "±", "MEDIAN", "MIN", "MAX"]);
    if has_processor {
        header.extend(["USER", "SYSTEM"]);
    }
    header.extend(["CV", "TIMES THE FIRST"]);
    let mut table = table::Table::new(1, &header);
    let factor = scale(of, wish).0;
    for row in sorted(of, wish) {
        let value = |value: f64| number(value * factor);
        let known = |known: Option<f64>| known.map_or("-".to_owned(), value);
        let error = row.mean.as_ref().ok().map(Estimate::error);
        let mut cells = vec![table::shown(&row.variant), row.executions.to_string()];
        if has_failures {
            cells.push(row.failures.to_string());
        }
        cells.extend([
            known(row.average),
            known(error),
            known(row.median),
            known(row.range.map(|range| range.0)),
            known(row.range.map(|range| range.1)),
        ]);
        if has_processor {
            cells.push(known(row.processor.map(|times| times.0)));
            cells.push(known(row.processor.map(|times| times.1)));
        }
        cells.extend([percent(&row.variation), ratio(row)]);
        table.row(cells);
    }
    table
}

/// The rows in the order that is wished.
pub fn sorted(of: &Table, wish: Wish) -> Vec<&Row> {
    let mut rows: Vec<&Row> = of.rows.iter().collect();
    if wish.by_mean {
        let sign = match of.kind.better {
            Better::Lower => 1.0,
            Better::Higher => -1.0,
        };
        let mean = |row: &Row| row.average.map_or(f64::INFINITY, |mean| sign * mean);
        rows.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
    }
    rows
}

fn percent(share: &Judged) -> String {
    match share {
        Ok(share) => format!("{:.1} %", share.value * 100.0),
        Err(_) => "-".into(),
    }
}

fn ratio(row: &Row) -> String {
    match &row.ratio {
        None => "1".into(),
        Some(Err(_)) => "-".into(),
        Some(Ok(ratio)) => {
            let (value, low, high) = (ratio.value, ratio.ci_low, ratio.ci_high);
            format!("{} ({} to {})", number(value), number(low), number(high))
        }
    }
}

/// What the values of a table are multiplied with, and the unit that they have then.
pub fn scale(of: &Table, wish: Wish) -> (f64, Option<&'static str>) {
    let means = of.rows.iter().filter_map(|row| row.average);
    match wish.unit {
        Some(unit) if of.kind.unit == "s" => unit.scale(),
        _ => scale_of(&of.kind.unit, means),
    }
}

/// What values are multiplied with to be read easily, and the unit that they have then,
/// if it is another one.
pub fn scale_of(unit: &str, values: impl Iterator<Item = f64>) -> (f64, Option<&'static str>) {
    let largest = values.map(f64::abs).fold(0.0, f64::max);
    match unit {
        "s" if largest > 0.0 && largest < 1e-6 => (1e9, Some("ns")),
        "s" if largest > 0.0 && largest < 1e-3 => (1e6, Some("µs")),
        "s" if largest > 0.0 && largest < 1.0 => (1e3, Some("ms")),
        "bytes" if largest >= 1e9 => (1.0 / 1_073_741_824.0, Some("GiB")),
        "bytes" if largest >= 1e6 => (1.0 / 1_048_576.0, Some("MiB")),
        _ => (1.0, None),
    }
}

/// A number with four digits that matter.
pub fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if value == 0.0 => "0".into(),
        1e7.. => format!("{value:.3e}"),
        1000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        10.0.. => format!("{value:.2}"),
        0.001.. => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_matter() {
        let texts = [0.0, 0.01234, 1.5, 12.345, 123.45, 12345.0, 2e9, 1e-5].map(number);
        let wanted = [
            "0", "0.012", "1.500", "12.35", "123.5", "12345", "2.000e9", "1.00e-5",
        ];
        assert_eq!(texts, wanted);
    }

    #[test]
    fn colours_are_for_terminals_and_follow_the_verdict() {
        let of = |verdict, text: &str| Conclusion {
            verdict,
            text: text.into(),
        };
        let worse = of(Verdict::Worse, "echo ' is better than ' is worse than a");
        let plain = Look { colours: false };
        assert_eq!(plain.conclusion(&worse), worse.text);
        let look = Look { colours: true };
        assert!(look.conclusion(&worse).starts_with("\x1b[31m"));
        let better = of(Verdict::Better, "b is better than a");
        assert!(look.conclusion(&better).starts_with("\x1b[32m"));
        let open = of(Verdict::Undecided, "Nothing can be concluded");
        assert!(look.conclusion(&open).starts_with("\x1b[33m"));
    }
}
