//! How many pages after a touched one are wanted at once.
//!
//! A report of a touch takes tens of microseconds, more than giving the page a frame
//! does. So a program that touches pages in order gets more than one at a time, in the
//! manner of a file system that reads ahead: at most as many as it has touched in a row.
//!
//! What is populated ahead may never be used. So it is paid for with credit: some pages at
//! first, and a part of all that is populated. What turns out to be used is paid back. So
//! little is populated in vain, also by a program that touches many short rows, and one that
//! touches a few megabytes in order is not reported page by page.
//!
//! A row may go down, too: that is how the C library copies to where the addresses are
//! higher.
//!
//! Where the order of touches decides, as under bin hopping, there is one row for each
//! sequence, and a touch anywhere else ends it. So what is populated at once gets just
//! the frames that it would get page by page, as long as the program goes on in its row;
//! and touches by turns in several places are reported one by one.

use quire_core::units::{BASE_PAGE, Bytes, PAGES_PER_SUPERPAGE, VirtAddr};

/// How many streams of touches are followed.
const STREAMS: usize = 8;
/// One page in this many may turn out not to be used.
const PART: u64 = 32;
/// Pages at once, at most; and so many may be populated ahead on credit.
const MOST: u64 = PAGES_PER_SUPERPAGE as u64;
/// So many may be populated ahead on credit at first.
const FIRST: u64 = 64;

/// What is wanted where a page was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// Pages from the touched one on: at least one.
    pub pages: u64,
    /// Pages before it.
    pub before: u64,
}

impl Window {
    /// Just the touched page.
    const ONE: Window = Window {
        pages: 1,
        before: 0,
    };

    /// All of them.
    pub fn all(self) -> u64 {
        self.before + self.pages
    }
}

/// Which touches belong together: the strategy's place, and its sequence.
pub(super) type Sequence = (usize, u32);

/// Where the program touches pages in order.
#[derive(Debug)]
pub(super) struct Streams {
    /// The one that went on last comes first.
    streams: [Stream; STREAMS],
    /// What may still be populated ahead, in parts of a page.
    credit: u64,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams {
            streams: <[Stream; STREAMS]>::default(),
            credit: FIRST * PART,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The sequence that the order decides about; none where it does not matter.
    sequence: Option<Sequence>,
    /// The page after those that were populated, unless the row goes down.
    next: Option<VirtAddr>,
    /// The page before them, unless the row goes up, or the order decides.
    before: Option<VirtAddr>,
    /// Pages populated in a row.
    pages: u64,
    /// What was paid for those after the last touch, in parts of a page.
    paid: u64,
}

impl Stream {
    /// Whether it goes on, or ends, with a touch of a page.
    fn is_met(&self, sequence: Option<Sequence>, page: VirtAddr) -> bool {
        self.sequence == sequence && (sequence.is_some() || self.goes_on(page))
    }

    fn goes_on(&self, page: VirtAddr) -> bool {
        self.next == Some(page) || self.before == Some(page)
    }
}

impl Streams {
    /// What is wanted where a page was touched.
    pub fn window(&self, sequence: Option<Sequence>, page: VirtAddr) -> Window {
        let mut met = self.streams.iter().filter(|s| s.is_met(sequence, page));
        let Some(stream) = met.next().filter(|stream| stream.goes_on(page)) else {
            return Window::ONE;
        };
        // A touch here says that what was paid for is used.
        let on_credit = 1 + (self.credit + stream.paid) / PART;
        let pages = stream.pages.min(on_credit).clamp(1, MOST);
        // A run ends with the folio that it comes from, so no more is wanted than one has.
        let in_extent = page.0 / BASE_PAGE % MOST;
        match stream.before == Some(page) {
            true => Window {
                pages: 1,
                before: (pages - 1).min(in_extent),
            },
            false => Window {
                pages: pages.min(MOST - in_extent),
                before: 0,
            },
        }
    }

    /// Pages around `page` were populated.
    pub fn note(&mut self, sequence: Option<Sequence>, page: VirtAddr, populated: Window) {
        let known = self.streams.iter().position(|s| s.is_met(sequence, page));
        let at = known.unwrap_or(STREAMS - 1);
        let row = known.map(|at| self.streams[at]);
        let row = row.filter(|row| row.goes_on(page)).unwrap_or_default();
        self.streams[..=at].rotate_right(1);
        let all = populated.all();
        let credit = (self.credit + row.paid + all).min(MOST * PART);
        let paid = credit.min((all - 1) * PART);
        self.credit = credit - paid;
        let next = page + Bytes(populated.pages * BASE_PAGE);
        let before = page.0.checked_sub((populated.before + 1) * BASE_PAGE);
        self.streams[0] = Stream {
            sequence,
            next: (row.before != Some(page)).then_some(next),
            before: (row.next != Some(page) && sequence.is_none())
                .then_some(before.map(VirtAddr))
                .flatten(),
            pages: row.pages + all,
            paid,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(n: u64) -> VirtAddr {
        VirtAddr(n * BASE_PAGE)
    }

    /// Touches `count` pages in order from page `first` on; the number of reports.
    fn fill(streams: &mut Streams, first: u64, count: u64) -> (u64, u64) {
        let (mut at, mut reports) = (first, 0);
        while at < first + count {
            let window = streams.window(None, page(at));
            streams.note(None, page(at), window);
            (at, reports) = (at + window.pages, reports + 1);
        }
        (reports, at - first)
    }

    #[test]
    fn a_row_of_touches_takes_few_reports() {
        let mut streams = Streams::default();
        let (reports, populated) = fill(&mut streams, 0, 1 << 18);
        assert!(reports < 900, "{reports}");
        assert!(populated - (1 << 18) <= MOST);
        let mut streams = Streams::default();
        let (reports, _) = fill(&mut streams, 0, 1 << 10);
        assert!(reports < 40, "{reports}");
    }

    #[test]
    fn little_is_populated_in_vain() {
        for count in [1, 10, 100, 1000, 10_000, 100_000] {
            let mut streams = Streams::default();
            let (_, populated) = fill(&mut streams, 7, count);
            let most = FIRST + populated / PART;
            assert!(populated - count <= most, "{count}: {populated}");
        }
    }

    #[test]
    fn little_is_populated_in_vain_by_many_short_rows() {
        for length in [1, 2, 3, 5, 17, 100, 700] {
            // First one row, so that there is as much credit as can be.
            let mut streams = Streams::default();
            fill(&mut streams, 1 << 40, 1 << 18);
            let (mut used, mut populated) = (0, 0);
            for row in 0..(1 << 16) / length {
                populated += fill(&mut streams, row * 10_000, length).1;
                used += length;
            }
            let most = MOST + populated / PART;
            assert!(populated - used <= most, "{length}: {populated} for {used}");
        }
    }

    #[test]
    fn scattered_touches_get_a_page_each() {
        let mut streams = Streams::default();
        for n in 0..1000 {
            let at = page(n * 7919 % 100_000 * 3);
            assert_eq!(streams.window(None, at), Window::ONE);
            streams.note(None, at, Window::ONE);
        }
    }

    #[test]
    fn a_row_that_goes_down_takes_few_reports() {
        let (count, end) = (1 << 10, (1 << 20) - 3);
        let mut streams = Streams::default();
        let (mut at, mut reports) = (end, 0);
        while at > end - count {
            let window = streams.window(None, page(at));
            assert_eq!(window.pages, 1);
            streams.note(None, page(at), window);
            (at, reports) = (at - window.all(), reports + 1);
        }
        assert!(reports < 40, "{reports}");
        assert!(end - count - at <= FIRST + 2 * count / PART);
        // The order of touches decides: none is hurried.
        let one = Some((0, 1));
        let mut streams = Streams::default();
        for at in (1..1000).rev() {
            assert_eq!(streams.window(one, page(at)), Window::ONE);
            streams.note(one, page(at), Window::ONE);
        }
    }

    #[test]
    fn a_row_does_not_turn() {
        let mut streams = Streams::default();
        fill(&mut streams, 100, 50);
        assert_eq!(streams.window(None, page(99)), Window::ONE);
    }

    #[test]
    fn the_first_page_has_none_before_it() {
        let mut streams = Streams::default();
        for at in [1, 0] {
            let window = streams.window(None, page(at));
            streams.note(None, page(at), window);
        }
        assert_eq!(streams.window(None, page(2)), Window::ONE);
    }

    #[test]
    fn some_rows_are_followed_at_a_time() {
        let mut streams = Streams::default();
        let mut at = [0u64, 1 << 20, 2 << 20, 3 << 20];
        for _ in 0..200 {
            for next in &mut at {
                let window = streams.window(None, page(*next));
                streams.note(None, page(*next), window);
                *next += window.pages;
            }
        }
        assert!(at.iter().all(|at| at % (1 << 20) > 1000), "{at:?}");
    }

    /// Touches pages in order, of one sequence or of several by turns; the number of
    /// reports.
    fn fill_in_turns(sequences: &[Option<Sequence>], places: u64, count: u64) -> u64 {
        let mut streams = Streams::default();
        let mut next: Vec<u64> = (0..places).map(|n| n << 20).collect();
        let mut reports = 0;
        for touch in 0..count {
            for (n, next) in next.iter_mut().enumerate() {
                let at = ((n as u64) << 20) + touch;
                if at < *next {
                    continue;
                }
                let sequence = sequences[n % sequences.len()];
                let window = streams.window(sequence, page(at));
                streams.note(sequence, page(at), window);
                (*next, reports) = (at + window.pages, reports + 1);
            }
        }
        reports
    }

    #[test]
    fn where_the_order_decides_only_a_row_of_its_own_is_hurried() {
        let (one, other) = (Some((0, 1)), Some((0, 2)));
        assert!(fill_in_turns(&[one], 1, 1 << 16) < 900);
        // By turns in two places: each touch is reported, as it decides.
        assert_eq!(fill_in_turns(&[one], 2, 5000), 10_000);
        // But not where each has a sequence of its own, such as that of a thread.
        assert!(fill_in_turns(&[one, other], 2, 5000) < 1000);
        // Nor do touches that the order does not matter for end a row.
        assert!(fill_in_turns(&[one, None], 2, 5000) < 1000);
    }
}
