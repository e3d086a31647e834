//! JSON, Markdown and the table on the terminal. All say the same.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::dsm::Part;
use crate::dsm::results::{Figure, Results, Verdict};
use crate::report::number;
use crate::system::Machine;

/// Everything that a report says.
#[derive(Clone, Debug)]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// Whether sizes were small.
    pub quick: bool,
    /// Rounds.
    pub rounds: u32,
    /// Time that all of it took.
    pub seconds: f64,
    /// What was measured.
    pub results: Results,
}

impl Report {
    /// Writes the JSON file and the Markdown page into `dir`.
    pub fn write(&self, dir: &Path) -> Result<[PathBuf; 2]> {
        let paths = ["dsm.json", "dsm.md"].map(|name| dir.join(name));
        let json = serde_json::to_string_pretty(&serde_json::json!({
            "benchmark": "dsm",
            "version": env!("CARGO_PKG_VERSION"),
            "quick": self.quick,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "machine": self.machine,
            "figures": self.results.figures,
            "verdicts": self.results.verdicts,
            "notes": self.results.notes,
        }))?;
        for (path, text) in paths.iter().zip([json, self.markdown()]) {
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(paths)
    }

    /// Prints the tables.
    pub fn print(&self) {
        print!("{}", self.markdown());
    }

    fn markdown(&self) -> String {
        let mut text = String::from("# Shared memory across machines\n\n");
        let Machine {
            cpu, cpus, kernel, ..
        } = &self.machine;
        let (rounds, seconds) = (self.rounds, self.seconds);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{cpu}, {cpus} processors, Linux {kernel}; {rounds} rounds, {seconds:.0} s. Medians of rounds with 95 % intervals."
        );
        if self.quick {
            text.push_str(
                "\nSmall sizes: this shows that everything works, and measures nothing of worth.\n",
            );
        }
        for part in Part::value_variants() {
            self.part(*part, &mut text);
        }
        if !self.results.verdicts.is_empty() {
            text.push_str("\n## Targets\n\n| | target | measured |\n|---|---|---|\n");
        }
        for verdict in &self.results.verdicts {
            text.push_str(&target(verdict));
        }
        for note in &self.results.notes {
            let _ = writeln!(text, "\n{note}");
        }
        text
    }

    fn part(&self, part: Part, text: &mut String) {
        let figures = self.results.figures.iter();
        let mut figures = figures.filter(|figure| figure.part == part).peekable();
        if figures.peek().is_none() {
            return;
        }
        let _ = writeln!(text, "\n## {}\n", part.title());
        text.push_str(
            "| between nodes | | median | 95 % | unit | paper 003 |\n|---|---|---|---|---|---|\n",
        );
        figures.for_each(|figure| text.push_str(&row(figure)));
    }
}

fn row(figure: &Figure) -> String {
    let [low, high] = figure.interval.map(number);
    let Figure {
        setting,
        name,
        unit,
        ..
    } = figure;
    let median = number(figure.median);
    let paper = figure.paper.as_deref().unwrap_or("");
    format!("| {setting} | {name} | {median} | {low} to {high} | {unit} | {paper} |\n")
}

fn target(verdict: &Verdict) -> String {
    let Verdict { setting, text, .. } = verdict;
    let outcome = verdict.outcome.text();
    let measured = match verdict.measured.is_nan() {
        true => "-".to_owned(),
        false => number(verdict.measured),
    };
    let at = if setting.is_empty() { "" } else { ", " };
    format!("| {outcome} | {text}{at}{setting} | {measured} |\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dsm::results::Bound;

    #[test]
    fn all_of_it_is_written() {
        let mut results = Results::default();
        results.add(Part::Faults, "50 us", "zero-fill", "us", vec![40.0]);
        results.paper("1500 us");
        let bound = Bound::AtMost(2.0);
        results.judge(Part::Faults, "50 us", "a target", Some(3.0), bound);
        results.note("a note");
        let report = Report {
            machine: Machine::read(),
            quick: true,
            rounds: 1,
            seconds: 1.0,
            results,
        };
        let dir = tempfile::tempdir().unwrap();
        let paths = report.write(dir.path()).unwrap();
        let [json, page] = paths.map(|path| std::fs::read_to_string(path).unwrap());
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["figures"][0]["median"], 40.0);
        assert_eq!(json["verdicts"][0]["outcome"], "missed");
        for words in [
            "| 50 us | zero-fill | 40.00 |",
            "1500 us",
            "a target, 50 us",
            "a note",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
    }
}
