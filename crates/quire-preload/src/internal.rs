//! The allocator of this library itself.
//!
//! What Quire keeps about the program's memory must not live in that memory,
//! nor in the allocator that Quire serves: the manager allocates under its
//! lock, inside `malloc`, and in fork handlers. So it has a small allocator of
//! its own: free lists by size, two sizes to a power of two, over memory straight
//! from the kernel, and the kernel itself for large blocks.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use quire_core::units::{AddrRange, Bytes, VirtAddr};
use quire_linux::futex::{Guard, Lock};
use quire_linux::memory;
use quire_vm::frames;

/// The smallest block, a power of two.
const SMALLEST: usize = 32;
/// Number of block sizes: 32, 48, 64, 96 bytes, and so on, to 256 KiB.
const SIZES: usize = 27;
/// How much is taken from the kernel at a time for small blocks.
const CHUNK: usize = 256 << 10;

/// The allocator.
pub struct InternalAllocator;

struct Free(*mut Free);

struct Blocks {
    free: [Free; SIZES],
    next: usize,
    end: usize,
}

// SAFETY: the free lists are reached only under the lock.
unsafe impl Send for Blocks {}

static BLOCKS: Lock<Blocks> = Lock::new(Blocks {
    free: [const { Free(ptr::null_mut()) }; SIZES],
    next: 0,
    end: 0,
});

/// Takes the lock. The thread that gives frames allocates, too, so nobody may wait for it
/// meanwhile.
fn blocks() -> Guard<'static, Blocks> {
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

/// The size of the blocks with this index.
const fn size_of_block(index: usize) -> usize {
    let power = SMALLEST << (index / 2);
    power + index % 2 * (power / 2)
}

/// To what a block of this size is aligned.
const fn alignment(size: usize) -> usize {
    1 << size.trailing_zeros()
}

/// The index of the smallest blocks that serve.
fn size_index(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(SMALLEST);
    let power = size.next_power_of_two();
    let index = 2 * (power.trailing_zeros() - SMALLEST.trailing_zeros()) as usize;
    let below = index.saturating_sub(1);
    let serves = size_of_block(below) >= size && alignment(size_of_block(below)) >= layout.align();
    let index = if serves { below } else { index };
    (index < SIZES).then_some(index)
}

impl Blocks {
    fn take(&mut self, index: usize) -> *mut u8 {
        let head = self.free[index].0;
        if !head.is_null() {
            // SAFETY: a block on the list is free, large enough and aligned
            // for a pointer, and holds the next one.
            self.free[index].0 = unsafe { (*head).0 };
            return head.cast();
        }
        let size = size_of_block(index);
        let start = self.next.next_multiple_of(alignment(size));
        if self.next == 0 || start + size > self.end {
            let Some(chunk) = from_kernel(CHUNK) else {
                return ptr::null_mut();
            };
            self.next = chunk as usize + size;
            self.end = chunk as usize + CHUNK;
            return chunk;
        }
        self.next = start + size;
        start as *mut u8
    }

    fn give(&mut self, index: usize, block: *mut u8) {
        let block: *mut Free = block.cast();
        // SAFETY: the caller gives the block up; it is large enough and
        // aligned for a pointer.
        unsafe { (*block).0 = self.free[index].0 };
        self.free[index].0 = block;
    }
}

/// Memory from the kernel, aligned to a base page; a chunk happens to be
/// aligned to no more, which suffices for blocks up to a page.
fn from_kernel(size: usize) -> Option<*mut u8> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let aligned = size.next_power_of_two().max(CHUNK) as u64;
    let span = Bytes(aligned * 2);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { memory::map_anonymous(VirtAddr(0), span, prot, 0) }.ok()?;
    let start = VirtAddr(at.0.next_multiple_of(aligned));
    let used = AddrRange::new(start, Bytes(size as u64).to_pages().to_bytes());
    let spare = [
        AddrRange {
            start: at,
            end: used.start,
        },
        AddrRange {
            start: used.end,
            end: at + span,
        },
    ];
    for range in spare {
        if !range.is_empty() {
            // SAFETY: part of the mapping just made, which nobody uses.
            let _ = unsafe { memory::unmap(range) };
        }
    }
    Some(start.as_ptr())
}

// SAFETY: blocks are disjoint, large enough, and aligned to the largest power of
// two that divides their size, which is at least the alignment asked for.
unsafe impl GlobalAlloc for InternalAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match size_index(layout) {
            Some(index) => blocks().take(index),
            None => from_kernel(layout.size().max(layout.align())).unwrap_or(ptr::null_mut()),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match size_index(layout) {
            Some(index) => blocks().give(index, block),
            None => {
                let size = layout.size().max(layout.align()) as u64;
                let range =
                    AddrRange::new(VirtAddr(block as u64), Bytes(size).to_pages().to_bytes());
                // SAFETY: the block came from the kernel with this size, and
                // the caller gives it up.
                let _ = unsafe { memory::unmap(range) };
            }
        }
    }
}
