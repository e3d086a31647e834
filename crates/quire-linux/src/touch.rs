//! A write that changes nothing: for who wants to have a page to be written to, and not yet to
//! write. A compiler that sees an atomic operation change nothing, as when no bits are set, makes a
//! read of it, and a page that is only read stays where it is.

use std::sync::atomic::AtomicU64;

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
