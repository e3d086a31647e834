//! Runs a program with and without the library and compares what it prints
//! and how it ends.

pub mod build;
pub mod cgroup;
pub mod held;
pub mod moved;
pub mod pool;
pub mod process;
pub mod scratch;
pub mod setting;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use cgroup::MemoryCgroup;
use process::Outcome;
use scratch::Scratch;
use setting::Setting;

type Cell = Arc<OnceLock<Outcome>>;

/// What programs do without the library; each is run once.
static REFERENCES: LazyLock<Mutex<HashMap<String, Cell>>> = LazyLock::new(Mutex::default);

/// Says that a test did not test, in a form that can be searched for.
pub fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("test").to_owned();
    eprintln!("SKIP: {test}: {reason}");
}

/// A command line to be run under several settings.
pub struct Program<'a> {
    /// Names the program among the references.
    pub name: &'a str,
    /// The executable and its arguments.
    pub argv: Vec<OsString>,
    /// Puts files into the directory in which the program is to run.
    pub prepare: &'a dyn Fn(&Path),
    /// A file that the program leaves there, to be compared as well.
    pub result: Option<&'a str>,
    /// Bytes that the program's memory cgroup may hold.
    pub memory_limit: Option<u64>,
}

impl Program<'_> {
    fn run(&self, setting: &Setting) -> Result<Outcome, String> {
        let scratch = Scratch::new(setting.unprivileged);
        (self.prepare)(scratch.path());
        let cgroup = self.memory_limit.map(MemoryCgroup::new).transpose()?;
        let mut argv = self.argv.clone();
        let mut libraries = match setting.policy {
            Some(_) => setting.libraries(),
            None => Vec::new(),
        };
        if setting.unprivileged {
            // The build directory may be closed to other users.
            let program = Path::new(&argv[0]);
            if program.starts_with(build::target_dir()) {
                argv[0] = scratch.take_copy(program).into();
            }
            libraries.iter_mut().for_each(|l| *l = scratch.take_copy(l));
        }
        let command = setting.command(&argv, &libraries, cgroup.as_ref());
        let mut outcome = process::run(&command, scratch.path());
        if let Some(result) = self.result {
            outcome.result = std::fs::read(scratch.path().join(result)).ok();
        }
        Ok(outcome)
    }

    /// The outcome without the library, which must be a success.
    fn reference(&self, setting: &Setting) -> Result<Outcome, String> {
        let plain = setting.without_library();
        let key = format!("{} {}", self.name, plain.unprivileged);
        let cell = {
            let mut all = REFERENCES.lock().unwrap_or_else(|e| e.into_inner());
            Arc::clone(all.entry(key).or_default())
        };
        if cell.get().is_none() {
            // Two tests may both come here; the first to finish is kept.
            let outcome = self.run(&plain)?;
            let _ = cell.set(outcome);
        }
        Ok(cell.get().expect("the reference was just set").clone())
    }

    /// Runs the program under `setting` and panics where it differs from the
    /// same program without the library.
    pub fn check(&self, setting: &Setting) {
        if let Some(reason) = setting.missing() {
            return skip(&reason);
        }
        let reference = match self.reference(setting) {
            Ok(reference) => reference,
            Err(reason) => return skip(&reason),
        };
        if setting.unprivileged && reference.status == "exit status: 126" {
            return skip(&format!("{} may not be run by other users", self.name));
        }
        assert!(
            reference.status == "exit status: 0" && !reference.timed_out,
            "{} fails without the library:\n{reference}",
            self.name
        );
        if setting.policy.is_none() {
            return;
        }
        let _pool = setting.pool_pages.map(pool::Pool::with);
        let outcome = match self.run(setting) {
            Ok(outcome) => outcome,
            Err(reason) => return skip(&reason),
        };
        if let Some(difference) = outcome.difference(&reference) {
            panic!(
                "{} under {}: {difference}\n{outcome}",
                self.name, setting.name
            );
        }
    }
}
