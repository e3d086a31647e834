//! One execution: a program is started, read from, waited for and, where it takes too
//! long, stopped.
//!
//! The clock stops when the kernel says that the program has ended. Nothing of this
//! process runs meanwhile but for reading what the program prints, where that is wanted.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quire_linux::execution::{self, Ended, Settings};
use quire_linux::scheduling::Watchdog;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::begin::{self, Ends};
use super::interrupt::Interrupt;
use super::orphans::Known;
use crate::experiment::{Ignored, Output};
use crate::protocol::{Reader, Reported, Stream};
use crate::usage::Counters;

/// How long a program has between being asked and being made to end.
const GRACE: Duration = Duration::from_millis(500);
/// How often what a program wrote on its descriptor is fetched.
const TICK: Duration = Duration::from_millis(100);
/// The size of the pipes that are fetched from now and then, in bytes.
pub(super) const ROOM: usize = 1 << 20;
/// As much of the end of standard error is kept, in bytes.
const TAIL: usize = 4096;

/// What is executed, and how.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// The words of the shell that reads the command, where there is one.
    pub shell: Option<Vec<OsString>>,
    /// Variables beyond this process's.
    pub env: BTreeMap<String, String>,
    /// Where it runs.
    pub directory: Option<PathBuf>,
    /// What it reads.
    pub input: Option<PathBuf>,
    /// What is set for it.
    pub settings: Settings,
    /// When it has to be over.
    pub timeout: Option<Duration>,
    /// Where its standard output goes, where it is not read.
    pub to: Output,
    /// How its standard output is read, where it is.
    pub output: Option<Reader>,
    /// Which exit statuses other than 0 are no failures.
    pub ignore_failure: Ignored,
    /// Whether what it has started and left is ended with it. Where it is stopped, that is
    /// done anyway.
    pub ends_all: bool,
}

/// What an execution gave.
#[derive(Debug)]
pub(super) struct Done {
    /// From before the start to the end.
    pub wall: Duration,
    /// What the kernel says.
    pub ended: Ended,
    /// What the program said.
    pub reported: Reported,
    /// What the processor counted.
    pub counted: BTreeMap<String, Vec<f64>>,
}

/// Why there is nothing.
#[derive(Debug)]
pub(super) enum Undone {
    /// The user wants to end.
    Interrupted,
    /// It did not end within this time, and was killed.
    TooLong(Duration),
    /// The execution failed, for this reason.
    Failed(String),
}

impl Undone {
    /// Why the execution failed, in a line; nothing where the user wants to end.
    pub(super) fn reason(self) -> Option<String> {
        match self {
            Undone::Interrupted => None,
            Undone::TooLong(limit) => {
                let seconds = limit.as_secs_f64();
                Some(format!("it did not end within {seconds} s, and was killed"))
            }
            Undone::Failed(why) => Some(why),
        }
    }

    pub(super) fn of(what: &str) -> impl FnOnce(io::Error) -> Undone {
        move |error| Undone::Failed(format!("{what}: {error}"))
    }
}

/// Executes a job.
pub(super) fn execute(job: &Job, interrupt: &Interrupt) -> Result<Done, Undone> {
    let (mut begin, ends) = begin::ready(job)?;
    let _watchdog = match job.settings.scheduling.and_then(|s| s.realtime_priority()) {
        Some(priority) => Some(
            Watchdog::above(priority).map_err(Undone::of("no watchdog for a real-time program"))?,
        ),
        None => None,
    };
    let counters = Counters::open();
    let known = Known::now();
    let mut streams = Streams::new(ends, job.output.clone());
    let start = Instant::now();
    let pid = begin.start().map_err(|error| {
        let program = job.words.first().map(Path::new).unwrap_or(Path::new(""));
        Undone::Failed(format!("cannot start {}: {error}", program.display()))
    })?;
    let group = Group(pid);
    let outcome = streams.wait(&group, start, job.timeout, interrupt);
    let wall = start.elapsed();
    group.kill(Signal::KILL);
    let ended = execution::wait(group.0.as_raw_nonzero().get() as u32)
        .map_err(Undone::of("cannot wait for it"))?;
    drop(begin);
    if job.ends_all || !matches!(outcome, Outcome::Ended(_)) {
        known.end_others();
    }
    streams.drain();
    streams.end();
    match outcome {
        Outcome::Interrupted => Err(Undone::Interrupted),
        Outcome::TooLong(limit) => Err(Undone::TooLong(limit)),
        Outcome::Ended(wall_then) => {
            if let Some(why) = failure(job, &ended, &streams) {
                return Err(Undone::Failed(why));
            }
            Ok(Done {
                wall: wall_then.unwrap_or(wall),
                ended,
                reported: streams.reported,
                counted: counters.read(),
            })
        }
    }
}

/// What is wrong with an execution that ended.
fn failure(job: &Job, ended: &Ended, streams: &Streams) -> Option<String> {
    let said = streams.last_words();
    if let Some(signal) = ended.signal {
        return Some(format!("it was killed by signal {signal}{said}"));
    }
    match ended.code {
        None => {}
        Some(code) if job.ignore_failure.holds(code) => {}
        Some(code) => return Some(format!("its exit status was {code}{said}")),
    }
    streams.reported.nonsense.clone()
}

/// The processes of an execution.
struct Group(Pid);

impl Group {
    fn kill(&self, signal: Signal) {
        // Nobody may be left.
        let _ = kill_process_group(self.0, signal);
    }
}

/// How waiting ended.
#[derive(Clone, Copy)]
enum Outcome {
    Ended(Option<Duration>),
    TooLong(Duration),
    Interrupted,
}

/// What a program writes.
struct Streams {
    descriptor: File,
    of_descriptor: Stream,
    output: Option<(File, Stream)>,
    error: Option<File>,
    tail: Vec<u8>,
    reported: Reported,
}

impl Streams {
    fn new(ends: Ends, reader: Option<Reader>) -> Streams {
        // What is not to be read for measurements is thrown away, as of a descriptor without lines.
        let reader = reader.unwrap_or(Reader::Output);
        let output = ends.output.map(File::from);
        let streams = Streams {
            descriptor: File::from(ends.descriptor),
            of_descriptor: Stream::new(Reader::Descriptor),
            output: output.map(|file| (file, Stream::new(reader))),
            error: ends.error.map(File::from),
            tail: Vec::new(),
            reported: Reported::default(),
        };
        let output = streams.output.as_ref().map(|(file, _)| file);
        for file in [Some(&streams.descriptor), output, streams.error.as_ref()] {
            // Of a pipe that was just made it cannot fail.
            let _ = file.map(|file| rustix::io::ioctl_fionbio(file, true));
        }
        streams
    }

    /// Waits until the program has ended, takes too long, or the user wants to end.
    fn wait(
        &mut self,
        group: &Group,
        start: Instant,
        timeout: Option<Duration>,
        interrupt: &Interrupt,
    ) -> Outcome {
        // A program that does next to nothing has ended by now, and this is the fastest way to know.
        if execution::has_ended(group.0.as_raw_nonzero().get() as u32) {
            return Outcome::Ended(Some(start.elapsed()));
        }
        let Ok(process) = pidfd_open(group.0, PidfdFlags::empty()) else {
            return Outcome::Ended(None);
        };
        let mut limit = timeout;
        let mut asked = None;
        loop {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            let woken = self.poll(&process, interrupt, left.unwrap_or(TICK).min(TICK));
            let now = start.elapsed();
            if woken {
                return asked.unwrap_or(Outcome::Ended(Some(now)));
            }
            self.drain();
            let is_late = limit.is_some_and(|limit| now >= limit);
            match asked {
                None if interrupt.signal().is_some() => asked = Some(Outcome::Interrupted),
                None if is_late => asked = Some(Outcome::TooLong(timeout.unwrap_or(now))),
                Some(outcome) if is_late => return outcome,
                _ => continue,
            }
            // It may have something to put in order.
            group.kill(Signal::TERM);
            limit = Some(now + GRACE);
        }
    }

    /// Waits for something to happen, and says whether the program has ended.
    fn poll(&self, process: &OwnedFd, interrupt: &Interrupt, time: Duration) -> bool {
        let mut fds = vec![PollFd::new(process, PollFlags::IN)];
        if interrupt.signal().is_none() {
            fds.push(PollFd::from_borrowed_fd(interrupt.wakes(), PollFlags::IN));
        }
        let output = self.output.as_ref().map(|(file, _)| file);
        for file in [output, self.error.as_ref()].into_iter().flatten() {
            fds.push(PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN));
        }
        let time = Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: time.subsec_nanos().into(),
        };
        // An interruption is seen by the next look at the clock.
        let _ = poll(&mut fds, Some(&time));
        !fds[0].revents().is_empty()
    }

    /// Takes what was written so far.
    fn drain(&mut self) {
        let Streams { reported, tail, .. } = self;
        read_all(&mut self.descriptor, |bytes| {
            self.of_descriptor.feed(bytes, reported)
        });
        let open = match &mut self.output {
            Some((file, stream)) => read_all(file, |bytes| stream.feed(bytes, reported)),
            None => true,
        };
        if !open && let Some((_, mut stream)) = self.output.take() {
            stream.end(reported);
        }
        let open = self.error.as_mut().is_none_or(|file| {
            read_all(file, |bytes| {
                tail.extend(bytes);
                tail.drain(..tail.len().saturating_sub(TAIL));
            })
        });
        if !open {
            self.error = None;
        }
    }

    fn end(&mut self) {
        self.of_descriptor.end(&mut self.reported);
        if let Some((_, stream)) = &mut self.output {
            stream.end(&mut self.reported);
        }
    }

    /// The last line of standard error, after a colon, where there is one.
    fn last_words(&self) -> String {
        let text = String::from_utf8_lossy(&self.tail);
        let line = text
            .lines()
            .rev()
            .map(str::trim)
            .find(|line| !line.is_empty());
        let words = line.map(|line| line.chars().filter(|c| !c.is_control()).take(200).collect());
        words.map_or_else(String::new, |words: String| format!("; it said: {words}"))
    }
}

/// Reads what a pipe holds now, and no more than a program can write in a while. Says
/// whether more may come.
fn read_all(file: &mut File, mut take: impl FnMut(&[u8])) -> bool {
    // More of it would push out of the processor's caches what the next program finds there.
    let mut bytes = [0; 8 << 10];
    for _ in 0..ROOM / bytes.len() {
        match file.read(&mut bytes) {
            Ok(0) => return false,
            Ok(n) => take(&bytes[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return true,
        }
    }
    true
}

/// Runs a command of the user's besides, with a shell, within a time. What it leaves in a
/// session of its own, such as a server for the executions, goes on.
pub(super) fn besides(
    text: &str,
    job: &Job,
    limit: Duration,
    interrupt: &Interrupt,
) -> Result<(), Undone> {
    let shell = Job {
        words: ["sh", "-c", text].map(OsString::from).into(),
        input: None,
        settings: Settings::default(),
        timeout: Some(limit),
        shell: None,
        to: Output::Null,
        output: None,
        ignore_failure: Ignored::default(),
        ends_all: false,
        ..job.clone()
    };
    let failed = |undone: Undone| match undone.reason() {
        Some(why) => Undone::Failed(format!("`{text}`: {why}")),
        None => Undone::Interrupted,
    };
    execute(&shell, interrupt).map(drop).map_err(failed)
}
