//! Processes to attach to, and what they have.

#![allow(dead_code)] // Each test file uses a part of it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use quire_attach::attach::{Attach, Next, preflight};
use quire_attach::heat::Accesses;
use quire_attach::metrics::Snapshot;
use quire_attach::plan::{LIVED, Plan, Who};
use quire_core::attach::CpuShare;

/// Says why a test is skipped, where something is missing.
pub fn skip(reason: &str) {
    println!("SKIP: {reason}");
}

/// Whether this user can attach here.
pub fn can_attach() -> bool {
    let checked = preflight();
    if let Err(error) = &checked {
        skip(&error.to_string());
    }
    checked.is_ok()
}

/// The subject, linked statically, so that nothing can be loaded into it.
fn subject() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subject.c");
        let test = std::env::current_exe().ok()?;
        let program = test.with_extension("subject");
        let status = Command::new("gcc")
            .args(["-O1", "-static", "-Wall", "-Werror", "-o"])
            .arg(&program)
            .arg(source)
            .status()
            .ok()?;
        status.success().then_some(program)
    };
    BUILT.get_or_init(build).as_deref()
}

/// A running subject.
pub struct Subject {
    pub child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Subject {
    /// Starts one; nothing where it cannot be built or attached to.
    pub fn start() -> Option<Subject> {
        if !can_attach() {
            return None;
        }
        let Some(program) = subject() else {
            skip("gcc cannot build static programs here");
            return None;
        };
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Some(Subject {
            child,
            input,
            output,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line without waiting for the answer.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits for an answer.
    pub fn answer(&mut self) -> String {
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    /// Sends a line, and expects that all is well.
    pub fn ask(&mut self, line: &str) {
        self.tell(line);
        assert_eq!(self.answer(), "ok", "{line}");
    }

    /// Lets it end by itself, in good order.
    pub fn end(mut self) {
        self.input.take();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A figure of a process in MiB, such as `AnonHugePages` or `Rss`.
pub fn mib(pid: u32, figure: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(figure)).unwrap();
    let mut words = line.trim_start_matches(':').split_whitespace();
    let kib: u64 = words.next().unwrap().parse().unwrap();
    kib >> 10
}

/// A plan without a bound of processor time.
pub fn plan(pid: u32, threshold: &str) -> Plan {
    Plan {
        who: Who::Pids(vec![pid], threshold.parse().unwrap()),
        cpu: CpuShare::from_percent(100.0).unwrap(),
        interval: Duration::from_millis(20),
        accesses: Accesses::None,
        lived: LIVED,
    }
}

/// Takes turns until there is nothing to do or `until` says so.
pub fn run(attach: &mut Attach, mut until: impl FnMut(&Snapshot) -> bool) -> Snapshot {
    let began = Instant::now();
    loop {
        let next = attach.turn().unwrap();
        let snapshot = attach.snapshot();
        match next {
            Next::Wait(pause) if !until(&snapshot) => std::thread::sleep(pause),
            _ => return snapshot,
        }
        assert!(began.elapsed() < Duration::from_secs(90), "{snapshot:?}");
    }
}

/// One pass over a process.
pub fn once(pid: u32, threshold: &str) -> Snapshot {
    let mut attach = Attach::new(plan(pid, threshold), true, Box::new(|_| {})).unwrap();
    run(&mut attach, |_| false)
}
