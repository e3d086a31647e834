//! Which addresses mappings of objects take, for calls that have to find that out without the
//! lock of everything else: most memory that programs, allocators and this library's own
//! threads map and unmap has nothing to do with objects, and must not wait for who speaks with
//! a server.
//!
//! The lock here is held for a look and no longer. All changes are made by who holds the other
//! one, so addresses that are found here may just have been given up, but not the other way
//! round: they are taken out before anybody else can have them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use quire_linux::futex::Lock;

/// In order; they do not overlap.
static TAKEN: Lock<Vec<Range<u64>>> = Lock::new(Vec::new());
/// All that ever was there lies between these addresses.
static LOWEST: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGHEST: AtomicU64 = AtomicU64::new(0);

/// A place for a range that can be read without a lock; nothing is there where both are the same.
struct Place {
    start: AtomicU64,
    end: AtomicU64,
}

const PLACES: usize = 16;
/// What is taken once more: the last of these spans all ranges that have no place of their own.
static SPANS: [Place; PLACES] = [const {
    Place {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
    }
}; PLACES];
/// How often these were changed, and one more while they are.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// Whether a range may have addresses of a mapping of an object: told without a lock, and without a call
/// of the system. Where it is not sure, it may.
#[inline]
pub fn may_have_any(range: &Range<u64>) -> bool {
    lies_between(range) && spans_any(range)
}

#[inline]
fn lies_between(range: &Range<u64>) -> bool {
    let between = HIGHEST.load(Ordering::Acquire).min(range.end);
    range.start < between && LOWEST.load(Ordering::Acquire) < range.end
}

fn spans_any(range: &Range<u64>) -> bool {
    let before = CHANGES.load(Ordering::Acquire);
    let overlaps = |place: &Place| {
        let end = place.end.load(Ordering::Relaxed).min(range.end);
        place.start.load(Ordering::Relaxed).max(range.start) < end
    };
    let found = SPANS.iter().any(overlaps);
    fence(Ordering::Acquire);
    found || !before.is_multiple_of(2) || CHANGES.load(Ordering::Relaxed) != before
}

/// What the places hold for ranges in order.
fn spans(taken: &[Range<u64>]) -> [Range<u64>; PLACES] {
    std::array::from_fn(|place| {
        let Some(first) = taken.get(place) else {
            return 0..0;
        };
        let last = match place {
            _ if place + 1 == PLACES => taken.last().unwrap_or(first),
            _ => first,
        };
        first.start..last.end
    })
}

/// Whether a range has addresses of a mapping of an object.
pub fn has_any(range: &Range<u64>) -> bool {
    lies_between(range) && overlaps(&TAKEN.lock(), range)
}

fn overlaps(taken: &[Range<u64>], range: &Range<u64>) -> bool {
    let next = taken.partition_point(|taken| taken.end <= range.start);
    taken.get(next).is_some_and(|next| next.start < range.end)
}

/// These are taken from now on, in order. One thread does that at a time.
pub fn set(taken: Vec<Range<u64>>) {
    CHANGES.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::Release);
    for (place, span) in SPANS.iter().zip(spans(&taken)) {
        place.start.store(span.start, Ordering::Relaxed);
        place.end.store(span.end, Ordering::Relaxed);
    }
    CHANGES.fetch_add(1, Ordering::Release);
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

    #[test]
    fn what_is_taken_lies_in_spans() {
        let few = [4..8, 20..30];
        assert_eq!(spans(&few)[..3], [4..8, 20..30, 0..0]);
        let many: Vec<Range<u64>> = (0..40).map(|n| 10 * n..10 * n + 5).collect();
        let spans = spans(&many);
        assert_eq!(spans[14..], [140..145, 150..395]);
    }

    #[test]
    fn what_is_not_taken_is_told_without_the_lock() {
        set(vec![0x1000..0x2000, 0x5000..0x6000]);
        let _held = TAKEN.lock();
        for (range, may) in [
            (0..0x1000, false),
            (0x1fff..0x2001, true),
            (0x2000..0x5000, false),
            (0x3000..0x3001, false),
            (0..0x9000, true),
            (0x6000..0x7000, false),
        ] {
            assert_eq!(may_have_any(&range), may, "{range:?}");
        }
    }
}
