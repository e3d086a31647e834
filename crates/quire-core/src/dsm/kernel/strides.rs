//! Readers and writers that leave pages out: who goes down a column of a matrix, say, or through
//! one member of large records. They are found by three pages that somebody lacked, each as far
//! from the one before it as that from the first, whatever was lacked in between: so those who go
//! through several such rows at once are found, too. From then on they are given pages ahead at that
//! distance, as those who leave none out (`ahead.rs`): in windows that grow, each with a mark
//! that is not shown until it is touched, and then asks for the next window; and who was given to
//! write what others want back is followed no more.
//!
//! Only pages that follow no others are looked at here.

use super::Space;
use super::ahead::{GROWTH, Way, Who, Window};
use crate::dsm::message::{Access, PageNumber, Pages};

/// Readers and writers that are followed at once.
const FOLLOWED: usize = 8;
/// Of what was lacked, so much is remembered.
const REMEMBERED: usize = 8;
/// The most pages of this machine in a window. Each of them takes a message.
const LONGEST: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stride {
    who: Who,
    /// From each page of this machine to the next, in pages of the scheduler.
    step: i64,
    /// What was asked for last, ahead or not.
    last: Pages,
    /// So many were asked for ahead together with that; none: 0.
    ahead: u32,
    mark: Option<PageNumber>,
}

/// Readers and writers that leave pages out, the one that was seen last at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Strides {
    /// What was lacked and belongs to none that is followed, the latest at the end.
    lacked: Vec<(Who, Pages)>,
    followed: Vec<Stride>,
}

impl Strides {
    /// Somebody lacked a page of this machine; what is to be asked for ahead, where it is the next
    /// one of those that are followed.
    pub(super) fn goes_on(&mut self, who: Who, page: Pages, most: u32) -> Option<Window> {
        let is_next = |stride: &Stride| {
            let next = moved(stride.last, stride.step);
            (stride.who, next) == (who, Some(page))
        };
        let at = self.followed.iter().position(is_next)?;
        let stride = self.followed.remove(at);
        let last = page;
        self.advance(Stride { last, ..stride }, stride.grown(), most)
    }

    /// Somebody lacked a page of this machine that follows nothing; what is to be asked for ahead.
    pub(super) fn missed(&mut self, who: Who, page: Pages, most: u32) -> Option<Window> {
        self.lacked.retain(|lacked| *lacked != (who, page));
        let Some((near, far, step)) = self.row_to(who, page) else {
            if self.lacked.len() == REMEMBERED {
                self.lacked.remove(0);
            }
            self.lacked.push((who, page));
            return None;
        };
        let row = [(who, near), (who, far)];
        self.lacked.retain(|lacked| !row.contains(lacked));
        let stride = Stride {
            who,
            step,
            last: page,
            ahead: 0,
            mark: None,
        };
        if self.followed.len() == FOLLOWED {
            self.followed.remove(0);
        }
        self.advance(stride, 1, most)
    }

    /// The latest two pages that were lacked before this one and make a row with it, and how far each is
    /// from the next. Neighbours make none: they are followed elsewhere.
    fn row_to(&self, who: Who, page: Pages) -> Option<(Pages, Pages, i64)> {
        self.lacked.iter().rev().find_map(|&(by, near)| {
            let [to, from] = [page, near].map(|it| i64::try_from(it.first.0).ok());
            let step = to? - from?;
            let far = moved(near, -step)?;
            let is_row = by == who
                && step.unsigned_abs() > u64::from(page.count)
                && self.lacked.contains(&(who, far));
            is_row.then_some((near, far, step))
        })
    }

    /// Somebody reached a page; what is to be asked for ahead, if it is a mark.
    pub(super) fn reached(
        &mut self,
        page: PageNumber,
        access: Access,
        most: u32,
    ) -> Option<Window> {
        let is_mark = |stride: &Stride| (stride.mark, stride.who.1) == (Some(page), access);
        let at = self.followed.iter().position(is_mark)?;
        let stride = self.followed.remove(at);
        self.advance(stride, stride.grown(), most)
    }

    /// Whether the touch of a page by a mapping asks for more.
    pub(super) fn is_mark(&self, space: Space, page: PageNumber) -> bool {
        let is_mark = |stride: &Stride| (stride.mark, stride.who.0) == (Some(page), space);
        self.followed.iter().any(is_mark)
    }

    /// Others want these pages: a writer that was given some of them ahead is followed no more.
    pub(super) fn wanted_back(&mut self, pages: Pages) {
        self.followed.retain(|stride| {
            stride.who.1 == Access::Read || !stride.given().any(|given| given.overlaps(pages))
        });
    }

    pub(super) fn unmapped(&mut self, space: Space) {
        self.lacked.retain(|(who, _)| who.0 != space);
        self.followed.retain(|stride| stride.who.0 != space);
    }

    /// The next so many pages of this machine are asked for; `None` where there is none.
    fn advance(&mut self, mut stride: Stride, count: u32, most: u32) -> Option<Window> {
        let most = (most / stride.last.count.max(1)).clamp(1, LONGEST);
        let first = moved(stride.last, stride.step);
        let rest = std::iter::successors(first, |page| moved(*page, stride.step));
        let pages: Vec<Pages> = rest.take(count.min(most) as usize).collect();
        let mark = pages.get(pages.len() / 2)?.first;
        stride.last = *pages.last()?;
        (stride.ahead, stride.mark) = (pages.len() as u32, Some(mark));
        let who = stride.who;
        self.followed.push(stride);
        Some(Window {
            who,
            pages,
            way: Way::Up,
            mark,
        })
    }
}

impl Stride {
    /// How many are to be asked for ahead after what was the last time.
    const fn grown(&self) -> u32 {
        match self.ahead {
            0 => 1,
            before => before.saturating_mul(GROWTH),
        }
    }

    /// What was asked for ahead the last time.
    fn given(&self) -> impl Iterator<Item = Pages> {
        let before = |page: &Pages| moved(*page, -self.step);
        std::iter::successors(Some(self.last), before).take(self.ahead as usize)
    }
}

/// So many pages further on, or back; `None` where no object has any.
fn moved(pages: Pages, step: i64) -> Option<Pages> {
    let first = pages.first.0.checked_add_signed(step)?;
    first.checked_add(u64::from(pages.count))?;
    let first = PageNumber(first);
    Some(Pages { first, ..pages })
}
