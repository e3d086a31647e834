//! How a process that ends waits until what it wrote is given back: as long as that goes on.
//!
//! A program may call `_exit` in a signal handler, which may have interrupted `malloc`. So
//! whoever ends allocates nothing and takes no lock: it wakes a thread that does the rest, and
//! writes what it says itself.

use std::fmt::{self, Write as _};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quire_dsm::client::Progress;
use rustix::thread::futex::{Flags, wait, wake};
use rustix::time::Timespec;

use crate::leaving;
use crate::state;

/// How far it is: no thread waits, it waits, it is to give back, it has done so.
static STAGE: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = 0;
const READY: u32 = 1;
const ASKED: u32 = 2;
const DONE: u32 = 3;

/// The process ends after so long in which nothing was given back. A server may wait for its store
/// for a minute, and says then that what it got is not safe.
const PATIENCE: Duration = Duration::from_secs(90);

/// Whether it goes on is looked at so often.
const LOOK: Duration = Duration::from_secs(1);

/// How far links are with what is given back.
pub static PROGRESS: Progress = Progress::new();
/// The attachment whose object is given back, one more than its number; 0 stands for none.
static OBJECT: AtomicUsize = AtomicUsize::new(0);
/// How many come after it.
static BEHIND: AtomicUsize = AtomicUsize::new(0);

/// Starts the thread that has what was written given back.
pub fn start(give_back: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let run = move || {
        leaving::is_own_now();
        until(ASKED, None);
        give_back();
        STAGE.store(DONE, Ordering::Release);
        wake_all();
    };
    STAGE.store(READY, Ordering::Release);
    let started = thread::Builder::new()
        .name("quire-shm-end".into())
        .spawn(run);
    if started.is_err() {
        forget();
    }
    started.map(drop)
}

/// In a forked child: there is no thread.
pub fn forget() {
    STAGE.store(NOBODY, Ordering::Release);
}

/// An object of an attachment is given back next, and so many objects after it.
pub fn gives_back(place: usize, behind: usize) {
    OBJECT.store(place + 1, Ordering::Release);
    BEHIND.store(behind, Ordering::Release);
}

/// The process ends: returns when all is given back, or nothing was for long. Then it says what is
/// lost.
pub fn finish() {
    let asked = STAGE.compare_exchange(READY, ASKED, Ordering::AcqRel, Ordering::Acquire);
    match asked {
        Ok(_) => wake_all(),
        // Another thread ends the process, too.
        Err(ASKED) => {}
        Err(_) => return,
    }
    if is_done_while_it_goes_on(&PROGRESS, PATIENCE) {
        return;
    }
    // Of several threads that end the process one says it; and nobody waits once more.
    let given_up = STAGE.compare_exchange(ASKED, DONE, Ordering::AcqRel, Ordering::Acquire);
    if given_up.is_ok() {
        wake_all();
        say_what_is_lost();
    }
}

/// Waits until all is given back; not any longer when nothing was for so long.
fn is_done_while_it_goes_on(progress: &Progress, patience: Duration) -> bool {
    let mut last = (how_far(progress), Instant::now());
    loop {
        until(DONE, Some(Instant::now() + LOOK.min(patience)));
        if STAGE.load(Ordering::Acquire) >= DONE {
            return true;
        }
        let now = how_far(progress);
        if now != last.0 {
            last = (now, Instant::now());
        } else if last.1.elapsed() >= patience {
            return false;
        }
    }
}

/// What is another value when something was given back.
fn how_far(progress: &Progress) -> (u64, [usize; 2]) {
    let object = [&OBJECT, &BEHIND].map(|part| part.load(Ordering::Acquire));
    (progress.steps(), object)
}

fn say_what_is_lost() {
    let mut line = Line::default();
    let object = OBJECT.load(Ordering::Acquire).checked_sub(1);
    let object = object.and_then(state::attachment);
    let name = object.map_or("its objects", |object| object.object.as_str());
    let lost = Lost {
        name,
        left: PROGRESS.left(),
        behind: BEHIND.load(Ordering::Acquire),
    };
    // A line that is too long ends early.
    let _ = writeln!(line, "{lost}");
    // SAFETY: the bytes are this thread's own, and live until the call returns. Where nobody reads
    // them, there is nobody to be told.
    unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.length) };
}

/// What the program is told that is lost.
struct Lost<'a> {
    name: &'a str,
    /// So many bytes were not sent.
    left: u64,
    /// How many objects would have come next.
    behind: usize,
}

impl fmt::Display for Lost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "quire: the program ends, and what it wrote to {} is lost as far as the server does \
             not have it: nothing was given back for {} s, {} bytes were not sent",
            self.name,
            PATIENCE.as_secs(),
            self.left,
        )?;
        match self.behind {
            0 => Ok(()),
            behind => write!(f, "; so is what it wrote to {behind} more objects"),
        }
    }
}

/// A line in memory of its own.
struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Default for Line {
    fn default() -> Line {
        Line {
            bytes: [0; 512],
            length: 0,
        }
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        let to = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
        to.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

fn wake_all() {
    // It wakes whoever is there, and fails never.
    let _ = wake(&STAGE, Flags::PRIVATE, u32::MAX >> 1);
}

/// Waits for a stage, until a time.
fn until(stage: u32, end: Option<Instant>) {
    loop {
        let now = STAGE.load(Ordering::Acquire);
        if now >= stage {
            return;
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return;
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // When it returns early, it is asked again.
        let _ = wait(&STAGE, Flags::PRIVATE, now, left.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is given back at all: then the end is waited for no longer, and said.
    #[test]
    fn who_ends_waits_no_longer_than_something_goes_on() {
        STAGE.store(ASKED, Ordering::Release);
        let patience = Duration::from_millis(200);
        let goes_on = thread::spawn(|| {
            for object in 0..5 {
                thread::sleep(Duration::from_millis(100));
                gives_back(object, 0);
            }
        });
        let begin = Instant::now();
        let progress = Progress::new();
        assert!(!is_done_while_it_goes_on(&progress, patience));
        assert!(begin.elapsed() >= Duration::from_millis(600));
        goes_on.join().expect("it only sleeps");
        STAGE.store(DONE, Ordering::Release);
        assert!(is_done_while_it_goes_on(&progress, patience));
        STAGE.store(NOBODY, Ordering::Release);
    }

    #[test]
    fn what_is_lost_is_said_in_one_line() {
        let name = "n".repeat(200);
        let said = |behind| {
            let mut line = Line::default();
            let (name, left) = (&*name, u64::MAX);
            writeln!(line, "{}", Lost { name, left, behind }).expect("there is room");
            String::from_utf8(line.bytes[..line.length].to_vec()).expect("text")
        };
        assert!(said(0).ends_with("18446744073709551615 bytes were not sent\n"));
        assert!(said(usize::MAX).ends_with(" more objects\n"));
        assert!(said(0).contains(&name));
        let mut line = Line::default();
        assert!(line.write_str(&"n".repeat(513)).is_err());
    }
}
