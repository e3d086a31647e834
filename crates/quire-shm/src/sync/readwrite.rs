//! Read-write locks in objects. Readers go before writers, as with the C library's own unless it is told
//! otherwise.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use super::waiting::{Deadline, Waiting, Wake, find, wake};
use crate::real::Real;
use crate::taken::Copies;

type Lock = *mut libc::pthread_rwlock_t;
type Time = *const libc::timespec;
type Act = unsafe extern "C" fn(Lock) -> c_int;
type Timed = unsafe extern "C" fn(Lock, Time) -> c_int;
type Clocked = unsafe extern "C" fn(Lock, c_int, Time) -> c_int;

// SAFETY: the types of the C library's functions, here and below.
static READ: Real<Act> = unsafe { Real::new(c"pthread_rwlock_rdlock") };
// SAFETY: as above.
static WRITE: Real<Act> = unsafe { Real::new(c"pthread_rwlock_wrlock") };
// SAFETY: as above.
static TRY_READ: Real<Act> = unsafe { Real::new(c"pthread_rwlock_tryrdlock") };
// SAFETY: as above.
static TRY_WRITE: Real<Act> = unsafe { Real::new(c"pthread_rwlock_trywrlock") };
// SAFETY: as above.
static TIMED_READ: Real<Timed> = unsafe { Real::new(c"pthread_rwlock_timedrdlock") };
// SAFETY: as above.
static TIMED_WRITE: Real<Timed> = unsafe { Real::new(c"pthread_rwlock_timedwrlock") };
// SAFETY: as above.
static CLOCKED_READ: Real<Clocked> = unsafe { Real::new(c"pthread_rwlock_clockrdlock") };
// SAFETY: as above.
static CLOCKED_WRITE: Real<Clocked> = unsafe { Real::new(c"pthread_rwlock_clockwrlock") };
// SAFETY: as above.
static UNLOCK: Real<Act> = unsafe { Real::new(c"pthread_rwlock_unlock") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _, _) = (READ.get(), WRITE.get(), TRY_READ.get(), TRY_WRITE.get());
    let (_, _, _) = (TIMED_READ.get(), TIMED_WRITE.get(), UNLOCK.get());
    let (_, _) = (CLOCKED_READ.get(), CLOCKED_WRITE.get());
}

/// A writer has it; else the first word of a lock says how many readers do.
const WRITER: u32 = 1 << 31;

/// What somebody wants to do.
#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
}

/// Takes it, if it can be had; else what is in the way.
fn take(word: &AtomicU32, access: Access) -> Result<(), u32> {
    let next = |held: u32| match access {
        Access::Read => (held < WRITER - 1).then_some(held + 1),
        Access::Write => (held == 0).then_some(WRITER),
    };
    let taken = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    taken.map(drop)
}

fn lock((word, copies): (&AtomicU32, Copies), access: Access, end: Option<Deadline>) -> c_int {
    let mut waiting = Waiting::new(copies, end);
    while let Err(seen) = take(word, access) {
        if waiting.wait(word, seen).is_err() {
            return libc::ETIMEDOUT;
        }
    }
    0
}

/// # Safety
/// The time can be read.
unsafe fn lock_until(
    found: (&AtomicU32, Copies),
    access: Access,
    (clock, until): (c_int, Time),
) -> c_int {
    // Who gets it at once may give any time.
    if take(found.0, access).is_ok() {
        return 0;
    }
    // SAFETY: the caller vouches for it.
    match unsafe { Deadline::new(clock, until) } {
        Ok(end) => lock(found, access, Some(end)),
        Err(errno) => errno,
    }
}

fn unlock((word, copies): (&AtomicU32, Copies)) -> c_int {
    let next = |held: u32| match held {
        WRITER => Some(0),
        readers => readers.checked_sub(1),
    };
    let before = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    match before {
        Ok(WRITER | 1) => wake(copies, word, Wake::All),
        // Other readers have it, which writers that wait have to see.
        Ok(_) => {}
        Err(_) => return libc::EPERM,
    }
    0
}

fn tried(done: Result<(), u32>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(_) => libc::EBUSY,
    }
}

/// Does something with a lock that lies in an object; with others, the C library does.
///
/// # Safety
/// It is a lock of the program.
unsafe fn either<F: Copy>(
    at: Lock,
    mine: impl FnOnce((&AtomicU32, Copies)) -> c_int,
    real: &Real<F>,
    theirs: impl FnOnce(F) -> c_int,
) -> c_int {
    // SAFETY: the caller vouches for it.
    match (unsafe { find::<_, AtomicU32>(at) }, real.get()) {
        (Some(found), _) => mine(found),
        (None, Some(real)) => theirs(real),
        (None, None) => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_rwlock_rdlock(at: Lock) -> c_int {
    let mine = |found: (&AtomicU32, Copies)| lock(found, Access::Read, None);
    // SAFETY: the program gives a lock; it is passed on as it came.
    unsafe { either(at, mine, &READ, |real| real(at)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_rwlock_wrlock(at: Lock) -> c_int {
    let mine = |found: (&AtomicU32, Copies)| lock(found, Access::Write, None);
    // SAFETY: as above.
    unsafe { either(at, mine, &WRITE, |real| real(at)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_rwlock_tryrdlock(at: Lock) -> c_int {
    let mine = |found: (&AtomicU32, Copies)| tried(take(found.0, Access::Read));
    // SAFETY: as above.
    unsafe { either(at, mine, &TRY_READ, |real| real(at)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_rwlock_trywrlock(at: Lock) -> c_int {
    let mine = |found: (&AtomicU32, Copies)| tried(take(found.0, Access::Write));
    // SAFETY: as above.
    unsafe { either(at, mine, &TRY_WRITE, |real| real(at)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_rwlock_timedrdlock(at: Lock, until: Time) -> c_int {
    let end = (libc::CLOCK_REALTIME, until);
    // SAFETY: the program gives a lock and a time; they are passed on as they came.
    unsafe {
        let mine = |found: (&AtomicU32, Copies)| lock_until(found, Access::Read, end);
        either(at, mine, &TIMED_READ, |real| real(at, until))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_rwlock_timedwrlock(at: Lock, until: Time) -> c_int {
    let end = (libc::CLOCK_REALTIME, until);
    // SAFETY: as above.
    unsafe {
        let mine = |found: (&AtomicU32, Copies)| lock_until(found, Access::Write, end);
        either(at, mine, &TIMED_WRITE, |real| real(at, until))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_rwlock_clockrdlock(at: Lock, clock: c_int, until: Time) -> c_int {
    // SAFETY: as above.
    unsafe {
        let mine = |found: (&AtomicU32, Copies)| lock_until(found, Access::Read, (clock, until));
        either(at, mine, &CLOCKED_READ, |real| real(at, clock, until))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_rwlock_clockwrlock(at: Lock, clock: c_int, until: Time) -> c_int {
    // SAFETY: as above.
    unsafe {
        let mine = |found: (&AtomicU32, Copies)| lock_until(found, Access::Write, (clock, until));
        either(at, mine, &CLOCKED_WRITE, |real| real(at, clock, until))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_rwlock_unlock(at: Lock) -> c_int {
    // SAFETY: the program gives a lock; it is passed on as it came.
    unsafe { either(at, unlock, &UNLOCK, |real| real(at)) }
}
