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

/// How this process has an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// All processes of this machine that use the same server share its copy.
    One,
    /// This one has pages of its own.
    Own,
}

/// Addresses that a mapping takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub range: Range<u64>,
    pub copies: Copies,
}

/// In order; they do not overlap.
static TAKEN: Lock<Vec<Taken>> = Lock::new(Vec::new());
/// The first of them once more, for who must not wait for the lock for as long as it takes to block
/// signals: locks of the C library are looked up here.
static FIRST: Board = Board::new();
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

fn overlaps(taken: &[Taken], range: &Range<u64>) -> bool {
    first_after(taken, range.start).is_some_and(|next| next.range.start < range.end)
}

/// The first that ends behind an address.
fn first_after(taken: &[Taken], at: u64) -> Option<&Taken> {
    taken.get(taken.partition_point(|taken| taken.range.end <= at))
}

/// How this process has the object in which an address lies; nothing where it lies in none.
#[inline]
pub fn copies_at(at: u64) -> Option<Copies> {
    let is_between = at < HIGHEST.load(Ordering::Acquire) && LOWEST.load(Ordering::Acquire) <= at;
    if is_between { looked_up(at) } else { None }
}

#[cold]
fn looked_up(at: u64) -> Option<Copies> {
    FIRST.look(at).unwrap_or_else(|| {
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
    FIRST.write(&taken);
    let before = std::mem::replace(&mut *all, taken);
    drop(all);
    drop(before);
}

/// So many mappings are on a board.
const PLACES: usize = 32;

/// Some ranges, read without a lock: who reads them looks whether they were changed meanwhile, by a
/// number that is odd while they are.
struct Board {
    number: AtomicUsize,
    /// How many there are in all; more than there are places, and the lock is asked.
    count: AtomicUsize,
    /// The start, and the end of each, with 1 where all have one copy: they are multiples of a page.
    places: [[AtomicU64; 2]; PLACES],
}

impl Board {
    const fn new() -> Board {
        Board {
            number: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            places: [const { [AtomicU64::new(0), AtomicU64::new(0)] }; PLACES],
        }
    }

    /// By whoever has the lock.
    fn write(&self, taken: &[Taken]) {
        let number = self.number.load(Ordering::Relaxed);
        self.number.store(number.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.count.store(taken.len(), Ordering::Relaxed);
        for ([start, end], taken) in self.places.iter().zip(taken) {
            let is_one = u64::from(taken.copies == Copies::One);
            start.store(taken.range.start, Ordering::Relaxed);
            end.store(taken.range.end | is_one, Ordering::Relaxed);
        }
        self.number.store(number.wrapping_add(2), Ordering::Release);
    }

    /// What an address lies in; nothing where the lock is to be asked.
    fn look(&self, at: u64) -> Option<Option<Copies>> {
        let number = self.number.load(Ordering::Acquire);
        let count = self.count.load(Ordering::Relaxed);
        let places = self.places.get(..count)?;
        let found = places.iter().find_map(|[start, end]| {
            let (start, end) = (start.load(Ordering::Relaxed), end.load(Ordering::Relaxed));
            let copies = if end & 1 == 1 {
                Copies::One
            } else {
                Copies::Own
            };
            (start..end & !1).contains(&at).then_some(copies)
        });
        fence(Ordering::Acquire);
        let is_whole = number.is_multiple_of(2) && self.number.load(Ordering::Relaxed) == number;
        is_whole.then_some(found)
    }
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

    /// Ranges of two pages with one between, and how they are had, by turns.
    fn some(count: u64, first: Copies) -> Vec<Taken> {
        let both = match first {
            Copies::One => [Copies::One, Copies::Own],
            Copies::Own => [Copies::Own, Copies::One],
        };
        let of = |number: u64| Taken {
            range: number * 0x3000..number * 0x3000 + 0x2000,
            copies: both[(number % 2) as usize],
        };
        (0..count).map(of).collect()
    }

    #[test]
    fn a_board_tells_what_it_has_room_for() {
        let board = Board::new();
        assert_eq!(board.look(0), Some(None));
        for count in [1, 3, PLACES as u64] {
            let all = some(count, Copies::Own);
            board.write(&all);
            for at in (0..count * 0x3000 + 0x5000).step_by(0x800) {
                let taken = all.iter().find(|taken| taken.range.contains(&at));
                assert_eq!(board.look(at), Some(taken.map(|taken| taken.copies)));
            }
        }
        board.write(&some(PLACES as u64 + 1, Copies::Own));
        assert_eq!(board.look(0), None);
    }

    #[test]
    fn a_board_that_is_changed_tells_nothing_wrong() {
        let board = Board::new();
        // What is there in any case, and what never is.
        let (there, not) = (0x1000, 0x2000);
        board.write(&some(5, Copies::Own));
        let is_over = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..200_000 {
                    let first = if round % 2 == 0 {
                        Copies::One
                    } else {
                        Copies::Own
                    };
                    board.write(&some(1 + round % 7, first));
                }
                is_over.store(1, Ordering::Release);
            });
            let mut told = 0;
            while is_over.load(Ordering::Acquire) == 0 || told == 0 {
                if let Some(found) = board.look(there) {
                    assert!(found.is_some());
                    told += 1;
                }
                assert!(board.look(not).is_none_or(|found| found.is_none()));
            }
        });
    }
}
