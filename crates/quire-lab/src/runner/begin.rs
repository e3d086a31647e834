//! How a program begins: all that it takes is made ready before, and then it is started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use quire_linux::execution::Settings;
use quire_linux::spawn;
use rustix::process::Pid;

use super::execute::{Job, ROOM, Undone};
use crate::experiment::Output;
use crate::protocol::ENV_FD;

/// A program that can be started.
///
/// It has the ends of pipes that the program writes to, and is kept until the program has ended: when
/// the last of these ends is closed, who waits at the other one is woken. The program closes its own on
/// the way out, and to wake this process then would make the end of it take a tenth longer.
pub(super) struct Ready {
    how: How,
    /// Where the program reports measurements.
    _descriptor: OwnedFd,
}

enum How {
    /// Without a copy of this process's page tables (`posix_spawn`), as nothing of this process runs
    /// in the child.
    Spawn(Box<spawn::Ready>),
    /// By fork, for what has to be set in the child, or looked for elsewhere.
    Fork(Box<Command>),
}

/// Where is read what a program writes.
pub(super) struct Ends {
    /// Its measurements.
    pub descriptor: OwnedFd,
    /// Its standard output, where that is read.
    pub output: Option<OwnedFd>,
    /// Its standard error, where that is read.
    pub error: Option<OwnedFd>,
}

impl Ready {
    /// Starts it.
    pub(super) fn start(&mut self) -> io::Result<Pid> {
        match &mut self.how {
            How::Spawn(ready) => ready.start(),
            How::Fork(command) => command.spawn().map(|child| Pid::from_child(&child)),
        }
    }
}

/// Makes a job ready, with all files open.
pub(super) fn ready(job: &Job) -> Result<(Ready, Ends), Undone> {
    let (descriptor, writes) = pipe()?;
    let nothing = Path::new("/dev/null");
    let input = reading(job.input.as_deref().unwrap_or(nothing))?;
    let (read_output, output) = match (&job.output, &job.to) {
        (Some(_), _) | (_, Output::Pipe) => both(pipe()?),
        (_, Output::Null) => (None, Some(writing(nothing)?)),
        (_, Output::Inherit) => (None, None),
        (_, Output::File(path)) => (None, Some(writing(path)?)),
    };
    let (read_error, error) = match job.to {
        Output::Inherit => (None, None),
        _ => both(pipe()?),
    };
    let streams = [Some(input), output, error];
    let mut env = job.env.clone();
    env.insert(ENV_FD.into(), writes.as_raw_fd().to_string());
    let is_plain =
        job.settings == Settings::default() && job.directory.is_none() && !env.contains_key("PATH");
    let how = match is_plain {
        true => {
            // No other thread starts programs, which would have it, too.
            rustix::io::fcntl_setfd(&writes, rustix::io::FdFlags::empty())
                .map_err(|error| Undone::of("no descriptor for measurements")(error.into()))?;
            let os = |(name, value): (String, String)| (OsString::from(name), value.into());
            let env: BTreeMap<OsString, OsString> = env.into_iter().map(os).collect();
            let ready = spawn::Ready::new(&job.words, &env, streams);
            How::Spawn(Box::new(ready.map_err(Undone::of("cannot be started"))?))
        }
        false => How::Fork(Box::new(forked(job, &env, streams, writes.as_raw_fd()))),
    };
    let ready = Ready {
        how,
        _descriptor: writes,
    };
    let ends = Ends {
        descriptor,
        output: read_output,
        error: read_error,
    };
    Ok((ready, ends))
}

fn forked(
    job: &Job,
    env: &BTreeMap<String, String>,
    streams: [Option<OwnedFd>; 3],
    descriptor: i32,
) -> Command {
    let mut words = job.words.iter();
    let mut command = Command::new(words.next().cloned().unwrap_or_default());
    let stream = |one: Option<OwnedFd>| one.map_or_else(Stdio::inherit, Stdio::from);
    let [input, output, error] = streams.map(stream);
    command
        .args(words)
        .envs(env)
        .stdin(input)
        .stdout(output)
        .stderr(error)
        .process_group(0);
    if let Some(directory) = &job.directory {
        command.current_dir(directory);
    }
    job.settings.apply(&mut command, vec![descriptor]);
    command
}

fn both((reads, writes): (OwnedFd, OwnedFd)) -> (Option<OwnedFd>, Option<OwnedFd>) {
    (Some(reads), Some(writes))
}

/// A pipe with much room: its end to read from, and its end to write to.
fn pipe() -> Result<(OwnedFd, OwnedFd), Undone> {
    let (reads, writes) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| Undone::of("no pipe")(error.into()))?;
    // A smaller pipe is emptied as often.
    let _ = rustix::pipe::fcntl_setpipe_size(&reads, ROOM);
    Ok((reads, writes))
}

fn reading(path: &Path) -> Result<OwnedFd, Undone> {
    let opened = File::open(path);
    let opened = opened.map_err(Undone::of(&format!("cannot read {}", path.display())));
    opened.map(OwnedFd::from)
}

fn writing(path: &Path) -> Result<OwnedFd, Undone> {
    let opened = File::create(path);
    let opened = opened.map_err(Undone::of(&format!("cannot write {}", path.display())));
    opened.map(OwnedFd::from)
}
