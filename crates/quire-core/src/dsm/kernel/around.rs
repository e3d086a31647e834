//! Programs that go through pages which the machine has already: they are shown the next ones
//! together with the one that they touch, as nobody has to be asked for them. The first time that
//! is a few, as a kernel does with the pages of a file; who goes on in order is shown four times
//! as many each time.

use super::Space;
use crate::dsm::message::PageNumber;

/// Programs that are followed at once.
const FOLLOWED: usize = 8;
/// So many pages are shown to who touches one out of order, that one among them.
const FIRST: u32 = 16;
/// A window is so many times as long as the one before it.
const GROWTH: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Walk {
    space: Space,
    /// The page after all that was shown.
    next: PageNumber,
    /// Pages that were to be shown the last time.
    window: u32,
}

/// Programs that may go through pages in order, the one that was seen last at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Walks(Vec<Walk>);

impl Walks {
    /// Somebody touched a page that is here; how many from it on are to be shown, at most.
    pub(super) fn window(&self, space: Space, page: PageNumber, most: u32) -> u32 {
        let here = |walk: &&Walk| (walk.space, walk.next) == (space, page);
        let grown = self.0.iter().find(here);
        let window = grown.map_or(FIRST, |walk| walk.window.saturating_mul(GROWTH));
        window.min(most).max(1)
    }

    /// Of a window, so many pages were there and are shown.
    pub(super) fn shown(&mut self, space: Space, page: PageNumber, window: u32, shown: u32) {
        let next = PageNumber(page.0 + u64::from(shown));
        let here = |walk: &Walk| (walk.space, walk.next) == (space, page);
        match self.0.iter().position(here) {
            Some(at) => drop(self.0.remove(at)),
            None if self.0.len() == FOLLOWED => drop(self.0.remove(0)),
            None => {}
        }
        self.0.push(Walk {
            space,
            next,
            window,
        });
    }

    pub(super) fn unmapped(&mut self, space: Space) {
        self.0.retain(|walk| walk.space != space);
    }
}
