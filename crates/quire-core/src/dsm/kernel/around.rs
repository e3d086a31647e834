//! Programs that go through pages which the machine has already: they are shown the next ones
//! together with the one that they touch, as nobody has to be asked for them. The first time that
//! is a few, as a kernel does with the pages of a file; who goes on in order, up or down, is shown
//! four times as many each time.

use super::Space;
use super::ahead::{GROWTH, Way};
use crate::dsm::message::{PageNumber, Pages};

/// Programs that are followed at once.
const FOLLOWED: usize = 8;
/// So many pages are shown to who touches one out of order, that one among them.
const FIRST: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Walk {
    space: Space,
    /// What was shown last.
    shown: Pages,
    /// Known from the second time on.
    way: Option<Way>,
    /// Pages that were to be shown the last time.
    window: u32,
}

/// Programs that may go through pages in order, the one that was seen last at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Walks(Vec<Walk>);

impl Walks {
    /// Somebody touched a page that is here; how many from it on are to be shown, at most, and
    /// which way.
    pub(super) fn window(&self, space: Space, page: PageNumber, most: u32) -> (u32, Way) {
        let next = self.going_on(space, page);
        let (window, way) = next.map_or((FIRST, Way::Up), |(at, way)| {
            (self.0[at].window.saturating_mul(GROWTH), way)
        });
        (window.min(most).max(1), way)
    }

    /// Of a window that somebody who touched a page was to be shown, these were there and are.
    pub(super) fn shown(&mut self, space: Space, page: PageNumber, window: u32, shown: Pages) {
        let next = self.going_on(space, page);
        match next {
            Some((at, _)) => drop(self.0.remove(at)),
            None if self.0.len() == FOLLOWED => drop(self.0.remove(0)),
            None => {}
        }
        self.0.push(Walk {
            space,
            shown,
            way: next.map(|(_, way)| way),
            window,
        });
    }

    /// Which of them goes on with a page, and which way.
    fn going_on(&self, space: Space, page: PageNumber) -> Option<(usize, Way)> {
        let mut all = self.0.iter().enumerate();
        all.find_map(|(at, walk)| Some((at, walk.way_to(space, page)?)))
    }

    pub(super) fn unmapped(&mut self, space: Space) {
        self.0.retain(|walk| walk.space != space);
    }
}

impl Walk {
    /// Which way a page is the next one that it comes to, if it is.
    fn way_to(&self, space: Space, page: PageNumber) -> Option<Way> {
        Way::on(self.way, self.shown, Pages::one(page)).filter(|_| self.space == space)
    }
}
