//! What a distributed scheduler counts. Plain numbers, so that they can be copied at any
//! time.

use crate::dsm::message::Access;

/// Faults by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Someone needed a copy to read it.
    pub read: u64,
    /// Someone without a copy needed to write.
    pub write: u64,
    /// Someone with a copy needed to write to it (a protection fault).
    pub protection: u64,
}

impl Faults {
    /// All of them.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.read + self.write + self.protection
    }

    pub(super) fn count(&mut self, access: Access, has_copy: bool) {
        match (access, has_copy) {
            (Access::Read, _) => self.read += 1,
            (Access::Write, false) => self.write += 1,
            (Access::Write, true) => self.protection += 1,
        }
    }
}

/// Messages with one kind of client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To them.
    pub sent: u64,
    /// From them.
    pub received: u64,
}

/// What a server has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Faults of its own kernels, one per page.
    pub local: Faults,
    /// Faults of other servers that came here, forwarded ones too.
    pub remote: Faults,
    /// Those of them that were sent on.
    pub forwarded: Faults,
    /// Messages with its kernels.
    pub kernels: Traffic,
    /// Of those received, the `LockCompleted`s that came behind a `DataWrite` for the same
    /// flush. The paper takes both for one message (its procedure `pageout`).
    pub completions: u64,
    /// Messages with other servers.
    pub servers: Traffic,
    /// Of those received, the ones from an earlier view, which were dropped.
    pub outdated: u64,
    /// Copies of other servers that it had dropped.
    pub invalidations: u64,
    /// Views that it has entered.
    pub views: u64,
}
