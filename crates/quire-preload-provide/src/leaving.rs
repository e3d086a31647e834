//! A program whose first thread leaves by `pthread_exit` ends with its last thread. The C library counts
//! the threads of this library, too, which stay: the pager, for one, which may be started later. So when
//! the first thread leaves, one more is started, which looks from time to time whether any of the
//! program's is left ([`quire_linux::left`]), and else ends the program in the way of the C library, by
//! `exit(0)`.
//!
//! The C library unwinds the stack of a thread that leaves. It must find no frame of this library there,
//! which is built to end the process where it is unwound: so the functions here jump on.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use quire_core::config::Policy;
use quire_linux::left;
use quire_linux::own_threads::{self, Own};
use quire_linux::real::Real;
use quire_linux::thread::{SignalMask, block_program_signals, current_id, process_id};

use crate::{MANAGER, frames};

type Leave = unsafe extern "C" fn(*mut c_void) -> !;
type LeaveC11 = unsafe extern "C" fn(c_int) -> !;

// SAFETY: the types of the C library's functions, here and below.
static LEAVE: Real<Leave> = unsafe { Real::new(c"pthread_exit") };
// SAFETY: as above.
static LEAVE_C11: Real<LeaveC11> = unsafe { Real::new(c"thrd_exit") };

/// The process in which somebody looks for what is left of the program.
static LOOKED_FOR: AtomicU32 = AtomicU32::new(0);

/// Looks up the functions behind these.
pub fn start() {
    let _ = (LEAVE.get(), LEAVE_C11.get());
}

/// A thread leaves, with what it was given.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn pthread_exit(value: *mut c_void) -> ! {
    naked_asm!(
        "push rdi",
        "call {leaves}",
        "pop rdi",
        "jmp rax",
        leaves = sym leaves_by_posix,
    )
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn thrd_exit(value: c_int) -> ! {
    naked_asm!(
        "push rdi",
        "call {leaves}",
        "pop rdi",
        "jmp rax",
        leaves = sym leaves_by_c11,
    )
}

/// Where `pthread_exit` goes on.
extern "C" fn leaves_by_posix() -> usize {
    leaves();
    LEAVE
        .get()
        .map_or_else(|| std::process::abort(), |real| real as usize)
}

/// Where `thrd_exit` goes on.
extern "C" fn leaves_by_c11() -> usize {
    leaves();
    LEAVE_C11
        .get()
        .map_or_else(|| std::process::abort(), |real| real as usize)
}

/// Whether the library has threads, or may come to have some.
fn may_have_threads() -> bool {
    own_threads::is_any() || MANAGER.policy() != Policy::Base || frames::wanted().is_some()
}

/// The calling thread leaves. If it is the first one, it is looked for the end of the others.
fn leaves() {
    let process = process_id();
    if current_id() != process || !may_have_threads() {
        return;
    }
    if LOOKED_FOR.swap(process, Ordering::AcqRel) == process {
        return;
    }
    let blocked = block_program_signals();
    let before = blocked.before();
    // Without it the program stays.
    let _ = std::thread::Builder::new()
        .name("quire-last".into())
        .spawn(move || end_when_left(before));
}

/// Waits until the program has no thread any more, and ends it. Its last functions run here.
fn end_when_left(blocked: SignalMask) {
    let own = Own::now();
    left::wait_for_others(own_threads::is_one);
    drop(own);
    blocked.set();
    // SAFETY: no thread of the program's is left that could use what it has.
    unsafe { libc::exit(0) };
}
