//! The C interface, `quire.h`: a program that is linked with the library asks for frames,
//! and the kernel's page tables show that it got what it asked for.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use quire_core::frames::colour::Colours;
use quire_core::frames::record::Record;
use quire_core::units::{AddrRange, Frame, VirtAddr};
use quire_linux::pagemap;

use crate::harness::moved::unless_moved;
use crate::harness::scratch::Scratch;
use crate::harness::setting::{self, Setting};
use crate::harness::{build, process, skip};

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// `asks.c`.
fn program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/capi/asks.c");
        compile("asks", &source)
    });
    &PROGRAM
}

/// Links a program with the library that is tested.
fn compile(name: &str, source: &Path) -> PathBuf {
    let name = format!("{name}.{}", std::process::id());
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let libraries = build::library().parent().expect("a file has a directory");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    let how = [
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-g",
        "-pthread",
    ];
    let status = Command::new(compiler)
        .args(how)
        .arg("-I")
        .arg(include())
        .arg("-o")
        .args([&out, source])
        .arg("-L")
        .arg(libraries)
        .arg("-lquire_provide")
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .status()
        .expect("the compiler can be run");
    assert!(status.success(), "{} does not compile", source.display());
    out
}

/// The program while it waits, and what it said.
struct Asking {
    child: Child,
    /// The process, its strategy and the range.
    said: Vec<(u32, String, AddrRange)>,
    /// What `quire_remap` left.
    left: Vec<AddrRange>,
}

impl Asking {
    /// Starts it under a setting, in a directory.
    fn start(setting: &Setting, before: &[&str], arguments: &[&str], directory: &Path) -> Asking {
        let mut argv: Vec<OsString> = before.iter().map(OsString::from).collect();
        argv.push(program().into());
        argv.extend(arguments.iter().map(OsString::from));
        let command = setting.command(&argv, &setting.libraries(), None);
        Asking::hear(&command, directory)
    }

    fn hear(command: &[OsString], directory: &Path) -> Asking {
        let mut child = process::command(command, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program was built");
        let output = child.stdout.take().expect("stdout is a pipe");
        let (mut said, mut left) = (Vec::new(), Vec::new());
        let mut pids = BTreeMap::from([("parent", child.id())]);
        let mut waiting = 0;
        for line in BufReader::new(output).lines() {
            let line = line.expect("the pipe can be read");
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["self", pid] => drop(pids.insert("parent", pid.parse().expect("a number"))),
                ["pid", pid] => drop(pids.insert("child", pid.parse().expect("a number"))),
                ["done"] => waiting += 1,
                ["left", start, end] => left.push(range(start, end)),
                [who, what, start, end] => {
                    said.push((who.to_owned(), what.to_owned(), range(start, end)));
                }
                _ => panic!("{line}"),
            }
            if waiting == pids.len() {
                break;
            }
        }
        let said = said.into_iter();
        let said = said.map(|(who, what, range)| (pids[&*who], what, range));
        Asking {
            child,
            said: said.collect(),
            left,
        }
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().expect("the child is ours");
        assert!(status.success(), "{status}");
    }
}

fn range(start: &str, end: &str) -> AddrRange {
    let at = |hex| VirtAddr(u64::from_str_radix(hex, 16).expect("an address"));
    AddrRange {
        start: at(start),
        end: at(end),
    }
}

fn frames(pid: u32, range: AddrRange) -> Vec<(VirtAddr, Frame)> {
    let pagemap = pagemap::open_of(pid).expect("the process is ours");
    let mut frames = Vec::new();
    pagemap::frames_of(pagemap.as_fd(), range, |at, entry| {
        frames.push((at, entry.frame().expect("every page is there")));
    })
    .expect("the process is ours");
    frames
}

fn colours() -> Colours {
    "12,13,14,15".parse().expect("the colours of most caches")
}

fn colour(frame: Frame) -> u64 {
    u64::from(colours().of(frame).0)
}

/// The pages of a range that do not have the colours that a strategy promises.
fn wrong(pid: u32, strategy: &str, range: AddrRange) -> usize {
    let frames = frames(pid, range);
    if strategy == "binhop" {
        let next = |pair: &&[(VirtAddr, Frame)]| colour(pair[1].1) != (colour(pair[0].1) + 1) % 16;
        return frames.windows(2).filter(next).count();
    }
    let list: Vec<u64> = match strategy.strip_prefix("modulo:") {
        None => (0..16).collect(),
        Some(list) => {
            let (first, last) = list.split_once('-').unwrap_or((list, list));
            let number = |text: &str| text.parse::<u64>().expect("a colour");
            (number(first)..=number(last)).collect()
        }
    };
    let promised = |at: VirtAddr| list[(at.0 / 4096) as usize % list.len()];
    let is_wrong = |(at, frame): &&(VirtAddr, Frame)| colour(*frame) != promised(*at);
    frames.iter().filter(is_wrong).count()
}

/// All that the program says has the frames that it asked for.
fn check_kinds(command: &[OsString]) {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    unless_moved(|| {
        let scratch = Scratch::new(false);
        let asking = Asking::hear(command, scratch.path());
        assert_eq!(asking.said.len(), 12);
        let said = asking.said.iter();
        let found = said.map(|(pid, strategy, range)| wrong(*pid, strategy, *range));
        let found: Vec<usize> = found.collect();
        let looked = match found.iter().all(|wrong| *wrong == 0) {
            true => Ok(()),
            false => Err(format!("{found:?} of {:x?}", asking.said)),
        };
        asking.end();
        looked
    });
}

fn linked(setting: &Setting, what: &str) -> Vec<OsString> {
    setting.command(&[program().into(), what.into()], &setting.libraries(), None)
}

/// Linked with the library, and started as any other program is.
#[test]
fn a_linked_program_gets_the_frames_that_it_asks_for() {
    check_kinds(&linked(&setting::PLAIN, "kinds"));
}

/// Superpages are for what has no strategy.
#[test]
fn what_is_asked_for_goes_before_superpages() {
    check_kinds(&linked(&setting::RESERVE, "kinds"));
    check_kinds(&linked(&setting::EAGER, "kinds"));
}

/// The user chose for all memory, and the program for some of it.
#[test]
fn what_is_asked_for_goes_before_what_the_user_chose() {
    check_kinds(&linked(&setting::COLOUR, "kinds"));
    check_kinds(&linked(&setting::KERNEL_FRAMES, "kinds"));
}

#[test]
fn a_program_asks_under_quire_run() {
    let mut library = OsString::from("QUIRE_JEMALLOC_LIB=");
    library.push(build::jemalloc());
    let run = [
        "run",
        "--quiet",
        "--frames",
        "binhop",
        "--colour-bits",
        "12,13,14,15",
        "--",
    ];
    let mut argv = vec!["env".into(), library, build::command().into()];
    argv.extend(run.map(OsString::from));
    argv.extend([program().into(), "kinds".into()]);
    check_kinds(&argv);
}

fn record(directory: &Path) -> Record {
    let asking = Asking::start(
        &setting::BASE,
        &["setarch", "-R"],
        &["record", "frames.csv"],
        directory,
    );
    let (pid, _, range) = asking.said[0].clone();
    let text = fs::read_to_string(directory.join("frames.csv")).expect("it was written");
    let record: Record = text.parse().expect("a recorded mapping");
    for (at, frame) in frames(pid, range) {
        assert_eq!(record.frame(at), Some(frame), "{at:x?}");
    }
    asking.end();
    let files = fs::read_dir(directory).expect("it is ours");
    assert_eq!(files.count(), 1, "what it was written to at first is gone");
    record
}

#[test]
fn a_later_run_gets_the_same_colours() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let scratch = Scratch::new(false);
    let record = record(scratch.path());
    let again = ["again", "modulo:@", "frames.csv"];
    let asking = Asking::start(&setting::BASE, &["setarch", "-R"], &again, scratch.path());
    let (pid, _, range) = asking.said[0].clone();
    let other = |(at, frame): &(VirtAddr, Frame)| {
        let wanted = record.frame(*at).expect("every page was recorded");
        colour(*frame) != colour(wanted)
    };
    assert_eq!(
        frames(pid, range).iter().filter(|page| other(page)).count(),
        0
    );
    asking.end();
}

/// The frames are free, or another page of the program has them, which makes way. Those
/// that the kernel has given to others meanwhile are named as such; that can be all of
/// them.
#[test]
fn a_later_run_gets_the_same_frames() {
    const TRIES: usize = 12;
    if !process::is_root() {
        return skip("only root may see frames");
    }
    let mut shares = (0..TRIES).map(|_| share_of_same_frames());
    assert!(
        shares.any(|share| share > 25),
        "a quarter in none of {TRIES} runs"
    );
}

/// Of a hundred pages, how many get the frame that they had. The others were left.
fn share_of_same_frames() -> usize {
    let scratch = Scratch::new(false);
    let record = record(scratch.path());
    let again = ["again", "exact:", "frames.csv"];
    let asking = Asking::start(&setting::BASE, &["setarch", "-R"], &again, scratch.path());
    let (pid, _, range) = asking.said[0].clone();
    let frames = frames(pid, range);
    let mut same = 0;
    for (at, frame) in &frames {
        let is_same = record.frame(*at) == Some(*frame);
        let is_left = |left: &AddrRange| left.start <= *at && *at < left.end;
        let left = asking.left.iter().any(is_left);
        assert!(is_same || left, "{at:x?} has {frame:x?}");
        same += usize::from(is_same);
    }
    asking.end();
    same * 100 / frames.len()
}

/// Those that make way have no strategy, so nobody would wait for them.
#[test]
fn pages_without_a_strategy_make_way() {
    if !process::is_root() {
        return skip("only root may see frames");
    }
    run(&setting::PLAIN, "make_way");
    run(&setting::KERNEL_FRAMES, "make_way");
}

fn run(setting: &Setting, what: &str) {
    let scratch = Scratch::new(false);
    let outcome = process::run(&linked(setting, what), scratch.path());
    let clean = outcome.processes.is_empty() && !outcome.timed_out;
    assert!(
        outcome.status == "exit status: 0" && clean,
        "{}: {outcome}",
        setting.name
    );
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    if !process::is_root() {
        return skip("frames by strategy may take root");
    }
    run(&setting::PLAIN, "errors");
    run(&setting::RESERVE, "errors");
}

/// Arguments and results lie in memory that has a strategy and was not touched.
#[test]
fn threads_and_forks_ask_at_once() {
    if !process::is_root() {
        return skip("frames by strategy may take root");
    }
    run(&setting::PLAIN, "threads");
    run(&setting::COLOUR, "threads");
    run(&setting::RESERVE, "threads");
}

#[test]
fn without_privilege_memory_is_the_kernels() {
    let allowed = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let device = process::is_root() || fs::File::open("/dev/userfaultfd").is_err();
    if allowed.is_ok_and(|text| text.trim() != "0") || !device {
        return skip("everybody may use userfaultfd in full");
    }
    let scratch = Scratch::new(true);
    let program = scratch.take_copy(program());
    let library = scratch.take_copy(build::library());
    let mut path = OsString::from("LD_LIBRARY_PATH=");
    path.push(library.parent().expect("a file has a directory"));
    let setting = Setting {
        policy: None,
        ..setting::UNPRIVILEGED
    };
    let argv = ["env".into(), path, program.into(), "refused".into()];
    let outcome = process::run(&setting.command(&argv, &[], None), scratch.path());
    assert_eq!(outcome.status, "exit status: 0", "{outcome}");
}

/// The header alone, by itself and with that of plug-ins, in C and in C++.
#[test]
fn the_header_compiles_everywhere() {
    let scratch = Scratch::new(false);
    let source = "#include <quire.h>\n#include <quire_strategy.h>\nint main() { return quire_api() != QUIRE_API; }\n";
    let how = [
        ("gcc", "c", "c11"),
        ("g++", "cc", "c++11"),
        ("g++", "cc", "c++20"),
    ];
    for (compiler, suffix, standard) in how {
        if process::find(compiler).is_none() {
            skip(&format!("{compiler} is missing"));
            continue;
        }
        let file = scratch.path().join(format!("header.{suffix}"));
        fs::write(&file, source).expect("the directory is ours");
        let status = Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
            .arg(format!("-std={standard}"))
            .arg("-I")
            .arg(include())
            .arg(&file)
            .status();
        assert!(
            status.is_ok_and(|s| s.success()),
            "{compiler} -std={standard}"
        );
    }
}

/// The program that the documentation shows.
#[test]
fn the_example_of_the_documentation_runs() {
    if !process::is_root() {
        return skip("frames by strategy may take root");
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/library.md");
    let docs = fs::read_to_string(docs).expect("the documentation is here");
    let example = docs
        .split("```c\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let scratch = Scratch::new(false);
    let source = scratch.path().join("example.c");
    fs::write(&source, example.expect("there is one")).expect("the directory is ours");
    let argv = [
        "env".into(),
        "QUIRE_COLOURS=12,13,14,15".into(),
        compile("example", &source).into(),
    ];
    let outcome = process::run(&argv, scratch.path());
    assert_eq!(outcome.status, "exit status: 0", "{outcome}");
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    assert_eq!(text, "0 pages moved, 0 left\n");
}
