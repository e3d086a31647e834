//! Semaphores in objects, with a name ([`super::named`]) or without. `sem_init`, `sem_getvalue` and `sem_destroy` are the C library's,
//! which does nothing there but write and read the value.
//!
//! Who waits for one is ended by a signal, unless all handlers of the program are to have calls go on
//! (`SA_RESTART`): which of them it was is not known here.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use super::waiting::{Deadline, Waiting, Wake, find, pthread_testcancel, wake};
use crate::real::Real;
use crate::signals;
use crate::taken::Copies;
use crate::trouble::set_errno;

type Semaphore = *mut libc::sem_t;
type Time = *const libc::timespec;
type Post = unsafe extern "C" fn(Semaphore) -> c_int;
// Threads are cancelled in these calls, which unwinds them.
type Wait = unsafe extern "C-unwind" fn(Semaphore) -> c_int;
type Timed = unsafe extern "C-unwind" fn(Semaphore, Time) -> c_int;
type Clocked = unsafe extern "C-unwind" fn(Semaphore, c_int, Time) -> c_int;

// SAFETY: the types of the C library's functions, here and below.
static POST: Real<Post> = unsafe { Real::new(c"sem_post") };
// SAFETY: as above.
static TRY: Real<Post> = unsafe { Real::new(c"sem_trywait") };
// SAFETY: as above.
static WAIT: Real<Wait> = unsafe { Real::new(c"sem_wait") };
// SAFETY: as above.
static TIMED: Real<Timed> = unsafe { Real::new(c"sem_timedwait") };
// SAFETY: as above.
static CLOCKED: Real<Clocked> = unsafe { Real::new(c"sem_clockwait") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _) = (POST.get(), TRY.get());
    let (_, _, _) = (WAIT.get(), TIMED.get(), CLOCKED.get());
}

/// The largest value. A semaphore begins with its value.
pub(super) const MOST: u32 = i32::MAX.cast_unsigned();

/// Takes one, if there is one.
fn take(value: &AtomicU32) -> bool {
    let less = |value: u32| value.checked_sub(1);
    let taken = value.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    taken.is_ok()
}

fn wait((value, copies): (&AtomicU32, Copies), end: Option<Deadline>) -> Result<(), c_int> {
    let mut waiting = Waiting::new(copies, end);
    loop {
        // Where there is none, to look does not take the page from who has it.
        if value.load(Ordering::SeqCst) > 0 && take(value) {
            return Ok(());
        }
        pthread_testcancel();
        waiting.wait(value, 0).map_err(|_| libc::ETIMEDOUT)?;
        if waiting.was_interrupted() && signals::end_calls() {
            return Err(libc::EINTR);
        }
    }
}

/// # Safety
/// The time can be read.
unsafe fn wait_until(found: (&AtomicU32, Copies), clock: c_int, until: Time) -> Result<(), c_int> {
    pthread_testcancel();
    // Who gets one at once may give any time.
    if take(found.0) {
        return Ok(());
    }
    // SAFETY: the caller vouches for it.
    wait(found, Some(unsafe { Deadline::new(clock, until) }?))
}

fn post((value, copies): (&AtomicU32, Copies)) -> Result<(), c_int> {
    let more = |value: u32| (value < MOST).then_some(value + 1);
    let posted = value.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
    posted.map_err(|_| libc::EOVERFLOW)?;
    wake(copies, value, Wake::One);
    Ok(())
}

/// What such a call returns.
fn answer(done: Result<(), c_int>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sem_post(semaphore: Semaphore) -> c_int {
    // SAFETY: the program gives a semaphore.
    if let Some(found) = unsafe { find::<_, AtomicU32>(semaphore) } {
        return answer(post(found));
    }
    match POST.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(semaphore) },
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sem_trywait(semaphore: Semaphore) -> c_int {
    // SAFETY: the program gives a semaphore.
    if let Some((value, _)) = unsafe { find::<_, AtomicU32>(semaphore) } {
        return answer(take(value).then_some(()).ok_or(libc::EAGAIN));
    }
    match TRY.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(semaphore) },
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sem_wait(semaphore: Semaphore) -> c_int {
    // SAFETY: the program gives a semaphore.
    if let Some(found) = unsafe { find::<_, AtomicU32>(semaphore) } {
        pthread_testcancel();
        return answer(wait(found, None));
    }
    match WAIT.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(semaphore) },
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sem_timedwait(semaphore: Semaphore, until: Time) -> c_int {
    // SAFETY: the program gives a semaphore.
    if let Some(found) = unsafe { find::<_, AtomicU32>(semaphore) } {
        // SAFETY: the program gives a time.
        return answer(unsafe { wait_until(found, libc::CLOCK_REALTIME, until) });
    }
    match TIMED.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(semaphore, until) },
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sem_clockwait(
    semaphore: Semaphore,
    clock: c_int,
    until: Time,
) -> c_int {
    // SAFETY: the program gives a semaphore.
    if let Some(found) = unsafe { find::<_, AtomicU32>(semaphore) } {
        // SAFETY: the program gives a time.
        return answer(unsafe { wait_until(found, clock, until) });
    }
    match CLOCKED.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(semaphore, clock, until) },
        None => -1,
    }
}
