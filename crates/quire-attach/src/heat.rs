//! Which extents are accessed most.
//!
//! The kernel's access monitor is asked where it is there and free: it watches
//! one page of each of some extents for a second, and costs about 0.1 ms for
//! each. Otherwise the accessed marks of whole mappings are used, which are
//! coarse, and for which the kernel walks the page table of the process under
//! its lock. Otherwise nothing is known, and full extents come in order of
//! address.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use quire_core::units::{AddrRange, Bytes, Frame, Slot};
use quire_linux::damon::{self, Session, Timing};
use quire_linux::sysinfo::accesses::{Referenced, clear_referenced, referenced};
use quire_linux::sysinfo::process;

/// How the monitor watches.
const TIMING: Timing = Timing {
    step: Duration::from_millis(200),
    steps: 5,
};
/// How long accesses of whole mappings are gathered.
const GATHER: Duration = Duration::from_secs(1);
/// The time between two measurements.
const APART: Duration = Duration::from_secs(30);
/// Walking the page tables of larger processes takes too long.
const LARGEST_WALK: Bytes = Bytes::mib(4096);
/// How many processes are walked at once.
const MOST_WALKS: usize = 4;

/// How to find out what is accessed most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accesses {
    /// The first of the others that works.
    #[default]
    Auto,
    /// The kernel's access monitor, page by page.
    Damon,
    /// The accessed marks of whole mappings.
    Smaps,
    /// Not at all.
    None,
}

impl Accesses {
    /// All of them.
    pub const ALL: [Accesses; 4] = [
        Accesses::Auto,
        Accesses::Damon,
        Accesses::Smaps,
        Accesses::None,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Accesses::Auto => "auto",
            Accesses::Damon => "damon",
            Accesses::Smaps => "smaps",
            Accesses::None => "none",
        }
    }
}

impl FromStr for Accesses {
    type Err = String;

    fn from_str(text: &str) -> Result<Accesses, String> {
        let found = Accesses::ALL.into_iter().find(|a| a.name() == text);
        found.ok_or_else(|| format!("`{text}` is none of auto, damon, smaps and none"))
    }
}

/// A page that stands for some extents of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The process.
    pub pid: u32,
    /// The frame of the page.
    pub frame: Frame,
    /// The extents.
    pub slots: Vec<Slot>,
}

/// How often extents of a process were found accessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The process.
    pub pid: u32,
    /// The extents.
    pub slots: Slots,
    /// How often.
    pub times: u32,
}

/// Which extents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slots {
    /// These.
    Each(Vec<Slot>),
    /// All in a mapping.
    Within(AddrRange),
}

/// What a measurement gave.
#[derive(Debug, Default)]
pub struct Reading {
    /// What was found.
    pub found: Vec<Found>,
    /// Processor time that a thread of the kernel used for it.
    pub kernel_cpu: Duration,
}

/// The measurements, one at a time.
#[derive(Debug)]
pub struct Meter {
    accesses: Accesses,
    state: State,
    next_at: Duration,
    round: u64,
    last: Accesses,
}

#[derive(Debug)]
enum State {
    Idle,
    Watching {
        session: Session,
        samples: Vec<Sample>,
        until: Duration,
    },
    Gathering {
        pids: Vec<u32>,
        until: Duration,
    },
}

impl Meter {
    /// Measures in the given way.
    #[must_use]
    pub fn new(accesses: Accesses) -> Meter {
        Meter {
            accesses,
            state: State::Idle,
            next_at: Duration::ZERO,
            round: 0,
            last: Accesses::None,
        }
    }

    /// How the last measurement was made.
    #[must_use]
    pub fn last(&self) -> Accesses {
        self.last
    }

    /// Which measurement this is, so that each samples other pages.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Whether there will be measurements.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.accesses != Accesses::None
    }

    /// Whether one may begin now.
    #[must_use]
    pub fn may_start(&self, now: Duration) -> bool {
        self.is_on() && matches!(self.state, State::Idle) && now >= self.next_at
    }

    /// When the one that is under way ends.
    #[must_use]
    pub fn ends_at(&self) -> Option<Duration> {
        match self.state {
            State::Idle => None,
            State::Watching { until, .. } | State::Gathering { until, .. } => Some(until),
        }
    }

    /// Begins to measure. Where nothing works, later ones may.
    pub fn start(&mut self, now: Duration, samples: Vec<Sample>, processes: &[(u32, Bytes)]) {
        self.next_at = now + APART;
        self.round += 1;
        self.last = Accesses::None;
        if matches!(self.accesses, Accesses::Auto | Accesses::Damon) && damon::is_free() {
            self.watch(now, samples);
        }
        if matches!(self.state, State::Idle) && self.accesses != Accesses::Damon {
            self.gather(now, processes);
        }
    }

    fn watch(&mut self, now: Duration, samples: Vec<Sample>) {
        let frames: Vec<Frame> = samples.iter().map(|s| s.frame).collect();
        if frames.is_empty() {
            return;
        }
        // Without the right to, or where somebody else was first, there is
        // another way.
        if let Ok(session) = Session::start(&frames, TIMING) {
            self.last = Accesses::Damon;
            // The end of the second count, less what asking for it takes.
            let until = now + TIMING.total() * 2 - TIMING.step;
            self.state = State::Watching {
                session,
                samples,
                until,
            };
        }
    }

    fn gather(&mut self, now: Duration, processes: &[(u32, Bytes)]) {
        let fit = processes.iter().filter(|(_, size)| *size <= LARGEST_WALK);
        let pids: Vec<u32> = fit
            .take(MOST_WALKS)
            .map(|(pid, _)| *pid)
            .filter(|pid| clear_referenced(*pid).is_ok())
            .collect();
        if !pids.is_empty() {
            self.last = Accesses::Smaps;
            let until = now + GATHER;
            self.state = State::Gathering { pids, until };
        }
    }

    /// What was measured, when it is done.
    pub fn poll(&mut self, now: Duration) -> Option<Reading> {
        if self.ends_at().is_none_or(|until| now < until) {
            return None;
        }
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => None,
            State::Watching {
                session, samples, ..
            } => Some(read_session(&session, samples)),
            State::Gathering { pids, .. } => Some(Reading {
                found: pids.into_iter().flat_map(read_mappings).collect(),
                kernel_cpu: Duration::ZERO,
            }),
        }
    }
}

fn read_session(session: &Session, samples: Vec<Sample>) -> Reading {
    // A monitor that somebody else switched off tells nothing.
    let counts = session.counts().unwrap_or_default();
    let kernel_cpu = session.thread().and_then(process::run_time);
    Reading {
        found: assign(samples, &counts),
        kernel_cpu: kernel_cpu.unwrap_or_default(),
    }
}

/// Gives each sample's count to the extents that it stands for.
fn assign(samples: Vec<Sample>, counts: &BTreeMap<Frame, u32>) -> Vec<Found> {
    let found = samples.into_iter().filter_map(|sample| {
        Some(Found {
            pid: sample.pid,
            times: *counts.get(&sample.frame)?,
            slots: Slots::Each(sample.slots),
        })
    });
    found.collect()
}

fn read_mappings(pid: u32) -> Vec<Found> {
    let all = referenced(pid).unwrap_or_default();
    let found = |mapping: Referenced| Found {
        pid,
        slots: Slots::Within(mapping.range),
        times: warmth(mapping),
    };
    all.into_iter().map(found).collect()
}

/// The accessed part of a mapping, on the scale of the monitor.
fn warmth(mapping: Referenced) -> u32 {
    let steps = u64::from(TIMING.steps);
    let part = mapping.referenced.0 * steps;
    u32::try_from(part.div_ceil(mapping.resident.0.max(1)))
        .map_or(TIMING.steps, |n| n.min(TIMING.steps))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_core::units::VirtAddr;

    #[test]
    fn names_are_read() {
        for accesses in Accesses::ALL {
            assert_eq!(accesses.name().parse(), Ok(accesses));
        }
        assert!("guess".parse::<Accesses>().is_err());
    }

    #[test]
    fn counts_go_to_the_extents_that_a_sample_stands_for() {
        let sample = |frame, slots: &[u64]| Sample {
            pid: 7,
            frame: Frame(frame),
            slots: slots.iter().map(|s| Slot(*s)).collect(),
        };
        let counts = BTreeMap::from([(Frame(3), 5), (Frame(4), 0)]);
        let found = assign(
            vec![sample(3, &[1, 2]), sample(4, &[9]), sample(5, &[8])],
            &counts,
        );
        let seen: Vec<_> = found.iter().map(|f| (f.times, f.slots.clone())).collect();
        let each = |slots: &[u64]| Slots::Each(slots.iter().map(|s| Slot(*s)).collect());
        assert_eq!(seen, [(5, each(&[1, 2])), (0, each(&[9]))]);
    }

    #[test]
    fn mappings_are_as_warm_as_their_accessed_part() {
        let warmth = |resident, referenced| {
            warmth(Referenced {
                range: AddrRange::new(VirtAddr(0), Bytes(1)),
                resident: Bytes(resident),
                referenced: Bytes(referenced),
            })
        };
        assert_eq!(warmth(0, 0), 0);
        assert_eq!(warmth(1000, 0), 0);
        assert_eq!(warmth(1000, 1), 1);
        assert_eq!(warmth(1000, 1000), 5);
    }

    #[test]
    fn without_measurements_nothing_begins() {
        let meter = Meter::new(Accesses::None);
        assert!(!meter.may_start(Duration::MAX) && !meter.is_on());
        assert!(Meter::new(Accesses::Auto).may_start(Duration::ZERO));
    }
}
