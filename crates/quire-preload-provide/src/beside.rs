//! What other libraries of Quire in the process ask, `libquire_dsm.so` and `libquire.so`. It is no part of the C
//! interface.

use std::ffi::c_int;

use quire_core::units::{AddrRange, VirtAddr};
use quire_linux::own_threads;

use crate::{MANAGER, frames};

/// Whether a thread of this process is one of this library's.
#[unsafe(no_mangle)]
extern "C" fn quire_beside_is_own_thread(thread: u32) -> c_int {
    c_int::from(own_threads::is_one(thread))
}

/// The first managed addresses from an address on: where they start and end. Says whether there are any. Where frames
/// are given by strategy it is all memory, as no page may get other frames. It may be called on a thread that the C
/// library does not know.
#[unsafe(no_mangle)]
unsafe extern "C" fn quire_beside_managed(from: u64, found: *mut [u64; 2]) -> c_int {
    let start = VirtAddr(from);
    let run = match frames::are_wanted() {
        true => Some(AddrRange {
            start,
            end: VirtAddr(u64::MAX),
        }),
        false => MANAGER.managed_from(start),
    };
    if let Some(run) = run {
        // SAFETY: whoever asks has room for the answer.
        unsafe { found.write([run.start.0, run.end.0]) };
    }
    c_int::from(run.is_some())
}
