//! `quire remap`: pages that exist get other frames, in a running process.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::thread::sleep;
use std::time::Duration;

use quire_core::control::{DONE, MAX_LINE};
use quire_core::frames::colour::Colours;
use quire_core::frames::mapping::part::Part;
use quire_core::frames::remap::{AnswerError, Ask, LEFT_AT_ONCE, Left, Progress, parse_left};
use quire_core::frames::spec::StrategySpec;
use quire_core::units::{AddrRange, PageCount};
use quire_linux::sysinfo::maps::Reader;
use serde::Serialize;

use crate::args::RemapArgs;
use crate::cache;
use crate::failure::{Failure, Outcome};
use crate::progress::LateBar;
use crate::run::frames::checked;
use crate::session::{Managed, managed_process};
use crate::set;
use crate::table::Table;

/// Exit status where some pages stay where they are.
const SOME_LEFT: u8 = 1;
/// How often the process is asked how far it is, at first and at last.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// What is told in the end.
#[derive(Debug, Default, Serialize)]
struct Report {
    pid: u32,
    strategy: String,
    pages: u64,
    moved: u64,
    kept: u64,
    made_way: u64,
    not_touched: u64,
    left: Vec<LeftReport>,
}

#[derive(Debug, Serialize)]
struct LeftReport {
    start: String,
    end: String,
    pages: u64,
    reason: &'static str,
    means: &'static str,
}

/// An answer that is not understood, as the command fails of it.
fn unclear(error: AnswerError) -> Failure {
    Failure::system(error.to_string())
}

/// Moves the pages, and says what became of them. The exit status tells whether any
/// stay where they are.
pub fn remap(options: &RemapArgs) -> Outcome<u8> {
    let strategy = checked(&options.strategy)?;
    let colours = options
        .colour_bits
        .clone()
        .map_or_else(cache::needed_colours, Ok)?;
    let fits = strategy.check(&colours);
    fits.map_err(|error| Failure::bad_usage(error.to_string()))?;
    let managed = managed_process(options.pid, "remap")?;
    let mut report = Report {
        pid: options.pid,
        strategy: strategy.to_string(),
        ..Report::default()
    };
    for range in ranges(options.pid, &options.part)? {
        move_range(&managed, range, &strategy, &colours, &mut report)?;
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    if options.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        report.write(&mut out)?;
    }
    out.flush()?;
    Ok(if report.left.is_empty() { 0 } else { SOME_LEFT })
}

/// The addresses that are meant.
fn ranges(pid: u32, part: &Part) -> Outcome<Vec<AddrRange>> {
    if let Part::Addresses(range) = part {
        return Ok(vec![*range]);
    }
    let mut ranges = Vec::new();
    let read = Reader::default().of(pid, |mapping, name| {
        let range = part.of(mapping.range, name);
        if !range.is_empty() {
            ranges.push(range);
        }
        ControlFlow::Continue(())
    });
    read.map_err(|error| {
        Failure::bad_usage(format!("process {pid} cannot be looked at: {error}"))
    })?;
    if ranges.is_empty() {
        return Err(Failure::bad_usage(format!(
            "process {pid} has no such mapping: see /proc/{pid}/maps for its names"
        )));
    }
    Ok(ranges)
}

/// Asks for the pages of a range to be moved, and waits until that is done.
fn move_range(
    managed: &Managed,
    range: AddrRange,
    strategy: &StrategySpec,
    colours: &Colours,
    report: &mut Report,
) -> Outcome<()> {
    let ask = Ask::Remap {
        range,
        strategy: strategy.clone(),
        colours: colours.clone(),
    };
    if ask.to_string().len() >= MAX_LINE {
        return Err(Failure::bad_usage(
            "the strategy's name is too long: use a file with a shorter path",
        ));
    }
    let answer = set::ask_line(managed, &ask.to_string())?;
    if answer != DONE {
        let pid = managed.stat.pid;
        return Err(Failure::bad_usage(format!("process {pid}: {answer}")));
    }
    let progress = await_end(managed)?;
    report.add(&progress);
    let mut from = 0;
    while from < progress.left {
        let left =
            parse_left(&set::ask_line(managed, &Ask::Left(from).to_string())?).map_err(unclear)?;
        if left.is_empty() {
            break;
        }
        from += left.len().min(LEFT_AT_ONCE);
        report.left.extend(left.iter().map(LeftReport::from));
    }
    Ok(())
}

/// Asks how far it is until it has ended, and shows that on a terminal.
fn await_end(managed: &Managed) -> Outcome<Progress> {
    let mut pause = FIRST_PAUSE;
    let mut bar = LateBar::new("{bar:40} {pos} of {len} pages {eta}");
    loop {
        let progress: Progress = set::ask_line(managed, &Ask::Progress.to_string())?
            .parse()
            .map_err(unclear)?;
        if progress.ended {
            return Ok(progress);
        }
        bar.at(progress.done.0, progress.of.0);
        sleep(pause);
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

impl From<&Left> for LeftReport {
    fn from(left: &Left) -> LeftReport {
        LeftReport {
            start: format!("{:x}", left.range.start.0),
            end: format!("{:x}", left.range.end.0),
            pages: left.range.len().to_pages().0,
            reason: left.reason.name(),
            means: left.reason.text(),
        }
    }
}

impl Report {
    fn add(&mut self, progress: &Progress) {
        let add = |sum: &mut u64, pages: PageCount| *sum += pages.0;
        add(&mut self.pages, progress.of);
        add(&mut self.moved, progress.moved);
        add(&mut self.kept, progress.kept);
        add(&mut self.made_way, progress.made_way);
        add(&mut self.not_touched, progress.missing);
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let left: u64 = self.left.iter().map(|left| left.pages).sum();
        writeln!(
            out,
            "{}: of {} pages, {} were moved, {} had a right frame before, {} were never written to, {left} stay where they are",
            self.strategy, self.pages, self.moved, self.kept, self.not_touched
        )?;
        if self.made_way > 0 {
            writeln!(out, "{} other pages made way", self.made_way)?;
        }
        if self.left.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        let mut table = Table::new(1, &["ADDRESSES", "PAGES", "REASON"]);
        for left in &self.left {
            let range = format!("{}-{}", left.start, left.end);
            table.row(vec![range, left.pages.to_string(), left.means.to_owned()]);
        }
        table.write(out, 0)
    }
}
