//! Locks of files: `flock`, `lockf`, and those of `fcntl`, also of open file descriptions. Each
//! `shm_open` of an object gives a file of its own, which others do not have, and machines have no
//! file in common: so such a lock would exclude nobody, and is refused. What synchronises the users
//! of an object is asked of its server (`quire_dsm.h`).

use std::ffi::{c_int, c_void};

use crate::posix;
use crate::real::Real;
use crate::state::{self, answer};
use crate::trouble::{Result, Trouble};

type Flock = unsafe extern "C-unwind" fn(c_int, c_int) -> c_int;
type Lockf = unsafe extern "C-unwind" fn(c_int, c_int, libc::off_t) -> c_int;
type Fcntl = unsafe extern "C-unwind" fn(c_int, c_int, *mut c_void) -> c_int;

// SAFETY: the types of the C library's functions, here and below.
static FLOCK: Real<Flock> = unsafe { Real::new(c"flock") };
// SAFETY: as above.
static LOCKF: Real<Lockf> = unsafe { Real::new(c"lockf") };
// SAFETY: as above; its last argument, which may be a number or missing, is passed like any other.
static FCNTL: Real<Fcntl> = unsafe { Real::new(c"fcntl") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _) = (FLOCK.get(), LOCKF.get(), FCNTL.get());
}

/// Refuses a lock of a descriptor that stands for an object; nothing where it stands for none.
fn refused(descriptor: c_int) -> Option<Result<c_int>> {
    if !posix::is_likely(descriptor) {
        return None;
    }
    let refused = state::locked(|state| {
        posix::find(state, descriptor)?;
        // The thread writes it to the log.
        Some(state.run(|_| {
            let text = "a descriptor of an object is to be locked: that would exclude nobody";
            Err(Trouble::new(libc::ENOLCK, text))
        }))
    });
    refused.flatten()
}

/// Whether a command of `fcntl` is about locks.
const fn is_about_locks(command: c_int) -> bool {
    matches!(
        command,
        libc::F_GETLK
            | libc::F_SETLK
            | libc::F_SETLKW
            | libc::F_OFD_GETLK
            | libc::F_OFD_SETLK
            | libc::F_OFD_SETLKW
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn flock(descriptor: c_int, operation: c_int) -> c_int {
    match (refused(descriptor), FLOCK.known()) {
        (Some(refused), _) => answer(refused, -1),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(descriptor, operation) },
        (None, None) => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn lockf(descriptor: c_int, command: c_int, len: libc::off_t) -> c_int {
    match (refused(descriptor), LOCKF.known()) {
        (Some(refused), _) => answer(refused, -1),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(descriptor, command, len) },
        (None, None) => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn lockf64(descriptor: c_int, command: c_int, len: libc::off_t) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { lockf(descriptor, command, len) }
}

/// In C it takes any number of arguments. The one that the program may have passed lies where a
/// third argument lies, a number or a pointer.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl(
    descriptor: c_int,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    let refused = match is_about_locks(command) {
        true => refused(descriptor),
        false => None,
    };
    match (refused, FCNTL.known()) {
        (Some(refused), _) => answer(refused, -1),
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(descriptor, command, argument) },
        (None, None) => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(
    descriptor: c_int,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the same function by another name.
    unsafe { fcntl(descriptor, command, argument) }
}
