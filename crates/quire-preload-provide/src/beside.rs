//! What `libquire_dsm.so` asks, where both are in a process. It is no part of the C interface.

use std::ffi::c_int;

use quire_linux::own_threads;

/// Whether a thread of this process is one of this library's.
#[unsafe(no_mangle)]
extern "C" fn quire_beside_is_own_thread(thread: u32) -> c_int {
    c_int::from(own_threads::is_one(thread))
}
