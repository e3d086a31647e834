//! Addresses of objects that a program in C has opened. Of those that it has opened only to read, the
//! kernel would let it make the memory writable, as their file must be open for writing; what it wrote
//! then, the server would refuse, and end the link.
//!
//! `mprotect`, `read` and locks of the C library look here at any time, also in an allocator and in a signal
//! handler. So there is no lock: places for ranges are never freed, and used again. Only who changes what
//! such memory allows takes one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use quire_dsm::node::RangeLock;
use quire_linux::futex::Lock;

use crate::taken::Copies;

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
    /// Whether all processes of this machine share a copy of it.
    is_one: AtomicBool,
    next: AtomicPtr<Slot>,
}

/// What nobody replaces while somebody changes what it allows, by where it starts.
static ADDRESSES: Lock<BTreeMap<u64, RangeLock>> = Lock::new(BTreeMap::new());

/// Has forks find that at rest.
pub fn start() {
    // SAFETY: the handlers live as long as the library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(Some(hold), Some(release), Some(release));
    }
}

unsafe extern "C" fn hold() {
    ADDRESSES.hold();
}

unsafe extern "C" fn release() {
    ADDRESSES.release_held();
}

/// All that ever was handed to the program lies between these addresses.
static LOWEST: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGHEST: AtomicU64 = AtomicU64::new(0);

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

/// Those that have some of a range. Most ranges are told from all of them by two loads.
fn those_of(range: &Range<u64>) -> impl Iterator<Item = &'static Slot> {
    let between = HIGHEST.load(Ordering::Acquire).min(range.end);
    let lies_between = range.start < between && LOWEST.load(Ordering::Acquire) < range.end;
    let range = range.clone();
    let places = lies_between.then(all).into_iter().flatten();
    places.filter(move |slot| slot.overlaps(&range) && slot.is_here())
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
    pub fn new(
        range: Range<u64>,
        is_writable: bool,
        copies: Copies,
        addresses: Option<RangeLock>,
    ) -> Handed {
        let is_taken = |slot: &&Slot| {
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            let taken = slot
                .start
                .compare_exchange(0, range.start, order.0, order.1);
            taken.is_ok()
        };
        LOWEST.fetch_min(range.start, Ordering::AcqRel);
        HIGHEST.fetch_max(range.end, Ordering::AcqRel);
        let slot = all().find(is_taken).unwrap_or_else(|| add(range.start));
        slot.process.store(std::process::id(), Ordering::Relaxed);
        slot.is_writable.store(is_writable, Ordering::Relaxed);
        let is_one = copies == Copies::One;
        slot.is_one.store(is_one, Ordering::Relaxed);
        if let Some(addresses) = addresses {
            ADDRESSES.lock().insert(range.start, addresses);
        }
        slot.end.store(range.end, Ordering::Release);
        Handed(slot)
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::Release);
        let start = self.0.start.load(Ordering::Relaxed);
        drop(ADDRESSES.lock().remove(&start));
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
        is_one: AtomicBool::new(false),
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
    those_of(range).next().is_some()
}

/// How this process has the object in which an address lies; nothing where it lies in none.
pub fn copies_at(at: u64) -> Option<Copies> {
    let copies = |slot: &Slot| match slot.is_one.load(Ordering::Relaxed) {
        true => Copies::One,
        false => Copies::Own,
    };
    those_of(&(at..at.saturating_add(1))).next().map(copies)
}

/// Changes what a range allows. Meanwhile no other file takes the place of an object's that is mapped
/// there, as happens when a server was started anew.
pub fn steadily<T>(range: &Range<u64>, act: impl FnOnce() -> T) -> T {
    let starts: Vec<u64> = those_of(range)
        .map(|slot| slot.start.load(Ordering::Relaxed))
        .collect();
    let addresses: Vec<RangeLock> = {
        let all = ADDRESSES.lock();
        starts
            .iter()
            .filter_map(|start| all.get(start).cloned())
            .collect()
    };
    let _steady: Vec<_> = addresses.iter().map(RangeLock::steady).collect();
    act()
}

/// Whether some of a range may only be read.
pub fn has_read_only(range: &Range<u64>) -> bool {
    those_of(range).any(|slot| !slot.is_writable.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_is_found_until_it_is_dropped() {
        let new = |range, is_writable, copies| Handed::new(range, is_writable, copies, None);
        let first = new(0x1000..0x3000, false, Copies::Own);
        let second = new(0x8000..0x9000, true, Copies::One);
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
        for (at, copies) in [
            (0xfff, None),
            (0x2fff, Some(Copies::Own)),
            (0x3000, None),
            (0x8000, Some(Copies::One)),
        ] {
            assert_eq!(copies_at(at), copies, "{at:x}");
        }
        drop(first);
        assert!(!has_any(&(0..0x8000)) && has_any(&(0..0x8001)));
        let places = all().count();
        let third = new(0x1000..0x2000, true, Copies::One);
        assert!(has_any(&(0x1000..0x1001)) && all().count() == places);
        assert!(!has_read_only(&(0..u64::MAX)));
        drop((second, third));
        assert!(!has_any(&(0..u64::MAX)));
    }
}
