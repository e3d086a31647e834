//! Prints what came of it, for people.

use std::io::{self, Write};

use quire_lab::judge::Judged;
use quire_lab::run::Run;
use quire_lab::summary::{Row, Table};

use crate::table;

/// What colours are printed.
pub struct Look {
    colours: bool,
}

impl Look {
    /// Colours on a terminal, unless `NO_COLOR` is set.
    pub fn of(is_terminal: bool) -> Look {
        let forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colours = is_terminal && !forbidden;
        Look { colours }
    }

    /// A heading.
    pub(crate) fn bold(&self, text: &str) -> String {
        match self.colours {
            true => format!("\x1b[1m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    fn sentence(&self, text: &str) -> String {
        let colour = match text {
            _ if !self.colours => return text.to_owned(),
            _ if text.contains(" is better than ") => 32,
            _ if text.contains(" is worse than ") => 31,
            _ => 33,
        };
        format!("\x1b[{colour}m{text}\x1b[0m")
    }
}

/// Prints tables, each with its sentences.
pub fn tables(out: &mut impl Write, run: &Run, tables: &[Table], look: &Look) -> io::Result<()> {
    for (n, of) in tables.iter().enumerate() {
        if n > 0 {
            writeln!(out)?;
        }
        let metric = match of.kind.unit.as_str() {
            "" => of.metric.clone(),
            unit => format!("{} in {}", of.metric, scale(of).1.unwrap_or(unit)),
        };
        writeln!(out, "{}", look.bold(&format!("{}: {metric}", of.benchmark)))?;
        rows(of).write(out, 2)?;
        for sentence in &of.sentences {
            writeln!(out, "{}", look.sentence(sentence))?;
        }
        for note in &of.notes {
            writeln!(out, "{note}")?;
        }
        if let Some((first, Err(why))) = of.rows.first().map(|row| (row, &row.mean)) {
            writeln!(out, "No mean of {}: {why}.", first.variant)?;
        }
    }
    let failed = run.failures.len();
    if failed > 0 {
        let all = failed + run.executions.len();
        let last = run.failures.last().map_or("", |failure| &failure.reason);
        writeln!(
            out,
            "{failed} of {all} executions failed; the last one: {last}"
        )?;
    }
    Ok(())
}

fn rows(of: &Table) -> table::Table {
    let header = [
        "VARIANT",
        "RUNS",
        "FAILED",
        "MEAN",
        "±",
        "CV",
        "MIN",
        "MAX",
        "TIMES THE FIRST",
    ];
    let mut table = table::Table::new(1, &header);
    let factor = scale(of).0;
    for row in &of.rows {
        let value = |value: f64| number(value * factor);
        let (least, most) = row.range.map_or_else(absent, |(l, m)| (value(l), value(m)));
        table.row(vec![
            row.variant.clone(),
            row.executions.to_string(),
            row.failures.to_string(),
            row.mean
                .as_ref()
                .map_or("-".into(), |mean| value(mean.value)),
            row.mean
                .as_ref()
                .map_or("-".into(), |mean| value(mean.error())),
            percent(&row.variation),
            least,
            most,
            ratio(row),
        ]);
    }
    table
}

fn absent() -> (String, String) {
    ("-".into(), "-".into())
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
            format!("{value:.3} ({low:.3} to {high:.3})")
        }
    }
}

fn scale(of: &Table) -> (f64, Option<&'static str>) {
    let means = of.rows.iter().filter_map(|row| row.mean.as_ref().ok());
    scale_of(&of.kind.unit, means.map(|mean| mean.value))
}

/// What values are multiplied with to be read easily, and the unit that they have then,
/// if it is another one.
pub(crate) fn scale_of(
    unit: &str,
    values: impl Iterator<Item = f64>,
) -> (f64, Option<&'static str>) {
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
pub(crate) fn number(value: f64) -> String {
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
    fn colours_are_for_terminals() {
        let plain = Look { colours: false };
        assert_eq!(plain.sentence("b is better than a"), "b is better than a");
        let look = Look { colours: true };
        assert!(look.sentence("b is better than a").starts_with("\x1b[32m"));
        assert!(
            look.sentence("Nothing can be concluded")
                .starts_with("\x1b[33m")
        );
    }
}
