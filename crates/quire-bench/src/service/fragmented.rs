//! Free memory in holes of one page: what do programs get, and what does the
//! attempt to get more cost? A helper makes the holes on locked pages, so that
//! one switch of the kernel decides whether compaction may move them.
//!
//! All variants run in the memory of one helper. Before each run the kernel's free
//! blocks are counted. Where there are more than there should be, because
//! compaction was allowed in the run before, or because other programs ended, the
//! helper makes the holes anew.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cli::Role;
use crate::launch::{self, Interrupt, Process};
use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::service::Setup;
use crate::spec::Workload;
use crate::system::Setting;
use crate::variant::Environment;
use crate::worker::holes::{self, Plan};

const LIMIT: Duration = Duration::from_secs(300);
/// Whether compaction moves locked pages.
const COMPACT_LOCKED: &str = "/proc/sys/vm/compact_unevictable_allowed";
/// How eagerly the kernel compacts without being asked.
const PROACTIVE: &str = "/proc/sys/vm/compaction_proactiveness";
/// How much of memory each processor keeps free pages of its own, at most: one part
/// in so many. Such pages count as used, and others cannot have them.
const PER_PROCESSOR: (&str, &str) = ("/proc/sys/vm/percpu_pagelist_high_fraction", "2000");
/// The smallest free blocks that go back to the host of a virtual machine, where it
/// takes them: 4 MiB. Superpages that were in use then stay as warm as base pages.
const TO_HOST: (&str, &str) = (
    "/sys/module/page_reporting/parameters/page_reporting_order",
    "10",
);
/// How often the holes are made anew at most before a run.
const ATTEMPTS: u32 = 3;
/// Free memory in blocks of 2 to 256 pages, at most: what is left free while the
/// holes are made, and where neighbours are free by chance. It is a sixth of the
/// memory in holes.
const TOLERATED_SMALL: u64 = 320 << 20;
/// The same in superpages: others free some all the time.
const TOLERATED_HUGE: u64 = 8 << 20;
/// What must stay available, or other programs need what was taken.
const NEEDED: u64 = 640 << 20;

/// What is missing, with the remedy.
pub fn missing(quick: bool) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may lock so much memory (run it as root)".to_owned());
    }
    if !Path::new(COMPACT_LOCKED).exists() {
        return Some(format!("{COMPACT_LOCKED} is missing: no compaction"));
    }
    Plan::here(quick).err().map(|error| error.to_string())
}

/// Memory with holes, for as long as this lives.
#[derive(Debug)]
pub struct Fragmented {
    helper: Process,
    /// What the helper said of the holes that it made last.
    made: Sample,
    quick: bool,
    _settings: Vec<Setting>,
}

impl Fragmented {
    /// Makes the holes.
    pub fn start(quick: bool, interrupt: &Interrupt) -> Result<Fragmented> {
        let settings = [(COMPACT_LOCKED, "0"), (PROACTIVE, "0"), PER_PROCESSOR];
        let host = Some(TO_HOST).filter(|(path, _)| Path::new(path).exists());
        let settings = settings.into_iter().chain(host);
        let settings = settings.map(|(path, to)| Setting::change(path, to));
        let settings = settings.collect::<Result<Vec<Setting>>>()?;
        let environment = Environment::default();
        let role = Some(Role::Holes);
        let command = launch::worker(&environment, None, Workload::Fragmented, role, quick)?;
        let mut fragmented = Fragmented {
            helper: Process::start_held(command)?,
            made: Sample::default(),
            quick,
            _settings: settings,
        };
        fragmented.read(interrupt)?;
        Ok(fragmented)
    }

    fn read(&mut self, interrupt: &Interrupt) -> Result<()> {
        let line = self.helper.line(LIMIT, interrupt);
        let line = line.context("making holes")?;
        self.made = serde_json::from_str(&line).context("reading what the helper says")?;
        Ok(())
    }

    /// Runs the worker without and with compaction, both from the same state.
    pub fn measure(&mut self, setup: Setup) -> Result<Sample> {
        let mut sample = Sample::default();
        for prefix in ["", "compact_"] {
            self.prepare(setup.interrupt)?;
            let [single, small, huge] = procfs::free_by_size().context("free blocks")?;
            for (name, bytes) in [("single", single), ("small", small), ("huge", huge)] {
                sample.put(format!("{prefix}free_{name}_mib"), bytes as f64 / MIB);
            }
            let compaction = match prefix {
                "" => None,
                _ => Some(Setting::change(COMPACT_LOCKED, "1")?),
            };
            run_worker(setup, prefix, &mut sample)?;
            drop(compaction);
        }
        sample.metrics.append(&mut self.made.metrics.clone());
        Ok(sample)
    }

    /// Makes the holes anew until free memory is in holes, and in nothing else.
    fn prepare(&mut self, interrupt: &Interrupt) -> Result<()> {
        if self.quick {
            return Ok(());
        }
        for attempt in 0..ATTEMPTS {
            let available = procfs::meminfo("MemAvailable").context("MemAvailable")?;
            ensure!(
                available >= NEEDED,
                "only {} MiB of memory are left: other programs need it (end them)",
                available >> 20
            );
            let [_, small, _] = procfs::free_by_size().context("free blocks")?;
            let order = match attempt == 0 && small <= TOLERATED_SMALL {
                true => holes::MORE,
                false => holes::AGAIN,
            };
            self.helper.ask(order)?;
            self.read(interrupt)?;
            let [_, small, huge] = procfs::free_by_size().context("free blocks")?;
            if huge <= TOLERATED_HUGE && small <= TOLERATED_SMALL {
                return Ok(());
            }
        }
        let blocks = procfs::free_by_size().context("free blocks")?;
        let [single, small, huge] = blocks.map(|bytes| bytes >> 20);
        bail!(
            "free memory could not be broken up: {single} MiB in single pages, {small} MiB in more, {huge} MiB in superpages (end other programs)"
        );
    }
}

/// Runs the worker once and notes its figures with a prefix.
fn run_worker(setup: Setup, prefix: &str, sample: &mut Sample) -> Result<()> {
    let command = launch::worker(
        setup.environment,
        None,
        Workload::Fragmented,
        None,
        setup.quick,
    )?;
    let text = Process::start(command)?
        .wait(LIMIT, setup.interrupt)?
        .output()?;
    let own: Sample = serde_json::from_str(&text).context("reading the worker's sample")?;
    for (name, value) in own.metrics {
        let name = name.strip_prefix("quire_").unwrap_or(&name);
        sample.put(format!("{prefix}{name}"), value);
    }
    for note in own.notes {
        if !sample.notes.contains(&note) {
            sample.note(note);
        }
    }
    Ok(())
}
