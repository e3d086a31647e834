//! A thread that works with the pager's descriptors for a thread of the
//! program whose own descriptor table is full.
//!
//! It shares the pager's table, takes no lock and sleeps until it is asked.
//! The asking thread waits meanwhile, so the work may use what it borrows.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use quire_linux::futex;
use quire_linux::own_threads::Own;
use quire_linux::raw::{Errno, Result};
use quire_linux::thread::await_change;

/// A piece of work and where its result goes.
struct Request<'a> {
    work: &'a mut (dyn FnMut() + 'a),
}

static ASKING: AtomicU32 = AtomicU32::new(FREE);
static REQUEST: AtomicPtr<Request<'static>> = AtomicPtr::new(std::ptr::null_mut());

/// Nobody asks.
const FREE: u32 = 0;
/// A thread writes its request.
const TAKEN: u32 = 1;
/// The request is there.
const ASKED: u32 = 2;
/// The work is done.
const DONE: u32 = 3;
/// There is no thread to ask.
const ABSENT: u32 = 4;

/// Starts the thread; called by the pager, whose descriptor table it shares.
pub(crate) fn start() -> std::io::Result<()> {
    ASKING.store(FREE, Ordering::Release);
    std::thread::Builder::new()
        .name("quire-hands".into())
        .stack_size(128 << 10)
        .spawn(serve)
        .map(drop)
}

/// In a forked child there is no such thread until a pager starts one.
pub(crate) fn forget() {
    ASKING.store(ABSENT, Ordering::Release);
}

fn serve() {
    let _own = Own::now();
    loop {
        let state = ASKING.load(Ordering::Acquire);
        if state != ASKED {
            futex::wait(&ASKING, state);
            continue;
        }
        let request = REQUEST.load(Ordering::Acquire);
        // SAFETY: the asking thread wrote the pointer and keeps the request
        // alive and untouched until it sees `DONE`.
        unsafe { ((*request).work)() };
        ASKING.store(DONE, Ordering::Release);
        futex::wake_all(&ASKING);
    }
}

/// Runs `work` on the thread and returns its result.
///
/// # Errors
/// `EAGAIN` when there is no such thread.
pub(crate) fn run<R>(work: impl FnOnce() -> R) -> Result<R> {
    claim()?;
    let mut work = Some(work);
    let mut result = None;
    let mut once = || result = work.take().map(|work| work());
    let mut request = Request { work: &mut once };
    let address: *mut Request<'_> = &raw mut request;
    REQUEST.store(address.cast(), Ordering::Release);
    ASKING.store(ASKED, Ordering::Release);
    futex::wake_all(&ASKING);
    await_change(&ASKING, ASKED);
    ASKING.store(FREE, Ordering::Release);
    futex::wake_all(&ASKING);
    result.ok_or(Errno(libc::EAGAIN))
}

fn claim() -> Result<()> {
    loop {
        match ASKING.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(()),
            Err(ABSENT) => return Err(Errno(libc::EAGAIN)),
            Err(other) => futex::wait(&ASKING, other),
        }
    }
}
