//! What `quire tlb` says: a table for people, or JSON.

use std::io::{self, Write};
use std::time::Duration;

use quire_core::config::Policy;
use quire_linux::sysinfo::signals::Ended;
use quire_tlb::report::{Level, Reduction};
use serde::Serialize;

use super::counters::Misses;
use crate::args::{Pmu, TlbArgs};
use crate::run::program::Program;
use crate::table::Table;

/// Everything that is known about a run that is over.
#[derive(Debug, Serialize)]
pub struct Report {
    version: u32,
    command: Vec<String>,
    /// Nothing where the program ran without quire.
    policy: Option<Policy>,
    exit: Exit,
    wall_s: f64,
    notes: Vec<String>,
    /// What the model says, where it was asked.
    pub model: Option<quire_tlb::Report>,
    /// What the processor counted, or why it did not.
    #[serde(serialize_with = "counted_or_nothing")]
    pub pmu: Result<Misses, String>,
    /// What it counted in a run without quire, where there was one.
    pub pmu_plain: Option<Misses>,
}

#[derive(Debug, Serialize)]
struct Exit {
    code: Option<i32>,
    signal: Option<i32>,
}

fn counted_or_nothing<S: serde::Serializer>(
    pmu: &Result<Misses, String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    pmu.as_ref().ok().serialize(serializer)
}

impl Report {
    /// A report without figures.
    pub fn new(options: &TlbArgs, program: &Program, ended: Ended, wall: Duration) -> Report {
        let is_plain = options.plain && options.pmu != Pmu::Only;
        let mut notes = Vec::new();
        // Base pages need no library: `quire tlb` switches superpages off itself.
        let needs_library = !is_plain && options.policy != Policy::Base;
        if let Some(why) = program.unmanaged.filter(|_| needs_library) {
            notes.push(format!("not managed: {} {why}", program.name));
        }
        let words = options.command.iter();
        Report {
            version: 1,
            command: words.map(|w| w.to_string_lossy().into_owned()).collect(),
            policy: (!is_plain).then_some(options.policy),
            exit: Exit {
                code: ended.code,
                signal: ended.signal,
            },
            wall_s: wall.as_secs_f64(),
            notes,
            model: None,
            pmu: Err(String::new()),
            pmu_plain: None,
        }
    }

    /// The report as JSON.
    pub fn json(&self) -> io::Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }

    /// The report for people.
    pub fn text(&self) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        for note in &self.notes {
            writeln!(out, "quire: {note}")?;
        }
        if let Some(model) = &self.model {
            self.write_model(model, &mut out)?;
        }
        self.write_counts(&mut out)?;
        Ok(out)
    }

    fn mapping(&self) -> String {
        self.policy
            .map_or_else(|| "plain".to_owned(), |policy| policy.to_string())
    }

    fn write_model(&self, model: &quire_tlb::Report, out: &mut Vec<u8>) -> io::Result<()> {
        let mapping = self.mapping();
        if model.windows == 0 {
            return writeln!(
                out,
                "quire tlb: {mapping}: no window: the program ended or slept before one was due; try a smaller --after, --every or --window"
            );
        }
        writeln!(
            out,
            "quire tlb: {mapping}: {} windows, {} instructions; {} of the accesses to data on superpages",
            model.windows,
            model.instructions,
            percent(model.superpage_share),
        )?;
        let real = mapping.to_uppercase();
        let ratio = format!("RATIO {real}");
        let misses = format!("MISSES {real}");
        let header = [
            "TLB",
            "ACCESSES 4K",
            "MISSES 4K",
            "RATIO 4K",
            &misses,
            &ratio,
            "FEWER",
            "95 % INTERVAL",
        ];
        let mut table = Table::new(1, &header);
        for level in &model.levels {
            table.row(row(level));
        }
        table.write(out, 2)?;
        let walks = &model.walks_per_1000;
        writeln!(
            out,
            "page walks per 1000 instructions: {:.2} with 4 KiB pages, {:.2} with {mapping}",
            walks.base, walks.real
        )?;
        let first = &model.first_walks;
        writeln!(
            out,
            "walks to pages that were new to the model, and may be hits in truth: {} and {}",
            first.base, first.real
        )?;
        if model.undecoded > 0 {
            writeln!(out, "{} instructions could not be decoded", model.undecoded)?;
        }
        let assumed = match model.assumed.as_slice() {
            [] => String::new(),
            places => format!(
                " (assumed, the machine does not say: {})",
                places.join(", ")
            ),
        };
        writeln!(out, "modelled TLBs: {}{assumed}", model.tlb)
    }

    fn write_counts(&self, out: &mut Vec<u8>) -> io::Result<()> {
        match (&self.pmu, &self.pmu_plain) {
            (Ok(misses), None) => writeln!(
                out,
                "counted by the processor in the whole run: {}",
                counts(misses)
            ),
            (Ok(misses), Some(plain)) => {
                writeln!(out, "counted by the processor, plain: {}", counts(plain))?;
                let mapping = self.mapping();
                writeln!(
                    out,
                    "counted by the processor, {mapping}: {}",
                    counts(misses)
                )?;
                if plain.data_reads == 0 {
                    return Ok(());
                }
                let fewer = 1.0 - misses.data_reads as f64 / plain.data_reads as f64;
                writeln!(out, "misses of reads of data: {} fewer", percent(fewer))
            }
            (Err(why), _) => writeln!(out, "no counts of misses by the processor: {why}"),
        }
    }
}

fn row(level: &Level) -> Vec<String> {
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), percent);
    let (fewer, interval) = level.reduction_percent.map_or_else(
        || ("-".to_owned(), "-".to_owned()),
        |reduction| fewer(&reduction),
    );
    vec![
        level.name.to_owned(),
        level.accesses.base.to_string(),
        level.misses.base.to_string(),
        ratio(level.miss_ratio.base),
        level.misses.real.to_string(),
        ratio(level.miss_ratio.real),
        fewer,
        interval,
    ]
}

fn fewer(reduction: &Reduction) -> (String, String) {
    let value = format!("{:.2} %", reduction.value);
    let interval = format!("{:.2} to {:.2} %", reduction.ci_low, reduction.ci_high);
    (value, interval)
}

fn counts(misses: &Misses) -> String {
    let other =
        |count: Option<u64>| count.map_or_else(|| "not counted".to_owned(), |n| n.to_string());
    format!(
        "reads of data {}, writes of data {}, code {}",
        misses.data_reads,
        other(misses.data_writes),
        other(misses.code)
    )
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}
