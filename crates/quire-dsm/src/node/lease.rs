//! When a cache's lease ends, told to the programs of its machine, in a file of eight
//! bytes. If whoever runs the cache is stopped and does not drop the pages itself, each
//! program takes them from its own mapping at that time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quire_core::dsm::kernel::Time;
use quire_linux::Errno;
use rustix::fs::MemfdFlags;

/// The end of a lease as it is written by a cache.
pub(super) struct LeaseFile(OwnedFd);

impl LeaseFile {
    pub(super) fn new() -> Result<LeaseFile, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
        let file = LeaseFile(rustix::fs::memfd_create(c"quire-dsm-lease", flags)?);
        file.write(None)?;
        Ok(file)
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(super) fn write(&self, end: Option<Time>) -> Result<(), Errno> {
        let end = end.map_or(0, |end| end.0);
        rustix::io::pwrite(&self.0, &end.to_ne_bytes(), 0)?;
        Ok(())
    }
}

/// The end of the lease, if there is one.
pub(super) fn read(file: BorrowedFd<'_>) -> Option<Time> {
    let mut bytes = [0; 8];
    let read = rustix::io::pread(file, &mut bytes, 0).ok()?;
    let end = u64::from_ne_bytes(bytes);
    (read == bytes.len() && end != 0).then_some(Time(end))
}
