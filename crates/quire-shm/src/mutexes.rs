//! `pthread_mutex_init` of a robust mutex in an object. When its owner ends, the kernel goes through
//! the list of those that it holds, and finds none in an object: its pages are taken back before, as
//! others may have them by then. Who waits would do so for good. So such a mutex is refused, as the
//! C library refuses it where the kernel has no such lists. What tells of owners that end is asked of
//! a server (`quire_dsm.h`).

use std::ffi::c_int;

use crate::real::Real;
use crate::state;
use crate::trouble::Trouble;

type Init =
    unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> c_int;

// SAFETY: the type of the C library's function.
static INIT: Real<Init> = unsafe { Real::new(c"pthread_mutex_init") };

/// Looks up the function behind this.
pub fn start() {
    let _ = INIT.get();
}

/// Whether a mutex is to be robust.
///
/// # Safety
/// The attributes are null, or were made by the C library.
unsafe fn is_robust(attributes: *const libc::pthread_mutexattr_t) -> bool {
    let mut robust = libc::PTHREAD_MUTEX_STALLED;
    // SAFETY: the caller vouches for the attributes, and there is room for the answer.
    !attributes.is_null()
        && unsafe { libc::pthread_mutexattr_getrobust(attributes, &raw mut robust) } == 0
        && robust == libc::PTHREAD_MUTEX_ROBUST
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attributes: *const libc::pthread_mutexattr_t,
) -> c_int {
    let start = mutex as u64;
    let range = start..start.saturating_add(size_of::<libc::pthread_mutex_t>() as u64);
    // SAFETY: the program gives attributes as the function takes them.
    if state::concerns(&range) && unsafe { is_robust(attributes) } {
        // The thread writes it to the log.
        let refused = state::locked(|state| {
            state.run(|_| -> Result<(), Trouble> {
                let text = "a robust mutex is made in an object: nobody would be told of an owner \
                            that ends, so that is not offered";
                Err(Trouble::new(libc::ENOTSUP, text))
            })
        });
        if let Some(Err(trouble)) = refused {
            return trouble.errno;
        }
    }
    match INIT.get() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(mutex, attributes) },
        None => libc::ENOSYS,
    }
}
