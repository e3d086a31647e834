//! `userfaultfd`: events for missing pages, write protection that holds writers
//! back while the manager changes what lies under them, and pages that are moved to
//! where one is missing.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use quire_core::units::{AddrRange, BASE_PAGE, Bytes, VirtAddr};

use crate::raw::{Errno, Result, syscall};

pub mod pass;
pub mod shared;

const UFFD_API: u64 = 0xAA;
const USER_MODE_ONLY: usize = 1;
const FLAGS: usize = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_MOVE: u64 = 1 << 16;
const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_REMAP: u8 = 0x14;
const PAGEFAULT_FLAG_WP: u64 = 1 << 1;
const MOVE_DONT_WAKE: u64 = 1 << 0;
const WRITEPROTECT_DONT_WAKE: u64 = 1 << 1;

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeArg {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterArg {
    range: RangeArg,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtectArg {
    range: RangeArg,
    mode: u64,
}

#[repr(C)]
struct ZeroPageArg {
    range: RangeArg,
    mode: u64,
    /// Bytes that were supplied, or an error number.
    supplied: i64,
}

#[repr(C)]
struct MoveArg {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    /// Bytes that were moved, or an error number.
    moved: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u32,
    padding: u32,
}

const fn ioctl_number(direction: u32, number: u32, size: usize) -> u32 {
    (direction << 30) | ((size as u32) << 16) | (0xAA << 8) | number
}
const IOCTL_API: u32 = ioctl_number(3, 0x3F, size_of::<ApiArg>());
const IOCTL_REGISTER: u32 = ioctl_number(3, 0x00, size_of::<RegisterArg>());
const IOCTL_UNREGISTER: u32 = ioctl_number(2, 0x01, size_of::<RangeArg>());
const IOCTL_ZEROPAGE: u32 = ioctl_number(3, 0x04, size_of::<ZeroPageArg>());
const IOCTL_COPY: u32 = ioctl_number(3, 0x03, size_of::<MoveArg>());
const IOCTL_MOVE: u32 = ioctl_number(3, 0x05, size_of::<MoveArg>());
const IOCTL_WAKE: u32 = ioctl_number(2, 0x02, size_of::<RangeArg>());
const IOCTL_WRITEPROTECT: u32 = ioctl_number(3, 0x06, size_of::<WriteProtectArg>());

/// What a descriptor can handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Faults from user and kernel mode.
    Full,
    /// Faults from user mode; a system call that meets one gets `EFAULT`.
    UserOnly,
}

/// What a range is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Events for pages that the object does not hold, and write protection.
    MissingAndProtect,
    /// Write protection only.
    Protect,
    /// Events for missing pages only.
    Missing,
}

/// A fault that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address that was touched.
    pub address: VirtAddr,
    /// Whether a write met write protection, rather than a missing page.
    pub protected: bool,
    /// The thread that waits, where the descriptor tells it; else 0.
    pub thread: u32,
}

/// What became of pages that were to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// How much was moved, from the start.
    pub done: Bytes,
    /// Why no more, if not all was.
    pub error: Option<Errno>,
}

/// Opens a non-blocking descriptor with the features that the manager needs,
/// with the widest scope that the kernel grants.
///
/// # Errors
/// When the kernel refuses or lacks write protection for shared memory.
pub fn open() -> Result<(OwnedFd, Scope)> {
    open_for(FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_HUGETLBFS_SHMEM | FEATURE_WP_UNPOPULATED)
}

/// Opens a non-blocking descriptor that moves pages, protects those that are missing and
/// tells which thread waits (Linux 6.8), with the widest scope that the kernel grants.
///
/// # Errors
/// When the kernel refuses or cannot do that.
pub fn open_for_moves() -> Result<(OwnedFd, Scope)> {
    let protect = FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_UNPOPULATED;
    open_for(FEATURE_THREAD_ID | FEATURE_MOVE | protect)
}

fn open_for(features: u64) -> Result<(OwnedFd, Scope)> {
    let (fd, scope) = match open_call(Scope::Full) {
        Ok(fd) => (fd, Scope::Full),
        Err(_) => match open_device(FLAGS) {
            Ok(fd) => (fd, Scope::Full),
            Err(_) => (open_call(Scope::UserOnly)?, Scope::UserOnly),
        },
    };
    let mut api = ApiArg {
        api: UFFD_API,
        features,
        ioctls: 0,
    };
    // SAFETY: the argument is the structure that this ioctl takes.
    unsafe { ioctl(fd.as_fd(), IOCTL_API, &raw mut api)? };
    Ok((fd, scope))
}

/// A non-blocking descriptor of a scope, by the system call; no features were asked for.
///
/// # Errors
/// When the kernel refuses.
pub fn open_call(scope: Scope) -> Result<OwnedFd> {
    let mode = match scope {
        Scope::Full => 0,
        Scope::UserOnly => USER_MODE_ONLY,
    };
    let flags = FLAGS | mode;
    // SAFETY: the call makes a descriptor and touches no memory.
    let fd = unsafe { syscall(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0])? };
    // SAFETY: the kernel just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn open_device(flags: usize) -> Result<OwnedFd> {
    const IOCTL_NEW: usize = 0xAA00;
    let device = c"/dev/userfaultfd";
    let how = (libc::O_RDWR | libc::O_CLOEXEC) as usize;
    let at = libc::AT_FDCWD as usize;
    // SAFETY: the path is a C string that outlives the call.
    let fd = unsafe {
        syscall(
            libc::SYS_openat,
            [at, device.as_ptr() as usize, how, 0, 0, 0],
        )?
    };
    // SAFETY: the kernel just gave us this descriptor.
    let device = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let raw = device.as_raw_fd() as usize;
    // SAFETY: this ioctl takes flags and makes a descriptor.
    let fd = unsafe { syscall(libc::SYS_ioctl, [raw, IOCTL_NEW, flags, 0, 0, 0])? };
    // SAFETY: the kernel just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Registers a range.
///
/// # Errors
/// As the ioctl.
pub fn register(uffd: BorrowedFd<'_>, range: AddrRange, mode: Mode) -> Result<()> {
    let mut arg = RegisterArg {
        range: range_arg(range),
        mode: match mode {
            Mode::MissingAndProtect => 3,
            Mode::Protect => 2,
            Mode::Missing => 1,
        },
        ioctls: 0,
    };
    // SAFETY: the argument is the structure that this ioctl takes.
    unsafe { ioctl(uffd, IOCTL_REGISTER, &raw mut arg) }
}

/// Unregisters a range: lifts its write protection and wakes who waits there.
///
/// # Errors
/// As the ioctl.
pub fn unregister(uffd: BorrowedFd<'_>, range: AddrRange) -> Result<()> {
    let mut arg = range_arg(range);
    // SAFETY: the argument is the structure that this ioctl takes.
    unsafe { ioctl(uffd, IOCTL_UNREGISTER, &raw mut arg) }
}

/// Wakes who waits in a range; they touch again.
///
/// # Errors
/// As the ioctl.
pub fn wake(uffd: BorrowedFd<'_>, range: AddrRange) -> Result<()> {
    let mut arg = range_arg(range);
    // SAFETY: the argument is the structure that this ioctl takes.
    unsafe { ioctl(uffd, IOCTL_WAKE, &raw mut arg) }
}

/// Supplies missing pages of a registered range with zeros and wakes who waits
/// for them.
///
/// # Errors
/// As the ioctl; `EEXIST` where a page is not missing.
pub fn supply_zeros(uffd: BorrowedFd<'_>, range: AddrRange) -> Result<()> {
    let mut arg = ZeroPageArg {
        range: range_arg(range),
        mode: 0,
        supplied: 0,
    };
    // SAFETY: the argument is the structure that this ioctl takes.
    unsafe { ioctl(uffd, IOCTL_ZEROPAGE, &raw mut arg) }
}

/// Copies the page at `from` to where none is in a registered range, whatever its
/// protection, and wakes who waits there.
///
/// # Errors
/// As the ioctl; `EEXIST` where a page is present.
pub fn copy_page(uffd: BorrowedFd<'_>, to: VirtAddr, from: VirtAddr) -> Result<()> {
    let mut arg = MoveArg {
        to: to.0,
        from: from.0,
        len: BASE_PAGE,
        mode: 0,
        moved: 0,
    };
    // SAFETY: the argument is laid out as the structure that this ioctl takes. The
    // program finds the copy where it would find no page.
    unsafe { ioctl(uffd, IOCTL_COPY, &raw mut arg) }
}

/// Moves private anonymous pages, which nobody else may use, to where none are
/// present in a registered range. Who waits there goes on after [`wake`].
pub fn move_pages(uffd: BorrowedFd<'_>, to: AddrRange, from: VirtAddr) -> Moved {
    let len = to.len();
    let mut done = Bytes::ZERO;
    loop {
        let mut arg = MoveArg {
            to: (to.start + done).0,
            from: (from + done).0,
            len: len.0 - done.0,
            mode: MOVE_DONT_WAKE,
            moved: 0,
        };
        // SAFETY: the argument is the structure that this ioctl takes. The pages are
        // moved as they are, and only to where the program would find none.
        let outcome = unsafe { ioctl(uffd, IOCTL_MOVE, &raw mut arg) };
        done += Bytes(u64::try_from(arg.moved).unwrap_or(0));
        match outcome {
            Ok(()) => return Moved { done, error: None },
            // Another change of the address space came between.
            Err(Errno(libc::EAGAIN)) => {}
            Err(error) => {
                let error = Some(error);
                return Moved { done, error };
            }
        }
    }
}

/// Protects a registered range against writes, present pages and missing ones
/// alike, or lifts the protection and wakes who waits.
///
/// # Errors
/// As the ioctl.
pub fn write_protect(uffd: BorrowedFd<'_>, range: AddrRange, protect: bool) -> Result<()> {
    set_protection(uffd, range, u64::from(protect))
}

/// Lifts the protection of a range. Who waits there goes on after [`wake`].
///
/// # Errors
/// As the ioctl.
pub fn lift_protection(uffd: BorrowedFd<'_>, range: AddrRange) -> Result<()> {
    set_protection(uffd, range, WRITEPROTECT_DONT_WAKE)
}

fn set_protection(uffd: BorrowedFd<'_>, range: AddrRange, mode: u64) -> Result<()> {
    loop {
        let mut arg = WriteProtectArg {
            range: range_arg(range),
            mode,
        };
        // SAFETY: the argument is the structure that this ioctl takes.
        match unsafe { ioctl(uffd, IOCTL_WRITEPROTECT, &raw mut arg) } {
            Err(Errno(libc::EAGAIN)) => {}
            other => return other,
        }
    }
}

/// Reads the next fault; `None` when none waits.
#[must_use]
pub fn read_fault(uffd: BorrowedFd<'_>) -> Option<Fault> {
    let mut message = Message::default();
    let len = size_of::<Message>();
    let args = [
        uffd.as_raw_fd() as usize,
        (&raw mut message) as usize,
        len,
        0,
        0,
        0,
    ];
    // SAFETY: the kernel writes at most `len` bytes into the message.
    let read = unsafe { syscall(libc::SYS_read, args) }.ok()?;
    (read == len && message.event == EVENT_PAGEFAULT).then_some(Fault {
        address: VirtAddr(message.address),
        protected: message.flags & PAGEFAULT_FLAG_WP != 0,
        thread: message.thread,
    })
}

const fn range_arg(range: AddrRange) -> RangeArg {
    RangeArg {
        start: range.start.0,
        len: range.end.0 - range.start.0,
    }
}

unsafe fn ioctl<T>(fd: BorrowedFd<'_>, number: u32, arg: *mut T) -> Result<()> {
    let args = [
        fd.as_raw_fd() as usize,
        number as usize,
        arg as usize,
        0,
        0,
        0,
    ];
    // SAFETY: the caller gives the structure that the ioctl takes.
    unsafe { syscall(libc::SYS_ioctl, args) }.map(drop)
}
