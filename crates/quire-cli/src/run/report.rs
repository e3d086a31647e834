//! What a run comes to: a few lines for people, or JSON.

mod advised;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::time::Duration;

use quire_core::config::{Policy, Way};
use quire_core::stat::{Note, ProcessStat, Totals};
use quire_core::units::Bytes;
use quire_linux::sysinfo::signals::Ended;
use serde::Serialize;

use super::placement::{self, Strategy};
use super::program::Program;
use crate::args::RunArgs;
use crate::session::{Entry, NoSession};

/// Where memory is provided, a process that has asked for less has no page.
const LEAST: Bytes = Bytes::mib(16);

/// Everything that is known about a run that is over.
#[derive(Debug, Serialize)]
pub struct Report {
    version: u32,
    command: Vec<String>,
    policy: Policy,
    way: &'static str,
    exit: Exit,
    wall_s: f64,
    user_s: f64,
    system_s: f64,
    totals: Totals,
    /// What each frame strategy gave, in all processes.
    strategies: Vec<Strategy>,
    notes: Vec<String>,
    processes: Vec<ProcessStat>,
    #[serde(skip)]
    setting: Setting,
    /// Statistics pages of other users, which could not be read.
    #[serde(skip)]
    foreign: usize,
    /// The most that one of the processes had resident, as far as their ends were waited for.
    #[serde(skip)]
    peak: Bytes,
    /// What is said of objects of servers that the program had.
    #[serde(skip)]
    objects: Vec<String>,
}

/// How a program was run.
#[derive(Debug)]
pub struct Setting {
    /// How it got its superpages.
    pub way: Way,
    /// What came of switching transparent huge pages off, where that was the policy.
    pub switched: Option<io::Result<()>>,
    /// Why processes could keep no statistics.
    pub no_session: Option<NoSession>,
}

#[derive(Debug, Serialize)]
struct Exit {
    code: Option<i32>,
    signal: Option<i32>,
}

impl Report {
    /// Sums up a run that ended so, after this time.
    pub fn new(
        options: &RunArgs,
        program: &Program,
        (ended, wall): (Ended, Duration),
        entries: Vec<Entry>,
        setting: Setting,
    ) -> Report {
        let mut notes = Vec::new();
        // What the kernel is told before the program starts holds for every program.
        if let Some(why) = program.unmanaged.filter(|_| setting.switched.is_none()) {
            notes.push(format!("not managed: {} {why}", program.name));
        }
        if let (Some(why), Way::Provide) = (&setting.no_session, setting.way) {
            notes.push(format!("no statistics: {why}"));
        }
        if options.cpu.is_some() && (setting.way == Way::Provide || setting.switched.is_some()) {
            notes.push("--cpu has no effect: nothing is copied here in the background".to_owned());
        }
        let mut processes = Vec::new();
        let mut foreign = 0;
        for entry in entries {
            let is_foreign = entry.is_foreign();
            match entry.stat {
                Ok(stat) => processes.push(stat),
                Err(_) if is_foreign => foreign += 1,
                Err(error) => notes.push(format!("{}: {error}", entry.path.display())),
            }
        }
        let mut totals = Totals::default();
        processes.iter().for_each(|stat| totals.add(&stat.totals));
        notes.extend(remarks(&processes));
        if foreign > 0 {
            notes.push(advised::foreign(foreign));
        }
        Report {
            version: 1,
            command: options
                .command
                .iter()
                .map(|w| w.to_string_lossy().into_owned())
                .collect(),
            policy: options.policy,
            way: match setting.way {
                Way::Advise => "advise",
                Way::Provide => "provide",
            },
            exit: Exit {
                code: ended.code,
                signal: ended.signal,
            },
            wall_s: wall.as_secs_f64(),
            user_s: ended.user.as_secs_f64(),
            system_s: ended.system.as_secs_f64(),
            totals,
            strategies: placement::strategies(&processes),
            notes,
            processes,
            setting,
            foreign,
            peak: ended.peak,
            objects: Vec::new(),
        }
    }

    /// More that a person should know, unless it is said already.
    pub fn note(&mut self, notes: Vec<String>) {
        let new = notes.into_iter().filter(|note| !self.notes.contains(note));
        let new: Vec<String> = new.collect();
        self.notes.extend(new);
    }

    /// The program had objects of servers: what the summary says of them. Where it grew to nothing that
    /// would be advised, it says nothing of that.
    pub fn is_about_objects(&mut self, lines: Vec<String>) {
        self.objects = lines;
    }

    /// The summary: one line, one for each note, and where frames are given by strategy
    /// what has them and what is on superpages.
    pub fn summary(&self) -> String {
        let objects = self.objects.iter();
        let mut text: String = objects.map(|line| format!("quire: {line}\n")).collect();
        let is_silent = self.setting.way == Way::Advise && self.totals.populated_peak_bytes == 0;
        if text.is_empty() || !is_silent || self.setting.switched.is_some() {
            text.push_str(&format!("quire: {}: {}\n", self.policy, self.gist()));
        }
        if let Some(frames) = self.frames() {
            text.push_str(&format!("quire: frames: {frames}\n"));
        }
        for line in placement::lines(&self.processes, &self.strategies) {
            text.push_str(&format!("quire: {line}\n"));
        }
        for note in &self.notes {
            text.push_str(&format!("quire: {note}\n"));
        }
        text
    }

    /// Superpages of what stays the kernel's, and extents of small folios, where
    /// there were any.
    fn others(&self) -> String {
        let t = &self.totals;
        let kinds = [
            (t.file_promotions, "files, shared memory and stacks"),
            (t.text_superpages, "text"),
        ];
        let made = kinds.iter().filter(|(made, _)| *made > 0);
        let mut text: String = made
            .map(|(made, of)| format!("; {} of {of}", count(*made, "superpage")))
            .collect();
        if t.small_reservations > 0 {
            let (given, grown) = (t.small_reservations, t.small_promotions);
            text.push_str(&format!(
                "; {} of small folios, of which {grown} grew into superpages",
                count(given, "extent")
            ));
        }
        text
    }

    /// What became of the frames that were to be given by strategy.
    fn frames(&self) -> Option<String> {
        let t = &self.totals;
        let (chosen, other, left) = (t.frames_chosen, t.frames_other, t.frames_left);
        (chosen + other + left > 0).then(|| {
            let pages = count(chosen, "page");
            let reports = count(t.frame_faults, "report");
            format!(
                "{pages} in frames that their strategy chose, {other} in any, {left} left to the kernel; {reports}"
            )
        })
    }

    fn gist(&self) -> String {
        match self.setting.way {
            Way::Advise => advised::gist(self),
            Way::Provide => self.provided(),
        }
    }

    /// What became of memory that Quire provides.
    fn provided(&self) -> String {
        let t = &self.totals;
        let others = self.others();
        if !others.is_empty() && t.populated_peak_bytes == 0 {
            return format!("nothing private was managed{others}");
        }
        if t.populated_peak_bytes == 0 && t.superpages_peak == 0 && t.reservations == 0 {
            if self.frames().is_some() {
                return "nothing on superpages, frames by strategy".to_owned();
            }
            if self.policy == Policy::Base {
                return "base pages only, nothing was managed".to_owned();
            }
            if !self.notes.is_empty() {
                return "nothing was managed".to_owned();
            }
            return self.nothing_said();
        }
        format!(
            "{}{} at the peak, {} populated, {} reserved; {}, {}, {}, {} failed{others}; pager {} CPU, calls {}; {}",
            count(t.superpages_peak, "superpage"),
            in_gigapages(t.gigapages_peak),
            Bytes(t.populated_peak_bytes),
            Bytes(t.reserved_peak_bytes),
            count(t.promotions, "promotion"),
            count(t.demotions, "demotion"),
            count(t.preemptions, "preemption"),
            t.failed_reservations,
            time(t.pager_cpu_ns),
            time(t.call_time_ns),
            processes(self.processes.len()),
        )
    }

    /// Where no process has a page, none has asked for much; or it could not make one, such as one
    /// that has changed its user, for the directory is the first one's alone. Where one has a page,
    /// all that it uses is memory that Quire leaves to the kernel.
    fn nothing_said(&self) -> String {
        let program = self.command.first().map_or("the program", String::as_str);
        if self.peak < LEAST {
            return format!("nothing to manage ({program} used little memory)");
        }
        if self.processes.is_empty() {
            return format!(
                "nothing was managed, as far as is known: no process said that it had asked for {LEAST}, \
                 and one had {} resident (one that changed its user or its root directory, or filters its system calls, cannot say so)",
                self.peak
            );
        }
        format!(
            "nothing was managed: {program} had {} resident, and all of it is left to the kernel (shared \
             memory, files, and what the program asks no superpages for)",
            self.peak
        )
    }

    /// Writes the report as JSON.
    pub fn write_json(&self, file: File) -> io::Result<()> {
        let mut out = BufWriter::new(file);
        serde_json::to_writer_pretty(&mut out, self)?;
        out.write_all(b"\n")?;
        out.flush()
    }
}

/// How many pages of 1 GiB are among the superpages, where there were any.
fn in_gigapages(pages: u64) -> String {
    match pages {
        0 => String::new(),
        pages => format!(" ({} of 1 GiB)", count(pages, "page")),
    }
}

/// Each note once, in the words of the first process that has it.
fn remarks(processes: &[ProcessStat]) -> impl Iterator<Item = String> {
    Note::ALL.into_iter().filter_map(|note| {
        let mut noted = processes.iter().filter(|stat| stat.notes.contains(&note));
        noted.next().map(|stat| stat.remark(note))
    })
}

/// So many things, in words.
pub fn count(n: u64, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

fn processes(n: usize) -> String {
    match n {
        1 => "1 process".to_owned(),
        n => format!("{n} processes"),
    }
}

fn time(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        10_000_000..10_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}
