//! No frame is mapped twice or lost, in any of the processes.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use quire_core::units::{AddrRange, Frame, VirtAddr};
use quire_linux::pagemap;

use crate::harness::cgroup::MemoryCgroup;
use crate::harness::held::Held;
use crate::harness::scratch::Scratch;
use crate::harness::setting::{self, Setting};
use crate::harness::{build, process, skip};

/// What each process fills, in MiB.
const FILLED: u64 = 16;

const STRATEGIES: [&Setting; 4] = [
    &setting::COLOUR,
    &setting::COLOUR_HASHED,
    &setting::BINHOP,
    &setting::MODULO,
];

/// The private memory of a process, and what else has no file.
fn private_ranges(pid: u32) -> Vec<AddrRange> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process is ours");
    // The kernel's own pages have no entries.
    let is_private = |line: &&str| line.contains("p 00000000 00:00 0") && !line.contains("[v");
    let private = maps.lines().filter(is_private);
    let range = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let (end, _) = rest.split_once(' ')?;
        let at = |hex| u64::from_str_radix(hex, 16).ok().map(VirtAddr);
        Some(AddrRange {
            start: at(start)?,
            end: at(end)?,
        })
    };
    private.filter_map(range).collect()
}

/// Pages of the process in these ranges, with their frames.
fn frames_in(pid: u32, ranges: &[AddrRange]) -> Vec<(VirtAddr, Frame)> {
    let pagemap = pagemap::open_of(pid).expect("the process is ours");
    let mut frames = Vec::new();
    for range in ranges {
        let read = pagemap::frames_of(pagemap.as_fd(), *range, |at, entry| {
            let frame = entry.frame().filter(|_| !entry.is_file());
            frames.extend(frame.map(|frame| (at, frame)));
        });
        read.unwrap_or_else(|e| panic!("process {pid}, {range:?}: {e}"));
    }
    frames
}

/// Whether a frame is the kernel's page of zeros, which everybody may map.
fn is_zeros(flags: &File, frame: Frame) -> bool {
    const ZERO_PAGE: u64 = 1 << 24;
    let mut entry = [0; 8];
    let read = flags.read_exact_at(&mut entry, frame.0 * 8);
    read.is_ok() && u64::from_le_bytes(entry) & ZERO_PAGE != 0
}

/// Processes of all strategies, two of each: each frame has one place.
#[test]
fn each_frame_is_mapped_once() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let flags = File::open("/proc/kpageflags").expect("root may see the kinds of pages");
    let start = |setting| Held::start(setting, "fill", &FILLED.to_string());
    let held: Vec<Held> = STRATEGIES
        .iter()
        .chain(&STRATEGIES)
        .copied()
        .map(start)
        .collect();
    let mut places: HashMap<Frame, (u32, VirtAddr)> = HashMap::new();
    for pid in held.iter().map(|held| held.child.id()) {
        let mut count = 0;
        for (at, frame) in frames_in(pid, &private_ranges(pid)) {
            if is_zeros(&flags, frame) {
                continue;
            }
            count += 1;
            let Some(before) = places.insert(frame, (pid, at)) else {
                continue;
            };
            // The kernel may have moved pages since the other one was read.
            let page = AddrRange::new(before.1, quire_core::units::Bytes(4096));
            let still = frames_in(before.0, &[page]).contains(&(before.1, frame));
            assert!(!still, "{frame:?}: at {before:?} and {:?}", (pid, at));
        }
        assert!(count >= FILLED << 8, "{count} pages");
    }
    held.into_iter().for_each(Held::end);
}

/// Neither a descriptor in any thread's table, nor a mapping that is registered.
#[test]
fn what_asks_for_nothing_has_no_userfaultfd() {
    let served = |setting| {
        let held = Held::start(setting, "fill", "8");
        let process = format!("/proc/{}", held.child.id());
        let smaps = fs::read_to_string(format!("{process}/smaps")).expect("the process is ours");
        let flags = smaps.lines().filter(|line| line.starts_with("VmFlags:"));
        let registered = flags.filter(|line| line.contains(" um")).count();
        let tasks = fs::read_dir(format!("{process}/task")).expect("the process is ours");
        let tables = tasks
            .flatten()
            .flat_map(|task| fs::read_dir(task.path().join("fd")));
        let open = tables.flatten().flatten().filter(|fd| {
            let file = fs::read_link(fd.path()).unwrap_or_default();
            file.to_string_lossy().contains("userfaultfd")
        });
        let open = open.count();
        held.end();
        (registered > 0, open > 0)
    };
    assert_eq!(served(&setting::BASE), (false, false));
    assert_eq!(served(&setting::COLOUR), (true, true));
}

fn start_in(setting: &Setting, cgroup: &MemoryCgroup, scratch: &Scratch) -> Child {
    let argv = [build::program("fresh").into(), FILLED.to_string().into()];
    let command = setting.command(&argv, &setting.libraries(), Some(cgroup));
    process::command(&command, scratch.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("the program was built")
}

/// What processes had is the kernel's again after they end, also when they are killed.
#[test]
fn all_memory_comes_back_at_the_end() {
    let scratch = Scratch::new(false);
    let cgroup = match MemoryCgroup::new(1 << 30) {
        Ok(cgroup) => cgroup,
        Err(reason) => return skip(&reason),
    };
    let mut killed: Vec<Child> = Vec::new();
    for setting in STRATEGIES {
        killed.push(start_in(setting, &cgroup, &scratch));
        let mut child = start_in(setting, &cgroup, &scratch);
        assert!(child.wait().expect("the child is ours").success());
    }
    for mut child in killed {
        let _ = child.kill();
        child.wait().expect("the child is ours");
    }
    let end = Instant::now() + Duration::from_secs(5);
    while cgroup.anonymous() > 0 {
        let left = cgroup.anonymous() >> 10;
        assert!(Instant::now() < end, "{left} KiB are left");
        std::thread::sleep(Duration::from_millis(20));
    }
}
