//! Which addresses mappings of objects take, for calls that have to find that out without the
//! lock of everything else: most memory that programs, allocators and this library's own
//! threads map and unmap has nothing to do with objects, and must not wait for who speaks with
//! a server.
//!
//! The lock here is held for a look and no longer, and few calls take it: what it guards stands on a
//! board as well, as far as there is room for it. All changes are made by who holds the other
//! one, so addresses that are found here may just have been given up, but not the other way
//! round: they are taken out before anybody else can have them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use quire_dsm::client::Shared;
use quire_linux::futex::Lock;

use self::board::Board;

mod board;

/// How this process has an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// All processes of this machine that use the same server share its copy.
    One,
    /// This one has pages of its own.
    Own,
}

impl Copies {
    /// How this process has one that is open.
    pub const fn of(shared: &Shared) -> Copies {
        match shared.is_attached() {
            true => Copies::One,
            false => Copies::Own,
        }
    }
}

/// Addresses that a mapping takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub range: Range<u64>,
    pub copies: Copies,
}

/// In order; they do not overlap.
static TAKEN: Lock<Vec<Taken>> = Lock::new(Vec::new());
/// The first of them once more.
static BOARD: Board = Board::new();
/// All that ever was there lies between these addresses.
static LOWEST: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGHEST: AtomicU64 = AtomicU64::new(0);

/// Whether a range has addresses of a mapping of an object.
pub fn has_any(range: &Range<u64>) -> bool {
    lies_between(range) && overlaps(&TAKEN.lock(), range)
}

/// Whether it may have some: told without a lock, and without a call of the system. Where that is not
/// sure, it may.
#[inline]
pub fn may_have_any(range: &Range<u64>) -> bool {
    lies_between(range) && BOARD.may_have_any(range)
}

#[inline]
fn lies_between(range: &Range<u64>) -> bool {
    let between = HIGHEST.load(Ordering::Acquire).min(range.end);
    range.start < between && LOWEST.load(Ordering::Acquire) < range.end
}

fn overlaps(taken: &[Taken], range: &Range<u64>) -> bool {
    first_after(taken, range.start).is_some_and(|next| next.range.start < range.end)
}

/// The first that ends behind an address.
fn first_after(taken: &[Taken], at: u64) -> Option<&Taken> {
    taken.get(taken.partition_point(|taken| taken.range.end <= at))
}

/// How this process has the object in which an address lies; nothing where it lies in none. Takes no
/// lock as long as the board has room for all.
#[inline]
pub fn copies_at(at: u64) -> Option<Copies> {
    let is_between = at < HIGHEST.load(Ordering::Acquire) && LOWEST.load(Ordering::Acquire) <= at;
    if is_between { looked_up(at) } else { None }
}

fn looked_up(at: u64) -> Option<Copies> {
    BOARD.copies_at(at).unwrap_or_else(|| {
        let all = TAKEN.lock();
        let next = first_after(&all, at).filter(|next| next.range.start <= at);
        next.map(|next| next.copies)
    })
}

/// These are taken from now on, in order.
pub fn set(taken: Vec<Taken>) {
    if let (Some(first), Some(last)) = (taken.first(), taken.last()) {
        LOWEST.fetch_min(first.range.start, Ordering::AcqRel);
        HIGHEST.fetch_max(last.range.end, Ordering::AcqRel);
    }
    // The allocator may look here, too: it is not called with the lock held.
    let mut all = TAKEN.lock();
    BOARD.write(&taken);
    let before = std::mem::replace(&mut *all, taken);
    drop(all);
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
        let copies = Copies::Own;
        let taken = [4..8, 8..10, 20..30].map(|range| Taken { range, copies });
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
    fn what_is_not_taken_is_told_without_the_lock() {
        let copies = Copies::One;
        let taken = [0x1000..0x2000, 0x5000..0x6000].map(|range| Taken { range, copies });
        set(taken.into());
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
        for (at, found) in [(0xfff, None), (0x1000, Some(copies)), (0x2000, None)] {
            assert_eq!(copies_at(at), found, "{at:x}");
        }
    }
}
