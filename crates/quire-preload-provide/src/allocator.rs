//! The allocator that a library of this crate may bring along, and what it needs: memory of the manager's heap, the
//! program's calls on its own extents, and the kernel's.
//!
//! `libquire_provide.so` brings none: `malloc` stays what it was, and what it maps is the kernel's memory. In
//! `libquire_provide_jemalloc.so` it is jemalloc.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use quire_core::units::{AddrRange, Bytes, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::raw::Result;
pub use quire_vm::manager::WORTHWHILE;

use crate::frames::Kind;
use crate::{MANAGER, frames, mappings};

/// An allocator inside the library.
pub trait Allocator: Sync {
    /// Makes it ready, before the program can fork.
    fn start(&self);
    /// Memory is managed now, or it was decided that none will be.
    fn decided(&self);
    /// Takes its locks, for the moment of a fork.
    fn hold(&self);
    /// Lets go of them, in the parent.
    fn release_held(&self);
    /// Lets go of them, in the child.
    fn renew(&self);
}

/// The one of this library, if it has one.
static OURS: OnceLock<&'static dyn Allocator> = OnceLock::new();

/// Says which it is. Called before the program's own code runs.
pub(crate) fn set(allocator: Option<&'static dyn Allocator>) {
    if let Some(allocator) = allocator {
        // Whoever says it a second time says the same.
        let _ = OURS.set(allocator);
        allocator.start();
    }
}

/// The one of this library.
pub(crate) fn get() -> Option<&'static dyn Allocator> {
    OURS.get().copied()
}

/// Starts managing if the process has become worth it, and tells the allocator. It is told where memory is not
/// managed, too, so that it can give address space back where that is scarce.
#[cold]
pub fn begin() {
    static REFUSED: AtomicBool = AtomicBool::new(false);
    let is_decided =
        MANAGER.begin() || (MANAGER.is_refused() && !REFUSED.swap(true, Ordering::Relaxed));
    if is_decided && let Some(allocator) = get() {
        allocator.decided();
    }
}

/// Counts what the program asks for by other ways than an allocator of this library, and starts managing if that
/// has become worth it.
pub(crate) fn ask(size: Bytes) {
    MANAGER.count_asked(size);
    if wants_start() {
        begin();
    }
}

/// Whether so much has been asked for that managing is worth it, and nobody has started: cheap enough for every
/// `malloc`.
#[inline]
pub fn wants_start() -> bool {
    MANAGER.wants_start()
}

/// Whether memory is managed.
#[inline]
pub fn is_managed() -> bool {
    MANAGER.is_started()
}

/// Counts memory that the allocator took from the kernel before managing began. It may hold locks of its own.
pub fn count(size: Bytes) {
    MANAGER.count_asked(size);
}

/// New memory for the allocator, all zeros: the manager's, or the kernel's where it has a frame strategy or is not
/// managed.
pub fn extent(size: Bytes, align: Bytes) -> Option<VirtAddr> {
    let managed = match frames::has_heap() {
        true => None,
        false => MANAGER.map_heap(size, align),
    };
    let plain = || {
        let start = from_kernel(size, align)?;
        frames::place(AddrRange::new(start, size), Kind::Heap);
        Some(start)
    };
    managed.or_else(plain)
}

/// Aligned memory that is not managed.
fn from_kernel(size: Bytes, align: Bytes) -> Option<VirtAddr> {
    MANAGER.count_asked(size);
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let map = |len| unsafe { memory::map_anonymous(VirtAddr(0), len, prot, 0) };
    let at = map(size).ok()?;
    if at.0.is_multiple_of(align.0) {
        return Some(at);
    }
    let unmap = |start: VirtAddr, end: VirtAddr| {
        let range = AddrRange { start, end };
        if !range.is_empty() {
            // SAFETY: part of a mapping just made, which nobody uses.
            let _ = unsafe { memory::unmap(range) };
        }
    };
    unmap(at, at + size);
    let span = Bytes(size.0 + align.0);
    let at = map(span).ok()?;
    let start = VirtAddr(at.0.next_multiple_of(align.0));
    unmap(at, start);
    unmap(start + size, at + span);
    Some(start)
}

/// Unmaps memory of the allocator, which has no frame strategy any more, also where that fails.
///
/// # Errors
/// As `munmap`.
///
/// # Safety
/// Nobody may use the range any more.
pub unsafe fn free(range: AddrRange) -> Result<()> {
    frames::forget(range);
    // SAFETY: passed on to the caller.
    unsafe { MANAGER.free(range) }
}

/// Takes the contents of memory of the allocator away; it holds zeros then.
///
/// # Errors
/// When the kernel refuses; the contents are then unchanged or zero.
pub fn empty(range: AddrRange) -> Result<()> {
    match frames::are_placed(range) {
        // SAFETY: the allocator gives the contents up.
        true => frames::empty(range, true, || unsafe {
            memory::advise(range, Advice::DontNeed)
        }),
        false => MANAGER.discard(range),
    }
}

/// `mmap` of the kernel, for the allocator. What it gets has the frame strategy of the heap.
///
/// # Safety
/// As `mmap`.
pub unsafe fn map(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let args = mappings::mmap_arguments(at, len, prot, flags, fd, offset);
    // SAFETY: passed on to the caller.
    let mapped = unsafe { mappings::raw(libc::SYS_mmap, args) };
    if let Ok(at) = mapped
        && frames::are_wanted()
        && fd == -1
    {
        frames::place(mappings::pages(at as *mut c_void, len), Kind::Heap);
    }
    mappings::pointer(mapped)
}

/// `munmap` of the kernel, for the allocator.
///
/// # Safety
/// As `munmap`.
pub unsafe fn unmap(at: *mut c_void, len: usize) -> c_int {
    frames::forget(mappings::pages(at, len));
    // SAFETY: passed on to the caller.
    let done = unsafe { mappings::raw(libc::SYS_munmap, [at as usize, len, 0, 0, 0, 0]) };
    mappings::status(done.map(drop))
}

/// `mremap` of the kernel, for the allocator.
///
/// # Safety
/// As `mremap`.
pub unsafe fn remap(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let args = [
        at as usize,
        old_len,
        new_len,
        flags as usize,
        new as usize,
        0,
    ];
    // SAFETY: passed on to the caller.
    mappings::pointer(unsafe { mappings::raw(libc::SYS_mremap, args) })
}

/// `madvise` of an extent of the allocator, which may be managed.
///
/// # Safety
/// As `madvise`.
pub unsafe fn advise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { mappings::advise(at, len, advice) }
}

/// `mprotect` of an extent of the allocator, which may be managed.
///
/// # Safety
/// As `mprotect`.
pub unsafe fn protect(at: *mut c_void, len: usize, prot: c_int) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { mappings::set_protection(at, len, prot) }
}
