//! Touches of memory that is not all there.
//!
//! A write that changes nothing is for who wants to have a page to be written to, and not yet to
//! write. A compiler that sees an atomic operation change nothing, as when no bits are set, makes a
//! read of it, and a page that is only read stays where it is.

use std::sync::atomic::AtomicU64;

/// Copies bytes as the program itself would: each page that is not there is waited for, also where system
/// calls that touch one fail (`Scope::UserOnly`). Memory that cannot be had ends the program (`SIGBUS`).
///
/// # Safety
/// So many bytes may be read there, and written to; nothing that Rust knows of may lie where they go, or
/// be written to where they come from, except for what others change at any time anyway.
pub unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for both sides; the direction flag is clear, as everywhere.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..length {
        // SAFETY: the caller vouches for both sides.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
}

/// Writes a word as it is, in one step.
pub fn write(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: one instruction that is atomic, on a word that is borrowed; it leaves the word as it
    // is. It says that it writes memory, so nothing is moved across it.
    unsafe {
        std::arch::asm!("lock or qword ptr [{}], 0", in(reg) word.as_ptr(), options(nostack));
    }
    #[cfg(not(target_arch = "x86_64"))]
    word.fetch_or(std::hint::black_box(0), std::sync::atomic::Ordering::SeqCst);
}
