//! What comes out of the experiments with frames.
//!
//! | module | holds |
//! |---|---|
//! | [`table`] | the table on the terminal |
//! | [`csv`] | every figure as a row |
//! | [`html`] | the page with plots |

mod csv;
mod html;
mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use quire_core::units::Bytes;

use crate::colours::experiment::Experiment;
use crate::colours::geometry::Geometry;
use crate::colours::results::{Results, Run, Summary};
use crate::colours::target::Verdict;
use crate::report::{Skipped, number};
use crate::system::Machine;
use crate::target::Outcome;
use crate::worker::traced::REAL;

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
    /// Memory that was populated.
    pub populated: Bytes,
    /// The size whose half, equal and double the kernels used.
    pub reference: Bytes,
    /// The cache that colours are for.
    pub geometry: Geometry,
    /// What it costs to wake a thread, in microseconds.
    pub wake_us: f64,
    /// What the processor counts, in words.
    pub pmu: String,
    /// What was left out.
    pub skipped: Vec<Skipped>,
    /// Whether the targets are reached.
    pub verdicts: Vec<Verdict>,
    /// What was measured.
    pub results: Results,
}

impl Report {
    /// Writes the JSON file, the table of all figures and the HTML page into `dir`.
    pub fn write(&self, dir: &Path) -> Result<[PathBuf; 3]> {
        let names = ["colours.json", "colours.csv", "colours.html"];
        let paths = names.map(|name| dir.join(name));
        let json = serde_json::to_string_pretty(&self.json())?;
        let html = html::page(self).context("drawing the plots")?;
        for (path, text) in paths.iter().zip([json, csv::text(self), html]) {
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(paths)
    }

    /// Prints the table.
    pub fn print(&self) {
        print!("{}", table::text(self));
    }

    fn json(&self) -> serde_json::Value {
        let experiments = self.results.experiments().into_iter().map(|experiment| {
            serde_json::json!({
                "name": experiment.name(),
                "description": experiment.description(),
                "bytes": self.bytes(experiment),
                "metrics": experiment.metrics(),
            })
        });
        serde_json::json!({
            "benchmark": "colours",
            "version": env!("CARGO_PKG_VERSION"),
            "quick": self.quick,
            "rounds": self.rounds,
            "seconds": self.seconds,
            "machine": self.machine,
            "cache": self.geometry,
            "reference_bytes": self.reference,
            "wake_us": self.wake_us,
            "pmu": self.pmu,
            "frames": self.frames(),
            "skipped": self.skipped,
            "experiments": experiments.collect::<Vec<_>>(),
            "runs": self.results.runs,
            "summaries": self.results.summaries,
            "verdicts": self.verdicts,
        })
    }

    /// How much memory an experiment uses.
    fn bytes(&self, experiment: Experiment) -> Bytes {
        experiment.bytes(self.populated, self.reference)
    }

    /// Where the frames of the modelled misses come from. `None` where none were
    /// modelled.
    fn frames(&self) -> Option<&'static str> {
        let told = |run: &Run| run.sample.metrics.get(REAL).copied();
        let mut told = self.results.runs.iter().filter_map(told).peekable();
        told.peek()?;
        Some(if told.all(|real| real == 1.0) {
            "those that /proc/self/pagemap shows for the process"
        } else {
            "made up, since the kernel hides real ones (run as root): by the strategy from folios at random, and at random for default"
        })
    }

    /// What has to be known of all figures, in lines of a name and what there is to
    /// say.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("Cache", self.geometry.describe())];
        if self.reference != self.geometry.size_bytes {
            facts.push(("Sizes relate to", self.reference.to_string()));
        }
        if let Some(frames) = self.frames() {
            facts.push(("Frames in the model", frames.to_owned()));
            facts.push(("PMU", self.pmu.clone()));
        }
        let wake = format!("{} us, from one thread to another", number(self.wake_us));
        facts.push(("Waking a thread", wake));
        if self.machine.virtual_machine {
            facts.push((
                "Virtual machine",
                "frames are the guest's: times follow their colours only where the host backs it with large pages".to_owned(),
            ));
        }
        facts
    }

    /// Targets held, missed and not measured.
    fn tally(&self) -> [usize; 3] {
        [Outcome::Holds, Outcome::Missed, Outcome::NotMeasured]
            .map(|o| self.verdicts.iter().filter(|v| v.outcome == o).count())
    }
}

/// A median with its interval.
fn median(summary: &Summary) -> String {
    let [value, low, high] = [summary.median, summary.ci_low, summary.ci_high].map(number);
    format!("{value} [{low}, {high}]")
}

/// What a verdict is about, in figures.
fn measured(verdict: &Verdict) -> String {
    match verdict.measured.as_deref() {
        Some([value, low, high]) => format!("{value:.3} [{low:.3}, {high:.3}]"),
        Some([value]) => number(*value),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::CacheChoice;
    use crate::colours::allocation::Allocation;
    use crate::colours::experiment::Size;
    use crate::colours::results::tests::run;
    use crate::colours::target;
    use crate::kernels::Kernel;

    /// A report of two rounds.
    pub fn report() -> Report {
        let array = Experiment::Kernel(Kernel::Array, Size::Equal);
        let mut runs = Vec::new();
        for round in 0..2 {
            for allocation in [Allocation::Default, Allocation::Colour] {
                let factor = if allocation == Allocation::Colour {
                    1.5
                } else {
                    1.0
                };
                runs.push(run(
                    Experiment::Populate,
                    allocation,
                    round,
                    "gib_ms",
                    400.0 * factor,
                ));
                let mut traced = run(array, allocation, round, "conflict", 3.0 - 2.0 * factor);
                traced
                    .sample
                    .metrics
                    .insert("conflict".to_owned(), if factor > 1.0 { 0.0 } else { 7.0 });
                traced.sample.put("pass_us", 12.5 * factor);
                traced.sample.put(REAL, 1.0);
                runs.push(traced);
            }
        }
        let whole = CacheChoice {
            set: vec!["level=2,sets=1024,ways=16,line=64".parse().unwrap()],
            level: Some(2),
            cache_size: None,
        };
        let results = Results::of(runs);
        Report {
            machine: Machine::read(),
            quick: true,
            rounds: 2,
            seconds: 3.0,
            populated: Bytes::mib(64),
            reference: Bytes(64 << 10),
            geometry: Geometry::of(&whole, false).unwrap(),
            wake_us: 12.0,
            pmu: "none".to_owned(),
            skipped: vec![Skipped {
                what: "binhop".to_owned(),
                reason: "no".to_owned(),
            }],
            verdicts: target::judge(&results),
            results,
        }
    }

    #[test]
    fn all_of_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let paths = report().write(dir.path()).unwrap();
        let [json, csv, html] = paths.map(|path| std::fs::read_to_string(path).unwrap());
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["runs"].as_array().unwrap().len(), 8);
        assert_eq!(json["cache"]["sets"], 1024);
        assert_eq!(json["cache"]["colour_bits"], "12,13,14,15");
        assert_eq!(json["experiments"][1]["bytes"], 64 << 10);
        assert!(json["frames"].as_str().unwrap().contains("pagemap"));
        let row = csv
            .lines()
            .find(|line| line.starts_with("populate,67108864,colour,gib_ms"));
        assert_eq!(
            row,
            Some("populate,67108864,colour,gib_ms,ms,2,600,600,600,1.5,1.5,1.5")
        );
        assert!(html.contains("<svg") && html.ends_with("</html>\n"));
    }

    #[test]
    fn the_table_says_what_holds() {
        let text = table::text(&report());
        assert!(text.contains("array-equal, 64 KiB"), "{text}");
        let row = text
            .lines()
            .find(|line| line.trim_start().starts_with("colour "));
        assert!(row.unwrap().contains("1.500 [1.500, 1.500]  "), "{text}");
        assert!(
            text.contains("holds         populate colour: populating takes at most 2 times"),
            "{text}"
        );
        assert!(text.contains("2 hold, 0 missed, 0 not measured"), "{text}");
        assert!(text.contains("skipped binhop: no"), "{text}");
    }

    #[test]
    fn made_up_frames_are_called_so() {
        let mut report = report();
        for run in &mut report.results.runs {
            run.sample
                .metrics
                .entry(REAL.to_owned())
                .and_modify(|real| *real = 0.0);
        }
        assert!(report.frames().unwrap().starts_with("made up"));
        report
            .results
            .runs
            .retain(|run| run.experiment == Experiment::Populate);
        assert_eq!(report.frames(), None);
    }
}
