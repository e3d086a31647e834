//! The process: its threads, its signals, and the windows in which one of its
//! threads executes instruction by instruction.
//!
//! Threads are traced as soon as they are made, and run freely but for the one
//! in the window. Signals go to the program unchanged. Children are not traced.
//! A thread that sleeps is not woken for a window, because that would end some
//! of the calls in which it may sleep. Quire's own threads are left alone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use quire_core::tlb::Geometry;
use quire_linux::ptrace::{self, Event, Resume};
use quire_linux::sysinfo::signals::{Arrived, Ended, Signals};

use crate::decode::Instructions;
use crate::pages::PageTable;
use crate::sampling::{Plan, Sampling};
use crate::window::{Models, Window};

/// When no thread runs, how long until the next look.
const IDLE: Duration = Duration::from_millis(5);
/// How long a thread may take to stop for a window.
const STOPS_WITHIN: Duration = Duration::from_millis(200);
/// What the names of Quire's own threads begin with.
const OWN_THREADS: &str = "quire-";

/// Why a program could not be traced.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The kernel does not allow it.
    #[error("the program may not be traced: {0}")]
    Refused(io::Error),
    /// Something else failed.
    #[error("cannot trace the program: {0}")]
    System(#[from] io::Error),
}

/// What the tracer asks of the command that runs it.
pub trait Host {
    /// A signal arrived at this process, which stands in for the program.
    fn arrived(&mut self, arrived: Arrived);
    /// Job control stopped the program by this signal.
    fn stopped(&mut self, signal: i32);
    /// So many windows have been taken, and so many instructions executed in
    /// the present one.
    fn progress(&mut self, windows: usize, instructions: u64);
}

/// What became of the program.
#[derive(Debug)]
pub struct Traced {
    /// How it ended.
    pub ended: Ended,
    /// The windows that were kept, in order of time.
    pub windows: Vec<Window>,
    /// How many windows were taken.
    pub taken: usize,
}

/// Traces the child `pid` of this process until it ends.
///
/// # Errors
/// When it cannot be traced. It runs on then.
pub fn trace(
    pid: u32,
    plan: &Plan,
    geometry: &Geometry,
    signals: &Signals,
    host: &mut dyn Host,
) -> Result<Traced, TraceError> {
    let mut tracer = Tracer {
        pid,
        plan,
        geometry,
        signals,
        host,
        threads: BTreeMap::new(),
        page_table: None,
        instructions: Instructions::default(),
        sampling: Sampling::new(plan),
        last: 0,
        ended: None,
    };
    tracer.attach()?;
    tracer.run()?;
    let ended = tracer
        .ended
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    Ok(Traced {
        ended,
        taken: tracer.sampling.taken(),
        windows: tracer.sampling.into_kept(),
    })
}

/// A traced thread.
#[derive(Debug, Default)]
pub(crate) struct Thread {
    /// What the TLBs hold that its windows are fed to. They stay from window
    /// to window, as a machine's do.
    pub(crate) models: Option<Box<Models>>,
}

/// The tracer of one process.
pub(crate) struct Tracer<'a> {
    pub(crate) pid: u32,
    pub(crate) plan: &'a Plan,
    pub(crate) geometry: &'a Geometry,
    pub(crate) signals: &'a Signals,
    pub(crate) host: &'a mut dyn Host,
    pub(crate) threads: BTreeMap<u32, Thread>,
    /// Nothing until the next window needs it.
    pub(crate) page_table: Option<PageTable>,
    pub(crate) instructions: Instructions,
    pub(crate) sampling: Sampling<Window>,
    /// The thread that was in the last window.
    last: u32,
    pub(crate) ended: Option<Ended>,
}

impl Tracer<'_> {
    /// Takes the threads that the process has by now. Those that it makes
    /// later are taken by the kernel.
    fn attach(&mut self) -> Result<(), TraceError> {
        if let Err(error) = ptrace::seize(self.pid) {
            // A process that is over already is refused, too.
            self.drain()?;
            return match self.ended {
                Some(_) => Ok(()),
                None => Err(TraceError::Refused(error)),
            };
        }
        self.threads.insert(self.pid, Thread::default());
        loop {
            let mut fresh = thread_ids(self.pid);
            fresh.retain(|tid| !self.threads.contains_key(tid) && !is_own(self.pid, *tid));
            // Those that cannot be taken are gone, or were taken at birth.
            fresh.retain(|tid| ptrace::seize(*tid).is_ok());
            if fresh.is_empty() {
                return Ok(());
            }
            for tid in fresh {
                self.threads.insert(tid, Thread::default());
            }
        }
    }

    /// Alternates between running freely and windows until the process ends.
    fn run(&mut self) -> io::Result<()> {
        let mut due = Instant::now() + self.plan.after;
        while self.ended.is_none() {
            self.drain()?;
            if self.ended.is_some() {
                break;
            }
            let now = Instant::now();
            if now < due || self.is_complete() {
                let time = if self.is_complete() {
                    STOPS_WITHIN
                } else {
                    due - now
                };
                self.rest(time)?;
                continue;
            }
            let pause = match self.choose() {
                Some(tid) => {
                    self.last = tid;
                    if let Some(window) = self.window(tid)? {
                        self.sampling.keep(window);
                    }
                    // No more time in windows than outside of them.
                    self.sampling.every().max(now.elapsed())
                }
                None => IDLE,
            };
            due = Instant::now() + pause;
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.plan.is_whole() && self.sampling.taken() > 0
    }

    /// Waits until something happens, or for `time`.
    pub(crate) fn rest(&mut self, time: Duration) -> io::Result<()> {
        if let Some(arrived) = self.signals.wait_for(time)? {
            self.host.arrived(arrived);
        }
        Ok(())
    }

    /// Answers the events that are there.
    fn drain(&mut self) -> io::Result<()> {
        while let Some((tid, event)) = ptrace::wait(false)? {
            self.answer(tid, event);
        }
        Ok(())
    }

    /// Answers an event of a thread that is in no window. A thread that does
    /// not take the answer was killed meanwhile, and says so by another event.
    pub(crate) fn answer(&mut self, tid: u32, event: Event) {
        match event {
            Event::Ended(ended) => {
                self.threads.remove(&tid);
                if tid == self.pid {
                    self.ended = Some(ended);
                }
            }
            Event::Signal(signal) => {
                let _ = ptrace::resume(tid, Resume::Run, signal);
            }
            Event::Group(signal) => self.stop_with(tid, signal),
            Event::Stopped => self.admit(tid),
            // A new thread stops by itself when it is born. A window may have
            // left a thread in a system call, from which it returns now.
            Event::Cloned(_) | Event::SystemCall => {
                let _ = ptrace::resume(tid, Resume::Run, 0);
            }
            Event::Executed => {
                self.threads.clear();
                self.threads.insert(tid, Thread::default());
                self.page_table = None;
                let _ = ptrace::resume(tid, Resume::Run, 0);
            }
        }
    }

    /// A thread that stopped without a reason of its own goes on. Processes
    /// that the kernel took for threads are let go.
    fn admit(&mut self, tid: u32) {
        if tid != self.pid && !thread_ids(self.pid).contains(&tid) {
            let _ = ptrace::detach(tid, 0);
            return;
        }
        self.threads.entry(tid).or_default();
        let _ = ptrace::resume(tid, Resume::Run, 0);
    }

    /// A thread stays stopped by job control, and this process with it.
    pub(crate) fn stop_with(&mut self, tid: u32, signal: i32) {
        let _ = ptrace::listen(tid);
        if tid == self.pid {
            self.host.stopped(signal);
        }
    }

    /// The thread whose turn it is: the next one by number that runs.
    fn choose(&self) -> Option<u32> {
        let after = self.threads.range(self.last + 1..).map(|(tid, _)| *tid);
        let from_the_start = self.threads.range(..=self.last).map(|(tid, _)| *tid);
        let mut all = after.chain(from_the_start);
        all.find(|tid| is_running(self.pid, *tid) && !is_own(self.pid, *tid))
    }

    /// Stops a thread. Says whether it is stopped now.
    pub(crate) fn stop(&mut self, tid: u32) -> io::Result<bool> {
        if ptrace::interrupt(tid).is_err() {
            return Ok(false);
        }
        let end = Instant::now() + STOPS_WITHIN;
        loop {
            match ptrace::wait(false)? {
                Some((who, Event::Stopped)) if who == tid => return Ok(true),
                Some((who, event)) => self.answer(who, event),
                None => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(false);
                    }
                    self.rest(left)?;
                }
            }
            if !self.threads.contains_key(&tid) {
                return Ok(false);
            }
        }
    }
}

fn thread_ids(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    let names = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect()
}

/// Whether a process ignores a signal.
pub(crate) fn ignores(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (signal - 1) != 0)
}

/// Whether a thread is one of the library's own.
fn is_own(pid: u32, tid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
    name.is_ok_and(|name| name.starts_with(OWN_THREADS))
}

fn is_running(pid: u32, tid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('R'))
}
