//! Addresses of objects that a program in C has opened only to read. The kernel would let it make
//! them writable, as their file must be open for writing; what it wrote then, the server would
//! refuse, and end the link.
//!
//! `mprotect` looks here at any time, also in an allocator and in a signal handler. So there is no
//! lock: places for ranges are never freed, and used again.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// A place for a range.
struct Slot {
    /// Where the range starts; 0 while the place is free.
    start: AtomicU64,
    /// Where it ends; 0 while there is none.
    end: AtomicU64,
    /// The process that has it. A child has its addresses for something else.
    process: AtomicU32,
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

/// A range that may only be read, until this is dropped.
pub struct ReadOnly(&'static Slot);

impl ReadOnly {
    /// From now on.
    pub fn new(range: Range<u64>) -> ReadOnly {
        let is_taken = |slot: &&Slot| {
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            let taken = slot
                .start
                .compare_exchange(0, range.start, order.0, order.1);
            taken.is_ok()
        };
        let slot = all().find(is_taken).unwrap_or_else(|| add(range.start));
        slot.process.store(std::process::id(), Ordering::Relaxed);
        slot.end.store(range.end, Ordering::Release);
        ReadOnly(slot)
    }
}

impl Drop for ReadOnly {
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

/// Whether some of a range may only be read.
pub fn has_any(range: &Range<u64>) -> bool {
    let overlaps = |slot: &Slot| {
        let end = slot.end.load(Ordering::Acquire);
        range.start < end && slot.start.load(Ordering::Acquire) < range.end
    };
    let is_here = |slot: &Slot| slot.process.load(Ordering::Relaxed) == std::process::id();
    all().any(|slot| overlaps(slot) && is_here(slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_is_found_until_it_is_dropped() {
        let first = ReadOnly::new(0x1000..0x3000);
        let second = ReadOnly::new(0x8000..0x9000);
        for (range, found) in [
            (0..0x1000, false),
            (0..0x1001, true),
            (0x2fff..0x4000, true),
            (0x3000..0x8000, false),
            (0..0x10000, true),
        ] {
            assert_eq!(has_any(&range), found, "{range:?}");
        }
        drop(first);
        assert!(!has_any(&(0..0x8000)) && has_any(&(0..0x8001)));
        let places = all().count();
        let third = ReadOnly::new(0x1000..0x2000);
        assert!(has_any(&(0x1000..0x1001)) && all().count() == places);
        drop((second, third));
        assert!(!has_any(&(0..u64::MAX)));
    }
}
