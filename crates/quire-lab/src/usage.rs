//! What is measured besides: what the kernel says of an execution when it has ended, and
//! the processor's own counters, where there are any.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use quire_linux::execution::Ended;
use quire_linux::pmu::{Counter, Event};

use crate::run::Metric;

/// How long the whole run took, in seconds, of a program that reports measurements of
/// its own.
pub const WALL_TIME: &str = "wall_time";
/// How long the processor was in the program, in seconds.
pub const USER_TIME: &str = "user_time";
/// How long the processor was in the kernel for the program, in seconds.
pub const SYSTEM_TIME: &str = "system_time";
/// What the kernel says, by name and unit.
const USED: [(&str, &str); 7] = [
    (USER_TIME, "s"),
    (SYSTEM_TIME, "s"),
    ("minor_faults", ""),
    ("major_faults", ""),
    ("peak_memory", "bytes"),
    ("voluntary_switches", ""),
    ("involuntary_switches", ""),
];
/// What the processor counts in user mode, by name.
const COUNTED: [(&str, Event); 6] = [
    ("cycles", Event::Cycles),
    ("instructions", Event::Instructions),
    ("cache_misses", Event::CacheMisses),
    ("dtlb_read_misses", Event::DataReadMisses),
    ("dtlb_write_misses", Event::DataWriteMisses),
    ("itlb_misses", Event::CodeMisses),
];
/// How long after the end of a program its counts may come.
const LATE: Duration = Duration::from_millis(10);

/// What these metrics are, for the header of results.
#[must_use]
pub fn metrics() -> BTreeMap<String, Metric> {
    let counted = COUNTED.iter().map(|(name, _)| (*name, ""));
    let all = USED.into_iter().chain(counted).chain([(WALL_TIME, "s")]);
    let metric = |unit: &str| Metric {
        unit: unit.into(),
        ..Metric::default()
    };
    all.map(|(name, unit)| (name.to_owned(), metric(unit)))
        .collect()
}

/// The values of an execution that has ended.
#[must_use]
pub fn values(ended: &Ended) -> BTreeMap<String, Vec<f64>> {
    let values = [
        ended.user.as_secs_f64(),
        ended.system.as_secs_f64(),
        ended.minor_faults as f64,
        ended.major_faults as f64,
        ended.peak.0 as f64,
        ended.voluntary_switches as f64,
        ended.involuntary_switches as f64,
    ];
    let named = USED.iter().zip(values);
    named
        .map(|((name, _), value)| ((*name).to_owned(), vec![value]))
        .collect()
}

/// The processor's counters for the next program that this thread starts.
#[derive(Debug, Default)]
pub struct Counters(Vec<(&'static str, Counter)>);

impl Counters {
    /// Those that this machine has and allows.
    #[must_use]
    pub fn open() -> Counters {
        let open = |(name, event): &(&'static str, Event)| {
            let counter = Counter::of_children(*event).ok()?;
            Some((*name, counter))
        };
        Counters(COUNTED.iter().filter_map(open).collect())
    }

    /// What they counted, when the program is over.
    #[must_use]
    pub fn read(&self) -> BTreeMap<String, Vec<f64>> {
        if !self.0.is_empty() {
            std::thread::sleep(LATE);
        }
        let read = |(name, counter): &(&'static str, Counter)| {
            let count = counter.read().ok()?;
            Some(((*name).to_owned(), vec![count as f64]))
        };
        self.0.iter().filter_map(read).collect()
    }
}

/// Which counters there are, to be shown: their names, or why there are none.
#[must_use]
pub fn available() -> String {
    let open = |(name, event): &(&'static str, Event)| {
        let opened = Counter::of_children(*event);
        opened.map(|_| *name)
    };
    let (mut names, mut why) = (Vec::new(), None);
    for opened in COUNTED.iter().map(open) {
        match opened {
            Ok(name) => names.push(name),
            Err(error) => why = Some(error),
        }
    }
    match (names.is_empty(), why) {
        (false, _) => names.join(", "),
        (true, why) => format!("none: {}", why.map_or_else(String::new, |e| refusal(&e))),
    }
}

fn refusal(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "not allowed; set kernel.perf_event_paranoid to 2 or less".into()
        }
        io::ErrorKind::NotFound | io::ErrorKind::Unsupported => {
            "this machine has none, as many virtual machines".into()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn every_value_has_a_metric() {
        let counters = Counters::open();
        let mut child = Command::new("true").spawn().unwrap();
        let ended = quire_linux::execution::wait(child.id()).unwrap();
        assert!(child.wait().is_err(), "it was waited for");
        let known = metrics();
        let all = values(&ended).into_iter().chain(counters.read());
        for (name, values) in all {
            assert!(known.contains_key(&name), "{name}");
            assert_eq!(values.len(), 1);
        }
        assert!(values(&ended)["minor_faults"][0] > 10.0);
        assert_eq!(counters.0.is_empty(), available().starts_with("none"));
    }
}
