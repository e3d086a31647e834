//! Objects by their paths: `/dev/shm/NAME` is where the C library has the shared memory called `/NAME`, and
//! programs open it there (numpy, joblib), look whether it is there, and remove it.
//!
//! Programs open files in signal handlers and allocators: a path of another directory costs a comparison.

use std::ffi::{CStr, c_char, c_int};

use rustix::fs::{FileType, Stat};

use crate::posix;
use crate::real::Real;
use crate::state::{self, answer};
use crate::trouble::{Result, set_errno};

type StatFunction = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
type Access = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
type AccessAt = unsafe extern "C" fn(c_int, *const c_char, c_int, c_int) -> c_int;
type Unlink = unsafe extern "C" fn(*const c_char) -> c_int;
type UnlinkAt = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;

// SAFETY: the types of the C library's functions, here and below.
static STAT: Real<StatFunction> = unsafe { Real::new(c"stat") };
// SAFETY: as above.
static LSTAT: Real<StatFunction> = unsafe { Real::new(c"lstat") };
// SAFETY: as above.
static ACCESS: Real<Access> = unsafe { Real::new(c"access") };
// SAFETY: as above.
static ACCESS_AT: Real<AccessAt> = unsafe { Real::new(c"faccessat") };
// SAFETY: as above.
static UNLINK: Real<Unlink> = unsafe { Real::new(c"unlink") };
// SAFETY: as above.
static UNLINK_AT: Real<UnlinkAt> = unsafe { Real::new(c"unlinkat") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _) = (STAT.get(), LSTAT.get());
    let (_, _) = (ACCESS.get(), ACCESS_AT.get());
    let (_, _) = (UNLINK.get(), UNLINK_AT.get());
}

/// Where the C library has shared memory.
const DIRECTORY: &[u8] = b"/dev/shm/";

/// What shared memory with this path is called, if there can be any.
///
/// # Safety
/// The path is a C string, or null.
unsafe fn name_of<'a>(path: *const c_char) -> Option<&'a CStr> {
    if path.is_null() || !state::is_active() {
        return None;
    }
    // SAFETY: the caller vouches for it.
    let path = unsafe { CStr::from_ptr(path) };
    let name = path.to_bytes().strip_prefix(DIRECTORY)?;
    let is_name = !name.is_empty() && !name.contains(&b'/');
    let from = DIRECTORY.len();
    is_name.then(|| CStr::from_bytes_with_nul(&path.to_bytes_with_nul()[from..]).ok())?
}

/// Which object a path means.
///
/// # Safety
/// As [`name_of`].
unsafe fn place_of(path: *const c_char) -> Option<usize> {
    // SAFETY: the caller vouches for it.
    let name = unsafe { name_of(path) }?;
    // SAFETY: it is a C string.
    let place = unsafe { posix::place_named("", name.as_ptr()) }?;
    // SAFETY: the caller vouches for it.
    let about = rustix::fs::lstat(unsafe { CStr::from_ptr(path) });
    // Programs have directories of their own there, with files for nobody else.
    let is_directory = |about: &Stat| FileType::from_raw_mode(about.st_mode) == FileType::Directory;
    (!about.is_ok_and(|about| is_directory(&about))).then_some(place)
}

/// Flags by which no shared memory is opened.
const OTHERS: c_int = libc::O_PATH | libc::O_DIRECTORY;

/// Opens an object by its path; nothing where that means none.
///
/// # Safety
/// As [`name_of`].
pub unsafe fn open(path: *const c_char, flags: c_int) -> Option<c_int> {
    if flags & OTHERS != 0 {
        return None;
    }
    // SAFETY: the caller vouches for it.
    let place = unsafe { place_of(path) }?;
    let opened = state::locked(|state| posix::open(state, place, flags))?;
    let opened = opened.inspect(|descriptor| {
        if flags & libc::O_CLOEXEC == 0 {
            // SAFETY: the descriptor was opened for the program.
            unsafe { libc::fcntl(*descriptor, libc::F_SETFD, 0) };
        }
    });
    Some(answer(opened, -1))
}

/// Does something with an object that is opened to be read; nothing where a path means none.
///
/// # Safety
/// As [`name_of`].
pub unsafe fn looked_at(path: *const c_char, act: impl FnOnce(c_int) -> c_int) -> Option<c_int> {
    // SAFETY: the caller vouches for it.
    let descriptor = unsafe { open(path, libc::O_RDONLY | libc::O_CLOEXEC) }?;
    if descriptor < 0 {
        return Some(-1);
    }
    let done = act(descriptor);
    // SAFETY: it was opened here.
    unsafe { libc::close(descriptor) };
    Some(done)
}

/// Removes the name of an object.
///
/// # Safety
/// As [`name_of`].
unsafe fn removed(path: *const c_char) -> Option<c_int> {
    // SAFETY: the caller vouches for it.
    let place = unsafe { place_of(path) }?;
    let removed: Result<()> = state::locked(|state| posix::unlink(state, place, posix::keeps()))?;
    Some(answer(removed.map(|()| 0), -1))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat(path: *const c_char, about: *mut libc::stat) -> c_int {
    // SAFETY: the program gives a C string, and room for a structure.
    unsafe {
        let looked = looked_at(path, |descriptor| libc::fstat(descriptor, about));
        match (looked, STAT.get()) {
            (Some(looked), _) => looked,
            (None, Some(real)) => real(path, about),
            // Older C libraries have no such function, and programs call another one.
            (None, None) => libc::syscall(libc::SYS_stat, path, about) as c_int,
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn stat64(path: *const c_char, about: *mut libc::stat) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { stat(path, about) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lstat(path: *const c_char, about: *mut libc::stat) -> c_int {
    // SAFETY: as for `stat`.
    unsafe {
        let looked = looked_at(path, |descriptor| libc::fstat(descriptor, about));
        match (looked, LSTAT.get()) {
            (Some(looked), _) => looked,
            (None, Some(real)) => real(path, about),
            (None, None) => libc::syscall(libc::SYS_lstat, path, about) as c_int,
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lstat64(path: *const c_char, about: *mut libc::stat) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { lstat(path, about) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the program gives a C string.
    let looked = unsafe { looked_at(path, |_| allowed(mode)) };
    match (looked, ACCESS.known()) {
        (Some(looked), _) => looked,
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(path, mode) },
        (None, None) => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn faccessat(
    directory: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the program gives a C string.
    let looked = unsafe { looked_at(path, |_| allowed(mode)) };
    match (looked, ACCESS_AT.known()) {
        (Some(looked), _) => looked,
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(directory, path, mode, flags) },
        (None, None) => -1,
    }
}

/// What `access` says of shared memory that is there: whether it may be written to is known when it is.
fn allowed(mode: c_int) -> c_int {
    if mode & libc::X_OK == 0 {
        return 0;
    }
    set_errno(libc::EACCES);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: the program gives a C string.
    match (unsafe { removed(path) }, UNLINK.known()) {
        (Some(removed), _) => removed,
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(path) },
        (None, None) => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
    let removed = match flags {
        // SAFETY: the program gives a C string.
        0 => unsafe { removed(path) },
        _ => None,
    };
    match (removed, UNLINK_AT.known()) {
        (Some(removed), _) => removed,
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(directory, path, flags) },
        (None, None) => -1,
    }
}
