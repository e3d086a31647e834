//! Which addresses mappings of objects take, for calls that have to find that out without the
//! lock of everything else: most memory that programs, allocators and this library's own
//! threads map and unmap has nothing to do with objects, and must not wait for who speaks with
//! a server.
//!
//! The lock here is held for a look and no longer. All changes are made by who holds the other
//! one, so addresses that are found here may just have been given up, but not the other way
//! round: they are taken out before anybody else can have them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use quire_linux::futex::Lock;

/// In order; they do not overlap.
static TAKEN: Lock<Vec<Range<u64>>> = Lock::new(Vec::new());
/// All that ever was there lies between these addresses.
static LOWEST: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGHEST: AtomicU64 = AtomicU64::new(0);

/// Whether a range has addresses of a mapping of an object.
pub fn has_any(range: &Range<u64>) -> bool {
    let between = HIGHEST.load(Ordering::Acquire).min(range.end);
    range.start < between
        && LOWEST.load(Ordering::Acquire) < range.end
        && overlaps(&TAKEN.lock(), range)
}

fn overlaps(taken: &[Range<u64>], range: &Range<u64>) -> bool {
    let next = taken.partition_point(|taken| taken.end <= range.start);
    taken.get(next).is_some_and(|next| next.start < range.end)
}

/// These are taken from now on, in order.
pub fn set(taken: Vec<Range<u64>>) {
    if let (Some(first), Some(last)) = (taken.first(), taken.last()) {
        LOWEST.fetch_min(first.start, Ordering::AcqRel);
        HIGHEST.fetch_max(last.end, Ordering::AcqRel);
    }
    // The allocator may look here, too: it is not called with the lock held.
    let before = std::mem::replace(&mut *TAKEN.lock(), taken);
    drop(before);
}

/// Before a fork: a child must not find it half done. The thread that forks does not look until
/// [`release`].
pub fn hold() {
    TAKEN.hold();
}

/// After a fork.
pub fn release() {
    TAKEN.release_held();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_is_found() {
        let taken = [4..8, 8..10, 20..30];
        for (range, found) in [
            (0..4, false),
            (0..5, true),
            (5..6, true),
            (9..40, true),
            (10..20, false),
            (15..21, true),
            (29..31, true),
            (30..31, false),
        ] {
            assert_eq!(overlaps(&taken, &range), found, "{range:?}");
        }
        assert!(!overlaps(&[], &(0..100)));
    }
}
