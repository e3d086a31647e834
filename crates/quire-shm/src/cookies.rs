//! Streams of the C library of objects: `fopen` of their paths, `fdopen` of their descriptors. The C library reads and
//! writes the descriptors of streams by functions of its own; a stream with functions of the program's
//! (`fopencookie`) is read and written by those here. `fileno` says that such a stream has no descriptor.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::paths;
use crate::posix;
use crate::real::Real;

type Fdopen = unsafe extern "C" fn(c_int, *const c_char) -> *mut libc::FILE;

// SAFETY: the type of the C library's function.
static FDOPEN: Real<Fdopen> = unsafe { Real::new(c"fdopen") };

/// Looks up the function behind this one.
pub fn start() {
    let _ = FDOPEN.get();
}

type ReadFunction = unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, usize) -> isize;
type WriteFunction = unsafe extern "C-unwind" fn(*mut c_void, *const c_char, usize) -> isize;
type SeekFunction = unsafe extern "C" fn(*mut c_void, *mut libc::off64_t, c_int) -> c_int;
type CloseFunction = unsafe extern "C" fn(*mut c_void) -> c_int;

/// `cookie_io_functions_t`.
#[repr(C)]
struct Functions {
    read: ReadFunction,
    write: WriteFunction,
    seek: SeekFunction,
    close: CloseFunction,
}

unsafe extern "C" {
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: Functions,
    ) -> *mut libc::FILE;
}

/// The descriptor, as a stream's own value.
fn descriptor(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int
}

unsafe extern "C-unwind" fn read(cookie: *mut c_void, to: *mut c_char, length: usize) -> isize {
    // SAFETY: the C library has room for as much.
    unsafe { libc::read(descriptor(cookie), to.cast(), length) }
}

unsafe extern "C-unwind" fn write(
    cookie: *mut c_void,
    from: *const c_char,
    length: usize,
) -> isize {
    // SAFETY: the C library has as much.
    let written = unsafe { libc::write(descriptor(cookie), from.cast(), length) };
    // This is how an error is told here.
    written.max(0)
}

unsafe extern "C" fn seek(cookie: *mut c_void, at: *mut libc::off64_t, whence: c_int) -> c_int {
    // SAFETY: the C library gives the address of an offset.
    unsafe {
        let now = libc::lseek(descriptor(cookie), *at, whence);
        if now < 0 {
            return -1;
        }
        *at = now;
    }
    0
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: the descriptor is the stream's own.
    unsafe { libc::close(descriptor(cookie)) }
}

/// The flags of `open` that a mode of `fopen` means.
fn flags(mode: &[u8]) -> Option<c_int> {
    let (first, others) = mode.split_first()?;
    let reads_and_writes = others.contains(&b'+');
    let has = |letter, flag| if others.contains(&letter) { flag } else { 0 };
    let how = match (first, reads_and_writes) {
        (b'r' | b'w' | b'a', true) => libc::O_RDWR,
        (b'r', false) => libc::O_RDONLY,
        (b'w' | b'a', false) => libc::O_WRONLY,
        _ => return None,
    };
    let makes = match first {
        b'w' => libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_CREAT,
        _ => 0,
    };
    Some(how | makes | has(b'x', libc::O_EXCL) | has(b'e', libc::O_CLOEXEC))
}

/// A stream of an object by its path; nothing where that means none, and null where it cannot be opened.
///
/// # Safety
/// Both are C strings, or the path is null.
pub unsafe fn open(path: *const c_char, mode: *const c_char) -> Option<*mut libc::FILE> {
    // SAFETY: the caller vouches for it.
    let opened = unsafe { paths::open(path, flags(CStr::from_ptr(mode).to_bytes())?) }?;
    if opened < 0 {
        return Some(std::ptr::null_mut());
    }
    // SAFETY: the caller vouches for the mode; the descriptor was opened here.
    let stream = unsafe { of(opened, mode) };
    if stream.is_null() {
        // SAFETY: as above.
        unsafe { libc::close(opened) };
    }
    Some(stream)
}

/// A stream of a descriptor of an object.
///
/// # Safety
/// The mode is a C string.
unsafe fn of(descriptor: c_int, mode: *const c_char) -> *mut libc::FILE {
    let functions = Functions {
        read,
        write,
        seek,
        close,
    };
    // SAFETY: the functions are for this value, which is a number that nobody follows; the caller vouches for
    // the mode.
    unsafe {
        if CStr::from_ptr(mode).to_bytes().first() == Some(&b'a') {
            libc::lseek(descriptor, 0, libc::SEEK_END);
        }
        let cookie: *mut c_void = std::ptr::without_provenance_mut(descriptor as usize);
        fopencookie(cookie, mode, functions)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(descriptor: c_int, mode: *const c_char) -> *mut libc::FILE {
    if posix::is_likely(descriptor) && posix::is_of_object(descriptor) {
        // SAFETY: the program gives a C string.
        return unsafe { of(descriptor, mode) };
    }
    match FDOPEN.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(descriptor, mode) },
        None => std::ptr::null_mut(),
    }
}
