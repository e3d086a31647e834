//! How many pages after a touched one are wanted at once.
//!
//! A report of a touch takes tens of microseconds, more than giving the page a frame
//! does. So a program that touches pages in order gets more than one at a time, in the
//! manner of a file system that reads ahead: a part of what it has touched in a row,
//! so that little memory is populated that is never used.
//!
//! Where the order of touches decides, as under bin hopping, there is one row for each
//! sequence, and a touch anywhere else ends it. So what is populated at once gets just
//! the frames that it would get page by page, as long as the program goes on in its row;
//! and touches by turns in several places are reported one by one.

use quire_core::units::{BASE_PAGE, Bytes, PAGES_PER_SUPERPAGE, VirtAddr};

/// How many streams of touches are followed.
const STREAMS: usize = 8;
/// One page in this many of a row may turn out not to be used.
const PART: u64 = 32;
/// Pages at once, at most.
const MOST: u64 = PAGES_PER_SUPERPAGE as u64;

/// Which touches belong together: the strategy's place, and its sequence.
pub(super) type Sequence = (usize, u32);

/// Where the program touches pages in order.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// The one that went on last comes first.
    streams: [Stream; STREAMS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The sequence that the order decides about; none where it does not matter.
    sequence: Option<Sequence>,
    /// The page after those that were populated.
    next: VirtAddr,
    /// Pages populated in a row.
    pages: u64,
}

impl Stream {
    /// Whether it goes on, or ends, with a touch of a page.
    fn is_met(&self, sequence: Option<Sequence>, page: VirtAddr) -> bool {
        self.sequence == sequence && (sequence.is_some() || self.next == page)
    }
}

impl Streams {
    /// How many pages from `page` on are wanted, which was touched: at least one.
    pub fn window(&self, sequence: Option<Sequence>, page: VirtAddr) -> u64 {
        let Some(stream) = self.streams.iter().find(|s| s.is_met(sequence, page)) else {
            return 1;
        };
        if stream.next != page {
            return 1;
        }
        let pages = (stream.pages / PART).clamp(1, MOST);
        // A run ends with the folio that it comes from, so no more is wanted than one has.
        let in_extent = page.0 / BASE_PAGE % MOST;
        if in_extent + pages > MOST {
            MOST - in_extent
        } else {
            pages
        }
    }

    /// Pages from `page` on were populated.
    pub fn note(&mut self, sequence: Option<Sequence>, page: VirtAddr, pages: u64) {
        let known = self.streams.iter().position(|s| s.is_met(sequence, page));
        let at = known.unwrap_or(STREAMS - 1);
        let row = known.map(|at| self.streams[at]).filter(|s| s.next == page);
        self.streams[..=at].rotate_right(1);
        self.streams[0] = Stream {
            sequence,
            next: page + Bytes(pages * BASE_PAGE),
            pages: row.map_or(0, |row| row.pages) + pages,
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
            (at, reports) = (at + window, reports + 1);
        }
        (reports, at - first)
    }

    #[test]
    fn a_row_of_touches_takes_few_reports() {
        let mut streams = Streams::default();
        let (reports, populated) = fill(&mut streams, 0, 1 << 18);
        assert!(reports < 900, "{reports}");
        assert!(populated - (1 << 18) <= MOST);
    }

    #[test]
    fn little_is_populated_in_vain() {
        for count in [1, 10, 100, 1000, 10_000, 100_000] {
            let mut streams = Streams::default();
            let (_, populated) = fill(&mut streams, 7, count);
            assert!(populated - count <= count / PART, "{count}: {populated}");
        }
    }

    #[test]
    fn scattered_touches_get_a_page_each() {
        let mut streams = Streams::default();
        for n in 0..1000 {
            let at = page(n * 7919 % 100_000 * 3);
            assert_eq!(streams.window(None, at), 1);
            streams.note(None, at, 1);
        }
    }

    #[test]
    fn some_rows_are_followed_at_a_time() {
        let mut streams = Streams::default();
        let mut at = [0u64, 1 << 20, 2 << 20, 3 << 20];
        for _ in 0..200 {
            for next in &mut at {
                let window = streams.window(None, page(*next));
                streams.note(None, page(*next), window);
                *next += window;
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
                (*next, reports) = (at + window, reports + 1);
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
