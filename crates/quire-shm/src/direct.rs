//! `read` and its kin of a descriptor that has `O_DIRECT`, into memory of an object.
//!
//! There the kernel takes hold of the pages first, and the device writes to them later. A page that
//! another program is given in between has left by then, and what was read would be lost. So it is
//! read to a buffer, and copied from there as the program itself would write it: a page that is not
//! here any more is asked for.
//!
//! Nearly all calls are for other memory, or for other descriptors. Programs read in signal handlers
//! and in allocators, too: so the first is told by looking at addresses, without a lock, the other by
//! one system call, and nothing here allocates by the program's functions.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::slice;

use quire_core::units::{BASE_PAGE, VirtAddr};
use quire_dsm::node;
use quire_linux::{memory, touch};
use rustix::fd::BorrowedFd;
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::contents;
use crate::handed;
use crate::impatient;
use crate::real::Real;
use crate::state;
use crate::taken;
use crate::trouble::set_errno;

// Threads are cancelled in these calls, which unwinds them.
type Read = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize) -> isize;
type Pread = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize, libc::off_t) -> isize;
type Readv = unsafe extern "C-unwind" fn(c_int, *const libc::iovec, c_int) -> isize;
type Preadv = unsafe extern "C-unwind" fn(c_int, *const libc::iovec, c_int, libc::off_t) -> isize;
pub type PreadvTwo =
    unsafe extern "C-unwind" fn(c_int, *const libc::iovec, c_int, libc::off_t, c_int) -> isize;
type ReadChecked = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize, usize) -> isize;
type PreadChecked =
    unsafe extern "C-unwind" fn(c_int, *mut c_void, usize, libc::off_t, usize) -> isize;

// SAFETY: the types of the C library's functions, here and below.
static READ: Real<Read> = unsafe { Real::new(c"read") };
// SAFETY: as above.
static PREAD: Real<Pread> = unsafe { Real::new(c"pread") };
// SAFETY: as above.
static READV: Real<Readv> = unsafe { Real::new(c"readv") };
// SAFETY: as above.
static PREADV: Real<Preadv> = unsafe { Real::new(c"preadv") };
// SAFETY: as above.
pub static PREADV_TWO: Real<PreadvTwo> = unsafe { Real::new(c"preadv2") };
// SAFETY: as above.
static READ_CHECKED: Real<ReadChecked> = unsafe { Real::new(c"__read_chk") };
// SAFETY: as above.
static PREAD_CHECKED: Real<PreadChecked> = unsafe { Real::new(c"__pread_chk") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _) = (READ.get(), PREAD.get(), READV.get());
    let (_, _) = (PREADV.get(), PREADV_TWO.get());
    let (_, _) = (READ_CHECKED.get(), PREAD_CHECKED.get());
}

/// So much is read at once.
const PIECE: usize = 1 << 20;
/// The kernel reads no more in one call.
pub const MOST: usize = 0x7fff_f000;
/// Nor to more parts of memory.
pub const PARTS: c_int = 1024;

/// What is to be read, and how.
#[derive(Clone, Copy)]
struct Call {
    descriptor: c_int,
    /// From where; nothing where the file's position says that, and moves on.
    offset: Option<libc::off_t>,
    /// As `preadv2` takes them.
    flags: c_int,
}

impl Call {
    /// Reads, if that needs a buffer.
    fn done(self, parts: &[libc::iovec]) -> Option<isize> {
        match parts.iter().any(may_be_of_object) {
            true => self.looked_into(parts),
            false => None,
        }
    }

    #[cold]
    fn looked_into(self, parts: &[libc::iovec]) -> Option<isize> {
        if !parts.iter().any(is_of_object) {
            return None;
        }
        if !is_direct(self.descriptor) {
            return match node::system_calls_fail() {
                true => Some(impatient::read(
                    self.descriptor,
                    self.offset,
                    self.flags,
                    parts,
                )),
                false => None,
            };
        }
        let sizes = parts.iter().map(|part| part.iov_len);
        let sum = sizes.fold(0usize, usize::saturating_add);
        // The kernel says what is wrong with it.
        if sum == 0 || sum > isize::MAX.unsigned_abs() || self.offset.is_some_and(|at| at < 0) {
            return None;
        }
        Some(match self.by_buffer(parts, sum.min(MOST)) {
            Ok(read) => read as isize,
            Err(errno) => {
                set_errno(errno.raw_os_error());
                -1
            }
        })
    }

    fn by_buffer(self, parts: &[libc::iovec], length: usize) -> Result<usize, Errno> {
        let largest = parts.iter().map(|part| part.iov_len).max().unwrap_or(0);
        let mut buffer = Buffer::new(largest.min(length).min(PIECE))?;
        // SAFETY: the program has the descriptor for as long as its call takes.
        let file = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
        let flags = ReadWriteFlags::from_bits_retain(self.flags.cast_unsigned());
        let start = Start::new(self.offset, file, length);
        let source = Source { file, start, flags };
        let read = read_parts(parts, length, &mut buffer, source);
        start.end(file, read.unwrap_or(0), length);
        read
    }
}

/// Where reading begins.
#[derive(Clone, Copy)]
pub enum Start {
    /// As the program said.
    Given(u64),
    /// At the file's position, which was moved on by all that may be read: nobody else who reads at
    /// the same time gets any of it.
    Claimed(u64),
    /// At the file's position, which cannot be moved so far, or where there is none.
    Position,
}

impl Start {
    pub fn new(offset: Option<libc::off_t>, file: BorrowedFd<'_>, length: usize) -> Start {
        if let Some(at) = offset {
            return Start::Given(at.unsigned_abs());
        }
        let end = rustix::fs::seek(file, SeekFrom::Current(length as i64));
        let start = end.ok().and_then(|end| end.checked_sub(length as u64));
        start.map_or(Start::Position, Start::Claimed)
    }

    /// So much was read of what might have been.
    pub fn end(self, file: BorrowedFd<'_>, read: usize, length: usize) {
        if let Start::Claimed(_) = self
            && read < length
        {
            // It has been further on.
            let _ = rustix::fs::seek(file, SeekFrom::Current(read as i64 - length as i64));
        }
    }
}

/// What is read from.
#[derive(Clone, Copy)]
struct Source<'a> {
    file: BorrowedFd<'a>,
    start: Start,
    flags: ReadWriteFlags,
}

impl Source<'_> {
    /// Reads what comes after so many bytes.
    fn read(self, behind: usize, into: &mut [u8]) -> Result<usize, Errno> {
        let at = match self.start {
            Start::Given(start) | Start::Claimed(start) => Some(start + behind as u64),
            Start::Position => None,
        };
        match at {
            _ if !self.flags.is_empty() => {
                // This is how the file's position is meant.
                let at = at.unwrap_or(u64::MAX);
                rustix::io::preadv2(self.file, &mut [IoSliceMut::new(into)], at, self.flags)
            }
            Some(at) => rustix::io::pread(self.file, into, at),
            None => rustix::io::read(self.file, into),
        }
    }
}

/// Reads to parts of memory, one after the other, until there is no more.
fn read_parts(
    parts: &[libc::iovec],
    length: usize,
    buffer: &mut Buffer,
    source: Source<'_>,
) -> Result<usize, Errno> {
    let mut done = 0;
    for part in parts {
        let mut at = addresses(part).start;
        let mut left = part.iov_len.min(length - done);
        while left > 0 {
            let room = buffer.like(at, left.min(PIECE));
            let wanted = room.len();
            let read = source.read(done, room).and_then(|read| {
                // SAFETY: the program wants it there. To Rust that is memory which others write to at
                // any time.
                unsafe { put(VirtAddr(at), &room[..read]) }.map(|()| read)
            });
            match read {
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => return Ok(done),
                Ok(read) => {
                    (done, left, at) = (done + read, left - read, at + read as u64);
                    if read < wanted {
                        return Ok(done);
                    }
                }
            }
        }
    }
    Ok(done)
}

/// Puts what was read where the program wants it.
///
/// # Safety
/// It may be written there.
pub unsafe fn put(to: VirtAddr, read: &[u8]) -> Result<(), Errno> {
    if node::system_calls_fail() {
        // SAFETY: the caller vouches for it.
        unsafe { touch::copy(read.as_ptr(), to.as_ptr(), read.len()) };
        return Ok(());
    }
    // SAFETY: as before.
    unsafe { memory::write_checked(to, read) }.map_err(|_| Errno::FAULT)
}

/// Memory to read to.
struct Buffer {
    start: *mut c_void,
    length: usize,
}

impl Buffer {
    fn new(length: usize) -> Result<Buffer, Errno> {
        let length = length.next_multiple_of(BASE_PAGE as usize) + BASE_PAGE as usize;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a new mapping, where nothing is.
        let start =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, prot, flags)? };
        Ok(Buffer { start, length })
    }

    /// Room that lies in its page as an address does in its own: devices want that to be even, each as
    /// it likes, and the kernel says what it would have said.
    fn like(&mut self, at: u64, length: usize) -> &mut [u8] {
        // SAFETY: the mapping is this value's own, and holds zeros or what was read.
        let all = unsafe { slice::from_raw_parts_mut(self.start.cast::<u8>(), self.length) };
        &mut all[(at % BASE_PAGE) as usize..][..length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: nobody else knows of it.
        let _ = unsafe { rustix::mm::munmap(self.start, self.length) };
    }
}

/// One part of memory.
pub const fn part(start: *mut c_void, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: start,
        iov_len: length,
    }
}

pub fn addresses(part: &libc::iovec) -> Range<u64> {
    let start = part.iov_base as u64;
    start..start.saturating_add(part.iov_len as u64)
}

#[inline]
pub fn may_be_of_object(part: &libc::iovec) -> bool {
    let range = addresses(part);
    taken::may_have_any(&range) || handed::has_any(&range)
}

pub fn is_of_object(part: &libc::iovec) -> bool {
    let range = addresses(part);
    state::concerns(&range) || handed::has_any(&range)
}

/// Whether what is read by a descriptor goes by no cache of the kernel. Changes no `errno`.
fn is_direct(descriptor: c_int) -> bool {
    if descriptor < 0 {
        return false;
    }
    // SAFETY: the program has it for as long as its call takes.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
}

/// Reads to one part of memory, if that needs a buffer.
#[inline]
fn to_one(
    descriptor: c_int,
    to: *mut c_void,
    length: usize,
    offset: Option<libc::off_t>,
) -> Option<isize> {
    let call = Call {
        descriptor,
        offset,
        flags: 0,
    };
    call.done(&[part(to, length)])
}

/// Reads to several parts, if that needs a buffer.
///
/// # Safety
/// The program says that there are so many.
unsafe fn to_several(parts: *const libc::iovec, count: c_int, call: Call) -> Option<isize> {
    if parts.is_null() || count <= 0 || count > PARTS {
        return None;
    }
    // SAFETY: there are so many, which nobody changes while the program's call takes.
    call.done(unsafe { slice::from_raw_parts(parts, count as usize) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn read(descriptor: c_int, to: *mut c_void, length: usize) -> isize {
    let read = match (to_one(descriptor, to, length, None), READ.known()) {
        (Some(read), _) => read,
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(descriptor, to, length) },
        (None, None) => -1,
    };
    contents::read_instead(read, descriptor, None, &[part(to, length)])
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pread(
    descriptor: c_int,
    to: *mut c_void,
    length: usize,
    offset: libc::off_t,
) -> isize {
    let read = match (to_one(descriptor, to, length, Some(offset)), PREAD.known()) {
        (Some(read), _) => read,
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(descriptor, to, length, offset) },
        (None, None) => -1,
    };
    contents::read_instead(read, descriptor, Some(offset), &[part(to, length)])
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pread64(
    descriptor: c_int,
    to: *mut c_void,
    length: usize,
    offset: libc::off_t,
) -> isize {
    // SAFETY: the same function by another name: files may be large in both.
    unsafe { pread(descriptor, to, length, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readv(
    descriptor: c_int,
    parts: *const libc::iovec,
    count: c_int,
) -> isize {
    let call = Call {
        descriptor,
        offset: None,
        flags: 0,
    };
    // SAFETY: the program says how many there are.
    let read = unsafe { to_several(parts, count, call) };
    let read = match (read, READV.known()) {
        (Some(read), _) => read,
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(descriptor, parts, count) },
        (None, None) => -1,
    };
    // SAFETY: the program says how many there are.
    contents::read_instead(read, descriptor, None, unsafe {
        contents::parts(parts, count)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv(
    descriptor: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
) -> isize {
    let call = Call {
        descriptor,
        offset: Some(offset),
        flags: 0,
    };
    // SAFETY: the program says how many there are.
    let read = unsafe { to_several(parts, count, call) };
    let read = match (read, PREADV.known()) {
        (Some(read), _) => read,
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(descriptor, parts, count, offset) },
        (None, None) => -1,
    };
    // SAFETY: the program says how many there are.
    contents::read_instead(read, descriptor, Some(offset), unsafe {
        contents::parts(parts, count)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv64(
    descriptor: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
) -> isize {
    // SAFETY: the same function by another name.
    unsafe { preadv(descriptor, parts, count, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv2(
    descriptor: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
    flags: c_int,
) -> isize {
    let call = Call {
        descriptor,
        // This is how the file's position is meant here.
        offset: Some(offset).filter(|&offset| offset != -1),
        flags,
    };
    // SAFETY: the program says how many there are.
    let read = unsafe { to_several(parts, count, call) };
    let read = match (read, PREADV_TWO.known()) {
        (Some(read), _) => read,
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(descriptor, parts, count, offset, flags) },
        (None, None) => -1,
    };
    // SAFETY: the program says how many there are.
    contents::read_instead(read, descriptor, call.offset, unsafe {
        contents::parts(parts, count)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv64v2(
    descriptor: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
    flags: c_int,
) -> isize {
    // SAFETY: the same function by another name.
    unsafe { preadv2(descriptor, parts, count, offset, flags) }
}

/// What `read` becomes where the compiler adds checks (`_FORTIFY_SOURCE`). The C library ends the
/// program where there is less room.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    descriptor: c_int,
    to: *mut c_void,
    length: usize,
    room: usize,
) -> isize {
    let read = match length <= room {
        true => to_one(descriptor, to, length, None),
        false => None,
    };
    let read = match (read, READ_CHECKED.known()) {
        (Some(read), _) => read,
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(descriptor, to, length, room) },
        (None, None) => -1,
    };
    contents::read_instead(read, descriptor, None, &[part(to, length)])
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __pread_chk(
    descriptor: c_int,
    to: *mut c_void,
    length: usize,
    offset: libc::off_t,
    room: usize,
) -> isize {
    let read = match length <= room {
        true => to_one(descriptor, to, length, Some(offset)),
        false => None,
    };
    let read = match (read, PREAD_CHECKED.known()) {
        (Some(read), _) => read,
        // SAFETY: passed on as it came.
        (None, Some(real)) => unsafe { real(descriptor, to, length, offset, room) },
        (None, None) => -1,
    };
    contents::read_instead(read, descriptor, Some(offset), &[part(to, length)])
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __pread64_chk(
    descriptor: c_int,
    to: *mut c_void,
    length: usize,
    offset: libc::off_t,
    room: usize,
) -> isize {
    // SAFETY: the same function by another name.
    unsafe { __pread_chk(descriptor, to, length, offset, room) }
}
