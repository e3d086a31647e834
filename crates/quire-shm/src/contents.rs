//! `read`, `write` and their kin of an object's descriptor, `sendfile` and `copy_file_range`.
//!
//! The file of such a descriptor can be neither read nor written: the kernel says so, and only then it is
//! looked whether the descriptor stands for an object. So other files cost nothing. What an object holds is
//! copied by the library's thread, which has all of it mapped, in pieces: memory that cannot be had is an
//! error there, and no signal. The file's position is the kernel's, as for any file.

use std::ffi::c_int;
use std::slice;

use quire_core::units::VirtAddr;
use quire_dsm::node;
use quire_linux::{memory, touch};
use rustix::fd::BorrowedFd;

use crate::ages::Entry;
use crate::direct::{self, MOST, PARTS, Start};
use crate::posix;
use crate::real::Real;
use crate::state;
use crate::trouble::{Result, Trouble, set_errno};

type SendFile = unsafe extern "C-unwind" fn(c_int, c_int, *mut libc::off_t, usize) -> isize;
type CopyFileRange = unsafe extern "C-unwind" fn(
    c_int,
    *mut libc::off_t,
    c_int,
    *mut libc::off_t,
    usize,
    libc::c_uint,
) -> isize;

// SAFETY: the types of the C library's functions, here and below.
static SEND_FILE: Real<SendFile> = unsafe { Real::new(c"sendfile") };
// SAFETY: as above.
static COPY_FILE_RANGE: Real<CopyFileRange> = unsafe { Real::new(c"copy_file_range") };

/// Looks up the functions behind these.
pub fn start() {
    let (_, _) = (SEND_FILE.get(), COPY_FILE_RANGE.get());
}

/// So much is copied at once.
const PIECE: usize = 1 << 20;

/// What a descriptor stands for.
#[derive(Clone, Copy)]
struct Found {
    descriptor: c_int,
    entry: Entry,
    writable: bool,
    is_pending: bool,
    size: u64,
}

/// Nothing where it stands for no object.
fn find(descriptor: c_int) -> Option<Result<Found>> {
    let found = state::locked(|state| posix::caught_up(state, descriptor)).flatten()?;
    Some(found.map(|(_, opened, size)| Found {
        descriptor,
        entry: opened.entry,
        writable: opened.writable,
        is_pending: opened.is_pending,
        size,
    }))
}

/// What a call that failed returns after all, if the kernel gave this reason and the descriptor is one of
/// an object.
fn instead(
    returned: isize,
    reason: c_int,
    descriptor: c_int,
    act: impl FnOnce(Found) -> Result<usize>,
) -> isize {
    // SAFETY: the C library gives the address of this thread's own variable.
    let is_it = returned == -1 && unsafe { *libc::__errno_location() } == reason;
    if !is_it || !posix::is_likely(descriptor) {
        if is_it {
            set_errno(reason);
        }
        return returned;
    }
    let Some(found) = find(descriptor) else {
        set_errno(reason);
        return returned;
    };
    state::answer(found.and_then(act).map(|done| done as isize), -1)
}

/// What `read` and its kin return, which the kernel answered so.
pub fn read_instead(
    returned: isize,
    descriptor: c_int,
    offset: Option<libc::off_t>,
    parts: &[libc::iovec],
) -> isize {
    instead(returned, libc::EBADF, descriptor, |found| {
        found.at(offset, parts, |at, length| found.read(at, length, parts))
    })
}

/// What `write` and its kin return.
pub fn write_instead(
    returned: isize,
    descriptor: c_int,
    offset: Option<libc::off_t>,
    parts: &[libc::iovec],
) -> isize {
    instead(returned, libc::EPERM, descriptor, |found| {
        found.at(offset, parts, |at, length| found.write(at, length, parts))
    })
}

/// The parts that a program names; none where the kernel has said what is wrong with them.
///
/// # Safety
/// The program says that there are so many.
pub unsafe fn parts<'a>(parts: *const libc::iovec, count: c_int) -> &'a [libc::iovec] {
    match parts.is_null() || count <= 0 || count > PARTS {
        true => &[],
        // SAFETY: there are so many, which nobody changes while the program's call takes.
        false => unsafe { slice::from_raw_parts(parts, count as usize) },
    }
}

impl Found {
    /// Does something where the program said, or at the file's position, which moves on by as much as was
    /// done.
    fn at(
        self,
        offset: Option<libc::off_t>,
        parts: &[libc::iovec],
        act: impl FnOnce(u64, usize) -> Result<usize>,
    ) -> Result<usize> {
        if offset.is_some_and(|at| at < 0) {
            return Err(Trouble::new(libc::EINVAL, "a negative offset"));
        }
        let sizes = parts.iter().map(|part| part.iov_len);
        let length = sizes.fold(0, usize::saturating_add).min(MOST);
        // SAFETY: the program has the descriptor for as long as its call takes.
        let file = unsafe { BorrowedFd::borrow_raw(self.descriptor) };
        let start = Start::new(offset, file, length);
        let done = match start {
            Start::Given(at) | Start::Claimed(at) => act(at, length),
            Start::Position => Err(Trouble::new(libc::EINVAL, "no position")),
        };
        start.end(file, *done.as_ref().unwrap_or(&0), length);
        done
    }

    fn read(self, at: u64, length: usize, parts: &[libc::iovec]) -> Result<usize> {
        let there = self.size.saturating_sub(at).min(length as u64) as usize;
        pieces(parts, there, |done, place, length| {
            let (entry, from) = (self.entry, at + done as u64);
            let read = state::locked(|state| {
                let (bytes, known) = state.run(move |works| works.read_at(entry, from, length))?;
                state.note(entry, known);
                Ok(bytes)
            });
            let bytes = read.unwrap_or_else(|| Err(busy()))?;
            // SAFETY: the program wants it there. To Rust that is memory which others write to at any time.
            let put = unsafe { direct::put(place, &bytes) };
            put.map_err(|errno| Trouble::new(errno.raw_os_error(), "where it is read to"))
        })
    }

    fn write(mut self, at: u64, length: usize, parts: &[libc::iovec]) -> Result<usize> {
        if !self.writable {
            return Err(Trouble::new(libc::EBADF, "opened to be read"));
        }
        if self.is_pending && length > 0 {
            self.size = at.saturating_add(length as u64);
            let size = libc::off_t::try_from(self.size).unwrap_or(libc::off_t::MAX);
            let resized = state::locked(|state| posix::resize(state, self.descriptor, size));
            resized.flatten().unwrap_or_else(|| Err(busy()))?;
        }
        let there = self.size.saturating_sub(at).min(length as u64) as usize;
        if there == 0 && length > 0 {
            let text = "written behind the end of an object, which keeps its size: give it one by \
                        ftruncate before it is written";
            let told = state::locked(|state| {
                state.run(move |_| Err::<(), Trouble>(Trouble::new(libc::EFBIG, text)))
            });
            told.unwrap_or_else(|| Err(busy()))?;
        }
        pieces(parts, there, |done, place, length| {
            let mut bytes = vec![0; length];
            take(place, &mut bytes)?;
            let (entry, to) = (self.entry, at + done as u64);
            let written = state::locked(|state| {
                let known = state.run(move |works| works.write_at(entry, to, &bytes))?;
                state.note(entry, known);
                Ok(())
            });
            written.unwrap_or_else(|| Err(busy()))
        })
    }
}

/// This thread works for whoever has the lock, or has it.
fn busy() -> Trouble {
    Trouble::new(libc::EBADF, "not for this library")
}

/// Does something with one piece of memory after the other, until so many bytes are done or something goes
/// wrong. How many were.
fn pieces(
    parts: &[libc::iovec],
    length: usize,
    mut act: impl FnMut(usize, VirtAddr, usize) -> Result<()>,
) -> Result<usize> {
    let mut done = 0;
    for part in parts {
        let mut at = direct::addresses(part).start;
        let mut left = part.iov_len.min(length - done);
        while left > 0 {
            let piece = left.min(PIECE);
            match act(done, VirtAddr(at), piece) {
                Err(trouble) if done == 0 => return Err(trouble),
                Err(_) => return Ok(done),
                Ok(()) => (done, left, at) = (done + piece, left - piece, at + piece as u64),
            }
        }
    }
    Ok(done)
}

/// Takes what the program's memory holds.
fn take(from: VirtAddr, into: &mut [u8]) -> Result<()> {
    if node::system_calls_fail() {
        // SAFETY: the program says that it is there; to Rust that is memory which others write to.
        unsafe { touch::copy(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        return Ok(());
    }
    let read = memory::read_checked(from, into);
    read.map_err(|_| Trouble::new(libc::EFAULT, "where it is written from"))
}

/// One end of a copy: a descriptor, and where in its file; at its position where that is null.
#[derive(Clone, Copy)]
struct End {
    descriptor: c_int,
    offset: *mut libc::off_t,
}

impl End {
    fn is_of_object(self) -> bool {
        posix::is_likely(self.descriptor)
    }

    /// The offset that the program gave.
    fn given(self) -> Option<libc::off_t> {
        // SAFETY: the program gives the address of an offset, or null.
        (!self.offset.is_null()).then(|| unsafe { *self.offset })
    }

    /// Reads what is next, and stays there.
    fn peek(self, into: &mut [u8]) -> isize {
        // SAFETY: the calls have no conditions but their arguments' types, and there is as much room.
        unsafe {
            let at = match self.given() {
                Some(at) => at,
                None => libc::lseek(self.descriptor, 0, libc::SEEK_CUR),
            };
            match at < 0 {
                true => -1,
                false => libc::pread(self.descriptor, into.as_mut_ptr().cast(), into.len(), at),
            }
        }
    }

    /// Writes, and moves on.
    fn put(self, bytes: &[u8]) -> isize {
        let (from, length) = (bytes.as_ptr().cast(), bytes.len());
        match self.given() {
            // SAFETY: as above.
            None => unsafe { libc::write(self.descriptor, from, length) },
            Some(at) => {
                // SAFETY: as above.
                let written = unsafe { libc::pwrite(self.descriptor, from, length, at) };
                if written > 0 {
                    self.moves(written);
                }
                written
            }
        }
    }

    /// Moves on by what was done.
    fn moves(self, by: isize) {
        // SAFETY: the program gives the address of an offset, or null.
        unsafe {
            match self.offset.is_null() {
                true => drop(libc::lseek(
                    self.descriptor,
                    by as libc::off_t,
                    libc::SEEK_CUR,
                )),
                false => *self.offset += by as libc::off_t,
            }
        }
    }
}

/// Copies between files of which one is an object's.
fn copy(from: End, to: End, length: usize) -> isize {
    let mut buffer = vec![0; length.min(PIECE)];
    let mut done = 0;
    while done < length {
        let room = buffer.len().min(length - done);
        let read = from.peek(&mut buffer[..room]);
        if read <= 0 {
            return if done == 0 { read } else { done as isize };
        }
        let written = to.put(&buffer[..read as usize]);
        if written <= 0 {
            return if done == 0 { written } else { done as isize };
        }
        from.moves(written);
        done += written as usize;
        if written < read {
            break;
        }
    }
    done as isize
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut libc::off_t,
    length: usize,
) -> isize {
    let source = End {
        descriptor: from,
        offset,
    };
    let target = End {
        descriptor: to,
        offset: std::ptr::null_mut(),
    };
    if source.is_of_object() || target.is_of_object() {
        return copy(source, target, length.min(MOST));
    }
    match SEND_FILE.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(to, from, offset, length) },
        None => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut libc::off_t,
    length: usize,
) -> isize {
    // SAFETY: the same function by another name: files may be large in both.
    unsafe { sendfile(to, from, offset, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn copy_file_range(
    from: c_int,
    from_offset: *mut libc::off_t,
    to: c_int,
    to_offset: *mut libc::off_t,
    length: usize,
    flags: libc::c_uint,
) -> isize {
    let source = End {
        descriptor: from,
        offset: from_offset,
    };
    let target = End {
        descriptor: to,
        offset: to_offset,
    };
    if flags == 0 && (source.is_of_object() || target.is_of_object()) {
        return copy(source, target, length.min(MOST));
    }
    match COPY_FILE_RANGE.known() {
        // SAFETY: passed on as it came.
        Some(real) => unsafe { real(from, from_offset, to, to_offset, length, flags) },
        None => -1,
    }
}
