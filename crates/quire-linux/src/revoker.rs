//! A process that takes pages from mappings of this one when their time is over, also while this
//! one is stopped.
//!
//! Threads of a program cannot do that. A signal or a debugger stops all of them at once, and when
//! they go on, those that read the memory run as early as the one that would take it from them. So
//! a *revoker* is a process of its own that has this one's memory (`CLONE_VM`) and nothing else of
//! it: no descriptors, no signals, no session. It makes bare system calls, on a stack of its own,
//! and sleeps until the [`Term`] is over.
//!
//! It ends with the thread that started it (`PR_SET_PDEATHSIG`): so also when the program is killed,
//! or executes another one. The program does not notice it: a debugger is not told of it
//! (`CLONE_UNTRACED`), and as it raises no signal when it ends, `wait` does not know it; who waits for
//! children that raise none (`__WALL`) can ask whether one [is a revoker](is_revoker).
//!
//! What it takes are entries of page tables. What the pages hold stays in their file, so that nothing
//! is lost where the time was longer after all.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use quire_core::units::{AddrRange, Bytes};

use crate::futex::SignalsBlocked;
use crate::memory;
use crate::noted::Noted;
use crate::raw::{Errno, Result, check, syscall};
use crate::scheduling::{Children, Scheduling};
use crate::thread::{process_id, reap};

pub use term::{Term, Watched};

mod term;

/// Size of its stack, the guard page included.
const STACK: Bytes = Bytes(64 << 10);

/// It has come up within this time, or never will.
const STARTING: Duration = Duration::from_secs(5);

/// A revoker is looked for so often when it is to end, and so many times before it is killed.
const LOOK: Duration = Duration::from_micros(50);
const LOOKS: u32 = 20_000;

/// Revokers that were started and not reaped, each with its process: more than programs have. Those
/// of another process are its parent's, and not its children.
static ALL: Noted<64> = Noted::new();

/// Whether a child of this process is a revoker. May be asked in a signal handler.
#[must_use]
pub fn is_revoker(child: u32) -> bool {
    ALL.has(process_id(), child)
}

/// Whether this process has a revoker. May be asked in a signal handler.
#[must_use]
pub fn is_any() -> bool {
    ALL.has_any(process_id())
}

/// A revoker that watches. It ends with the thread that started it, which drops it before.
#[derive(Debug)]
pub struct Revoker {
    term: Arc<Term>,
    process: u32,
    stack: AddrRange,
}

/// What a revoker is told when it begins.
struct Orders<'a> {
    term: &'a Term,
    scheduling: Option<Scheduling>,
}

impl Revoker {
    /// Starts a revoker, which is scheduled in a way, if that is allowed.
    ///
    /// # Errors
    /// As `clone`, for example where a filter of system calls forbids it. `EINVAL` where the
    /// process has chosen another namespace of processes for its children.
    pub fn start(term: Arc<Term>, scheduling: Option<Scheduling>) -> Result<Revoker> {
        if !children_are_here() {
            return Err(Errno(libc::EINVAL));
        }
        let orders = Orders {
            term: &term,
            scheduling,
        };
        let stack = memory::new_stack(STACK)?;
        term.engage();
        let (top, argument) = (stack.end.as_ptr().cast(), (&raw const orders).cast_mut());
        let flags = libc::CLONE_VM | libc::CLONE_UNTRACED;
        // It inherits that: whatever handlers the program has never run there.
        let blocked = SignalsBlocked::new();
        // SAFETY: the stack is new, and lives until the process has ended. So do the term, which
        // is shared, and the orders until it has said that it does not need them any more. What it
        // runs makes no use of what belongs to a thread.
        let process = unsafe { libc::clone(run, top, flags, argument.cast()) };
        drop(blocked);
        let Ok(process) = u32::try_from(process) else {
            let errno = rustix::io::Errno::from_io_error(&std::io::Error::last_os_error());
            // SAFETY: nobody has used it.
            unsafe { memory::unmap(stack)? };
            return Err(errno.map_or(Errno(libc::EAGAIN), Errno::from));
        };
        term.set_revoker(process);
        ALL.add(term.owner(), process);
        let revoker = Revoker {
            term: Arc::clone(&term),
            process,
            stack,
        };
        match term.is_watched_within(STARTING) {
            true => Ok(revoker),
            false => {
                // It is killed, if need be, before the orders are gone.
                drop(revoker);
                Err(Errno(libc::ESRCH))
            }
        }
    }

    /// The number of its process.
    #[must_use]
    pub const fn process(&self) -> u32 {
        self.process
    }
}

impl Drop for Revoker {
    fn drop(&mut self) {
        if process_id() != self.term.owner() {
            // The copy that a fork made has no revoker.
            return;
        }
        self.term.dismiss();
        let gone = (0..LOOKS).any(|_| {
            let is_reaped = reap(self.process, libc::WNOHANG);
            if !is_reaped {
                std::thread::sleep(LOOK);
            }
            is_reaped
        });
        if !gone {
            let args = [self.process as usize, libc::SIGKILL as usize, 0, 0, 0, 0];
            // SAFETY: it is our child, and not reaped, so that the number is its own.
            let _ = unsafe { syscall(libc::SYS_kill, args) };
            reap(self.process, 0);
        }
        self.term.set_revoker(0);
        ALL.remove(self.term.owner(), self.process);
        // SAFETY: who used the stack has ended.
        let _ = unsafe { memory::unmap(self.stack) };
    }
}

/// Whether children of this process are in its own namespace of processes. In another one, the first
/// is all others' init, and when it ends, so does the namespace.
fn children_are_here() -> bool {
    let of = |name| rustix::fs::stat(name).ok().map(|file| file.st_ino);
    of(c"/proc/self/ns/pid") == of(c"/proc/self/ns/pid_for_children")
}

/// What the process does. What belongs to a thread (`errno`, thread-local variables, whatever
/// allocates or panics) is not its own here, and not to be touched.
extern "C" fn run(orders: *mut c_void) -> c_int {
    // SAFETY: `Revoker::start` keeps the orders until they are not needed any more.
    let orders = unsafe { &*orders.cast::<Orders<'_>>() };
    let term = orders.term;
    if settle(term.owner()).is_ok() {
        if let Some(scheduling) = orders.scheduling {
            // It watches with any.
            let _ = scheduling.set(Children::Inherit);
        }
        // From here on the orders may be gone.
        term.keep_watch();
    }
    0
}

/// Keeps nothing of the program but its memory, and ends with the thread that started it.
fn settle(owner: u32) -> Result<()> {
    let kill = libc::SIGKILL as usize;
    let name = c"quire-revoker".as_ptr() as usize;
    // SAFETY: all of these change this process alone, which has nothing that it needs; the texts
    // live for ever. A directory and a session of its own would be nice, and need not be.
    unsafe {
        syscall(
            libc::SYS_prctl,
            [libc::PR_SET_PDEATHSIG as usize, kill, 0, 0, 0, 0],
        )?;
        syscall(libc::SYS_close_range, [0, u32::MAX as usize, 0, 0, 0, 0])?;
        let _ = syscall(
            libc::SYS_prctl,
            [libc::PR_SET_NAME as usize, name, 0, 0, 0, 0],
        );
        let _ = syscall(libc::SYS_setsid, [0; 6]);
        let _ = syscall(libc::SYS_chdir, [c"/".as_ptr() as usize, 0, 0, 0, 0, 0]);
        // Who started it may have ended before it asked to end then.
        match syscall(libc::SYS_getppid, [0; 6])? {
            parent if parent == owner as usize => Ok(()),
            _ => check(-libc::ESRCH as isize).map(drop),
        }
    }
}

#[cfg(test)]
mod tests;
