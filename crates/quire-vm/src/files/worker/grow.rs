//! Copies of full extents into superpages, at a bounded rate: of managed memory
//! (`crate::grow`), and of regions that were left to the kernel (`crate::left`).
//!
//! A block is taken where one is free. Where none is, the kernel is left to compact
//! memory within an allowance (`crate::blocks`).

use std::os::fd::AsFd;
use std::time::Duration;

use quire_core::policy::ALLOWED_PART_FOR_COPIES;
use quire_core::stat::Counter;
use quire_core::units::Slot;
use quire_linux::huge_file::Effort;
use quire_linux::thread;

use super::{Kind, Worker};
use crate::blocks::Blocks;
use crate::files::view::View;
use crate::grow::Growable;

/// How long copies are made, and looked for, at a time.
const PIECE: Duration = Duration::from_millis(10);
/// Copies may take one part in this many of the time: the program's own calls and
/// faults wait meanwhile.
const SHARE: u64 = 10;

/// What is known of the work.
#[derive(Debug)]
pub(super) struct Grower {
    blocks: Blocks,
    /// What was found and not looked at yet, the first one last.
    found: Vec<Growable>,
    /// Where the search goes on; at the end it begins anew.
    next: Option<Slot>,
    next_ns: u64,
}

impl Grower {
    pub fn new() -> Grower {
        Grower {
            blocks: Blocks::new(ALLOWED_PART_FOR_COPIES),
            found: Vec::new(),
            next: None,
            next_ns: 0,
        }
    }
}

impl Worker {
    /// Makes superpages of some full extents. Says how many.
    pub(super) fn grow(&mut self) -> u64 {
        let began = thread::now_ns();
        if began < self.grower.next_ns {
            return 0;
        }
        let end = began + PIECE.as_nanos() as u64;
        let left = self.grow_left(end);
        self.manager.stats().add(Counter::Promotions, left);
        let made = left + self.grow_managed(end);
        if made > 0 {
            let ended = thread::now_ns();
            self.grower.next_ns = ended + SHARE * (ended - began);
        }
        made
    }

    /// Goes on through the managed extents, to the last one at most.
    fn grow_managed(&mut self, end: u64) -> u64 {
        let mut made = 0;
        let mut from = self.grower.next.or(Some(Slot(0)));
        loop {
            while let Some(growable) = self.grower.found.pop() {
                match self.look(growable) {
                    Some(grown) => made += u64::from(grown),
                    None => return made,
                }
                if thread::now_ns() >= end {
                    return made;
                }
            }
            let Some(start) = from else { return made };
            let found = &mut self.grower.found;
            from = self.manager.list_growable(start, found);
            found.reverse();
            self.grower.next = from;
        }
    }

    /// Looks at an extent, and makes a superpage of it if it is full: says whether
    /// it did. `None` where there is no block for it now.
    fn look(&mut self, growable: Growable) -> Option<bool> {
        let slot = growable.slot;
        let Ok(view) = View::of(self.pagemap.as_fd(), slot) else {
            return Some(false);
        };
        if view.is_superpage() != growable.grown {
            self.manager.note_grown(slot, view.is_superpage());
        }
        if view.is_full_of_base_pages() && self.may_try(slot) {
            self.grow_extent(slot)
        } else {
            Some(false)
        }
    }

    /// Makes a superpage of a managed extent. `None` where there is no block for it
    /// now.
    fn grow_extent(&mut self, slot: Slot) -> Option<bool> {
        let effort = self.grower.blocks.effort()?;
        let Some(growth) = self.manager.begin_growth(slot) else {
            return Some(false);
        };
        let (whole, took) = self.copy(slot, effort);
        self.manager.end_growth(&growth, whole, took);
        Some(whole)
    }

    /// Makes superpages of full extents of regions that were left to base pages.
    fn grow_left(&mut self, end: u64) -> u64 {
        let mut made = 0;
        for range in self.manager.grown_left() {
            let here = self.collapse_all(range, Kind::Filled, end);
            if here > 0 {
                self.manager.note_left_dense(range, here);
            }
            made += here;
        }
        made
    }

    /// Makes a superpage of an extent of such a region, if there is a block for it
    /// now.
    pub(super) fn grow_left_extent(&mut self, slot: Slot) -> bool {
        let effort = self.grower.blocks.effort();
        effort.is_some_and(|effort| self.copy(slot, effort).0)
    }

    /// Copies an extent. Says whether it is a superpage, and how long that took.
    fn copy(&mut self, slot: Slot, effort: Effort) -> (bool, Duration) {
        let began = thread::now_ns();
        let whole = self.collapse(slot, Kind::Filled);
        let took = Duration::from_nanos(thread::now_ns() - began);
        self.grower.blocks.note(effort, whole, took);
        (whole, took)
    }
}
