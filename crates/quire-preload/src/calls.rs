//! The functions of the C library that are passed through. Each does what it did: the next library's function is
//! called, whichever that is, so that the program's allocator stays the program's, and `free` is not touched. What
//! was given is noted (`growth`).

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use quire_core::config::Policy;
use quire_core::units::{AddrRange, BASE_PAGE, SUPERPAGE, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::real::Real;

use crate::{beside, growth, moving, settings, shared};

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Calloc = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Aligned = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type PosixMemalign = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;
type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;
type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
type Mprotect = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
type Madvise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
type Prctl = unsafe extern "C" fn(c_int, usize, usize, usize, usize) -> c_int;
type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

// SAFETY: the types of the C library's functions, here and below. Variable arguments are passed like fixed ones.
static MALLOC: Real<Malloc> = unsafe { Real::new(c"malloc") };
// SAFETY: as above.
static CALLOC: Real<Calloc> = unsafe { Real::new(c"calloc") };
// SAFETY: as above.
static REALLOC: Real<Realloc> = unsafe { Real::new(c"realloc") };
// SAFETY: as above.
static ALIGNED_ALLOC: Real<Aligned> = unsafe { Real::new(c"aligned_alloc") };
// SAFETY: as above.
static MEMALIGN: Real<Aligned> = unsafe { Real::new(c"memalign") };
// SAFETY: as above.
static POSIX_MEMALIGN: Real<PosixMemalign> = unsafe { Real::new(c"posix_memalign") };
// SAFETY: as above.
static USABLE_SIZE: Real<UsableSize> = unsafe { Real::new(c"malloc_usable_size") };
// SAFETY: as above.
static MMAP: Real<Mmap> = unsafe { Real::new(c"mmap") };
// SAFETY: as above.
static MREMAP: Real<moving::Move> = unsafe { Real::new(c"mremap") };
// SAFETY: as above.
static MPROTECT: Real<Mprotect> = unsafe { Real::new(c"mprotect") };
// SAFETY: as above.
static MADVISE: Real<Madvise> = unsafe { Real::new(c"madvise") };
// SAFETY: as above.
static PRCTL: Real<Prctl> = unsafe { Real::new(c"prctl") };
// SAFETY: as above.
static SYSCALL: Real<Syscall> = unsafe { Real::new(c"syscall") };

/// Some thread looks for the functions; where looking allocates, the C library's own allocator has to do.
static LOOKING: AtomicBool = AtomicBool::new(false);

/// `realloc` and `malloc_usable_size` are of one allocator; the one of another would read what is not its own.
static OF_ONE_ALLOCATOR: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, len: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, len: usize) -> *mut c_void;
}

/// Looks all functions up.
pub fn find() {
    LOOKING.store(true, Ordering::Relaxed);
    let _ = (MALLOC.get(), CALLOC.get(), REALLOC.get(), USABLE_SIZE.get());
    let _ = (ALIGNED_ALLOC.get(), MEMALIGN.get(), POSIX_MEMALIGN.get());
    let _ = (MMAP.get(), MREMAP.get(), MPROTECT.get(), MADVISE.get());
    let _ = (PRCTL.get(), SYSCALL.get());
    let address = |function: Option<*const c_void>| function.map_or(0, |at| at as usize);
    let moves = address(REALLOC.found().map(|f| f as *const c_void));
    let measures = address(USABLE_SIZE.found().map(|f| f as *const c_void));
    OF_ONE_ALLOCATOR.store(in_one_library([moves, measures]), Ordering::Relaxed);
    LOOKING.store(false, Ordering::Relaxed);
}

/// Whether two functions lie in one library. (`dladdr` would say it, too, but it goes through all symbols of the
/// library: for the C library that takes as long as all else that is done here.)
fn in_one_library(mut functions: [usize; 2]) -> bool {
    unsafe extern "C" fn look(
        object: *mut libc::dl_phdr_info,
        _len: usize,
        functions: *mut c_void,
    ) -> c_int {
        // SAFETY: the C library gives an object, with its headers, that stays while this runs.
        let (object, headers) = unsafe {
            let object = &*object;
            (
                object,
                std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)),
            )
        };
        // SAFETY: it is the array of the caller, who waits.
        let functions = unsafe { &*functions.cast::<[usize; 2]>() };
        let holds = |at: usize| {
            headers
                .iter()
                .filter(|header| header.p_type == libc::PT_LOAD)
                .any(|header| {
                    let offset = at.wrapping_sub((object.dlpi_addr + header.p_vaddr) as usize);
                    offset < header.p_memsz as usize
                })
        };
        c_int::from(functions.iter().all(|at| holds(*at)))
    }
    // SAFETY: `look` takes what it is given, and the array lives as long as the call.
    unsafe { libc::dl_iterate_phdr(Some(look), functions.as_mut_ptr().cast()) == 1 }
}

/// A function that allocates. Before the library has started, it is looked up at the first call.
fn allocator<F: Copy>(real: &Real<F>, own: F) -> F {
    if let Some(found) = real.found() {
        return found;
    }
    if LOOKING.swap(true, Ordering::Relaxed) {
        return own;
    }
    let found = real.get();
    LOOKING.store(false, Ordering::Relaxed);
    found.unwrap_or(own)
}

/// Notes what an allocator gave. Under `eager` a large block may have superpages at once.
fn given(at: *mut c_void, len: usize) {
    if at.is_null() {
        return;
    }
    // Of a block that grows the program may have said that it wants none.
    let is_eager = len >= SUPERPAGE as usize && settings::policy() == Policy::Eager;
    if is_eager && growth::forbidden() == 0 {
        eager(at.cast(), len, 0);
    }
    growth::note(at.cast(), len);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(len: usize) -> *mut c_void {
    // SAFETY: passed on as it came, here and below.
    let at = unsafe { allocator(&MALLOC, __libc_malloc)(len) };
    given(at, len);
    at
}

#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, len: usize) -> *mut c_void {
    // SAFETY: as for `malloc`.
    let at = unsafe { allocator(&CALLOC, __libc_calloc)(count, len) };
    given(at, count.saturating_mul(len));
    at
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, len: usize) -> *mut c_void {
    if len >= SUPERPAGE as usize {
        // SAFETY: the program says that the block is one of its allocator's.
        unsafe { make_movable(old) };
    }
    // SAFETY: as for `malloc`.
    let at = unsafe { allocator(&REALLOC, __libc_realloc)(old, len) };
    given(at, len);
    at
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(alignment: usize, len: usize) -> *mut c_void {
    let Some(real) = ALIGNED_ALLOC.known() else {
        return std::ptr::null_mut();
    };
    // SAFETY: as for `malloc`.
    let at = unsafe { real(alignment, len) };
    given(at, len);
    at
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(alignment: usize, len: usize) -> *mut c_void {
    let Some(real) = MEMALIGN.known() else {
        return std::ptr::null_mut();
    };
    // SAFETY: as for `malloc`.
    let at = unsafe { real(alignment, len) };
    given(at, len);
    at
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, alignment: usize, len: usize) -> c_int {
    let Some(real) = POSIX_MEMALIGN.get() else {
        return libc::ENOMEM;
    };
    // SAFETY: as for `malloc`.
    let answer = unsafe { real(to, alignment, len) };
    if answer == 0 {
        // SAFETY: the call has put the block's address there.
        given(unsafe { *to }, len);
    }
    answer
}

/// The C library moves large blocks by moving their mappings, which it can only where a block lies in one mapping;
/// advice has made several of it. Advice for all of the block makes one of them again.
///
/// # Safety
/// `block` is null, or a block of the program's allocator.
unsafe fn make_movable(block: *mut c_void) {
    // The program's own advice for the block would be lost.
    if block.is_null() || !OF_ONE_ALLOCATOR.load(Ordering::Relaxed) || growth::forbidden() > 0 {
        return;
    }
    let Some(usable) = USABLE_SIZE.found() else {
        return;
    };
    // SAFETY: the program says that it is a block.
    let len = unsafe { usable(block) };
    if len >= SUPERPAGE as usize && growth::may_be_advised(block.cast(), len) {
        advise_all(block.cast(), len);
    }
}

/// Advises the pages that a range touches.
pub fn advise_all(at: *const u8, len: usize) {
    let start = VirtAddr(at as u64).page_floor();
    let end = VirtAddr(
        (at as u64)
            .saturating_add(len as u64)
            .next_multiple_of(BASE_PAGE),
    );
    // SAFETY: larger pages change no contents.
    let _ = unsafe { memory::advise(AddrRange { start, end }, Advice::HugePage) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let Some(real) = MMAP.known() else {
        return libc::MAP_FAILED;
    };
    let shares = len >= SUPERPAGE as usize && shared::is_memory(flags, fd);
    let at = match shares {
        true => shared::place(at, len, flags, offset),
        false => at,
    };
    // SAFETY: as for `malloc`.
    let mapped = unsafe { real(at, len, prot, flags, fd, offset) };
    let private = flags & (libc::MAP_ANONYMOUS | libc::MAP_PRIVATE)
        == libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;
    // A library that provides memory has made of large mappings what it makes of them.
    let is_provided = len >= SUPERPAGE as usize && beside::provides();
    let grows = (private && !is_provided) || shares;
    if mapped != libc::MAP_FAILED && grows && prot & libc::PROT_WRITE != 0 {
        if private && settings::policy() == Policy::Eager && len >= SUPERPAGE as usize {
            eager(mapped.cast(), len, flags);
        }
        if shares {
            shared::note(mapped.cast(), len, flags);
        }
        growth::note(mapped.cast(), len);
    }
    mapped
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the same function on machines of 64 bits.
    unsafe { mmap(at, len, prot, flags, fd, offset) }
}

/// Under `eager` a new mapping may have superpages at once. Stacks are the exception, as the kernel has it.
fn eager(at: *const u8, len: usize, flags: c_int) {
    let unfit = libc::MAP_STACK | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB;
    if flags & unfit == 0 && !growth::is_left_alone() {
        advise_all(at, len);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let Some(real) = MREMAP.known() else {
        return libc::MAP_FAILED;
    };
    // SAFETY: as for `malloc`.
    let mut moved = unsafe { real(old, old_len, len, flags, new) };
    if moved == libc::MAP_FAILED
        && errno() == libc::EFAULT
        && growth::may_be_advised(old.cast(), old_len)
    {
        // SAFETY: the call of the program, which has moved nothing yet.
        moved = unsafe { moving::as_one(real, old, old_len, len, flags, new) };
    }
    if moved != libc::MAP_FAILED {
        growth::note(moved.cast(), len);
    }
    moved
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(at: *mut c_void, len: usize, prot: c_int) -> c_int {
    let Some(real) = MPROTECT.known() else {
        return -1;
    };
    // SAFETY: as for `malloc`.
    let answer = unsafe { real(at, len, prot) };
    if answer == 0 && prot & libc::PROT_WRITE != 0 && len >= SUPERPAGE as usize {
        growth::note(at.cast(), len);
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    if advice == libc::MADV_NOHUGEPAGE {
        growth::note_forbidden(at.cast(), len);
    }
    // SAFETY: as for `malloc`.
    MADVISE
        .known()
        .map_or(-1, |real| unsafe { real(at, len, advice) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        growth::leave_alone();
    }
    // SAFETY: as for `malloc`.
    PRCTL
        .known()
        .map_or(-1, |real| unsafe { real(option, a, b, c, d) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    match number {
        libc::SYS_seccomp | libc::SYS_userfaultfd => growth::leave_alone(),
        libc::SYS_exit => growth::end_helper(),
        // SAFETY: as for `malloc`.
        libc::SYS_mremap => return unsafe { mremap(a as _, b, c, d as c_int, e as _) } as c_long,
        _ => {}
    }
    // SAFETY: as for `malloc`.
    SYSCALL
        .known()
        .map_or(-1, |real| unsafe { real(number, a, b, c, d, e, f) })
}

pub fn errno() -> c_int {
    // SAFETY: the C library gives the address of this thread's own variable.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
