//! Threads and their descriptor tables.
//!
//! The pager thread keeps its descriptors in a table of its own, where a
//! program that closes all of its descriptors does not reach them. A thread
//! of the program that needs one borrows it for the length of a call.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU32;

use crate::raw::{Result, syscall};

const PIDFD_THREAD: usize = libc::O_EXCL as usize;

/// The number of the calling thread.
#[must_use]
pub fn current_id() -> u32 {
    // SAFETY: the call touches no memory and cannot fail.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) }.map_or(0, |id| id as u32)
}

/// The number of the calling process.
#[must_use]
pub fn process_id() -> u32 {
    // SAFETY: the call touches no memory and cannot fail.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) }.map_or(0, |id| id as u32)
}

/// Gives the calling thread a descriptor table of its own, empty.
///
/// # Errors
/// As `unshare`.
///
/// # Safety
/// The calling thread must hold no descriptor that it still needs, and from
/// now on must not be given one by number.
pub unsafe fn own_descriptor_table() -> Result<()> {
    let flags = libc::CLONE_FILES as usize;
    // SAFETY: a private copy of the table changes nothing for other threads.
    unsafe { syscall(libc::SYS_unshare, [flags, 0, 0, 0, 0, 0])? };
    let last = u32::MAX as usize;
    // SAFETY: the caller vouches that none of them is needed by this thread.
    unsafe { syscall(libc::SYS_close_range, [0, last, 0, 0, 0, 0]) }.map(drop)
}

/// Another thread's descriptor table, from which descriptors can be borrowed.
#[derive(Debug)]
pub struct DescriptorTable(OwnedFd);

impl DescriptorTable {
    /// The table of the thread `id` of this process.
    ///
    /// # Errors
    /// As `pidfd_open` (Linux 6.9 for threads); `EMFILE` when the calling
    /// thread's own table is full.
    pub fn of_thread(id: u32) -> Result<DescriptorTable> {
        // SAFETY: the call makes a descriptor and touches no memory.
        let fd = unsafe {
            syscall(
                libc::SYS_pidfd_open,
                [id as usize, PIDFD_THREAD, 0, 0, 0, 0],
            )?
        };
        // SAFETY: the kernel just gave us this descriptor.
        Ok(DescriptorTable(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// A copy of the descriptor that has number `fd` there.
    ///
    /// # Errors
    /// As `pidfd_getfd`.
    pub fn borrow(&self, fd: RawFd) -> Result<OwnedFd> {
        let table = self.0.as_raw_fd() as usize;
        // SAFETY: the call makes a descriptor and touches no memory.
        let fd = unsafe { syscall(libc::SYS_pidfd_getfd, [table, fd as usize, 0, 0, 0, 0])? };
        // SAFETY: the kernel just gave us this descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

/// CPU time of the calling thread, in nanoseconds.
#[must_use]
pub fn cpu_time_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Monotonic time, in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel fills the structure, which is of the right type.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Makes an event counter for [`signal_event`].
///
/// # Errors
/// As `eventfd2`.
pub fn new_event() -> Result<OwnedFd> {
    let flags = (libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as usize;
    // SAFETY: the call makes a descriptor and touches no memory.
    let fd = unsafe { syscall(libc::SYS_eventfd2, [0, flags, 0, 0, 0, 0])? };
    // SAFETY: the kernel just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Wakes who polls the event counter.
pub fn signal_event(event: &OwnedFd) {
    let one = 1u64;
    let args = [
        event.as_raw_fd() as usize,
        (&raw const one) as usize,
        8,
        0,
        0,
        0,
    ];
    // SAFETY: the kernel reads eight bytes that live until the call returns.
    let _ = unsafe { syscall(libc::SYS_write, args) };
}

/// Resets the event counter.
pub fn clear_event(event: &OwnedFd) {
    let mut value = 0u64;
    let args = [
        event.as_raw_fd() as usize,
        (&raw mut value) as usize,
        8,
        0,
        0,
        0,
    ];
    // SAFETY: the kernel writes eight bytes that live until the call returns.
    let _ = unsafe { syscall(libc::SYS_read, args) };
}

/// Waits for a word to change from `value`.
pub fn await_change(word: &AtomicU32, value: u32) {
    while word.load(std::sync::atomic::Ordering::Acquire) == value {
        crate::futex::wait(word, value);
    }
}

/// A limit on a resource of this process: the soft one.
#[must_use]
pub fn soft_limit(resource: u32) -> u64 {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let args = [0, resource as usize, 0, (&raw mut limit) as usize, 0, 0];
    // SAFETY: the kernel fills the structure, which is of the right type.
    match unsafe { syscall(libc::SYS_prlimit64, args) } {
        Ok(_) => limit.rlim_cur,
        Err(_) => libc::RLIM64_INFINITY,
    }
}

/// Signals of the program blocked in this thread until dropped; those that
/// the C library uses between its own threads are not.
#[derive(Debug)]
pub struct ProgramSignalsBlocked(u64);

/// Blocks the program's signals, so that a thread started now never runs a
/// handler of the program.
#[must_use]
pub fn block_program_signals() -> ProgramSignalsBlocked {
    const OF_THE_LIBRARY: u64 = (1 << 31) | (1 << 32);
    ProgramSignalsBlocked(crate::futex::set_signal_mask(!OF_THE_LIBRARY))
}

impl Drop for ProgramSignalsBlocked {
    fn drop(&mut self) {
        crate::futex::set_signal_mask(self.0);
    }
}
