//! The program's allocator: jemalloc, on managed memory.
//!
//! Until the process is worth managing, jemalloc takes its memory straight
//! from the kernel. Then the hooks below are given to its arenas: extents come
//! from the manager's heap, which is contiguous, and what jemalloc purges
//! stays in its reservation until the reservation is wholly free or preempted
//! (paper 000, section 3.2).

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use quire_core::units::{AddrRange, Bytes, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::thread;
use quire_vm::manager::WORTHWHILE;
use tikv_jemalloc_sys as jemalloc;

use crate::frames::Kind;
use crate::{MANAGER, frames};

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;

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

/// Makes jemalloc ready before the program can fork.
pub fn start() {
    // SAFETY: allocates and frees one block.
    unsafe { jemalloc::free(jemalloc::malloc(1)) };
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
fn release_kept(size: usize) {
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
    let (size, align) = (Bytes(size as u64), Bytes(align as u64));
    let managed = match frames::has_heap() {
        true => None,
        false => MANAGER.map_heap(size, align),
    };
    let plain = || {
        let start = from_kernel(size, align)?;
        frames::place(AddrRange::new(start, size), Kind::Heap);
        Some(start)
    };
    let Some(start) = managed.or_else(plain) else {
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
    frames::forget(range);
    // SAFETY: jemalloc gives the extent up.
    unsafe { MANAGER.free(range).is_err() && !free_in_parts(range) }
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
    if whole.is_empty() || unsafe { MANAGER.free(whole) }.is_err() {
        return false;
    }
    let (head, tail) = (range.split_at(whole.start).0, range.split_at(whole.end).1);
    for rest in [head, tail].into_iter().filter(|rest| !rest.is_empty()) {
        // SAFETY: as before.
        let _ = unsafe { MANAGER.free(rest) };
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
    frames::forget(range);
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
    let emptied = match frames::are_placed(range) {
        // SAFETY: jemalloc gives the contents up.
        true => frames::empty(range, true, || unsafe {
            memory::advise(range, Advice::DontNeed)
        }),
        false => MANAGER.discard(range),
    };
    emptied.is_err()
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
    release_kept(size);
    block
}

/// Gives what jemalloc has kept of freed blocks back. Says whether it could.
#[cold]
fn purge() -> bool {
    // 4096 stands for all arenas.
    command(c"arena.4096.purge")
}

/// Carries out a command of jemalloc's. Says whether it could.
fn command(name: &CStr) -> bool {
    let none = ptr::null_mut();
    // SAFETY: the name is a C string; the command takes and returns nothing.
    unsafe { jemalloc::mallctl(name.as_ptr(), none, ptr::null_mut(), none, 0) == 0 }
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
    release_kept(size);
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
