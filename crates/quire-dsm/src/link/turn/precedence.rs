//! The thread of a loop goes before programs, where the system allows it.
//!
//! While one thread waits for a page, the program that has it may compute on the same
//! processor as the thread that is to give it back. By turns, that thread waits for up to a
//! tick of the kernel, milliseconds, where its work takes microseconds; heartbeats wait as
//! well. With real-time priority it runs at once. It sleeps most of the time; a loop that
//! looks again and again (`spin`) must never have such a priority, as it would keep the
//! program from the processor that all wait for.

use quire_linux::scheduling::{Children, Meanwhile, Scheduling};
use rustix::process::{Resource, getrlimit};

/// The lowest of the real-time priorities: before programs, behind whatever else has one.
pub(crate) const PRIORITY: u8 = 1;

/// Has the calling thread go before programs, if it may, as long as what is returned lives.
/// Threads that it starts do not.
pub(super) fn take() -> Option<Meanwhile> {
    // Where real-time threads may run only so long at a time, the kernel kills the process
    // of one that does for longer.
    let is_limited = getrlimit(Resource::Rttime).current.is_some();
    if is_limited {
        return None;
    }
    match Scheduling::RoundRobin(PRIORITY).enter(Children::Reset) {
        Ok(first) => Some(first),
        Err(error) => {
            tracing::debug!("faults are answered with the priority of programs: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The class of the calling thread.
    fn class() -> u32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        // The 41st field; what is behind the name begins with the third.
        rest.split_whitespace().nth(38).unwrap().parse().unwrap()
    }

    #[test]
    fn it_lasts_as_long_as_wanted_and_is_not_inherited() {
        const OTHER: u32 = 0;
        const ROUND_ROBIN: u32 = 2;
        let seen = std::thread::spawn(|| {
            let first = take();
            let is_first = first.is_some();
            let meanwhile = class();
            let forked_child = std::thread::spawn(class).join().unwrap();
            drop(first);
            is_first.then(|| (meanwhile, forked_child, class()))
        });
        match seen.join().unwrap() {
            Some(seen) => assert_eq!(seen, (ROUND_ROBIN, OTHER, OTHER)),
            None => println!("SKIP: real-time scheduling is not allowed"),
        }
    }
}
