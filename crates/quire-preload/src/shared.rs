//! Shared memory: which mappings are of it, and where they begin.
//!
//! The kernel maps a superpage of shared memory only where addresses and offsets agree modulo 2 MiB, and for itself it
//! chooses such addresses only where `shmem_enabled` allows superpages at the first touch. So where the program leaves
//! the address open, one is proposed that suits; the kernel takes another one if something came there meanwhile.
//!
//! Shared memory counts as growth, though this process may never touch it: what a server maps, its children fill.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

use quire_core::config::Policy;
use quire_core::units::{Bytes, VirtAddr};
use quire_linux::memory;

use crate::{beside, growth, settings};

/// Whether a mapping with these flags is of shared memory that can become superpages by copies: anonymous, or of a file
/// in memory (`memfd_create`, `shm_open`). Where the program forbids system calls, nothing is asked.
pub fn is_memory(flags: c_int, fd: c_int) -> bool {
    let kind = flags & libc::MAP_TYPE;
    let is_shared = kind == libc::MAP_SHARED || kind == libc::MAP_SHARED_VALIDATE;
    is_shared
        && flags & libc::MAP_HUGETLB == 0
        && settings::policy() == Policy::Adaptive
        && !growth::is_left_alone()
        && (flags & libc::MAP_ANONYMOUS != 0 || is_in_memory(fd))
}

fn is_in_memory(fd: c_int) -> bool {
    if fd < 0 {
        return false;
    }
    // SAFETY: the program vouches for its descriptor. Should another thread close it now, what is asked of it fails.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::fs::fstatfs(file).is_ok_and(|about| about.f_type == libc::TMPFS_MAGIC)
}

/// Where the memory is to be mapped: at an address that suits superpages, if the program leaves it open. A library that
/// provides memory sees to that itself.
pub fn place(at: *mut c_void, len: usize, flags: c_int, offset: i64) -> *mut c_void {
    let (start, len) = (VirtAddr(at as u64), Bytes(len as u64));
    if !memory::is_shared_anywhere(start, len, flags) || beside::provides() {
        return at;
    }
    match memory::likely_space(len, offset as u64) {
        Ok(suits) => suits.0 as *mut c_void,
        Err(_) => at,
    }
}
