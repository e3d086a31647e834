//! Reads and writes of programs that have no right to have the kernel's own touches answered
//! (`CAP_SYS_PTRACE`, `vm.unprivileged_userfaultfd=1`, or access to `/dev/userfaultfd`): a system call
//! that touches what is not here yet gets `EFAULT` there, or has done less than it was to do. So they go
//! by a buffer, from which or to which the program's memory is copied as the program itself would.
//!
//! For all other programs a call costs one look more. What is not here (`recvmsg`, `ioctl` and others)
//! gets `EFAULT` still, and `quire run` says so.

use std::ffi::{c_int, c_void};
use std::{ptr, slice};

use quire_dsm::node;
use quire_linux::touch;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::contents;
use crate::direct::{MOST, PARTS, PREADV_TWO, is_of_object, may_be_of_object};
use crate::real::Real;
use crate::trouble::set_errno;

// Threads are cancelled in these calls, which unwinds them: what is not to be lost then is not dropped.
type Write = unsafe extern "C-unwind" fn(c_int, *const c_void, usize) -> isize;
type Pwrite = unsafe extern "C-unwind" fn(c_int, *const c_void, usize, libc::off_t) -> isize;
type Writev = unsafe extern "C-unwind" fn(c_int, *const libc::iovec, c_int) -> isize;
type Pwritev = unsafe extern "C-unwind" fn(c_int, *const libc::iovec, c_int, libc::off_t) -> isize;
type PwritevTwo =
    unsafe extern "C-unwind" fn(c_int, *const libc::iovec, c_int, libc::off_t, c_int) -> isize;
type Send = unsafe extern "C-unwind" fn(c_int, *const c_void, usize, c_int) -> isize;
type SendTo = unsafe extern "C-unwind" fn(
    c_int,
    *const c_void,
    usize,
    c_int,
    *const libc::sockaddr,
    libc::socklen_t,
) -> isize;
type Receive = unsafe extern "C-unwind" fn(c_int, *mut c_void, usize, c_int) -> isize;
type ReceiveFrom = unsafe extern "C-unwind" fn(
    c_int,
    *mut c_void,
    usize,
    c_int,
    *mut libc::sockaddr,
    *mut libc::socklen_t,
) -> isize;

// SAFETY: the types of the C library's functions, here and below.
static WRITE: Real<Write> = unsafe { Real::new(c"write") };
// SAFETY: as above.
static PWRITE: Real<Pwrite> = unsafe { Real::new(c"pwrite") };
// SAFETY: as above.
static WRITEV: Real<Writev> = unsafe { Real::new(c"writev") };
// SAFETY: as above.
static PWRITEV: Real<Pwritev> = unsafe { Real::new(c"pwritev") };
// SAFETY: as above.
static PWRITEV_TWO: Real<PwritevTwo> = unsafe { Real::new(c"pwritev2") };
// SAFETY: as above.
static SEND: Real<Send> = unsafe { Real::new(c"send") };
// SAFETY: as above.
static SEND_TO: Real<SendTo> = unsafe { Real::new(c"sendto") };
// SAFETY: as above.
static RECEIVE: Real<Receive> = unsafe { Real::new(c"recv") };
// SAFETY: as above.
static RECEIVE_FROM: Real<ReceiveFrom> = unsafe { Real::new(c"recvfrom") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _, _) = (WRITE.get(), PWRITE.get(), WRITEV.get());
    let (_, _) = (PWRITEV.get(), PWRITEV_TWO.get());
    let (_, _) = (SEND.get(), SEND_TO.get());
    let (_, _) = (RECEIVE.get(), RECEIVE_FROM.get());
}

/// More than that goes in several calls, as it may: the first of them is done.
const LARGEST: usize = 64 << 20;

/// A buffer that is in no object.
struct Buffer {
    start: *mut c_void,
    length: usize,
}

impl Buffer {
    /// For all parts, as far as one call goes.
    fn new(parts: &[libc::iovec]) -> Result<Buffer, Errno> {
        let sizes = parts.iter().map(|part| part.iov_len);
        let length = sizes.fold(0, usize::saturating_add).min(LARGEST).min(MOST);
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, where nothing is.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), length, prot, flags)? };
        Ok(Buffer { start, length })
    }

    /// Each piece of the buffer, and where it belongs; no more than so many bytes.
    fn pieces(
        &self,
        parts: &[libc::iovec],
        length: usize,
    ) -> impl Iterator<Item = (*mut u8, *mut u8, usize)> {
        let (start, mut left) = (self.start.cast::<u8>(), length.min(self.length));
        let mut at = 0;
        parts.iter().map(move |part| {
            let size = part.iov_len.min(left);
            let piece = (start.wrapping_add(at), part.iov_base.cast::<u8>(), size);
            (at, left) = (at + size, left - size);
            piece
        })
    }

    /// Takes what the program's memory holds.
    ///
    /// # Safety
    /// The program may read there.
    unsafe fn gather(&self, parts: &[libc::iovec]) {
        for (to, from, size) in self.pieces(parts, self.length) {
            // SAFETY: the caller vouches for it; to Rust that is memory which others write to.
            unsafe { touch::copy(from, to, size) };
        }
    }

    /// Gives the program's memory so much of what is here.
    ///
    /// # Safety
    /// The program may write there.
    unsafe fn scatter(&self, parts: &[libc::iovec], length: usize) {
        for (from, to, size) in self.pieces(parts, length) {
            // SAFETY: as above.
            unsafe { touch::copy(from, to, size) };
        }
    }

    /// Not when it is dropped: a thread that is cancelled leaves it there.
    fn end(self) {
        // SAFETY: nobody else knows of it.
        let _ = unsafe { rustix::mm::munmap(self.start, self.length) };
    }
}

/// Whether a call needs a buffer.
#[inline]
fn is_needed(parts: &[libc::iovec]) -> bool {
    node::system_calls_fail() && parts.iter().any(may_be_of_object) && looks_needed(parts)
}

#[cold]
fn looks_needed(parts: &[libc::iovec]) -> bool {
    parts.iter().any(|part| part.iov_len > 0) && parts.iter().any(is_of_object)
}

fn failed(errno: Errno) -> isize {
    set_errno(errno.raw_os_error());
    -1
}

/// Writes from a buffer what parts of memory hold.
fn out(parts: &[libc::iovec], write: impl FnOnce(*const c_void, usize) -> isize) -> isize {
    let buffer = match Buffer::new(parts) {
        Ok(buffer) => buffer,
        Err(errno) => return failed(errno),
    };
    // SAFETY: the program says that it is there.
    unsafe { buffer.gather(parts) };
    let written = write(buffer.start, buffer.length);
    buffer.end();
    written
}

/// Reads to a buffer, and from there to parts of memory.
fn into(parts: &[libc::iovec], read: impl FnOnce(*mut c_void, usize) -> isize) -> isize {
    let buffer = match Buffer::new(parts) {
        Ok(buffer) => buffer,
        Err(errno) => return failed(errno),
    };
    let read = read(buffer.start, buffer.length);
    // More than there is room for is what a datagram has (`MSG_TRUNC`).
    let length = usize::try_from(read).unwrap_or(0);
    // SAFETY: the program wants it there.
    unsafe { buffer.scatter(parts, length) };
    buffer.end();
    read
}

/// The same with one part, by a buffer where that is needed.
#[inline]
fn out_of(
    from: *const c_void,
    length: usize,
    write: impl FnOnce(*const c_void, usize) -> isize,
) -> isize {
    let one = [part(from, length)];
    match is_needed(&one) {
        true => out(&one, write),
        false => write(from, length),
    }
}

/// The same the other way.
#[inline]
fn into_one(
    to: *mut c_void,
    length: usize,
    read: impl FnOnce(*mut c_void, usize) -> isize,
) -> isize {
    let one = [part(to, length)];
    match is_needed(&one) {
        true => into(&one, read),
        false => read(to, length),
    }
}

/// Reads a file, or what else a descriptor is of.
pub fn read(
    descriptor: c_int,
    offset: Option<libc::off_t>,
    flags: c_int,
    parts: &[libc::iovec],
) -> isize {
    let Some(real) = PREADV_TWO.known() else {
        return failed(Errno::NOSYS);
    };
    into(parts, |start, length| {
        let part = libc::iovec {
            iov_base: start,
            iov_len: length,
        };
        // SAFETY: there is room for as much. Without a place it is read where the file's position is.
        unsafe { real(descriptor, &raw const part, 1, offset.unwrap_or(-1), flags) }
    })
}

const fn part(start: *const c_void, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: start.cast_mut(),
        iov_len: length,
    }
}

/// The parts that a program names, if they need a buffer.
///
/// # Safety
/// The program says that there are so many.
unsafe fn needed<'a>(parts: *const libc::iovec, count: c_int) -> Option<&'a [libc::iovec]> {
    if !node::system_calls_fail() || parts.is_null() || count <= 0 || count > PARTS {
        return None;
    }
    // SAFETY: there are so many, which nobody changes while the program's call takes.
    let parts = unsafe { slice::from_raw_parts(parts, count as usize) };
    is_needed(parts).then_some(parts)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn write(descriptor: c_int, from: *const c_void, length: usize) -> isize {
    let Some(real) = WRITE.known() else { return -1 };
    // SAFETY: it writes what the program's memory holds.
    let written = out_of(from, length, |from, length| unsafe {
        real(descriptor, from, length)
    });
    contents::write_instead(written, descriptor, None, &[part(from, length)])
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwrite(
    descriptor: c_int,
    from: *const c_void,
    length: usize,
    offset: libc::off_t,
) -> isize {
    let Some(real) = PWRITE.known() else {
        return -1;
    };
    // SAFETY: it writes what the program's memory holds.
    let written = out_of(from, length, |from, length| unsafe {
        real(descriptor, from, length, offset)
    });
    contents::write_instead(written, descriptor, Some(offset), &[part(from, length)])
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwrite64(
    descriptor: c_int,
    from: *const c_void,
    length: usize,
    offset: libc::off_t,
) -> isize {
    // SAFETY: the same function by another name: files may be large in both.
    unsafe { pwrite(descriptor, from, length, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn writev(
    descriptor: c_int,
    parts: *const libc::iovec,
    count: c_int,
) -> isize {
    let Some(real) = WRITEV.known() else {
        return -1;
    };
    // SAFETY: the program says how many there are.
    let written = match unsafe { needed(parts, count) } {
        Some(parts) => out(parts, |from, length| {
            let one = part(from, length);
            // SAFETY: it writes what the program's memory holds.
            unsafe { real(descriptor, &raw const one, 1) }
        }),
        // SAFETY: passed on as it came.
        None => unsafe { real(descriptor, parts, count) },
    };
    // SAFETY: the program says how many there are.
    contents::write_instead(written, descriptor, None, unsafe {
        contents::parts(parts, count)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev(
    descriptor: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
) -> isize {
    let Some(real) = PWRITEV.known() else {
        return -1;
    };
    // SAFETY: the program says how many there are.
    let written = match unsafe { needed(parts, count) } {
        Some(parts) => out(parts, |from, length| {
            let one = part(from, length);
            // SAFETY: it writes what the program's memory holds.
            unsafe { real(descriptor, &raw const one, 1, offset) }
        }),
        // SAFETY: passed on as it came.
        None => unsafe { real(descriptor, parts, count, offset) },
    };
    // SAFETY: the program says how many there are.
    contents::write_instead(written, descriptor, Some(offset), unsafe {
        contents::parts(parts, count)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev64(
    descriptor: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
) -> isize {
    // SAFETY: the same function by another name.
    unsafe { pwritev(descriptor, parts, count, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev2(
    descriptor: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
    flags: c_int,
) -> isize {
    let Some(real) = PWRITEV_TWO.known() else {
        return -1;
    };
    // SAFETY: the program says how many there are.
    let written = match unsafe { needed(parts, count) } {
        Some(parts) => out(parts, |from, length| {
            let one = part(from, length);
            // SAFETY: it writes what the program's memory holds.
            unsafe { real(descriptor, &raw const one, 1, offset, flags) }
        }),
        // SAFETY: passed on as it came.
        None => unsafe { real(descriptor, parts, count, offset, flags) },
    };
    // SAFETY: the program says how many there are.
    contents::write_instead(
        written,
        descriptor,
        Some(offset).filter(|&offset| offset != -1),
        unsafe { contents::parts(parts, count) },
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev64v2(
    descriptor: c_int,
    parts: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
    flags: c_int,
) -> isize {
    // SAFETY: the same function by another name.
    unsafe { pwritev2(descriptor, parts, count, offset, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(
    socket: c_int,
    from: *const c_void,
    length: usize,
    flags: c_int,
) -> isize {
    let Some(real) = SEND.known() else { return -1 };
    // SAFETY: it sends what the program's memory holds.
    out_of(from, length, |from, length| unsafe {
        real(socket, from, length, flags)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    socket: c_int,
    from: *const c_void,
    length: usize,
    flags: c_int,
    to: *const libc::sockaddr,
    size: libc::socklen_t,
) -> isize {
    let Some(real) = SEND_TO.known() else {
        return -1;
    };
    // SAFETY: it sends what the program's memory holds; the rest is passed on as it came.
    out_of(from, length, |from, length| unsafe {
        real(socket, from, length, flags, to, size)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(
    socket: c_int,
    to: *mut c_void,
    length: usize,
    flags: c_int,
) -> isize {
    let Some(real) = RECEIVE.known() else {
        return -1;
    };
    // SAFETY: there is room for as much.
    into_one(to, length, |to, length| unsafe {
        real(socket, to, length, flags)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvfrom(
    socket: c_int,
    to: *mut c_void,
    length: usize,
    flags: c_int,
    from: *mut libc::sockaddr,
    size: *mut libc::socklen_t,
) -> isize {
    let Some(real) = RECEIVE_FROM.known() else {
        return -1;
    };
    // SAFETY: there is room for as much; the rest is passed on as it came.
    into_one(to, length, |to, length| unsafe {
        real(socket, to, length, flags, from, size)
    })
}
