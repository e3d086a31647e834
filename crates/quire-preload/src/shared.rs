//! Shared memory: which mappings are of it, and where they begin.
//!
//! The kernel maps a superpage of shared memory only where addresses and offsets agree modulo 2 MiB, and for itself it
//! chooses such addresses only where `shmem_enabled` allows superpages at the first touch. So where the program leaves
//! the address open, one is proposed that suits; the kernel takes another one if something came there meanwhile.
//!
//! Shared memory counts as growth, though this process may never touch it: what a server maps, its children fill. What is
//! anonymous is noted besides: the helper of the process that has mapped it makes superpages of what others have filled.
//! It does not for its children, and for what each process maps for itself: all of it would count as resident in each.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use quire_core::config::Policy;
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, VirtAddr};
use quire_linux::memory;

use crate::state::{self, SERVED};
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

/// Shared memory was mapped: `len` bytes at `at`.
pub fn note(at: *const u8, len: usize, flags: c_int) {
    if flags & libc::MAP_ANONYMOUS == 0 {
        return;
    }
    let Some(state) = state::get() else { return };
    let number = state.serves.fetch_add(1, Ordering::Relaxed);
    let [start, end] = &state.served[number % SERVED];
    // Another thread may read one without the other: then a look takes other memory for it, or not all of it.
    start.store(at as u64 / BASE_PAGE, Ordering::Relaxed);
    end.store(
        (at as u64 + len as u64).div_ceil(BASE_PAGE),
        Ordering::Relaxed,
    );
}

/// What this process has mapped of anonymous shared memory at `from` or next behind it.
pub fn served(from: VirtAddr) -> Option<AddrRange> {
    let all = state::get()?.served.iter().map(|[start, end]| AddrRange {
        start: VirtAddr(start.load(Ordering::Relaxed) * BASE_PAGE).max(from),
        end: VirtAddr(end.load(Ordering::Relaxed) * BASE_PAGE),
    });
    all.filter(|range| range.start < range.end)
        .min_by_key(|range| range.start)
}
