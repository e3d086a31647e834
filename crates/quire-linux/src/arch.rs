//! What differs by processor, in few instructions: how the kernel is called, how a thread begins,
//! and where the C library keeps what is a thread's own.
//!
//! A thread has an address of its own in a register. On x86-64 (variant 2 of thread-local storage)
//! its variables lie below that address, and what the C library keeps of it above; on aarch64
//! (variant 1) it is the other way round.
//!
//! What the default needs is here for both. The modules that only other parts need (`ptrace`, `stack`,
//! `tlb`) are for x86-64 alone.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{clone_thread, cpuid, prepare_own, syscall, thread_pointer};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{clone_thread, cpuid, prepare_own, syscall, thread_pointer};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("Quire is written for x86-64, and what its default needs for aarch64");
