//! Alignment of the program's own mappings (`--align`; paper 000, section 3.3,
//! and the switch of paper 004, section 3): those of a superpage and more begin
//! on a superpage boundary, or, where they map a file, where the file's
//! superpages do. Otherwise a mapping that the kernel manages may lie such that
//! none of it can become a superpage.

use std::ffi::c_int;

use quire_core::units::{AddrRange, Bytes, SUPERPAGE, VirtAddr};
use quire_linux::memory;

use crate::MANAGER;

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

/// Address space for a request without a hint that the kernel carries out, where
/// it is to be aligned: held until something is mapped over it or
/// [`give_back`] is called.
pub fn place(at: usize, len: usize, flags: c_int, offset: u64) -> Option<AddrRange> {
    if at != 0 || !wanted(len, flags) {
        return None;
    }
    let len = Bytes((len as u64).checked_next_multiple_of(quire_core::units::BASE_PAGE)?);
    let start = memory::reserve_space(len, offset).ok()?;
    Some(AddrRange::new(start, len))
}

/// Gives the address space back.
pub fn give_back(space: AddrRange) {
    // SAFETY: nothing was mapped there, and nobody else knows the place. Where it
    // fails, address space stays unused.
    let _ = unsafe { memory::unmap(space) };
}
