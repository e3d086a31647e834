//! Mappings smaller than a superpage. They stay the kernel's, which gives them
//! folios of 16 KiB to 1 MiB where it is asked to and an administrator lets it
//! (paper 000, section 3.4: superpages of several sizes). All that Quire does is
//! ask.

use std::ffi::c_int;

use quire_core::level::Level;
use quire_core::units::{AddrRange, SUPERPAGE};
use quire_linux::memory::{self, Advice};

use crate::MANAGER;

/// What a mapping must be, and what it must not: stacks are used at one end, and
/// what the program places itself may lie in something larger.
const PRIVATE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const OTHERS: c_int = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_GROWSDOWN
    | libc::MAP_STACK
    | libc::MAP_HUGETLB;

/// Asks for small folios for a mapping that was just made.
pub fn advise(made: AddrRange, prot: c_int, flags: c_int) {
    let size = made.len();
    let suits = flags & PRIVATE == PRIVATE
        && flags & OTHERS == 0
        && prot & libc::PROT_WRITE != 0
        && (Level::SMALLEST.bytes().0..SUPERPAGE).contains(&size.0);
    if suits && MANAGER.asks_for_small() {
        // SAFETY: advice about page sizes does not change contents. Where the
        // kernel refuses, the mapping has base pages.
        let _ = unsafe { memory::advise(made, Advice::HugePage) };
    }
}
