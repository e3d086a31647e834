//! How the kernel gives threads processor time: the classes, those of real time among
//! them, and what keeps a real-time program that runs wild from taking the machine with
//! it. The kernel kills it after a time ([`kill_after`]), and whoever started it goes
//! before it meanwhile ([`Watchdog`]).
//!
//! Everything here holds for the calling thread or process, and is a bare system call, so
//! that it may be made between fork and exec. `execution` sets programs up with it.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use crate::raw::{self, syscall};

/// The calling thread.
const SELF: usize = 0;

/// The highest real-time priority of programs; the one above it is their watchdog's.
pub const HIGHEST: u8 = 98;

/// How the kernel gives a program processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduling {
    /// As all programs.
    Other,
    /// As a program that works for long and answers nobody.
    Batch,
    /// When nobody else wants it.
    Idle,
    /// Before all others, until it sleeps. The priority is 1 to [`HIGHEST`].
    Fifo(u8),
    /// The same, by turns within a priority.
    RoundRobin(u8),
}

/// Whether threads and processes that are started from here are scheduled the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    /// They are.
    Inherit,
    /// They are scheduled as by default.
    Reset,
}

impl Scheduling {
    /// The priority, where it goes before all others.
    #[must_use]
    pub fn realtime_priority(self) -> Option<u8> {
        match self {
            Scheduling::Fifo(priority) | Scheduling::RoundRobin(priority) => Some(priority),
            Scheduling::Other | Scheduling::Batch | Scheduling::Idle => None,
        }
    }

    fn policy(self) -> i32 {
        match self {
            Scheduling::Other => libc::SCHED_OTHER,
            Scheduling::Batch => libc::SCHED_BATCH,
            Scheduling::Idle => libc::SCHED_IDLE,
            Scheduling::Fifo(_) => libc::SCHED_FIFO,
            Scheduling::RoundRobin(_) => libc::SCHED_RR,
        }
    }

    /// Sets it for the calling thread.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_NICE` where `RLIMIT_RTPRIO` is below the priority, `EINVAL`
    /// for a priority that does not exist.
    pub fn set(self, children: Children) -> io::Result<()> {
        let flags = match children {
            Children::Inherit => 0,
            Children::Reset => libc::SCHED_RESET_ON_FORK,
        };
        let own = Own {
            policy: self.policy() | flags,
            parameter: libc::sched_param {
                sched_priority: self.realtime_priority().unwrap_or(0).into(),
            },
        };
        Ok(own.set()?)
    }

    /// Sets it for the calling thread, as long as what is returned lives.
    ///
    /// # Errors
    /// As [`Scheduling::set`].
    pub fn enter(self, children: Children) -> io::Result<Meanwhile> {
        let before = Own::get()?;
        self.set(children)?;
        let thread = PhantomData;
        Ok(Meanwhile { before, thread })
    }
}

/// The calling thread is scheduled in another way while this lives.
#[derive(Debug)]
#[must_use]
pub struct Meanwhile {
    before: Own,
    /// It is that thread's, and stays there.
    thread: PhantomData<*const ()>,
}

impl Drop for Meanwhile {
    fn drop(&mut self) {
        // Who was allowed to go before all is allowed to go back.
        let _ = self.before.set();
    }
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheduling::Other => f.write_str("other"),
            Scheduling::Batch => f.write_str("batch"),
            Scheduling::Idle => f.write_str("idle"),
            Scheduling::Fifo(priority) => write!(f, "fifo:{priority}"),
            Scheduling::RoundRobin(priority) => write!(f, "rr:{priority}"),
        }
    }
}

/// A text that names no scheduling class.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no scheduling class; write other, batch, idle, fifo:PRIORITY or rr:PRIORITY, with a priority from 1 to {highest}",
    highest = HIGHEST
)]
pub struct UnknownScheduling(String);

impl FromStr for Scheduling {
    type Err = UnknownScheduling;

    fn from_str(text: &str) -> Result<Scheduling, UnknownScheduling> {
        let (name, priority) = text.split_once(':').unwrap_or((text, "50"));
        let priority = priority.parse().ok().filter(|p| (1..=HIGHEST).contains(p));
        match (name, text.contains(':'), priority) {
            ("other", false, _) => Ok(Scheduling::Other),
            ("batch", false, _) => Ok(Scheduling::Batch),
            ("idle", false, _) => Ok(Scheduling::Idle),
            ("fifo", _, Some(priority)) => Ok(Scheduling::Fifo(priority)),
            ("rr", _, Some(priority)) => Ok(Scheduling::RoundRobin(priority)),
            _ => Err(UnknownScheduling(text.to_owned())),
        }
    }
}

/// Has the kernel kill the calling process where one of its real-time threads runs for so
/// long without once waiting for something. Programs that are executed in its place and
/// its children have the same limit.
///
/// # Errors
/// `EPERM` where a lower limit is in force already.
pub fn kill_after(most: Duration) -> io::Result<()> {
    let micros = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
    let limit = libc::rlimit64 {
        rlim_cur: micros,
        rlim_max: micros,
    };
    let pointer = (&raw const limit).addr();
    let which = libc::RLIMIT_RTTIME as usize;
    // SAFETY: the kernel only reads the limit, which lives until the call returns; the
    // place for the old one is null.
    unsafe { syscall(libc::SYS_prlimit64, [SELF, which, pointer, 0, 0, 0]) }?;
    Ok(())
}

/// The scheduling of the calling thread, as the kernel has it.
#[derive(Clone, Copy, Debug)]
struct Own {
    policy: i32,
    parameter: libc::sched_param,
}

impl Own {
    fn get() -> raw::Result<Own> {
        let mut parameter = libc::sched_param { sched_priority: 0 };
        let pointer = (&raw mut parameter).addr();
        // SAFETY: the call takes a number and only asks.
        let policy = unsafe { syscall(libc::SYS_sched_getscheduler, [SELF, 0, 0, 0, 0, 0]) }?;
        // SAFETY: the kernel writes the parameter, which lives until the call returns.
        unsafe { syscall(libc::SYS_sched_getparam, [SELF, pointer, 0, 0, 0, 0]) }?;
        Ok(Own {
            policy: policy as i32,
            parameter,
        })
    }

    fn set(&self) -> raw::Result<()> {
        let (policy, pointer) = (self.policy as usize, (&raw const self.parameter).addr());
        let call = libc::SYS_sched_setscheduler;
        // SAFETY: the kernel only reads the parameter, which lives until the call returns.
        unsafe { syscall(call, [SELF, policy, pointer, 0, 0, 0]) }.map(drop)
    }
}

/// The calling thread goes before every program of a real-time priority while this
/// lives, so that it can stop one that never sleeps.
#[derive(Debug)]
#[must_use]
pub struct Watchdog {
    _first: Meanwhile,
}

impl Watchdog {
    /// Goes before `priority`, which is at most [`HIGHEST`]. Programs that the thread
    /// starts do not inherit it.
    ///
    /// # Errors
    /// `EPERM` without the privilege for real-time classes.
    pub fn above(priority: u8) -> io::Result<Watchdog> {
        let before_all = Scheduling::Fifo(priority.saturating_add(1));
        let _first = before_all.enter(Children::Reset)?;
        Ok(Watchdog { _first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scheduling of the calling thread, as `/proc` has it: policy and priority.
    fn own() -> (i32, i32) {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        let field = |n: usize| {
            let words = rest.split_whitespace();
            words
                .skip(n - 3)
                .map(|w| w.parse().unwrap())
                .next()
                .unwrap()
        };
        (field(41), field(40))
    }

    /// What a new thread says, so that the class stays with it.
    fn apart<T: Send + 'static>(say: impl FnOnce() -> io::Result<T> + Send + 'static) -> Option<T> {
        match std::thread::spawn(say).join().unwrap() {
            Ok(said) => Some(said),
            Err(error) => {
                println!("SKIP: real-time scheduling: {error}");
                None
            }
        }
    }

    fn child() -> (i32, i32) {
        std::thread::spawn(own).join().unwrap()
    }

    #[test]
    fn texts_are_understood() {
        for text in ["other", "batch", "idle", "fifo:1", "rr:98"] {
            assert_eq!(text.parse::<Scheduling>().unwrap().to_string(), text);
        }
        assert_eq!("fifo".parse(), Ok(Scheduling::Fifo(50)));
        for wrong in ["", "fifo:0", "fifo:99", "rr:x", "other:1", "deadline"] {
            let error = wrong.parse::<Scheduling>().unwrap_err().to_string();
            assert!(error.contains("from 1 to 98"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_thread_gets_the_class_and_those_it_starts_only_where_they_inherit() {
        for (children, of_child) in [(Children::Reset, 0), (Children::Inherit, libc::SCHED_FIFO)] {
            let seen = apart(move || {
                Scheduling::Fifo(1).set(children)?;
                Ok((own(), child()))
            });
            if let Some((own, child)) = seen {
                assert_eq!((own, child.0), ((libc::SCHED_FIFO, 1), of_child));
            }
        }
    }

    #[test]
    fn a_watchdog_goes_before_its_program_and_back() {
        let seen = apart(|| {
            Scheduling::Batch.set(Children::Inherit)?;
            let watchdog = Watchdog::above(HIGHEST)?;
            let meanwhile = (own(), child().0);
            drop(watchdog);
            Ok((meanwhile, own()))
        });
        if let Some((meanwhile, after)) = seen {
            assert_eq!(meanwhile, ((libc::SCHED_FIFO, 99), 0));
            assert_eq!(after, (libc::SCHED_BATCH, 0));
        }
    }

    #[test]
    fn a_priority_that_does_not_exist_is_refused() {
        let refused = Scheduling::Fifo(100).set(Children::Reset).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}
