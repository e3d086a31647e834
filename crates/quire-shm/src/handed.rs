//! Addresses of objects that a program in C has opened. Of those that it has opened only to read, the
//! kernel would let it make the memory writable, as their file must be open for writing; what it wrote
//! then, the server would refuse, and end the link.
//!
//! `mprotect` and `read` look here at any time, also in an allocator and in a signal handler. So there is
//! no lock: places for ranges are never freed, and used again.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// A place for a range.
struct Slot {
    /// Where the range starts; 0 while the place is free.
    start: AtomicU64,
    /// Where it ends; 0 while there is none.
    end: AtomicU64,
    /// The process that has it. A child has its addresses for something else.
    process: AtomicU32,
    /// Whether it may be written to.
    is_writable: AtomicBool,
    next: AtomicPtr<Slot>,
}

/// All places.
static FIRST: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());

fn all() -> impl Iterator<Item = &'static Slot> {
    let slot = |slot: *mut Slot| {
        // SAFETY: places in the list are never freed, and nobody has one to change it but by its
        // atomics.
        unsafe { slot.as_ref() }
    };
    let first = slot(FIRST.load(Ordering::Acquire));
    std::iter::successors(first, move |last| slot(last.next.load(Ordering::Acquire)))
}

impl Slot {
    fn overlaps(&self, range: &Range<u64>) -> bool {
        let end = self.end.load(Ordering::Acquire);
        range.start < end && self.start.load(Ordering::Acquire) < range.end
    }

    fn is_here(&self) -> bool {
        self.process.load(Ordering::Relaxed) == std::process::id()
    }
}

/// A range that a program in C has, until this is dropped.
pub struct Handed(&'static Slot);

impl Handed {
    /// From now on.
    pub fn new(range: Range<u64>, is_writable: bool) -> Handed {
        let is_taken = |slot: &&Slot| {
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            let taken = slot
                .start
                .compare_exchange(0, range.start, order.0, order.1);
            taken.is_ok()
        };
        let slot = all().find(is_taken).unwrap_or_else(|| add(range.start));
        slot.process.store(std::process::id(), Ordering::Relaxed);
        slot.is_writable.store(is_writable, Ordering::Relaxed);
        slot.end.store(range.end, Ordering::Release);
        Handed(slot)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::Release);
        self.0.start.store(0, Ordering::Release);
    }
}

/// Adds a place for a range that starts there.
fn add(start: u64) -> &'static Slot {
    let slot: &'static Slot = Box::leak(Box::new(Slot {
        start: AtomicU64::new(start),
        end: AtomicU64::new(0),
        process: AtomicU32::new(0),
        is_writable: AtomicBool::new(false),
        next: AtomicPtr::default(),
    }));
    let it = ptr::from_ref(slot).cast_mut();
    // Whoever comes first, it is added.
    let _ = FIRST.fetch_update(Ordering::AcqRel, Ordering::Acquire, |first| {
        slot.next.store(first, Ordering::Release);
        Some(it)
    });
    slot
}

/// Whether some of a range is an object's.
pub fn has_any(range: &Range<u64>) -> bool {
    all().any(|slot| slot.overlaps(range) && slot.is_here())
}

/// Whether some of a range may only be read.
pub fn has_read_only(range: &Range<u64>) -> bool {
    let is_read_only = |slot: &Slot| !slot.is_writable.load(Ordering::Relaxed);
    all().any(|slot| slot.overlaps(range) && is_read_only(slot) && slot.is_here())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_is_found_until_it_is_dropped() {
        let first = Handed::new(0x1000..0x3000, false);
        let second = Handed::new(0x8000..0x9000, true);
        for (range, found) in [
            (0..0x1000, false),
            (0..0x1001, true),
            (0x2fff..0x4000, true),
            (0x3000..0x8000, false),
            (0..0x10000, true),
        ] {
            assert_eq!(has_any(&range), found, "{range:?}");
        }
        assert!(has_read_only(&(0x2fff..0x9000)) && !has_read_only(&(0x3000..0x9000)));
        drop(first);
        assert!(!has_any(&(0..0x8000)) && has_any(&(0..0x8001)));
        let places = all().count();
        let third = Handed::new(0x1000..0x2000, true);
        assert!(has_any(&(0x1000..0x1001)) && all().count() == places);
        assert!(!has_read_only(&(0..u64::MAX)));
        drop((second, third));
        assert!(!has_any(&(0..u64::MAX)));
    }
}
