//! The writer's side of the statistics page: a file in the session directory,
//! mapped into the process that it describes.

use std::os::fd::{AsFd, OwnedFd};

use quire_core::stat::{ADVICE_SUFFIX, STAT_FILE_PREFIX, StatPage};
use quire_core::units::{AddrRange, Bytes, ObjectOffset, VirtAddr};
use rustix::fs::{FallocateFlags, Mode, OFlags};

use crate::memory::{self, Advice};
use crate::raw::{Errno, Result};

/// Makes the statistics page of process `pid` in the directory `session` and
/// maps it for the rest of the process's life. Children do not inherit it. All of
/// its memory is taken at once: where that ran short later, writing to it would
/// end the process. Where another user has the file of this name, which a process
/// has that was of this number before it changed its user, the name ends with the
/// user's number.
///
/// # Errors
/// When the directory cannot be written or has no room, or the page cannot be
/// mapped. No file is left then.
pub fn create(session: &str, pid: u32) -> Result<&'static StatPage> {
    create_named(session, &format!("{STAT_FILE_PREFIX}{pid}"))
}

/// The same for what advises in a process beside what provides memory, which has the page
/// of the usual name.
///
/// # Errors
/// As [`create`].
pub fn create_beside(session: &str, pid: u32) -> Result<&'static StatPage> {
    create_named(session, &format!("{STAT_FILE_PREFIX}{pid}{ADVICE_SUFFIX}"))
}

fn create_named(session: &str, name: &str) -> Result<&'static StatPage> {
    let user = rustix::process::geteuid().as_raw();
    let path = format!("{session}/{name}");
    let own = format!("{path}.{user}");
    open(&path, user)
        .map(|file| (path, file))
        .or_else(|_| Ok((own.clone(), open(&own, user)?)))
        .and_then(|(path, file)| map(&path, &file))
}

/// Opens a file of this user, emptied, or makes it.
fn open(path: &str, user: u32) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    // Whoever has the file could take its pages away while they are in use.
    if rustix::fs::fstat(&file)?.st_uid != user {
        return Err(Errno(libc::EACCES));
    }
    rustix::fs::ftruncate(&file, 0)?;
    Ok(file)
}

fn map(path: &str, file: &OwnedFd) -> Result<&'static StatPage> {
    let size = Bytes(size_of::<StatPage>() as u64).to_pages().to_bytes();
    let room = rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size.0);
    if let Err(errno) = room {
        // Whoever reads it finds no page in it.
        let _ = rustix::fs::unlink(path);
        return Err(errno.into());
    }
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe {
        memory::map_file(
            VirtAddr(0),
            size,
            prot,
            libc::MAP_SHARED,
            file.as_fd(),
            ObjectOffset(0),
        )?
    };
    // SAFETY: leaving the range out of forks changes nothing for this process.
    unsafe { memory::advise(AddrRange::new(at, size), Advice::DontFork)? };
    let page: *const StatPage = at.as_ptr().cast();
    // SAFETY: the mapping is large enough, page-aligned, zero-filled (for which
    // every atomic of the page has a value), and is never unmapped.
    unsafe { page.as_ref() }.ok_or(Errno(libc::EFAULT))
}
