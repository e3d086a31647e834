//! How a process that ends waits until what it wrote is given back.
//!
//! A program may call `_exit` in a signal handler, which may have interrupted `malloc`. So
//! whoever ends allocates nothing and takes no lock: it wakes a thread that does the rest.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::futex::{Flags, wait, wake};
use rustix::time::Timespec;

/// How far it is: no thread waits, it waits, it is to give back, it has done so.
static STAGE: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = 0;
const READY: u32 = 1;
const ASKED: u32 = 2;
const DONE: u32 = 3;

/// The process ends after so long in any case.
const LONGEST: Duration = Duration::from_secs(10);

/// Starts the thread that has what was written given back.
pub fn start(give_back: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let run = move || {
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

/// The process ends: returns when all is given back, or that takes too long.
pub fn finish() {
    let asked = STAGE.compare_exchange(READY, ASKED, Ordering::AcqRel, Ordering::Acquire);
    match asked {
        Ok(_) => wake_all(),
        // Another thread ends the process, too.
        Err(ASKED) => {}
        Err(_) => return,
    }
    until(DONE, Some(Instant::now() + LONGEST));
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
