//! Ten open programs in place of those of Figure 3 of paper 000 (GISP, section
//! 4.2), each run under every variant: time, processor time, memory, superpages.
//!
//! | module | holds |
//! |---|---|
//! | [`programs`] | which programs, how they are called, what of their output counts |
//! | [`inputs`] | what they work on, generated, always the same |
//! | [`usage`] | how a program is run so that what it used is known |
//! | [`normalised`] | the figures in relation to another variant |

pub mod inputs;
pub mod normalised;
mod programs;
pub mod usage;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quire_core::config::ENV_SESSION;
use quire_core::stat::Totals;
use tempfile::TempDir;

pub use crate::figure3::programs::PROGRAMS;
use crate::figure3::programs::{Job, Program};
use crate::figure3::usage::Usage;
use crate::launch::{self, Process};
use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::service::Setup;
use crate::statpage;
use crate::system::find_program;

/// How long one program may take.
const LIMIT: Duration = Duration::from_secs(300);
/// How often the memory that superpages map is looked at.
const LOOK: Duration = Duration::from_millis(25);
/// Where Debian puts games, which is not on every search path.
const GAMES: &str = "/usr/games";
/// Without these, the order of hashes in Qt and Perl, and what is printed,
/// would differ from run to run.
const SETTINGS: [&str; 4] = [
    "QT_HASH_SEED=0",
    "QT_QPA_PLATFORM=offscreen",
    "PERL_HASH_SEED=0",
    "LC_ALL=C.UTF-8",
];

/// A program with its input, and the output of its first run.
#[derive(Debug)]
struct Prepared {
    program: &'static Program,
    file: PathBuf,
    dir: PathBuf,
    job: Job,
    expected: RefCell<Option<Vec<Vec<u8>>>>,
}

/// The programs that are installed, ready to be run.
#[derive(Debug)]
pub struct Figure3 {
    prepared: Vec<Prepared>,
    missing: Vec<(&'static str, String)>,
    _scratch: TempDir,
}

/// The file of a program that is installed.
fn installed(program: &Program) -> Option<PathBuf> {
    let game = PathBuf::from(GAMES).join(program.binary);
    find_program(program.binary).or_else(|| game.is_file().then_some(game))
}

impl Figure3 {
    /// Writes the inputs of all programs that are installed into a directory
    /// of its own, which goes with this. Only those that are called `wanted`,
    /// if any are.
    pub fn prepare(wanted: &[String], quick: bool) -> Result<Figure3> {
        let scratch = tempfile::Builder::new()
            .prefix("quire-figure3.")
            .tempdir()
            .context("making a directory for the programs")?;
        let (mut prepared, mut missing) = (Vec::new(), Vec::new());
        let is_wanted = |p: &&Program| wanted.is_empty() || wanted.iter().any(|w| w == p.name);
        for program in PROGRAMS.iter().filter(is_wanted) {
            let Some(file) = installed(program) else {
                let remedy = format!(
                    "{} is missing (apt-get install {})",
                    program.binary, program.package
                );
                missing.push((program.name, remedy));
                continue;
            };
            let dir = scratch.path().join(program.name);
            std::fs::create_dir(&dir)?;
            // Every program has an input, if an empty one.
            std::fs::write(dir.join(usage::STDIN), "")?;
            let job = (program.job)(&dir, quick)
                .with_context(|| format!("writing the input of {}", program.name))?;
            prepared.push(Prepared {
                program,
                file,
                dir,
                job,
                expected: RefCell::default(),
            });
        }
        Ok(Figure3 {
            prepared,
            missing,
            _scratch: scratch,
        })
    }

    /// The names of the programs that can be run.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.prepared.iter().map(|p| p.program.name)
    }

    /// The names of those that cannot, with the remedy.
    pub fn missing(&self) -> &[(&'static str, String)] {
        &self.missing
    }

    /// Runs the program called `name` once. What it prints must be what it
    /// printed under the variants before.
    pub fn run(&self, name: &str, setup: Setup) -> Result<Sample> {
        let find = |p: &&Prepared| p.program.name == name;
        let prepared = self.prepared.iter().find(find).context("no such program")?;
        prepared.run(setup).context(prepared.program.name)
    }
}

impl Prepared {
    fn run(&self, setup: Setup) -> Result<Sample> {
        let mut options = vec!["--measure".into(), self.dir.clone().into_os_string()];
        options.extend(SETTINGS.iter().flat_map(|s| ["--set".into(), s.into()]));
        let command = launch::command_with(
            setup.environment,
            None,
            &options,
            &self.file,
            &self.job.args,
        )?;
        let before = procfs::huge_mapped_by_all().unwrap_or(0);
        let mut process = Process::start(command)?;
        let start = Instant::now();
        let mut most = before;
        while process.is_running() {
            setup.interrupt.check()?;
            ensure!(
                start.elapsed() < LIMIT,
                "did not end within {} s",
                LIMIT.as_secs()
            );
            most = most.max(procfs::huge_mapped_by_all().unwrap_or(0));
            std::thread::sleep(LOOK);
        }
        process.wait(LIMIT, setup.interrupt)?.output()?;
        self.compare()?;
        let mut sample = Sample::default();
        let mut put = |what: &str, value: f64| {
            sample.put(format!("{what}@{}", self.program.name), value);
        };
        let used = Usage::read(&self.dir)?;
        put("wall_s", used.wall_s);
        put("cpu_s", used.cpu_s);
        put("peak_mib", used.peak_bytes as f64 / MIB);
        put("huge_mib", (most - before) as f64 / MIB);
        if let Some(totals) = self.managed(setup) {
            put("superpages", totals.superpages_peak as f64);
            put("promotions", totals.promotions as f64);
            put("reported", totals.pager_faults as f64);
            put("pager_ms", totals.pager_cpu_ns as f64 * 1e-6);
            put("calls_ms", totals.call_time_ns as f64 * 1e-6);
        }
        Ok(sample)
    }

    /// What Quire counted in all processes of the run.
    fn managed(&self, setup: Setup) -> Option<Totals> {
        let vars = &setup.environment.vars;
        let (_, session) = vars.iter().find(|(name, _)| name == ENV_SESSION)?;
        let mut totals = Totals::default();
        for process in statpage::all(session.as_ref()) {
            totals.add(&process.totals);
        }
        Some(totals)
    }

    /// Compares what counts of the output with that of the first run.
    fn compare(&self) -> Result<()> {
        let mut outputs = Vec::new();
        for (name, filter) in self.job.compared {
            let path = self.dir.join(name);
            let bytes = std::fs::read(&path).with_context(|| format!("no {}", path.display()))?;
            let bytes = filter(&bytes);
            ensure!(!bytes.is_empty(), "{name} is empty");
            outputs.push(bytes);
        }
        let mut expected = self.expected.borrow_mut();
        match &*expected {
            Some(expected) if *expected != outputs => {
                bail!("the output differs from that of the first run")
            }
            Some(_) => {}
            None => *expected = Some(outputs),
        }
        Ok(())
    }
}
