//! Threads: their numbers, clocks, signals and descriptor tables.

use std::ffi::{CStr, c_int};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use quire_core::units::VirtAddr;
use rustix::fs::{Mode, OFlags};

use crate::raw::{Errno, Result, syscall};

/// The number of the calling thread.
#[must_use]
pub fn current_id() -> u32 {
    // SAFETY: the call touches no memory and cannot fail.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) }.map_or(0, |id| id as u32)
}

/// For how long a thread of this process has run so far; `None` where there is none of this
/// number.
#[must_use]
pub fn time_of(id: u32) -> Option<Duration> {
    // How the kernel names the clock of a thread (`clock_getres(2)`): its number, inverted,
    // above three bits that say that it is one thread's, and counts what the scheduler does.
    const OF_A_THREAD: libc::clockid_t = 4 | 2;
    let clock = !libc::clockid_t::try_from(id).ok()? << 3 | OF_A_THREAD;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call writes to no more than the structure.
    let answer = unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) };
    if answer != 0 {
        return None;
    }
    // SAFETY: the kernel has filled it.
    let time = unsafe { time.assume_init() };
    let seconds = Duration::from_secs(time.tv_sec.unsigned_abs());
    Some(seconds + Duration::from_nanos(time.tv_nsec.unsigned_abs()))
}

/// Where the calling thread has its stack and its own variables, an address of
/// each.
#[must_use]
pub fn own_memory() -> [VirtAddr; 2] {
    let local = 0u8;
    let stack = VirtAddr((&raw const local) as u64);
    // SAFETY: the call only computes an address.
    let variables = unsafe { libc::__errno_location() };
    [stack, VirtAddr(variables as u64)]
}

/// The number of the calling process.
#[must_use]
pub fn process_id() -> u32 {
    // SAFETY: the call touches no memory and cannot fail.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) }.map_or(0, |id| id as u32)
}

/// Reaps a child of this process, whatever signal it raises when it ends, with options of `wait4`;
/// whether it is no more. The program may have reaped it itself.
pub(crate) fn reap(child: u32, options: c_int) -> bool {
    let options = options | libc::__WALL;
    let args = [child as usize, 0, options as usize, 0, 0, 0];
    loop {
        // SAFETY: reaps our own child; a null status is allowed.
        match unsafe { syscall(libc::SYS_wait4, args) } {
            Ok(0) => return false,
            Err(Errno(libc::EINTR)) => {}
            Ok(_) | Err(_) => return true,
        }
    }
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
pub fn signal_event(event: &impl AsFd) {
    let one = 1u64;
    let args = [
        event.as_fd().as_raw_fd() as usize,
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

/// Where threads of this process wait for a futex by a key that is not private
/// to the process: such a key depends on what is mapped at the address.
///
/// Like everything in this module, it does without the C library's allocator:
/// it is called under the manager's lock.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn shared_futex_waits() -> Result<Vec<VirtAddr>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let tasks = rustix::fs::open(c"/proc/self/task", flags, Mode::empty())?;
    let mut buffer = [const { MaybeUninit::uninit() }; 2048];
    let mut entries = rustix::fs::RawDir::new(&tasks, &mut buffer);
    let mut found = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        // A thread that has ended meanwhile waits for nothing.
        let mut text = [0u8; 256];
        let state = current_call(tasks.as_fd(), entry.file_name(), &mut text).unwrap_or_default();
        found.extend(parse_shared_wait(state));
    }
    Ok(found)
}

/// The system call in which a thread is, by its directory in `tasks`.
fn current_call<'a>(tasks: BorrowedFd<'_>, thread: &CStr, text: &'a mut [u8]) -> Result<&'a str> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::PATH;
    let dir = rustix::fs::openat(tasks, thread, flags, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, c"syscall", flags, Mode::empty())?;
    let len = rustix::io::read(file, &mut *text)?;
    Ok(std::str::from_utf8(&text[..len]).unwrap_or_default())
}

/// The futex that a thread waits for, from its `syscall` file: the number of
/// the call and its arguments.
fn parse_shared_wait(state: &str) -> Option<VirtAddr> {
    let mut words = state.split_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (address, operation) = (argument()?, argument()? as i32);
    let command = operation & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    let shared = operation & libc::FUTEX_PRIVATE_FLAG == 0;
    let waits = matches!(command, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET);
    (number == libc::SYS_futex && shared && waits).then_some(VirtAddr(address))
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

/// The signals that a thread blocks.
#[derive(Clone, Copy, Debug)]
pub struct SignalMask(u64);

impl ProgramSignalsBlocked {
    /// What the thread blocked before.
    #[must_use]
    pub const fn before(&self) -> SignalMask {
        SignalMask(self.0)
    }
}

impl SignalMask {
    /// The calling thread blocks these, and no others.
    pub fn set(self) {
        crate::futex::set_signal_mask(self.0);
    }
}

impl Drop for ProgramSignalsBlocked {
    fn drop(&mut self) {
        crate::futex::set_signal_mask(self.0);
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// The calling thread is not cancelled until this is dropped: for calls of the C library
/// that are cancellation points, such as closing a descriptor, where the program asked
/// for memory only. The thread would end in the middle, with locks held.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
    /// It belongs to the thread.
    thread: PhantomData<*const ()>,
}

impl Uncancelled {
    /// From now on.
    #[must_use]
    pub fn new() -> Uncancelled {
        const DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: the call writes the state that was.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        let thread = PhantomData;
        Uncancelled { before, thread }
    }
}

impl Default for Uncancelled {
    fn default() -> Self {
        Uncancelled::new()
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state is one that the thread had.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_waits_are_found() {
        let call = libc::SYS_futex;
        let line = |op: &str| format!("{call} 0x7f00 {op} 0x0 0x0 0x0 0xffffffff 0x7ffd 0x7f94");
        assert_eq!(parse_shared_wait(&line("0x109")), Some(VirtAddr(0x7f00)));
        assert_eq!(parse_shared_wait(&line("0x0")), Some(VirtAddr(0x7f00)));
        assert_eq!(parse_shared_wait(&line("0x80")), None);
        assert_eq!(parse_shared_wait(&line("0x1")), None);
        assert_eq!(parse_shared_wait("running"), None);
        assert_eq!(parse_shared_wait("0 0x3 0x7f00 0x0"), None);
    }
}
