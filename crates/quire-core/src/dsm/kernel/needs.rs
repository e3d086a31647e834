//! Pages of which a program said that it will need them. They are asked for in windows as long
//! as those of the longest stream: the first at once, each next one when half of the last has
//! come, so that the link has always something to do, and never more than it takes. The program
//! is shown all of them as they come; nothing of that needs a touch.
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

/// Needs that go on when a page comes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Needs(Vec<(PageNumber, Need)>);

impl Needs {
    /// The rest of it, if there is any, is asked for when a page comes.
    pub(super) fn wait(&mut self, mark: PageNumber, need: Need) {
        if need.rest.count == 0 {
            return;
        }
        if self.0.len() == KEPT {
            self.0.remove(0);
        }
        self.0.push((mark, need));
    }

    /// Pages have come: what is to be asked for next, one need after the other.
    pub(super) fn came(&mut self, pages: Pages) -> Option<Need> {
        let at = self.0.iter().position(|(mark, _)| pages.contains(*mark))?;
        Some(self.0.remove(at).1)
    }

    /// A page does not come.
    pub(super) fn failed(&mut self, page: PageNumber) {
        self.0.retain(|(mark, _)| *mark != page);
    }

    pub(super) fn unmapped(&mut self, space: Space) {
        self.0.retain(|(_, need)| need.space != space);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
