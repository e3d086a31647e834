//! What is the process's alone. It lies in memory that the kernel fills with zeros in a forked child, in whatever
//! way that was made (`MADV_WIPEONFORK`): the child has no helper thread, and has not grown yet.
//!
//! Fields are atomics, because threads of the program and the helper use them without a lock. The allocator is the
//! helper's alone.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use quire_core::units::{AddrRange, Bytes, VirtAddr};
use quire_linux::block_lists::BlockLists;
use quire_linux::lone_thread::LoneThread;
use quire_linux::memory;

/// Extents that are told apart: [`State::seen`] is a table by their numbers, modulo this.
pub const EXTENTS: usize = 8192;
/// So many ranges of shared memory are kept that the process has mapped.
pub const SERVED: usize = 8;
/// `MADV_WIPEONFORK`.
const WIPE_ON_FORK: i32 = 18;

/// The state of this process.
pub struct State {
    /// The helper thread.
    pub helper: LoneThread,
    /// Extents that the process has asked for, in all.
    pub extents: AtomicU32,
    /// Changes when the helper is to look; it sleeps on this word.
    pub call: AtomicU32,
    /// Whether the helper is to end.
    pub ends: AtomicBool,
    /// Whether the helper sleeps for long.
    pub sleeps: AtomicBool,
    /// The helper could not be started: with so many extents it is tried again.
    pub retry_at: AtomicU32,
    /// The extents in which memory was asked for, one by one; not zero for those.
    pub seen: [AtomicU8; EXTENTS],
    /// Anonymous shared memory that this process has mapped, the last times: the first of its pages and the one behind
    /// it.
    pub served: [[AtomicU64; 2]; SERVED],
    /// How often it has mapped such memory.
    pub serves: AtomicUsize,
    /// The helper's allocator.
    pub blocks: UnsafeCell<BlockLists>,
}

// SAFETY: all fields are atomics but the allocator, which only the helper thread uses, of which there is one.
unsafe impl Sync for State {}

static STATE: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());

/// The state; nothing before the library has started, and where no memory can be had for it.
#[inline]
pub fn get() -> Option<&'static State> {
    // SAFETY: the pointer is null, or names a mapping that is never unmapped, is large enough, and was filled with
    // zeros, which is a value of every field.
    unsafe { STATE.load(Ordering::Acquire).as_ref() }
}

/// Makes it.
pub fn make() {
    let len = Bytes(size_of::<State>() as u64).to_pages().to_bytes();
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let Ok(at) = (unsafe { memory::map_anonymous(VirtAddr(0), len, prot, 0) }) else {
        return;
    };
    let range = AddrRange::new(at, len);
    // SAFETY: the mapping is new; the advice concerns children only.
    if unsafe { memory::advise_raw(range, WIPE_ON_FORK) }.is_ok() {
        STATE.store(at.as_ptr().cast(), Ordering::Release);
        return;
    }
    // Without it a child would take its parent's helper for its own.
    // SAFETY: nobody knows of the mapping.
    let _ = unsafe { memory::unmap(range) };
}
