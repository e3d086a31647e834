//! Program text on superpages: when the program begins, and for libraries that
//! it loads later.

use std::ffi::{c_int, c_void};

use quire_linux::real::Real;
use quire_vm::text::{self, Unloading};

use crate::set_errno;

type Close = unsafe extern "C" fn(*mut c_void) -> c_int;

// SAFETY: this is the type of the C library's function.
static DLCLOSE: Real<Close> = unsafe { Real::new(c"dlclose") };

/// Puts what the loader has loaded onto superpages, if that is wanted.
pub fn start(wanted: bool) {
    let _ = DLCLOSE.get();
    if wanted {
        // SAFETY: the C library gives the address of this thread's own variable.
        let errno = unsafe { *libc::__errno_location() };
        // SAFETY: this runs before the program, when the process has one thread.
        unsafe { text::promote_loaded() };
        set_errno(quire_vm::Errno(errno));
    }
}

/// Waits while text is being moved.
#[unsafe(no_mangle)]
unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    let Some(real) = DLCLOSE.known() else {
        return -1;
    };
    let unloading = Unloading::begin();
    // SAFETY: passed on as it came.
    let result = unsafe { real(handle) };
    drop(unloading);
    result
}
