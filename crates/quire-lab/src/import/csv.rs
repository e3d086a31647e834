//! Plain tables with a header. The columns, in any order:
//!
//! | column | holds | where it is missing, empty or `-` |
//! |---|---|---|
//! | `value` | the measurement | an error |
//! | `benchmark` | what was executed | `benchmark` |
//! | `variant` | how | `default` |
//! | `execution` | a name or number of the execution | each line is one |
//! | `metric` | what was measured | `time` |
//! | `unit` | its unit, such as `s`; times in `ms`, `us` and `ns` become seconds | `s` of `time`, else none |
//! | `better` | `lower` or `higher` | `lower` |
//!
//! Commas separate the cells; semicolons or tabs do where the header has them. Cells may
//! stand in double quotes, as RFC 4180 says; one that does is never a default.

use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

use crate::import::Wrong;
use crate::import::builder::{Builder, VARIANT, seconds_in};
use crate::run::{Better, Run, TIME};

/// The benchmark of lines that name none.
const BENCHMARK: &str = "benchmark";
/// The columns, in the order in which they are written.
const COLUMNS: [&str; 7] = [
    "benchmark",
    "variant",
    "execution",
    "metric",
    "unit",
    "better",
    "value",
];

/// A cell, and whether it stood in quotes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cell {
    text: String,
    quoted: bool,
}

/// A line of the file, on which it begins, and its cells.
type Record = (usize, Vec<Cell>);

/// Where each column is; `None` where it is missing.
struct Header([Option<usize>; 7]);

impl Header {
    fn of((line, cells): &Record) -> Result<Header, Wrong> {
        let mut places = [None; 7];
        for (at, cell) in cells.iter().enumerate() {
            let name = cell.text.trim().to_ascii_lowercase();
            let column = COLUMNS.iter().position(|column| *column == name);
            let Some(column) = column else {
                let known = COLUMNS.join(", ");
                let why = format!("`{name}` is no known column; those are: {known}");
                return Err(Wrong::line(*line, why));
            };
            if places[column].replace(at).is_some() {
                return Err(Wrong::line(
                    *line,
                    format!("column `{name}` is there twice"),
                ));
            }
        }
        match places[6] {
            Some(_) => Ok(Header(places)),
            None => Err(Wrong::line(*line, "the header has no column `value`")),
        }
    }

    /// The text of a column, where there is one.
    fn cell<'a>(&self, cells: &'a [Cell], column: usize) -> Option<&'a str> {
        let cell = &cells[self.0[column]?];
        let text = cell.text.as_str();
        match (cell.quoted, text.trim()) {
            (true, _) => Some(text),
            (false, "" | "-") => None,
            (false, trimmed) => Some(trimmed),
        }
    }
}

/// Reads a table.
///
/// # Errors
/// The line, and what is wrong on it.
pub(crate) fn parse(text: &str) -> Result<Run, Wrong> {
    let mut records = Records::of(text);
    let Some(first) = records.next().transpose()? else {
        return Err(Wrong::whole("it is empty"));
    };
    let header = Header::of(&first).map_err(|wrong| explain(wrong, &first))?;
    let mut builder = Builder::default();
    for record in records {
        let (line, cells) = record?;
        let (wanted, got) = (first.1.len(), cells.len());
        if got != wanted {
            let why = format!("it has {got} cells, and the header has {wanted}");
            return Err(Wrong::line(line, why));
        }
        add(&mut builder, &header, line, &cells).map_err(|why| Wrong::line(line, why))?;
    }
    builder.finish("it has a header and no measurements")
}

/// A first line that names none of the columns is probably no header at all.
fn explain(wrong: Wrong, (line, cells): &Record) -> Wrong {
    let is_column = |cell: &Cell| COLUMNS.contains(&cell.text.trim());
    if cells.iter().any(is_column) {
        return wrong;
    }
    let known = COLUMNS.join(", ");
    let why = format!("it is no file of results that is known, and no CSV with a header: {known}");
    Wrong::line(*line, why)
}

fn add(builder: &mut Builder, header: &Header, line: usize, cells: &[Cell]) -> Result<(), String> {
    let cell = |column| header.cell(cells, column);
    let text = cell(6).ok_or("the value is missing")?;
    let value: Option<f64> = text.trim().parse().ok();
    let value = value.filter(|value| value.is_finite());
    let value = value.ok_or_else(|| format!("value: `{text}` is no number"))?;
    let metric = cell(3).unwrap_or(TIME);
    let unit = cell(4).unwrap_or(if metric == TIME { "s" } else { "" });
    let (unit, scale) = seconds_in(unit).map_or((unit, 1.0), |scale| ("s", scale));
    let better = match cell(5) {
        None | Some("lower") => Better::Lower,
        Some("higher") => Better::Higher,
        Some(other) => return Err(format!("better: `{other}` is neither lower nor higher")),
    };
    builder.metric(metric, unit, better);
    let known = builder.known(metric);
    if known.is_some_and(|known| known.unit != unit || known.better != better) {
        return Err(format!(
            "{metric} has another unit or direction than before"
        ));
    }
    // A line of its own cannot be meant where the column is there.
    let own = format!("line {line}");
    let execution = match header.cell(cells, 2) {
        Some(name) => format!("execution {name}"),
        None => own,
    };
    let benchmark = cell(0).unwrap_or(BENCHMARK);
    let variant = cell(1).unwrap_or(VARIANT);
    builder.put([benchmark, variant, &execution], metric, value * scale);
    Ok(())
}

/// The records of a text, one after the other, so that a large file is not held twice.
/// Empty lines are passed over.
struct Records<'a> {
    chars: Peekable<Chars<'a>>,
    separator: char,
    line: usize,
}

impl<'a> Records<'a> {
    fn of(text: &'a str) -> Records<'a> {
        let first = text.lines().next().unwrap_or("");
        let count = |c: char| first.chars().filter(|other| *other == c).count();
        // Of those that are as frequent the last one wins.
        let separator = ['\t', ';', ','].into_iter().max_by_key(|c| count(*c));
        Records {
            chars: text.chars().peekable(),
            separator: separator.unwrap_or(','),
            line: 1,
        }
    }

    /// The next cell, and whether it is the last of its line.
    fn cell(&mut self) -> Result<(Cell, bool), Wrong> {
        let mut cell = Cell::default();
        while let Some(c) = self.chars.next() {
            self.line += usize::from(c == '\n');
            match c {
                '\n' => return Ok((cell, true)),
                '\r' if self.chars.peek() == Some(&'\n') => {}
                c if c == self.separator => return Ok((cell, false)),
                '"' if cell.text.trim().is_empty() && !cell.quoted => {
                    cell = Cell {
                        text: self.quoted()?,
                        quoted: true,
                    };
                }
                c if cell.quoted && !c.is_whitespace() => {
                    let why = "there is text after a closing quote";
                    return Err(Wrong::line(self.line, why));
                }
                _ if cell.quoted => {}
                c => cell.text.push(c),
            }
        }
        Ok((cell, true))
    }

    /// The text up to the closing quote.
    fn quoted(&mut self) -> Result<String, Wrong> {
        let begin = self.line;
        let mut text = String::new();
        while let Some(c) = self.chars.next() {
            self.line += usize::from(c == '\n');
            match c {
                '"' if self.chars.peek() == Some(&'"') => {
                    self.chars.next();
                    text.push('"');
                }
                '"' => return Ok(text),
                c => text.push(c),
            }
        }
        Err(Wrong::line(begin, "a quote is not closed"))
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, Wrong>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.chars.peek().is_some() {
            let begin = self.line;
            let mut cells = Vec::new();
            loop {
                match self.cell() {
                    Err(wrong) => return Some(Err(wrong)),
                    Ok((cell, is_last)) => {
                        cells.push(cell);
                        if is_last {
                            break;
                        }
                    }
                }
            }
            let is_empty = |cell: &Cell| !cell.quoted && cell.text.trim().is_empty();
            if cells.len() > 1 || !cells.iter().all(is_empty) {
                return Some(Ok((begin, cells)));
            }
        }
        None
    }
}

/// All measurements of a run as such a table.
#[must_use]
pub fn text(run: &Run) -> String {
    let mut text = COLUMNS.join(",") + "\n";
    for (number, execution) in (1..).zip(&run.executions) {
        for (name, values) in execution.metrics.iter() {
            let metric = run.header.metrics.get(name);
            let unit = metric.map_or("", |metric| metric.unit.as_str());
            let better = match metric.map(|metric| metric.better) {
                Some(Better::Higher) => "higher",
                _ => "lower",
            };
            for value in values {
                let _ = writeln!(
                    text,
                    "{},{},{number},{},{},{better},{value}",
                    quoted(&execution.benchmark),
                    quoted(&execution.variant),
                    quoted(name),
                    quoted(unit),
                );
            }
        }
    }
    text
}

/// A cell that is read as it is: in quotes, unless it is a plain word.
#[must_use]
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./:+*%@-".contains(c);
    if !text.is_empty() && text != "-" && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_may_come_in_any_order_and_be_missing() {
        let run = parse("value;variant\n1.5;a\n2;-\n").unwrap();
        assert_eq!(run.benchmarks(), ["benchmark"]);
        assert_eq!(run.variants("benchmark"), ["a", "default"]);
        assert_eq!(run.executions.len(), 2);
        assert_eq!(run.header.metrics[TIME].unit, "s");
    }

    #[test]
    fn an_execution_holds_its_lines() {
        let text =
            "execution,metric,value,unit\n1,time,5,ms\n2,time,6,ms\n1,time,7,ms\n1,misses,3,\n";
        let run = parse(text).unwrap();
        let times = run.measurements("benchmark", "default", TIME);
        assert_eq!(times, [vec![0.005, 0.007], vec![0.006]]);
        assert_eq!(run.measurements("benchmark", "default", "misses"), [[3.0]]);
    }

    #[test]
    fn a_quoted_cell_is_no_default() {
        let run = parse("benchmark,value\n\"-\",1\n\"a \"\"b\"\"\nc\",2\n").unwrap();
        assert_eq!(run.benchmarks(), ["-", "a \"b\"\nc"]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, line, word) in [
            ("benchmark,variant\na,b\n", 1, "value"),
            ("value,size\n1,2\n", 1, "size"),
            ("value,value\n1,2\n", 1, "twice"),
            ("value\n1\nx\n", 3, "`x`"),
            ("value\n1\nNaN\n", 3, "NaN"),
            ("value\n1\n1e999\n", 3, "1e999"),
            ("benchmark,value\na,1\nb\n", 3, "1 cells"),
            ("benchmark,value\na,1\n\nb,-\n", 4, "missing"),
            ("benchmark,value\na,1\n\"b,2\n", 3, "quote"),
            ("value,better\n1,best\n", 2, "best"),
            ("value,unit\n1,s\n2,bytes\n", 3, "unit"),
        ] {
            let wrong = parse(text).unwrap_err();
            assert_eq!(wrong.place, crate::import::Place::Line(line), "{text}");
            assert!(wrong.why.contains(word), "{wrong:?}");
        }
    }
}
