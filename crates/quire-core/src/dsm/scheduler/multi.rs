//! The `multi` scheduler (paper 003, section 3.1): one server, kernels with pages of
//! different sizes. It has its own page size. A request for less is rounded up to it
//! ([`Pages::covering`]); a request for more names several of its pages, which are shipped
//! all at once.
//!
//! A request is one of three cases when it arrives, in the paper's order:
//! 1. Nobody has what stands in its way: it is satisfied.
//! 2. Somebody has, and nobody waits for any of its pages: whoever has them is descheduled
//!    (flushed), and the request waits for the answers.
//! 3. Others wait for some of its pages: it follows them. Nobody is descheduled for it yet,
//!    as it could not use their pages.
//!
//! Each waiting request is a record with a counter and the list of those that follow it. The
//! counter is the number of requests that it follows, and when they are served, the number
//! of answers that it waits for. A page points to the request that waits for its answers and
//! to the last request that waits for it. So all is done in constant time, but what has to
//! look at each page of a request.
//!
//! **Fair, and free of deadlock.** A request follows only requests that arrived before it,
//! so there is no cycle. Nothing overtakes a request that wants one of the same pages; what
//! wants others, does not wait for it. Requests to read follow each other in this order too,
//! but those that are next are all served at once.
//!
//! # Where it differs from the paper
//! As in [`super::simple`], and for the same reasons: a writer waits until all readers have
//! answered, a page is returned by `LockCompleted`, a kernel that unlocks keeps its copies
//! while it waits, and a page whose contents are not here has to be answered for by whoever
//! backs the object. Further:
//!
//! - **A request to unlock may name pages of which its kernel has no copy, or may already
//!   write to.** A kernel whose pages are larger may have lost a part of one. It gets what it
//!   lacks with contents and the right to write to the rest, in messages that follow each
//!   other, when all of it is free. Otherwise two kernels that each have a half of a page
//!   and ask for the other half could take it from each other for ever.
//! - **A request whose kernel is gone stays in its place without a kernel**: it deschedules
//!   nobody, and when it is next, those that follow it are next. Taking it out would mean to
//!   look at all that point to it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use self::answer::Answer;
use self::page::{Grant, Page};
use self::request::{Index, Request, Requests};
use self::runs::Runs;
use super::alone::{Alone, Desk};
use super::contents::Contents;
use super::observe::{Fault, Observe, PageStatus, Stats};
use super::options::Options;
use super::{Action, Nonsense, Recall, Scheduler};
use crate::dsm::message::{
    Access, Client, FromKernel, KernelId, Lock, PageNumber, Pages, ToKernel,
};
use crate::dsm::per_page::PerPage;

mod answer;
mod page;
mod request;
mod runs;
#[cfg(test)]
mod tests;

/// The scheduler of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Multi<D> {
    desk: Desk,
    /// Only pages that somebody asked for.
    pages: PerPage<Page<D>>,
    requests: Requests,
}

impl<D: Clone> Multi<D> {
    /// A scheduler of an object that nobody has a copy of.
    #[must_use]
    pub fn new(options: Options) -> Multi<D> {
        Multi {
            desk: Desk::new(options),
            pages: PerPage::new(),
            requests: Requests::default(),
        }
    }

    /// Whether the last request for each of these pages is one of this kernel that gets it
    /// all that it asks for now. One to unlock does not, where it says now that it has no
    /// copy: it would be allowed to write to what it let go of since.
    fn is_repeated(&self, kernel: KernelId, pages: Pages, fault: Fault) -> bool {
        let first = self.pages.get(pages.first).and_then(|page| page.last);
        let Some(index) = first else {
            return false;
        };
        if !self.all(pages, |page| page.last == first) {
            return false;
        }
        self.requests.get(index).is_some_and(|request| {
            request.kernel == Some(kernel)
                && (request.fault == fault || request.fault == Fault::Write)
        })
    }

    /// A request follows nobody any more: whoever has what stands in its way is
    /// descheduled. Whether nothing does.
    fn begin(&mut self, index: Index, actions: &mut Vec<Action<D>>) -> bool {
        let Some(request) = self.requests.get_mut(index) else {
            return false;
        };
        let (Some(kernel), fault) = (request.kernel, request.fault) else {
            return true;
        };
        let mut flushes = BTreeMap::<KernelId, Runs>::new();
        let mut loads = Runs::default();
        let mut count = 0;
        for (number, page) in self.pages.range_mut(span(request.pages)) {
            page.deschedule(kernel, fault);
            for &other in &page.answers {
                flushes.entry(other).or_default().push(number);
                count += 1;
            }
            page.stats.0.descheduled += page.answers.len() as u64;
            self.desk.stats.0.descheduled += page.answers.len() as u64;
            if page.must_load(kernel, fault) {
                page.loading = true;
                loads.push(number);
                count += 1;
            }
            page.awaited = page.waits().then_some(index);
        }
        request.count = count;
        for (kernel, runs) in flushes {
            actions.extend(runs.iter().map(|pages| {
                let lock = Lock::Flush;
                Action::Tell(kernel, ToKernel::LockRequest { pages, lock })
            }));
        }
        actions.extend(loads.iter().map(Action::Load));
        count == 0
    }

    /// These requests have all that they need: they are satisfied, and so are those that
    /// follow them, as far as nothing else stands in their way.
    fn serve(&mut self, mut ready: VecDeque<Index>, actions: &mut Vec<Action<D>>) {
        while let Some(index) = ready.pop_front() {
            let Some(request) = self.requests.take(index) else {
                continue;
            };
            self.satisfy(index, &request, actions);
            for next in request.followers {
                if self.requests.answered(next) && self.begin(next, actions) {
                    ready.push_back(next);
                }
            }
        }
    }

    fn satisfy(&mut self, index: Index, request: &Request, actions: &mut Vec<Action<D>>) {
        let mut answer = request.kernel.map(|kernel| (kernel, Answer::new(request)));
        for (number, page) in self.pages.range_mut(span(request.pages)) {
            if page.last == Some(index) {
                page.last = None;
            }
            page.awaited = None;
            if let Some((kernel, answer)) = &mut answer {
                let grant = page.grant(*kernel, request.fault);
                let gives_away = request.access() == Access::Write && !matches!(grant, Grant::Lost);
                if gives_away && !self.desk.options.keeps_latest_copy {
                    page.contents = Contents::Absent;
                }
                answer.push(number, grant);
            }
        }
        if let Some((kernel, answer)) = answer {
            actions.extend(answer.finish().map(|said| Action::Tell(kernel, said)));
        }
    }

    /// Whether something holds for each of these pages; it holds for none that nobody ever
    /// asked for.
    fn all(&self, pages: Pages, holds: impl Fn(&Page<D>) -> bool) -> bool {
        let touched = self.pages.range(span(pages));
        let count = touched.take_while(|(_, page)| holds(page)).count();
        count as u64 == u64::from(pages.count)
    }

    /// From now on these pages are known.
    fn touch(&mut self, pages: Pages) {
        if !self.all(pages, |_| true) {
            for number in pages.iter() {
                self.pages.get_or_insert_with(number, Page::untouched);
            }
        }
    }

    fn count_wait(&mut self, pages: Pages) {
        self.desk.stats.0.waits += 1;
        for page in self.pages.range_mut(span(pages)).map(|(_, page)| page) {
            page.stats.0.waits += 1;
        }
    }
}

/// The numbers of some pages that are within the object.
const fn span(pages: Pages) -> Range<PageNumber> {
    let end = pages.first.0 + pages.count as u64;
    pages.first..PageNumber(end)
}

impl<D: Clone> Alone<D> for Multi<D> {
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
        if self.is_repeated(kernel, pages, fault) {
            self.desk.stats.0.repeated += 1;
            return Ok(());
        }
        if self.requests.of(kernel) >= self.desk.options.requests_per_kernel {
            return Err(Nonsense("a kernel has too many requests that wait"));
        }
        let index = self.requests.insert(Request::new(kernel, pages, fault));
        self.touch(pages);
        for (number, page) in self.pages.range_mut(span(pages)) {
            page.stats.0.faults.count(fault);
            self.desk.stats.0.faults.count(fault);
            self.desk.hot.0.count(number, page.faults());
            if let Some(before) = page.last.replace(index) {
                self.requests.follow(before, index);
            }
        }
        self.desk.hot.0.look(heat(&self.pages));
        if self.requests.is_ready(index) && self.begin(index, actions) {
            self.serve(VecDeque::from([index]), actions);
        } else {
            self.count_wait(pages);
        }
        Ok(())
    }

    fn may_write_back(&self, kernel: KernelId, pages: Pages) -> bool {
        self.all(pages, |page| page.writer == Some(kernel) && !page.returned)
    }

    fn written_back(
        &mut self,
        kernel: KernelId,
        pages: Pages,
        data: Vec<Option<D>>,
        _: &mut Vec<Action<D>>,
    ) {
        for ((_, page), data) in self.pages.range_mut(span(pages)).zip(data) {
            page.data_write(kernel, data);
        }
    }

    fn owes_answer(&self, kernel: KernelId, pages: Pages) -> bool {
        self.all(pages, |page| page.answers.contains(&kernel))
    }

    fn answered(&mut self, kernel: KernelId, pages: Pages, actions: &mut Vec<Action<D>>) {
        let mut ready = VecDeque::new();
        for (number, page) in self.pages.range_mut(span(pages)) {
            if page.dropped(kernel) {
                ready.extend(self.requests.returned(number, page, actions));
            }
        }
        self.serve(ready, actions);
    }

    fn forget(&mut self, kernel: KernelId, crashed: bool, actions: &mut Vec<Action<D>>) {
        self.requests.forget(kernel);
        let mut ready = VecDeque::new();
        for (number, page) in self.pages.iter_mut() {
            if crashed && page.writer == Some(kernel) && !page.returned {
                page.stats.0.recoveries += 1;
                self.desk.stats.0.recoveries += 1;
            }
            if page.dropped(kernel) {
                ready.extend(self.requests.returned(number, page, actions));
            }
        }
        self.serve(ready, actions);
    }

    /// Requests keep their places until those whom they wait for have answered.
    fn take_back(&mut self, actions: &mut Vec<Action<D>>) {
        self.requests.forget_all();
        for (number, page) in self.pages.iter_mut() {
            let writer = page.writer.filter(|writer| page.answers.insert(*writer));
            if let Some(writer) = writer {
                let (pages, lock) = (Pages::one(number), Lock::Flush);
                actions.push(Action::Tell(writer, ToKernel::LockRequest { pages, lock }));
                page.stats.0.descheduled += 1;
                self.desk.stats.0.descheduled += 1;
            }
        }
    }

    fn supplied(
        &mut self,
        pages: Pages,
        data: Option<Vec<Option<D>>>,
        actions: &mut Vec<Action<D>>,
    ) {
        let mut data = data.map(Vec::into_iter);
        let mut ready = VecDeque::new();
        for number in pages.iter() {
            let supplied = data.as_mut().and_then(Iterator::next);
            let Some(page) = self.pages.get_mut(number) else {
                continue;
            };
            if !page.loading {
                continue;
            }
            self.desk.stats.0.lost += u64::from(supplied.is_none());
            page.loading = false;
            page.contents = Contents::supplied(supplied);
            if let Some(index) = page.awaited
                && self.requests.answered(index)
            {
                ready.push_back(index);
            }
        }
        self.serve(ready, actions);
    }
}

impl<D: Clone> Recall<D> for Multi<D> {
    fn recall(&mut self, actions: &mut Vec<Action<D>>) {
        self.end(actions);
    }

    fn owes(&self, page: PageNumber) -> Option<KernelId> {
        self.pages.get(page).and_then(|page| page.writer)
    }
}

impl<D: Clone> Scheduler<D> for Multi<D> {
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
        let written = pages.filter(|(_, page)| page.writer == Some(kernel) && !page.returned);
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

impl<D: Clone> Observe for Multi<D> {
    fn stats(&self) -> &Stats {
        &self.desk.stats.0
    }

    fn page(&self, page: PageNumber) -> Option<PageStatus> {
        let (readers, writers) = self.requests.waiting_for(page);
        self.pages
            .get(page)
            .map(|page| page.status(readers, writers))
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
