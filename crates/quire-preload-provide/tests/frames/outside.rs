//! Memory with a strategy, as others see it: core dumps, debuggers, and the files and
//! calls by which another process looks at it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use quire_core::units::{AddrRange, BASE_PAGE, Bytes, VirtAddr};
use quire_linux::pagemap;
use quire_linux::remote::Remote;

use crate::harness::held::Held;
use crate::harness::scratch::Scratch;
use crate::harness::setting::{self, Setting};
use crate::harness::{build, process, skip};

const STRATEGIES: [&Setting; 2] = [&setting::COLOUR, &setting::BINHOP];

/// The program `seen`, and where its memory is.
struct Seen {
    held: Held,
    ranges: BTreeMap<String, AddrRange>,
}

impl Seen {
    fn start(setting: &Setting) -> Seen {
        let mut held = Held::launch(setting, "seen", "");
        let mut ranges = BTreeMap::new();
        for _ in 0..3 {
            let line = held.line();
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = |n: usize| VirtAddr(u64::from_str_radix(words[n], 16).expect("an address"));
            let range = AddrRange {
                start: at(1),
                end: at(2),
            };
            ranges.insert(words[0].to_owned(), range);
        }
        held.hear("ready");
        Seen { held, ranges }
    }

    fn pid(&self) -> u32 {
        self.held.child.id()
    }

    fn page(&self, name: &str, n: u64) -> VirtAddr {
        self.ranges[name].start + Bytes(n * BASE_PAGE)
    }

    fn obey(&mut self, line: &str) {
        self.held.tell(line);
        self.held.hear("done");
    }

    /// Pages of a range that are there.
    fn present(&self, name: &str) -> u64 {
        let pagemap = pagemap::open_of(self.pid()).expect("the process is ours");
        let mut present = 0;
        pagemap::frames_of(pagemap.as_fd(), self.ranges[name], |_, entry| {
            assert!(!entry.is_file());
            present += u64::from(entry.is_present());
        })
        .expect("the process is ours");
        present
    }
}

/// What lets a program go on with the kernel's frames.
const STOP: &str = "call (void) quire_frames_stop()";

/// A value mixed as the programs mix it.
fn stamp_word(value: u64) -> u64 {
    value.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The memory in a core file, as far as it is there.
struct Core {
    bytes: Vec<u8>,
    /// Address, size in memory, offset in the file and size there.
    segments: Vec<[u64; 4]>,
}

impl Core {
    fn open(file: &Path) -> Core {
        let bytes = fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        assert_eq!(&bytes[..4], b"\x7fELF");
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let short = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let (table, size, count) = (number(32) as usize, short(54), short(56));
        let headers = (0..count).map(|n| table + n * size);
        let loads = headers.filter(|at| bytes[*at..at + 4] == [1, 0, 0, 0]);
        let segments = loads.map(|at| [16, 40, 8, 32].map(|field| number(at + field)));
        let segments = segments.collect();
        Core { bytes, segments }
    }

    /// A word of memory; what the file leaves out of a segment is zero.
    fn word(&self, at: VirtAddr) -> Option<u64> {
        let holds = |s: &&[u64; 4]| (s[0]..s[0] + s[1]).contains(&at.0);
        let [start, _, offset, stored] = *self.segments.iter().find(holds)?;
        if at.0 - start >= stored {
            return Some(0);
        }
        let from = (offset + at.0 - start) as usize;
        let word = self.bytes.get(from..from + 8)?;
        Some(u64::from_le_bytes(word.try_into().unwrap()))
    }

    /// The memory of `seen` is as it was filled.
    fn check(&self, seen: &Seen, what: &str) {
        for n in 0..256 {
            let word = self.word(seen.page("touched", n));
            assert_eq!(word, Some(stamp_word(100 + n)), "{what}: touched {n}");
        }
        for n in 0..1024 {
            let wanted = if n % 8 == 2 { stamp_word(200 + n) } else { 0 };
            assert_eq!(
                self.word(seen.page("dotted", n)),
                Some(wanted),
                "{what}: dotted {n}"
            );
        }
        for n in 0..512 {
            assert_eq!(
                self.word(seen.page("fresh", n)),
                Some(0),
                "{what}: fresh {n}"
            );
        }
    }
}

/// Where the kernel writes core files as it was told once and for all: into the
/// directory of the process, by this name or one with more to it.
fn core_name() -> Option<String> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").ok()?;
    let name = pattern.trim().split('%').next()?.to_owned();
    (!name.is_empty() && !name.contains(['|', '/'])).then_some(name)
}

fn find_core(directory: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let is_core = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|f| f.to_string_lossy().starts_with(name))
    };
    entries.map(|entry| entry.path()).find(is_core)
}

/// What a debugger prints, and what it complains of.
fn debugger(pid: u32, commands: &[&str]) -> (String, String) {
    let mut gdb = Command::new("gdb");
    gdb.args(["--batch", "-nx", "-p"]).arg(pid.to_string());
    commands.iter().for_each(|command| {
        gdb.args(["-ex", command]);
    });
    let output = gdb.output().expect("gdb is installed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_kernel_dumps_what_is_there() {
    let Some(name) = core_name() else {
        return skip("the kernel hands core dumps to a program or another directory");
    };
    for setting in STRATEGIES {
        let mut seen = Seen::start(setting);
        seen.held.allow_core(256 << 20);
        seen.held.tell("abort");
        let status = seen.held.child.wait().expect("the child is ours");
        assert!(status.to_string().contains("core dumped"), "{status}");
        let core = find_core(seen.held.directory(), &name).expect("it was dumped");
        Core::open(&core).check(&seen, setting.name);
    }
}

/// A debugger reads everything. It cannot wait for frames, so it cannot write where nobody
/// has written before, unless it lets the program go on with the kernel's frames.
#[test]
fn a_debugger_reads_and_writes() {
    if process::find("gdb").is_none() {
        return skip("gdb is not installed");
    }
    for setting in STRATEGIES {
        let mut seen = Seen::start(setting);
        let (said, complaint) = debugger(
            seen.pid(),
            &[
                "x/gx touched + 4096",
                "set var *(long *) (touched + 8) = 7",
                "x/gx touched + 8",
                "x/gx fresh",
                "set var *(long *) (fresh + 8) = 9",
                STOP,
                "x/gx fresh",
                "set var *(long *) (fresh + 8) = 9",
                "x/gx fresh + 8",
            ],
        );
        // Of some processors a debugger knows less than the system: calls go wrong then in any program.
        if complaint.contains("Couldn't write extended state") {
            return skip("this gdb cannot restore the registers of this processor");
        }
        let values: Vec<&str> = said
            .lines()
            .filter_map(|line| line.rsplit_once(":\t"))
            .map(|(_, v)| v)
            .collect();
        let first = format!("{:#018x}", stamp_word(101));
        let (zero, nine) = ("0x0000000000000000", "0x0000000000000009");
        let wanted = [&*first, "0x0000000000000007", zero, zero, nine];
        assert_eq!(values, wanted, "{}: {said}", setting.name);
        assert!(complaint.contains("Cannot access memory"), "{complaint}");
        seen.obey("touch");
        seen.held.end();
    }
}

/// The same for a core file that a debugger writes of a program that goes on.
#[test]
fn a_debugger_dumps_what_is_there() {
    if process::find("gdb").is_none() {
        return skip("gdb is not installed");
    }
    let scratch = Scratch::new(false);
    for setting in STRATEGIES {
        let mut seen = Seen::start(setting);
        let file = scratch.path().join("dumped");
        let dump = format!("generate-core-file {}", file.display());
        let (_, complaint) = debugger(seen.pid(), &[&dump]);
        assert!(!complaint.contains("Failed to read"), "{complaint}");
        Core::open(&file).check(&seen, setting.name);
        assert_eq!(seen.present("touched"), 256, "{}", setting.name);
        seen.obey("touch");
        seen.held.end();
    }
}

/// Another process reads and writes, by calls that wait for missing pages, and by those
/// that do not.
#[test]
fn another_process_reads_and_writes() {
    if !process::is_root() {
        return skip("only root may trace any process");
    }
    for setting in STRATEGIES {
        let mut seen = Seen::start(setting);
        let mut argv = vec![
            OsString::from(build::program("outside")),
            seen.pid().to_string().into(),
        ];
        for name in ["touched", "fresh"] {
            let AddrRange { start, end } = seen.ranges[name];
            argv.extend([start, end].map(|at| format!("{:#x}", at.0).into()));
        }
        let scratch = Scratch::new(false);
        let outcome = process::run(&argv, scratch.path());
        assert_eq!(
            outcome.status, "exit status: 0",
            "{}: {outcome}",
            setting.name
        );
        let said = String::from_utf8_lossy(&outcome.stdout);
        let refused = "peek 0 Success\npoke -1 Input/output error\n";
        assert_eq!(said, refused, "{}", setting.name);
        seen.obey("check");
        seen.obey("touch");
        seen.held.end();
    }
}

/// What the kernel says about the memory is what it says about any other.
#[test]
fn the_kernel_accounts_for_it_as_for_any_other() {
    for setting in STRATEGIES {
        let mut seen = Seen::start(setting);
        assert_eq!(seen.present("touched"), 256, "{}", setting.name);
        assert_eq!(seen.present("dotted"), 128, "{}", setting.name);
        assert_eq!(seen.present("fresh"), 0, "{}", setting.name);
        let remote = Remote::open(seen.pid()).expect("it runs");
        let mut word = [1; 8];
        let read = remote.read(seen.page("fresh", 77), &mut word);
        assert_eq!((read.ok(), word), (Some(8), [0; 8]));
        assert_eq!(seen.present("fresh"), 1, "{}", setting.name);
        let smaps = fs::read_to_string(format!("/proc/{}/smaps", seen.pid()));
        let smaps = smaps.expect("the process is ours");
        let start = format!("{:x}-", seen.ranges["touched"].start.0);
        let (_, rest) = smaps
            .split_once(&start)
            .unwrap_or_else(|| panic!("{smaps}"));
        let header = rest.lines().next().unwrap_or_default();
        assert!(header.contains(" rw-p 00000000 00:00 0"), "{header}");
        let field = |name: &str| {
            let line = rest.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().nth(1))
                .unwrap_or_default()
                .to_owned()
        };
        assert_eq!(field("KernelPageSize:"), "4");
        assert_eq!(field("AnonHugePages:"), "0");
        assert_eq!(field("Rss:"), field("Anonymous:"));
        seen.obey("touch");
        seen.held.end();
    }
}
