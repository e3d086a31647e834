//! `quire run`: starts a program with a library preloaded, stands in for it
//! while it runs, and sums up what it had.
//!
//! Unless something is asked for that advice cannot do, the library is the one that only
//! advises the kernel ([`way`]).

pub(crate) mod child;
mod dsm;
pub mod frames;
pub(crate) mod library;
mod malloc;
mod placement;
pub(crate) mod program;
mod report;

pub use report::count;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Instant;

use quire_core::config::{Config, ENV_ALL, Malloc, Policy, Way};
use quire_core::frames::config::{ENV_FRAMES, ENV_NO_INHERIT, FrameConfig};
use quire_core::stat::Note;
use quire_linux::sysinfo::signals::{self, Signals};

use crate::args::RunArgs;
use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, Outcome};
use crate::session::Session;
use library::Managers;
use program::Program;
use report::{Report, Setting};

/// Runs the program and returns its exit status; does not return where a
/// signal killed it.
pub fn run(options: &RunArgs) -> Outcome<u8> {
    let stats = options.stats.as_deref().map(open_stats).transpose()?;
    let frames = frames::config(options)?;
    let mut config = config(options);
    let way = way(options, &config);
    let malloc = malloc::choose(options)?;
    let has_frames = frames != FrameConfig::default();
    let managers = managers(options, way, malloc, has_frames)?;
    let program = Program::find(&options.command)?;
    if way == Way::Provide {
        malloc::check(malloc, &program)?;
    }
    let mut objects = dsm::prepare(&options.dsm, &program)?;
    let session = Session::create(way);
    config.session = session.as_ref().ok().map(|s| s.dir().display().to_string());
    let signals = Signals::block()
        .map_err(|error| Failure::system(format!("cannot block signals: {error}")))?;
    let mut command = match &managers {
        Some(managers) => managed_command(&program, &options.command, &config, managers),
        None => plain_command(&program, &options.command),
    };
    command.envs(frames.to_env());
    if let Some(objects) = &mut objects {
        if !options.quiet
            && let Some(limit) = dsm::limit()
        {
            // Who does not listen need not know.
            let _ = writeln!(io::stderr(), "quire: {limit}");
        }
        objects.give_to(&mut command, session.as_ref().ok());
    }
    if options.no_inherit {
        command.env(ENV_NO_INHERIT, "1");
    }
    signals.hand_down(&mut command);
    let inherited = forbidden_before(config.policy);
    let switched = forbid_superpages(config.policy, way);
    let started = Instant::now();
    let ended = match spawn(&mut command, &program) {
        Ok(child) => child::stand_in(child.id(), &signals)
            .map_err(|error| Failure::system(format!("cannot wait for the program: {error}"))),
        Err(failure) => Err(failure),
    };
    let wall = started.elapsed();
    if let Some(objects) = &mut objects {
        objects.wait_for_recovery();
    }
    let entries = session.as_ref().map(Session::entries).unwrap_or_default();
    let in_vain = objects
        .as_ref()
        .map(dsm::Objects::in_vain)
        .unwrap_or_default();
    let made = objects.as_ref().map(dsm::Objects::made).unwrap_or_default();
    if let Ok(session) = &session {
        session.sweep();
    }
    let ended = ended?;
    let setting = Setting {
        way,
        switched,
        no_session: session.err(),
    };
    let mut report = Report::new(options, &program, (ended, wall), entries, setting);
    report.note(in_vain);
    if let Some(objects) = objects.filter(|_| !options.quiet) {
        report.is_about_objects(objects.figures(made));
    }
    report.note(inherited);
    tell(options, &report, stats);
    match (ended.code, ended.signal) {
        (_, Some(signal)) => signals::die_by(signal),
        (code, None) => Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
    }
}

/// The libraries that manage memory. Who asks for objects, and for nothing of superpages, can do without.
fn managers(
    options: &RunArgs,
    way: Way,
    malloc: Malloc,
    has_frames: bool,
) -> Outcome<Option<Managers>> {
    let is_optional = !options.dsm.dsm.is_empty() && way == Way::Advise;
    match Managers::find(way, malloc, options.policy, has_frames) {
        Err(_) if is_optional && !library::is_named() => Ok(None),
        found => found.map(Some),
    }
}

/// The settings that the options are, without a session.
fn config(options: &RunArgs) -> Config {
    Config {
        policy: options.policy,
        ahead: options.ahead.unwrap_or_default(),
        reserve_limit: options.reserve_limit,
        largest: options.largest.unwrap_or_default(),
        pool_page: options.pool_page,
        align: options.align,
        text: options.text,
        cpu: options.cpu,
        session: None,
    }
}

/// How the program gets its superpages. Frames are chosen, and an allocator is served, only
/// where memory is provided.
fn way(options: &RunArgs, config: &Config) -> Way {
    let is_asked = options.frames.is_some()
        || !options.hint.is_empty()
        || options.colour_bits.is_some()
        || options.stock.is_some()
        || options.malloc == Some(Malloc::Jemalloc);
    match is_asked {
        true => Way::Provide,
        false => config.way(),
    }
}

/// Where a program shall have base pages only and the kernel is advised: switches its
/// transparent huge pages off for this process. What it starts inherits that, also
/// programs that no library can be preloaded into. Nothing where they stay as they are.
pub(crate) fn forbid_superpages(policy: Policy, way: Way) -> Option<io::Result<()>> {
    let is_asked = policy == Policy::Base && way == Way::Advise;
    let switch = || rustix::thread::disable_transparent_huge_pages(true);
    is_asked.then(|| switch().map_err(io::Error::from))
}

/// What is to be said where whoever started this process has switched transparent huge pages
/// off, and the policy makes superpages.
fn forbidden_before(policy: Policy) -> Vec<String> {
    let is_off = rustix::thread::transparent_huge_pages_are_disabled();
    let matters = policy != Policy::Base && is_off == Ok(true);
    let note = matters.then(|| Note::HugePagesDisabled.text().to_owned());
    note.into_iter().collect()
}

/// Opens the statistics file before the program starts, so that a bad path
/// does not cost a run.
fn open_stats(path: &Path) -> Outcome<File> {
    File::create(path).map_err(|error| {
        Failure::bad_usage(format!(
            "cannot write --stats {}: {error}; name a file in a directory that you may write to",
            path.display()
        ))
    })
}

/// The command that runs `words`, of which `program` is the first, with the
/// libraries and this configuration.
pub(crate) fn managed_command(
    program: &Program,
    words: &[OsString],
    config: &Config,
    managers: &Managers,
) -> Command {
    let mut command = plain_command(program, words);
    for name in ENV_ALL.into_iter().chain(ENV_FRAMES) {
        command.env_remove(name);
    }
    command.envs(config.to_env());
    managers.manage(&mut command, std::env::var_os("LD_PRELOAD"));
    command
}

/// The command that runs `words`, of which `program` is the first, as they are.
pub(crate) fn plain_command(program: &Program, words: &[OsString]) -> Command {
    let mut command = Command::new(&program.path);
    let mut words = words.iter();
    if let Some(name) = words.next() {
        command.arg0(name);
    }
    command.args(words);
    command
}

/// Starts a command.
pub(crate) fn spawn(command: &mut Command, program: &Program) -> Outcome<Child> {
    command.spawn().map_err(|error| {
        let name = program.path.display();
        if error.kind() == io::ErrorKind::NotFound {
            let why = "its interpreter does not exist; check its first line, or install its loader";
            Failure::with_status(NOT_FOUND, format!("cannot execute {name}: {why}"))
        } else {
            Failure::with_status(NOT_EXECUTABLE, format!("cannot execute {name}: {error}"))
        }
    })
}

/// Writes the summary and the statistics. The program is over by now, so its
/// exit status stands whatever happens to these.
fn tell(options: &RunArgs, report: &Report, stats: Option<File>) {
    let mut stderr = io::stderr().lock();
    if !options.quiet {
        let _ = stderr.write_all(report.summary().as_bytes());
    }
    if let (Some(file), Some(path)) = (stats, &options.stats)
        && let Err(error) = report.write_json(file)
    {
        let path = path.display();
        let _ = writeln!(stderr, "quire: cannot write --stats {path}: {error}");
    }
}
