//! What comes out: a JSON file with every sample, an HTML page with plots, and
//! a table on the terminal.

mod figure3;
pub mod groups;
pub mod html;
pub mod plot;
pub mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::figure3::normalised;
use crate::results::{Results, Run, Summary};
use crate::spec::Workload;
use crate::system::Machine;
use crate::target::{Outcome, Verdict};

/// Something that was not measured.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// Variant or workload.
    pub what: String,
    /// Why, with the remedy.
    pub reason: String,
}

/// Everything that a report says.
#[derive(Clone, Debug)]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// Whether sizes were small.
    pub quick: bool,
    /// Repetitions.
    pub repetitions: u32,
    /// Time that all of it took.
    pub seconds: f64,
    /// What was left out.
    pub skipped: Vec<Skipped>,
    /// What was measured.
    pub results: Results,
    /// Whether the targets are reached.
    pub verdicts: Vec<Verdict>,
}

impl Report {
    /// Writes the JSON file and the HTML page into `dir`.
    pub fn write(&self, dir: &Path) -> Result<[PathBuf; 2]> {
        let paths = ["superpages.json", "superpages.html"].map(|name| dir.join(name));
        let json = serde_json::to_string_pretty(&self.json())?;
        let html = html::page(self).context("drawing the plots")?;
        for (path, text) in paths.iter().zip([json, html]) {
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(paths)
    }

    fn json(&self) -> serde_json::Value {
        let workloads = self.results.workloads().into_iter().map(|w| {
            serde_json::json!({
                "name": w.name(),
                "description": w.description(),
                "metrics": w.metrics(),
            })
        });
        serde_json::json!({
            "benchmark": "superpages",
            "version": env!("CARGO_PKG_VERSION"),
            "quick": self.quick,
            "repetitions": self.repetitions,
            "seconds": self.seconds,
            "machine": self.machine,
            "skipped": self.skipped,
            "workloads": workloads.collect::<Vec<_>>(),
            "runs": self.results.runs,
            "summaries": self.results.summaries,
            "verdicts": self.verdicts,
            "normalised": normalised::all(&self.results),
        })
    }

    /// The verdicts of a workload.
    fn verdicts_of(&self, workload: Workload) -> impl Iterator<Item = &Verdict> {
        self.verdicts
            .iter()
            .filter(move |v| v.target.workload == workload)
    }

    /// Targets held, missed and not measured.
    fn tally(&self) -> [usize; 3] {
        [Outcome::Holds, Outcome::Missed, Outcome::NotMeasured]
            .map(|o| self.verdicts.iter().filter(|v| v.outcome == o).count())
    }

    /// Notes and errors of a workload, each once, with the variant.
    fn remarks(&self, workload: Workload) -> Vec<String> {
        let mut all = Vec::new();
        let of_workload = |run: &&Run| run.turn.workload == workload;
        for run in self.results.runs.iter().filter(of_workload) {
            let error = run.error.iter().map(|e| format!("failed: {e}"));
            for text in run.sample.notes.iter().cloned().chain(error) {
                let text = format!("{}: {text}", run.turn.variant.name());
                if !all.contains(&text) {
                    all.push(text);
                }
            }
        }
        all
    }
}

/// A figure with as many digits as it is worth reading.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        x if x >= 1000.0 => format!("{value:.0}"),
        x if x >= 100.0 => format!("{value:.1}"),
        x if x >= 10.0 => format!("{value:.2}"),
        x if x >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

/// A gain with its interval.
pub fn gain(gain: Option<[f64; 3]>) -> String {
    gain.map_or_else(
        || "-".to_owned(),
        |[value, low, high]| format!("{value:.3} [{low:.3}, {high:.3}]"),
    )
}

/// A median with its interval.
fn median(summary: &Summary) -> String {
    let [value, low, high] = [summary.median, summary.ci_low, summary.ci_high].map(number);
    format!("{value} [{low}, {high}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let all = [0.0, 0.001, 0.5, 12.345, 123.45, 12345.6].map(number);
        assert_eq!(
            all,
            ["0", "1.00e-3", "0.500", "12.35", "123.5", "12346"].map(String::from)
        );
    }
}
