//! Free memory in holes of one page: what do programs get, and what does the
//! attempt to get more cost? A helper makes the holes on locked pages, so that
//! one switch of the kernel decides whether compaction may move them.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::cli::Role;
use crate::launch::{self, Process};
use crate::procfs;
use crate::results::Sample;
use crate::service::Setup;
use crate::spec::Workload;
use crate::system::Setting;
use crate::variant::Environment;
use crate::worker::holes::Plan;

const LIMIT: Duration = Duration::from_secs(300);
/// Whether compaction moves locked pages.
const COMPACT_LOCKED: &str = "/proc/sys/vm/compact_unevictable_allowed";

/// What is missing, with the remedy.
pub fn missing(quick: bool) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may lock so much memory (run it as root)".to_owned());
    }
    if !std::path::Path::new(COMPACT_LOCKED).exists() {
        return Some(format!("{COMPACT_LOCKED} is missing: no compaction"));
    }
    let available = procfs::meminfo("MemAvailable").unwrap_or(0);
    match Plan::of(available, quick) {
        Some(_) => None,
        None => Some(format!(
            "{} MiB of memory are available, too little for holes (end other programs)",
            available >> 20
        )),
    }
}

/// Makes the holes, then runs the worker without and with compaction.
pub fn run(setup: Setup) -> Result<Sample> {
    let pinned = Setting::change(COMPACT_LOCKED, "0")?;
    let (workload, interrupt) = (Workload::Fragmented, setup.interrupt);
    let helper = Environment::default();
    let role = Some(Role::Holes);
    let command = launch::worker(&helper, None, workload, role, setup.quick)?;
    let mut helper = Process::start_held(command)?;
    let made = helper.line(LIMIT, interrupt).context("making holes")?;
    let mut sample: Sample = serde_json::from_str(&made)?;
    if let Some(free) = procfs::free_superpages() {
        sample.put("free_blocks", free as f64);
    }
    phase(setup, "", &mut sample)?;
    drop(pinned);
    phase(setup, "compact_", &mut sample)?;
    helper.wait(LIMIT, interrupt)?.output()?;
    Ok(sample)
}

/// Runs the worker once and notes its figures with a prefix.
fn phase(setup: Setup, prefix: &str, sample: &mut Sample) -> Result<()> {
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
