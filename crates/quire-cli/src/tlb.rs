//! `quire tlb`: runs a program under quire, feeds windows of its addresses to
//! a model of the machine's TLBs, and says what superpages save.

mod counters;
mod report;

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use quire_core::config::{Config, Malloc, Way};
use quire_core::tlb::cpuid::{self, Described};
use quire_linux::ptrace;
use quire_linux::sysinfo::signals::{self, Arrived, Ended, Signals, send};
use quire_tlb::{Host, Plan, TraceError, Traced};
use rustix::process::Signal;

use crate::args::{Pmu, TlbArgs};
use crate::failure::{Failure, Outcome};
use crate::run::library::Managers;
use crate::run::program::Program;
use crate::run::{child, forbid_superpages, managed_command, plain_command, spawn};
use crate::session::{NoSession, Session};
use counters::{Counters, Misses};
use report::Report;

/// The part of a window, as a divisor, that only warms the model up.
const WARM_UP: u64 = 4;
/// How often the progress is shown.
const SHOW_EVERY: Duration = Duration::from_secs(1);

/// Runs the program and returns its exit status; does not return where a
/// signal killed it.
pub fn tlb(options: &TlbArgs) -> Outcome<u8> {
    let launcher = Launcher::new(options)?;
    let output = options.output.as_deref().map(create).transpose()?;
    let signals = Signals::block()
        .map_err(|error| Failure::system(format!("cannot block signals: {error}")))?;
    let (report, ended) = match options.pmu {
        Pmu::Only => launcher.count(&signals)?,
        _ => launcher.model(&signals)?,
    };
    // The program is over, so its exit status stands whatever happens to this.
    if let Err(error) = write(options, &report, output) {
        let _ = writeln!(io::stderr(), "quire: cannot write the result: {error}");
    }
    match (ended.code, ended.signal) {
        (_, Some(signal)) => signals::die_by(signal),
        (code, None) => Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
    }
}

/// Opens the file for the result before the program starts, so that a bad path
/// does not cost a run.
fn create(path: &Path) -> Outcome<File> {
    File::create(path).map_err(|error| {
        Failure::bad_usage(format!(
            "cannot write --output {}: {error}; name a file in a directory that you may write to",
            path.display()
        ))
    })
}

fn write(options: &TlbArgs, report: &Report, output: Option<File>) -> io::Result<()> {
    let text = if options.json {
        report.json()?
    } else {
        report.text()?
    };
    match output {
        Some(mut file) => file.write_all(&text),
        None if options.json => io::stdout().write_all(&text),
        None => io::stderr().write_all(&text),
    }
}

/// What is needed to start the program.
struct Launcher<'a> {
    options: &'a TlbArgs,
    program: Program,
    /// Nothing where the program runs without quire.
    managers: Option<Managers>,
}

impl Launcher<'_> {
    fn new(options: &TlbArgs) -> Outcome<Launcher<'_>> {
        let needs_library = !options.plain || options.pmu == Pmu::Only;
        Ok(Launcher {
            options,
            managers: needs_library.then(|| managers(options)).transpose()?,
            program: Program::find(&options.command)?,
        })
    }

    /// The command, without the library where `plain` is set. What it starts next is
    /// without superpages where that is the policy.
    fn command(&self, plain: bool, session: &Result<Session, NoSession>) -> Outcome<Command> {
        let words = &self.options.command;
        let Some(managers) = self.managers.as_ref().filter(|_| !plain) else {
            return Ok(plain_command(&self.program, words));
        };
        let config = Config {
            session: session.as_ref().ok().map(|s| s.dir().display().to_string()),
            ..config(self.options)
        };
        if let Some(Err(error)) = forbid_superpages(config.policy, config.way()) {
            let text = format!("transparent huge pages cannot be switched off: {error}");
            return Err(Failure::system(text));
        }
        Ok(managed_command(&self.program, words, &config, managers))
    }

    /// Runs the program under the tracer.
    fn model(&self, signals: &Signals) -> Outcome<(Report, Ended)> {
        let options = self.options;
        ptrace::probe().map_err(|error| refused(&error))?;
        let counters = match options.pmu {
            Pmu::Auto => Counters::open().map_err(|error| Counters::refusal(&error)),
            _ => Err("switched off".to_owned()),
        };
        let described = match &options.tlb {
            Some(geometry) => Described {
                geometry: geometry.clone(),
                assumed: Vec::new(),
            },
            None => cpuid::describe(&quire_linux::tlb::leaves()),
        };
        let session = Session::create(way(options));
        let mut command = self.command(options.plain, &session)?;
        signals.hand_down(&mut command);
        let started = Instant::now();
        let traced = spawn(&mut command, &self.program)
            .and_then(|child| self.trace(child.id(), &described, signals));
        let wall = started.elapsed();
        if let Ok(session) = &session {
            session.sweep();
        }
        let traced = traced?;
        let mut report = Report::new(options, &self.program, traced.ended, wall);
        report.model = Some(quire_tlb::Report::new(
            &described.geometry,
            described.assumed,
            &traced.windows,
            traced.taken,
        ));
        report.pmu = counters.and_then(|c| c.read().map_err(|error| error.to_string()));
        Ok((report, traced.ended))
    }

    fn trace(&self, pid: u32, described: &Described, signals: &Signals) -> Outcome<Traced> {
        let plan = plan(self.options);
        let mut host = StandIn::new(pid);
        let traced = quire_tlb::trace(pid, &plan, &described.geometry, signals, &mut host);
        host.clear();
        traced.map_err(|error| {
            send(pid, Signal::KILL.as_raw());
            match error {
                TraceError::Refused(error) => refused(&error),
                TraceError::System(_) => Failure::system(error.to_string()),
            }
        })
    }

    /// Runs the program twice, and only counts.
    fn count(&self, signals: &Signals) -> Outcome<(Report, Ended)> {
        let (plain, _, _) = self.counted(true, signals)?;
        let (managed, ended, wall) = self.counted(false, signals)?;
        let mut report = Report::new(self.options, &self.program, ended, wall);
        report.pmu = Ok(managed);
        report.pmu_plain = Some(plain);
        Ok((report, ended))
    }

    fn counted(&self, plain: bool, signals: &Signals) -> Outcome<(Misses, Ended, Duration)> {
        let counters = Counters::open().map_err(|error| {
            Failure::bad_usage(format!(
                "no counts of TLB misses: {}; leave `--pmu only` away for those of a model",
                Counters::refusal(&error)
            ))
        })?;
        let session = Session::create(way(self.options));
        let mut command = self.command(plain, &session)?;
        signals.hand_down(&mut command);
        let started = Instant::now();
        let ended = spawn(&mut command, &self.program).and_then(|child| {
            child::stand_in(child.id(), signals)
                .map_err(|error| Failure::system(format!("cannot wait for the program: {error}")))
        });
        if let Ok(session) = &session {
            session.sweep();
        }
        let misses = counters
            .read()
            .map_err(|error| Failure::system(format!("cannot read the counters: {error}")))?;
        Ok((misses, ended?, started.elapsed()))
    }
}

/// The settings that the options are, without a session.
fn config(options: &TlbArgs) -> Config {
    Config {
        policy: options.policy,
        ..Config::default()
    }
}

/// How the program gets its superpages.
fn way(options: &TlbArgs) -> Way {
    config(options).way()
}

/// The libraries, which leave `malloc` to the program.
fn managers(options: &TlbArgs) -> Outcome<Managers> {
    Managers::find(way(options), Malloc::Libc, options.policy, false)
}

fn plan(options: &TlbArgs) -> Plan {
    let after = Duration::from_millis(options.after);
    if options.whole {
        return Plan::whole(after);
    }
    Plan {
        window: options.window,
        warm_up: options.window / WARM_UP,
        windows: usize::try_from(options.windows & !1).unwrap_or(usize::MAX),
        every: Duration::from_millis(options.every),
        after,
    }
}

/// The error where tracing is not allowed, with what helps.
fn refused(error: &io::Error) -> Failure {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let remedy = match scope.trim() {
        "3" => {
            "kernel.yama.ptrace_scope is 3, which lasts until the next boot: boot with another value"
        }
        "2" => "kernel.yama.ptrace_scope is 2: run it with sudo, or set it to 1",
        _ => {
            "a seccomp filter or the program's privileges forbid it: give a container --cap-add=SYS_PTRACE, run a setuid program with sudo"
        }
    };
    Failure::bad_usage(format!("the program may not be traced ({error}): {remedy}"))
}

/// Stands in for the program while it is traced, and shows progress.
struct StandIn {
    pid: u32,
    shows: bool,
    shown: Option<Instant>,
    begun: Instant,
}

impl StandIn {
    fn new(pid: u32) -> StandIn {
        StandIn {
            pid,
            shows: io::stderr().is_terminal(),
            shown: None,
            begun: Instant::now(),
        }
    }

    /// Removes the line that shows the progress.
    fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Host for StandIn {
    fn arrived(&mut self, arrived: Arrived) {
        if child::is_passed_on(arrived) {
            arrived.pass_on(self.pid);
        }
    }

    fn stopped(&mut self, signal: i32) {
        if child::concerns_us(signal) {
            child::stop();
        }
    }

    fn progress(&mut self, windows: usize, instructions: u64) {
        let last = self.shown.unwrap_or(self.begun);
        if !self.shows || last.elapsed() < SHOW_EVERY {
            return;
        }
        self.shown = Some(Instant::now());
        let line = format!("windows {windows}, instructions in this one {instructions}");
        // Where it cannot be shown nobody waits for it.
        let _ = write!(io::stderr(), "\r\x1b[Kquire tlb: {line}");
    }
}
