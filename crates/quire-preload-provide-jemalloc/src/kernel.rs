//! The memory calls that the library itself makes, jemalloc's above all: they are the kernel's, and not what the
//! program gets (`--wrap` in `build.rs`). What jemalloc takes from the kernel is noted.

use std::ffi::{c_int, c_void};

use quire_core::units::Bytes;
use quire_preload_provide::allocator;

use crate::arenas;

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_mmap(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    if arenas::is_refused(len) {
        // SAFETY: the C library gives the address of this thread's own variable.
        unsafe { *libc::__errno_location() = libc::ENOMEM };
        return libc::MAP_FAILED;
    }
    if prot != libc::PROT_NONE {
        arenas::took_from_kernel(Bytes(len as u64));
    }
    // SAFETY: passed on as it came, here and below.
    unsafe { allocator::map(at, len, prot, flags, fd, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_munmap(at: *mut c_void, len: usize) -> c_int {
    // SAFETY: as above.
    unsafe { allocator::unmap(at, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_mremap(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // SAFETY: as above.
    unsafe { allocator::remap(at, old_len, new_len, flags, new) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { allocator::advise(at, len, advice) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_mprotect(at: *mut c_void, len: usize, prot: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { allocator::protect(at, len, prot) }
}
