//! Data files of ReBench: lines of cells that tabs separate, after comments that begin
//! with `#`. The cells are invocation, iteration, value, unit, criterion, benchmark,
//! executor, suite, extra arguments, cores, input size, variable value, and whatever
//! newer versions add. An invocation is an execution, and the executor is the variant.

use std::collections::{BTreeMap, BTreeSet};

use crate::import::Wrong;
use crate::import::builder::{Builder, seconds_in};
use crate::run::{Better, Run, TIME};

/// The fewest cells that a line has.
const CELLS: usize = 8;
/// The criterion under which the time of an iteration stands.
const TOTAL: &str = "total";

/// A line.
struct Row<'a> {
    invocation: &'a str,
    value: f64,
    unit: &'a str,
    criterion: &'a str,
    benchmark: String,
    executor: &'a str,
    suite: &'a str,
}

/// Whether the text looks like this format.
pub fn is(text: &str) -> bool {
    let mut lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.next().is_some_and(|line| {
        let cells: Vec<&str> = line.split('\t').collect();
        let first = cells[0];
        cells.len() >= CELLS - 1 && (first == "invocation" || first.parse::<u64>().is_ok())
    })
}

pub fn parse(text: &str) -> Result<Run, Wrong> {
    let mut rows = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.is_empty() || line.starts_with('#') || line.starts_with("invocation\t") {
            continue;
        }
        rows.push(row(line).map_err(|why| Wrong::line(number, why))?);
    }
    let suites = suites_matter(&rows);
    let mut builder = Builder::default();
    for row in rows {
        let benchmark = match suites {
            true => format!("{}/{}", row.suite, row.benchmark),
            false => row.benchmark,
        };
        let (unit, scale) = unit(row.unit);
        let metric = match row.criterion {
            TOTAL if unit == "s" => TIME,
            other => other,
        };
        builder.metric(metric, &unit, Better::Lower);
        let of = [benchmark.as_str(), row.executor, row.invocation];
        builder.put(of, metric, row.value * scale);
    }
    builder.finish("it holds no measurements")
}

fn row(line: &str) -> Result<Row<'_>, String> {
    let cells: Vec<&str> = line.split('\t').collect();
    let got = cells.len();
    let [
        invocation,
        iteration,
        value,
        unit,
        criterion,
        benchmark,
        executor,
        suite,
        more @ ..,
    ] = cells.as_slice()
    else {
        return Err(format!(
            "it has {got} cells, and a measurement has {CELLS} or more"
        ));
    };
    for (name, cell) in [("invocation", invocation), ("iteration", iteration)] {
        if cell.parse::<u64>().is_err() {
            return Err(format!("{name}: `{cell}` is no whole number"));
        }
    }
    let number: Option<f64> = value.parse().ok();
    let number = number.filter(|number| number.is_finite());
    // Extra arguments, cores, input size and variable value make it another benchmark; one
    // core is what there is where nobody said otherwise.
    let said = |(n, cell): &(usize, &&str)| !cell.is_empty() && (*n != 1 || **cell != "1");
    let arguments = more.iter().take(4).enumerate().filter(said);
    let arguments: Vec<&str> = arguments.map(|(_, cell)| *cell).collect();
    Ok(Row {
        invocation,
        value: number.ok_or_else(|| format!("value: `{value}` is no number"))?,
        unit,
        criterion,
        benchmark: [&[*benchmark], arguments.as_slice()].concat().join(" "),
        executor,
        suite,
    })
}

/// Whether a benchmark of one name is in several suites for one executor.
fn suites_matter(rows: &[Row]) -> bool {
    let mut of: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for row in rows {
        let suites = of.entry((&row.benchmark, row.executor)).or_default();
        suites.insert(row.suite);
    }
    of.values().any(|suites| suites.len() > 1)
}

/// The unit that values get, and the factor for it.
fn unit(name: &str) -> (String, f64) {
    match seconds_in(name) {
        Some(scale) => ("s".to_owned(), scale),
        None => match name {
            "byte" | "B" => ("bytes".to_owned(), 1.0),
            "kb" | "kbyte" | "KB" | "KiB" => ("bytes".to_owned(), 1024.0),
            "MB" | "MiB" | "mbyte" => ("bytes".to_owned(), 1024.0 * 1024.0),
            other => (other.to_owned(), 1.0),
        },
    }
}
