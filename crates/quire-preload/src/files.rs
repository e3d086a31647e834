//! Opening files. They are the program's business, with one exception: through
//! `/proc/self/mem` the kernel reads and writes memory in a way that cannot
//! wait for the pager. So a program that opens it has its first touches
//! reported no longer, before it gets the file.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::MANAGER;

type Open = unsafe extern "C" fn(*const c_char, c_int, c_uint) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint) -> c_int;
type OpenStream = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;

/// A function of the C library, looked up at its first call.
struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    const fn new(name: &'static CStr) -> Real {
        let found = AtomicPtr::new(std::ptr::null_mut());
        Real { name, found }
    }

    fn find(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

static OPEN: Real = Real::new(c"open");
static OPEN64: Real = Real::new(c"open64");
static OPENAT: Real = Real::new(c"openat");
static OPENAT64: Real = Real::new(c"openat64");
static FOPEN: Real = Real::new(c"fopen");
static FOPEN64: Real = Real::new(c"fopen64");

/// Looks the functions up before a signal handler may need one.
pub fn start() {
    for real in [&OPEN, &OPEN64, &OPENAT, &OPENAT64, &FOPEN, &FOPEN64] {
        real.find();
    }
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
    // SAFETY: the caller vouches for the path.
    if !path.is_null() && is_memory(unsafe { CStr::from_ptr(path) }.to_bytes()) {
        MANAGER.stop_reporting();
    }
}

/// Calls `real` as an `open` with the mode, which it ignores where the flags
/// do not ask for it.
unsafe fn open_by(real: &Real, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the program passes a path as `open` takes it; the symbol is the C
    // library's function of this type, in which a variable argument is passed
    // like a fixed one.
    unsafe {
        notice(path);
        std::mem::transmute::<*mut c_void, Open>(real.find())(path, flags, mode)
    }
}

unsafe fn open_at_by(
    real: &Real,
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: as in `open_by`.
    unsafe {
        notice(path);
        std::mem::transmute::<*mut c_void, OpenAt>(real.find())(dir, path, flags, mode)
    }
}

unsafe fn open_stream_by(real: &Real, path: *const c_char, mode: *const c_char) -> *mut c_void {
    // SAFETY: as in `open_by`.
    unsafe {
        notice(path);
        std::mem::transmute::<*mut c_void, OpenStream>(real.find())(path, mode)
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
