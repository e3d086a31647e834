//! Memory that the kernel is about to write to for the program.
//!
//! A thread that meets a missing page in a system call cannot stop until the pager has answered: not for a signal that
//! stops it, not for a debugger, and not for the freezer, which stops the pager at the same moment. So the first touch
//! of an extent is made before the call, where the thread can stop at any time. The kernel's own touches are of pages
//! of a file that is there, and nobody hears of them.

use std::sync::atomic::{AtomicU64, Ordering};

use quire_core::stat::Privilege;
use quire_core::units::{AddrRange, Slot, VirtAddr};

use crate::hands;
use crate::manager::{Manager, State};
use crate::table::{Extent, ExtentState};

/// Extents that were found touched, each with the number of the look's age: reading into the same buffer again costs
/// no lock.
static TOUCHED: [AtomicU64; PLACES as usize] = [const { AtomicU64::new(0) }; PLACES as usize];
const PLACES: u64 = 256;
/// How often some extents have become empty.
static AGE: AtomicU64 = AtomicU64::new(0);
/// An age has no more bits than the number of an extent leaves.
const AGES: u64 = 1 << 36;

/// Some extents are empty that may not have been before.
pub(crate) fn note_empty() {
    AGE.fetch_add(1, Ordering::AcqRel);
}

/// What is noted of an extent that was found touched.
fn mark(slot: Slot) -> u64 {
    (slot.0 << 36) | (AGE.load(Ordering::Acquire) % AGES)
}

fn place(slot: Slot) -> &'static AtomicU64 {
    &TOUCHED[(slot.0 % PLACES) as usize]
}

impl Manager {
    /// Touches the extents of a range of which no touch has been reported. The calling thread may wait for the pager,
    /// as it would in the call.
    pub fn before_kernel_writes(&self, range: AddrRange) {
        if range.is_empty()
            || self.privilege() != Privilege::Full
            || !self.manages_some()
            || hands::is_ours()
        {
            return;
        }
        for slot in range.slots().map(Slot) {
            let mark = mark(slot);
            if place(slot).load(Ordering::Acquire) == mark {
                continue;
            }
            if is_empty(&self.state.lock(), slot) {
                let first = VirtAddr(range.start.0.max(slot.start().0));
                // SAFETY: the table says that the extent is mapped, and the program is about to have it written to.
                unsafe { first.as_ptr().read_volatile() };
            }
            place(slot).store(mark, Ordering::Release);
        }
    }
}

/// Whether a touch of an extent is its first, and allowed.
fn is_empty(state: &State, slot: Slot) -> bool {
    let empty = |e: &Extent| e.state == ExtentState::Empty;
    state.table.extents.get(slot).is_some_and(empty)
        && state.table.slot_is_shared(slot)
        && state
            .table
            .overlaps(slot.range())
            .all(|i| i.prot & libc::PROT_READ != 0)
}
