//! The records of requests that wait (paper 003, section 3.1).

use std::collections::{BTreeMap, BTreeSet};

use super::page::Page;
use crate::dsm::message::{Access, KernelId, PageNumber, Pages};
use crate::dsm::scheduler::Action;
use crate::dsm::scheduler::observe::Fault;

/// The place of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Index(usize);

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Request {
    /// Whose it is; `None` if that kernel is gone.
    pub(super) kernel: Option<KernelId>,
    pub(super) pages: Pages,
    pub(super) fault: Fault,
    /// How many requests it follows; if none, how many answers it waits for.
    pub(super) count: usize,
    /// Those that follow it, in the order of arrival.
    pub(super) followers: Vec<Index>,
}

impl Request {
    pub(super) const fn new(kernel: KernelId, pages: Pages, fault: Fault) -> Request {
        Request {
            kernel: Some(kernel),
            pages,
            fault,
            count: 0,
            followers: Vec::new(),
        }
    }

    /// What it may do to the pages when it has them.
    pub(super) const fn access(&self) -> Access {
        match self.fault {
            Fault::Read => Access::Read,
            Fault::Write | Fault::Unlock => Access::Write,
        }
    }
}

/// All that wait. The lowest free place is used first, so that equal histories make equal
/// records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Requests {
    places: Vec<Option<Request>>,
    free: BTreeSet<usize>,
    /// How many there are of each kernel, where there are some.
    by_kernel: BTreeMap<KernelId, u32>,
}

impl Requests {
    pub(super) fn insert(&mut self, request: Request) -> Index {
        if let Some(kernel) = request.kernel {
            *self.by_kernel.entry(kernel).or_default() += 1;
        }
        let place = self.free.pop_first().unwrap_or(self.places.len());
        if place == self.places.len() {
            self.places.push(Some(request));
        } else {
            self.places[place] = Some(request);
        }
        Index(place)
    }

    pub(super) fn take(&mut self, index: Index) -> Option<Request> {
        let request = self.places.get_mut(index.0)?.take()?;
        if let Some(kernel) = request.kernel {
            self.one_less(kernel);
        }
        self.free.insert(index.0);
        while let Some(None) = self.places.last() {
            self.places.pop();
            self.free.remove(&self.places.len());
        }
        Some(request)
    }

    pub(super) fn get(&self, index: Index) -> Option<&Request> {
        self.places.get(index.0)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: Index) -> Option<&mut Request> {
        self.places.get_mut(index.0)?.as_mut()
    }

    /// How many there are of a kernel.
    pub(super) fn of(&self, kernel: KernelId) -> u32 {
        self.by_kernel.get(&kernel).copied().unwrap_or(0)
    }

    /// A new request follows another one, once, over however many pages.
    pub(super) fn follow(&mut self, before: Index, new: Index) {
        let Some(first) = self.get_mut(before) else {
            return;
        };
        if first.followers.last() == Some(&new) {
            return;
        }
        first.followers.push(new);
        if let Some(new) = self.get_mut(new) {
            new.count += 1;
        }
    }

    /// Whether a request follows nobody, or waits for no answer.
    pub(super) fn is_ready(&self, index: Index) -> bool {
        self.get(index).is_some_and(|request| request.count == 0)
    }

    /// One of those that a request follows was served, or one of the answers that it waits
    /// for is here. Whether it was the last.
    pub(super) fn answered(&mut self, index: Index) -> bool {
        if let Some(request) = self.get_mut(index) {
            request.count = request.count.saturating_sub(1);
        }
        self.is_ready(index)
    }

    /// A page is returned. The request that waits for it, if it needs nothing else any more.
    pub(super) fn returned<D: Clone>(
        &mut self,
        number: PageNumber,
        page: &mut Page<D>,
        actions: &mut Vec<Action<D>>,
    ) -> Option<Index> {
        let index = page.awaited?;
        let request = self.get(index)?;
        let wanted = |kernel| page.must_load(kernel, request.fault);
        if request.kernel.is_some_and(wanted) {
            page.loading = true;
            actions.push(Action::Load(Pages::one(number)));
            return None;
        }
        self.answered(index).then_some(index)
    }

    /// The requests of a kernel that is gone keep their places, for those that follow.
    pub(super) fn forget(&mut self, kernel: KernelId) {
        for request in self.places.iter_mut().flatten() {
            if request.kernel == Some(kernel) {
                request.kernel = None;
            }
        }
        self.by_kernel.remove(&kernel);
    }

    /// Nobody wants anything any more. Requests keep their places, as those of who is gone do.
    pub(super) fn forget_all(&mut self) {
        for request in self.places.iter_mut().flatten() {
            request.kernel = None;
        }
        self.by_kernel.clear();
    }

    /// How many readers and writers wait for a page.
    pub(super) fn waiting_for(&self, page: PageNumber) -> (usize, usize) {
        let waiting = self.places.iter().flatten();
        let waiting = waiting.filter(|request| request.kernel.is_some());
        let waiting = waiting.filter(|request| request.pages.contains(page));
        let (readers, writers): (Vec<_>, Vec<_>) =
            waiting.partition(|request| request.access() == Access::Read);
        (readers.len(), writers.len())
    }

    fn one_less(&mut self, kernel: KernelId) {
        if let Some(count) = self.by_kernel.get_mut(&kernel) {
            *count -= 1;
            if *count == 0 {
                self.by_kernel.remove(&kernel);
            }
        }
    }
}
