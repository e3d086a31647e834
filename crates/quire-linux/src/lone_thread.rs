//! A thread that the C library does not know.
//!
//! A preloaded library may have to start a thread at any moment of the program: inside `malloc`, in a
//! constructor that `dlopen` runs, in a signal handler. `pthread_create` allocates, and takes locks of the
//! loader and of the C library that the program may hold just then. So this thread is made by the bare system
//! call. It has a stack and an area for thread-local variables of its own, filled with zeros: what it calls of
//! the C library may set `errno` there, and must do no more with thread-local data. It must not allocate by the
//! program's allocator, and must not panic. It has no number there either, by which the C library's locks know who
//! holds them: so it must take none of those, which rules out the C library's words for an error, too.
//!
//! As the C library does not count it, the program stays single-threaded for the C library: its fast paths, and
//! the end of the process when the last thread of the program's leaves, stay as they are.
//!
//! Signals are all blocked in it, those of the C library, too. By [`leave_descriptors`] it gets an empty descriptor
//! table, so no descriptor of it is ever in the program's; one that it starts then shares that table.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use quire_core::units::{AddrRange, BASE_PAGE, Bytes, VirtAddr};

use crate::arch;
use crate::futex::SignalsBlocked;
use crate::memory::{self, Advice};
use crate::raw::{Errno, Result, check, syscall};
use crate::thread::soft_limit;

/// What such a thread runs. It must not unwind.
pub type Main = extern "C" fn(usize);

/// The stack.
const STACK: Bytes = Bytes(256 << 10);
/// Thread-local variables take so much at least, on one side of the thread's own address.
const LOCAL_LEAST: Bytes = Bytes(64 << 10);
/// What the C library keeps of a thread lies on the other side.
const CONTROL: Bytes = Bytes(2 * BASE_PAGE);
/// Address space for what the thread allocates; all of it, and where the program's is limited.
const ROOM: [Bytes; 2] = [Bytes::mib(256), Bytes::mib(4)];
/// What the room is aligned to.
const ROOM_ALIGNED: u64 = 256 << 10;
/// What is asked of `clone`: as the C library asks for its threads.
const FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;
/// Gives the caller a table of its own that has none of the descriptors of the range.
const CLOSE_RANGE_UNSHARE: usize = 1 << 1;

/// The place of one such thread. A forked child, which does not have the thread, must find zeros here: it lies
/// in memory with `MADV_WIPEONFORK`.
#[derive(Debug, Default)]
pub struct LoneThread {
    /// Its number; zero when it is not there. The kernel puts zero there when it has ended, in whatever way.
    id: AtomicU32,
    /// Where its memory begins, once it has been made, and its size; it is used again.
    memory: [AtomicU64; 2],
    /// Where the address space begins and ends in which it may allocate.
    room: [AtomicU64; 2],
    /// The thread's own address, by which it is known; zero is nobody's.
    own: AtomicU64,
}

/// [`LoneThread::id`] while the thread is being made.
const BEING_MADE: u32 = u32::MAX;

/// Whether the thread has address space in which it allocates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Own,
    None,
}

impl LoneThread {
    /// No thread yet.
    #[must_use]
    pub const fn new() -> LoneThread {
        LoneThread {
            id: AtomicU32::new(0),
            memory: [const { AtomicU64::new(0) }; 2],
            room: [const { AtomicU64::new(0) }; 2],
            own: AtomicU64::new(0),
        }
    }

    /// Whether it is there, or is being made.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.id.load(Ordering::Acquire) != 0
    }

    /// Whether a thread of this process is this one.
    #[must_use]
    pub fn is(&self, thread: u32) -> bool {
        self.id.load(Ordering::Acquire) == thread
    }

    /// Whether the calling thread is this one. Costs no system call.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.own.load(Ordering::Relaxed) == arch::thread_pointer().0
    }

    /// The word that becomes zero when it has ended, for those who wait for that (a futex that is not private).
    #[must_use]
    pub const fn id(&self) -> &AtomicU32 {
        &self.id
    }

    /// Address space in which the thread may allocate, inaccessible until then, and aligned as
    /// [`crate::block_lists`] wants it. It is taken when the thread is started, on a thread of the program's.
    #[must_use]
    pub fn room(&self) -> AddrRange {
        let [start, end] = &self.room;
        AddrRange {
            start: VirtAddr(start.load(Ordering::Acquire)),
            end: VirtAddr(end.load(Ordering::Acquire)),
        }
    }

    /// Starts it, unless it is there; `local` is how far from a thread's own address the C library has
    /// thread-local variables ([`locals_reach`]). Allocates nothing, and takes no lock.
    ///
    /// # Errors
    /// As `mmap` and `clone`.
    ///
    /// # Safety
    /// `main` must keep to what is said above, and `self` must stay where it is for the rest of the process.
    pub unsafe fn start(&self, main: Main, argument: usize, local: Bytes) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.start_with(main, argument, local, Room::Own) }
    }

    /// The same for a thread that allocates elsewhere: it has no [room](Self::room).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Safety
    /// As [`start`](Self::start).
    pub unsafe fn start_without_room(
        &self,
        main: Main,
        argument: usize,
        local: Bytes,
    ) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.start_with(main, argument, local, Room::None) }
    }

    /// # Safety
    /// As for [`start`](Self::start).
    unsafe fn start_with(
        &self,
        main: Main,
        argument: usize,
        local: Bytes,
        room: Room,
    ) -> Result<()> {
        let ours = self
            .id
            .compare_exchange(0, BEING_MADE, Ordering::AcqRel, Ordering::Acquire);
        if ours.is_err() {
            return Ok(());
        }
        let local = Bytes(local.0.max(LOCAL_LEAST.0)).to_pages().to_bytes();
        // SAFETY: passed on to the caller.
        let started = self
            .memory(local, room)
            .and_then(|memory| unsafe { self.clone(memory, main, argument) });
        if started.is_err() {
            self.id.store(0, Ordering::Release);
        }
        started
    }

    /// The memory of the thread, made at the first time: a guard page, the stack, and the thread-local area.
    fn memory(&self, local: Bytes, room: Room) -> Result<AddrRange> {
        let known = self.known_memory();
        if !known.is_empty() {
            return Ok(known);
        }
        let guard = Bytes(BASE_PAGE);
        let len = Bytes(guard.0 + STACK.0 + local.0 + CONTROL.0);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_STACK | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { memory::map_anonymous(VirtAddr(0), len, prot, flags)? };
        let all = AddrRange::new(at, len);
        // SAFETY: the mapping is new, and nobody uses it.
        unsafe {
            memory::protect(AddrRange::new(at, guard), libc::PROT_NONE)?;
            memory::advise(all, Advice::DontFork)?;
        }
        if room == Room::Own {
            self.make_room();
        }
        self.memory[1].store(len.0, Ordering::Release);
        self.memory[0].store(at.0, Ordering::Release);
        Ok(all)
    }

    fn known_memory(&self) -> AddrRange {
        let [start, len] = &self.memory;
        match start.load(Ordering::Acquire) {
            0 => AddrRange::default(),
            start => AddrRange::new(VirtAddr(start), Bytes(len.load(Ordering::Acquire))),
        }
    }

    /// Does something while children inherit the memory of the thread, as its own ones need it.
    pub fn while_inherited<R>(&self, work: impl FnOnce() -> R) -> R {
        let memory = self.known_memory();
        let advise = |advice| {
            if !memory.is_empty() {
                // SAFETY: the advice concerns children only. Those who need it fail where the kernel refuses.
                let _ = unsafe { memory::advise_raw(memory, advice) };
            }
        };
        advise(libc::MADV_DOFORK);
        let result = work();
        advise(libc::MADV_DONTFORK);
        result
    }

    /// Where there is none to be had, the thread does without.
    fn make_room(&self) {
        let is_limited = soft_limit(libc::RLIMIT_AS) != libc::RLIM64_INFINITY;
        let len = ROOM[usize::from(is_limited)];
        let flags = libc::MAP_NORESERVE;
        let span = len + Bytes(ROOM_ALIGNED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let made = unsafe { memory::map_anonymous(VirtAddr(0), span, libc::PROT_NONE, flags) };
        let Ok(at) = made else { return };
        // SAFETY: the mapping is new, and nobody uses it.
        let _ = unsafe { memory::advise(AddrRange::new(at, span), Advice::DontFork) };
        let start = at.0.next_multiple_of(ROOM_ALIGNED);
        self.room[1].store(start + len.0, Ordering::Release);
        self.room[0].store(start, Ordering::Release);
    }

    /// # Safety
    /// As for [`start`](Self::start); `memory` is that of the thread, which does not run.
    unsafe fn clone(&self, memory: AddrRange, main: Main, argument: usize) -> Result<()> {
        let stack = VirtAddr(memory.start.0 + BASE_PAGE + STACK.0);
        let area = AddrRange {
            start: stack,
            end: memory.end,
        };
        // SAFETY: the area is the thread's, which does not run yet, and lies in whole pages.
        let own = unsafe { arch::prepare_own(area, CONTROL) };
        self.own.store(own.0, Ordering::Relaxed);
        let first = [main as usize, argument];
        let top = VirtAddr(stack.0 - 64);
        // SAFETY: within the stack of the thread, which does not run yet; aligned to 16 bytes.
        unsafe { top.as_ptr().cast::<[usize; 2]>().write(first) };
        // The thread begins with the mask of this one.
        let blocked = SignalsBlocked::new();
        // SAFETY: the stack and the area are the thread's alone; the word outlives it.
        let made = check(unsafe { arch::clone_thread(FLAGS, top, own, &self.id) });
        drop(blocked);
        made.map(drop)
    }
}

/// How far from a thread's own address the C library has thread-local variables: as far as `errno`, of this
/// thread, and a margin. What is loaded with the program lies in one row there.
#[must_use]
pub fn locals_reach() -> Bytes {
    const MARGIN: u64 = 64 << 10;
    // SAFETY: the call only computes an address.
    let errno = unsafe { libc::__errno_location() } as u64;
    Bytes(arch::thread_pointer().0.abs_diff(errno).min(16 << 20) + MARGIN)
}

/// Gives the calling thread a descriptor table of its own, with nothing in it. No descriptor is copied for that.
///
/// # Errors
/// As `close_range`.
pub fn leave_descriptors() -> Result<()> {
    let args = [0, u32::MAX as usize, CLOSE_RANGE_UNSHARE, 0, 0, 0];
    // SAFETY: the table of other threads stays as it is, and this one has no descriptor that it needs.
    unsafe { syscall(libc::SYS_close_range, args) }.map(drop)
}

/// Gives up the capabilities of the calling thread: should the program give up its own later, this one has none
/// that it would keep.
///
/// # Errors
/// As `capset`.
pub fn leave_capabilities() -> Result<()> {
    /// Version 3 of the call: two words of each set.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    const NONE: [u32; 6] = [0; 6];
    let args = [HEADER.as_ptr() as usize, NONE.as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel reads a header and three sets of two words.
    unsafe { syscall(libc::SYS_capset, args) }.map(drop)
}

/// Names the calling thread, for those who list threads.
pub fn set_name(name: &'static std::ffi::CStr) {
    let args = [
        libc::PR_SET_NAME as usize,
        name.as_ptr() as usize,
        0,
        0,
        0,
        0,
    ];
    // SAFETY: the kernel reads a C string.
    let _: std::result::Result<usize, Errno> = unsafe { syscall(libc::SYS_prctl, args) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, AtomicUsize};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::thread::{current_id, own_memory};

    static THREAD: LoneThread = LoneThread::new();
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    static DESCRIPTORS: AtomicUsize = AtomicUsize::new(usize::MAX);

    extern "C" fn main(argument: usize) {
        let left = leave_descriptors();
        // A new table gives the first number.
        let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
        let first = fd.is_ok_and(|fd| std::os::fd::AsRawFd::as_raw_fd(&fd) == 0);
        DESCRIPTORS.store(usize::from(left.is_ok() && first), Ordering::Relaxed);
        SEEN.fetch_add(argument, Ordering::Release);
        assert!(current_id() != 0);
    }

    fn ends(thread: &LoneThread) {
        let until = Instant::now() + Duration::from_secs(10);
        while thread.is_there() {
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn it_runs_and_ends_again_and_again() {
        for round in 1..=50 {
            // SAFETY: what it runs allocates nothing, and the place is static.
            unsafe { THREAD.start(main, 7, locals_reach()) }.expect("threads can be made");
            ends(&THREAD);
            assert_eq!(SEEN.load(Ordering::Acquire), 7 * round);
            assert_eq!(DESCRIPTORS.load(Ordering::Relaxed), 1);
        }
    }

    /// What a thread tells of itself.
    struct Told {
        /// An address on its stack, and that of its `errno`.
        own: [AtomicU64; 2],
        /// What `errno` was, and became by a call that fails.
        errors: [AtomicI32; 2],
    }

    static TOLD: Told = Told {
        own: [const { AtomicU64::new(0) }; 2],
        errors: [const { AtomicI32::new(-1) }; 2],
    };

    extern "C" fn tell(_: usize) {
        let [stack, errno] = own_memory();
        TOLD.own[0].store(stack.0, Ordering::Relaxed);
        TOLD.own[1].store(errno.0, Ordering::Relaxed);
        // SAFETY: the C library gives the address of this thread's own variable.
        let errno = || unsafe { *libc::__errno_location() };
        TOLD.errors[0].store(errno(), Ordering::Relaxed);
        // SAFETY: the number is no descriptor's, and the call makes none.
        unsafe { libc::dup(-1) };
        TOLD.errors[1].store(errno(), Ordering::Relaxed);
    }

    #[test]
    fn its_stack_and_its_errno_are_its_own() {
        static THREAD: LoneThread = LoneThread::new();
        let reach = locals_reach();
        // SAFETY: as above.
        unsafe { THREAD.start(tell, 0, reach) }.expect("threads can be made");
        ends(&THREAD);
        let start = VirtAddr(THREAD.memory[0].load(Ordering::Acquire));
        let stack = AddrRange::new(start + Bytes(BASE_PAGE), STACK);
        let area = AddrRange::new(stack.end, reach + CONTROL);
        for (range, own) in [stack, area].into_iter().zip(&TOLD.own) {
            let own = AddrRange::new(VirtAddr(own.load(Ordering::Relaxed)), Bytes(4));
            assert!(range.contains(own), "{own:?} is not in {range:?}");
        }
        let errors = TOLD.errors.each_ref().map(|e| e.load(Ordering::Relaxed));
        assert_eq!(errors, [0, libc::EBADF]);
    }
}
