//! Until when mappings may show what they show: shared by those who change it, and the revoker.
//!
//! The revoker must not touch addresses that are the program's again. So each mapping that it watches
//! has a slot with a state, and who is going to unmap it first waits until the revoker has its hands
//! off ([`Watched`]). The revoker waits for nobody: the threads of the program may be stopped anywhere.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quire_core::units::{AddrRange, VirtAddr};

use crate::futex;
use crate::memory::{self, Advice};
use crate::raw::{Errno, syscall};
use crate::thread::{now_ns, process_id};

/// The states of a slot. It is nobody's.
const FREE: u32 = 0;
/// Somebody writes the addresses of a mapping there.
const CLAIMED: u32 = 1;
/// The mapping is watched.
const WATCHED: u32 = 2;
/// The revoker takes its pages.
const TAKEN_FROM: u32 = 3;

/// When pages were taken, it is looked so often whether the time is another one.
const LOOK: Duration = Duration::from_millis(100);
/// The same while the pages may be had for ever.
const RARE_LOOK: Duration = Duration::from_secs(10);
/// Who waits for a revoker looks so often whether it is there.
const HANDS_OFF: Duration = Duration::from_millis(1);

/// There is no end.
const NEVER: u64 = 0;

/// Where the addresses of a mapping are, as long as it is watched.
#[derive(Debug)]
struct Slot {
    state: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
}

/// Some slots. When all are taken, there are more, which are there until the end.
#[derive(Debug)]
struct Slots {
    slots: [Slot; 64],
    more: AtomicPtr<Slots>,
}

impl Slots {
    const fn new() -> Slots {
        Slots {
            slots: [const {
                Slot {
                    state: AtomicU32::new(FREE),
                    start: AtomicU64::new(0),
                    end: AtomicU64::new(0),
                }
            }; 64],
            more: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

/// How long the mappings of a process may show what they show.
#[derive(Debug)]
pub struct Term {
    /// On the monotonic clock, in nanoseconds.
    ends: AtomicU64,
    /// Changes when the revoker is to look at it at once.
    look: AtomicU32,
    /// Not 0 when a revoker watches.
    is_watched: AtomicU32,
    /// The revoker is to end.
    is_dismissed: AtomicU32,
    /// The number of the revoker's process, or 0.
    revoker: AtomicU32,
    /// The process whose mappings these are.
    owner: u32,
    slots: Slots,
}

/// A mapping that is watched until this is dropped. To be dropped before it is unmapped.
#[derive(Debug)]
pub struct Watched {
    term: Arc<Term>,
    slot: ptr::NonNull<Slot>,
}

// SAFETY: the slot is one of the term's, which is shared by threads, and made of atomics.
unsafe impl Send for Watched {}
// SAFETY: as above.
unsafe impl Sync for Watched {}

impl Term {
    /// For mappings of this process; without an end.
    #[must_use]
    pub fn new() -> Term {
        Term {
            ends: AtomicU64::new(NEVER),
            look: AtomicU32::new(0),
            is_watched: AtomicU32::new(0),
            is_dismissed: AtomicU32::new(0),
            revoker: AtomicU32::new(0),
            owner: process_id(),
            slots: Slots::new(),
        }
    }

    /// From now on, it ends at a time on the monotonic clock; or it has no end.
    pub fn set_end(&self, end: Option<Duration>) {
        let end = end.map_or(NEVER, |end| {
            u64::try_from(end.as_nanos()).unwrap_or(u64::MAX).max(1)
        });
        let before = self.ends.swap(end, Ordering::SeqCst);
        // A later end is seen when the earlier one comes.
        if before == NEVER || end < before {
            self.wake();
        }
    }

    /// Whether it is over: nothing may be shown any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let end = self.ends.load(Ordering::SeqCst);
        end != NEVER && end <= now_ns()
    }

    /// Has a mapping watched: one of memory that stays when it is taken from the mapping, like a
    /// file's.
    pub fn watch(self: &Arc<Term>, mapping: AddrRange) -> Watched {
        let slot = self.free_slot();
        slot.start.store(mapping.start.0, Ordering::Relaxed);
        slot.end.store(mapping.end.0, Ordering::Relaxed);
        slot.state.store(WATCHED, Ordering::Release);
        Watched {
            slot: slot.into(),
            term: Arc::clone(self),
        }
    }

    /// A slot that is claimed.
    fn free_slot(&self) -> &Slot {
        let mut some = &self.slots;
        loop {
            let claim = |slot: &&Slot| {
                let (order, otherwise) = (Ordering::Acquire, Ordering::Relaxed);
                let claimed = slot.state.compare_exchange(FREE, CLAIMED, order, otherwise);
                claimed.is_ok()
            };
            if let Some(slot) = some.slots.iter().find(claim) {
                return slot;
            }
            some = self.more(some);
        }
    }

    /// The slots behind some.
    fn more<'a>(&'a self, some: &'a Slots) -> &'a Slots {
        if some.more.load(Ordering::Acquire).is_null() {
            let new = Box::into_raw(Box::new(Slots::new()));
            let (order, otherwise) = (Ordering::AcqRel, Ordering::Acquire);
            let put = some
                .more
                .compare_exchange(ptr::null_mut(), new, order, otherwise);
            if put.is_err() {
                // SAFETY: somebody else was first, and nobody has seen these.
                drop(unsafe { Box::from_raw(new) });
            }
        }
        // SAFETY: what is there is never null again, and lives as long as the term.
        unsafe { &*some.more.load(Ordering::Acquire) }
    }

    /// The process whose mappings these are.
    pub(super) const fn owner(&self) -> u32 {
        self.owner
    }

    pub(super) fn set_revoker(&self, process: u32) {
        self.revoker.store(process, Ordering::SeqCst);
    }

    /// Whether there is a revoker that has not ended.
    pub(super) fn has_revoker(&self) -> bool {
        let revoker = self.revoker.load(Ordering::SeqCst);
        revoker != 0 && !has_ended(revoker)
    }

    /// A revoker is going to begin.
    pub(super) fn engage(&self) {
        self.is_dismissed.store(0, Ordering::SeqCst);
        self.is_watched.store(0, Ordering::SeqCst);
    }

    /// Waits until the revoker watches; whether it does within a time, and does not end before.
    pub(super) fn is_watched_within(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while self.is_watched.load(Ordering::SeqCst) == 0 {
            if Instant::now() >= end || !self.has_revoker() {
                return false;
            }
            futex::wait_for(&self.is_watched, 0, HANDS_OFF);
        }
        true
    }

    /// The revoker is to end.
    pub(super) fn dismiss(&self) {
        self.is_dismissed.store(1, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        self.look.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.look);
    }

    /// What the revoker does, until it is dismissed. As it says there, it has nothing of a thread.
    pub(super) fn keep_watch(&self) {
        self.is_watched.store(1, Ordering::SeqCst);
        futex::wake_all(&self.is_watched);
        // The end for which the pages were taken.
        let mut over = NEVER;
        loop {
            let look = self.look.load(Ordering::SeqCst);
            if self.is_dismissed.load(Ordering::SeqCst) != 0 {
                return;
            }
            let (end, now) = (self.ends.load(Ordering::SeqCst), now_ns());
            if end == NEVER || end == over {
                // Whoever has started it has ended in most cases when it sees that: it was killed then, but not where
                // the program has become another user.
                if is_left_alone(self.owner) {
                    return;
                }
                let pause = if end == NEVER { RARE_LOOK } else { LOOK };
                futex::wait_for(&self.look, look, pause);
            } else if now < end {
                futex::wait_for(&self.look, look, Duration::from_nanos(end - now));
            } else {
                self.take_all();
                over = end;
            }
        }
    }

    /// Takes all pages from all mappings.
    fn take_all(&self) {
        let mut some = &raw const self.slots;
        while !some.is_null() {
            // SAFETY: slots live as long as the term.
            let slots = unsafe { &*some };
            slots.slots.iter().for_each(Slot::take);
            some = slots.more.load(Ordering::Acquire);
        }
    }
}

impl Default for Term {
    fn default() -> Term {
        Term::new()
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        let mut more = *self.slots.more.get_mut();
        while !more.is_null() {
            // SAFETY: each was made by a box, and nobody has the term any more.
            let mut slots = unsafe { Box::from_raw(more) };
            more = *slots.more.get_mut();
        }
    }
}

impl Slot {
    /// Takes the pages of the mapping, if there is one.
    fn take(&self) {
        let (order, otherwise) = (Ordering::Acquire, Ordering::Relaxed);
        let is_held = self
            .state
            .compare_exchange(WATCHED, TAKEN_FROM, order, otherwise);
        if is_held.is_err() {
            return;
        }
        let range = AddrRange {
            start: VirtAddr(self.start.load(Ordering::Relaxed)),
            end: VirtAddr(self.end.load(Ordering::Relaxed)),
        };
        #[cfg(test)]
        super::tests::pause();
        // SAFETY: as long as the state says so, the addresses are those of a mapping whose memory
        // stays. Where parts of it are gone, pages are taken from the others.
        let _ = unsafe { memory::advise(range, Advice::DontNeedLocked) };
        self.state.store(WATCHED, Ordering::Release);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if process_id() != self.term.owner {
            // A fork's copy: nobody watches there, and a state is whatever it was.
            return;
        }
        // SAFETY: the slot is one of the term's.
        let state = unsafe { &self.slot.as_ref().state };
        loop {
            let (order, otherwise) = (Ordering::AcqRel, Ordering::Relaxed);
            let freed = state.compare_exchange(WATCHED, FREE, order, otherwise);
            if freed.is_ok() {
                return;
            }
            if !self.term.has_revoker() {
                // It was killed while it took pages.
                return state.store(FREE, Ordering::Release);
            }
            futex::wait_for(state, TAKEN_FROM, HANDS_OFF);
        }
    }
}

/// Whether a process is gone, or has other memory than this one: it has executed another program in the thread
/// that started the revoker, which goes on in it.
fn is_left_alone(owner: u32) -> bool {
    const KCMP_VM: usize = 1;
    let args = [process_id() as usize, owner as usize, KCMP_VM, 0, 0, 0];
    // SAFETY: the call only compares. A system that does not offer it says so.
    match unsafe { syscall(libc::SYS_kcmp, args) } {
        Ok(order) => order != 0,
        Err(errno) => errno == Errno(libc::ESRCH),
    }
}

/// Whether a child of this process has ended, or is none any more.
fn has_ended(child: u32) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    let (which, info_at) = (libc::P_PID as usize, info.as_mut_ptr() as usize);
    let args = [which, child as usize, info_at, options as usize, 0, 0];
    // SAFETY: the kernel writes to no more than the structure, and nobody is reaped.
    let looked = unsafe { syscall(libc::SYS_waitid, args) };
    // SAFETY: all bytes are zero where the kernel wrote nothing, which it may be.
    let info = unsafe { info.assume_init() };
    // SAFETY: the field is where the kernel puts the number for this call, or zero.
    looked.is_err() || unsafe { info.si_pid() } != 0
}
