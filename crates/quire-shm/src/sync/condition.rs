//! Conditions in objects. Whoever signals one changes its number, and who waits goes on when it is
//! another one than before. Several may go on at one signal, and all do now and then without any:
//! programs look whether what they wait for holds, as they have to with every condition.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::mutex::{pthread_mutex_lock, pthread_mutex_unlock};
use super::waiting::{Deadline, Waiting, Wake, copies, find, pthread_testcancel, wake};
use crate::real::Real;
use crate::taken::Copies;

type Condition = *mut libc::pthread_cond_t;
type Mutex = *mut libc::pthread_mutex_t;
type Time = *const libc::timespec;
type Init = unsafe extern "C" fn(Condition, *const libc::pthread_condattr_t) -> c_int;
type Act = unsafe extern "C" fn(Condition) -> c_int;
// Threads are cancelled in these calls, which unwinds them.
type Wait = unsafe extern "C-unwind" fn(Condition, Mutex) -> c_int;
type Timed = unsafe extern "C-unwind" fn(Condition, Mutex, Time) -> c_int;
type Clocked = unsafe extern "C-unwind" fn(Condition, Mutex, c_int, Time) -> c_int;

// SAFETY: the types of the C library's functions, here and below.
static INIT: Real<Init> = unsafe { Real::new(c"pthread_cond_init") };
// SAFETY: as above.
static DESTROY: Real<Act> = unsafe { Real::new(c"pthread_cond_destroy") };
// SAFETY: as above.
static SIGNAL: Real<Act> = unsafe { Real::new(c"pthread_cond_signal") };
// SAFETY: as above.
static BROADCAST: Real<Act> = unsafe { Real::new(c"pthread_cond_broadcast") };
// SAFETY: as above.
static WAIT: Real<Wait> = unsafe { Real::new(c"pthread_cond_wait") };
// SAFETY: as above.
static TIMED: Real<Timed> = unsafe { Real::new(c"pthread_cond_timedwait") };
// SAFETY: as above.
static CLOCKED: Real<Clocked> = unsafe { Real::new(c"pthread_cond_clockwait") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _, _) = (INIT.get(), DESTROY.get(), SIGNAL.get(), BROADCAST.get());
    let (_, _, _) = (WAIT.get(), TIMED.get(), CLOCKED.get());
}

/// Who waits for so long is sent to look whether it still has to, and is cancelled then.
const LONGEST: Duration = Duration::from_millis(100);

/// A condition in an object.
#[repr(C)]
struct Words {
    number: AtomicU32,
    /// The clock by which times count.
    clock: AtomicU32,
}

/// Waits with a mutex that is locked, and let go of meanwhile.
///
/// # Safety
/// It is a mutex of the program.
unsafe fn wait((words, copies): (&Words, Copies), mutex: Mutex, end: Option<Deadline>) -> c_int {
    let seen = words.number.load(Ordering::SeqCst);
    pthread_testcancel();
    // SAFETY: the caller vouches for it.
    let unlocked = unsafe { pthread_mutex_unlock(mutex) };
    if unlocked != 0 {
        return unlocked;
    }
    let mut waiting = Waiting::new(copies, end);
    let look = Deadline::after(LONGEST);
    let mut is_late = false;
    while words.number.load(Ordering::SeqCst) == seen && !is_late && !look.is_over() {
        is_late = waiting.wait(&words.number, seen).is_err();
    }
    // SAFETY: as above.
    match unsafe { pthread_mutex_lock(mutex) } {
        0 if is_late => libc::ETIMEDOUT,
        other => other,
    }
}

/// Waits for a condition that lies in no object, with a mutex that does: nobody who signals it knows
/// of the mutex. So it is let go of for a moment, and the program looks again.
///
/// # Safety
/// It is a mutex of the program.
unsafe fn rest(mutex: Mutex, end: Option<Deadline>) -> c_int {
    const MOMENT: Duration = Duration::from_millis(1);
    let nothing = Words {
        number: AtomicU32::new(0),
        clock: AtomicU32::new(0),
    };
    let moment = Deadline::after(MOMENT);
    // SAFETY: the caller vouches for it.
    let done = unsafe { wait((&nothing, Copies::Own), mutex, Some(moment)) };
    match done {
        libc::ETIMEDOUT if !end.is_some_and(Deadline::is_over) => 0,
        other => other,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_init(
    condition: Condition,
    attributes: *const libc::pthread_condattr_t,
) -> c_int {
    // SAFETY: the program gives a condition.
    match (unsafe { find::<_, Words>(condition) }, INIT.get()) {
        (Some((words, _)), _) => {
            let mut clock = libc::CLOCK_REALTIME;
            if !attributes.is_null() {
                // SAFETY: the program gives attributes as the function takes them, and there is
                // room for the answer.
                unsafe { libc::pthread_condattr_getclock(attributes, &raw mut clock) };
            }
            words.clock.store(clock.cast_unsigned(), Ordering::Relaxed);
            words.number.store(0, Ordering::SeqCst);
            0
        }
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(condition, attributes) },
        (None, None) => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_destroy(condition: Condition) -> c_int {
    match (copies(condition), DESTROY.get()) {
        (Some(_), _) => 0,
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(condition) },
        (None, None) => libc::ENOSYS,
    }
}

fn go_on((words, copies): (&Words, Copies), who: Wake) -> c_int {
    words.number.fetch_add(1, Ordering::SeqCst);
    wake(copies, &words.number, who);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_signal(condition: Condition) -> c_int {
    // SAFETY: the program gives a condition.
    match (unsafe { find::<_, Words>(condition) }, SIGNAL.get()) {
        (Some(found), _) => go_on(found, Wake::One),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(condition) },
        (None, None) => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cond_broadcast(condition: Condition) -> c_int {
    // SAFETY: the program gives a condition.
    match (unsafe { find::<_, Words>(condition) }, BROADCAST.get()) {
        (Some(found), _) => go_on(found, Wake::All),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(condition) },
        (None, None) => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_cond_wait(condition: Condition, mutex: Mutex) -> c_int {
    // SAFETY: the program gives a condition.
    match (unsafe { find::<_, Words>(condition) }, WAIT.get()) {
        // SAFETY: the program gives a mutex.
        (Some(found), _) => unsafe { wait(found, mutex, None) },
        // SAFETY: as above.
        (None, _) if copies(mutex).is_some() => unsafe { rest(mutex, None) },
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(condition, mutex) },
        (None, None) => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_cond_timedwait(
    condition: Condition,
    mutex: Mutex,
    until: Time,
) -> c_int {
    // SAFETY: the program gives a condition.
    match (unsafe { find::<_, Words>(condition) }, TIMED.get()) {
        (Some(found), _) => {
            let clock = found.0.clock.load(Ordering::Relaxed).cast_signed();
            // SAFETY: the program gives a mutex and a time.
            unsafe { wait_until(found, mutex, (clock, until)) }
        }
        (None, _) if copies(mutex).is_some() => {
            // It may be of any clock: the program looks, and comes back.
            // SAFETY: the program gives a mutex.
            unsafe { rest(mutex, Deadline::new(libc::CLOCK_REALTIME, until).ok()) }
        }
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(condition, mutex, until) },
        (None, None) => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_cond_clockwait(
    condition: Condition,
    mutex: Mutex,
    clock: c_int,
    until: Time,
) -> c_int {
    // SAFETY: the program gives a condition.
    match (unsafe { find::<_, Words>(condition) }, CLOCKED.get()) {
        // SAFETY: the program gives a mutex and a time.
        (Some(found), _) => unsafe { wait_until(found, mutex, (clock, until)) },
        // SAFETY: as above.
        (None, _) if copies(mutex).is_some() => unsafe {
            rest(mutex, Deadline::new(clock, until).ok())
        },
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(condition, mutex, clock, until) },
        (None, None) => libc::ENOSYS,
    }
}

/// # Safety
/// It is a mutex of the program, and the time can be read.
unsafe fn wait_until(
    found: (&Words, Copies),
    mutex: Mutex,
    (clock, until): (c_int, Time),
) -> c_int {
    // SAFETY: the caller vouches for the time.
    match unsafe { Deadline::new(clock, until) } {
        // SAFETY: the caller vouches for the mutex.
        Ok(end) => unsafe { wait(found, mutex, Some(end)) },
        Err(errno) => errno,
    }
}
