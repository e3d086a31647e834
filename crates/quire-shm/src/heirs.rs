//! What was removed goes with the last that has it open. A child of `fork` opens it by itself, before
//! `fork` returns there: if its parent ended sooner, there would be nothing left. So a parent that has any
//! objects waits for that, in `fork`, as programs that become daemons end at once. Whether they were removed
//! it does not know: any program may do that, at any moment.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::pipe::{PipeFlags, pipe_with};

/// Longer than a child needs where a server is there. Without one nothing goes, either.
const PATIENCE: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// A pipe that a child closes when it has opened everything, or has ended.
pub struct Heirs {
    parent: OwnedFd,
    child: OwnedFd,
}

impl Heirs {
    /// Before the fork. None where there are no descriptors for it.
    pub fn new() -> Option<Heirs> {
        let (parent, child) = pipe_with(PipeFlags::CLOEXEC).ok()?;
        Some(Heirs { parent, child })
    }

    /// In the parent: waits until the child's are closed.
    pub fn wait(self) {
        let Heirs { parent, child } = self;
        drop(child);
        let mut closed = [PollFd::new(&parent, PollFlags::IN)];
        // Signals are blocked; whatever else is wrong, nobody waits for it.
        let _ = poll(&mut closed, Some(&PATIENCE));
    }
}
