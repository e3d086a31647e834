//! Opening files: objects by their paths (`paths`), and the file of an object's descriptor anew, by its
//! name in `/proc/self/fd` or `/dev/fd`: `open`, `openat`, `fopen`, `creat`. The kernel would give a descriptor that can be read, and all that is
//! read would be zeros. It stands for the object, like the first one.
//!
//! Programs open files in signal handlers and allocators, too: what is no object's file is told from
//! one by a single system call, and nothing is done about it.

use std::ffi::{c_char, c_int};

use crate::cookies;
use crate::paths;
use crate::posix;
use crate::real::Real;
use crate::state;

type Open = unsafe extern "C-unwind" fn(*const c_char, c_int, libc::mode_t) -> c_int;
type OpenTwo = unsafe extern "C-unwind" fn(*const c_char, c_int) -> c_int;
type OpenAt = unsafe extern "C-unwind" fn(c_int, *const c_char, c_int, libc::mode_t) -> c_int;
type OpenAtTwo = unsafe extern "C-unwind" fn(c_int, *const c_char, c_int) -> c_int;
type Fopen = unsafe extern "C-unwind" fn(*const c_char, *const c_char) -> *mut libc::FILE;

// SAFETY: the types of the C library's functions, here and below; the last argument of this one and
// the next, which may be missing, is passed like any other.
static OPEN: Real<Open> = unsafe { Real::new(c"open") };
// SAFETY: as above.
static OPENAT: Real<OpenAt> = unsafe { Real::new(c"openat") };
// SAFETY: as above.
static OPEN_TWO: Real<OpenTwo> = unsafe { Real::new(c"__open_2") };
// SAFETY: as above.
static OPENAT_TWO: Real<OpenAtTwo> = unsafe { Real::new(c"__openat_2") };
// SAFETY: as above.
static FOPEN: Real<Fopen> = unsafe { Real::new(c"fopen") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _) = (OPEN.get(), OPENAT.get(), FOPEN.get());
    let (_, _) = (OPEN_TWO.get(), OPENAT_TWO.get());
}

/// What was opened, which is not to be read if it is the file of an object.
fn opened(descriptor: c_int, flags: c_int) -> c_int {
    let is_read = flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_WRONLY;
    if descriptor >= 0 && is_read && state::is_active() && posix::is_of_object(descriptor) {
        return posix::only_written(descriptor);
    }
    descriptor
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the program gives a C string.
    if let Some(opened) = unsafe { paths::open(path, flags) } {
        return opened;
    }
    match OPEN.known() {
        // SAFETY: passed on as it came.
        Some(real) => opened(unsafe { real(path, flags, mode) }, flags),
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the same function by another name: files may be large in both.
    unsafe { open(path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn openat(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    // SAFETY: the program gives a C string.
    if let Some(opened) = unsafe { paths::open(path, flags) } {
        return opened;
    }
    match OPENAT.known() {
        // SAFETY: passed on as it came.
        Some(real) => opened(unsafe { real(directory, path, flags, mode) }, flags),
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn openat64(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { openat(directory, path, flags, mode) }
}

/// What `open` becomes where the compiler adds checks (`_FORTIFY_SOURCE`).
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program gives a C string.
    if let Some(opened) = unsafe { paths::open(path, flags) } {
        return opened;
    }
    match OPEN_TWO.known() {
        // SAFETY: passed on as it came.
        Some(real) => opened(unsafe { real(path, flags) }, flags),
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { __open_2(path, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __openat_2(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the program gives a C string.
    if let Some(opened) = unsafe { paths::open(path, flags) } {
        return opened;
    }
    match OPENAT_TWO.known() {
        // SAFETY: passed on as it came.
        Some(real) => opened(unsafe { real(directory, path, flags) }, flags),
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __openat64_2(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { __openat_2(directory, path, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the program gives C strings.
    if let Some(stream) = unsafe { cookies::open(path, mode) } {
        return stream;
    }
    let Some(real) = FOPEN.known() else {
        return std::ptr::null_mut();
    };
    // SAFETY: passed on as it came; a stream that is there has a descriptor.
    unsafe {
        let stream = real(path, mode);
        if !stream.is_null() {
            opened(libc::fileno(stream), libc::O_RDWR);
        }
        stream
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the same function by another name.
    unsafe { fopen(path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn creat(path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: as the C library does it.
    unsafe { open(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn creat64(path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { creat(path, mode) }
}
