//! Real-time scheduling of the calling thread (`SCHED_FIFO`), with the kernel as a
//! watchdog: a thread that keeps a processor for longer than it may is killed, so that a
//! program that runs wild does not take the machine with it.

use std::time::Duration;

use crate::raw::{Result, syscall};

/// The calling thread.
const SELF: usize = 0;

/// The highest priority of `SCHED_FIFO`.
pub const HIGHEST: u32 = 99;

/// Whether threads and processes that are started from here are scheduled the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heirs {
    /// They are.
    Inherit,
    /// They are scheduled as by default.
    Reset,
}

/// Schedules the calling thread first-in, first-out at a priority from 1 to [`HIGHEST`].
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` where `RLIMIT_RTPRIO` is below the priority, `EINVAL`
/// for a priority that does not exist.
pub fn first_in_first_out(priority: u32, heirs: Heirs) -> Result<()> {
    let parameter = libc::sched_param {
        sched_priority: priority as i32,
    };
    let flags = match heirs {
        Heirs::Inherit => 0,
        Heirs::Reset => libc::SCHED_RESET_ON_FORK,
    };
    let policy = (libc::SCHED_FIFO | flags) as usize;
    let pointer = (&raw const parameter).addr();
    // SAFETY: the kernel only reads the parameter, which lives until the call returns.
    unsafe {
        syscall(
            libc::SYS_sched_setscheduler,
            [SELF, policy, pointer, 0, 0, 0],
        )
    }
    .map(drop)
}

/// Has the kernel kill the calling process where one of its real-time threads runs for so
/// long without once waiting for something. Programs that are executed in its place and
/// its children have the same limit.
///
/// # Errors
/// `EPERM` where a lower limit is in force already.
pub fn kill_after(most: Duration) -> Result<()> {
    let micros = most.as_micros() as u64;
    let limit = libc::rlimit64 {
        rlim_cur: micros,
        rlim_max: micros,
    };
    let pointer = (&raw const limit).addr();
    let which = libc::RLIMIT_RTTIME as usize;
    // SAFETY: the kernel only reads the limit, which lives until the call returns; the
    // place for the old one is null.
    unsafe { syscall(libc::SYS_prlimit64, [SELF, which, pointer, 0, 0, 0]) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scheduling of the calling thread, as the kernel has it: policy and priority.
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

    #[test]
    fn a_thread_gets_the_class_and_those_it_starts_do_not() {
        // A thread of its own: the class stays with it.
        let seen = std::thread::spawn(|| {
            first_in_first_out(1, Heirs::Reset).map(|()| {
                let heir = std::thread::spawn(own).join().unwrap();
                (own(), heir)
            })
        });
        match seen.join().unwrap() {
            Ok((own, heir)) => assert_eq!((own, heir.0), ((libc::SCHED_FIFO, 1), 0)),
            Err(error) => println!("SKIP: real-time scheduling: {error}"),
        }
    }

    #[test]
    fn a_priority_that_does_not_exist_is_refused() {
        let refused = first_in_first_out(HIGHEST + 1, Heirs::Reset).unwrap_err();
        assert_eq!(refused.0, libc::EINVAL);
    }
}
