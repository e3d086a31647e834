//! Sequential readers: found by faults that follow each other, and given pages ahead in
//! windows that grow. A page of each window is a mark that is not shown to the reader when
//! it comes: its touch asks for the next window while the rest of this one is still to be
//! read, so that a reader that is not faster than the link never waits.

use super::Space;
use crate::dsm::message::{PageNumber, Pages};

/// Readers that are followed at once.
const FOLLOWED: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stream {
    space: Space,
    /// The page after all that was asked for.
    next: PageNumber,
    /// Pages that were asked for ahead the last time; at first none.
    window: u32,
    mark: Option<PageNumber>,
}

/// Pages to be asked for ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) first: PageNumber,
    pub(super) count: u32,
    pub(super) mark: PageNumber,
}

/// Readers that may be sequential, the one that was seen last at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Streams(Vec<Stream>);

impl Streams {
    /// A reader in a mapping lacked these pages; what is to be asked for ahead.
    pub(super) fn missed(&mut self, space: Space, pages: Pages, most: u32) -> Option<Window> {
        let same = |stream: &Stream| stream.space == space && stream.next == pages.first;
        let next = PageNumber(pages.first.0 + u64::from(pages.count));
        let Some(at) = self.0.iter().position(same) else {
            if self.0.len() == FOLLOWED {
                self.0.remove(0);
            }
            self.0.push(Stream {
                space,
                next,
                window: 0,
                mark: None,
            });
            return None;
        };
        let mut stream = self.0.remove(at);
        stream.next = next;
        let least = pages.count;
        let window = stream.advance(least, most);
        self.0.push(stream);
        window
    }

    /// A reader reached a page; what is to be asked for ahead, if it is a mark.
    pub(super) fn reached(&mut self, page: PageNumber, most: u32) -> Option<Window> {
        let at = self.0.iter().position(|stream| stream.mark == Some(page))?;
        let mut stream = self.0.remove(at);
        let window = stream.advance(1, most);
        self.0.push(stream);
        window
    }

    pub(super) fn unmapped(&mut self, space: Space) {
        self.0.retain(|stream| stream.space != space);
    }
}

impl Stream {
    fn advance(&mut self, least: u32, most: u32) -> Option<Window> {
        let count = self.window.saturating_mul(2).max(least).min(most);
        let first = self.next;
        let mark = PageNumber(first.0 + u64::from(count / 2));
        self.window = count;
        self.mark = Some(mark);
        self.next = PageNumber(first.0.checked_add(u64::from(count))?);
        (count > 0).then_some(Window { first, count, mark })
    }
}
