//! Two processes of a memory cgroup that compete for its memory. One may be
//! killed for want of it, which is a figure and not a failure.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cgroup::OwnedGroup;
use crate::cli::Role;
use crate::launch::{self, Finished, Process};
use crate::results::Sample;
use crate::service::Setup;
use crate::spec::Workload;
use crate::worker::compete::Sizes;

const LIMIT: Duration = Duration::from_secs(300);

/// What is missing, with the remedy.
pub fn missing() -> Option<String> {
    let error = OwnedGroup::create().err()?;
    Some(format!("{error:#} (run it as root, with memory cgroups)"))
}

/// Competes for a group with some room, and for one in which base pages only
/// just fit.
pub fn run(setup: Setup) -> Result<Sample> {
    let sizes = Sizes::of(setup.quick);
    let mut sample = Sample::default();
    for (limit, prefix) in [(sizes.roomy, ""), (sizes.tight, "tight_")] {
        let one = once(setup, limit)?;
        let figures = one.metrics.into_iter();
        figures.for_each(|(name, value)| sample.put(format!("{prefix}{name}"), value));
        let room = limit >> 20;
        let notes = one.notes.into_iter();
        notes.for_each(|note| sample.note(format!("with {room} MiB, {note}")));
    }
    Ok(sample)
}

/// Starts the sparse process, then the dense one; both run under the variant
/// and in its session.
fn once(setup: Setup, limit: u64) -> Result<Sample> {
    let group = OwnedGroup::create()?;
    group.program().limit(limit)?;
    let command = |role| {
        let group = Some(group.program());
        launch::worker(
            setup.environment,
            group,
            Workload::Compete,
            Some(role),
            setup.quick,
        )
    };
    let mut sparse = Process::start_held(command(Role::Sparse)?)?;
    sparse
        .line(LIMIT, setup.interrupt)
        .context("the sparse process")?;
    let dense = Process::start(command(Role::Dense)?)?.wait(LIMIT, setup.interrupt)?;
    let sparse = sparse.wait(LIMIT, setup.interrupt)?;
    let mut sample = Sample::default();
    let sparse = outcome(sparse, "sparse", &mut sample)?;
    let dense = outcome(dense, "dense", &mut sample)?;
    collect(sparse, dense, &mut sample);
    Ok(sample)
}

/// What a process measured; nothing, and a note, where it was killed.
fn outcome(process: Finished, name: &str, sample: &mut Sample) -> Result<Option<Sample>> {
    use std::os::unix::process::ExitStatusExt;
    if process.status.signal() == Some(libc::SIGKILL) {
        sample.note(format!("the {name} process was killed for want of memory"));
        return Ok(None);
    }
    if let Some(signal) = process.status.signal() {
        bail!("the {name} process ended by signal {signal}");
    }
    let text = process
        .output()
        .with_context(|| format!("the {name} process"))?;
    let own: Sample = serde_json::from_str(&text)
        .with_context(|| format!("reading the sample of the {name} process"))?;
    for note in &own.notes {
        sample.note(format!("the {name} process: {note}"));
    }
    Ok(Some(own))
}

/// Puts the figures of both together.
fn collect(sparse: Option<Sample>, dense: Option<Sample>, sample: &mut Sample) {
    let figure = |of: &Option<Sample>, name: &str| of.as_ref()?.metrics.get(name).copied();
    let intact = [&sparse, &dense].map(|of| figure(of, "intact").unwrap_or(0.0));
    sample.put("survivors", intact.iter().sum());
    for name in ["huge_pct", "fill_ms", "read_ns"] {
        sample.put_some(name, figure(&dense, name));
    }
    sample.put_some("sparse_rss_mib", figure(&sparse, "rss_mib"));
    for (name, of) in [("sparse", &sparse), ("dense", &dense)] {
        let preemptions = figure(of, "quire_preemptions");
        sample.put_some(&format!("{name}_preemptions"), preemptions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(figures: &[(&str, f64)]) -> Option<Sample> {
        let mut sample = Sample::default();
        figures
            .iter()
            .for_each(|(name, value)| sample.put(*name, *value));
        Some(sample)
    }

    #[test]
    fn a_process_that_was_killed_or_lost_its_contents_is_no_survivor() {
        let well = || of(&[("intact", 1.0), ("huge_pct", 95.0), ("rss_mib", 3.0)]);
        let broken = || of(&[("intact", 0.0)]);
        for (sparse, dense, expected) in [
            (well(), well(), 2.0),
            (well(), None, 1.0),
            (broken(), well(), 1.0),
            (None, broken(), 0.0),
        ] {
            let mut sample = Sample::default();
            collect(sparse, dense, &mut sample);
            assert_eq!(sample.metrics["survivors"], expected);
        }
    }
}
