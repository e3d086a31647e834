//! `userfaultfd` for memory that several mappings share, in one process or in many: the
//! pages lie in one memory file, each mapping is registered with the userfaultfd of its
//! own process, and whoever holds those descriptors answers.
//!
//! What Linux 6.18 does there, settled by `tests/uffd_shared.rs`:
//!
//! - A page that enters the file through one mapping is open to all others, writable,
//!   without an event, if these are registered for missing pages and write protection
//!   alone. Markers ([`super::write_protect`] where there is no page) prevent it, but need
//!   a page table for all that is marked. Registered for present pages too (`MINOR`), a
//!   mapping shows no page of the file before [`show`] was called for it, whoever brought
//!   the page. So mappings are registered for all three here, and nothing is marked ahead.
//! - A hole punched into the file takes the page from all mappings at once. The next touch
//!   is an event for a missing page again. Write protection of the page stays behind as a
//!   marker; [`copy`] and [`show`] replace it by what they are asked for, [`poison`] does
//!   not.
//! - A file may get a folio at once ([`crate::huge_file`]); mappings are shown it page by page,
//!   and [`copy`] and [`zero`] bring base pages all the same. A hole in a part of a folio breaks it
//!   up, which takes all of it from all mappings: touches of the rest are events for present pages.
//! - Around pages that it has, such a file gets smaller folios ([`crate::huge_file::allocate`]).
//!   What was allocated and is then shown is zeros.
//! - Contents are read back whole by protecting the page in each mapping, reading the file
//!   and then punching: a write that comes later waits and finds the page missing.
//! - A system call that touches a missing page waits like a program, given [`Scope::Full`].
//! - A poisoned page raises `SIGBUS` in the mapping that was poisoned, and system calls get
//!   `EFAULT`; other mappings are not concerned and must be poisoned, too. [`copy`] and
//!   [`show`] take the place of the poison.
//! - A file cut to no size raises `SIGBUS` in all mappings, whatever they had; who waits
//!   for an answer sees that after [`super::wake`].
//! - A mapping whose userfaultfd is told of moves ([`open_to_be_moved`]) keeps it when it is
//!   moved, also over another mapping: who touches that finds the one or the other, never
//!   memory without events. Who moves it waits until the move is read ([`moves`]).
//! - Whether a read waits is the open file's, which all who have a descriptor of it share. A read
//!   that is told not to wait does not, whatever that says ([`never_waits`]).
//! - When the last descriptor of a userfaultfd is closed, all its faults are answered as if
//!   it had never been: with zeros. So the process that has the mapping keeps one open for
//!   as long as it has the mapping; then its faults wait although nobody answers them.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use quire_core::units::{AddrRange, Bytes, VirtAddr};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::{
    EVENT_PAGEFAULT, EVENT_REMAP, FEATURE_PAGEFAULT_FLAG_WP, FEATURE_THREAD_ID,
    FEATURE_WP_HUGETLBFS_SHMEM, IOCTL_COPY, IOCTL_REGISTER, IOCTL_ZEROPAGE, Message, MoveArg,
    PAGEFAULT_FLAG_WP, RegisterArg, Scope, ZeroPageArg, ioctl, ioctl_number, open_for, range_arg,
};
use crate::raw::{Errno, Result, syscall};

const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const FEATURE_EXACT_ADDRESS: u64 = 1 << 11;
const FEATURE_POISON: u64 = 1 << 14;
const PAGEFAULT_FLAG_WRITE: u64 = 1 << 0;
const PAGEFAULT_FLAG_MINOR: u64 = 1 << 2;
const FEATURES: u64 = FEATURE_PAGEFAULT_FLAG_WP
    | FEATURE_WP_HUGETLBFS_SHMEM
    | FEATURE_MISSING_SHMEM
    | FEATURE_MINOR_SHMEM
    | FEATURE_POISON
    | FEATURE_THREAD_ID
    | FEATURE_EXACT_ADDRESS;
/// Missing, write-protected and present pages.
const MODES: u64 = 1 | 2 | 4;
const DONT_WAKE: u64 = 1 << 0;
const PROTECTED: u64 = 1 << 1;
const IOCTL_CONTINUE: u32 = ioctl_number(3, 0x07, size_of::<ZeroPageArg>());
const IOCTL_POISON: u32 = ioctl_number(3, 0x08, size_of::<ZeroPageArg>());

/// Events that one [`read`] takes.
pub const BATCH: usize = 16;

/// What a mapping allows on pages that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allow {
    /// Reading; a write is an event.
    Read,
    /// Reading and writing.
    Write,
}

/// What becomes of those who wait for pages that a mapping gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiters {
    /// They touch again.
    Wake,
    /// They wait on, until [`super::wake`].
    Leave,
}

/// Why a touch became an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The file has no such page.
    Missing,
    /// The file has the page, but this mapping does not show it.
    Present,
    /// A write met write protection.
    Protected,
}

/// A touch that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The address that was touched.
    pub address: VirtAddr,
    /// Whether it is a write.
    pub write: bool,
    /// Why it is an event.
    pub cause: Cause,
    /// The thread that waits, by its number in its process's view.
    pub thread: u32,
}

/// How far pages were supplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Supplied {
    /// How much was, from the start.
    pub done: Bytes,
    /// Why no more, if not all was: `EEXIST` where a page is there already, `ESRCH` where
    /// the process is gone, `ENOENT` where its mapping is.
    pub error: Option<Errno>,
}

/// Opens a non-blocking descriptor for mappings of shared memory, with the widest scope
/// that the kernel grants.
///
/// # Errors
/// When the kernel refuses or cannot do that (Linux 6.6 can).
pub fn open() -> Result<(OwnedFd, Scope)> {
    open_for(FEATURES)
}

/// The same for mappings that are going to be moved. Who moves one (`mremap`) waits until the
/// move is read.
///
/// # Errors
/// As [`open`].
pub fn open_to_be_moved() -> Result<(OwnedFd, Scope)> {
    open_for(FEATURES | FEATURE_EVENT_REMAP)
}

/// Registers a shared mapping of a memory file: every first touch of a page is an event,
/// and so is a write where only reading is allowed.
///
/// # Errors
/// As the ioctl; `EPERM` where the file was opened for reading only.
pub fn register(uffd: BorrowedFd<'_>, range: AddrRange) -> Result<()> {
    let mut arg = RegisterArg {
        range: range_arg(range),
        mode: MODES,
        ioctls: 0,
    };
    // SAFETY: the argument is the structure that this ioctl takes.
    unsafe { ioctl(uffd, IOCTL_REGISTER, &raw mut arg) }
}

/// Puts contents into the file, where it has none, and shows them in a mapping. As much is
/// supplied as `from` holds.
pub fn copy(
    uffd: BorrowedFd<'_>,
    to: VirtAddr,
    from: &[u8],
    allow: Allow,
    waiters: Waiters,
) -> Supplied {
    let mode = mode(allow, waiters);
    in_steps(Bytes(from.len() as u64), |done| {
        let mut arg = MoveArg {
            to: (to + done).0,
            from: from.as_ptr() as u64 + done.0,
            len: from.len() as u64 - done.0,
            mode,
            moved: 0,
        };
        // SAFETY: the argument is laid out as the structure that this ioctl takes; the
        // kernel reads no more than the slice. The program finds the contents where it
        // would find no page.
        let outcome = unsafe { ioctl(uffd, IOCTL_COPY, &raw mut arg) };
        (outcome, arg.moved)
    })
}

/// Puts zeros into the file, where it has nothing, and shows them in a mapping, which may write
/// to them. That takes less than to [`copy`] as many.
pub fn zero(uffd: BorrowedFd<'_>, range: AddrRange, waiters: Waiters) -> Supplied {
    by_range(uffd, IOCTL_ZEROPAGE, range, mode(Allow::Write, waiters))
}

/// Shows pages of the file in a mapping that does not show them yet.
///
/// The error is `EFAULT` where the file has no such page.
pub fn show(uffd: BorrowedFd<'_>, range: AddrRange, allow: Allow, waiters: Waiters) -> Supplied {
    by_range(uffd, IOCTL_CONTINUE, range, mode(allow, waiters))
}

/// Makes touches of pages that a mapping does not show fail with `SIGBUS`, and wakes who
/// waits for them. The error is `EEXIST` also where write protection was left behind.
pub fn poison(uffd: BorrowedFd<'_>, range: AddrRange) -> Supplied {
    by_range(uffd, IOCTL_POISON, range, 0)
}

/// Reads touches that wait, at most [`BATCH`] of them, and tells how many there were.
///
/// # Errors
/// As `read`; that nobody waits is none.
pub fn read(uffd: BorrowedFd<'_>, touches: &mut Vec<Touch>) -> Result<usize> {
    let mut messages = [Message::default(); BATCH];
    let read = read_messages(uffd, &mut messages)?;
    let faults = messages[..read].iter();
    touches.extend(
        faults
            .filter(|message| message.event == EVENT_PAGEFAULT)
            .map(touch),
    );
    Ok(read)
}

/// Reads moves of mappings that wait for that, at most [`BATCH`] of them, and tells how many
/// there were. Touches that are read with them wait on, until [`super::wake`]; then they are
/// there again.
///
/// # Errors
/// As `read`; that nobody waits is none.
pub fn moves(uffd: BorrowedFd<'_>) -> Result<usize> {
    let mut messages = [Message::default(); BATCH];
    let read = read_messages(uffd, &mut messages)?;
    let events = messages[..read].iter();
    Ok(events
        .filter(|message| message.event == EVENT_REMAP)
        .count())
}

/// Whether a descriptor that came from another process is a userfaultfd that is read without
/// waiting (Linux 6.10), whatever that process does to it.
///
/// # Errors
/// When that cannot be seen, as `/proc` is not there.
pub fn never_waits(descriptor: BorrowedFd<'_>) -> Result<bool> {
    if !is_userfaultfd(descriptor)? {
        return Ok(false);
    }
    let mut short = 0_u8;
    // SAFETY: the kernel writes at most one byte; no message is so short, so that none is lost.
    let outcome = unsafe { read_at_once(descriptor, &raw mut short, 1) };
    Ok(outcome != Err(Errno(libc::EOPNOTSUPP)))
}

/// Whether a descriptor is a userfaultfd. Its file system is not asked: it may be anybody's, who
/// may answer when it likes.
fn is_userfaultfd(descriptor: BorrowedFd<'_>) -> Result<bool> {
    let name = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    let name = name.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
    Ok(name.as_os_str() == "anon_inode:[userfaultfd]")
}

/// Sees to it that a userfaultfd tells who polls it of touches: one that waits when it is read
/// tells of an error, again and again.
pub fn keep_from_waiting(uffd: BorrowedFd<'_>) {
    if let Ok(flags) = fcntl_getfl(uffd)
        && !flags.contains(OFlags::NONBLOCK)
    {
        // A userfaultfd takes this one.
        let _ = fcntl_setfl(uffd, flags | OFlags::NONBLOCK);
    }
}

/// How many messages there are.
fn read_messages(uffd: BorrowedFd<'_>, messages: &mut [Message; BATCH]) -> Result<usize> {
    let (at, len) = (messages.as_mut_ptr(), size_of_val(messages));
    // SAFETY: the kernel writes at most `len` bytes into the messages.
    let read = match unsafe { read_at_once(uffd, at.cast(), len) } {
        // An older kernel: the descriptor says whether to wait.
        Err(Errno(libc::EOPNOTSUPP)) => {
            let args = [uffd.as_raw_fd() as usize, at as usize, len, 0, 0, 0];
            // SAFETY: as above.
            unsafe { syscall(libc::SYS_read, args) }
        }
        outcome => outcome,
    };
    match read {
        Ok(read) => Ok(read / size_of::<Message>()),
        Err(Errno(libc::EAGAIN)) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Reads what is there, without waiting, whatever the descriptor says.
///
/// # Safety
/// The caller has `len` bytes at `at` that may be overwritten with anything.
unsafe fn read_at_once(uffd: BorrowedFd<'_>, at: *mut u8, len: usize) -> Result<usize> {
    // What has no position is read from here.
    const NOWHERE: usize = usize::MAX;
    let part = libc::iovec {
        iov_base: at.cast(),
        iov_len: len,
    };
    let (fd, parts) = (uffd.as_raw_fd() as usize, (&raw const part) as usize);
    let args = [fd, parts, 1, NOWHERE, NOWHERE, libc::RWF_NOWAIT as usize];
    // SAFETY: the kernel reads one part and writes to no more than the caller vouches for.
    unsafe { syscall(libc::SYS_preadv2, args) }
}

fn touch(message: &Message) -> Touch {
    let cause = if message.flags & PAGEFAULT_FLAG_WP != 0 {
        Cause::Protected
    } else if message.flags & PAGEFAULT_FLAG_MINOR != 0 {
        Cause::Present
    } else {
        Cause::Missing
    };
    Touch {
        address: VirtAddr(message.address),
        write: message.flags & PAGEFAULT_FLAG_WRITE != 0 || cause == Cause::Protected,
        cause,
        thread: message.thread,
    }
}

const fn mode(allow: Allow, waiters: Waiters) -> u64 {
    let protected = match allow {
        Allow::Read => PROTECTED,
        Allow::Write => 0,
    };
    let leave = match waiters {
        Waiters::Wake => 0,
        Waiters::Leave => DONT_WAKE,
    };
    protected | leave
}

fn by_range(uffd: BorrowedFd<'_>, number: u32, range: AddrRange, mode: u64) -> Supplied {
    in_steps(range.len(), |done| {
        let rest = AddrRange {
            start: range.start + done,
            end: range.end,
        };
        let mut arg = ZeroPageArg {
            range: range_arg(rest),
            mode,
            supplied: 0,
        };
        // SAFETY: the argument is laid out as the structure that both ioctls take.
        let outcome = unsafe { ioctl(uffd, number, &raw mut arg) };
        (outcome, arg.supplied)
    })
}

/// Repeats a step, which is told how much is done, until all is done or it fails for
/// another reason than that a change of the address space came between.
fn in_steps(len: Bytes, mut step: impl FnMut(Bytes) -> (Result<()>, i64)) -> Supplied {
    let mut done = Bytes::ZERO;
    loop {
        let (outcome, more) = step(done);
        done += Bytes(u64::try_from(more).unwrap_or(0));
        match outcome {
            Err(Errno(libc::EAGAIN)) if done < len => {}
            Ok(()) | Err(Errno(libc::EAGAIN)) => return Supplied { done, error: None },
            Err(error) => {
                let error = Some(error);
                return Supplied { done, error };
            }
        }
    }
}
