//! How much the process has grown, and when the helper is started.
//!
//! Each superpage-sized extent in which memory was asked for is counted once. So a program that allocates and frees
//! the same memory again and again has not grown, and asking costs a look at one byte, which is written only once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quire_core::units::{SUPERPAGE, VirtAddr};
use quire_linux::futex;

use crate::state::{self, EXTENTS, State};
use crate::{helper, settings};

/// The process has grown when it has asked for memory in so many extents: 64 MiB.
pub const GROWN: u32 = 32;
/// After a failure the helper is tried again when so many more have been asked for.
const RETRY: u32 = 32;
/// How long the program waits for the helper's end, where it is about to forbid system calls to all threads.
const LEAVING: Duration = Duration::from_millis(50);

/// The program serves faults or forbids system calls: its memory is left alone from now on. Children inherit it.
static LEFT_ALONE: AtomicBool = AtomicBool::new(false);
/// The program has said of some memory that it wants no superpages there.
static FORBIDS: AtomicBool = AtomicBool::new(false);
/// The lowest and the end of all addresses that the helper has advised; children inherit what was advised.
static ADVISED: [AtomicU64; 2] = [AtomicU64::new(u64::MAX), AtomicU64::new(0)];

/// Memory was asked for: `len` bytes at `at`.
#[inline]
pub fn note(at: *const u8, len: usize) {
    if let Some(state) = state::get() {
        let first = at as usize / SUPERPAGE as usize;
        let last = (at as usize).wrapping_add(len.saturating_sub(1)) / SUPERPAGE as usize;
        let seen = |slot: usize| state.seen[slot % EXTENTS].load(Ordering::Relaxed) != 0;
        if !(seen(first) && seen(last)) {
            grown(state, first, last);
        }
    }
}

#[cold]
fn grown(state: &'static State, first: usize, last: usize) {
    let mut new = 0;
    for slot in (first..=last).take(EXTENTS) {
        new += u32::from(state.seen[slot % EXTENTS].swap(1, Ordering::Relaxed) == 0);
    }
    let extents = state.extents.fetch_add(new, Ordering::Relaxed) + new;
    if extents < GROWN || LEFT_ALONE.load(Ordering::Relaxed) || !settings::has_helper() {
        return;
    }
    if !state.helper.is_there() {
        start(state, extents);
    } else if state.sleeps.load(Ordering::Relaxed) {
        call(state);
    }
}

fn start(state: &'static State, extents: u32) {
    if extents < state.retry_at.load(Ordering::Relaxed) {
        return;
    }
    if helper::start(state).is_err() {
        state
            .retry_at
            .store(extents.saturating_add(RETRY), Ordering::Relaxed);
    }
}

/// Wakes the helper.
fn call(state: &State) {
    state.sleeps.store(false, Ordering::Relaxed);
    state.call.fetch_add(1, Ordering::Release);
    futex::wake_all(&state.call);
}

/// Whether the program's memory is left alone.
pub fn is_left_alone() -> bool {
    LEFT_ALONE.load(Ordering::Acquire)
}

/// The program is about to do what nobody may interfere with: its memory is left alone from now on. A filter of
/// system calls may be for all threads; so the helper, which sleeps most of the time, is given a moment to end.
pub fn leave_alone() {
    LEFT_ALONE.store(true, Ordering::Release);
    let Some(state) = state::get() else { return };
    if !state.helper.is_there() {
        return;
    }
    call(state);
    let id = state.helper.id();
    let until = quire_linux::thread::now_ns() + LEAVING.as_nanos() as u64;
    loop {
        let there = id.load(Ordering::Acquire);
        if there == 0 || quire_linux::thread::now_ns() >= until {
            return;
        }
        futex::wait_shared_for(id, there, LEAVING / 10);
    }
}

/// The program wants no superpages somewhere.
pub fn note_forbidden() {
    FORBIDS.store(true, Ordering::Relaxed);
}

/// Whether the program wants no superpages somewhere.
pub fn has_forbidden() -> bool {
    FORBIDS.load(Ordering::Relaxed)
}

/// The helper has advised a range.
pub fn note_advised(start: VirtAddr, end: VirtAddr) {
    ADVISED[0].fetch_min(start.0, Ordering::Relaxed);
    ADVISED[1].fetch_max(end.0, Ordering::Relaxed);
}

/// Whether some of a range may have been advised.
pub fn may_be_advised(at: *const u8, len: usize) -> bool {
    let (start, end) = (at as u64, (at as u64).saturating_add(len as u64));
    start < ADVISED[1].load(Ordering::Relaxed) && end > ADVISED[0].load(Ordering::Relaxed)
}
