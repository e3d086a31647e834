//! Memory of whole superpages for who keeps much: the kernel is asked for superpages, and gives
//! base pages where it has none. A block can be cut into pieces, which have owners of their own.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use quire_core::units::{AddrRange, BASE_PAGE, Bytes, SUPERPAGE, VirtAddr};

use crate::memory::{self, Advice};
use crate::raw::{Errno, Result};

/// A mapping of its own, at a superpage's boundary. It holds zeros, or what was written.
#[derive(Debug)]
pub struct Block(AddrRange);

impl Block {
    /// So much memory, rounded up to superpages, without any advice.
    ///
    /// # Errors
    /// As `mmap`.
    pub(crate) fn plain(length: Bytes) -> Result<Block> {
        let length = Bytes(length.0.next_multiple_of(SUPERPAGE));
        let at = memory::reserve_space(length, 0)?;
        let block = Block(AddrRange::new(at, length));
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the addresses were reserved for this, and nobody knows them.
        unsafe { memory::map_anonymous(at, length, prot, libc::MAP_FIXED)? };
        Ok(block)
    }

    /// So much memory, rounded up to superpages.
    ///
    /// # Errors
    /// As `mmap`.
    pub fn new(length: Bytes) -> Result<Block> {
        let block = Block::plain(length)?;
        // SAFETY: it changes no contents. Where it is refused, it is base pages.
        let _ = unsafe { memory::advise(block.0, Advice::HugePage) };
        Ok(block)
    }

    /// The same, with all of the memory there.
    ///
    /// # Errors
    /// As `mmap`, and where there is no memory.
    pub(crate) fn populated(length: Bytes) -> Result<Block> {
        let block = Block::new(length)?;
        // SAFETY: as above.
        unsafe { memory::advise(block.0, Advice::PopulateWrite)? };
        Ok(block)
    }

    /// Its addresses.
    pub(crate) const fn range(&self) -> AddrRange {
        self.0
    }

    /// Cuts it into pieces of a length, as many as fit, a multiple of the base page. The memory of
    /// each goes back to the kernel with it, and the addresses with the last.
    ///
    /// # Errors
    /// `EINVAL` where not one fits, or the length is no such multiple.
    pub fn cut(self, length: Bytes) -> Result<Vec<Piece>> {
        let all = self.0;
        if !length.0.is_multiple_of(BASE_PAGE) || length == Bytes::ZERO || length > all.len() {
            return Err(Errno(libc::EINVAL));
        }
        let block = Arc::new(self);
        let starts = (all.start.0..=all.end.0 - length.0).step_by(length.0 as usize);
        let piece = |start| {
            Ok(Piece {
                at: NonNull::new(VirtAddr(start).as_ptr()).ok_or(Errno(libc::EINVAL))?,
                length: length.0 as usize,
                block: Arc::clone(&block),
            })
        };
        starts.map(piece).collect()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own. Whoever hands out parts of it keeps it for as
        // long: pieces hold it, and slabs drop it when no page of it is in use.
        let _ = unsafe { memory::unmap(self.0) };
    }
}

/// A part of a block, and of no other piece.
pub struct Piece {
    at: NonNull<u8>,
    length: usize,
    /// What it is a part of.
    block: Arc<Block>,
}

// SAFETY: the memory is the piece's alone, and belongs to no thread.
unsafe impl Send for Piece {}
// SAFETY: as above; a shared piece is only read.
unsafe impl Sync for Piece {}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a part of a block that is mapped as long as this is there, initialised by the
        // kernel, and no part of any other piece.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.length) }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else refers to it.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.length) }
    }
}

impl Drop for Piece {
    /// While others keep the block, its memory alone goes back.
    fn drop(&mut self) {
        if Arc::strong_count(&self.block) > 1 {
            let at = VirtAddr(self.at.as_ptr() as u64);
            let range = AddrRange::new(at, Bytes(self.length as u64));
            // SAFETY: nobody refers to it any more. Where it is refused, the memory stays.
            let _ = unsafe { memory::advise(range, Advice::DontNeed) };
        }
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_apart_and_outlive_the_block() {
        let mut pieces = Block::new(Bytes(1)).unwrap().cut(Bytes::mib(1)).unwrap();
        assert_eq!(pieces.len(), 2);
        for (number, piece) in (1..).zip(&mut pieces) {
            assert!(piece.iter().all(|byte| *byte == 0));
            piece.fill(number);
        }
        let second = pieces.pop().unwrap();
        let gone = pieces[0].as_ptr();
        drop(pieces);
        // SAFETY: the addresses are mapped as long as the other piece is there.
        assert_eq!(unsafe { gone.read_volatile() }, 0, "its memory went back");
        assert_eq!(second.len(), 1 << 20);
        assert!(second.iter().all(|byte| *byte == 2));
    }

    #[test]
    fn a_block_is_whole_superpages_and_is_cut_into_what_fits() {
        let block = Block::new(Bytes(SUPERPAGE + 1)).unwrap();
        assert_eq!(block.range().len(), Bytes(2 * SUPERPAGE));
        assert!(block.range().start.is_superpage_aligned());
        assert_eq!(block.cut(Bytes::mib(3)).unwrap().len(), 1);
        for length in [Bytes::ZERO, Bytes(BASE_PAGE + 1), Bytes(2 * SUPERPAGE)] {
            let cut = Block::new(Bytes(SUPERPAGE)).unwrap().cut(length);
            assert_eq!(cut.err(), Some(Errno(libc::EINVAL)));
        }
    }
}
