//! System calls without the C library: the manager runs inside `malloc` and
//! inside fork handlers, where `errno` belongs to the program and where the
//! C library's own wrappers may be the very functions that Quire replaces.

use std::fmt;

use crate::arch;

/// The error number of a failed system call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> std::io::Error {
        std::io::Error::from_raw_os_error(errno.0)
    }
}

/// What a system call gives.
pub type Result<T> = std::result::Result<T, Errno>;

/// Makes a system call and returns the kernel's answer as it is: a value, or
/// a negated error number.
///
/// # Safety
/// The caller vouches for what the call does to memory and descriptors.
#[inline]
pub unsafe fn syscall_raw(number: i64, args: [usize; 6]) -> isize {
    // SAFETY: passed on to the caller.
    unsafe { arch::syscall(number, args) }
}

/// Turns the kernel's answer into a result.
///
/// # Errors
/// When the answer is a negated error number.
#[inline]
pub fn check(answer: isize) -> Result<usize> {
    if (-4095..0).contains(&answer) {
        Err(Errno(-answer as i32))
    } else {
        Ok(answer as usize)
    }
}

/// Makes a system call.
///
/// # Safety
/// As for [`syscall_raw`].
#[inline]
pub(crate) unsafe fn syscall(number: i64, args: [usize; 6]) -> Result<usize> {
    // SAFETY: passed on to the caller.
    check(unsafe { syscall_raw(number, args) })
}
