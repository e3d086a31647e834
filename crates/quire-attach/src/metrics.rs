//! What is counted, for the report and for Prometheus.

use std::ops::AddAssign;

use quire_core::exposition::{Exposition, Kind};
use quire_core::units::Bytes;
use serde::Serialize;

/// What was done to a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Looks at its page table.
    pub looks: u64,
    /// Extents that became superpages.
    pub promoted: u64,
    /// Superpages that were given up.
    pub demoted: u64,
    /// Promotions refused because pages were in use.
    pub refused_busy: u64,
    /// Promotions refused because the mapping may not have superpages, or was
    /// gone.
    pub refused_mapping: u64,
    /// Promotions not tried because the memory is shared since a fork.
    pub refused_shared: u64,
    /// Promotions that failed for want of a free block or of room in the
    /// control group.
    pub no_block: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.looks += other.looks;
        self.promoted += other.promoted;
        self.demoted += other.demoted;
        self.refused_busy += other.refused_busy;
        self.refused_mapping += other.refused_mapping;
        self.refused_shared += other.refused_shared;
        self.no_block += other.no_block;
    }
}

/// A process that is, or was, attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessSnapshot {
    /// Its number.
    pub pid: u32,
    /// Its command name.
    pub program: String,
    /// What it has in superpages, by the last look.
    pub superpages: Bytes,
    /// Extents that wait for promotion.
    pub waiting: u64,
    /// What was done.
    #[serde(flatten)]
    pub counts: Counts,
}

/// The state of everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// The processes that are attached to.
    pub processes: Vec<ProcessSnapshot>,
    /// The processes that ended last.
    pub ended: Vec<ProcessSnapshot>,
    /// What was done to all processes, also those that are gone.
    pub total: Counts,
    /// Processes that were attached to and are gone.
    pub exits: u64,
    /// Processes that may not be attached to.
    pub denied: u64,
    /// Processor time of this process and of the kernel's monitor for it,
    /// seconds.
    pub cpu_seconds: f64,
    /// Time since the start, seconds.
    pub elapsed_seconds: f64,
    /// How accesses were measured last.
    pub accesses: &'static str,
    /// Whether memory is short, so that nothing is promoted.
    pub memory_short: bool,
    /// Configurations that were read anew.
    pub reloads: u64,
    /// Configurations that could not be used.
    pub failed_reloads: u64,
}

/// The text that Prometheus fetches.
#[must_use]
pub fn exposition(snapshot: &Snapshot) -> String {
    let mut text = Exposition::new("quire_attach_");
    let total = &snapshot.total;
    text.single(
        "processes",
        Kind::Gauge,
        "Processes that are attached to.",
        snapshot.processes.len(),
    );
    text.single(
        "exits_total",
        Kind::Counter,
        "Processes that were attached to and are gone.",
        snapshot.exits,
    );
    text.single(
        "denied",
        Kind::Gauge,
        "Processes that may not be attached to.",
        snapshot.denied,
    );
    text.single(
        "looks_total",
        Kind::Counter,
        "Looks at page tables.",
        total.looks,
    );
    text.single(
        "promotions_total",
        Kind::Counter,
        "Extents that became superpages.",
        total.promoted,
    );
    text.single(
        "demotions_total",
        Kind::Counter,
        "Superpages that were given up.",
        total.demoted,
    );
    let help = "Promotions that were refused.";
    let mut refusals = text.family("refusals_total", Kind::Counter, help);
    for (reason, count) in [
        ("busy", total.refused_busy),
        ("mapping", total.refused_mapping),
        ("shared", total.refused_shared),
        ("no_block", total.no_block),
    ] {
        refusals.sample(&[("reason", reason)], count);
    }
    text.single(
        "cpu_seconds_total",
        Kind::Counter,
        "Processor time used.",
        snapshot.cpu_seconds,
    );
    text.single(
        "memory_short",
        Kind::Gauge,
        "1 while memory is short.",
        u8::from(snapshot.memory_short),
    );
    let help = "How accesses were measured last.";
    text.family("accesses_source", Kind::Gauge, help)
        .sample(&[("source", snapshot.accesses)], 1);
    let mut reloads = text.family("reloads_total", Kind::Counter, "Configurations read anew.");
    reloads.sample(&[("result", "ok")], snapshot.reloads);
    reloads.sample(&[("result", "failed")], snapshot.failed_reloads);
    type Value = fn(&ProcessSnapshot) -> u64;
    let by_process: [(&str, Kind, &str, Value); 4] = [
        (
            "superpage_bytes",
            Kind::Gauge,
            "What a process has in superpages.",
            |p| p.superpages.0,
        ),
        (
            "waiting_extents",
            Kind::Gauge,
            "Extents that wait for promotion.",
            |p| p.waiting,
        ),
        (
            "process_promotions_total",
            Kind::Counter,
            "Extents of a process that became superpages.",
            |p| p.counts.promoted,
        ),
        (
            "process_demotions_total",
            Kind::Counter,
            "Superpages of a process that were given up.",
            |p| p.counts.demoted,
        ),
    ];
    for (name, kind, help, value) in by_process {
        let mut family = text.family(name, kind, help);
        for process in &snapshot.processes {
            let pid = process.pid.to_string();
            let labels = [("pid", pid.as_str()), ("program", process.program.as_str())];
            family.sample(&labels, value(process));
        }
    }
    text.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_well_formed() {
        let snapshot = Snapshot {
            processes: vec![ProcessSnapshot {
                pid: 42,
                program: "odd \"name\"\\".to_owned(),
                superpages: Bytes::mib(4),
                waiting: 3,
                counts: Counts {
                    promoted: 2,
                    ..Counts::default()
                },
            }],
            total: Counts {
                promoted: 9,
                no_block: 1,
                ..Counts::default()
            },
            cpu_seconds: 0.25,
            accesses: "damon",
            ..Snapshot::default()
        };
        let text = exposition(&snapshot);
        for line in [
            "quire_attach_processes 1",
            "quire_attach_promotions_total 9",
            "quire_attach_refusals_total{reason=\"no_block\"} 1",
            "quire_attach_cpu_seconds_total 0.25",
            "quire_attach_accesses_source{source=\"damon\"} 1",
            "quire_attach_superpage_bytes{pid=\"42\",program=\"odd \\\"name\\\"\\\\\"} 4194304",
            "quire_attach_waiting_extents{pid=\"42\",program=\"odd \\\"name\\\"\\\\\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{text} lacks {line}");
        }
        // Every sample belongs to the family announced last, each once.
        let mut families = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let name = rest.split(' ').next().unwrap().to_owned();
                assert!(!families.contains(&name), "{name} twice");
                families.push(name);
            } else if !line.starts_with('#') {
                let name = line.split([' ', '{']).next().unwrap();
                assert_eq!(families.last().map(String::as_str), Some(name));
            }
        }
        assert!(text.ends_with('\n'));
    }
}
