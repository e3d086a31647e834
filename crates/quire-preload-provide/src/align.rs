//! Alignment of the program's own mappings (`--align`; paper 000, section 3.3,
//! and the switch of paper 004, section 3): those of a superpage and more begin
//! on a superpage boundary, or, where they map a file, where the file's
//! superpages do. Otherwise a mapping that the kernel manages may lie such that
//! none of it can become a superpage.

use std::ffi::c_int;

use quire_core::units::{AddrRange, Bytes, SUPERPAGE, VirtAddr};
use quire_linux::memory;
use quire_linux::raw::Result;

use crate::MANAGER;
use crate::mappings::raw;

/// Flags under which a mapping has no free choice of its place, or is aligned
/// anyway.
const PLACED: c_int = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_32BIT
    | libc::MAP_GROWSDOWN
    | libc::MAP_HUGETLB;

/// Whether a request to map `len` bytes is to be aligned.
fn wanted(len: usize, flags: c_int) -> bool {
    MANAGER.aligns() && len as u64 >= SUPERPAGE && flags & PLACED == 0
}

/// The address that a request hints at, moved up to where a superpage can begin
/// if that is wanted. No hint stays none.
pub fn hint(at: VirtAddr, len: usize, flags: c_int, offset: u64) -> VirtAddr {
    let up = offset.wrapping_sub(at.0) % SUPERPAGE;
    match at.0.checked_add(up) {
        Some(aligned) if at.0 != 0 && wanted(len, flags) => VirtAddr(aligned),
        _ => at,
    }
}

/// `mmap` by the kernel, with these arguments, at an address that suits a
/// superpage where that is wanted and there is room for it.
pub fn map(args: [usize; 6]) -> Result<usize> {
    let [at, len, prot, flags, fd, offset] = args;
    let ask = |at: usize, flags: usize| {
        // SAFETY: passed on as it came, or to a place that is held for it.
        unsafe { raw(libc::SYS_mmap, [at, len, prot, flags, fd, offset]) }
    };
    if at == 0
        && wanted(len, flags as c_int)
        && let Ok(space) = memory::reserve_space(whole_pages(len), offset as u64)
    {
        let mapped = ask(space.0 as usize, flags | libc::MAP_FIXED as usize);
        if mapped.is_ok() {
            return mapped;
        }
        // SAFETY: nothing was mapped there, and nobody else knows the place. Where
        // it fails, address space stays unused.
        let _ = unsafe { memory::unmap(AddrRange::new(space, whole_pages(len))) };
    }
    let hint = hint(VirtAddr(at as u64), len, flags as c_int, offset as u64);
    ask(hint.0 as usize, flags)
}

fn whole_pages(len: usize) -> Bytes {
    Bytes(len as u64).to_pages().to_bytes()
}
