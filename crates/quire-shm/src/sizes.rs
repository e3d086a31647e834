//! `fstat` of an object's descriptor that was opened before the object was made: programs ask for the
//! size again and again until whoever makes it has given it one.

use std::ffi::c_int;

use crate::posix;
use crate::real::Real;
use crate::state;

type Fstat = unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;

// SAFETY: the type of the C library's function.
static FSTAT: Real<Fstat> = unsafe { Real::new(c"fstat") };

/// Looks up the function behind this.
pub fn start() {
    let _ = FSTAT.get();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat(descriptor: c_int, about: *mut libc::stat) -> c_int {
    if state::is_active() && posix::may_be_pending(descriptor) {
        // Where nothing is known of it, the file tells.
        let _ = state::locked(|state| posix::caught_up(state, descriptor).map(drop));
    }
    match FSTAT.get() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(descriptor, about) },
        // Older C libraries have no such function, and programs call another one.
        // SAFETY: the kernel fills the same structure.
        None => unsafe { libc::syscall(libc::SYS_fstat, descriptor, about) as c_int },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat64(descriptor: c_int, about: *mut libc::stat) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { fstat(descriptor, about) }
}
