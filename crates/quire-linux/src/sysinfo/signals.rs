//! Signals and waiting for a parent that stands in for its child: what a
//! launcher needs so that the program behaves as if it had been started
//! directly.
//!
//! The launcher blocks the signals that it handles and fetches them one by
//! one, so no code runs in a signal handler. These are all that can be caught:
//! one that was left out would end or stop the launcher alone. A fault of the
//! launcher's own ends it all the same, as the kernel does not let a blocked
//! signal hold that up.
//!
//! The child gets back the mask, the dispositions and the standard descriptors
//! that the launcher was given, which `std` alone would not do: its runtime
//! ignores SIGPIPE and opens `/dev/null` in the place of descriptors that were
//! closed, and its `Command` empties the mask.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;
use std::{io, mem, ptr};

pub use crate::execution::Ended;

static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
/// A bit for each standard descriptor that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Remembers what Rust's runtime changes; see [`record_start!`](crate::record_start).
pub extern "C" fn record_start() {
    SIGPIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    // SAFETY: the call touches no memory, and refuses numbers that are not open.
    let is_closed = |fd: &libc::c_int| unsafe { libc::fcntl(*fd, libc::F_GETFD) } < 0;
    let closed = STANDARD.filter(is_closed).fold(0, |all, fd| all | 1 << fd);
    CLOSED.store(closed, Ordering::Relaxed);
}

/// The standard descriptors.
const STANDARD: std::ops::RangeInclusive<libc::c_int> = 0..=2;

/// Put once into a program, makes it remember whether SIGPIPE was ignored when
/// it was started, and which standard descriptors were closed. Rust's runtime
/// changes both before `main`, so an initialiser of the executable looks them up.
#[macro_export]
macro_rules! record_start {
    () => {
        // SAFETY: the section holds pointers to functions that are called once
        // before `main`; this one only asks the kernel and stores flags.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static RECORD_START: extern "C" fn() = $crate::sysinfo::signals::record_start;
    };
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub number: i32,
    /// Whether the kernel sent it, such as for a key on the terminal, rather
    /// than a process.
    pub from_kernel: bool,
    /// The word that its sender put beside it (`sigqueue`).
    word: Option<usize>,
}

impl Arrived {
    /// Sends it on to process `pid`. A process that is gone is no concern.
    pub fn pass_on(self, pid: u32) {
        let Some(word) = self.word else {
            return send(pid, self.number);
        };
        let sival_ptr = ptr::without_provenance_mut(word);
        // SAFETY: the call touches no memory; the word is not followed.
        unsafe { libc::sigqueue(pid as libc::pid_t, self.number, libc::sigval { sival_ptr }) };
    }
}

/// The signals of this process, blocked so that they can be fetched.
pub struct Signals {
    given_mask: libc::sigset_t,
    child_was_ignored: bool,
}

impl Signals {
    /// Blocks all signals in this thread, which must be the only one, and lets exit statuses of
    /// children be collected.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn block() -> io::Result<Signals> {
        let set = all_signals();
        // SAFETY: all-zero is a valid signal set; the call overwrites it.
        let mut given_mask = unsafe { mem::zeroed() };
        // SAFETY: both sets live for the call.
        let rc = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut given_mask) };
        if rc != 0 {
            return Err(io::Error::from_raw_os_error(rc));
        }
        let child_was_ignored = is_ignored(libc::SIGCHLD);
        if child_was_ignored {
            set_disposition(libc::SIGCHLD, libc::SIG_DFL);
        }
        Ok(Signals {
            given_mask,
            child_was_ignored,
        })
    }

    /// Lets `command` start with the mask, the dispositions and the standard descriptors that
    /// this process was given.
    pub fn hand_down(&self, command: &mut Command) {
        let mask = self.given_mask;
        let ignore_child = self.child_was_ignored;
        let ignore_pipe = SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed);
        let closed = CLOSED.load(Ordering::Relaxed);
        let restore = move || {
            if ignore_child {
                set_disposition(libc::SIGCHLD, libc::SIG_IGN);
            }
            if ignore_pipe {
                set_disposition(libc::SIGPIPE, libc::SIG_IGN);
            }
            for fd in STANDARD.filter(|fd| closed & 1 << fd != 0) {
                // SAFETY: the process is about to execute another program, and nothing of it uses
                // what the runtime opened here.
                unsafe { libc::close(fd) };
            }
            // SAFETY: the set lives for the call; no old set is asked for.
            let rc = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask, ptr::null_mut()) };
            match rc {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        };
        // SAFETY: between fork and exec it makes only async-signal-safe calls
        // and does not allocate.
        unsafe { command.pre_exec(restore) };
    }

    /// Waits for the next of the blocked signals.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn wait(&self) -> io::Result<Arrived> {
        loop {
            if let Some(arrived) = fetch(None)? {
                return Ok(arrived);
            }
        }
    }

    /// The next of the blocked signals, if one arrives within `time`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn wait_for(&self, time: Duration) -> io::Result<Option<Arrived>> {
        fetch(Some(time))
    }
}

/// Fetches a signal; waits for one without end where no time is given. `None`
/// where none arrived, or the wait was interrupted.
fn fetch(time: Option<Duration>) -> io::Result<Option<Arrived>> {
    let set = all_signals();
    // SAFETY: all-zero is a valid `siginfo_t`; the call overwrites it.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    let time = time.map(|time| libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: all arguments live for the call; no time is a valid argument.
    let number = unsafe { libc::sigtimedwait(&set, &mut info, time) };
    if number > 0 {
        // SAFETY: what was queued has the sender's word, and any bytes are one.
        let word = || unsafe { info.si_value() }.sival_ptr.addr();
        return Ok(Some(Arrived {
            number,
            from_kernel: info.si_code > 0,
            word: (info.si_code == libc::SI_QUEUE).then(word),
        }));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => Ok(None),
        _ => Err(error),
    }
}

/// A change in the state of a child.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChildEvent {
    /// It ended.
    Ended(Ended),
    /// A signal stopped it.
    Stopped(i32),
    /// It runs again.
    Continued,
}

/// The next change in the state of child `pid`, if there is one.
///
/// # Errors
/// When `pid` is no child of this process.
pub fn poll_child(pid: u32) -> io::Result<Option<ChildEvent>> {
    let options = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
    let mut status = 0;
    // SAFETY: all-zero is a valid `rusage`; the call overwrites it.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: both out-arguments live for the call.
    match unsafe { libc::wait4(pid as libc::pid_t, &mut status, options, &mut usage) } {
        -1 => return Err(io::Error::last_os_error()),
        0 => return Ok(None),
        _ => {}
    }
    Ok(Some(if libc::WIFSTOPPED(status) {
        ChildEvent::Stopped(libc::WSTOPSIG(status))
    } else if libc::WIFCONTINUED(status) {
        ChildEvent::Continued
    } else {
        ChildEvent::Ended(Ended::of(status, &usage))
    }))
}

/// Sends `signal` to process `pid`. A process that is gone is no concern.
pub fn send(pid: u32, signal: i32) {
    // SAFETY: the call touches no memory.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

/// Ends this process by `signal`, without a core dump of it, so that its
/// parent sees the same status as if the child had been its own.
pub fn die_by(signal: i32) -> ! {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
    let no_core = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // Where a core dump cannot be switched off, dying the right way is still
    // worth more than a spare dump costs.
    let _ = setrlimit(Resource::Core, no_core);
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    set_disposition(signal, libc::SIG_DFL);
    let set = set_of(&[signal]);
    // SAFETY: the set lives for the call; no old set is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut()) };
    // SAFETY: the call touches no memory of ours.
    unsafe { libc::raise(signal) };
    std::process::exit(128 + signal)
}

/// All but those of the C library's own, which it never blocks.
fn all_signals() -> libc::sigset_t {
    // SAFETY: all-zero is a valid signal set.
    let mut set = unsafe { mem::zeroed() };
    // SAFETY: the set lives for the call.
    unsafe { libc::sigfillset(&mut set) };
    set
}

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: all-zero is a valid signal set.
    let mut set = unsafe { mem::zeroed() };
    // SAFETY: the set lives for the call.
    unsafe { libc::sigemptyset(&mut set) };
    for signal in signals {
        // SAFETY: the set is initialised and lives for the call; a bad number
        // is refused.
        unsafe { libc::sigaddset(&mut set, *signal) };
    }
    set
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: all-zero is a valid `sigaction`; the call overwrites it.
    let mut old: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: nothing is changed, and `old` lives for the call.
    let rc = unsafe { libc::sigaction(signal, ptr::null(), &mut old) };
    rc == 0 && old.sa_sigaction == libc::SIG_IGN
}

/// Sets the disposition to `SIG_DFL` or `SIG_IGN`. The signals that refuse it
/// need no change.
fn set_disposition(signal: libc::c_int, disposition: libc::sighandler_t) {
    // SAFETY: all-zero is a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = disposition;
    // SAFETY: the action lives for the call and installs no handler.
    unsafe { libc::sigaction(signal, &action, ptr::null_mut()) };
}
