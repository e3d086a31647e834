//! The program's allocator: jemalloc, on managed memory.
//!
//! Until the process is worth managing, jemalloc takes its memory straight
//! from the kernel. Then the hooks below are given to its arenas: extents come
//! from the manager's heap, which is contiguous, and what jemalloc purges
//! stays in its reservation until the reservation is wholly free or preempted
//! (paper 000, section 3.2).

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use quire_core::units::{AddrRange, Bytes, VirtAddr};
use quire_linux::{memory, thread};
use quire_vm::manager::WORTHWHILE;
use tikv_jemalloc_sys as jemalloc;

use crate::MANAGER;

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// jemalloc's own settings. `retain` keeps address space, so that the heap
/// stays contiguous. What is freed in blocks of less than [`OVERSIZE`] is kept
/// for a while, as in the C library: a program that allocates and frees such a
/// block again and again does not fault it in each time.
#[unsafe(export_name = "_rjem_malloc_conf")]
static MALLOC_CONF: Conf =
    Conf(c"retain:true,abort_conf:false,dss:disabled,oversize_threshold:33554432".as_ptr());

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

/// Makes jemalloc ready before the program can fork.
pub fn start() {
    // SAFETY: allocates and frees one block.
    unsafe { jemalloc::free(jemalloc::malloc(1)) };
    // The first arena is older than the settings.
    set_number(c"arena.0.oversize_threshold", OVERSIZE);
}

/// Starts managing now, so that the pool is filled before the program asks.
pub fn start_early() {
    begin();
}

/// Starts managing if the process has become worth it, and then gives
/// jemalloc's arenas the hooks. They get them where memory is not managed, too,
/// so that address space goes back to the kernel where it is scarce.
#[cold]
fn begin() {
    static REFUSED: AtomicBool = AtomicBool::new(false);
    if MANAGER.begin() || (MANAGER.is_refused() && !REFUSED.swap(true, Ordering::Relaxed)) {
        install_hooks();
    }
}

/// Counts what the program asks for by other ways than this allocator.
pub fn ask(size: Bytes) {
    MANAGER.count_asked(size);
    after();
}

/// jemalloc serves requests from this size on from an arena of their own,
/// which comes after the others and begins with the first such request.
const OVERSIZE: usize = 32 << 20;

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
    MANAGER.count_asked(size);
    if MANAGER.is_started() && !OWN_UNHOOKED.replace(true) {
        UNHOOKED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Gives the hooks to the arena of the calling thread and to the one for large
/// requests. The arenas of other threads follow when they come into being:
/// jemalloc may have hundreds, and making them all would take memory and time.
fn install_hooks() {
    PRIMING.store(true, Ordering::Relaxed);
    // SAFETY: allocates and frees one block, or fails to, so that the arena for
    // large requests exists.
    unsafe { jemalloc::free(jemalloc::malloc(OVERSIZE)) };
    PRIMING.store(false, Ordering::Relaxed);
    let arenas = [number(c"opt.narenas"), number(c"thread.arena")];
    arenas.into_iter().flatten().for_each(hook);
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

/// A number that jemalloc tells.
fn number(name: &CStr) -> Option<c_uint> {
    let mut value: c_uint = 0;
    let mut size = size_of::<c_uint>();
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
    let mut name = [0u8; 40];
    {
        use std::io::Write;
        let mut rest = &mut name[..39];
        // A 32-bit number fits; the last byte stays zero.
        let _ = write!(rest, "arena.{arena}.extent_hooks");
    }
    let mut hooks: *const jemalloc::extent_hooks_t = &raw const HOOKS;
    // SAFETY: the name is a C string, and the hooks live for ever.
    unsafe {
        jemalloc::mallctl(
            name.as_ptr().cast(),
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
    let (size, align) = (Bytes(size as u64), Bytes(align as u64));
    let Some(start) = MANAGER
        .map_heap(size, align)
        .or_else(|| from_kernel(size, align))
    else {
        return ptr::null_mut();
    };
    // SAFETY: jemalloc gives two valid pointers; fresh memory is zero.
    unsafe {
        *zero = true;
        *commit = true;
    }
    start.as_ptr().cast()
}

/// Aligned memory that is not managed.
fn from_kernel(size: Bytes, align: Bytes) -> Option<VirtAddr> {
    MANAGER.count_asked(size);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let map = |len| unsafe { memory::map_anonymous(VirtAddr(0), len, READ_WRITE, 0) };
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
    unsafe { MANAGER.free(range) }.is_err()
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
    let _ = unsafe { MANAGER.free(range) };
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
    MANAGER.discard(range).is_err()
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

/// A request that alone makes the process worth managing starts the manager
/// before it is served.
#[inline]
fn before(size: usize) {
    if size as u64 >= WORTHWHILE.0 && !MANAGER.is_started() {
        begin();
    }
}

#[inline]
fn after() {
    if MANAGER.wants_start() {
        begin();
    } else if UNHOOKED.load(Ordering::Relaxed) != 0 {
        hook_own();
    }
}

/// Serves a request for `size` bytes. Where there is no memory for it, it is
/// tried again with what jemalloc has kept of freed blocks.
#[inline]
fn serve(size: usize, request: impl Fn() -> *mut c_void) -> *mut c_void {
    // SAFETY: as for `malloc`.
    before(size);
    let mut block = request();
    if block.is_null() && size != 0 {
        purge();
        block = request();
    }
    after();
    block
}

/// Gives what jemalloc has kept of freed blocks back. Says whether it could.
#[cold]
fn purge() -> bool {
    // 4096 stands for all arenas.
    let name = c"arena.4096.purge".as_ptr();
    let none = ptr::null_mut();
    // SAFETY: the name is a C string; the command takes and returns nothing.
    unsafe { jemalloc::mallctl(name, none, ptr::null_mut(), none, 0) == 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: passed on as it came, here and in the functions below.
    serve(size, || unsafe { jemalloc::malloc(size) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let total = count.saturating_mul(size);
    // SAFETY: as for `malloc`.
    serve(total, || unsafe { jemalloc::calloc(count, size) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as for `malloc`.
    serve(size, || unsafe { jemalloc::realloc(block, size) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as for `malloc`.
        Some(total) => unsafe { realloc(block, total) },
        None => {
            crate::set_errno(quire_vm::Errno(libc::ENOMEM));
            ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut c_void) {
    // SAFETY: as for `malloc`.
    unsafe { jemalloc::free(block) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY: as for `malloc`.
    before(size);
    // SAFETY: as for `malloc`.
    let result = unsafe { jemalloc::posix_memalign(out, align, size) };
    after();
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // SAFETY: as for `malloc`.
    serve(size, || unsafe { jemalloc::aligned_alloc(align, size) })
}

/// jemalloc's flag for an alignment, which is taken up to a power of two.
fn alignment_flag(align: usize) -> c_int {
    align.max(1).next_power_of_two().trailing_zeros() as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: as for `malloc`.
    serve(size, || unsafe {
        jemalloc::mallocx(size.max(1), alignment_flag(align))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: as for `malloc`.
    unsafe { memalign(4096, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    // SAFETY: as for `malloc`.
    unsafe { memalign(4096, size.next_multiple_of(4096)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(block: *const c_void) -> usize {
    // SAFETY: as for `malloc`.
    unsafe { jemalloc::malloc_usable_size(block) }
}

/// The C library's function that gives unused memory back.
#[unsafe(no_mangle)]
extern "C" fn malloc_trim(_pad: usize) -> c_int {
    c_int::from(purge())
}

// jemalloc's own interface, for programs that were linked with it.

#[unsafe(no_mangle)]
unsafe extern "C" fn mallocx(size: usize, flags: c_int) -> *mut c_void {
    // SAFETY: as for `malloc`.
    serve(size, || unsafe { jemalloc::mallocx(size, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rallocx(block: *mut c_void, size: usize, flags: c_int) -> *mut c_void {
    // SAFETY: as for `malloc`.
    serve(size, || unsafe { jemalloc::rallocx(block, size, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn xallocx(block: *mut c_void, size: usize, extra: usize, flags: c_int) -> usize {
    // SAFETY: as for `malloc`.
    unsafe { jemalloc::xallocx(block, size, extra, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sallocx(block: *const c_void, flags: c_int) -> usize {
    // SAFETY: as for `malloc`.
    unsafe { jemalloc::sallocx(block, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dallocx(block: *mut c_void, flags: c_int) {
    // SAFETY: as for `malloc`.
    unsafe { jemalloc::dallocx(block, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sdallocx(block: *mut c_void, size: usize, flags: c_int) {
    // SAFETY: as for `malloc`.
    unsafe { jemalloc::sdallocx(block, size, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nallocx(size: usize, flags: c_int) -> usize {
    // SAFETY: as for `malloc`.
    unsafe { jemalloc::nallocx(size, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mallctl(
    name: *const c_char,
    old: *mut c_void,
    old_len: *mut usize,
    new: *mut c_void,
    new_len: usize,
) -> c_int {
    // SAFETY: as for `malloc`.
    unsafe { jemalloc::mallctl(name, old, old_len, new, new_len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mallctlnametomib(
    name: *const c_char,
    mib: *mut usize,
    len: *mut usize,
) -> c_int {
    // SAFETY: as for `malloc`.
    unsafe { jemalloc::mallctlnametomib(name, mib, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mallctlbymib(
    mib: *const usize,
    mib_len: usize,
    old: *mut c_void,
    old_len: *mut usize,
    new: *mut c_void,
    new_len: usize,
) -> c_int {
    // SAFETY: as for `malloc`.
    unsafe { jemalloc::mallctlbymib(mib, mib_len, old, old_len, new, new_len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_stats_print(
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char)>,
    argument: *mut c_void,
    options: *const c_char,
) {
    // SAFETY: as for `malloc`.
    unsafe { jemalloc::malloc_stats_print(write, argument, options) }
}
