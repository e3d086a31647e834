//! Signals of a thread that waits for a server.
//!
//! While a thread holds the lock (`state`), all its signals are blocked: a handler might wait for
//! another thread that needs the lock, as those of collectors that stop the world do, or never
//! come back, by `siglongjmp`. That is a moment, unless a server does not answer. Whoever then
//! wants to end or stop the program by a key or by `kill` need not wait, too.

use std::ffi::c_int;
use std::mem;
use std::ptr;

/// Those by which people end or stop a program.
const OF_PEOPLE: [c_int; 5] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGTSTP,
];

/// Which signals a thread blocks.
#[derive(Clone, Copy)]
pub struct Blocked(libc::sigset_t);

impl Blocked {
    /// None.
    pub const fn none() -> Blocked {
        // SAFETY: zeros are a value of this type: the set of nothing.
        Blocked(unsafe { mem::zeroed() })
    }

    /// Those of this thread.
    pub fn now() -> Blocked {
        let Blocked(mut set) = Blocked::none();
        // SAFETY: the call changes nothing, and writes a whole set.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut set) };
        Blocked(set)
    }

    /// The calling thread blocks these from now on, and no others.
    pub fn restore(&self) {
        // SAFETY: the set is one.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Ends or stops the process, if people have asked for that, the program has not said what is
/// to be done instead, and this thread did not block it before.
pub fn obey(before: &Blocked) {
    let Blocked(mut pending) = Blocked::none();
    // SAFETY: the call writes a whole set.
    unsafe { libc::sigpending(&raw mut pending) };
    let is_in = |set: &libc::sigset_t, signal| {
        // SAFETY: the set is one.
        unsafe { libc::sigismember(set, signal) == 1 }
    };
    for signal in OF_PEOPLE {
        if is_in(&pending, signal) && !is_in(&before.0, signal) && is_usual(signal) {
            let_through(signal);
        }
    }
}

/// Those that a thread raises itself by what it does, which ends no call.
const OF_FAULTS: [c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
];

/// Whether a handler of the program may be one that ends calls: one that is not to have them go on.
pub fn end_calls() -> bool {
    let sent = (1..=libc::SIGRTMAX()).filter(|signal| !OF_FAULTS.contains(signal));
    sent.filter_map(action).any(|action| {
        let is_handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        is_handled && action.sa_flags & libc::SA_RESTART == 0
    })
}

/// Whether the program leaves it to the system what a signal does.
fn is_usual(signal: c_int) -> bool {
    action(signal).is_some_and(|action| action.sa_sigaction == libc::SIG_DFL)
}

/// What a signal does; nothing where it is the C library's own.
fn action(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: zeros are a value of this type, and the call only asks.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        (libc::sigaction(signal, ptr::null(), &raw mut action) == 0).then_some(action)
    }
}

/// Ends the process by a signal, whatever the program has said is to be done.
pub fn die_by(signal: c_int) -> ! {
    // SAFETY: zeros are a value of this type: the usual action, which no handler takes part in.
    unsafe {
        let usual: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, &raw const usual, ptr::null_mut());
        // It waits where this thread blocks it, until that is over.
        libc::raise(signal);
    }
    let_through(signal);
    std::process::abort()
}

/// It comes before the first call here returns.
fn let_through(signal: c_int) {
    let Blocked(mut set) = Blocked::none();
    // SAFETY: the sets are whole ones.
    unsafe {
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
    }
}
