//! The allocator of this library: only the helper thread allocates, and its memory is not inherited by children.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use quire_linux::block_lists::{BlockLists, Inherited};

use crate::state::{self, State};

/// The allocator.
pub struct OwnMemory;

/// The helper begins, with nothing allocated: what an earlier one had is forgotten.
pub fn begin(state: &State) {
    let room = state.helper.room();
    let mut blocks = BlockLists::new();
    if !room.is_empty() {
        blocks.set_room(room);
    }
    // SAFETY: this is the helper thread, and it has allocated nothing.
    unsafe { *state.blocks.get() = blocks };
}

// SAFETY: blocks are disjoint, large enough, and aligned as asked for. There is one helper thread in a process, and
// nobody else allocates here, but the first thread while the library starts: so no two threads use the lists.
unsafe impl GlobalAlloc for OwnMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(state) = state::get() else {
            return ptr::null_mut();
        };
        // SAFETY: this is the helper thread.
        unsafe { &mut *state.blocks.get() }.alloc(layout, Inherited::No)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(state) = state::get() {
            // SAFETY: this is the helper thread, which gives up a block that came from here.
            unsafe { (*state.blocks.get()).dealloc(block, layout) };
        }
    }
}
