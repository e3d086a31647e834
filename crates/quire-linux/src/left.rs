//! Whether a process has threads of libraries only. The C library ends a process whose first thread has
//! left by `pthread_exit` when its last thread ends, and counts those of libraries, too, which stay: so
//! a library that has threads looks for the end of all others by itself, and ends the process then.
//!
//! Whoever has not said that it is a library's ([`crate::own_threads`]) is the program's, also a thread
//! that has begun just now, or that was made by a bare system call: nobody ends a program that goes on.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::thread::{current_id, process_id};

/// It is looked soon at first, as many programs end soon when their first thread has left.
const SOON: Duration = Duration::from_millis(5);
/// Later it is looked so often.
const LATER: Duration = Duration::from_millis(160);

/// Waits until the first thread has left, and all others are libraries', the calling one among them.
pub fn wait_for_others(is_own: impl Fn(u32) -> bool) {
    // What is found once may have been about to change.
    let mut is_over = false;
    let mut pause = SOON;
    loop {
        thread::sleep(pause);
        pause = (2 * pause).min(LATER);
        let was_over = std::mem::replace(&mut is_over, has_only(&is_own));
        if is_over && was_over {
            return;
        }
    }
}

/// Whether the calling thread, which leaves, is the program's last: all others are libraries', or the
/// first, which has left. Two that leave at the same moment may both see each other.
#[must_use]
pub fn is_last(is_own: impl Fn(u32) -> bool) -> bool {
    let (first, me) = (process_id(), current_id());
    let is_gone = |thread: u32| thread == first && has_left(first);
    all_are(|thread| thread == me || is_own(thread) || is_gone(thread))
}

/// Whether the first thread has left, and all others are these, as far as is known for sure.
fn has_only(is_own: impl Fn(u32) -> bool) -> bool {
    let first = process_id();
    all_are(|thread| thread == first || is_own(thread)) && has_left(first)
}

/// Whether all threads are such ones. The list of threads may lack some while others end, so it must
/// have as many as there are.
fn all_are(is_it: impl Fn(u32) -> bool) -> bool {
    threads().is_some_and(|threads| {
        threads.iter().all(|thread| is_it(*thread)) && count() == Some(threads.len())
    })
}

/// The numbers of all threads.
fn threads() -> Option<Vec<u32>> {
    let number =
        |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    fs::read_dir("/proc/self/task").ok()?.map(number).collect()
}

/// How many there are, the first one included as long as the process lives.
fn count() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"))?;
    line.trim().parse().ok()
}

/// Whether a thread has ended, and is only kept because it was the first.
fn has_left(thread: u32) -> bool {
    let about = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything.
    let state = about
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim_start().chars().next());
    state == Some('Z')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_first_thread_is_there_goes_on() {
        let all = threads().expect("there is /proc");
        assert!(all.contains(&current_id()));
        assert!(!has_only(|_| true));
        assert!(!has_left(current_id()));
        // The test is not the first thread, which waits for it.
        assert!(is_last(|_| true) && !is_last(|_| false));
    }
}
