//! Address space that is ready to be handed out.
//!
//! To make a mapping and arm it takes several system calls, on another thread, which has
//! the descriptors. A program that maps and unmaps buffers of some
//! MiB pays that each time. So what such a mapping needs is done for several of
//! them at once: a run of the object is mapped without access and armed, and a
//! new mapping takes the next piece of it by getting access, which is one call.
//!
//! The program does not know these addresses. Should it name some of them all the
//! same, the rest of the run is unmapped first, so that it meets what it would
//! meet without Quire.

use quire_core::config::Policy;
use quire_core::kin::Start;
use quire_core::stat::{Privilege, RegionKind};
use quire_core::units::{AddrRange, Bytes, ObjectOffset, SUPERPAGE, VirtAddr};
use quire_linux::memory;
use quire_linux::raw::Result;
use quire_linux::thread;

use crate::extent::Work;
use crate::manager::{Manager, State};
use crate::mapping::READ_WRITE;
use crate::region::{Owner, enter};

/// How much is made ready at a time.
const RUN: Bytes = Bytes::mib(64);
/// Mappings above this size are made one by one: what they hold takes longer.
const LARGEST: Bytes = Bytes::mib(16);

/// A run of the object that is mapped without access.
#[derive(Debug)]
pub(crate) struct Spare {
    range: AddrRange,
    offset: ObjectOffset,
    /// Armed to be mapped whole, not for reservation.
    whole: bool,
}

impl Manager {
    /// Whether a mapping of the program can be a piece of such a run. Those that
    /// end within a superpage are armed in pieces; and where touches are not
    /// reported, the first extents are reserved at once.
    pub(crate) fn spare_suits(&self, state: &State, len: Bytes, start: Start) -> bool {
        let given = self.given(start);
        let whole = given >= len.0 / SUPERPAGE;
        len.0.is_multiple_of(SUPERPAGE)
            && len <= LARGEST
            && !state.locks_future
            && state.config.ahead == Bytes::ZERO
            && (whole || (given == 0 && self.privilege() == Privilege::Full))
            && state.spare.as_ref().is_none_or(|s| s.whole == whole)
    }

    /// How many extents of a new region are mapped whole at their first touch.
    pub(crate) fn given(&self, start: Start) -> u64 {
        match start {
            _ if self.policy() == Policy::Eager => u64::MAX,
            Start::Whole { extents } => extents,
            Start::Reserve | Start::Base => 0,
        }
    }

    /// Makes a new mapping of the next piece of the run. `None` where not enough
    /// is left.
    pub(crate) fn map_spare(
        &self,
        state: &mut State,
        len: Bytes,
        start: Start,
    ) -> Option<VirtAddr> {
        let spare = state.spare.as_mut().filter(|s| len <= s.range.len())?;
        let range = AddrRange::new(spare.range.start, len);
        // SAFETY: nobody knows the addresses yet.
        unsafe { memory::protect(range, READ_WRITE) }.ok()?;
        let (offset, whole) = (spare.offset, spare.whole);
        spare.range.start = range.end;
        spare.offset = offset + len;
        if spare.range.is_empty() {
            state.spare = None;
        }
        let owner = Owner::New(RegionKind::Anon, start);
        enter(self, state, owner, (range, offset), (whole, false));
        Some(range.start)
    }

    /// From now on the kernel locks what is mapped anew, or does not.
    pub fn lock_future(&self, locks: bool) {
        let mut state = self.state.lock();
        state.drop_spare();
        state.locks_future = locks;
    }
}

impl Work<'_> {
    /// Makes a new run ready.
    pub fn renew_spare(&mut self, start: Start) -> Result<()> {
        self.state.drop_spare();
        // Address space may be scarce.
        if thread::soft_limit(libc::RLIMIT_AS) != libc::RLIM64_INFINITY {
            return Ok(());
        }
        let (offset, _) = self.state.take_offsets(RUN.0 / SUPERPAGE);
        let range = AddrRange::new(self.place(VirtAddr(0), RUN, 0, offset)?, RUN);
        if self.holds_pages(range)? {
            self.state.locks_future = true;
            // SAFETY: the mapping was just made and nobody uses it.
            return unsafe { memory::unmap(range) };
        }
        let whole = self.manager.given(start) > 0;
        let whole_end = if whole { range.end } else { range.start };
        // SAFETY: the mapping was just made and nobody uses it.
        let ready = unsafe { memory::advise(range, memory::Advice::DontFork) }
            .and_then(|()| self.arm_fresh(range, whole_end))
            // SAFETY: as before.
            .and_then(|()| unsafe { memory::protect(range, libc::PROT_NONE) });
        if let Err(errno) = ready {
            // SAFETY: as before.
            unsafe { memory::unmap(range)? };
            return Err(errno);
        }
        self.state.spare = Some(Spare {
            range,
            offset,
            whole,
        });
        Ok(())
    }
}

impl State {
    /// Unmaps what is left of the run.
    pub fn drop_spare(&mut self) {
        if let Some(spare) = self.spare.take() {
            // SAFETY: nobody knows the addresses. Where the kernel refuses, they
            // stay without access and unused.
            let _ = unsafe { memory::unmap(spare.range) };
        }
    }

    /// The same, if the program names some of its addresses.
    pub fn clear_spare(&mut self, range: AddrRange) {
        let named = |spare: &Spare| !spare.range.intersect(range).is_empty();
        if self.spare.as_ref().is_some_and(named) {
            self.drop_spare();
        }
    }
}
