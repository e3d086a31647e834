//! Opening files. They are the program's business, with one exception: through
//! `/proc/self/mem` the kernel reads and writes memory in a way that cannot
//! wait for the pager. So a program that opens it has its first touches
//! reported no longer, before it gets the file.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use quire_linux::real::Real;

use crate::{MANAGER, frames, mappings};

type Open = unsafe extern "C" fn(*const c_char, c_int, c_uint) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint) -> c_int;
type OpenStream = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;

// SAFETY: these are the types of the C library's functions; a variable argument
// is passed like a fixed one.
static OPEN: Real<Open> = unsafe { Real::new(c"open") };
// SAFETY: as for `open`.
static OPEN64: Real<Open> = unsafe { Real::new(c"open64") };
// SAFETY: as for `open`.
static OPENAT: Real<OpenAt> = unsafe { Real::new(c"openat") };
// SAFETY: as for `open`.
static OPENAT64: Real<OpenAt> = unsafe { Real::new(c"openat64") };
// SAFETY: as for `open`.
static FOPEN: Real<OpenStream> = unsafe { Real::new(c"fopen") };
// SAFETY: as for `open`.
static FOPEN64: Real<OpenStream> = unsafe { Real::new(c"fopen64") };

/// Looks the functions up before a signal handler may need one.
pub fn start() {
    let _ = (OPEN.get(), OPEN64.get(), OPENAT.get(), OPENAT64.get());
    let _ = (FOPEN.get(), FOPEN64.get());
}

/// Whether a path names the memory of a process: `/proc/…/mem`.
fn is_memory(path: &[u8]) -> bool {
    path.starts_with(b"/proc/") && path.ends_with(b"/mem")
}

/// Makes ready for a program that opens a file.
///
/// # Safety
/// The path must be null or a C string.
unsafe fn notice(path: *const c_char) {
    mappings::start_late();
    // SAFETY: the caller vouches for the path.
    if !path.is_null() && is_memory(unsafe { CStr::from_ptr(path) }.to_bytes()) {
        MANAGER.stop_reporting();
        frames::stop();
    }
}

/// Calls `real` with the mode, which it ignores where the flags do not ask for
/// it.
unsafe fn open_by(real: &Real<Open>, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the program passes a path as `open` takes it.
    unsafe {
        notice(path);
        real.known().map_or(-1, |open| open(path, flags, mode))
    }
}

unsafe fn open_at_by(
    real: &Real<OpenAt>,
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: as in `open_by`.
    unsafe {
        notice(path);
        real.known().map_or(-1, |open| open(dir, path, flags, mode))
    }
}

unsafe fn open_stream_by(
    real: &Real<OpenStream>,
    path: *const c_char,
    mode: *const c_char,
) -> *mut c_void {
    // SAFETY: as in `open_by`.
    unsafe {
        notice(path);
        real.known()
            .map_or(std::ptr::null_mut(), |open| open(path, mode))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: passed on as it came, here and below.
    unsafe { open_by(&OPEN, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: as for `open`.
    unsafe { open_by(&OPEN64, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: as for `open`.
    unsafe { open_at_by(&OPENAT, dir, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: as for `open`.
    unsafe { open_at_by(&OPENAT64, dir, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut c_void {
    // SAFETY: as for `open`.
    unsafe { open_stream_by(&FOPEN, path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut c_void {
    // SAFETY: as for `open`.
    unsafe { open_stream_by(&FOPEN64, path, mode) }
}
