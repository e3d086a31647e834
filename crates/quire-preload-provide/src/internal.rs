//! The allocator of this library itself.
//!
//! What Quire keeps about the program's memory must not live in that memory,
//! nor in the allocator that Quire serves: the manager allocates under its
//! lock, inside `malloc`, and in fork handlers. So it has a small allocator of
//! its own ([`quire_linux::block_lists`]).

use std::alloc::{GlobalAlloc, Layout};

use quire_linux::block_lists::{BlockLists, Inherited};
use quire_linux::futex::{Guard, Lock};
use quire_vm::frames;

/// The allocator.
pub struct InternalAllocator;

static BLOCKS: Lock<BlockLists> = Lock::new(BlockLists::new());

/// Takes the lock. The thread that gives frames allocates, too, so nobody may wait for it
/// meanwhile.
fn blocks() -> Guard<'static, BlockLists> {
    frames::touch_stack_to_allocate();
    BLOCKS.lock()
}

/// Holds the allocator at rest for a fork.
pub fn hold() {
    BLOCKS.hold();
}

/// Ends [`hold`], in the parent and in the child.
pub fn release_held() {
    BLOCKS.release_held();
}

// SAFETY: blocks are disjoint, large enough, and aligned as asked for.
unsafe impl GlobalAlloc for InternalAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        blocks().alloc(layout, Inherited::Yes)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller gives up a block that came from here.
        unsafe { blocks().dealloc(block, layout) };
    }
}
