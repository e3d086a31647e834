//! Writes what came of it into files: JSON that scripts for hyperfine read, its tables as
//! Markdown, AsciiDoc, Org and CSV.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use quire_lab::judge::{Estimate, Judged};
use quire_lab::run::{Run, TIME};
use quire_lab::summary::{Row, Table};
use quire_lab::usage::WALL_TIME;
use serde_json::{Map, Value, json};

use super::show::{Wish, number, scale, sorted};
use crate::args::BenchArgs;
use crate::failure::{Failure, Outcome};
use crate::output::Output;

/// The largest resident set of an execution.
const MEMORY: &str = "peak_memory";

/// What came of it, as it is to be written.
#[derive(Clone, Copy)]
pub struct Came<'a> {
    pub run: &'a Run,
    pub tables: &'a [Table],
    pub wish: Wish,
}

/// A way to write results into a file.
type Write1 = fn(&mut dyn Write, Came) -> io::Result<()>;

/// The files that are asked for; none where it is standard output, which the tables are written to
/// before.
pub struct Exports(Vec<(Option<Output>, PathBuf, Write1)>);

/// Makes the files, so that a bad path does not cost a run. What is there is replaced at the end.
pub fn check(options: &BenchArgs) -> Outcome<Exports> {
    let wanted: [(&Option<PathBuf>, Write1); 5] = [
        (&options.export_json, write_json),
        (&options.export_markdown, |file, came| {
            MARKDOWN.write(file, came)
        }),
        (&options.export_asciidoc, |file, came| {
            ASCIIDOC.write(file, came)
        }),
        (&options.export_orgmode, |file, came| ORG.write(file, came)),
        (&options.export_csv, write_csv),
    ];
    let open = |(path, write): (&Option<PathBuf>, Write1)| {
        let path = path.as_ref()?;
        let is_file = path.as_os_str() != "-";
        let output = is_file.then(|| Output::create(path)).transpose();
        Some(output.map(|output| (output, path.clone(), write)))
    };
    let files: Outcome<Vec<_>> = wanted.into_iter().filter_map(open).collect();
    files.map(Exports)
}

impl Exports {
    /// Writes them.
    pub fn write(self, came: Came) -> Outcome<()> {
        for (output, path, write) in self.0 {
            let written = match output {
                None => write(&mut io::stdout(), came),
                Some(output) => write_file(output, write, came),
            };
            written.map_err(|error| {
                let path = path.display();
                Failure::system(format!("cannot write {path}: {error}"))
            })?;
        }
        Ok(())
    }
}

fn write_file(output: Output, write: Write1, came: Came) -> io::Result<()> {
    let mut file = BufWriter::new(output.file());
    write(&mut file, came)?;
    file.flush()?;
    drop(file);
    output.finish()
}

/// What came of it, for programs.
pub fn json(run: &Run, tables: &[Table]) -> Value {
    let table = |of: &Table| {
        let rows: Vec<Value> = of.rows.iter().map(|row| json_row(run, of, row)).collect();
        let conclusions = of.conclusions.iter().map(|one| one.text.as_str());
        json!({
            "benchmark": of.benchmark,
            "metric": of.metric,
            "unit": of.kind.unit,
            "better": of.kind.better,
            "variants": rows,
            "conclusions": conclusions.collect::<Vec<&str>>(),
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
        "median": row.median,
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

/// A command as hyperfine knows it.
struct Result1 {
    command: String,
    times: Vec<f64>,
    memory: Vec<f64>,
    user: Option<f64>,
    system: Option<f64>,
    parameters: Map<String, Value>,
}

/// The commands of a run, with the time of each whole execution.
fn results(came: Came) -> Vec<Result1> {
    let run = came.run;
    let several = run.benchmarks().len() > 1;
    let mut all = Vec::new();
    for of in came.tables {
        let is_first = came
            .tables
            .iter()
            .find(|other| other.benchmark == of.benchmark);
        if is_first.is_some_and(|first| first.metric != of.metric) {
            continue;
        }
        for row in sorted(of, came.wish) {
            let measured = |metric| run.measurements(&of.benchmark, &row.variant, metric);
            let once = |metric| measured(metric).into_iter().flatten().collect::<Vec<f64>>();
            let whole = once(WALL_TIME);
            all.push(Result1 {
                command: match several {
                    true => format!("{}: {}", of.benchmark, row.variant),
                    false => row.variant.clone(),
                },
                times: if whole.is_empty() { once(TIME) } else { whole },
                memory: once(MEMORY),
                user: row.processor.map(|times| times.0),
                system: row.processor.map(|times| times.1),
                parameters: parameters(run, &row.variant),
            });
        }
    }
    all
}

/// The parameters of a variant (`--parameter-list` and `--parameter-scan`).
fn parameters(run: &Run, variant: &str) -> Map<String, Value> {
    let variants = run.header.experiment["variants"].as_array();
    let mut variants = variants.into_iter().flatten();
    let own = variants.find(|one| one["name"] == variant);
    own.and_then(|own| own["parameters"].as_object().cloned())
        .unwrap_or_default()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation; nothing of a single value.
fn deviation(values: &[f64]) -> Option<f64> {
    let middle = mean(values);
    let squares: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

fn extremes(values: &[f64]) -> [f64; 2] {
    let by = |of: fn(f64, f64) -> f64| values.iter().copied().reduce(of).unwrap_or(f64::NAN);
    [by(f64::min), by(f64::max)]
}

fn write_json(file: &mut dyn Write, came: Came) -> io::Result<()> {
    let may_fail = came.run.header.experiment["ignore_failure"] != false;
    let result = |of: &Result1| {
        let [min, max] = extremes(&of.times);
        let mut value = json!({
            "command": of.command,
            "mean": mean(&of.times),
            "stddev": deviation(&of.times),
            "median": quire_stats::median(&of.times),
            "user": of.user,
            "system": of.system,
            "min": min,
            "max": max,
            "times": of.times,
            "memory_usage_byte": of.memory.iter().map(|bytes| *bytes as u64).collect::<Vec<u64>>(),
        });
        if !may_fail {
            value["exit_codes"] = vec![0; of.times.len()].into();
        }
        if !of.parameters.is_empty() {
            value["parameters"] = Value::Object(of.parameters.clone());
        }
        value
    };
    let results = results(came);
    let measured = results.iter().filter(|of| !of.times.is_empty());
    let all = json!({
        "results": measured.map(result).collect::<Vec<Value>>(),
        "quire": json(came.run, came.tables),
    });
    serde_json::to_writer_pretty(&mut *file, &all)?;
    writeln!(file)
}

fn write_csv(file: &mut dyn Write, came: Came) -> io::Result<()> {
    let results = results(came);
    let names = results
        .first()
        .map(|of| of.parameters.keys().cloned().collect::<Vec<String>>());
    let names = names.unwrap_or_default();
    let named = names
        .iter()
        .map(|name| format!(",{}", quoted(&format!("parameter_{name}"))));
    let named: String = named.collect();
    writeln!(
        file,
        "command,mean,stddev,median,user,system,min,max{named}"
    )?;
    for of in results.iter().filter(|of| !of.times.is_empty()) {
        let [min, max] = extremes(&of.times);
        let median = quire_stats::median(&of.times);
        let figures = [
            Some(mean(&of.times)),
            deviation(&of.times),
            median,
            of.user,
            of.system,
            Some(min),
            Some(max),
        ];
        let text = |value: &Option<f64>| value.map_or(String::new(), |value| value.to_string());
        let cells = figures.iter().map(text);
        let own = names.iter().map(|name| {
            let value = of.parameters.get(name).and_then(Value::as_str);
            quoted(value.unwrap_or_default())
        });
        let cells: Vec<String> = cells.chain(own).collect();
        writeln!(file, "{},{}", quoted(&of.command), cells.join(","))?;
    }
    Ok(())
}

/// A language of tables.
struct Language {
    /// Before the name of a table.
    heading: &'static str,
    /// Around a name in a cell.
    quote: char,
    /// Before the first row, between the header and the others, and after the last.
    rules: [&'static str; 3],
    /// Before each row, between cells and at the end of each row.
    row: [&'static str; 3],
    /// What ends a cell.
    bar: &'static str,
}

const MARKDOWN: Language = Language {
    heading: "### ",
    quote: '`',
    rules: ["", "|:---|---:|---:|---:|---:|\n", ""],
    row: ["| ", " | ", " |"],
    bar: "\\|",
};
const ASCIIDOC: Language = Language {
    heading: ".",
    quote: '`',
    rules: ["[cols=\"<,>,>,>,>\"]\n|===\n", "\n", "|===\n"],
    row: ["| ", " | ", ""],
    bar: "\\|",
};
const ORG: Language = Language {
    heading: "* ",
    quote: '=',
    rules: ["", "|--+--+--+--+--|\n", ""],
    row: ["| ", " | ", " |"],
    bar: "\\vert{}",
};

impl Language {
    /// Writes the tables, and after each what can be concluded.
    fn write(&self, file: &mut dyn Write, came: Came) -> io::Result<()> {
        for of in came.tables {
            let (factor, unit) = scale(of, came.wish);
            let unit = unit.unwrap_or(&of.kind.unit);
            let unit = if unit.is_empty() {
                String::new()
            } else {
                format!(" [{unit}]")
            };
            writeln!(file, "{}{}: {}\n", self.heading, of.benchmark, of.metric)?;
            write!(file, "{}", self.rules[0])?;
            let header = ["Mean", "Min", "Max"].map(|name| format!("{name}{unit}"));
            let [mean, min, max] = header;
            self.row(file, ["Command".into(), mean, min, max, "Relative".into()])?;
            write!(file, "{}", self.rules[1])?;
            for row in sorted(of, came.wish) {
                self.row(file, self.cells(came.run, of, row, factor))?;
            }
            writeln!(file, "{}", self.rules[2])?;
            let conclusions = of.conclusions.iter().map(|one| &one.text);
            for sentence in conclusions.chain(&of.notes) {
                writeln!(file, "{sentence}\n")?;
            }
        }
        Ok(())
    }

    fn row(&self, file: &mut dyn Write, cells: [String; 5]) -> io::Result<()> {
        let [before, between, after] = self.row;
        writeln!(file, "{before}{}{after}", cells.join(between))
    }

    /// The name, the mean with the deviation of executions, the range, and the ratio.
    fn cells(&self, run: &Run, of: &Table, row: &Row, factor: f64) -> [String; 5] {
        let value = |value: f64| number(value * factor);
        let executions = run.measurements(&of.benchmark, &row.variant, &of.metric);
        let means: Vec<f64> = executions.iter().map(|values| mean(values)).collect();
        let middle = match (means.is_empty(), deviation(&means)) {
            (true, _) => "absent".to_owned(),
            (_, None) => value(mean(&means)),
            (_, Some(deviation)) => format!("{} ± {}", value(mean(&means)), value(deviation)),
        };
        let [min, max] = match row.range {
            Some((min, max)) => [min, max].map(value),
            None => ["absent", "absent"].map(String::from),
        };
        let relative = |ratio: &Judged| match ratio {
            Ok(Estimate {
                value,
                ci_low,
                ci_high,
            }) => {
                let [value, low, high] = [value, ci_low, ci_high].map(|one| number(*one));
                format!("{value} ({low} to {high})")
            }
            Err(_) => "absent".into(),
        };
        let ratio = row.ratio.as_ref().map_or("1".into(), relative);
        [self.name(&row.variant), middle, min, max, ratio]
    }

    /// A name that does not end the cell of a table.
    fn name(&self, text: &str) -> String {
        let quote = self.quote;
        let text = text.replace('|', self.bar).replace(quote, "'");
        format!("{quote}{text}{quote}")
    }
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
        assert_eq!(MARKDOWN.name("a | b"), "`a \\| b`");
        assert_eq!(ORG.name("a=1 | b"), "=a'1 \\vert{} b=");
    }

    #[test]
    fn deviations_are_those_of_samples() {
        assert_eq!(deviation(&[1.0, 3.0]), Some(2f64.sqrt()));
        assert_eq!(deviation(&[1.0]), None);
        assert_eq!(extremes(&[2.0, 1.0, 3.0]), [1.0, 3.0]);
    }
}
