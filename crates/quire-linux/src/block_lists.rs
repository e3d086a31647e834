//! The allocator of a preloaded library itself: free lists by size, two sizes to a power of two, over memory
//! straight from the kernel, and the kernel itself for large blocks. What a library keeps about the program's
//! memory must live neither in that memory nor in the program's allocator.
//!
//! There is no lock: whoever has one of these takes care of that.
//!
//! Lists may be given address space of their own ([`BlockLists::set_room`]). A program with one thread may rely on it
//! that what it has unmapped stays free until it maps something there with `MAP_FIXED`; a thread that maps memory at
//! any time could get in between, and lose it.

use std::alloc::Layout;
use std::ptr;

use quire_core::units::{AddrRange, Bytes, VirtAddr};

use crate::memory::{self, Advice};

/// The smallest block, a power of two.
const SMALLEST: usize = 32;
/// Number of block sizes: 32, 48, 64, 96 bytes, and so on, to 256 KiB.
const SIZES: usize = 27;
/// How much is taken from the kernel at a time for small blocks.
const CHUNK: usize = 256 << 10;

/// Powers of two of large blocks that are kept.
const LARGE: usize = 48;

/// Whether a forked child gets what the allocator has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherited {
    /// The child goes on with copies.
    Yes,
    /// The child has none of it, and begins anew.
    No,
}

#[derive(Debug)]
struct Free(*mut Free);

/// Free blocks, and a chunk of which blocks are made. All zeros is an allocator that has nothing yet.
#[derive(Debug)]
pub struct BlockLists {
    free: [Free; SIZES],
    next: usize,
    end: usize,
    /// Address space that nobody else gets: what is left of it, and all of it.
    room: [usize; 2],
    room_start: usize,
    /// Large blocks of the room that were given back, by the power of two that is their size.
    large: [Free; LARGE],
}

// SAFETY: the blocks belong to whoever has the lists; no thread is named in them.
unsafe impl Send for BlockLists {}

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

impl Default for BlockLists {
    fn default() -> BlockLists {
        BlockLists::new()
    }
}

impl BlockLists {
    /// Nothing yet.
    #[must_use]
    pub const fn new() -> BlockLists {
        BlockLists {
            free: [const { Free(ptr::null_mut()) }; SIZES],
            next: 0,
            end: 0,
            room: [0; 2],
            room_start: 0,
            large: [const { Free(ptr::null_mut()) }; LARGE],
        }
    }

    /// From now on memory comes from `room`, as long as that lasts: inaccessible private memory that nobody else
    /// uses, aligned to 256 KiB.
    pub fn set_room(&mut self, room: AddrRange) {
        self.room = [room.start.0 as usize, room.end.0 as usize];
        self.room_start = self.room[0];
    }

    /// A block for `layout`: large enough, aligned, and disjoint from all others that are in use. Null where the
    /// kernel has no memory.
    pub fn alloc(&mut self, layout: Layout, inherited: Inherited) -> *mut u8 {
        match size_index(layout) {
            Some(index) => self.take(index, inherited),
            None => {
                let size = layout.size().max(layout.align());
                self.large(size, inherited).unwrap_or(ptr::null_mut())
            }
        }
    }

    /// Takes a block back.
    ///
    /// # Safety
    /// The block must be one of [`alloc`](Self::alloc) of these lists, for this layout, and nobody may use it.
    pub unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        if let Some(index) = size_index(layout) {
            self.give(index, block);
            return;
        }
        let size = layout.size().max(layout.align());
        if (self.room_start..self.room[1]).contains(&(block as usize)) {
            return self.keep(block, size);
        }
        let size = size as u64;
        let range = AddrRange::new(VirtAddr(block as u64), Bytes(size).to_pages().to_bytes());
        // SAFETY: the block came from the kernel with this size, and the caller gives it up.
        let _ = unsafe { memory::unmap(range) };
    }

    fn take(&mut self, index: usize, inherited: Inherited) -> *mut u8 {
        let head = self.free[index].0;
        if !head.is_null() {
            // SAFETY: a block on the list is free, large enough and aligned for a pointer, and holds the next
            // one.
            self.free[index].0 = unsafe { (*head).0 };
            return head.cast();
        }
        let size = size_of_block(index);
        let start = self.next.next_multiple_of(alignment(size));
        if self.next == 0 || start + size > self.end {
            let chunk = self.take_room(CHUNK);
            let Some(chunk) = chunk.or_else(|| from_kernel(CHUNK, inherited)) else {
                return ptr::null_mut();
            };
            self.next = chunk as usize + size;
            self.end = chunk as usize + CHUNK;
            return chunk;
        }
        self.next = start + size;
        start as *mut u8
    }

    /// A large block: one that was given back, or of the room, or of the kernel.
    fn large(&mut self, size: usize, inherited: Inherited) -> Option<*mut u8> {
        let power = size.next_power_of_two();
        let kept = self.large.get_mut(power.trailing_zeros() as usize);
        if let Some(head) = kept.filter(|head| !head.0.is_null()) {
            let block = head.0;
            // SAFETY: a block on the list is free, and its first word holds the next one.
            head.0 = unsafe { (*block).0 };
            return Some(block.cast());
        }
        self.take_room(power)
            .or_else(|| from_kernel(size, inherited))
    }

    /// Takes a large block of the room back: its memory goes to the kernel, its addresses stay.
    fn keep(&mut self, block: *mut u8, size: usize) {
        let power = size.next_power_of_two();
        let Some(head) = self.large.get_mut(power.trailing_zeros() as usize) else {
            return;
        };
        let range = AddrRange::new(VirtAddr(block as u64), Bytes(power as u64));
        // SAFETY: the caller gives the block up, whatever it holds.
        let _ = unsafe { memory::advise(range, Advice::DontNeed) };
        let block: *mut Free = block.cast();
        // SAFETY: the block is large enough and aligned for a pointer.
        unsafe { (*block).0 = head.0 };
        head.0 = block;
    }

    /// The next piece of the room, of a power of two of at least a chunk.
    fn take_room(&mut self, size: usize) -> Option<*mut u8> {
        let start = self.room[0].next_multiple_of(size);
        let end = start.checked_add(size)?;
        if self.room[0] == 0 || end > self.room[1] {
            return None;
        }
        let range = AddrRange::new(VirtAddr(start as u64), Bytes(size as u64));
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the room is nobody else's, and this piece of it is not in use.
        unsafe { memory::protect(range, prot) }.ok()?;
        self.room[0] = end;
        Some(start as *mut u8)
    }

    fn give(&mut self, index: usize, block: *mut u8) {
        let block: *mut Free = block.cast();
        // SAFETY: the caller gives the block up; it is large enough and aligned for a pointer.
        unsafe { (*block).0 = self.free[index].0 };
        self.free[index].0 = block;
    }
}

/// Memory from the kernel, aligned to its size; a chunk is aligned to no more, which suffices for its blocks.
fn from_kernel(size: usize, inherited: Inherited) -> Option<*mut u8> {
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
    if inherited == Inherited::No {
        // SAFETY: leaving the range out of forks changes nothing for this process.
        let _ = unsafe { memory::advise(used, Advice::DontFork) };
    }
    Some(start.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_disjoint_and_come_back() {
        check(BlockLists::new());
        let mut lists = BlockLists::new();
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { memory::map_anonymous(VirtAddr(0), Bytes::mib(5), libc::PROT_NONE, 0) };
        let start = VirtAddr(at.unwrap().0.next_multiple_of(CHUNK as u64));
        // Less than is asked for: the rest comes from the kernel.
        lists.set_room(AddrRange::new(start, Bytes::mib(4)));
        check(lists);
    }

    fn check(mut lists: BlockLists) {
        let mut used: Vec<(usize, usize)> = Vec::new();
        let small =
            (0..2000).map(|n| Layout::from_size_align(1 + n * 37 % 9000, 1 << (n % 8)).unwrap());
        // The first has its place in the room: what came from the kernel goes back to it, and
        // another thread may get the address.
        let layouts: Vec<Layout> = std::iter::once(Layout::from_size_align(1 << 20, 4096).unwrap())
            .chain(small)
            .collect();
        let mut blocks = Vec::new();
        for layout in &layouts {
            let block = lists.alloc(*layout, Inherited::No);
            assert!(!block.is_null() && (block as usize).is_multiple_of(layout.align()));
            // SAFETY: the block has room for the layout.
            unsafe { block.write_bytes(1, layout.size()) };
            used.push((block as usize, block as usize + layout.size()));
            blocks.push(block);
        }
        used.sort_unstable();
        assert!(used.windows(2).all(|w| w[0].1 <= w[1].0));
        for (block, layout) in blocks.iter().zip(&layouts) {
            // SAFETY: each was taken for its layout, and is given back once.
            unsafe { lists.dealloc(*block, *layout) };
        }
        for layout in [layouts[0], layouts[1]] {
            let again = lists.alloc(layout, Inherited::No);
            assert!(lists.room_start == 0 || blocks.contains(&again));
        }
    }
}
