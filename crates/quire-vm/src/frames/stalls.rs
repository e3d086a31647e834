//! Whether tasks of this machine wait for memory: told by the kernel, or found out by
//! looking once a second where it lets nobody be told.

use std::os::fd::{BorrowedFd, OwnedFd};

use quire_linux::sysinfo::memory::stall_trigger;
use quire_linux::sysinfo::psi_memory;

/// So much waiting in a second counts, in microseconds: as much as the kernel would tell
/// of.
const MUCH_US: u64 = 50_000;
const SECOND_NS: u64 = 1_000_000_000;

pub(super) struct Stalls {
    trigger: Option<OwnedFd>,
    looked_ns: u64,
    total_us: u64,
}

impl Stalls {
    pub fn new() -> Stalls {
        Stalls {
            trigger: stall_trigger().ok(),
            looked_ns: 0,
            total_us: total(),
        }
    }

    /// What is polled by `POLLPRI`, where the kernel tells.
    pub fn trigger(&self) -> Option<BorrowedFd<'_>> {
        self.trigger.as_ref().map(std::os::fd::AsFd::as_fd)
    }

    /// Whether there was much waiting since the last look, if that was a second ago.
    pub fn look(&mut self, now_ns: u64) -> bool {
        if self.trigger.is_some() || now_ns < self.looked_ns + SECOND_NS {
            return false;
        }
        let seconds = (now_ns - self.looked_ns).div_ceil(SECOND_NS);
        let before = std::mem::replace(&mut self.total_us, total());
        let is_first = std::mem::replace(&mut self.looked_ns, now_ns) == 0;
        !is_first && self.total_us.saturating_sub(before) >= MUCH_US * seconds
    }
}

/// Where the kernel keeps no pressure, nobody waits.
fn total() -> u64 {
    psi_memory().map_or(0, |psi| psi.some.total_us)
}
