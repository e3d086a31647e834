//! Pages of which a program said that it will need them. They are asked for in windows as long
//! as those of the longest stream: the first at once, each next one when half of the last has
//! come, so that the link has always something to do, and never more than it takes. The program
//! is shown all of them as they come; nothing of that needs a touch.
//!
//! What has come makes the next window due, and no more: it is asked for by whoever has the time
//! ([`super::Kernel::pass`]). Where answers come at once, as on the server's own machine, all of
//! a long need would be one piece of work otherwise, and everybody else would wait for it.
//!
//! It is a hint. What becomes of it is nobody's error: where the link breaks or a page is lost,
//! the rest is left to touches.

use super::Space;
use crate::dsm::message::{Access, PageNumber, Pages};

/// So much may be needed at once; what was said first is forgotten first.
const KEPT: usize = 8;

/// What is left of something that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Need {
    pub(super) space: Space,
    pub(super) access: Access,
    /// What has not been asked for.
    pub(super) rest: Pages,
}

impl Need {
    /// Takes out the next pages to be asked for, at most so many; none, if it is over.
    pub(super) fn next(&mut self, most: u32) -> Option<Pages> {
        let Pages { first, count } = self.rest;
        let now = count.min(most);
        self.rest = Pages {
            first: PageNumber(first.0 + u64::from(now)),
            count: count - now,
        };
        (now > 0).then_some(Pages { first, count: now })
    }
}

/// Needs that go on when a page comes, and those that may go on now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Needs {
    waiting: Vec<(PageNumber, Need)>,
    due: Vec<Need>,
}

impl Needs {
    /// The rest of it, if there is any, is asked for when a page comes.
    pub(super) fn wait(&mut self, mark: PageNumber, need: Need) {
        if need.rest.count == 0 {
            return;
        }
        keep(&mut self.waiting, (mark, need));
    }

    /// The rest of it, if there is any, may be asked for.
    pub(super) fn go_on(&mut self, need: Need) {
        if need.rest.count == 0 {
            return;
        }
        keep(&mut self.due, need);
    }

    /// Pages have come: those that waited for them may go on.
    pub(super) fn came(&mut self, pages: Pages) {
        let came = |(mark, _): &mut (PageNumber, Need)| pages.contains(*mark);
        for (_, need) in self.waiting.extract_if(.., came).collect::<Vec<_>>() {
            self.go_on(need);
        }
    }

    /// Whether some may go on.
    pub(super) const fn are_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Takes out those that may go on.
    pub(super) fn take_due(&mut self) -> Vec<Need> {
        std::mem::take(&mut self.due)
    }

    /// A page does not come.
    pub(super) fn failed(&mut self, page: PageNumber) {
        self.waiting.retain(|(mark, _)| *mark != page);
    }

    pub(super) fn unmapped(&mut self, space: Space) {
        self.waiting.retain(|(_, need)| need.space != space);
        self.due.retain(|need| need.space != space);
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.due.clear();
    }
}

/// Keeps one more, in the place of the first where there are as many as may be.
fn keep<T>(all: &mut Vec<T>, one: T) {
    if all.len() == KEPT {
        all.remove(0);
    }
    all.push(one);
}
