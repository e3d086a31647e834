//! Ranges that can be read without a lock, by who must not take the time that it takes to block
//! signals: all locks of the C library that a program uses are looked up here, and all that it reads to.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use super::{Copies, Taken};

/// So many mappings are on a board.
const PLACES: usize = 32;

/// Some ranges, read without a lock: who reads them looks whether they were changed meanwhile, by a
/// number that is odd while they are.
pub(super) struct Board {
    number: AtomicUsize,
    /// How many there are in all; more than there are places, and the lock is asked.
    count: AtomicUsize,
    /// The start, and the end of each, with 1 where all have one copy: they are multiples of a page.
    places: [[AtomicU64; 2]; PLACES],
}

impl Board {
    pub(super) const fn new() -> Board {
        Board {
            number: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            places: [const { [AtomicU64::new(0), AtomicU64::new(0)] }; PLACES],
        }
    }

    /// By whoever has the lock.
    pub(super) fn write(&self, taken: &[Taken]) {
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

    /// How the object is had in which an address lies, if it lies in one; nothing where the lock is to be
    /// asked.
    pub(super) fn copies_at(&self, at: u64) -> Option<Option<Copies>> {
        self.first(|range| range.contains(&at))
    }

    /// Whether a range may have addresses of one that is here.
    pub(super) fn may_have_any(&self, range: &Range<u64>) -> bool {
        let overlaps = |it: Range<u64>| it.start < range.end && range.start < it.end;
        self.first(overlaps).is_none_or(|found| found.is_some())
    }

    /// The first that is wanted; nothing where not all are here, or they are being changed.
    fn first(&self, is_wanted: impl Fn(Range<u64>) -> bool) -> Option<Option<Copies>> {
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
            is_wanted(start..end & !1).then_some(copies)
        });
        fence(Ordering::Acquire);
        let is_whole = number.is_multiple_of(2) && self.number.load(Ordering::Relaxed) == number;
        is_whole.then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(board.copies_at(0), Some(None));
        for count in [1, 3, PLACES as u64] {
            let all = some(count, Copies::Own);
            board.write(&all);
            for at in (0..count * 0x3000 + 0x5000).step_by(0x800) {
                let taken = all.iter().find(|taken| taken.range.contains(&at));
                assert_eq!(board.copies_at(at), Some(taken.map(|taken| taken.copies)));
            }
        }
        assert!(board.may_have_any(&(0x1fff..0x2fff)) && !board.may_have_any(&(0x2000..0x3000)));
        board.write(&some(PLACES as u64 + 1, Copies::Own));
        assert!(board.copies_at(0).is_none() && board.may_have_any(&(0x2000..0x3000)));
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
                if let Some(found) = board.copies_at(there) {
                    assert!(found.is_some());
                    told += 1;
                }
                assert!(board.copies_at(not).is_none_or(|found| found.is_none()));
            }
        });
    }
}
