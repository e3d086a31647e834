//! The results of an experiment.
//!
//! They are kept in a file of JSON objects, one a line: the header first, then each
//! execution as soon as it has ended. So an interruption loses nothing but the execution
//! that was going on, and a run can be resumed: what is there need not be done again. A
//! last line without its end is what an interruption leaves, and is passed over.

mod measured;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use measured::Measured;

/// The format that is written here.
pub const FORMAT: u32 = 1;
/// The metric that a command without any other has: how long the whole run took, in
/// seconds.
pub const TIME: &str = "time";

/// Whether less of a metric is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// As of times.
    #[default]
    Lower,
    /// As of rates.
    Higher,
}

/// What is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    /// What values are counted in, such as `s`, `bytes`, `1/s`; empty for plain counts.
    pub unit: String,
    /// Whether less is better.
    #[serde(default)]
    pub better: Better,
    /// Reports are about it; the others are there to explain it.
    #[serde(default)]
    pub primary: bool,
}

/// What is known of the whole before it begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// What the user calls it.
    pub title: String,
    /// When it began, in seconds since 1970.
    pub started: f64,
    /// What its order and its intervals depend on.
    pub seed: u64,
    /// Its metrics, by name. A program may report others, which are added as they come:
    /// in seconds, lower is better.
    pub metrics: BTreeMap<String, Metric>,
    /// The machine: names and values, to be shown.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// What was not prepared, each with its remedy.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The experiment as it was asked for, to be resumed; of nobody else's concern.
    #[serde(default)]
    pub experiment: serde_json::Value,
}

/// One execution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Execution {
    /// What was executed.
    pub benchmark: String,
    /// How.
    pub variant: String,
    /// Its place among all executions of the run, from 0 on.
    pub order: u64,
    /// When it began, in seconds since 1970.
    #[serde(default)]
    pub started: f64,
    /// The measurements of each metric, in their order. What there is once for an
    /// execution, such as its peak memory, has one.
    pub metrics: Measured,
}

/// An execution that gave nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// What was executed.
    pub benchmark: String,
    /// How.
    pub variant: String,
    /// Its place among all executions of the run.
    pub order: u64,
    /// Why it gave nothing, in a line.
    pub reason: String,
    /// What was measured of it all the same.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, Vec<f64>>,
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// The first one. A run that is resumed has another for each time.
    Header(Header),
    /// As soon as it has ended.
    Execution(Execution),
    /// The same.
    Failure(Failure),
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Where it is kept; empty where it is not.
    pub path: PathBuf,
    /// The header, with the metrics that came later.
    pub header: Header,
    /// The executions that gave something, in their order.
    pub executions: Vec<Execution>,
    /// The others.
    pub failures: Vec<Failure>,
    /// The variant that others are compared with, where that is not the first one.
    pub reference: Option<String>,
}

/// Why results cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The file.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line of it.
    #[error("{}:{line}: {why}", path.display())]
    Line {
        /// Of which file.
        path: PathBuf,
        /// Which, from 1 on.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

impl Run {
    /// Reads a file of results.
    ///
    /// # Errors
    /// When it cannot be read, or a line is none of these: the line is named.
    pub fn read(path: &Path) -> Result<Run, RunError> {
        let text = fs::read_to_string(path).map_err(|source| RunError::File {
            path: path.to_owned(),
            source,
        })?;
        let mut run = Run::parse(&text).map_err(|(line, why)| RunError::Line {
            path: path.to_owned(),
            line,
            why,
        })?;
        path.clone_into(&mut run.path);
        Ok(run)
    }

    /// Reads results from text.
    ///
    /// # Errors
    /// The number of the line that is wrong, and what is wrong with it.
    pub fn parse(text: &str) -> Result<Run, (usize, String)> {
        let mut lines = Lines::default();
        // What an interruption left of a line has no end.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for line in whole.lines() {
            lines.add(line)?;
        }
        lines.finish()
    }

    fn begin(&mut self, header: Header) -> Result<(), String> {
        if header.format != FORMAT {
            let known = FORMAT;
            return Err(format!(
                "format {}; this is for format {known}",
                header.format
            ));
        }
        let mut metrics = std::mem::take(&mut self.header.metrics);
        metrics.extend(header.metrics.clone());
        self.header = Header { metrics, ..header };
        Ok(())
    }

    /// Adds an execution.
    ///
    /// # Errors
    /// What is wrong with it: it has no measurement, or one that is not a number.
    pub fn add(&mut self, execution: Execution) -> Result<(), String> {
        for (name, values) in execution.metrics.iter() {
            if values.is_empty() {
                return Err(format!("no measurement of {name}"));
            }
            if let Some(n) = values.iter().position(|value| !value.is_finite()) {
                return Err(format!("measurement {} of {name} is no number", n + 1));
            }
            let metric = || Metric {
                unit: "s".into(),
                ..Metric::default()
            };
            self.header
                .metrics
                .entry(name.clone())
                .or_insert_with(metric);
        }
        self.forgive(&execution.benchmark, &execution.variant, execution.order);
        self.executions.push(execution);
        Ok(())
    }

    /// Adds an execution that failed. One that failed before and was tried again counts
    /// once.
    pub fn fail(&mut self, failure: Failure) {
        self.forgive(&failure.benchmark, &failure.variant, failure.order);
        self.failures.push(failure);
    }

    /// Forgets that an execution failed, because it was tried again.
    fn forgive(&mut self, benchmark: &str, variant: &str, order: u64) {
        self.failures.retain(|failure| {
            (&*failure.benchmark, &*failure.variant, failure.order) != (benchmark, variant, order)
        });
    }

    /// The benchmarks, in the order in which they first came.
    #[must_use]
    pub fn benchmarks(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for execution in &self.executions {
            if !names.contains(&&*execution.benchmark) {
                names.push(&execution.benchmark);
            }
        }
        names
    }

    /// The variants of a benchmark, in the order of [`Run::all_variants`].
    #[must_use]
    pub fn variants(&self, benchmark: &str) -> Vec<&str> {
        let made = self.executions.iter();
        let made = made.filter(|e| e.benchmark == benchmark);
        let made: HashSet<&str> = made.map(|e| &*e.variant).collect();
        let mut all = self.all_variants();
        all.retain(|name| made.contains(name));
        all
    }

    /// All variants, those too that only failed: first the one that others are compared with, then
    /// in the order of the experiment as far as it is known, else in that in which they first came.
    #[must_use]
    pub fn all_variants(&self) -> Vec<&str> {
        let listed = self.header.experiment["variants"].as_array();
        let listed = listed.into_iter().flatten();
        let listed = listed.filter_map(|variant| variant["name"].as_str());
        let made = self.executions.iter().map(|e| &*e.variant);
        let failed = self.failures.iter().map(|f| &*f.variant);
        let there: HashSet<&str> = made.clone().chain(failed.clone()).collect();
        let all = self.reference.as_deref().into_iter();
        let all = all.chain(listed).chain(made).chain(failed);
        let mut seen = HashSet::new();
        all.filter(|name| there.contains(name) && seen.insert(*name))
            .collect()
    }

    /// Takes executions that failed for good ones, where something was measured of them.
    ///
    /// # Errors
    /// What is wrong with what was measured.
    pub fn take_failed(&mut self) -> Result<(), String> {
        let failures = std::mem::take(&mut self.failures);
        for failure in failures {
            if failure.metrics.is_empty() {
                self.failures.push(failure);
                continue;
            }
            self.add(Execution {
                benchmark: failure.benchmark,
                variant: failure.variant,
                order: failure.order,
                started: 0.0,
                metrics: failure.metrics.into(),
            })?;
        }
        self.executions.sort_by_key(|execution| execution.order);
        Ok(())
    }

    /// Makes others be compared with this variant.
    ///
    /// # Errors
    /// Where there is no such variant: a line that names those that are there.
    pub fn compare_with(&mut self, variant: &str) -> Result<(), String> {
        let all = self.all_variants();
        if !all.contains(&variant) {
            let all = all.join(", ");
            return Err(format!(
                "--reference {variant}: there is no such variant; there are: {all}"
            ));
        }
        self.reference = Some(variant.to_owned());
        Ok(())
    }

    /// The measurements of a metric, by execution, in the order of the executions; those
    /// that have none are left out.
    #[must_use]
    pub fn measurements(&self, benchmark: &str, variant: &str, metric: &str) -> Vec<Vec<f64>> {
        let of = |e: &&Execution| e.benchmark == benchmark && e.variant == variant;
        let executions = self.executions.iter().filter(of);
        executions
            .filter_map(|execution| execution.metrics.get(metric).cloned())
            .collect()
    }

    /// The places of the executions that [`Run::measurements`] gives.
    #[must_use]
    pub fn orders(&self, benchmark: &str, variant: &str, metric: &str) -> Vec<u64> {
        let of = |e: &&Execution| {
            e.benchmark == benchmark && e.variant == variant && e.metrics.get(metric).is_some()
        };
        self.executions.iter().filter(of).map(|e| e.order).collect()
    }

    /// The metrics that reports are about: those marked so, else [`TIME`], else all.
    #[must_use]
    pub fn primary_metrics(&self) -> Vec<&str> {
        let all = &self.header.metrics;
        let primary = all.iter().filter(|(_, metric)| metric.primary);
        let names: Vec<&str> = primary.map(|(name, _)| name.as_str()).collect();
        match names.is_empty() {
            false => names,
            true if all.contains_key(TIME) => vec![TIME],
            true => all.keys().map(String::as_str).collect(),
        }
    }
}

/// Whether two variants were executed in rounds, by the places of their executions: both once in
/// each, before the next one begins.
#[must_use]
pub fn are_in_rounds(a: &[u64], b: &[u64]) -> bool {
    let rounds: Vec<(u64, u64)> = a
        .iter()
        .zip(b)
        .map(|(a, b)| (*a.min(b), *a.max(b)))
        .collect();
    a.len() == b.len() && rounds.windows(2).all(|two| two[0].1 < two[1].0)
}

/// Results that come line by line.
#[derive(Debug, Default)]
pub struct Lines {
    run: Run,
    headers: usize,
    number: usize,
}

impl Lines {
    /// Adds the next line, without its end.
    ///
    /// # Errors
    /// The number of the line, and what is wrong with it.
    pub fn add(&mut self, line: &str) -> Result<(), (usize, String)> {
        self.number += 1;
        let wrong = |why: String| (self.number, why);
        match Line::parse(line).map_err(|error| wrong(error.to_string()))? {
            Line::Header(header) => {
                self.headers += 1;
                self.run.begin(header).map_err(wrong)
            }
            _ if self.headers == 0 => Err(wrong("there is no header before it".into())),
            Line::Execution(execution) => self.run.add(execution).map_err(wrong),
            Line::Failure(failure) => {
                self.run.fail(failure);
                Ok(())
            }
        }
    }

    /// All that came.
    ///
    /// # Errors
    /// Where there was no header.
    pub fn finish(self) -> Result<Run, (usize, String)> {
        match self.headers {
            0 => Err((1, "it holds no results: the header is missing".into())),
            _ => Ok(self.run),
        }
    }
}

/// How a line begins that tells of an execution, as it is written here.
const EXECUTION: &str = "{\"kind\":\"execution\",";

impl Line {
    /// Reads a line.
    fn parse(line: &str) -> Result<Line, serde_json::Error> {
        // What kind it is is known before the rest is read: so numbers are read once only.
        match line.starts_with(EXECUTION) {
            true => serde_json::from_str(line).map(Line::Execution),
            false => serde_json::from_str(line),
        }
    }

    /// The line as it is written, with its end.
    ///
    /// # Errors
    /// Where a number of it is none.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self).map(|text| text + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execution(variant: &str, values: &[f64]) -> Execution {
        Execution {
            benchmark: "fft".into(),
            variant: variant.into(),
            metrics: [(TIME.into(), values.to_vec())].into(),
            ..Execution::default()
        }
    }

    fn text(lines: &[Line]) -> String {
        lines.iter().map(|line| line.text().unwrap()).collect()
    }

    fn header() -> Line {
        Line::Header(Header {
            format: FORMAT,
            title: "two".into(),
            ..Header::default()
        })
    }

    #[test]
    fn what_is_written_is_read() {
        let lines = [
            header(),
            Line::Execution(execution("a", &[1.0, 2.0])),
            Line::Execution(execution("b", &[3.0])),
            Line::Failure(Failure::default()),
            header(),
            Line::Execution(execution("a", &[4.0])),
        ];
        let run = Run::parse(&text(&lines)).unwrap();
        assert_eq!(run.benchmarks(), ["fft"]);
        assert_eq!(run.variants("fft"), ["a", "b"]);
        assert_eq!(
            run.measurements("fft", "a", TIME),
            [vec![1.0, 2.0], vec![4.0]]
        );
        assert_eq!(run.primary_metrics(), [TIME]);
        assert_eq!(run.failures.len(), 1);
    }

    #[test]
    fn the_first_variant_is_that_of_the_experiment_or_the_one_that_is_asked_for() {
        let mut run = Run::default();
        for name in ["b", "a", "c"] {
            run.add(execution(name, &[1.0])).unwrap();
        }
        assert_eq!(run.variants("fft"), ["b", "a", "c"]);
        run.header.experiment = serde_json::json!({"variants": [{"name": "a"}, {"name": "none"}]});
        assert_eq!(run.variants("fft"), ["a", "b", "c"]);
        run.compare_with("c").unwrap();
        assert_eq!(run.variants("fft"), ["c", "a", "b"]);
        assert!(
            run.compare_with("none")
                .unwrap_err()
                .ends_with("there are: c, a, b")
        );
    }

    #[test]
    fn rounds_are_told_by_places() {
        assert!(are_in_rounds(&[0, 3, 4], &[1, 2, 5]));
        assert!(!are_in_rounds(&[0, 1], &[2, 3]));
        assert!(!are_in_rounds(&[0, 2], &[1]));
    }

    #[test]
    fn half_a_line_at_the_end_is_passed_over() {
        let whole = text(&[header(), Line::Execution(execution("a", &[1.0]))]);
        for end in whole.find('\n').unwrap() + 1..whole.len() {
            let run = Run::parse(&whole[..end]).unwrap();
            assert_eq!(run.executions.len(), 0, "{end}");
        }
    }

    #[test]
    fn a_wrong_line_is_named() {
        let wrong = |lines: String| Run::parse(&lines).unwrap_err().0;
        assert_eq!(wrong(String::new()), 1);
        assert_eq!(wrong(text(&[header()]) + "{\"kind\":\"other\"}\n"), 2);
        assert_eq!(wrong(text(&[Line::Execution(execution("a", &[1.0]))])), 1);
        assert_eq!(
            wrong(text(&[header(), Line::Execution(execution("a", &[]))])),
            2
        );
    }
}
