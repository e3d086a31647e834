//! aarch64.
//!
//! It has been run in emulators only: `./test` starts threads under qemu-aarch64, where that is installed.

use std::arch::asm;
use std::sync::atomic::AtomicU32;

use quire_core::units::{AddrRange, Bytes, VirtAddr};

/// Makes a system call and returns the kernel's answer as it is.
///
/// # Safety
/// The caller vouches for what the call does to memory and descriptors.
#[inline]
pub unsafe fn syscall(number: i64, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the register assignment is the aarch64 system call convention,
    // in which all registers but x0 stay as they are; memory is not declared
    // untouched. What the call does is the caller's responsibility.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") args[0] => result,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x5") args[5],
            options(nostack),
        );
    }
    result
}

/// The call `clone` with `CLONE_SETTLS`. The new thread takes what it is to run and the argument from its stack,
/// and ends by the call `exit`, which ends no more than a thread.
///
/// # Safety
/// The top of the stack, a multiple of 16, holds the address of an `extern "C" fn(usize)` that does not unwind, and
/// its argument. `own` comes from [`prepare_own`], and both are the new thread's alone.
pub unsafe fn clone_thread(flags: i32, stack: VirtAddr, own: VirtAddr, id: &AtomicU32) -> isize {
    let answer: isize;
    // SAFETY: the registers are those of the aarch64 system call convention; `clone` has its last two arguments in
    // another order than on x86-64. In the new thread nothing of this function is used: it calls what its stack
    // says, and never returns. The caller vouches for the stack.
    unsafe {
        asm!(
            "svc #0",
            "cbnz x0, 2f",
            // Who walks the stack finds its end.
            "mov x29, xzr",
            "mov x30, xzr",
            "ldp x1, x0, [sp], #16",
            "blr x1",
            "mov x0, xzr",
            "mov x8, {exit}",
            "svc #0",
            "brk #1",
            "2:",
            exit = const libc::SYS_exit,
            in("x8") libc::SYS_clone,
            inlateout("x0") flags as usize => answer,
            in("x1") stack.0,
            in("x2") id.as_ptr(),
            in("x3") own.0,
            in("x4") id.as_ptr(),
        );
    }
    answer
}

/// Gives a new thread's own address in an area of zeros for what is its own: the C library's part, which takes so
/// much, lies below it; above lie two words that the ABI reserves, and the thread's variables. Zeros are right for
/// all of it: no word holds the address itself, the C library's word for the variables of libraries that are loaded
/// later is not looked at by a thread that keeps off those, and the value that guards stacks is one for all threads.
///
/// # Safety
/// The area is aligned to pages, and nobody uses it.
pub unsafe fn prepare_own(area: AddrRange, control: Bytes) -> VirtAddr {
    area.start + control
}

/// The calling thread's own address.
#[inline]
pub fn thread_pointer() -> VirtAddr {
    let own: u64;
    // SAFETY: reads a register that every program may read.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) own, options(nomem, nostack, preserves_flags));
    }
    VirtAddr(own)
}

/// There is no such instruction: zeros, as for a leaf that a processor does not know.
pub const fn cpuid(_leaf: u32, _subleaf: u32) -> [u32; 4] {
    [0; 4]
}
