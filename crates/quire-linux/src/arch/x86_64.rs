//! x86-64.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::atomic::AtomicU32;

use quire_core::units::{AddrRange, Bytes, VirtAddr};

/// Makes a system call and returns the kernel's answer as it is.
///
/// # Safety
/// The caller vouches for what the call does to memory and descriptors.
#[inline]
pub unsafe fn syscall(number: i64, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the register assignment is the x86-64 system call convention;
    // rcx and r11 are declared as overwritten, and memory is not declared
    // untouched. What the call does is the caller's responsibility.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
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
    // SAFETY: the registers are those of the x86-64 system call convention. In the new thread nothing of this
    // function is used: it calls what its stack says, and never returns. The caller vouches for the stack.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rax",
            "pop rdi",
            "and rsp, -16",
            "call rax",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone as isize => answer,
            in("rdi") flags as usize,
            in("rsi") stack.0,
            in("rdx") id.as_ptr(),
            in("r10") id.as_ptr(),
            in("r8") own.0,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}

/// Prepares an area of zeros for what is a new thread's own, of which the C library's part takes so much, and gives
/// the thread's own address: its variables lie below that, the C library's part above.
///
/// # Safety
/// The area is writable, aligned to pages, and nobody uses it.
pub unsafe fn prepare_own(area: AddrRange, control: Bytes) -> VirtAddr {
    let own = VirtAddr(area.end.0 - control.0);
    // A thread's own address holds itself (x86-64 ABI, thread-local storage), and two words on the C library
    // keeps it once more.
    // SAFETY: the address lies in the area, which nobody uses; it is aligned to a page.
    unsafe { own.as_ptr().cast::<[u64; 3]>().write([own.0, 0, own.0]) };
    own
}

/// The calling thread's own address.
#[inline]
pub fn thread_pointer() -> VirtAddr {
    let own: u64;
    // SAFETY: reads the word that a thread's own address holds, which is that address (System V ABI).
    unsafe { asm!("mov {}, fs:[0]", out(reg) own, options(nostack, readonly, preserves_flags)) };
    VirtAddr(own)
}

/// What CPUID says for a leaf and a subleaf: the registers eax, ebx, ecx and edx.
pub fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    // Safe to call in later versions of Rust than the oldest that we support.
    #[allow(unused_unsafe)]
    // SAFETY: every 64-bit processor has the instruction, and it touches no
    // memory.
    let r = unsafe { __cpuid_count(leaf, subleaf) };
    [r.eax, r.ebx, r.ecx, r.edx]
}
