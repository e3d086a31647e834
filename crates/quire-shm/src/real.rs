//! Functions that this library stands before, and calls itself.

use std::ffi::{c_int, c_void};

pub use quire_linux::real::Real;

pub type Mmap =
    unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, libc::off_t) -> *mut c_void;
pub type Munmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;

// SAFETY: the types of the C library's functions, here and below.
pub static MMAP: Real<Mmap> = unsafe { Real::new(c"mmap") };
// SAFETY: as above.
pub static MUNMAP: Real<Munmap> = unsafe { Real::new(c"munmap") };
