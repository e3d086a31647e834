//! A file whose memory comes in huge folios: one on a private tmpfs that is
//! mounted with `huge=always` and that nobody else can see. It works whatever
//! `shmem_enabled` says, and needs neither a path nor a change to the system.
//!
//! With the privilege to mount, the mount is detached (`fsmount`) and lives as
//! long as the file. Without it, a child process gets the same in a user
//! namespace of its own and passes the descriptor back.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use quire_core::popmap::Popmap;
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, ObjectOffset, SUPERPAGE, VirtAddr};
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::process::Pid;

use crate::memory::{self, Advice};
use crate::raw::{Errno, Result, syscall};
use crate::thread;

/// Size of the file: its offsets are never used twice, so it is as large as
/// the kernel allows and almost all of it stays a hole.
const FILE_SIZE: u64 = 1 << 60;

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Errno {
        Errno(errno.raw_os_error())
    }
}

/// Makes a file of huge folios.
///
/// # Errors
/// When neither a mount nor a user namespace is allowed.
pub fn create() -> Result<OwnedFd> {
    create_of(Bytes(FILE_SIZE))
}

/// Makes a file of huge folios of the given size, for memory that processes
/// share.
///
/// # Errors
/// When neither a mount nor a user namespace is allowed.
pub fn create_of(size: Bytes) -> Result<OwnedFd> {
    if let Ok(file) = create_if_privileged(size) {
        return Ok(file);
    }
    let file = create_in_namespace()?;
    rustix::fs::ftruncate(&file, size.0)?;
    Ok(file)
}

/// The same where this process may mount, and never by a child: a copy of a large process takes
/// long.
///
/// # Errors
/// When a mount is not allowed.
pub fn create_if_privileged(size: Bytes) -> Result<OwnedFd> {
    let file = create_on_detached_mount()?;
    rustix::fs::ftruncate(&file, size.0)?;
    Ok(file)
}

fn create_on_detached_mount() -> Result<OwnedFd> {
    let context = rustix::mount::fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [(c"huge", c"always"), (c"size", c"0"), (c"mode", c"0700")] {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value)?;
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    let mount = rustix::mount::fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV,
    )?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(
        &mount,
        c".",
        flags,
        Mode::RUSR | Mode::WUSR,
    )?)
}

/// Runs the mount in a child process that has its own user and mount
/// namespaces. The child is a copy of this process (not a thread of it), it
/// makes only bare system calls, and it ends without running anything of the
/// program's.
fn create_in_namespace() -> Result<OwnedFd> {
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let (mut uid_text, mut gid_text) = ([0; 32], [0; 32]);
    let uid_map = identity_map(uid.as_raw(), &mut uid_text);
    let gid_map = identity_map(gid.as_raw(), &mut gid_text);
    // SAFETY: a fork that shares nothing and raises no signal when it ends;
    // the child only makes system calls on memory that its copy holds.
    let child = unsafe { syscall(libc::SYS_clone, [0; 6])? };
    if child == 0 {
        let ok = serve_from_namespace(theirs.as_fd(), uid_map, gid_map).is_ok();
        loop {
            // SAFETY: ends the child.
            let _ = unsafe { syscall(libc::SYS_exit_group, [usize::from(!ok), 0, 0, 0, 0, 0]) };
        }
    }
    drop(theirs);
    let received = receive_descriptor(ours.as_fd());
    thread::reap(child as u32, 0);
    received
}

fn identity_map(id: u32, buffer: &mut [u8; 32]) -> &[u8] {
    use std::io::Write;
    let mut rest = &mut buffer[..];
    // Writing "0 N 1" into 32 bytes cannot fail for a 32-bit number.
    let _ = write!(rest, "0 {id} 1");
    let used = 32 - rest.len();
    &buffer[..used]
}

fn serve_from_namespace(to: BorrowedFd<'_>, uid_map: &[u8], gid_map: &[u8]) -> Result<()> {
    let flags = (libc::CLONE_NEWUSER | libc::CLONE_NEWNS) as usize;
    // SAFETY: changes only the calling process, which is our own child.
    unsafe { syscall(libc::SYS_unshare, [flags, 0, 0, 0, 0, 0])? };
    write_file(c"/proc/self/setgroups", b"deny")?;
    write_file(c"/proc/self/uid_map", uid_map)?;
    write_file(c"/proc/self/gid_map", gid_map)?;
    let file = create_on_detached_mount()?;
    send_descriptor(to, file.as_fd())
}

fn write_file(path: &std::ffi::CStr, text: &[u8]) -> Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text)?;
    Ok(())
}

fn send_descriptor(to: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let data = [std::io::IoSlice::new(b"q")];
    sendmsg(to, &data, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_descriptor(from: BorrowedFd<'_>) -> Result<OwnedFd> {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    let mut data = [std::io::IoSliceMut::new(&mut byte)];
    recvmsg(from, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(fd);
        }
    }
    Err(Errno(libc::EPERM))
}

/// What the kernel does for a huge folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// It takes a block that is free.
    Free,
    /// Where none is, it moves memory to make one.
    Compact,
}

/// How many extents a window shows at once.
const WINDOW_EXTENTS: u64 = 8;

/// A window through which folios are faulted in and zeroed, so that the
/// program's own mapping is not touched. It shows a run of extents, because
/// each change of what it shows interrupts the program's processors; what it
/// shows counts in the resident set until it is closed.
#[derive(Debug)]
pub struct Window {
    range: AddrRange,
    shows: Option<Shown>,
    /// Whose addresses they are. A child has them for something else.
    process: Pid,
}

/// What a window shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    /// From where on.
    base: ObjectOffset,
    /// What is faulted in there comes as base pages.
    small: bool,
}

impl Window {
    /// Takes address space for the window.
    ///
    /// # Errors
    /// As `mmap`.
    pub fn new() -> Result<Window> {
        let len = Bytes(WINDOW_EXTENTS * SUPERPAGE);
        let range = AddrRange::new(memory::reserve_space(len, 0)?, len);
        // SAFETY: our own inaccessible mapping, which a child has no use for.
        unsafe { memory::advise(range, Advice::DontFork)? };
        let (shows, process) = (None, rustix::process::getpid());
        Ok(Window {
            range,
            shows,
            process,
        })
    }

    /// Its addresses.
    #[must_use]
    pub const fn range(&self) -> AddrRange {
        self.range
    }

    /// Brings the extent at `offset` into the file as one zeroed huge folio.
    /// Says whether the kernel had one; if not, the extent holds a base page.
    /// Memory that advice asks superpages for is memory that the kernel compacts
    /// for (`transparent_hugepage/defrag`), while the mount gives them unasked.
    ///
    /// # Errors
    /// When there is no memory, or `ENOSPC`.
    pub fn reserve(
        &mut self,
        file: BorrowedFd<'_>,
        pagemap: BorrowedFd<'_>,
        offset: ObjectOffset,
        effort: Effort,
    ) -> Result<bool> {
        let extent = AddrRange::new(self.show(file, offset, false)?, Bytes(SUPERPAGE));
        let first = AddrRange::new(extent.start, Bytes(quire_core::units::BASE_PAGE));
        // SAFETY: the window is ours; populating it changes no contents, and
        // neither does advice about page sizes.
        unsafe {
            if effort == Effort::Compact {
                memory::advise(extent, Advice::HugePage)?;
            }
            memory::advise(first, Advice::PopulateWrite)?;
        }
        is_huge(pagemap, extent)
    }

    /// Brings base pages into the extent at `offset`, one in `every` so many bytes.
    /// The kernel makes no folio around a page that is there already, so what is
    /// allocated next comes in smaller ones. The window goes on to show them, until it is closed.
    ///
    /// # Errors
    /// When there is no memory, or `ENOSPC`.
    pub fn sow(&mut self, file: BorrowedFd<'_>, offset: ObjectOffset, every: Bytes) -> Result<()> {
        let start = self.show(file, offset, true)?;
        for at in (0..SUPERPAGE).step_by(every.0 as usize) {
            let page = AddrRange::new(start + Bytes(at), Bytes(BASE_PAGE));
            // SAFETY: the window is ours; populating it changes no contents.
            unsafe { memory::advise(page, Advice::PopulateWrite)? };
        }
        Ok(())
    }

    /// Copies pages of the program, given by their addresses, to their places
    /// in the file, none of which lies before `first` or a superpage after it.
    ///
    /// # Errors
    /// As `mmap`.
    ///
    /// # Safety
    /// The pages must be mapped readable, and nobody may write to them or to
    /// their place in the file meanwhile.
    pub unsafe fn copy_in(
        &mut self,
        file: BorrowedFd<'_>,
        first: ObjectOffset,
        runs: impl Iterator<Item = (AddrRange, ObjectOffset)>,
    ) -> Result<()> {
        let start = self.show(file, first, false)?;
        for (from, offset) in runs {
            let to = start + Bytes(offset.0 - first.0);
            let len = from.len().0 as usize;
            // SAFETY: the run lies where the window looks, and the caller
            // vouches for the source.
            unsafe { std::ptr::copy_nonoverlapping(from.start.as_ptr(), to.as_ptr(), len) };
        }
        Ok(())
    }

    /// Makes the window show the superpage from `offset` on, and says where. Nothing of it comes as
    /// a huge folio if it is to be `small`.
    fn show(
        &mut self,
        file: BorrowedFd<'_>,
        offset: ObjectOffset,
        small: bool,
    ) -> Result<VirtAddr> {
        let len = self.range.len();
        if let Some(Shown { base, .. }) = self.shows.filter(|shown| shown.small == small)
            && base <= offset
            && offset + Bytes(SUPERPAGE) <= base + len
        {
            return Ok(self.range.start + Bytes(offset.0 - base.0));
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        self.shows = None;
        // SAFETY: the window is ours; nobody holds a reference into it. Advice about page sizes
        // changes no contents.
        unsafe {
            memory::map_file(self.range.start, len, prot, flags, file, offset)?;
            memory::advise(self.range, Advice::DontFork)?;
            if small {
                memory::advise(self.range, Advice::NoHugePage)?;
            }
        }
        let base = offset;
        self.shows = Some(Shown { base, small });
        Ok(self.range.start)
    }

    /// Takes the window's view away, and with it its share of the resident
    /// set.
    pub fn close(&mut self) {
        if self.shows.take().is_none() {
            return;
        }
        let flags = libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the window is ours; nobody holds a reference into it. Where
        // the kernel refuses, the view stays until the next one.
        let _ = unsafe {
            memory::map_anonymous(self.range.start, self.range.len(), libc::PROT_NONE, flags)
                .and_then(|_| memory::advise(self.range, Advice::DontFork))
        };
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if rustix::process::getpid() == self.process {
            // SAFETY: the window is ours; nobody holds a reference into it.
            let _ = unsafe { memory::unmap(self.range) };
        }
    }
}

fn is_huge(pagemap: BorrowedFd<'_>, extent: AddrRange) -> Result<bool> {
    use crate::pagemap::{Filter, HUGE, scan};
    let mut huge = false;
    scan(pagemap, extent, Filter::PRESENT, |run| {
        huge |= run.categories & HUGE != 0;
    })?;
    Ok(huge)
}

/// Punches a range out of the file: its memory is free, and it reads as zero.
///
/// # Errors
/// As `fallocate`.
pub fn punch(file: BorrowedFd<'_>, offset: ObjectOffset, len: Bytes) -> Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, offset.0, len.0)?)
}

/// Brings a range into the file without zeroing it yet: the first touch does
/// that. Takes huge folios where the kernel has them.
///
/// # Errors
/// As `fallocate`.
pub fn allocate(file: BorrowedFd<'_>, offset: ObjectOffset, len: Bytes) -> Result<()> {
    let flags = FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, offset.0, len.0)?)
}

/// Where the file holds memory at or after `offset`; `None` when nowhere. Memory that was
/// allocated and never touched since does not count.
///
/// # Errors
/// As `lseek`.
pub fn next_data(file: BorrowedFd<'_>, offset: ObjectOffset) -> Result<Option<ObjectOffset>> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset.0)) {
        Ok(at) => Ok(Some(ObjectOffset(at))),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Where the file holds no memory at or after `offset`, or where it ends.
///
/// # Errors
/// As `lseek`; `ENXIO` beyond the end.
pub fn next_hole(file: BorrowedFd<'_>, offset: ObjectOffset) -> Result<ObjectOffset> {
    let at = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(offset.0))?;
    Ok(ObjectOffset(at))
}

/// Which of some pages of the extent at `offset` hold zeros. Reading brings no
/// memory into the file. Pages that cannot be read count as if they held
/// something.
#[must_use]
pub fn zero_pages(file: BorrowedFd<'_>, offset: ObjectOffset, pages: Range<usize>) -> Popmap {
    const PAGE: usize = BASE_PAGE as usize;
    const AT_ONCE: usize = 16;
    let mut zeros = Popmap::new();
    // Not on the stack: a program's thread may have little. And a program that is
    // at its limit of address space must not end for this.
    let mut buffer: Vec<u64> = Vec::new();
    if buffer.try_reserve_exact(AT_ONCE * PAGE / 8).is_err() {
        return zeros;
    }
    buffer.resize(AT_ONCE * PAGE / 8, 0);
    for first in pages.clone().step_by(AT_ONCE) {
        let want = (pages.end - first).min(AT_ONCE) * PAGE;
        let at = offset.0 + (first * PAGE) as u64;
        let args = [
            file.as_raw_fd() as usize,
            buffer.as_mut_ptr() as usize,
            want,
            at as usize,
            0,
            0,
        ];
        // SAFETY: the kernel writes at most `want` bytes into the buffer, which
        // is as large.
        if unsafe { syscall(libc::SYS_pread64, args) } != Ok(want) {
            return zeros;
        }
        for (index, page) in buffer[..want / 8].chunks_exact(PAGE / 8).enumerate() {
            if page.iter().all(|word| *word == 0) {
                zeros.set(first + index..first + index + 1);
            }
        }
    }
    zeros
}

/// A mark that every process holds which was forked while the parent had it
/// mapped, until it ends or runs another program. It rests on a lock of the
/// open file that the mapping keeps alive, so it sees children of every
/// flavour, grandchildren, and children that closed all their descriptors.
#[derive(Debug)]
pub struct ForkMark(AddrRange);

impl ForkMark {
    /// Makes the file on which marks are taken.
    ///
    /// # Errors
    /// As `create`.
    pub fn new_file() -> Result<OwnedFd> {
        // SAFETY: the name is a C string that outlives the call.
        let fd = unsafe {
            let name = c"quire-fork-mark".as_ptr() as usize;
            syscall(
                libc::SYS_memfd_create,
                [name, libc::MFD_CLOEXEC as usize, 0, 0, 0, 0],
            )?
        };
        // SAFETY: the kernel just gave us this descriptor.
        let file = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        rustix::fs::ftruncate(&file, quire_core::units::BASE_PAGE)?;
        Ok(file)
    }

    /// Maps a new mark, to be inherited by the fork that follows.
    ///
    /// # Errors
    /// As `open`, `flock` and `mmap`.
    pub fn raise(file: BorrowedFd<'_>) -> Result<ForkMark> {
        let mut path = [0u8; 48];
        {
            use std::io::Write;
            let mut rest = &mut path[..47];
            // A 32-bit number fits; the last byte stays zero.
            let _ = write!(rest, "/proc/thread-self/fd/{}", file.as_raw_fd());
        }
        let len = path.iter().position(|b| *b == 0).unwrap_or(0);
        let name =
            std::ffi::CStr::from_bytes_with_nul(&path[..=len]).map_err(|_| Errno(libc::EINVAL))?;
        let own = rustix::fs::open(name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::flock(&own, FlockOperation::LockShared)?;
        let size = Bytes(quire_core::units::BASE_PAGE);
        let flags = libc::MAP_SHARED;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            memory::map_file(
                VirtAddr(0),
                size,
                libc::PROT_READ,
                flags,
                own.as_fd(),
                ObjectOffset(0),
            )?
        };
        Ok(ForkMark(AddrRange::new(at, size)))
    }

    /// Drops the caller's own hold of the mark.
    pub fn lower(self) {
        // SAFETY: the mapping is this mark's own, and nothing reads it.
        let _ = unsafe { memory::unmap(self.0) };
    }

    /// Whether no process holds a mark any more.
    ///
    /// # Errors
    /// As `flock`.
    pub fn all_gone(file: BorrowedFd<'_>) -> Result<bool> {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                rustix::fs::flock(file, FlockOperation::Unlock)?;
                Ok(true)
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}
