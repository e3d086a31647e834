//! The `simple` scheduler (paper 003, section 3, Figures 2 to 4): one server orders the
//! faults on an object, each page by itself. The names are the paper's. Writers are served
//! in the order of arrival and before readers; readers are served all at once.
//!
//! # Where it differs from the paper
//! The paper's messages travel through one Mach kernel, or as if they did. Here each kernel
//! has its own link. A link keeps the order; two links keep none among each other. So:
//!
//! - **A writer waits for the readers.** Figure 3 sends a flush to all readers and the page
//!   to the writer in one go. Here the page becomes WriteWait, and the writer has it when
//!   the last of the readers said `LockCompleted`. Otherwise: A and B read a page. A unlocks
//!   it, the server flushes B and allows A to write. A writes 1, then writes 1 to a second
//!   page, which C reads and passes on to B. B reads 1 there and, as its flush is still on
//!   its way, the old 0 in the first page.
//! - **A page is returned when `LockCompleted` says so**, not when `DataWrite` brings its
//!   contents. Otherwise: A writes a page back on its own while a flush is on its way to it,
//!   the server takes that for the answer, serves B, and then A anew. The `LockCompleted` for
//!   the flush of before arrives, is taken for the answer to the next one, and C is served
//!   while A has the page. For the same reason a kernel is sent nothing about a page for
//!   which it owes an answer, and a `DataWrite` alone is a page-out on the kernel's own.
//! - **A kernel that unlocks keeps its copy while the others answer**, so that the grant
//!   carries no contents. If it is flushed instead, as another writer was first, its grant
//!   carries them. Otherwise: A and B unlock at the same time, A is granted, B's request
//!   arrives when its copy is flushed, and B writes to a copy that lacks what A wrote.
//! - **A page whose contents are not here is as one whose owner was asked to return it**:
//!   its owner is whoever backs the object, requests queue, [`Scheduler::loaded`] is the
//!   answer. Otherwise: A and B read a page, it is asked for twice, A is served, writes, and
//!   the second answer overwrites the server's copy of what A wrote.
//! - **A kernel that asks again** for what it already waits for waits once. One that waits
//!   to read and then asks to write waits as a writer, whose grant serves both. One that has
//!   been given the page meanwhile is treated as any other: its copy is taken back first.
//! - **A request for several pages is one for each**, answered each by itself. Those who need
//!   them all at once need [`super::multi`].
//!
//! `deschedule_myself` of Figure 4, which lets a writer use the page before it is taken
//! away, is the kernel's part: the flush follows the page at once, and the kernel obeys it
//! after its hold time.

use self::page::{Page, Turn};
use super::alone::{Alone, Desk};
use super::observe::{Fault, Observe, PageStatus, Stats};
use super::options::Options;
use super::{Action, Nonsense, Recall, Scheduler};
use crate::dsm::message::{Client, FromKernel, KernelId, PageNumber, Pages};
use crate::dsm::per_page::PerPage;

mod page;
#[cfg(test)]
mod tests;

/// The scheduler of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Simple<D> {
    desk: Desk,
    /// Only pages that somebody asked for.
    pages: PerPage<Page<D>>,
}

impl<D: Clone> Simple<D> {
    /// A scheduler of an object that nobody has a copy of.
    #[must_use]
    pub fn new(options: Options) -> Simple<D> {
        Simple {
            desk: Desk::new(options),
            pages: PerPage::new(),
        }
    }

    /// Whether something holds for each of these pages; it holds for none that nobody ever
    /// asked for.
    fn all(&self, pages: Pages, holds: impl Fn(&Page<D>) -> bool) -> bool {
        pages
            .iter()
            .all(|number| self.pages.get(number).is_some_and(&holds))
    }

    /// A page, and what it needs to act.
    fn at<'a>(
        &'a mut self,
        number: PageNumber,
        actions: &'a mut Vec<Action<D>>,
    ) -> (&'a mut Page<D>, Turn<'a, D>) {
        let page = self.pages.get_or_insert_with(number, Page::untouched);
        let turn = Turn {
            number,
            options: &self.desk.options,
            stats: &mut self.desk.stats.0,
            hot: &mut self.desk.hot.0,
            actions,
        };
        (page, turn)
    }

    fn each(&mut self, actions: &mut Vec<Action<D>>, act: impl Fn(&mut Page<D>, &mut Turn<'_, D>)) {
        for (number, page) in self.pages.iter_mut() {
            let mut turn = Turn {
                number,
                options: &self.desk.options,
                stats: &mut self.desk.stats.0,
                hot: &mut self.desk.hot.0,
                actions: &mut *actions,
            };
            act(page, &mut turn);
        }
    }
}

impl<D: Clone> Alone<D> for Simple<D> {
    fn desk(&mut self) -> &mut Desk {
        &mut self.desk
    }

    fn fault(
        &mut self,
        kernel: KernelId,
        pages: Pages,
        fault: Fault,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        for number in pages.iter() {
            let (page, mut turn) = self.at(number, actions);
            page.count(fault, &mut turn);
            match fault {
                Fault::Read => page.read_fault(kernel, &mut turn),
                Fault::Write => page.write_fault(kernel, true, &mut turn),
                Fault::Unlock => page.write_fault(kernel, false, &mut turn),
            }
        }
        self.desk.hot.0.look(heat(&self.pages));
        Ok(())
    }

    fn may_write_back(&self, kernel: KernelId, pages: Pages) -> bool {
        self.all(pages, |page| page.may_write_back(kernel))
    }

    fn written_back(
        &mut self,
        kernel: KernelId,
        pages: Pages,
        data: Vec<Option<D>>,
        actions: &mut Vec<Action<D>>,
    ) {
        for (number, data) in pages.iter().zip(data) {
            let (page, mut turn) = self.at(number, actions);
            page.data_write(kernel, data, &mut turn);
        }
    }

    fn owes_answer(&self, kernel: KernelId, pages: Pages) -> bool {
        self.all(pages, |page| page.owes_answer(kernel))
    }

    fn answered(&mut self, kernel: KernelId, pages: Pages, actions: &mut Vec<Action<D>>) {
        for number in pages.iter() {
            let (page, mut turn) = self.at(number, actions);
            page.lock_completed(kernel, &mut turn);
        }
    }

    fn forget(&mut self, kernel: KernelId, crashed: bool, actions: &mut Vec<Action<D>>) {
        self.each(actions, |page, turn| page.forget(kernel, crashed, turn));
    }

    fn take_back(&mut self, actions: &mut Vec<Action<D>>) {
        self.each(actions, Page::take_back);
    }

    fn supplied(
        &mut self,
        pages: Pages,
        data: Option<Vec<Option<D>>>,
        actions: &mut Vec<Action<D>>,
    ) {
        let mut data = data.map(Vec::into_iter);
        for number in pages.iter() {
            let supplied = data.as_mut().and_then(Iterator::next);
            if !self.pages.contains(number) {
                continue;
            }
            let (page, mut turn) = self.at(number, actions);
            page.loaded(supplied, &mut turn);
        }
    }
}

impl<D: Clone> Recall<D> for Simple<D> {
    fn recall(&mut self, actions: &mut Vec<Action<D>>) {
        self.end(actions);
    }

    fn owes(&self, page: PageNumber) -> Option<KernelId> {
        self.pages.get(page).and_then(Page::writer)
    }
}

impl<D: Clone> Scheduler<D> for Simple<D> {
    fn kernel_says(
        &mut self,
        kernel: KernelId,
        message: FromKernel<D>,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        self.says(kernel, message, actions)
    }

    fn loaded(&mut self, pages: Pages, data: Option<Vec<Option<D>>>, actions: &mut Vec<Action<D>>) {
        self.counted(actions, |it, actions| it.supplied(pages, data, actions));
    }

    fn gone(&mut self, client: Client, actions: &mut Vec<Action<D>>) {
        self.lose(client, actions);
    }

    fn release(&mut self, page: PageNumber) -> bool {
        self.pages.get_mut(page).is_some_and(Page::release)
    }

    fn written_by(&self, kernel: KernelId) -> Vec<PageNumber> {
        let pages = self.pages.iter();
        let written = pages.filter(|(_, page)| page.may_write_back(kernel));
        written.map(|(number, _)| number).collect()
    }

    fn restore(&mut self, page: PageNumber, data: Option<D>, actions: &mut Vec<Action<D>>) -> bool {
        if self.desk.options.check(Pages::one(page)).is_err() {
            return false;
        }
        let found = self.pages.get_or_insert_with(page, Page::untouched);
        let is_taken = found.restore(data.clone());
        if is_taken {
            actions.push(Action::Save(Pages::one(page), vec![data]));
        }
        is_taken
    }
}

impl<D: Clone> Observe for Simple<D> {
    fn stats(&self) -> &Stats {
        &self.desk.stats.0
    }

    fn page(&self, page: PageNumber) -> Option<PageStatus> {
        self.pages.get(page).map(Page::status)
    }

    fn hottest(&mut self) -> Vec<PageNumber> {
        self.desk.hot.0.hottest(heat(&self.pages))
    }

    fn touched_count(&self) -> usize {
        self.pages.len()
    }

    fn touched(&self) -> Box<dyn Iterator<Item = PageNumber> + '_> {
        Box::new(self.pages.keys())
    }
}

/// How many faults a page had.
fn heat<D: Clone>(pages: &PerPage<Page<D>>) -> impl Fn(PageNumber) -> u64 {
    |page| pages.get(page).map_or(0, Page::faults)
}
