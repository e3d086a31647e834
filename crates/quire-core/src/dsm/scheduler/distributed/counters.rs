//! What a distributed scheduler counts. Plain numbers, so that they can be copied at any
//! time.

pub use crate::dsm::scheduler::observe::Faults;

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
