//! Regions that were left to the kernel's base pages, because those of their size
//! that came before were sparse and ended soon (`quire_core::kin`).
//!
//! They are plain private memory, which the table does not know. What became of
//! one is looked at when it ends, by a few of its extents, which costs a few
//! microseconds and no descriptor. One that lives on becomes superpages where it
//! is full, as stacks do (`files::worker`). Should a note here be out of date,
//! because the program changed the mapping by instructions of its own, it only
//! leads to a look at memory that is something else now.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quire_core::kin::Outcome;
use quire_core::units::{AddrRange, Bytes, PAGES_PER_SUPERPAGE, PageCount, Slot, VirtAddr};
use quire_linux::memory;
use quire_linux::raw::Result;

use crate::extent::now_ms;
use crate::manager::{Manager, State};
use crate::mapping::{PLACED, READ_WRITE};

/// How many are known at a time; no more are left.
const MOST: usize = 256;
/// How many extents of one are looked at when it ends.
const SAMPLED: u64 = 4;
/// How old one must be before superpages are made of it.
const GROWN_MS: u64 = 100;

/// What is known of one.
#[derive(Clone, Copy, Debug)]
struct Left {
    len: Bytes,
    /// The size that it began with.
    size: Bytes,
    born_ms: u64,
    /// What it did has been noted for its kin.
    noted: bool,
}

/// The regions that were left, by their first address.
#[derive(Debug, Default)]
pub(crate) struct LeftRegions(BTreeMap<VirtAddr, Left>);

impl LeftRegions {
    /// None.
    pub const fn new() -> LeftRegions {
        LeftRegions(BTreeMap::new())
    }

    /// Whether one more can be left.
    pub fn has_room(&self) -> bool {
        self.0.len() < MOST
    }

    /// Forgets those of which something lies in `range`.
    fn take(&mut self, range: AddrRange) -> Vec<(AddrRange, Left)> {
        let whole = |(at, left): (&VirtAddr, &Left)| (AddrRange::new(*at, left.len), *left);
        let below = self.0.range(..range.end).rev();
        let touched: Vec<(AddrRange, Left)> = below
            .map(whole)
            .take_while(|(place, _)| place.end > range.start)
            .collect();
        for (place, _) in &touched {
            self.0.remove(&place.start);
        }
        touched
    }
}

impl Manager {
    /// Maps a region as it would be without Quire.
    pub(crate) fn leave(
        &self,
        state: &mut State,
        hint: VirtAddr,
        len: Bytes,
        flags: i32,
    ) -> Result<VirtAddr> {
        let aligned = self.aligns() && hint.0 == 0 && flags & PLACED == 0;
        let (at, how) = if aligned {
            (memory::reserve_space(len, 0)?, flags | libc::MAP_FIXED)
        } else {
            (hint, flags)
        };
        // SAFETY: it replaces nothing but address space that was just reserved, or
        // what the program asked to be replaced.
        let at = unsafe { memory::map_anonymous(at, len, READ_WRITE, how)? };
        let left = Left {
            len,
            size: len,
            born_ms: now_ms(),
            noted: false,
        };
        state.left.take(AddrRange::new(at, len));
        state.left.0.insert(at, left);
        self.any_left.store(true, Ordering::Release);
        Ok(at)
    }

    /// Whether regions were left. Cheap, for every call on a mapping.
    pub(crate) fn has_left(&self) -> bool {
        self.any_left.load(Ordering::Acquire)
    }

    /// Looks at regions that end with a range, before it is unmapped or mapped
    /// over.
    pub(crate) fn end_left(&self, state: &mut State, range: AddrRange) {
        if !self.has_left() {
            return;
        }
        for (place, left) in state.left.take(range) {
            if range.contains(place) && !left.noted {
                state.kinship.note_left(left.size, &sample(place, &left));
            }
        }
        self.any_left
            .store(!state.left.0.is_empty(), Ordering::Release);
    }

    /// Notes that the program has moved or resized a mapping that is the
    /// kernel's.
    pub fn note_moved(&self, old: AddrRange, new: AddrRange) {
        if !self.has_left() {
            return;
        }
        let mut state = self.state.lock();
        state.left.take(new);
        for (place, left) in state.left.take(old) {
            if place.start == old.start {
                let len = new.len().to_pages().to_bytes();
                state.left.0.insert(new.start, Left { len, ..left });
            }
        }
    }

    /// Those that have lived for a while.
    pub(crate) fn grown_left(&self) -> Vec<AddrRange> {
        if !self.has_left() {
            return Vec::new();
        }
        let state = self.state.lock();
        let now = now_ms();
        let grown = state.left.0.iter();
        grown
            .filter(|(_, left)| left.born_ms + GROWN_MS <= now)
            .map(|(at, left)| AddrRange::new(*at, left.len))
            .collect()
    }

    /// Notes that superpages could be made of a region that was left.
    pub(crate) fn note_left_dense(&self, range: AddrRange, superpages: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(left) = state.left.0.get_mut(&range.start)
            && !std::mem::replace(&mut left.noted, true)
        {
            let outcome = Outcome {
                extents: superpages,
                populated: PageCount(superpages * PAGES_PER_SUPERPAGE as u64),
                lifetime: None,
            };
            state.kinship.note_left(left.size, &outcome);
        }
    }
}

/// How much some extents of a region hold, which stand for all.
fn sample(place: AddrRange, left: &Left) -> Outcome {
    let slots = place.whole_slots();
    let count = slots.end.saturating_sub(slots.start);
    let sampled = count.min(SAMPLED);
    let mut outcome = Outcome {
        extents: 0,
        populated: PageCount(0),
        lifetime: Some(Duration::from_millis(now_ms() - left.born_ms)),
    };
    for n in 0..sampled {
        let slot = Slot(slots.start + n * count / sampled);
        // Where a part is not mapped any more, nothing is said of it.
        let held = memory::cached_pages(slot).unwrap_or(PageCount(0));
        outcome.extents += u64::from(held.0 > 0);
        outcome.populated += held;
    }
    outcome
}
