//! The functions of the C library, and jemalloc's own for programs that were linked with it.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use quire_preload_provide::allocator::{self, WORTHWHILE};
use tikv_jemalloc_sys as jemalloc;

use crate::arenas;

/// A request that alone makes the process worth managing starts the manager
/// before it is served.
#[inline]
fn before(size: usize) {
    if size as u64 >= WORTHWHILE.0 && !allocator::is_managed() {
        allocator::begin();
    }
}

#[inline]
fn after() {
    if allocator::wants_start() {
        allocator::begin();
    } else {
        arenas::hook_new();
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
        arenas::purge();
        block = request();
    }
    after();
    arenas::release_kept(size);
    block
}

/// `serve` for the functions after whose failure jemalloc leaves `errno` as it was.
#[inline]
fn serve_or_enomem(size: usize, request: impl Fn() -> *mut c_void) -> *mut c_void {
    let block = serve(size, request);
    if block.is_null() && size != 0 {
        no_memory();
    }
    block
}

#[cold]
fn no_memory() {
    // SAFETY: the C library gives the address of this thread's own variable.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
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
    serve_or_enomem(size, || unsafe { jemalloc::realloc(block, size) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as for `malloc`.
        Some(total) => unsafe { realloc(block, total) },
        None => {
            no_memory();
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
    arenas::release_kept(size);
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
    serve_or_enomem(size, || unsafe {
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
    c_int::from(arenas::purge())
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
