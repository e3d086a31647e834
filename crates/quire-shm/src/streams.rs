//! The program's standard streams, which the library's threads must not keep open: whoever reads
//! from the program by a pipe waits until everybody has closed that, as daemons do.
//!
//! So these threads have nothing of the program's in their descriptor table, and whoever has a
//! line for the log borrows standard error from the program's table for as long as that takes.
//! Where the program has closed it, its number may stand for anything by now, a file of data or a
//! link to somebody. A line is written to what was standard error when the thread `quire-shm`
//! began, or the program last connected to a server itself (`capi`), or to a file to which lines are
//! appended, and else to nobody.

use std::ffi::c_int;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use quire_linux::thread::own_descriptor_table;
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tracing::Level;

const STANDARD_ERROR: c_int = 2;

/// What standard error was, a device and a number there; zeros where there was none.
static FIRST: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn id(file: impl AsFd) -> Option<[u64; 2]> {
    let status = rustix::fs::fstat(file).ok()?;
    Some([status.st_dev, status.st_ino])
}

fn is_first(file: &OwnedFd) -> bool {
    id(file) == Some(FIRST.each_ref().map(|part| part.load(Ordering::Relaxed)))
}

/// Notes what standard error is.
fn note() {
    let first = id(io::stderr()).unwrap_or_default();
    for (part, is) in FIRST.iter().zip(first) {
        part.store(is, Ordering::Relaxed);
    }
}

/// Begins the log: lines go to standard error.
pub fn log() {
    // A forked child has its parent's.
    static LOG: Once = Once::new();
    LOG.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_writer(|| StandardError)
            .with_ansi(false)
            .with_max_level(Level::WARN);
        // There is no other one in this library.
        let _ = subscriber.try_init();
    });
}

/// The same for threads that have the program's descriptor table.
pub fn log_beside() {
    note();
    log();
}

/// Gives this thread a descriptor table without anything of the program's. Where the system
/// refuses, it shares the program's.
pub fn let_go() {
    note();
    // SAFETY: this thread has just begun, and has no descriptor that it would miss.
    if unsafe { own_descriptor_table() }.is_ok() {
        // Without them, something that matters would get the numbers of the streams.
        let _ = plug();
    }
}

/// Puts an empty file that cannot be written to in the place of each stream.
fn plug() -> rustix::io::Result<()> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // The lowest number is taken.
    let nothing = rustix::fs::memfd_create(c"quire-dsm-nothing", flags)?;
    rustix::fs::fcntl_add_seals(&nothing, SealFlags::WRITE | SealFlags::GROW)?;
    for _ in 0..STANDARD_ERROR {
        std::mem::forget(rustix::io::fcntl_dupfd_cloexec(&nothing, 0)?);
    }
    std::mem::forget(nothing);
    Ok(())
}

/// Standard error of the program, without the lock that a thread may have held at a fork.
pub struct StandardError;

impl StandardError {
    /// The descriptor, for a moment.
    fn borrow() -> Option<OwnedFd> {
        match Self::copy() {
            Ok(copy) => (is_first(&copy) || is_appended(&copy)).then_some(copy),
            Err(_) => Self::open().filter(is_first),
        }
    }

    fn copy() -> rustix::io::Result<OwnedFd> {
        let process = pidfd_open(getpid(), PidfdFlags::empty())?;
        pidfd_getfd(process, STANDARD_ERROR, PidfdGetfdFlags::empty())
    }

    /// The same where a filter of system calls forbids that.
    fn open() -> Option<OwnedFd> {
        let path = c"/proc/self/fd/2";
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOCTTY;
        rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()
    }
}

/// Whether all that is written to it is put behind what is there.
fn is_appended(file: &OwnedFd) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::APPEND))
}

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match StandardError::borrow() {
            Some(descriptor) => File::from(descriptor).write(bytes),
            // Nobody is there to read it.
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
