//! Barriers in objects: who comes last begins another round, and who waits goes on when the round is
//! another one than before.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::waiting::{Deadline, Waiting, Wake, find, wake};
use crate::real::Real;
use crate::taken::Copies;

type Barrier = *mut libc::pthread_barrier_t;
type Init = unsafe extern "C" fn(Barrier, *const libc::pthread_barrierattr_t, c_uint) -> c_int;
type Act = unsafe extern "C" fn(Barrier) -> c_int;

// SAFETY: the types of the C library's functions, here and below.
static INIT: Real<Init> = unsafe { Real::new(c"pthread_barrier_init") };
// SAFETY: as above.
static DESTROY: Real<Act> = unsafe { Real::new(c"pthread_barrier_destroy") };
// SAFETY: as above.
static WAIT: Real<Act> = unsafe { Real::new(c"pthread_barrier_wait") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _) = (INIT.get(), DESTROY.get(), WAIT.get());
}

/// Who has come to a barrier that is destroyed has left it in no time, or has ended.
const PATIENCE: Duration = Duration::from_secs(1);

/// A barrier in an object.
#[repr(C)]
struct Words {
    round: AtomicU32,
    /// So many are there.
    there: AtomicU32,
    /// So many have to come.
    all: AtomicU32,
    /// So many have come and not left: the memory must stay a barrier for them.
    inside: AtomicU32,
}

fn wait(found: (&Words, Copies)) -> c_int {
    let (words, copies) = found;
    words.inside.fetch_add(1, Ordering::SeqCst);
    let done = come(found);
    if words.inside.fetch_sub(1, Ordering::SeqCst) == 1 {
        wake(copies, &words.inside, Wake::All);
    }
    done
}

fn come((words, copies): (&Words, Copies)) -> c_int {
    let round = words.round.load(Ordering::SeqCst);
    if words.there.fetch_add(1, Ordering::SeqCst) + 1 == words.all.load(Ordering::SeqCst) {
        words.there.store(0, Ordering::SeqCst);
        words.round.store(round.wrapping_add(1), Ordering::SeqCst);
        wake(copies, &words.round, Wake::All);
        return libc::PTHREAD_BARRIER_SERIAL_THREAD;
    }
    let mut waiting = Waiting::new(copies, None);
    while words.round.load(Ordering::SeqCst) == round {
        // It has no end.
        drop(waiting.wait(&words.round, round));
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_barrier_init(
    barrier: Barrier,
    attributes: *const libc::pthread_barrierattr_t,
    count: c_uint,
) -> c_int {
    // SAFETY: the program gives a barrier.
    match (unsafe { find::<_, Words>(barrier) }, INIT.get()) {
        (Some(_), _) if count == 0 => libc::EINVAL,
        (Some((words, _)), _) => {
            words.there.store(0, Ordering::SeqCst);
            words.inside.store(0, Ordering::SeqCst);
            words.all.store(count, Ordering::SeqCst);
            0
        }
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(barrier, attributes, count) },
        (None, None) => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_barrier_destroy(barrier: Barrier) -> c_int {
    // SAFETY: the program gives a barrier.
    match (unsafe { find::<_, Words>(barrier) }, DESTROY.get()) {
        (Some((words, copies)), _) => {
            let mut waiting = Waiting::new(copies, Some(Deadline::after(PATIENCE)));
            loop {
                let inside = words.inside.load(Ordering::SeqCst);
                if inside == 0 || waiting.wait(&words.inside, inside).is_err() {
                    return 0;
                }
            }
        }
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(barrier) },
        (None, None) => libc::ENOSYS,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_barrier_wait(barrier: Barrier) -> c_int {
    // SAFETY: the program gives a barrier.
    match (unsafe { find::<_, Words>(barrier) }, WAIT.get()) {
        (Some(found), _) => wait(found),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(barrier) },
        (None, None) => libc::ENOSYS,
    }
}
