//! Runs a program with and without the library, in several settings at a time, and compares what it prints and how
//! it ends.

pub mod build;
#[allow(dead_code, reason = "shared with the tests of libquire_provide.so")]
#[path = "../../../quire-preload-provide/tests/harness/cgroup.rs"]
pub mod cgroup;
#[allow(dead_code, reason = "shared with the tests of libquire_provide.so")]
#[path = "../../../quire-preload-provide/tests/harness/process.rs"]
pub mod process;
#[allow(dead_code, reason = "shared with the tests of libquire_provide.so")]
#[path = "../../../quire-preload-provide/tests/harness/scratch.rs"]
pub mod scratch;
pub mod setting;
pub mod slots;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use cgroup::MemoryCgroup;
use process::Outcome;
use scratch::Scratch;
use setting::Setting;
use slots::Slots;

/// With this status a program says that it cannot test here; the last line that it printed says why.
const CANNOT: &str = "exit status: 77";

/// Says that a test did not test, in a form that can be searched for.
pub fn skip(name: &str, reason: &str) {
    eprintln!("SKIP: {name}: {reason}");
}

/// How a program must end without the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// With status 0.
    Well,
    /// In any way: with the library, as without it.
    Anyhow,
}

/// A command line to be run under several settings.
pub struct Program<'a> {
    /// For messages.
    pub name: &'a str,
    /// The executable and its arguments. What lies in the build directory is copied to where the program runs.
    pub argv: Vec<OsString>,
    /// Files of the build directory that it needs beside it.
    pub files: Vec<PathBuf>,
    /// Puts further files there.
    pub prepare: &'a (dyn Fn(&Path) + Sync),
    /// Libraries that are preloaded as well: before the library, and behind it.
    pub preloads: [Vec<PathBuf>; 2],
    /// Bytes that its memory cgroup may hold.
    pub memory_limit: Option<u64>,
    /// How it ends without the library.
    pub ends: Ends,
    /// Whether nothing else may run meanwhile, because it measures.
    pub alone: bool,
}

impl Default for Program<'_> {
    fn default() -> Self {
        Program {
            name: "",
            argv: Vec::new(),
            files: Vec::new(),
            prepare: &|_| (),
            preloads: [Vec::new(), Vec::new()],
            memory_limit: None,
            ends: Ends::Well,
            alone: false,
        }
    }
}

impl Program<'_> {
    /// Runs it once. The directory of its session lies in the one that it runs in.
    pub fn run(&self, setting: &Setting) -> Result<Outcome, String> {
        let scratch = Scratch::new(setting.ordinary);
        let session = scratch.session();
        fs::set_permissions(&session, fs::Permissions::from_mode(0o777)).expect("it is ours");
        (self.prepare)(scratch.path());
        let cgroup = self.memory_limit.map(MemoryCgroup::new).transpose()?;
        // The build directory may be closed to other users.
        for file in &self.files {
            take_copy(&scratch, file);
        }
        let copied = |word: &OsString| {
            let path = Path::new(word);
            if path.starts_with(build::target_dir()) && path.is_file() {
                take_copy(&scratch, path).into()
            } else {
                word.clone()
            }
        };
        let argv: Vec<OsString> = self.argv.iter().map(copied).collect();
        let mut libraries = self.preloads[0].clone();
        if setting.policy.is_some() {
            libraries.push(take_copy(&scratch, build::library()));
        }
        libraries.extend(self.preloads[1].iter().cloned());
        let command = setting.command(&argv, &libraries, &session, cgroup.as_ref());
        Ok(process::run(&command, scratch.path()))
    }

    /// Runs the program under all settings, and without the library as the same users; panics where what the
    /// library is loaded into differs from what it is not loaded into.
    pub fn check(&self, settings: &[Setting]) {
        let mut all: Vec<Setting> = Vec::new();
        for setting in settings {
            let name = format!("{} {}", self.name, setting.name());
            if let Some(reason) = setting.missing() {
                skip(&name, &reason);
                continue;
            }
            for setting in [setting.without_library(), *setting] {
                if !all.contains(&setting) {
                    all.push(setting);
                }
            }
        }
        let run = |setting: &Setting| {
            let slots = if self.alone { slots::ALL } else { 1 };
            let _slots = Slots::take(slots);
            self.run(setting)
        };
        let outcomes: HashMap<Setting, Result<Outcome, String>> = thread::scope(|scope| {
            let started: Vec<_> = all
                .iter()
                .map(|setting| (*setting, scope.spawn(|| run(setting))))
                .collect();
            let end = |thread: thread::ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(outcome) => outcome,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            started.into_iter().map(|(s, t)| (s, end(t))).collect()
        });
        let wrong: Vec<String> = all
            .iter()
            .filter_map(|setting| self.judge(setting, &outcomes))
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    }

    /// What is wrong with the outcome of a setting.
    fn judge(
        &self,
        setting: &Setting,
        outcomes: &HashMap<Setting, Result<Outcome, String>>,
    ) -> Option<String> {
        let name = format!("{} {}", self.name, setting.name());
        let reference = match &outcomes[&setting.without_library()] {
            Ok(reference) => reference,
            Err(reason) => {
                skip(&name, reason);
                return None;
            }
        };
        if setting.ordinary && reference.status == "exit status: 126" {
            skip(&name, "it may not be run by other users");
            return None;
        }
        if reference.status == CANNOT {
            skip(&name, &last_line(&reference.stdout));
            return None;
        }
        let well = reference.status == "exit status: 0" || self.ends == Ends::Anyhow;
        if !well || reference.timed_out {
            let failed = format!("{name} fails without the library:\n{reference}");
            return setting.policy.is_none().then_some(failed);
        }
        setting.policy?;
        let outcome = match &outcomes[setting] {
            Ok(outcome) => outcome,
            Err(reason) => {
                skip(&name, reason);
                return None;
            }
        };
        if outcome.status == CANNOT {
            skip(&name, &last_line(&outcome.stdout));
            return None;
        }
        // Measurements and the like.
        for line in String::from_utf8_lossy(&outcome.stderr).lines() {
            if line.starts_with("note: ") {
                eprintln!("{name}: {line}");
            }
        }
        let difference = outcome.difference(reference)?;
        Some(format!("{name}: {difference}\n{outcome}"))
    }
}

fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.lines().last().unwrap_or("no reason given").to_owned()
}

/// Copies a file to where a program runs, for every user to read and run. Another process does so: a descriptor of
/// this one that writes might be inherited by what another thread starts meanwhile, and then the copy cannot be run.
pub fn take_copy(scratch: &Scratch, file: &Path) -> PathBuf {
    let copy = scratch
        .path()
        .join(file.file_name().expect("a file has a name"));
    let install = std::process::Command::new("install")
        .args(["-m", "755"])
        .args([file, &copy])
        .status();
    let done = install
        .expect("there are the tools of the system")
        .success();
    assert!(done, "{} cannot be copied", file.display());
    copy
}
