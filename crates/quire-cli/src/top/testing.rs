//! Processes and looks for the tests of this module.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use quire_core::config::Policy;
use quire_core::stat::{
    Cell, CellState, FrameCounts, Picture, ProcessStat, RegionKind, RegionStat, StatPage,
    StrategyStat, Totals,
};
use quire_core::units::{AddrRange, Bytes, PageCount, SUPERPAGE, VirtAddr};
use quire_linux::sysinfo::{MemInfo, Psi, PsiLine};

use super::app::App;
use super::sample::Sample;
use crate::stat::machine::Machine;
use crate::stat::objects::{Numbers, SharedObject, State};

/// A region of as many extents: a third promoted, a third reserved, the rest
/// empty.
fn region(start: u64, extents: u64) -> RegionStat {
    let cell = |n: u64| match n * 3 / extents {
        0 => Cell::new(CellState::Promoted, PageCount(512)),
        1 => Cell::new(CellState::Reserved, PageCount(256)),
        _ => Cell::default(),
    };
    let range = AddrRange::new(VirtAddr(start), Bytes(extents * SUPERPAGE));
    RegionStat {
        populated_bytes: Bytes(extents * SUPERPAGE / 2),
        reserved_bytes: Bytes(extents * SUPERPAGE / 6),
        superpages: extents / 3,
        promotions: extents / 3,
        picture: Picture::of_extents((0..extents).map(cell).collect()),
        ..RegionStat::untouched(range, RegionKind::Anon, Policy::Reserve)
    }
}

/// A process with two regions, of which the second is larger.
pub fn process(pid: u32, comm: &str) -> ProcessStat {
    let page = Box::new(StatPage::default());
    page.identify(pid, u64::from(pid), comm, Policy::Reserve);
    page.set_regions([region(1 << 30, 6), region(2 << 30, 30)]);
    page.read().expect("the page was identified")
}

/// An object that a process has.
pub fn shared(pid: u32, name: &str) -> SharedObject {
    SharedObject {
        pid,
        object: name.to_owned(),
        server: "unix:/run/q".to_owned(),
        state: State::Open,
        why: None,
        inside: Some(Numbers {
            pages_used: 12,
            pages_to_write: Some(3),
            pages_to_read: 4,
            open: 2,
            faults_read: 20,
            faults_write: 31,
            faults_unlock: 5,
            ..Numbers::default()
        }),
    }
}

/// The same with a strategy for its heap.
pub fn with_strategies(pid: u32, comm: &str) -> ProcessStat {
    ProcessStat {
        strategies: named_strategies(),
        totals: Totals {
            frames_stocked: 512,
            ..Totals::default()
        },
        ..process(pid, comm)
    }
}

/// The strategy of a heap, and none for the rest.
fn named_strategies() -> Vec<StrategyStat> {
    let strategy = |target: &str, strategy: &str, counts| StrategyStat {
        target: target.to_owned(),
        strategy: strategy.to_owned(),
        counts,
        placed: Vec::new(),
    };
    let counts = FrameCounts {
        chosen: PageCount(40),
        other: PageCount(2),
        left: PageCount(0),
    };
    vec![
        strategy("default", "default", FrameCounts::default()),
        strategy("heap", "colour:hashed", counts),
    ]
}

/// A look `second` seconds after the first one.
pub fn sample(second: u64, processes: impl IntoIterator<Item = ProcessStat>) -> Sample {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let line = PsiLine {
        avg10: 1.25,
        ..PsiLine::default()
    };
    Sample {
        at: *START + Duration::from_secs(second),
        processes: processes.into_iter().collect(),
        objects: Vec::new(),
        machine: Machine {
            free_blocks: vec![
                32_640, 10_270, 5405, 1779, 295, 154, 690, 1624, 1887, 5, 4017,
            ],
            pressure: Some(Psi {
                some: line,
                full: PsiLine::default(),
            }),
        },
        memory: Some(MemInfo {
            total: Bytes(23 << 30),
            available: Bytes(18 << 30),
            free: Bytes(17 << 30),
        }),
    }
}

/// What is known after a first look.
pub fn app(processes: impl IntoIterator<Item = ProcessStat>) -> App {
    let mut app = App::new(Duration::from_secs(1));
    app.update(sample(0, processes));
    app
}
