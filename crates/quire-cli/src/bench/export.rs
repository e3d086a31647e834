//! Writes what came of it into files: JSON for programs, Markdown for people, CSV for
//! tables.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use quire_lab::judge::Judged;
use quire_lab::run::Run;
use quire_lab::summary::{Row, Table};
use serde_json::{Value, json};

use crate::args::BenchArgs;
use crate::failure::{Failure, Outcome};

/// A way to write results into a file.
type Write1 = fn(&mut File, &Run, &[Table]) -> io::Result<()>;

/// The files that are asked for.
pub struct Exports(Vec<(File, PathBuf, Write1)>);

/// Opens the files, so that a bad path does not cost a run.
pub fn check(options: &BenchArgs) -> Outcome<Exports> {
    let wanted: [(&Option<PathBuf>, Write1); 3] = [
        (&options.export_json, write_json),
        (&options.export_markdown, write_markdown),
        (&options.export_csv, write_csv),
    ];
    let open = |(path, write): (&Option<PathBuf>, Write1)| {
        let path = path.as_ref()?;
        Some(create(path).map(|file| (file, path.clone(), write)))
    };
    let files: Outcome<Vec<_>> = wanted.into_iter().filter_map(open).collect();
    files.map(Exports)
}

fn create(path: &Path) -> Outcome<File> {
    File::create(path).map_err(|error| {
        Failure::bad_usage(format!(
            "cannot write {}: {error}; name a file in a directory that you may write to",
            path.display()
        ))
    })
}

impl Exports {
    /// Writes them.
    pub fn write(self, run: &Run, tables: &[Table]) -> Outcome<()> {
        for (mut file, path, write) in self.0 {
            write(&mut file, run, tables).map_err(|error| {
                let path = path.display();
                Failure::system(format!("cannot write {path}: {error}"))
            })?;
        }
        Ok(())
    }
}

/// What came of it, for programs.
pub fn json(run: &Run, tables: &[Table]) -> Value {
    let table = |of: &Table| {
        let rows: Vec<Value> = of.rows.iter().map(|row| json_row(run, of, row)).collect();
        json!({
            "benchmark": of.benchmark,
            "metric": of.metric,
            "unit": of.kind.unit,
            "better": of.kind.better,
            "variants": rows,
            "conclusions": of.sentences,
            "notes": of.notes,
        })
    };
    json!({
        "version": 1,
        "title": run.header.title,
        "seed": run.header.seed,
        "environment": run.header.environment,
        "warnings": run.header.warnings,
        "results": tables.iter().map(table).collect::<Vec<Value>>(),
        "failures": run.failures,
    })
}

fn json_row(run: &Run, of: &Table, row: &Row) -> Value {
    json!({
        "variant": row.variant,
        "executions": row.executions,
        "failures": row.failures,
        "mean": judged(&row.mean),
        "variation": judged(&row.variation),
        "min": row.range.map(|range| range.0),
        "max": row.range.map(|range| range.1),
        "ratio": row.ratio.as_ref().map(judged),
        "measurements": run.measurements(&of.benchmark, &row.variant, &of.metric),
    })
}

fn judged(judged: &Judged) -> Value {
    match judged {
        Ok(estimate) => json!({
            "value": estimate.value,
            "low": estimate.ci_low,
            "high": estimate.ci_high,
        }),
        Err(why) => json!({ "absent": why.to_string() }),
    }
}

fn write_json(file: &mut File, run: &Run, tables: &[Table]) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *file, &json(run, tables))?;
    writeln!(file)
}

fn write_markdown(file: &mut File, _: &Run, tables: &[Table]) -> io::Result<()> {
    for of in tables {
        let unit = match of.kind.unit.as_str() {
            "" => String::new(),
            unit => format!(" [{unit}]"),
        };
        writeln!(file, "### {}: {}\n", cell(&of.benchmark), of.metric)?;
        writeln!(file, "| Variant | Mean{unit} | ± | CV | Times the first |")?;
        writeln!(file, "|:---|---:|---:|---:|---:|")?;
        for row in &of.rows {
            let mean = text(&row.mean, |m| format!("{:.6}", m.value));
            let error = text(&row.mean, |m| format!("{:.6}", m.error()));
            let cv = text(&row.variation, |v| format!("{:.2} %", v.value * 100.0));
            let ratio = row.ratio.as_ref().map_or("1".into(), |ratio| {
                text(ratio, |r| {
                    format!("{:.3} ({:.3} to {:.3})", r.value, r.ci_low, r.ci_high)
                })
            });
            writeln!(
                file,
                "| {} | {mean} | {error} | {cv} | {ratio} |",
                cell(&row.variant)
            )?;
        }
        writeln!(file)?;
        for sentence in of.sentences.iter().chain(&of.notes) {
            writeln!(file, "{sentence}\n")?;
        }
    }
    Ok(())
}

fn text(judged: &Judged, show: impl Fn(&quire_lab::judge::Estimate) -> String) -> String {
    judged.as_ref().map_or("absent".into(), show)
}

/// A text that does not end the cell of a table.
fn cell(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|").replace('`', "'"))
}

fn write_csv(file: &mut File, run: &Run, tables: &[Table]) -> io::Result<()> {
    writeln!(
        file,
        "benchmark,variant,metric,unit,execution,measurement,value"
    )?;
    for of in tables {
        for row in &of.rows {
            let names = [&of.benchmark, &row.variant, &of.metric, &of.kind.unit];
            let names = names.map(|name| quoted(name)).join(",");
            let values = run.measurements(&of.benchmark, &row.variant, &of.metric);
            for (n, execution) in values.iter().enumerate() {
                for (m, value) in execution.iter().enumerate() {
                    writeln!(file, "{names},{},{},{value}", n + 1, m + 1)?;
                }
            }
        }
    }
    Ok(())
}

/// A cell of CSV (RFC 4180).
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stay_cells() {
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("sleep 1"), "sleep 1");
        assert_eq!(cell("a | b"), "`a \\| b`");
    }
}
