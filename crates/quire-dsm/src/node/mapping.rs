//! A program's mapping of an object.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quire_core::units::{AddrRange, BASE_PAGE, Bytes, ObjectOffset, VirtAddr};
use quire_linux::Errno;
use quire_linux::memory;
use quire_linux::revoker::{Term, Watched};
use quire_linux::sysinfo::maps::FileId;
use quire_linux::uffd::{self, Scope, shared};
use rustix::fs::MemfdFlags;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::process::Pid;

mod replace;

/// Something of this process is mapped for touches of user mode only.
static SYSTEM_CALLS_FAIL: AtomicBool = AtomicBool::new(false);

/// Whether system calls of this process that touch what is not here yet may get `EFAULT`: something
/// is mapped by a userfaultfd that is for user mode only.
pub fn system_calls_fail() -> bool {
    SYSTEM_CALLS_FAIL.load(Ordering::Relaxed)
}

/// A part of an object, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it starts.
    pub start: ObjectOffset,
    /// How long it is.
    pub len: Bytes,
}

/// Where an object is to be mapped.
#[derive(Debug)]
pub enum Where {
    /// Where there is room.
    Anywhere,
    /// At this address, where there is nothing.
    Free(VirtAddr),
    /// Where addresses are kept for it.
    Kept(Kept),
}

impl From<Option<VirtAddr>> for Where {
    fn from(at: Option<VirtAddr>) -> Where {
        at.map_or(Where::Anywhere, Where::Free)
    }
}

/// Addresses that are kept from everybody else, until something is mapped there.
#[derive(Debug)]
pub struct Kept {
    range: AddrRange,
    /// What keeps them is a mapping of this value, and not somebody else's.
    is_own: bool,
}

impl Kept {
    /// Keeps addresses at which there is nothing.
    ///
    /// # Errors
    /// When there is something, or the kernel refuses.
    pub fn keep(range: AddrRange) -> Result<Kept, MappingError> {
        let (at, len) = (range.start.as_ptr().cast(), range.len().0 as usize);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: a new mapping that nobody can use, which takes no other's place.
        let kept = unsafe { rustix::mm::mmap_anonymous(at, len, ProtFlags::empty(), flags) };
        kept.map_err(|errno| MappingError::Addresses(errno.into()))?;
        let is_own = true;
        Ok(Kept { range, is_own })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.is_own {
            return;
        }
        let (at, len) = (
            self.range.start.as_ptr().cast(),
            self.range.len().0 as usize,
        );
        // SAFETY: the mapping is this value's own, and nobody can have used it.
        let _ = unsafe { rustix::mm::munmap(at, len) };
    }
}

/// Why a program cannot map an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    /// There is no userfaultfd to be had for shared memory.
    #[error("no userfaultfd for shared memory ({0}): Linux 6.6 or later is needed")]
    Uffd(Errno),
    /// The part does not start and end with pages.
    #[error("a mapping must start and end with pages of 4 KiB")]
    Unaligned,
    /// The addresses cannot be had.
    #[error("the addresses for the object cannot be had: {0}")]
    Addresses(Errno),
    /// The mapping cannot be registered.
    #[error("the mapping of the object cannot be registered with userfaultfd: {0}")]
    Register(Errno),
    /// Another file cannot take the place of the one that is mapped.
    #[error("the mapping of the object cannot be replaced: {0}")]
    Replace(Errno),
}

/// A program's mapping of a part of an object.
///
/// It holds the process's own userfaultfd for as long as it lives. This is what makes
/// faults wait, also when the process that answers them dies: when the last descriptor is
/// closed, the kernel answers with zeros. [`Mapping::fail`] ends that wait.
///
/// The mapping is left out of forks, as a child would have the memory without any event:
/// a child that touches it gets a segmentation fault. It must not be moved by `mremap`,
/// for the same reason. The file must be open for writing, also for a mapping that is
/// only read: the kernel registers no other.
#[derive(Debug)]
pub struct Mapping {
    range: AddrRange,
    part: Part,
    scope: Scope,
    mapped: Arc<Mapped>,
    /// The process that has it. A child has its addresses for something else.
    process: Pid,
    /// By whom it is watched.
    watched: Option<Watched>,
}

/// What whoever looks after a mapping may do to it, for as long as it is there.
#[derive(Clone, Debug)]
pub struct Hold {
    mapped: Arc<Mapped>,
    part: Part,
}

impl Hold {
    /// Takes all pages from the mapping, as nobody may see them any more; touches wait for
    /// an answer. What the pages hold stays in the file. Says whether that is done; where the
    /// kernel refuses, the mapping is to fail.
    #[must_use]
    pub fn pause(&self) -> bool {
        self.mapped.take_all()
    }

    /// As [`Mapping::fail`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn fail(&self) -> Result<(), Errno> {
        self.mapped.fail()
    }

    /// The userfaultfd, a copy of which is for whoever runs the cache.
    #[must_use]
    pub fn uffd(&self) -> BorrowedFd<'_> {
        self.mapped.uffd.as_fd()
    }
}

/// The addresses of a mapping, for whoever changes what the kernel allows there, or takes a part of them
/// away. It holds nothing but their lock, and may outlive the mapping.
#[derive(Clone, Debug)]
pub struct RangeLock(Arc<Mutex<Option<AddrRange>>>);

impl RangeLock {
    /// Until that is dropped, nobody puts another file in the place of the one that is mapped
    /// ([`Hold::replace`]), who might have looked what the old mapping allows before it was changed.
    #[must_use]
    pub fn steady(&self) -> Steady<'_> {
        Steady {
            _range: self.0.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// What is mapped at some addresses stays the same file for so long.
#[derive(Debug)]
pub struct Steady<'a> {
    _range: MutexGuard<'a, Option<AddrRange>>,
}

/// What is needed of a mapping by others, for whom it may be dropped before.
#[derive(Debug)]
pub(super) struct Mapped {
    uffd: OwnedFd,
    /// A file without any byte, whose mappings fail.
    nothing: Arc<OwnedFd>,
    /// The addresses, as long as they are the mapping's.
    range: Arc<Mutex<Option<AddrRange>>>,
    /// The file that is mapped.
    file: FileId,
}

impl Mapping {
    /// Maps a part of an object's file, at a given address ([`Where`], or just an address)
    /// or where there is room. At the given address there must be nothing.
    ///
    /// # Errors
    /// See [`MappingError`].
    pub fn new(
        file: BorrowedFd<'_>,
        part: Part,
        at: impl Into<Where>,
        writable: bool,
    ) -> Result<Mapping, MappingError> {
        Mapping::make(file, part, at.into(), writable)
    }

    /// Maps a part of an object's file in the place of whatever is mapped at an address.
    ///
    /// # Errors
    /// See [`MappingError`].
    ///
    /// # Safety
    /// Nobody needs what is mapped there.
    pub unsafe fn over(
        file: BorrowedFd<'_>,
        part: Part,
        at: VirtAddr,
        writable: bool,
    ) -> Result<Mapping, MappingError> {
        let range = AddrRange::new(at, part.len);
        let is_own = false;
        Mapping::make(file, part, Where::Kept(Kept { range, is_own }), writable)
    }

    fn make(
        file: BorrowedFd<'_>,
        part: Part,
        at: Where,
        writable: bool,
    ) -> Result<Mapping, MappingError> {
        let aligned = |n: u64| n.is_multiple_of(BASE_PAGE);
        if !aligned(part.start.0) || !aligned(part.len.0) || part.len.0 == 0 {
            return Err(MappingError::Unaligned);
        }
        let (uffd, scope) = shared::open().map_err(MappingError::Uffd)?;
        if scope == Scope::UserOnly {
            SYSTEM_CALLS_FAIL.store(true, Ordering::Relaxed);
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
        let nothing = rustix::fs::memfd_create(c"quire-dsm-nothing", flags);
        let nothing = nothing.map_err(|errno| MappingError::Addresses(errno.into()))?;
        let id = FileId::of(file).map_err(MappingError::Addresses)?;
        let range = map(file, part, at).map_err(MappingError::Addresses)?;
        let mapped = Mapped {
            uffd,
            nothing: Arc::new(nothing),
            range: Arc::new(Mutex::new(Some(range))),
            file: id,
        };
        let mapping = Mapping {
            range,
            part,
            scope,
            mapped: Arc::new(mapped),
            process: rustix::process::getpid(),
            watched: None,
        };
        // From here on, an error unmaps.
        set_apart(range).map_err(MappingError::Register)?;
        shared::register(mapping.uffd(), range).map_err(MappingError::Register)?;
        allow(range, writable).map_err(MappingError::Addresses)?;
        Ok(mapping)
    }

    /// The addresses.
    #[must_use]
    pub const fn range(&self) -> AddrRange {
        self.range
    }

    /// The part of the object that is mapped.
    #[must_use]
    pub const fn part(&self) -> Part {
        self.part
    }

    /// The userfaultfd, a copy of which is for whoever runs the cache.
    #[must_use]
    pub fn uffd(&self) -> BorrowedFd<'_> {
        self.mapped.uffd.as_fd()
    }

    /// Whether system calls that touch what is not here yet wait for it, or get `EFAULT`.
    #[must_use]
    pub const fn scope(&self) -> Scope {
        self.scope
    }

    /// Makes all touches in this mapping fail with `SIGBUS` from now on, also those that
    /// wait. System calls get `EFAULT`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn fail(&self) -> Result<(), Errno> {
        self.mapped.fail()
    }

    /// Has it show nothing any more when a term is over, if that has a revoker. What the pages hold
    /// stays in the file, and touches wait for an answer.
    pub fn watch_until(&mut self, term: &Arc<Term>) {
        self.watched = Some(term.watch(self.range));
    }

    /// Lets go of the addresses without unmapping them, as something else was put there in its
    /// place. Nobody can have got them in between.
    pub fn leave(&mut self) {
        self.watched = None;
        let range = self.mapped.range.lock();
        range.unwrap_or_else(PoisonError::into_inner).take();
    }

    /// A hold on it for whoever looks after it.
    #[must_use]
    pub fn hold(&self) -> Hold {
        Hold {
            mapped: self.mapped(),
            part: self.part,
        }
    }

    /// Its addresses, for whoever changes what is allowed there.
    #[must_use]
    pub fn addresses(&self) -> RangeLock {
        RangeLock(Arc::clone(&self.mapped.range))
    }

    /// What a cache in the same process needs of it.
    pub(super) fn mapped(&self) -> Arc<Mapped> {
        Arc::clone(&self.mapped)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if rustix::process::getpid() != self.process {
            // A child does not have the mapping, and maybe another in its place.
            return;
        }
        // The addresses may be somebody else's next.
        self.watched = None;
        let mut range = self
            .mapped
            .range
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(range) = range.take() else { return };
        let (at, len) = (range.start.as_ptr().cast(), range.len().0 as usize);
        // SAFETY: the mapping is this value's own; who still has an address of it has kept
        // it for longer than the mapping.
        let _ = unsafe { rustix::mm::munmap(at, len) };
    }
}

impl Mapped {
    /// Takes pages from the mapping, unless it is gone; whether it shows them no more.
    pub(super) fn zap(&self, pages: AddrRange) -> bool {
        let range = self.range.lock().unwrap_or_else(PoisonError::into_inner);
        match *range {
            None => true,
            Some(_) if pages.is_empty() => true,
            // SAFETY: the addresses are the mapping's own, as the lock is held. What the
            // pages hold stays in the file.
            Some(range) if range.contains(pages) => unsafe {
                memory::advise(pages, memory::Advice::DontNeedLocked).is_ok()
            },
            Some(_) => false,
        }
    }

    /// Takes all pages from the mapping, unless it is gone; whether it shows them no more.
    fn take_all(&self) -> bool {
        let range = *self.range.lock().unwrap_or_else(PoisonError::into_inner);
        range.is_none_or(|range| self.zap(range))
    }

    /// Puts a mapping of nothing in the mapping's place, unless it is gone.
    fn fail(&self) -> Result<(), Errno> {
        let range = self.range.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(range) = *range else { return Ok(()) };
        let (at, len) = (range.start.as_ptr().cast(), range.len().0 as usize);
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the addresses are the mapping's own, as the lock is held. What was there
        // is gone, and that is what is asked for.
        unsafe { rustix::mm::mmap(at, len, prot, flags, &self.nothing, 0)? };
        uffd::wake(self.uffd.as_fd(), range)
    }
}

/// Maps a part of a file, and lets nobody touch it: before it is registered, no page may be there.
/// The kernel would fill it at once in a process whose future mappings are locked (`mlockall`).
fn map(file: BorrowedFd<'_>, part: Part, at: Where) -> Result<AddrRange, Errno> {
    let (hint, fixed) = match &at {
        Where::Anywhere => (ptr::null_mut(), MapFlags::empty()),
        Where::Free(at) => (at.as_ptr().cast(), MapFlags::FIXED_NOREPLACE),
        Where::Kept(kept) if kept.range.len() == part.len => {
            (kept.range.start.as_ptr().cast(), MapFlags::FIXED)
        }
        Where::Kept(_) => return Err(rustix::io::Errno::INVAL.into()),
    };
    let prot = ProtFlags::empty();
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | fixed;
    // SAFETY: a new mapping, which takes no other's place than what was kept for it.
    let start =
        unsafe { rustix::mm::mmap(hint, part.len.0 as usize, prot, flags, file, part.start.0)? };
    // What was kept is the mapping's now.
    std::mem::forget(at);
    Ok(AddrRange::new(VirtAddr(start as u64), part.len))
}

/// A mapping is registered, and may be touched.
fn allow(range: AddrRange, writable: bool) -> Result<(), Errno> {
    let (at, len) = (range.start.as_ptr().cast(), range.len().0 as usize);
    let prot = match writable {
        true => MprotectFlags::READ | MprotectFlags::WRITE,
        false => MprotectFlags::READ,
    };
    // SAFETY: it is a mapping that nobody else knows of yet, and allows more than before.
    unsafe { rustix::mm::mprotect(at, len, prot)? };
    Ok(())
}

/// Keeps addresses out of forks, and their pages from being gathered into superpages: the
/// kernel takes all of them from the mapping for that, and each is a fault again.
fn set_apart(range: AddrRange) -> Result<(), Errno> {
    let (at, len) = (range.start.as_ptr().cast(), range.len().0 as usize);
    // SAFETY: what a fork gets changes nothing in this process.
    unsafe { rustix::mm::madvise(at, len, Advice::LinuxDontFork)? };
    // SAFETY: it changes no contents. A kernel without superpages refuses, and makes none.
    let _ = unsafe { rustix::mm::madvise(at, len, Advice::LinuxNoHugepage) };
    Ok(())
}
