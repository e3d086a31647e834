//! `quire compare`: whether new results are worse than old ones.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use quire_lab::compare::{self as lab, Comparison, Item, Outcome as Came, junit, output};

use crate::args::CompareArgs;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::report::{results, settings};
use crate::table::{Table, shown};

/// The exit status where something is worse.
const WORSE: u8 = 1;

/// Compares, writes what is asked for, and returns the exit status.
pub fn compare(options: &CompareArgs) -> Outcome<u8> {
    let create = |path: &Option<PathBuf>| path.as_deref().map(Output::create).transpose();
    let files = (create(&options.junit)?, create(&options.markdown)?);
    let read = |path: &PathBuf| results(std::slice::from_ref(path), options.ignore_failure);
    let (old, new) = (read(&options.old)?, read(&options.new)?);
    let settings = settings(&options.statistics, &new);
    let comparison = lab::compare(&old, &new, options.threshold, settings)
        .map_err(|error| Failure::bad_usage(error.to_string()))?;
    if let Some(file) = files.0 {
        file.write(&junit::xml(&comparison))?;
    }
    if let Some(file) = files.1 {
        file.write(&output::markdown(&comparison))?;
    }
    let mut out = io::stdout().lock();
    if options.json {
        let json = output::json(&comparison);
        writeln!(out, "{}", serde_json::to_string_pretty(&json)?)?;
    } else {
        print(&mut out, &comparison)?;
    }
    Ok(if comparison.has_regression() {
        WORSE
    } else {
        0
    })
}

fn print(out: &mut (impl Write + IsTerminal), comparison: &Comparison) -> io::Result<()> {
    let colours = out.is_terminal() && env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let header = output::COLUMNS.map(str::to_uppercase);
    let mut table = Table::new(
        output::COLUMNS.len(),
        &header.each_ref().map(String::as_str),
    );
    for item in &comparison.items {
        let mut cells = output::cells(item).map(|text| shown(&text));
        let colour = match item.outcome {
            Came::Regression => Some(31),
            Came::Improvement => Some(32),
            _ => None,
        };
        if let Some(colour) = colour.filter(|_| colours) {
            // The last column, so the width of what cannot be seen does not matter.
            cells[6] = format!("\x1b[{colour}m{}\x1b[0m", cells[6]);
        }
        table.row(cells.to_vec());
    }
    table.write(out, 0)?;
    let differs = |item: &&Item| matches!(item.outcome, Came::Regression | Came::Improvement);
    for item in comparison.items.iter().filter(differs) {
        let (of, sentence) = (&item.new.benchmark, item.sentence());
        let text = format!("{of}, {}: {sentence}", item.new.variant);
        writeln!(out, "{}", shown(&text))?;
    }
    for lone in &comparison.lone {
        writeln!(out, "{}", shown(&output::lone_line(lone)))?;
    }
    for warning in &comparison.warnings {
        writeln!(out, "warning: {}", shown(warning))?;
    }
    writeln!(out, "{}", comparison.summary())
}
