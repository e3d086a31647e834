//! The calls that change mappings, as the program makes them.
//!
//! Inside a library that brings an allocator along, the names of the exported
//! functions stand for the kernel's calls (`--wrap` in its `build.rs`). So what the
//! program gets has a name of its own, which is what other modules must call.

use std::ffi::{c_int, c_uint, c_void};

use quire_core::madvise::{Treatment, treatment};
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, SUPERPAGE, VirtAddr};
use quire_linux::memory::{self, Advice};
use quire_linux::raw::{Result, check, syscall_raw};
use quire_vm::{Errno, Handled, files};

use crate::frames::{Kind, Way};
use crate::{MANAGER, align, allocator, frames, processes, set_errno, shared, small};

const FAILED: *mut c_void = libc::MAP_FAILED;

fn range(at: *mut c_void, len: usize) -> AddrRange {
    let start = VirtAddr(at as u64);
    AddrRange {
        start,
        end: VirtAddr(start.0.saturating_add(len as u64)),
    }
}

/// The range rounded up to whole pages, as the kernel sees it; empty where
/// that overflows.
pub fn pages(at: *mut c_void, len: usize) -> AddrRange {
    let whole = (len as u64).checked_next_multiple_of(BASE_PAGE);
    let end = whole.and_then(|len| (at as u64).checked_add(len));
    let start = VirtAddr(at as u64);
    AddrRange {
        start,
        end: end.map_or(start, VirtAddr),
    }
}

pub unsafe fn raw(number: i64, args: [usize; 6]) -> Result<usize> {
    // SAFETY: the caller passes on what the program asked for.
    check(unsafe { syscall_raw(number, args) })
}

pub fn pointer(result: Result<usize>) -> *mut c_void {
    match result {
        Ok(at) => at as *mut c_void,
        Err(errno) => {
            set_errno(errno);
            FAILED
        }
    }
}

pub fn status(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// As the system call takes them.
pub fn mmap_arguments(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> [usize; 6] {
    [
        at as usize,
        len,
        prot as usize,
        flags as usize,
        fd as usize,
        offset as usize,
    ]
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: passed on as it came.
    unsafe { map(at, len, prot, flags, fd, offset) }
}

pub unsafe fn map(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let target = pages(at, len);
    if frames::is_pending() && may_start_thread() {
        frames::start();
    }
    start_late();
    let aligned = (offset as u64).is_multiple_of(BASE_PAGE);
    let large = len as u64 >= SUPERPAGE && !target.is_empty();
    if flags & libc::MAP_FIXED != 0 {
        files::forget(target);
        frames::forget(target);
    }
    let args = mmap_arguments(at, len, prot, flags, fd, offset);
    if aligned && !target.is_empty() {
        // SAFETY: passed on as it came.
        if let Some(mapped) = unsafe { map_in_frames(target, flags, args) } {
            return pointer(mapped);
        }
    }
    if large && aligned && is_asked_for(prot, flags) && !MANAGER.is_started() {
        ask(Bytes(len as u64));
    }
    if flags & libc::MAP_ANONYMOUS != 0 && large && aligned {
        let hint = align::hint(target.start, len, flags, 0);
        let answer = MANAGER.map(hint, target.len(), prot, flags);
        if let Handled::Yes(result) = answer {
            // SAFETY: passed on as it came, for a mapping that nobody knows yet.
            return pointer(result.and_then(|at| unsafe { reconsider(at, flags, args) }));
        }
    }
    // Text that the program maps by itself must not be taken for a library's.
    let noted = MANAGER.cares() || prot & libc::PROT_EXEC != 0;
    let mapped = if large && aligned && noted {
        shared::map(target, args)
    } else {
        align::map(args)
    };
    if let Ok(at) = mapped {
        let made = AddrRange::new(VirtAddr(at as u64), target.len());
        frames::forget(made);
        small::advise(made, prot, flags);
        frames::know(made, flags);
    }
    pointer(mapped)
}

/// Maps private anonymous memory of which a strategy may choose frames; nothing where the
/// mapping is to be made as without strategies.
unsafe fn map_in_frames(
    target: AddrRange,
    flags: c_int,
    args: [usize; 6],
) -> Option<Result<usize>> {
    let way = frames::way(target, flags);
    if way == Way::Usual {
        return None;
    }
    let [at, len, prot, _, fd, offset] = args;
    // What is populated at once would be so before it is placed.
    let plain = flags & !libc::MAP_POPULATE;
    let mapped = align::map_there([at, len, prot, plain as usize, fd, offset]);
    let Ok(at) = mapped else {
        return (way == Way::Plain).then_some(mapped);
    };
    let made = AddrRange::new(VirtAddr(at as u64), target.len());
    let kind = Kind::of_mapping(flags);
    if way == Way::Tried && !frames::concern(made, kind) {
        // SAFETY: the mapping was just made, and nobody knows it.
        let _ = unsafe { raw(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) };
        return None;
    }
    frames::forget(made);
    frames::place(made, kind);
    if flags & (libc::MAP_POPULATE | libc::MAP_NONBLOCK) == libc::MAP_POPULATE {
        populate(made, prot as c_int);
    }
    Some(mapped)
}

/// Of a mapping that the manager has just made: there can be a hint for the addresses that
/// it chose, and then a plain mapping takes its place.
unsafe fn reconsider(at: VirtAddr, flags: c_int, args: [usize; 6]) -> Result<usize> {
    let [_, len, prot, _, fd, offset] = args;
    let at = at.0 as usize;
    let made = pages(at as *mut c_void, len);
    frames::forget(made);
    let tried = frames::way(made, flags) == Way::Tried;
    if !tried || !frames::concern(made, Kind::of_mapping(flags)) {
        return Ok(at);
    }
    let flags = flags | libc::MAP_FIXED;
    let args = [at, len, prot, flags as usize, fd, offset];
    // SAFETY: as the caller says.
    let mapped = unsafe { map_in_frames(made, flags, args) };
    if let Some(Err(_)) = mapped {
        // SAFETY: nobody knows the mapping.
        let _ = unsafe { raw(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) };
    }
    mapped.unwrap_or(Ok(at))
}

/// Populates a new mapping, as far as that can be done: so it is with `MAP_POPULATE`, too.
pub fn populate(made: AddrRange, prot: c_int) {
    let advice = match prot & libc::PROT_WRITE {
        0 => Advice::PopulateRead,
        _ => Advice::PopulateWrite,
    };
    // SAFETY: the mapping was just made, and holds nothing but zeros.
    let _ = unsafe { memory::advise(made, advice) };
}

/// Whether a mapping is memory that the program asks for: not address space that it only reserves, and not what files
/// hold already. Programs that have to be single-threaded at some moment of their start, as Chromium's zygote, map much
/// of both before.
fn is_asked_for(prot: c_int, flags: c_int) -> bool {
    prot & libc::PROT_WRITE != 0 && flags & (libc::MAP_ANONYMOUS | libc::MAP_SHARED) != 0
}

/// Counts what the program asks for, and starts managing if it has become worth
/// it; where that cannot be done here, the next call does it.
pub fn ask(size: Bytes) {
    if may_start_thread() {
        allocator::ask(size);
    } else {
        MANAGER.count_asked(size);
    }
}

/// Starts managing where that could not be done when the process became worth it, as some
/// programs map their memory with signals blocked. Cheap for every call.
#[inline]
pub fn start_late() {
    if MANAGER.wants_start() && !processes::is_borrowed() && may_start_thread() {
        allocator::begin();
    }
}

/// Whether this is no place of which the C library may be in the middle: in a
/// signal handler, the signal that is handled is blocked, and has a handler.
pub fn may_start_thread() -> bool {
    let mut mask = 0u64;
    let how = libc::SIG_BLOCK as usize;
    let args = [how, 0, (&raw mut mask) as usize, 8, 0, 0];
    // SAFETY: with no new mask the call writes eight bytes and changes nothing.
    if unsafe { raw(libc::SYS_rt_sigprocmask, args) }.is_err() {
        return false;
    }
    (1..=64)
        .filter(|signal| mask & (1 << (signal - 1)) != 0)
        .all(|signal| !has_handler(signal))
}

/// Whether the program handles a signal.
fn has_handler(signal: usize) -> bool {
    // As the kernel lays it out: handler, flags, restorer, mask.
    let mut action = [0usize; 4];
    let args = [signal, 0, (&raw mut action) as usize, 8, 0, 0];
    // SAFETY: with no new action the call writes these four words and changes
    // nothing.
    let known = unsafe { raw(libc::SYS_rt_sigaction, args) }.is_ok();
    known && action[0] != libc::SIG_DFL && action[0] != libc::SIG_IGN
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: passed on as it came.
    unsafe { map(at, len, prot, flags, fd, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { unmap(at, len) }
}

pub unsafe fn unmap(at: *mut c_void, len: usize) -> c_int {
    start_late();
    let target = pages(at, len);
    let valid = target.start.is_page_aligned() && !target.is_empty();
    files::forget(target);
    frames::forget(target);
    if valid && let Handled::Yes(result) = MANAGER.unmap(target) {
        return status(result);
    }
    // SAFETY: passed on as it came.
    status(unsafe { raw(libc::SYS_munmap, [at as usize, len, 0, 0, 0, 0]) }.map(drop))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    // SAFETY: passed on as it came.
    unsafe { remap(at, old_len, new_len, flags, new) }
}

pub unsafe fn remap(
    at: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    if old_len == 0 && MANAGER.manages(pages(at, 1)) {
        // Only shared mappings can be doubled, and this must not look like one.
        return pointer(Err(Errno(libc::EINVAL)));
    }
    let old = range(at, old_len);
    files::forget(old);
    if flags & libc::MREMAP_FIXED != 0 {
        files::forget(pages(new, new_len));
        frames::forget(pages(new, new_len));
    }
    let answer = MANAGER.remap(old, Bytes(new_len as u64), flags, VirtAddr(new as u64));
    if let Handled::Yes(result) = answer {
        if let Ok(at) = result {
            frames::forget(AddrRange::new(at, Bytes(new_len as u64)));
        }
        return pointer(result.map(|at| at.0 as usize));
    }
    let args = [
        at as usize,
        old_len,
        new_len,
        flags as usize,
        new as usize,
        0,
    ];
    let moving = frames::begin_move(pages(at, old_len));
    // SAFETY: passed on as it came.
    let change = || unsafe { raw(libc::SYS_mremap, args) };
    let moved = match flags & libc::MREMAP_FIXED {
        0 => change(),
        _ => MANAGER.replace_by(pages(new, new_len), change),
    };
    if let Ok(to) = moved {
        MANAGER.note_moved(old, range(to as *mut c_void, new_len));
    }
    let to = moved.ok().map(|to| pages(to as *mut c_void, new_len));
    moving.end(to, flags);
    pointer(moved)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { advise(at, len, advice) }
}

pub unsafe fn advise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    let target = pages(at, len);
    if advice == libc::MADV_HUGEPAGE && frames::are_placed(target) {
        // It has a strategy instead.
        return status(match memory::is_mapped(target) {
            true => Ok(()),
            false => Err(Errno(libc::ENOMEM)),
        });
    }
    if advice == libc::MADV_DONTFORK {
        frames::expect_holes();
    }
    if let Handled::Yes(result) = MANAGER.advise(target, advice) {
        return status(result);
    }
    files::advised(target, advice);
    let args = [at as usize, len, advice as usize, 0, 0, 0];
    // SAFETY: passed on as it came.
    let change = || unsafe { raw(libc::SYS_madvise, args) }.map(drop);
    status(match (advice, treatment(advice)) {
        (libc::MADV_FREE, _) | (_, Treatment::Refused) => frames::empty(target, false, change),
        // Whatever it is, it may empty.
        (_, Treatment::Empty { .. } | Treatment::Plain) => frames::empty(target, true, change),
        _ => change(),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(at: *mut c_void, len: usize, prot: c_int) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { set_protection(at, len, prot) }
}

pub unsafe fn set_protection(at: *mut c_void, len: usize, prot: c_int) -> c_int {
    let args = [at as usize, len, prot as usize, 0, 0, 0];
    // SAFETY: passed on as it came.
    let change = || unsafe { raw(libc::SYS_mprotect, args) }.map(drop);
    protect(pages(at, len), prot, change)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pkey_mprotect(at: *mut c_void, len: usize, prot: c_int, key: c_int) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { set_key(at, len, prot, key) }
}

/// A key belongs to a mapping, which must therefore stay what it is.
pub unsafe fn set_key(at: *mut c_void, len: usize, prot: c_int, key: c_int) -> c_int {
    let args = [at as usize, len, prot as usize, key as usize, 0, 0];
    // SAFETY: passed on as it came.
    let change = || unsafe { raw(libc::SYS_pkey_mprotect, args) }.map(drop);
    let target = pages(at, len);
    if key > 0
        && let Err(errno) = MANAGER.make_plain(target)
    {
        return status(Err(errno));
    }
    protect(target, prot, change)
}

fn protect(target: AddrRange, prot: c_int, change: impl Fn() -> Result<()>) -> c_int {
    if prot & libc::PROT_WRITE != 0 {
        files::writable(target);
    }
    status(match MANAGER.protect_by(target, prot, &change) {
        Handled::Yes(result) => result,
        Handled::No => change(),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlock(at: *const c_void, len: usize) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { set_lock(libc::SYS_mlock, at, len, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlock2(at: *const c_void, len: usize, flags: c_uint) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { set_lock(libc::SYS_mlock2, at, len, flags as usize) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munlock(at: *const c_void, len: usize) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { set_lock(libc::SYS_munlock, at, len, 0) }
}

/// `mlock`, `mlock2` or `munlock`, by the number of the call.
pub unsafe fn set_lock(number: i64, at: *const c_void, len: usize, flags: usize) -> c_int {
    let args = [at as usize, len, flags, 0, 0, 0];
    // SAFETY: passed on as it came.
    let change = || unsafe { raw(number, args) }.map(drop);
    lock(at, len, number != libc::SYS_munlock, change)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    lock_all(flags)
}

pub fn lock_all(flags: c_int) -> c_int {
    // SAFETY: passed on as it came.
    let change = || unsafe { raw(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) }.map(drop);
    // What is mapped later is locked by the kernel, and found to be.
    MANAGER.lock_future(flags & libc::MCL_FUTURE != 0);
    if flags & libc::MCL_CURRENT == 0 {
        return status(change());
    }
    lock_everything(true, change)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munlockall() -> c_int {
    unlock_all()
}

pub fn unlock_all() -> c_int {
    // SAFETY: passed on as it came.
    let change = || unsafe { raw(libc::SYS_munlockall, [0; 6]) }.map(drop);
    MANAGER.lock_future(false);
    lock_everything(false, change)
}

fn lock_everything(locked: bool, change: impl Fn() -> Result<()>) -> c_int {
    let everything = AddrRange {
        start: VirtAddr(0),
        end: VirtAddr(u64::MAX),
    };
    lock_range(everything, locked, change)
}

fn lock(at: *const c_void, len: usize, locked: bool, change: impl Fn() -> Result<()>) -> c_int {
    let start = (at as u64) & !(BASE_PAGE - 1);
    let len = len + (at as u64 - start) as usize;
    lock_range(pages(start as *mut c_void, len), locked, change)
}

fn lock_range(range: AddrRange, locked: bool, change: impl Fn() -> Result<()>) -> c_int {
    status(match MANAGER.lock_by(range, locked, &change) {
        Handled::Yes(result) => result,
        Handled::No => change(),
    })
}

/// `PR_SET_VMA` and `PR_SET_VMA_ANON_NAME`: to name a private anonymous mapping.
const SET_MAPPING: (c_int, usize) = (0x53_56_4d_41, 0);

#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    // SAFETY: passed on as it came.
    unsafe { control(option, [a, b, c, d]) }
}

pub unsafe fn control(option: c_int, args: [usize; 4]) -> c_int {
    let [a, b, c, d] = args;
    if option == libc::PR_SET_SECCOMP {
        MANAGER.leave_alone();
    }
    // SAFETY: passed on as it came.
    let answer = unsafe { raw(libc::SYS_prctl, [option as usize, a, b, c, d, 0]) };
    // A kernel that keeps no names says that there is no such option.
    let taken = !matches!(answer, Err(Errno(errno)) if errno != libc::EINVAL);
    let answer = match answer {
        // Memory of the object cannot be named. The kernel has looked at the name before.
        Err(Errno(libc::EBADF)) if (option, a) == SET_MAPPING => {
            name_others(pages(b as *mut c_void, c), d)
        }
        answer => answer,
    };
    if (option, a) == SET_MAPPING && taken {
        frames::note_name(pages(b as *mut c_void, c), VirtAddr(d as u64));
    }
    match answer {
        Ok(answer) => answer as c_int,
        Err(errno) => status(Err(errno)),
    }
}

/// Names what is not managed of a range.
fn name_others(range: AddrRange, name: usize) -> Result<usize> {
    let (option, what) = SET_MAPPING;
    for piece in MANAGER.unmanaged_parts(range) {
        let (start, len) = (piece.start.0 as usize, piece.len().0 as usize);
        let args = [option as usize, what, start, len, name, 0];
        // SAFETY: passed on as it came.
        unsafe { raw(libc::SYS_prctl, args)? };
    }
    Ok(0)
}

/// The error that stands for a failed fork.
pub const NO_FORK: Errno = Errno(libc::EAGAIN);
