//! Shared memory, files, stacks and text, looked at from outside: that
//! superpages were made of them, and that tools for running programs still find
//! their way.

mod text;

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::harness::scratch::Scratch;
use crate::harness::setting::{self, Setting};
use crate::harness::{build, process, skip};

/// How long superpages may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A program that says it is ready and goes on when its input ends.
struct Held {
    child: Child,
    scratch: Scratch,
}

impl Held {
    /// Starts `argv` under a setting and waits until it is ready.
    fn start(argv: &[OsString], setting: &Setting) -> Held {
        let scratch = Scratch::new(setting.unprivileged);
        let mut argv = argv.to_vec();
        let mut libraries = setting.libraries();
        if setting.unprivileged {
            argv[0] = scratch.take_copy(Path::new(&argv[0])).into();
            libraries.iter_mut().for_each(|l| *l = scratch.take_copy(l));
        }
        let command = setting.command(&argv, &libraries, None);
        let mut child = process::start(&command, scratch.path());
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let mut lines = BufReader::new(stdout);
        let mut line = String::new();
        while line != "ready\n" {
            line.clear();
            let read = lines.read_line(&mut line).expect("the pipe can be read");
            assert!(read > 0, "{}: {argv:?} ends early", setting.name);
        }
        // Nobody reads what comes now, so it must not fill the pipe or break it.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Held { child, scratch }
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap_or_default()
    }

    /// Bytes that superpages map of the mappings of which `what` is true, by
    /// their line in the kernel's list.
    fn huge(&self, what: impl Fn(&str) -> bool) -> u64 {
        const FIELDS: [&str; 3] = ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"];
        let (mut wanted, mut kib) = (false, 0);
        for line in self.read("smaps").lines() {
            let (field, value) = line.split_once(' ').unwrap_or((line, ""));
            if field.contains('-') {
                wanted = what(line);
            } else if wanted && FIELDS.contains(&field) {
                let number = value.trim().trim_end_matches(" kB");
                kib += number.parse::<u64>().expect("smaps has numbers");
            }
        }
        kib << 10
    }

    /// Waits until superpages map as much as wanted; says how much they do.
    fn await_huge(&self, wanted: u64, what: impl Fn(&str) -> bool) -> u64 {
        let start = Instant::now();
        loop {
            let huge = self.huge(&what);
            if huge >= wanted || start.elapsed() > PATIENCE {
                return huge;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Lets the program go on, which must end well.
    fn finish(self) {
        process::finish(self.child, "the program fails");
        drop(self.scratch);
    }
}

/// Whether files of the place where tests keep theirs can have huge folios.
fn has_huge_folios() -> bool {
    let kind = rustix::fs::statfs(std::env::temp_dir()).map(|s| s.f_type);
    matches!(kind, Ok(0xef53 | 0x5846_5342))
}

fn check_shared(setting: &Setting) {
    if let Some(reason) = setting.missing() {
        return skip(&reason);
    }
    let program = [build::program("shared").into(), OsString::from("hold")];
    let held = Held::start(&program, setting);
    let mib = |n: u64| n << 20;
    let anonymous = |line: &str| line.contains("rw-s") && line.contains("(deleted)");
    let named = |name: &'static str| move |line: &str| line.contains(name);
    for kind in ["/memfd:sealed", "/SYSV", "/dev/shm/quire-shared"] {
        let huge = held.await_huge(mib(8), named(kind));
        assert_eq!(
            huge,
            mib(8),
            "{}: {kind}\n{}",
            setting.name,
            held.read("maps")
        );
    }
    // All of these, and the anonymous mapping.
    let huge = held.await_huge(mib(40), anonymous);
    assert!(
        huge >= mib(40),
        "{}: anonymous\n{}",
        setting.name,
        held.read("maps")
    );
    let stack = held.await_huge(mib(4), |line| {
        line.contains("rw-p") && line.ends_with("00:00 0 ")
    });
    assert!(
        stack >= mib(4),
        "{}: stack\n{}",
        setting.name,
        held.read("maps")
    );
    let refused = held.huge(named("/memfd:plain"));
    assert_eq!(refused, 0, "{}: advice is ignored", setting.name);
    if has_huge_folios() {
        for name in ["/quire-shared-file", "/quire-shared-private"] {
            let huge = held.await_huge(mib(8), named(name));
            assert_eq!(
                huge,
                mib(8),
                "{}: {name}\n{}",
                setting.name,
                held.read("maps")
            );
        }
    } else {
        skip("the file system of the temporary directory has no huge folios");
    }
    held.finish();
}

#[test]
fn shared_memory_is_promoted_under_reserve() {
    check_shared(&setting::RESERVE);
}

#[test]
fn shared_memory_is_promoted_under_eager() {
    check_shared(&setting::EAGER);
}

#[test]
fn shared_memory_is_promoted_for_users() {
    check_shared(&setting::UNPRIVILEGED);
}

#[test]
fn base_promotes_nothing() {
    let program = [build::program("shared").into(), OsString::from("hold")];
    let held = Held::start(&program, &setting::BASE);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(held.huge(|_| true), 0);
    held.finish();
}
