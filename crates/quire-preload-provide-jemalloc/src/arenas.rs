//! jemalloc's arenas, on managed memory.
//!
//! Until the process is worth managing, jemalloc takes its memory straight
//! from the kernel. Then the hooks below are given to its arenas: extents come
//! from the manager's heap, which is contiguous, and what jemalloc purges
//! stays in its reservation until the reservation is wholly free or preempted
//! (paper 000, section 3.2).

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use quire_core::units::{AddrRange, Bytes, VirtAddr};
use quire_linux::thread;
use quire_preload_provide::allocator;
use tikv_jemalloc_sys as jemalloc;

/// jemalloc's own settings. `retain` keeps address space, so that the heap
/// stays contiguous.
#[unsafe(export_name = "_rjem_malloc_conf")]
static MALLOC_CONF: Conf =
    Conf(c"retain:true,abort_conf:false,dss:disabled,oversize_threshold:8388608".as_ptr());

#[repr(transparent)]
struct Conf(*const c_char);

// SAFETY: the pointer names a constant.
unsafe impl Sync for Conf {}

static HOOKS: jemalloc::extent_hooks_t = jemalloc::extent_hooks_t {
    alloc: Some(extent_alloc),
    dalloc: Some(extent_dalloc),
    destroy: Some(extent_destroy),
    commit: None,
    decommit: None,
    purge_lazy: None,
    purge_forced: Some(extent_purge),
    split: Some(extent_split),
    merge: Some(extent_merge),
};

/// Makes jemalloc ready.
pub fn start() {
    // SAFETY: allocates and frees one block.
    unsafe { jemalloc::free(jemalloc::malloc(1)) };
}

/// jemalloc serves requests from this size on from an arena of their own,
/// which comes after the others and begins with the first such request.
///
/// By jemalloc's own settings it keeps nothing of a freed block, and a program
/// that allocates and frees the same block again and again faults it in each time.
/// Here a block of less than [`KEPT`] is kept, as the C library does, and what the
/// next large request does not use of it goes back. In the other arenas large
/// blocks would be kept in pieces that serve nobody for seconds.
const OVERSIZE: usize = 8 << 20;

/// Larger blocks are given back when they are freed.
const KEPT: usize = 32 << 20;

/// The number of that arena, when it exists.
static LARGE_ARENA: AtomicU32 = AtomicU32::new(NO_ARENA);
const NO_ARENA: u32 = u32::MAX;

/// That arena is being made, and is to begin without memory of the kernel's.
static PRIMING: AtomicBool = AtomicBool::new(false);

/// Whether a request of jemalloc to the kernel is to fail.
pub fn is_refused(size: usize) -> bool {
    size >= OVERSIZE && PRIMING.load(Ordering::Relaxed)
}

/// Threads whose arena takes its memory from the kernel although memory is
/// managed, because it came into being since.
static UNHOOKED: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread is one of them.
    static OWN_UNHOOKED: Cell<bool> = const { Cell::new(false) };
}

/// Notes that jemalloc took memory from the kernel for the calling thread. It
/// holds locks then, so nothing more can be done at that moment.
pub fn took_from_kernel(size: Bytes) {
    allocator::count(size);
    if allocator::is_managed() && !OWN_UNHOOKED.replace(true) {
        UNHOOKED.fetch_add(1, Ordering::Relaxed);
    }
}

/// It was decided whether memory is managed: gives the hooks to the arena of the calling thread and to the one for large
/// requests. The arenas of other threads follow when they come into being:
/// jemalloc may have hundreds, and making them all would take memory and time.
pub fn install_hooks() {
    PRIMING.store(true, Ordering::Relaxed);
    // SAFETY: allocates and frees one block, or fails to, so that the arena for
    // large requests exists.
    unsafe { jemalloc::free(jemalloc::malloc(OVERSIZE)) };
    PRIMING.store(false, Ordering::Relaxed);
    let large = number::<c_uint>(c"opt.narenas");
    let arenas = [large, number(c"thread.arena")];
    arenas.into_iter().flatten().for_each(hook);
    if let Some(large) = large {
        keep_blocks(large);
    }
}

/// Lets the arena for large requests keep a freed block.
fn keep_blocks(arena: c_uint) {
    set_number(&ArenaName::new(arena, "oversize_threshold"), KEPT);
    // As in the others: jemalloc sets 0 here.
    if let Some(decay) = number::<usize>(c"opt.dirty_decay_ms") {
        set_number(&ArenaName::new(arena, "dirty_decay_ms"), decay);
    }
    LARGE_ARENA.store(arena, Ordering::Relaxed);
}

/// Gives back what is kept of freed large blocks, after a large request: it had
/// no use for it.
#[inline]
pub fn release_kept(size: usize) {
    if size >= OVERSIZE {
        let arena = LARGE_ARENA.load(Ordering::Relaxed);
        if arena != NO_ARENA {
            command(&ArenaName::new(arena, "purge"));
        }
    }
}

/// The name of something that jemalloc knows of an arena.
struct ArenaName([u8; 48]);

impl ArenaName {
    fn new(arena: c_uint, what: &str) -> ArenaName {
        use std::io::Write;
        let mut name = [0u8; 48];
        let mut rest = &mut name[..47];
        // A 32-bit number and the names here fit; the last byte stays zero.
        let _ = write!(rest, "arena.{arena}.{what}");
        ArenaName(name)
    }
}

impl Deref for ArenaName {
    type Target = CStr;
    fn deref(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// Gives the hooks to the calling thread's arena, if it is one that misses
/// them. The thread-local variable is looked up here, off the usual path.
#[cold]
#[inline(never)]
fn hook_own() {
    if !OWN_UNHOOKED.replace(false) {
        return;
    }
    UNHOOKED.fetch_sub(1, Ordering::Relaxed);
    if let Some(arena) = number(c"thread.arena") {
        hook(arena);
    }
}

/// A number that jemalloc tells: it must be of the documented type.
fn number<T: Default>(name: &CStr) -> Option<T> {
    let mut value = T::default();
    let mut size = size_of::<T>();
    let to = (&raw mut value).cast();
    // SAFETY: the name is a C string and the value has the documented type.
    let result = unsafe { jemalloc::mallctl(name.as_ptr(), to, &raw mut size, ptr::null_mut(), 0) };
    (result == 0).then_some(value)
}

/// Sets a number of jemalloc's. Where it does not know the name, its own holds.
fn set_number(name: &CStr, mut value: usize) {
    let (to, size) = ((&raw mut value).cast(), size_of::<usize>());
    let none = ptr::null_mut();
    // SAFETY: the name is a C string and the value has the documented type.
    unsafe { jemalloc::mallctl(name.as_ptr(), none, ptr::null_mut(), to, size) };
}

/// Gives an arena the hooks.
fn hook(arena: c_uint) {
    let name = ArenaName::new(arena, "extent_hooks");
    let mut hooks: *const jemalloc::extent_hooks_t = &raw const HOOKS;
    // SAFETY: the name is a C string, and the hooks live for ever.
    unsafe {
        jemalloc::mallctl(
            name.as_ptr(),
            ptr::null_mut(),
            ptr::null_mut(),
            (&raw mut hooks).cast(),
            size_of::<*const jemalloc::extent_hooks_t>(),
        )
    };
}

unsafe extern "C" fn extent_alloc(
    _hooks: *mut jemalloc::extent_hooks_t,
    at: *mut c_void,
    size: usize,
    align: usize,
    zero: *mut bool,
    commit: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    if !at.is_null() {
        return ptr::null_mut();
    }
    let Some(start) = allocator::extent(Bytes(size as u64), Bytes(align as u64)) else {
        return ptr::null_mut();
    };
    // SAFETY: jemalloc gives two valid pointers; fresh memory is zero.
    unsafe {
        *zero = true;
        *commit = true;
    }
    start.as_ptr().cast()
}

unsafe extern "C" fn extent_dalloc(
    _hooks: *mut jemalloc::extent_hooks_t,
    at: *mut c_void,
    size: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    // Address space is kept, unless it is scarce.
    let unlimited = |resource| thread::soft_limit(resource) == libc::RLIM64_INFINITY;
    if unlimited(libc::RLIMIT_AS) && unlimited(libc::RLIMIT_DATA) {
        return true;
    }
    let range = AddrRange::new(VirtAddr(at as u64), Bytes(size as u64));
    // SAFETY: jemalloc gives the extent up.
    unsafe { allocator::free(range).is_err() && !free_in_parts(range) }
}

/// Unmaps the whole superpages of an extent, and then the rest. A superpage of the
/// hugetlb pool of which a part is unmapped becomes a copy first, for which there is
/// no address space at the limit, until something was unmapped. Says whether the
/// extent is given up; what then cannot be unmapped stays unused.
///
/// # Safety
/// Nobody may use the extent any more.
#[cold]
unsafe fn free_in_parts(range: AddrRange) -> bool {
    let whole = range.whole_superpages();
    // SAFETY: the caller vouches for all of the range.
    if whole.is_empty() || unsafe { allocator::free(whole) }.is_err() {
        return false;
    }
    let (head, tail) = (range.split_at(whole.start).0, range.split_at(whole.end).1);
    for rest in [head, tail].into_iter().filter(|rest| !rest.is_empty()) {
        // SAFETY: as before.
        let _ = unsafe { allocator::free(rest) };
    }
    true
}

unsafe extern "C" fn extent_destroy(
    _hooks: *mut jemalloc::extent_hooks_t,
    at: *mut c_void,
    size: usize,
    _committed: bool,
    _arena: c_uint,
) {
    let range = AddrRange::new(VirtAddr(at as u64), Bytes(size as u64));
    // SAFETY: jemalloc gives the extent up.
    let _ = unsafe { allocator::free(range) };
}

unsafe extern "C" fn extent_purge(
    _hooks: *mut jemalloc::extent_hooks_t,
    at: *mut c_void,
    _size: usize,
    offset: usize,
    length: usize,
    _arena: c_uint,
) -> bool {
    let start = VirtAddr(at as u64 + offset as u64);
    let range = AddrRange::new(start, Bytes(length as u64));
    allocator::empty(range).is_err()
}

unsafe extern "C" fn extent_split(
    _hooks: *mut jemalloc::extent_hooks_t,
    _at: *mut c_void,
    _size: usize,
    _left: usize,
    _right: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}

unsafe extern "C" fn extent_merge(
    _hooks: *mut jemalloc::extent_hooks_t,
    _left: *mut c_void,
    _left_size: usize,
    _right: *mut c_void,
    _right_size: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}

/// Gives the hooks to the calling thread's arena, where it came into being after it was decided whether memory is
/// managed.
#[inline]
pub fn hook_new() {
    if UNHOOKED.load(Ordering::Relaxed) != 0 {
        hook_own();
    }
}

/// Gives what jemalloc has kept of freed blocks back. Says whether it could.
#[cold]
pub fn purge() -> bool {
    // 4096 stands for all arenas.
    command(c"arena.4096.purge")
}

/// Carries out a command of jemalloc's. Says whether it could.
fn command(name: &CStr) -> bool {
    let none = ptr::null_mut();
    // SAFETY: the name is a C string; the command takes and returns nothing.
    unsafe { jemalloc::mallctl(name.as_ptr(), none, ptr::null_mut(), none, 0) == 0 }
}
