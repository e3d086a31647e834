//! The memory of an object, seen as atomic integers.
//!
//! Others change it at any time, on this machine and on others, so it is never seen as
//! anything else. A page comes and goes as a whole, while no processor writes to it; so what
//! one processor does to a cell is one step for everybody.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use quire_core::units::AddrRange;

/// An atomic integer.
///
/// # Safety
/// Any bytes are a value of it, it is changed only by atomic steps of the processor, and it
/// needs no more alignment than a page has.
pub unsafe trait Cell: Send + Sync {}

// SAFETY: an atomic integer without padding.
unsafe impl Cell for AtomicU8 {}
// SAFETY: as above.
unsafe impl Cell for AtomicU16 {}
// SAFETY: as above.
unsafe impl Cell for AtomicU32 {}
// SAFETY: as above.
unsafe impl Cell for AtomicU64 {}

/// Mapped memory as cells.
///
/// # Safety
/// The memory is mapped for as long as the cells are used, begins with a page, is not the
/// program's own in any other way, and is readable; cells are only written to where it is
/// writable.
pub(super) unsafe fn cells<'a, C: Cell>(range: AddrRange) -> &'a [C] {
    let count = range.len().0 as usize / size_of::<C>();
    // SAFETY: the caller vouches for the memory, and `Cell` for what may lie in it.
    unsafe { std::slice::from_raw_parts(range.start.as_ptr().cast(), count) }
}
