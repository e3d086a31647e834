//! Sequential readers and writers, from the first page on or from the last: found by faults that
//! follow each other, and given pages ahead in windows that grow. A page of each window is a mark
//! that is not shown to the program when it comes: its touch asks for the next window while the
//! rest of this one is still to be used, so that a program that is not faster than the link never
//! waits.
//!
//! What a writer is given ahead is taken from others. So a writer to whom others object, by
//! wanting back what it was given last, begins anew, with the smallest window.

use super::Space;
use crate::dsm::message::{Access, PageNumber, Pages};

/// Readers and writers that are followed at once.
const FOLLOWED: usize = 8;

/// A window is so many times as long as the one before it.
pub(super) const GROWTH: u32 = 4;

/// Who, in which mapping, for what.
pub(super) type Who = (Space, Access);

/// Which way somebody goes through pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// The first page first.
    Up,
    /// The last page first.
    Down,
}

impl Way {
    /// Which way these pages follow those before, for somebody whose way may be known; `None` where
    /// they do not, or not that way.
    pub(super) fn on(known: Option<Way>, before: Pages, pages: Pages) -> Option<Way> {
        let way = if before.is_followed_by(pages) {
            Way::Up
        } else if pages.is_followed_by(before) {
            Way::Down
        } else {
            return None;
        };
        known.is_none_or(|known| known == way).then_some(way)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stream {
    who: Who,
    /// What was asked for last, ahead or not.
    last: Pages,
    /// Known from the second fault on.
    way: Option<Way>,
    /// Whether that was asked for ahead.
    is_ahead: bool,
    mark: Option<PageNumber>,
}

/// Pages to be asked for ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) who: Who,
    /// In the order in which they are wanted; maybe more than the object has.
    pub(super) pages: Vec<Pages>,
    /// Which of the pages of each of these are wanted first.
    pub(super) way: Way,
    pub(super) mark: PageNumber,
}

/// Readers and writers that may be sequential, the one that was seen last at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Streams(Vec<Stream>);

impl Streams {
    /// Somebody in a mapping lacked these pages; what is to be asked for ahead.
    pub(super) fn missed(&mut self, who: Who, pages: Pages, most: u32) -> Option<Window> {
        let way_of =
            |stream: &Stream| Way::on(stream.way, stream.last, pages).filter(|_| stream.who == who);
        let followed = self.0.iter().map(way_of);
        let found = followed.enumerate().find_map(|(at, way)| Some((at, way?)));
        let Some((at, way)) = found else {
            if self.0.len() == FOLLOWED {
                self.0.remove(0);
            }
            self.0.push(Stream {
                who,
                last: pages,
                way: None,
                is_ahead: false,
                mark: None,
            });
            return None;
        };
        let mut stream = self.0.remove(at);
        let grown = stream.grown().max(pages.count);
        (stream.last, stream.is_ahead, stream.way) = (pages, false, Some(way));
        let window = stream.advance(way, grown.min(most));
        self.0.push(stream);
        window
    }

    /// Somebody reached a page; what is to be asked for ahead, if it is a mark.
    pub(super) fn reached(
        &mut self,
        page: PageNumber,
        access: Access,
        most: u32,
    ) -> Option<Window> {
        let is_mark = |stream: &Stream| (stream.mark, stream.who.1) == (Some(page), access);
        let at = self.0.iter().position(is_mark)?;
        let mut stream = self.0.remove(at);
        let way = stream.way?;
        let window = stream.advance(way, stream.grown().min(most));
        self.0.push(stream);
        window
    }

    /// Whether the touch of a page by a mapping asks for more.
    pub(super) fn is_mark(&self, space: Space, page: PageNumber) -> bool {
        let is_mark = |stream: &Stream| (stream.mark, stream.who.0) == (Some(page), space);
        self.0.iter().any(is_mark)
    }

    /// What somebody lacked now and then belongs to a row that leaves pages out: whoever lacks one
    /// beside it goes on with nothing.
    pub(super) fn leave_pages_out(&mut self, who: Who) {
        self.0
            .retain(|stream| stream.way.is_some() || stream.who != who);
    }

    /// Others want these pages: a writer that was given some of them ahead is followed no more.
    pub(super) fn wanted_back(&mut self, pages: Pages) {
        self.0.retain(|stream| {
            stream.who.1 == Access::Read || !(stream.is_ahead && stream.last.overlaps(pages))
        });
    }

    pub(super) fn unmapped(&mut self, space: Space) {
        self.0.retain(|stream| stream.who.0 != space);
    }
}

impl Stream {
    /// How many pages are to be asked for ahead after what was the last time.
    const fn grown(&self) -> u32 {
        match self.is_ahead {
            true => self.last.count.saturating_mul(GROWTH),
            false => 1,
        }
    }

    /// The next so many pages are asked for; `None` where there are no more.
    fn advance(&mut self, way: Way, count: u32) -> Option<Window> {
        self.mark = None;
        let half = u64::from(count / 2);
        let first = self.last.first.0;
        let (first, count, mark) = match way {
            Way::Up => {
                let first = first.checked_add(u64::from(self.last.count))?;
                first.checked_add(u64::from(count))?;
                (first, count, first + half)
            }
            Way::Down => {
                let count = u32::try_from(first).map_or(count, |all| count.min(all));
                let begin = first - u64::from(count);
                (begin, count, first.saturating_sub(1 + half).max(begin))
            }
        };
        if count == 0 {
            return None;
        }
        let (first, mark) = (PageNumber(first), PageNumber(mark));
        let pages = Pages { first, count };
        (self.last, self.is_ahead, self.mark) = (pages, true, Some(mark));
        let who = self.who;
        Some(Window {
            who,
            pages: vec![pages],
            way,
            mark,
        })
    }
}
