//! The size of an object's descriptor that was opened before the object was made: `fstat`, `fstatat` and
//! `statx` of the descriptor itself, and `lseek` from the end. Programs ask for the size again and again
//! until whoever makes the object has given it one.

use std::ffi::{c_char, c_int, c_uint};

use crate::paths;
use crate::posix;
use crate::real::Real;
use crate::state;
use crate::trouble::set_errno;

type Fstat = unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;
type FstatAt = unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
type Statx = unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint, *mut libc::statx) -> c_int;
type Lseek = unsafe extern "C" fn(c_int, libc::off_t, c_int) -> libc::off_t;

// SAFETY: the types of the C library's functions, here and below.
static FSTAT: Real<Fstat> = unsafe { Real::new(c"fstat") };
// SAFETY: as above.
static FSTATAT: Real<FstatAt> = unsafe { Real::new(c"fstatat") };
// SAFETY: as above.
static STATX: Real<Statx> = unsafe { Real::new(c"statx") };
// SAFETY: as above.
static LSEEK: Real<Lseek> = unsafe { Real::new(c"lseek") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _) = (FSTAT.get(), FSTATAT.get());
    let (_, _) = (STATX.get(), LSEEK.get());
}

/// Gives a descriptor's file the size that its object has by now.
fn catch_up(descriptor: c_int) {
    if state::is_active() && posix::may_be_pending(descriptor) {
        // Where nothing is known of it, the file tells.
        let _ = state::locked(|state| posix::caught_up(state, descriptor).map(drop));
    }
}

/// Whether a path and flags mean the descriptor that comes with them, and nothing in a directory.
///
/// # Safety
/// The path is a C string, or null.
unsafe fn is_itself(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: the caller vouches for it.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat(descriptor: c_int, about: *mut libc::stat) -> c_int {
    catch_up(descriptor);
    let done = match FSTAT.get() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(descriptor, about) },
        // Older C libraries have no such function, and programs call another one.
        // SAFETY: the kernel fills the same structure.
        None => unsafe { libc::syscall(libc::SYS_fstat, descriptor, about) as c_int },
    };
    if done == 0
        && let Some(shown) = posix::shown(descriptor)
    {
        // SAFETY: the structure was filled.
        unsafe {
            (*about).st_ino = shown.number;
            (*about).st_blocks = shown.size.div_ceil(512).cast_signed();
        }
    }
    done
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat64(descriptor: c_int, about: *mut libc::stat) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { fstat(descriptor, about) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstatat(
    directory: c_int,
    path: *const c_char,
    about: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the program gives a C string.
    if unsafe { is_itself(path, flags) } {
        // SAFETY: as above.
        return unsafe { fstat(directory, about) };
    }
    // SAFETY: as above, and room for a structure.
    let looked = unsafe { paths::looked_at(path, |descriptor| fstat(descriptor, about)) };
    if let Some(looked) = looked {
        return looked;
    }
    match FSTATAT.get() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(directory, path, about, flags) },
        // As above.
        // SAFETY: the kernel fills the same structure.
        None => unsafe {
            libc::syscall(libc::SYS_newfstatat, directory, path, about, flags) as c_int
        },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstatat64(
    directory: c_int,
    path: *const c_char,
    about: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { fstatat(directory, path, about, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn statx(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    about: *mut libc::statx,
) -> c_int {
    // SAFETY: the program gives a C string.
    let is_itself = unsafe { is_itself(path, flags) };
    if is_itself {
        catch_up(directory);
    }
    let empty = libc::AT_EMPTY_PATH;
    // SAFETY: as above, and room for a structure.
    let looked =
        unsafe { paths::looked_at(path, |it| statx(it, c"".as_ptr(), empty, mask, about)) };
    if let Some(looked) = looked {
        return looked;
    }
    match STATX.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe {
            let done = real(directory, path, flags, mask, about);
            if is_itself
                && done == 0
                && let Some(shown) = posix::shown(directory)
            {
                ((*about).stx_ino, (*about).stx_blocks) = (shown.number, shown.size.div_ceil(512));
            }
            done
        },
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lseek(descriptor: c_int, offset: libc::off_t, whence: c_int) -> libc::off_t {
    // The others know no size.
    if !matches!(whence, libc::SEEK_SET | libc::SEEK_CUR) {
        catch_up(descriptor);
    }
    // The file itself is one hole, the object has none.
    let is_searched = matches!(whence, libc::SEEK_DATA | libc::SEEK_HOLE);
    let size = || posix::shown(descriptor).map(|shown| shown.size.cast_signed());
    let (offset, whence) = match is_searched.then(size).flatten() {
        Some(size) if offset < 0 || offset >= size => {
            set_errno(libc::ENXIO);
            return -1;
        }
        Some(size) if whence == libc::SEEK_HOLE => (size, libc::SEEK_SET),
        Some(_) => (offset, libc::SEEK_SET),
        None => (offset, whence),
    };
    match LSEEK.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(descriptor, offset, whence) },
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lseek64(descriptor: c_int, offset: libc::off_t, whence: c_int) -> libc::off_t {
    // SAFETY: the same function by another name.
    unsafe { lseek(descriptor, offset, whence) }
}
