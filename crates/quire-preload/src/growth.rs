//! How much the process has grown, and when the helper is started.
//!
//! Each superpage-sized extent in which memory was asked for is counted once. So a program that allocates and frees
//! the same memory again and again has not grown, and asking costs a look at one byte, which is written only once.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use quire_core::units::{AddrRange, BASE_PAGE, SUPERPAGE, VirtAddr};
use quire_linux::futex;

use crate::state::{self, EXTENTS, State};
use crate::{helper, settings};

/// The process has grown when it has asked for memory in so many extents: 64 MiB.
pub const GROWN: u32 = 32;
/// After a failure the helper is tried again when so many more have been asked for.
const RETRY: u32 = 32;
/// How long the program waits for the helper's end at most, where that matters: the helper sleeps most of the time,
/// and is gone in less than a millisecond then.
const LEAVING: Duration = Duration::from_secs(2);
/// So many ranges are kept of which the program said last that it wants no superpages there.
const FORBIDDEN: usize = 8;

/// The program serves faults or forbids system calls: its memory is left alone from now on. Children inherit it.
static LEFT_ALONE: AtomicBool = AtomicBool::new(false);
/// How often the program has said of some memory that it wants no superpages there.
static FORBIDS: AtomicUsize = AtomicUsize::new(0);
/// Of which memory, the last times: the first of its pages and the one behind it. Addresses are kept as numbers of
/// pages, here and below: a leak checker that finds one in a library's data takes the block for reachable.
static FORBIDDEN_RANGES: [[AtomicU64; 2]; FORBIDDEN] =
    [const { [const { AtomicU64::new(0) }; 2] }; FORBIDDEN];
/// The lowest and the end of all pages that the helper has advised; children inherit what was advised.
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
    state.ends.store(false, Ordering::Relaxed);
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

/// Whether the helper is to end.
pub fn ends(state: &State) -> bool {
    is_left_alone() || state.ends.load(Ordering::Acquire)
}

/// The program is about to do what nobody may interfere with: its memory is left alone from now on. A filter of
/// system calls may be for all threads, and kill the process for one that the helper makes.
pub fn leave_alone() {
    LEFT_ALONE.store(true, Ordering::Release);
    end_helper();
}

/// A thread of the program is about to end by the bare system call. Where it is the last one, the process has its
/// status; so the helper ends first. It comes back when the process grows.
pub fn end_helper() {
    let Some(state) = state::get().filter(|state| state.helper.is_there()) else {
        return;
    };
    state.ends.store(true, Ordering::Release);
    call(state);
    let id = state.helper.id();
    let until = quire_linux::thread::now_ns() + LEAVING.as_nanos() as u64;
    loop {
        let there = id.load(Ordering::Acquire);
        if there == 0 || quire_linux::thread::now_ns() >= until {
            return;
        }
        futex::wait_shared_for(id, there, LEAVING / 100);
    }
}

/// The program is about to say that it wants no superpages in a range.
pub fn note_forbidden(at: *const u8, len: usize) {
    let count = FORBIDS.load(Ordering::Relaxed);
    let [start, end] = &FORBIDDEN_RANGES[count % FORBIDDEN];
    start.store(at as u64 / BASE_PAGE, Ordering::Relaxed);
    let behind = (at as u64).saturating_add(len as u64).div_ceil(BASE_PAGE);
    end.store(behind, Ordering::Relaxed);
    FORBIDS.fetch_add(1, Ordering::Release);
}

/// How often the program has said that it wants no superpages somewhere.
pub fn forbidden() -> usize {
    FORBIDS.load(Ordering::Acquire)
}

/// What of a range the program may have wanted no superpages in since it had said so `before` times. Where it has
/// said so too often to know, all of it.
pub fn forbidden_since(before: usize, range: AddrRange) -> impl Iterator<Item = AddrRange> {
    let now = forbidden();
    // Two threads that say so at a time may have noted the same place.
    let is_known = now.wrapping_sub(before) <= 1;
    let all = (!is_known).then_some(range);
    let last = (is_known && now != before).then(|| {
        let [start, end] = &FORBIDDEN_RANGES[before % FORBIDDEN];
        let said = AddrRange {
            start: VirtAddr(start.load(Ordering::Relaxed) * BASE_PAGE),
            end: VirtAddr(end.load(Ordering::Relaxed).saturating_mul(BASE_PAGE)),
        };
        said.intersect(range)
    });
    all.into_iter().chain(last).filter(|part| !part.is_empty())
}

/// The helper has advised a range.
pub fn note_advised(start: VirtAddr, end: VirtAddr) {
    ADVISED[0].fetch_min(start.0 / BASE_PAGE, Ordering::Relaxed);
    ADVISED[1].fetch_max(end.0.div_ceil(BASE_PAGE), Ordering::Relaxed);
}

/// Whether some of a range may have been advised.
pub fn may_be_advised(at: *const u8, len: usize) -> bool {
    let start = at as u64 / BASE_PAGE;
    let end = (at as u64).saturating_add(len as u64).div_ceil(BASE_PAGE);
    start < ADVISED[1].load(Ordering::Relaxed) && end > ADVISED[0].load(Ordering::Relaxed)
}
