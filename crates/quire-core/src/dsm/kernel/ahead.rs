//! Sequential readers and writers: found by faults that follow each other, and given pages
//! ahead in windows that grow. A page of each window is a mark that is not shown to the
//! program when it comes: its touch asks for the next window while the rest of this one is
//! still to be used, so that a program that is not faster than the link never waits.
//!
//! What a writer is given ahead is taken from others. So a writer to whom others object, by
//! wanting back what it was given last, begins anew, with the smallest window.

use super::Space;
use crate::dsm::message::{Access, PageNumber, Pages};

/// Readers and writers that are followed at once.
const FOLLOWED: usize = 8;

/// A window is so many times as long as the one before it.
const GROWTH: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stream {
    space: Space,
    /// What it does.
    access: Access,
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
    /// What for.
    pub(super) access: Access,
}

/// Readers and writers that may be sequential, the one that was seen last at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Streams(Vec<Stream>);

impl Streams {
    /// Somebody in a mapping lacked these pages; what is to be asked for ahead.
    pub(super) fn missed(
        &mut self,
        (space, access): (Space, Access),
        pages: Pages,
        most: u32,
    ) -> Option<Window> {
        let same = |stream: &Stream| {
            (stream.space, stream.access, stream.next) == (space, access, pages.first)
        };
        let next = PageNumber(pages.first.0 + u64::from(pages.count));
        let Some(at) = self.0.iter().position(same) else {
            if self.0.len() == FOLLOWED {
                self.0.remove(0);
            }
            self.0.push(Stream {
                space,
                access,
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

    /// Somebody reached a page; what is to be asked for ahead, if it is a mark.
    pub(super) fn reached(
        &mut self,
        page: PageNumber,
        access: Access,
        most: u32,
    ) -> Option<Window> {
        let is_mark = |stream: &Stream| (stream.mark, stream.access) == (Some(page), access);
        let at = self.0.iter().position(is_mark)?;
        let mut stream = self.0.remove(at);
        let window = stream.advance(1, most);
        self.0.push(stream);
        window
    }

    /// Whether the touch of a page by a mapping asks for more.
    pub(super) fn is_mark(&self, space: Space, page: PageNumber) -> bool {
        let is_mark = |stream: &Stream| (stream.mark, stream.space) == (Some(page), space);
        self.0.iter().any(is_mark)
    }

    /// Others want these pages: a writer that was given some of them ahead is followed no more.
    pub(super) fn wanted_back(&mut self, pages: Pages) {
        self.0.retain(|stream| {
            let given = stream.last_window();
            stream.access == Access::Read || !given.is_some_and(|given| given.overlaps(pages))
        });
    }

    pub(super) fn unmapped(&mut self, space: Space) {
        self.0.retain(|stream| stream.space != space);
    }
}

impl Stream {
    fn advance(&mut self, least: u32, most: u32) -> Option<Window> {
        let count = self.window.saturating_mul(GROWTH).max(least).min(most);
        let first = self.next;
        let mark = PageNumber(first.0 + u64::from(count / 2));
        self.window = count;
        self.mark = Some(mark);
        self.next = PageNumber(first.0.checked_add(u64::from(count))?);
        let access = self.access;
        (count > 0).then_some(Window {
            first,
            count,
            mark,
            access,
        })
    }

    /// The pages that were asked for ahead the last time, if any were.
    fn last_window(&self) -> Option<Pages> {
        let first = self.next.0.checked_sub(u64::from(self.window))?;
        (self.window > 0).then_some(Pages {
            first: PageNumber(first),
            count: self.window,
        })
    }
}
