//! Alignment of the program's own mappings (`--align`; paper 000, section 3.3,
//! and the switch of paper 004, section 3): those of a superpage and more begin
//! on a superpage boundary, or, where they map a file, where the file's
//! superpages do. Otherwise a mapping that the kernel manages may lie such that
//! none of it can become a superpage.

use std::ffi::{c_int, c_void};

use quire_core::units::{AddrRange, Bytes, SUPERPAGE, VirtAddr};
use quire_linux::memory;
use quire_linux::raw::Result;

use crate::MANAGER;
use crate::mappings::{pages, populate as populate_now, raw};

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
    let ask = |at: usize, flags: usize| map_there([at, len, prot, flags, fd, offset]);
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

/// `mmap` by the kernel. What is managed where the program wants it goes when the kernel has
/// mapped something else there, and stays where the kernel refuses. What is to be populated is
/// populated afterwards, because that may take long.
pub fn map_there(args: [usize; 6]) -> Result<usize> {
    let [at, len, prot, flags, fd, offset] = args;
    let target = pages(at as *mut c_void, len);
    if flags & libc::MAP_FIXED as usize == 0 || !target.start.is_page_aligned() {
        // SAFETY: passed on as it came, or to a place that is held for it.
        return unsafe { raw(libc::SYS_mmap, args) };
    }
    let populate = libc::MAP_POPULATE as usize;
    let populates = flags & populate != 0 && MANAGER.manages(target);
    let flags = if populates { flags & !populate } else { flags };
    // SAFETY: as before.
    let map = || unsafe { raw(libc::SYS_mmap, [at, len, prot, flags, fd, offset]) };
    let mapped = MANAGER.replace_by(target, map);
    if populates && mapped.is_ok() && flags & libc::MAP_NONBLOCK as usize == 0 {
        let shared = flags & libc::MAP_TYPE as usize != libc::MAP_PRIVATE as usize;
        let written = libc::PROT_WRITE as usize;
        let as_private = if shared { prot & !written } else { prot };
        populate_now(target, as_private as c_int);
    }
    mapped
}

fn whole_pages(len: usize) -> Bytes {
    Bytes(len as u64).to_pages().to_bytes()
}
