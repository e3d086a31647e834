//! Managed processes to look at: real ones whose memory is provided, and such whose
//! statistics page the test writes itself, so that it knows every figure.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, thread};

use quire_core::config::{Policy, SESSION_PREFIX, SESSION_ROOT};
use quire_core::control::{CONTROL_FILE_PREFIX, Change, DONE};
use quire_core::stat::{Cell, CellState, Picture, RegionKind, RegionStat, StatPage};
use quire_core::units::{AddrRange, Bytes, PageCount, SUPERPAGE, VirtAddr};
use quire_linux::sysinfo::process::start_time;
use serde_json::Value;

/// `quire` without what this test run may have set for it.
pub fn quire(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(args).env_remove("NO_COLOR");
    command
}

/// What `quire stat --json` says of a process.
pub fn stat(pid: u32) -> Value {
    let done = quire(&["stat", "--json", &pid.to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{text}");
    let value: Value = serde_json::from_slice(&done.stdout).unwrap();
    value["processes"][0].clone()
}

/// A process that only sleeps, with a statistics page of the test's making.
pub struct Fake {
    child: Child,
    dir: PathBuf,
    /// Its page.
    pub page: &'static StatPage,
    /// Its command name, which no other process has.
    pub name: String,
}

impl Fake {
    /// Starts one whose name ends in `suffix`, with this policy.
    pub fn start(suffix: &str, policy: Policy) -> Fake {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (user, test) = (rustix::process::geteuid().as_raw(), std::process::id());
        let dir = format!("{SESSION_ROOT}/{SESSION_PREFIX}{user}.{test}.{number}");
        fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let page = quire_linux::stat_map::create(&dir, child.id()).unwrap();
        let name = format!("q{test}{suffix}");
        page.identify(child.id(), start_time(child.id()).unwrap(), &name, policy);
        Fake {
            child,
            dir: dir.into(),
            page,
            name,
        }
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Answers changes as a managed process does: makes them and says so, or
    /// refuses.
    pub fn obey(&self, refuse: Option<&'static str>) {
        let path = self
            .dir
            .join(format!("{CONTROL_FILE_PREFIX}{}", self.pid()));
        let socket = UnixDatagram::bind(path).unwrap();
        let page = self.page;
        thread::spawn(move || {
            let mut line = [0; 512];
            while let Ok((len, asker)) = socket.recv_from(&mut line) {
                let change: Change = std::str::from_utf8(&line[..len]).unwrap().parse().unwrap();
                if refuse.is_none() {
                    change.policy.inspect(|policy| page.set_policy(*policy));
                    change.align.inspect(|align| page.set_align(*align));
                }
                let answer = refuse.unwrap_or(DONE);
                socket.send_to_addr(answer.as_bytes(), &asker).unwrap();
            }
        });
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        // A test may have ended it already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A region with a cell for each letter of `states` (as in JSON), full where
/// they are superpages and half populated otherwise.
pub fn region(start: u64, states: &str) -> RegionStat {
    let cell = |letter| {
        let state = CellState::ALL
            .into_iter()
            .find(|s| s.letter() == letter)
            .unwrap();
        let pages = match state {
            CellState::Promoted | CellState::Whole => 512,
            CellState::Empty => 0,
            CellState::Base | CellState::Reserved | CellState::Small => 256,
        };
        Cell::new(state, PageCount(pages))
    };
    let cells: Vec<Cell> = states.chars().map(cell).collect();
    let size = Bytes(cells.len() as u64 * SUPERPAGE);
    let range = AddrRange::new(VirtAddr(start), size);
    RegionStat {
        superpages: cells.iter().filter(|c| c.is_superpage()).count() as u64,
        picture: Picture::of_extents(cells),
        ..RegionStat::untouched(range, RegionKind::Anon, Policy::Reserve)
    }
}

/// The library that provides memory, also to `malloc`: `QUIRE_JEMALLOC_LIB`, or what Cargo builds.
fn library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(path) = std::env::var_os("QUIRE_JEMALLOC_LIB") {
            return fs::canonicalize(path).unwrap();
        }
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let target = tmp.parent().unwrap();
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--profile", "preload"])
            .args([
                "--package",
                "quire-preload-provide-jemalloc",
                "--target-dir",
            ])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(
            status.success(),
            "libquire_provide_jemalloc.so cannot be built"
        );
        target.join("preload/libquire_provide_jemalloc.so")
    });
    &LIBRARY
}

/// What `quire doctor` finds.
fn findings() -> Value {
    let doctor = quire(&["doctor", "--json"]).output().unwrap();
    serde_json::from_slice(&doctor.stdout).unwrap()
}

/// Whether frames can be given by strategy here, in full.
pub fn offers_frames() -> bool {
    findings()["frames"] == "ok"
}

/// `quire run` with the library that provides memory, a policy and options, of which one
/// asks for memory that is provided.
pub fn run_with_library(policy: &str, options: &[&str]) -> Command {
    let mut command = quire(&["run", "--policy", policy]);
    command
        .args(["--malloc", "jemalloc"])
        .args(options)
        .env("QUIRE_JEMALLOC_LIB", library());
    command
}

/// A program under `quire run`.
pub struct Real {
    runner: Child,
    /// Its process number.
    pub pid: u32,
}

impl Real {
    /// Starts, under a policy and with options, a Python script that prints its
    /// process number when it is ready, and then waits for its input to end; the
    /// reason, where this machine cannot manage it.
    pub fn start(policy: &str, options: &[&str], script: &str) -> Result<Real, String> {
        if findings()["policies"][policy] != "ok" {
            return Err(format!("this machine does not offer {policy} in full"));
        }
        let script =
            format!("import os,sys\n{script}\nprint(os.getpid(), flush=True)\nsys.stdin.read()");
        let mut runner = run_with_library(policy, options)
            .args(["--quiet", "--", "python3", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = runner.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let pid = line.trim().parse().unwrap();
        Ok(Real { runner, pid })
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.runner.stdin.take());
        let _ = self.runner.wait();
    }
}
