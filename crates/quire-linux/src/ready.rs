//! Waiting for several descriptors at once, for as short as microseconds. Not by `poll`: it refuses more descriptors
//! than `RLIMIT_NOFILE` allows, which a program may lower to nothing while they are open.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::raw::{Result, syscall};

/// What is waited for: at most eight descriptors, each with a bit that tells it from the others.
#[derive(Debug)]
pub struct Ready(OwnedFd);

const MOST: usize = 8;

/// When a descriptor counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// It can be read.
    Readable = libc::EPOLLIN as isize,
    /// It has something urgent, as triggers of memory pressure have.
    Urgent = libc::EPOLLPRI as isize,
}

impl Ready {
    /// Waits for nothing yet.
    ///
    /// # Errors
    /// As `epoll_create1`.
    pub fn new() -> Result<Ready> {
        let flags = libc::EPOLL_CLOEXEC as usize;
        // SAFETY: the call makes a descriptor and touches no memory.
        let fd = unsafe { syscall(libc::SYS_epoll_create1, [flags, 0, 0, 0, 0, 0])? };
        // SAFETY: the kernel just gave us this descriptor.
        Ok(Ready(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// Waits for this one, too, until it is closed; `bit` is told when it is ready.
    ///
    /// # Errors
    /// As `epoll_ctl`.
    pub fn add(&self, fd: &impl AsFd, when: When, bit: u64) -> Result<()> {
        let event = libc::epoll_event {
            events: when as u32,
            u64: bit,
        };
        let args = [
            self.0.as_raw_fd() as usize,
            libc::EPOLL_CTL_ADD as usize,
            fd.as_fd().as_raw_fd() as usize,
            (&raw const event) as usize,
            0,
            0,
        ];
        // SAFETY: the kernel reads the event, which lives until the call returns.
        unsafe { syscall(libc::SYS_epoll_ctl, args) }.map(drop)
    }

    /// Waits until one is ready, at most so long, and tells the bits of those that are. None where the time is over or
    /// a signal came.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>) -> u64 {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
        let time = timeout.map(|t| libc::timespec {
            tv_sec: t.as_secs() as i64,
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        let until = time.as_ref().map_or(0, |t| std::ptr::from_ref(t) as usize);
        let epoll = self.0.as_raw_fd() as usize;
        let args = [epoll, events.as_mut_ptr() as usize, MOST, until, 0, 0];
        // SAFETY: the kernel writes at most so many events, and reads the time, which lives until the call returns.
        let count = unsafe { syscall(libc::SYS_epoll_pwait2, args) }.unwrap_or(0);
        events[..count]
            .iter()
            .fold(0, |all, event| all | { event.u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::{new_event, signal_event};

    #[test]
    fn it_tells_which_and_keeps_time() {
        let ready = Ready::new().unwrap();
        let (one, other) = (new_event().unwrap(), new_event().unwrap());
        ready.add(&one, When::Readable, 1).unwrap();
        ready.add(&other, When::Readable, 2).unwrap();
        assert_eq!(ready.wait(Some(Duration::from_micros(50))), 0);
        signal_event(&other);
        assert_eq!(ready.wait(None), 2);
        signal_event(&one);
        assert_eq!(ready.wait(None), 3);
        // It is told as long as it is ready.
        assert_eq!(ready.wait(Some(Duration::ZERO)), 3);
    }
}
