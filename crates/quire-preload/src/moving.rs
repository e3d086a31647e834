//! `mremap` of memory of which advice has made several mappings: the kernel moves what lies in one mapping, and gives
//! `EFAULT` otherwise.
//!
//! Advice for all of the range makes one mapping of it again. In a forked child the kernel never joins mappings that
//! it has copied, so there the memory is moved extent by extent; advice ends at the borders of extents.

use std::ffi::{c_int, c_void};
use std::ptr;

use quire_core::units::{BASE_PAGE, SUPERPAGE};

use crate::calls::{advise_all, errno, set_errno};

/// `mremap`.
pub type Move = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;

/// The helper may advise again while memory is moved; hardly ever twice.
const TRIES: usize = 3;
const PAGE: usize = BASE_PAGE as usize;
const EXTENT: usize = SUPERPAGE as usize;
const FIXED: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;

/// Does what `mremap` does, for a call that has failed with `EFAULT`. Such a call has moved nothing; what a fixed new
/// address held is gone, and so is what is left out at the end.
///
/// # Safety
/// As `mremap`, which `real` is.
pub unsafe fn as_one(
    real: Move,
    old: *mut c_void,
    old_len: usize,
    len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let old_len = match flags & libc::MREMAP_FIXED {
        0 => old_len,
        _ => old_len.min(len),
    };
    for _ in 0..TRIES {
        advise_all(old.cast(), old_len);
        // SAFETY: passed on to the caller.
        let moved = unsafe { real(old, old_len, len, flags, new) };
        if moved != libc::MAP_FAILED || errno() != libc::EFAULT {
            return moved;
        }
    }
    let range = Range {
        start: old as usize,
        end: (old as usize).saturating_add(old_len.next_multiple_of(PAGE)),
    };
    let len = len.next_multiple_of(PAGE);
    let is_plain = flags & !FIXED == 0;
    if !is_plain || !range.start.is_multiple_of(PAGE) || len < range.len() {
        set_errno(libc::EFAULT);
        return libc::MAP_FAILED;
    }
    // SAFETY: passed on to the caller.
    unsafe { in_pieces(real, range, len, flags, new) }
}

/// Addresses that are moved: whole pages.
#[derive(Clone, Copy)]
struct Range {
    start: usize,
    end: usize,
}

impl Range {
    const fn len(self) -> usize {
        self.end - self.start
    }

    /// The end of the piece that begins at an address.
    fn next(self, from: usize) -> usize {
        ((from / EXTENT + 1) * EXTENT).min(self.end)
    }

    /// Where the last piece begins.
    fn last(self) -> usize {
        ((self.end - 1) / EXTENT * EXTENT).max(self.start)
    }
}

/// # Safety
/// As `mremap`.
unsafe fn in_pieces(
    real: Move,
    range: Range,
    len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let is_fixed = flags & libc::MREMAP_FIXED != 0;
    if !is_fixed {
        // Where there is room behind it, only the last piece grows.
        let (last, whole) = (range.last(), range.start + len);
        // SAFETY: a piece of what the program named.
        let grown = unsafe {
            real(
                last as *mut c_void,
                range.end - last,
                whole - last,
                0,
                ptr::null_mut(),
            )
        };
        if grown != libc::MAP_FAILED {
            return range.start as *mut c_void;
        }
        if flags & libc::MREMAP_MAYMOVE == 0 {
            return libc::MAP_FAILED;
        }
    }
    let (at, fixed) = match is_fixed {
        true => (new, libc::MAP_FIXED),
        false => (ptr::null_mut(), 0),
    };
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: at the kernel's choice, or where the program wants the memory and nothing is left.
    let target = unsafe { libc::mmap(at, len, libc::PROT_NONE, how, -1, 0) };
    if target == libc::MAP_FAILED {
        return libc::MAP_FAILED;
    }
    // SAFETY: the target is new, and large enough.
    unsafe { to(real, range, target, len) }
}

/// Moves all pieces to `target`; where one cannot be moved, all go back.
///
/// # Safety
/// `target` has `len` bytes, of which nobody uses any.
unsafe fn to(real: Move, range: Range, target: *mut c_void, len: usize) -> *mut c_void {
    let base = target as usize;
    let mut from = range.start;
    while from < range.end {
        let (next, at) = (range.next(from), base + (from - range.start));
        let room = match next == range.end {
            true => base + len - at,
            false => next - from,
        };
        // SAFETY: a piece of what the program named, to what was mapped for it.
        let moved = unsafe {
            real(
                from as *mut c_void,
                next - from,
                room,
                FIXED,
                at as *mut c_void,
            )
        };
        if moved == libc::MAP_FAILED {
            let why = errno();
            // SAFETY: the pieces before this one lie in the target.
            unsafe { back(real, Range { end: from, ..range }, base) };
            // SAFETY: nothing is left there.
            unsafe { libc::munmap(target, len) };
            set_errno(why);
            return libc::MAP_FAILED;
        }
        from = next;
    }
    target
}

/// Moves pieces back.
///
/// # Safety
/// They lie at `base`.
unsafe fn back(real: Move, range: Range, base: usize) {
    let mut at = range.start;
    while at < range.end {
        let (next, from) = (range.next(at), base + (at - range.start));
        let len = next - at;
        // SAFETY: to where the piece came from, which nobody has taken: the program waits for this call.
        unsafe { real(from as *mut c_void, len, len, FIXED, at as *mut c_void) };
        at = next;
    }
}
