//! Mappings: the memory system calls, with typed ranges.
//!
//! Changing a mapping can pull memory from under a live reference, so the
//! functions that can do so are `unsafe`; the manager, which owns the ranges,
//! argues at each call why nobody is hurt.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

use quire_core::units::{
    AddrRange, BASE_PAGE, Bytes, ObjectOffset, PAGES_PER_SUPERPAGE, PageCount, SUPERPAGE, Slot,
    VirtAddr,
};

use crate::raw::{Errno, Result, syscall};

/// What `madvise` can be told here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Advice {
    /// Drop the page table entries.
    DontNeed = libc::MADV_DONTNEED,
    /// Drop them also where the program has locked its memory (Linux 5.18).
    DontNeedLocked = 24,
    /// Leave the range out of core dumps.
    DontDump = libc::MADV_DONTDUMP,
    /// Punch the pages out of the object.
    Remove = libc::MADV_REMOVE,
    /// Leave the range out of forks.
    DontFork = libc::MADV_DONTFORK,
    /// Allow superpages.
    HugePage = libc::MADV_HUGEPAGE,
    /// Forbid superpages.
    NoHugePage = libc::MADV_NOHUGEPAGE,
    /// Make superpages now.
    Collapse = 25,
    /// Drop clean pages that nobody else uses from the page cache.
    PageOut = 21,
    /// Fault the range in for reading.
    PopulateRead = 22,
    /// Fault the range in for writing.
    PopulateWrite = 23,
}

/// Maps a file.
///
/// # Errors
/// As `mmap`.
///
/// # Safety
/// With `MAP_FIXED` in `flags`, whatever the range held is gone.
pub unsafe fn map_file(
    at: VirtAddr,
    len: Bytes,
    prot: i32,
    flags: i32,
    file: BorrowedFd<'_>,
    offset: ObjectOffset,
) -> Result<VirtAddr> {
    let fd = file.as_raw_fd() as usize;
    // SAFETY: passed on to the caller.
    unsafe { map(at, len, prot, flags, fd, offset.0) }
}

/// Maps private anonymous memory.
///
/// # Errors
/// As `mmap`.
///
/// # Safety
/// With `MAP_FIXED` in `flags`, whatever the range held is gone.
pub unsafe fn map_anonymous(at: VirtAddr, len: Bytes, prot: i32, flags: i32) -> Result<VirtAddr> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: passed on to the caller.
    unsafe { map(at, len, prot, flags, usize::MAX, 0) }
}

unsafe fn map(
    at: VirtAddr,
    len: Bytes,
    prot: i32,
    flags: i32,
    fd: usize,
    offset: u64,
) -> Result<VirtAddr> {
    let args = [
        at.0 as usize,
        len.0 as usize,
        prot as usize,
        flags as usize,
        fd,
        offset as usize,
    ];
    // SAFETY: passed on to the caller.
    unsafe { syscall(libc::SYS_mmap, args) }.map(|a| VirtAddr(a as u64))
}

/// A new stack of a size. Its first page is protected against one that grows too large.
///
/// # Errors
/// As `mmap`.
pub(crate) fn new_stack(size: Bytes) -> Result<AddrRange> {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses, which nobody uses yet.
    unsafe {
        let stack = AddrRange::new(map_anonymous(VirtAddr(0), size, both, 0)?, size);
        let guard = AddrRange::new(stack.start, Bytes(BASE_PAGE));
        protect(guard, libc::PROT_NONE)?;
        Ok(stack)
    }
}

/// Unmaps a range.
///
/// # Errors
/// As `munmap`.
///
/// # Safety
/// Nothing may use the range afterwards.
pub unsafe fn unmap(range: AddrRange) -> Result<()> {
    let args = [range.start.0 as usize, range.len().0 as usize, 0, 0, 0, 0];
    // SAFETY: passed on to the caller.
    unsafe { syscall(libc::SYS_munmap, args) }.map(drop)
}

/// Moves or resizes a mapping.
///
/// # Errors
/// As `mremap`.
///
/// # Safety
/// Nothing may use the old range afterwards, nor what a fixed new range held.
pub unsafe fn remap(old: AddrRange, new_len: Bytes, flags: i32, new: VirtAddr) -> Result<VirtAddr> {
    let args = [
        old.start.0 as usize,
        old.len().0 as usize,
        new_len.0 as usize,
        flags as usize,
        new.0 as usize,
        0,
    ];
    // SAFETY: passed on to the caller.
    unsafe { syscall(libc::SYS_mremap, args) }.map(|a| VirtAddr(a as u64))
}

/// Moves a mapping over whatever is at an address, at one stroke.
///
/// # Errors
/// As `mremap`.
///
/// # Safety
/// Nothing may use the old range afterwards, nor what the new one held.
pub unsafe fn move_over(old: AddrRange, new: VirtAddr) -> Result<()> {
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: passed on to the caller.
    unsafe { remap(old, old.len(), how, new) }.map(drop)
}

/// Maps a run of a file, shared, in place of what `range` holds. It is left out
/// of forks from the first moment on: the mapping is made elsewhere and moved
/// into place, so that a fork which comes in between never shares it.
///
/// # Errors
/// As `mmap` and `mremap`. The range then shows what it did before, or the file
/// if it did.
///
/// # Safety
/// The file must hold what the range held, unless nobody uses that.
pub unsafe fn replace_shared(
    range: AddrRange,
    prot: i32,
    file: BorrowedFd<'_>,
    offset: ObjectOffset,
    advice: &[Advice],
) -> Result<()> {
    let len = range.len();
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses, which nobody
    // knows until it has been moved; what it takes the place of is the caller's
    // to argue.
    unsafe {
        let made = map_file(VirtAddr(0), len, prot, flags, file, offset)?;
        let made = AddrRange::new(made, len);
        let all = [Advice::DontFork];
        let advised = all.iter().chain(advice).try_for_each(|a| advise(made, *a));
        let moved = advised.and_then(|()| move_over(made, range.start));
        if let Err(errno) = moved {
            unmap(made)?;
            return Err(errno);
        }
    }
    Ok(())
}

/// Changes the protection of a range.
///
/// # Errors
/// As `mprotect`.
///
/// # Safety
/// Accesses that the new protection forbids fault.
pub unsafe fn protect(range: AddrRange, prot: i32) -> Result<()> {
    let (start, len) = (range.start.0 as usize, range.len().0 as usize);
    // SAFETY: passed on to the caller.
    unsafe { syscall(libc::SYS_mprotect, [start, len, prot as usize, 0, 0, 0]) }.map(drop)
}

/// Advises the kernel about a range.
///
/// # Errors
/// As `madvise`.
///
/// # Safety
/// [`Advice::DontNeed`] and [`Advice::Remove`] may change what the range
/// holds.
pub unsafe fn advise(range: AddrRange, advice: Advice) -> Result<()> {
    // SAFETY: passed on to the caller.
    unsafe { advise_raw(range, advice as i32) }
}

/// `madvise` with any advice, as a program gave it.
///
/// # Errors
/// As `madvise`.
///
/// # Safety
/// As the advice.
pub unsafe fn advise_raw(range: AddrRange, advice: i32) -> Result<()> {
    let (start, len) = (range.start.0 as usize, range.len().0 as usize);
    // SAFETY: passed on to the caller.
    unsafe { syscall(libc::SYS_madvise, [start, len, advice as usize, 0, 0, 0]) }.map(drop)
}

/// Locks a range as it is faulted in.
///
/// # Errors
/// As `mlock2`.
pub fn lock_on_fault(range: AddrRange) -> Result<()> {
    let (start, len) = (range.start.0 as usize, range.len().0 as usize);
    // SAFETY: locking changes neither contents nor protection.
    unsafe { syscall(libc::SYS_mlock2, [start, len, 1, 0, 0, 0]) }.map(drop)
}

/// A C string of this process that fits in `room`, read by the kernel: where nothing can be
/// read there, or what is there is no text, it is `None`.
pub fn text_at(at: VirtAddr, room: &mut [u8]) -> Option<&str> {
    // A part that cannot be read fails as a whole.
    let in_page = (BASE_PAGE - at.0 % BASE_PAGE) as usize;
    let parts = [
        0..in_page.min(room.len()),
        in_page.min(room.len())..room.len(),
    ];
    let pieces = parts.map(|part| libc::iovec {
        iov_base: (at.0 as usize).wrapping_add(part.start) as *mut libc::c_void,
        iov_len: part.len(),
    });
    let to = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    let (to, from) = ((&raw const to) as usize, pieces.as_ptr() as usize);
    let own = crate::thread::process_id() as usize;
    // SAFETY: the kernel writes no more than there is room, and reads what can be read.
    let read = unsafe { syscall(libc::SYS_process_vm_readv, [own, to, 1, from, 2, 0]) }.ok()?;
    let text = CStr::from_bytes_until_nul(room.get(..read)?).ok()?;
    text.to_str().ok()
}

/// Reads memory of this process through the kernel: memory that cannot be had is an error
/// and no `SIGBUS`.
///
/// # Errors
/// As `process_vm_readv`; in particular `EFAULT` where something cannot be read.
pub fn read_checked(at: VirtAddr, into: &mut [u8]) -> Result<()> {
    copy_checked(at.as_ptr(), into.as_mut_ptr(), into.len())
}

/// Writes memory of this process through the kernel, as [`read_checked`] reads it.
///
/// # Safety
/// Nothing that Rust knows of may lie there, except for what others change at any time
/// anyway, such as atomics.
///
/// # Errors
/// As `process_vm_readv`; in particular `EFAULT` where something cannot be written to.
pub unsafe fn write_checked(at: VirtAddr, from: &[u8]) -> Result<()> {
    copy_checked(from.as_ptr().cast_mut(), at.as_ptr(), from.len())
}

/// Copies between a buffer and other memory of this process, all of it.
///
/// What is written to is always the local side of `process_vm_readv`: the kernel writes there as the
/// program would, through its page tables. It takes hold of the pages of the other side first, and
/// copies then; what it wrote to a page that was taken away in between, as pages of shared objects
/// are, would be lost (so it is with `process_vm_writev`).
fn copy_checked(from: *mut u8, to: *mut u8, length: usize) -> Result<()> {
    let own = crate::thread::process_id() as usize;
    let mut done = 0;
    while done < length {
        let piece = |start: *mut u8| libc::iovec {
            iov_base: start.wrapping_add(done).cast(),
            iov_len: length - done,
        };
        let (local, other) = (piece(to), piece(from));
        let (local, other) = ((&raw const local) as usize, (&raw const other) as usize);
        let call = libc::SYS_process_vm_readv;
        // SAFETY: one side is a buffer of that many bytes, which the callers may read, or write to;
        // the other one may be written to, where it is, as the caller says. The kernel looks
        // whether both can be accessed.
        let copied = unsafe { syscall(call, [own, local, 1, other, 1, 0]) }?;
        if copied == 0 {
            return Err(Errno(libc::EFAULT));
        }
        done += copied;
    }
    Ok(())
}

/// Whether a page of this process holds nothing but zeros; not where it cannot be read.
#[must_use]
pub fn is_zero_page(page: VirtAddr) -> bool {
    let mut words = [1u64; (BASE_PAGE / 8) as usize];
    let to = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: BASE_PAGE as usize,
    };
    let from = libc::iovec {
        iov_base: page.as_ptr().cast(),
        iov_len: BASE_PAGE as usize,
    };
    let (to, from) = ((&raw const to) as usize, (&raw const from) as usize);
    let own = crate::thread::process_id() as usize;
    // SAFETY: the kernel writes no more than there is room, and reads what can be read.
    let read = unsafe { syscall(libc::SYS_process_vm_readv, [own, to, 1, from, 1, 0]) };
    read == Ok(BASE_PAGE as usize) && words.iter().all(|word| *word == 0)
}

/// Whether all of a range is mapped.
#[must_use]
pub fn is_mapped(range: AddrRange) -> bool {
    let (start, len) = (range.start.0 as usize, range.len().0 as usize);
    let args = [start, len, libc::MS_ASYNC as usize, 0, 0, 0];
    // SAFETY: the call does nothing but look for holes.
    unsafe { syscall(libc::SYS_msync, args) }.is_ok()
}

/// The runs of a range that are mapped; whole pages, in order.
#[must_use]
pub fn mapped_runs(range: AddrRange) -> Vec<AddrRange> {
    let mut runs = Vec::new();
    find_mapped(range, &mut runs);
    runs
}

fn find_mapped(range: AddrRange, runs: &mut Vec<AddrRange>) {
    if range.is_empty() {
    } else if is_mapped(range) {
        match runs.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => runs.push(range),
        }
    } else if range.len() > Bytes(BASE_PAGE) {
        let half = Bytes(range.len().to_pages().0 / 2 * BASE_PAGE);
        let (first, second) = range.split_at(range.start + half);
        find_mapped(first, runs);
        find_mapped(second, runs);
    }
}

/// The part of a range that lies before its first hole.
#[must_use]
pub fn mapped_start(range: AddrRange) -> AddrRange {
    let first = mapped_runs(range).into_iter().next();
    first
        .filter(|run| run.start == range.start)
        .unwrap_or(AddrRange::new(range.start, Bytes::ZERO))
}

/// How many pages of an extent the object behind it holds. Where the kernel may
/// not tell, it says all.
///
/// # Errors
/// As `mincore`.
pub fn cached_pages(slot: Slot) -> Result<PageCount> {
    let mut held = [0u8; PAGES_PER_SUPERPAGE];
    let (start, len) = (slot.start().0 as usize, SUPERPAGE as usize);
    let args = [start, len, held.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel writes one byte for each page of the range, and the
    // array has as many.
    unsafe { syscall(libc::SYS_mincore, args)? };
    Ok(PageCount(
        held.iter().filter(|b| **b & 1 == 1).count() as u64
    ))
}

/// The runs of pages of a range that the kernel has in memory, mapped or not.
///
/// # Errors
/// As `mincore`.
pub fn resident_runs(range: AddrRange) -> Result<Vec<AddrRange>> {
    let mut held = vec![0u8; range.len().to_pages().0 as usize];
    let (start, len) = (range.start.0 as usize, range.len().0 as usize);
    let args = [start, len, held.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel writes one byte for each page of the range, and there are as many.
    unsafe { syscall(libc::SYS_mincore, args)? };
    let at = |page: usize| range.start + Bytes(page as u64 * BASE_PAGE);
    let mut first = 0;
    let mut runs = Vec::new();
    for run in held.chunk_by(|a, b| a & 1 == b & 1) {
        let next = first + run.len();
        if run[0] & 1 == 1 {
            runs.push(AddrRange {
                start: at(first),
                end: at(next),
            });
        }
        first = next;
    }
    Ok(runs)
}

/// Whether the process may have `count` more mappings, found out by making
/// them.
#[must_use]
pub fn has_room_for_mappings(count: u64) -> bool {
    let page = Bytes(BASE_PAGE);
    let len = Bytes(2 * count * BASE_PAGE);
    // SAFETY: a new mapping at an address that the kernel chooses, and which
    // nobody else knows; it is split by protecting every second page.
    unsafe {
        let flags = libc::MAP_NORESERVE;
        let Ok(start) = map_anonymous(VirtAddr(0), len, libc::PROT_NONE, flags) else {
            return false;
        };
        let odd = |n: u64| AddrRange::new(start + Bytes((2 * n + 1) * BASE_PAGE), page);
        let split = (0..count).all(|n| protect(odd(n), libc::PROT_READ).is_ok());
        unmap(AddrRange::new(start, len)).is_ok() && split
    }
}

/// Finds free address space of `len` bytes whose start is congruent to
/// `congruent` modulo the superpage size, and holds it with an inaccessible
/// mapping that the caller maps over.
///
/// # Errors
/// As `mmap`.
pub fn reserve_space(len: Bytes, congruent: u64) -> Result<VirtAddr> {
    reserve_space_modulo(len, congruent, Bytes(SUPERPAGE))
}

/// The same, modulo `modulus`.
///
/// # Errors
/// As `mmap`.
pub fn reserve_space_modulo(len: Bytes, congruent: u64, modulus: Bytes) -> Result<VirtAddr> {
    let whole = Bytes(len.0 + modulus.0);
    let flags = libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED the kernel gives address space that nobody uses.
    let got = unsafe { map_anonymous(VirtAddr(0), whole, libc::PROT_NONE, flags)? };
    let lead = congruent.wrapping_sub(got.0) % modulus.0;
    let start = got + Bytes(lead);
    let before = AddrRange {
        start: got,
        end: start,
    };
    let after = AddrRange {
        start: start + len,
        end: got + whole,
    };
    for spare in [before, after] {
        if !spare.is_empty() {
            // SAFETY: part of the mapping just made, which nobody knows.
            unsafe { unmap(spare)? };
        }
    }
    Ok(start)
}

/// An address at which the kernel would map `len` bytes now, and whose start is congruent to `congruent` modulo the
/// superpage size. Nothing holds it: another thread may map there first, so it is for a mapping that may go elsewhere.
///
/// # Errors
/// As `mmap`.
pub fn likely_space(len: Bytes, congruent: u64) -> Result<VirtAddr> {
    let len = len.to_pages().to_bytes();
    let at = reserve_space(len, congruent)?;
    // SAFETY: the address space was reserved here, and nothing came there.
    unsafe { unmap(AddrRange::new(at, len))? };
    Ok(at)
}

/// Whether a request to `mmap` is for memory that is shared, that is large enough for a superpage, and whose address is
/// left open.
#[must_use]
pub const fn is_shared_anywhere(at: VirtAddr, len: Bytes, flags: i32) -> bool {
    const UNDERSTOOD: i32 = libc::MAP_SHARED
        | libc::MAP_SHARED_VALIDATE
        | libc::MAP_ANONYMOUS
        | libc::MAP_NORESERVE
        | libc::MAP_POPULATE;
    let kind = flags & libc::MAP_TYPE;
    at.0 == 0
        && len.0 >= SUPERPAGE
        && flags & !UNDERSTOOD == 0
        && (kind == libc::MAP_SHARED || kind == libc::MAP_SHARED_VALIDATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_zeros_is_known() {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, whose last byte is written to.
        let at = unsafe { map_anonymous(VirtAddr(0), Bytes(BASE_PAGE), prot, 0).unwrap() };
        assert!(is_zero_page(at));
        // SAFETY: as above.
        unsafe { at.as_ptr().add(BASE_PAGE as usize - 1).write(1) };
        assert!(!is_zero_page(at));
        // SAFETY: nobody uses the mapping any more.
        unsafe { unmap(AddrRange::new(at, Bytes(BASE_PAGE))).unwrap() };
        assert!(!is_zero_page(at));
    }

    #[test]
    fn text_is_read_where_there_is_some() {
        let page = Bytes(BASE_PAGE);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new mappings, of which the second page becomes unreadable.
        let at = unsafe {
            let at = map_anonymous(VirtAddr(0), Bytes(2 * BASE_PAGE), prot, 0).unwrap();
            protect(AddrRange::new(at + page, page), libc::PROT_NONE).unwrap();
            let text: *mut u8 = at.as_ptr().add(BASE_PAGE as usize - 5);
            text.copy_from_nonoverlapping(c"pool".as_ptr().cast(), 5);
            at
        };
        let text = |place: u64| text_at(VirtAddr(at.0 + place), &mut [0; 80]).map(str::to_owned);
        assert_eq!(text(BASE_PAGE - 5).as_deref(), Some("pool"));
        assert_eq!(text(BASE_PAGE - 1).as_deref(), Some(""));
        assert_eq!(text(BASE_PAGE), None);
        assert_eq!(text_at(VirtAddr(0), &mut [0; 80]), None);
        // SAFETY: nobody uses the mapping any more.
        unsafe {
            at.as_ptr().write_bytes(b'x', BASE_PAGE as usize);
            assert_eq!(text_at(at, &mut [0; 80]), None);
            unmap(AddrRange::new(at, Bytes(2 * BASE_PAGE))).unwrap();
        }
    }
}
