//! Another process's memory: advice by `process_madvise`, and looking at it.
//!
//! Nothing here stops the process or can change what its memory holds, so
//! nothing here is `unsafe` for the caller. A process is named by a descriptor
//! (`pidfd`), so a number that the kernel gives to a new process is never
//! mistaken for the old one.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use quire_core::units::{AddrRange, BASE_PAGE, Bytes, Slot, VirtAddr};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::memory::Advice;
use crate::raw::{Errno, Result, syscall};

/// `MADV_COLD`: the range is not needed soon.
const COLD: i32 = 20;

/// Another process.
#[derive(Debug)]
pub struct Remote {
    pid: u32,
    fd: OwnedFd,
}

/// A piece of memory as the kernel takes it.
#[repr(C)]
struct Piece {
    start: usize,
    len: usize,
}

impl Piece {
    const fn of(range: AddrRange) -> Piece {
        Piece {
            start: range.start.0 as usize,
            len: range.len().0 as usize,
        }
    }
}

impl Remote {
    /// The process `pid` as it is now.
    ///
    /// # Errors
    /// As `pidfd_open`: `ESRCH` when there is none.
    pub fn open(pid: u32) -> Result<Remote> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or(Errno(libc::ESRCH))?;
        let fd = pidfd_open(number, PidfdFlags::empty()).map_err(|e| Errno(e.raw_os_error()))?;
        Ok(Remote { pid, fd })
    }

    /// Its number.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0))
    }

    /// Makes one superpage of an extent, as far as the kernel allows it
    /// (Linux 6.1). The pages are copied; the program waits when it touches
    /// them meanwhile.
    ///
    /// # Errors
    /// As `process_madvise`: `ESRCH` when the process is gone, `ENOMEM` when
    /// there is no free block or nothing is mapped, `EBUSY` when the control
    /// group of the process is full, `EINVAL` when the mapping may not have
    /// superpages, `EAGAIN` when pages are in use.
    pub fn collapse(&self, slot: Slot) -> Result<()> {
        self.advise(slot.range(), Advice::Collapse as i32)
    }

    /// Splits a superpage into base pages. Since Linux 6.12 those that hold
    /// only zeros are freed: the kernel's page of zeros takes their place.
    ///
    /// Advice to treat one page as not needed soon makes the kernel split the
    /// superpage that it lies in. The advice itself only moves that page to
    /// another list of the kernel.
    ///
    /// # Errors
    /// As `process_madvise`.
    pub fn split(&self, slot: Slot) -> Result<()> {
        let last = VirtAddr(slot.next().start().0 - BASE_PAGE);
        self.advise(AddrRange::new(last, Bytes(BASE_PAGE)), COLD)
    }

    fn advise(&self, range: AddrRange, advice: i32) -> Result<()> {
        let piece = Piece::of(range);
        let args = [
            self.fd.as_raw_fd() as usize,
            (&raw const piece) as usize,
            1,
            advice as usize,
            0,
            0,
        ];
        // SAFETY: the kernel reads one piece, which lives until the call
        // returns. `MADV_COLLAPSE` and `MADV_COLD` change how the memory of the
        // other process is backed, and never what it holds.
        unsafe { syscall(libc::SYS_process_madvise, args) }.map(drop)
    }

    /// Copies memory of the process into `buffer`, and says how many bytes
    /// could be copied.
    ///
    /// # Errors
    /// As `process_vm_readv`.
    pub fn read(&self, from: VirtAddr, buffer: &mut [u8]) -> Result<usize> {
        let own = Piece {
            start: buffer.as_mut_ptr() as usize,
            len: buffer.len(),
        };
        let other = Piece::of(AddrRange::new(from, Bytes(buffer.len() as u64)));
        let args = [
            self.pid as usize,
            (&raw const own) as usize,
            1,
            (&raw const other) as usize,
            1,
            0,
        ];
        // SAFETY: the kernel writes at most `buffer.len()` bytes to the buffer,
        // which is borrowed mutably for the call, and reads two pieces that live
        // until it returns.
        unsafe { syscall(libc::SYS_process_vm_readv, args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_can_be_read() {
        let own = Remote::open(std::process::id()).unwrap();
        assert!(own.is_alive());
        let text = *b"superpage";
        let mut copy = [0; 9];
        let at = VirtAddr(text.as_ptr() as u64);
        assert_eq!(own.read(at, &mut copy), Ok(9));
        assert_eq!(copy, text);
        assert_eq!(own.read(VirtAddr(0), &mut copy), Err(Errno(libc::EFAULT)));
    }

    #[test]
    fn who_is_gone_is_not_found() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let remote = Remote::open(child.id()).unwrap();
        child.wait().unwrap();
        assert!(!remote.is_alive());
        assert_eq!(remote.collapse(Slot(8)), Err(Errno(libc::ESRCH)));
        assert!(Remote::open(child.id()).is_err());
        assert!(Remote::open(0).is_err());
    }
}
