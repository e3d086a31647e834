//! Pages that no mapping shows and that lie in the memory file all the same. Some have been
//! used: they are filled again where they are, which is what happens soon to a page that machines
//! take from each other, or freed in batches by a thread of their own. Others came with the folios
//! of an extent that is reserved (`node/reservations.rs`), and are to be used yet.
//!
//! What they hold is old, or zeros, and nobody can see it: a mapping shows only what it is told to.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use quire_core::dsm::message::{PageNumber, Pages};
use quire_core::popmap::Popmap;
use quire_core::units::{Bytes, PageCount};

use super::ledger::Ledger;
use super::memory::{punch, settle};
use super::reservations::{Extent, Found, Reservations};
use super::{Broken, Part, bytes_of, pages_of};
use crate::wire::Loans;

/// So much is kept to be filled again.
const KEPT: Bytes = Bytes(1 << 20);

/// The same in extents that are reserved, where it is freed by extents.
const KEPT_IN_RESERVATIONS: PageCount = Bytes(8 << 20).to_pages();

struct State {
    reservations: Reservations,
    /// Those that are in no reservation.
    pages: BTreeSet<PageNumber>,
    /// In the order in which they became stale. Those that were filled again are in here,
    /// too, until they are met.
    order: VecDeque<PageNumber>,
    /// What the thread frees right now.
    freed: BTreeSet<PageNumber>,
    /// The extent of which the thread frees some right now.
    preempted: Option<Extent>,
    /// Whether there is a thread; if none can be had, nothing is kept.
    thread: bool,
    ended: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The stale pages of an object.
pub(super) struct Stale {
    shared: Arc<Shared>,
    loans: Loans,
    /// Is told before something is freed.
    ledger: Option<Arc<Ledger>>,
    page: Bytes,
    /// The most pages that are kept.
    most: usize,
}

impl Stale {
    /// What is freed is not lent any more.
    pub(super) fn new(page: Bytes, loans: Loans) -> Stale {
        let state = State {
            reservations: Reservations::new(page),
            pages: BTreeSet::new(),
            order: VecDeque::new(),
            freed: BTreeSet::new(),
            preempted: None,
            thread: false,
            ended: false,
        };
        let shared = Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        };
        Stale {
            shared: Arc::new(shared),
            loans,
            ledger: None,
            page,
            most: (KEPT.0 / page.0).max(1) as usize,
        }
    }

    /// A ledger is told before something is freed: to be called before anything is.
    pub(super) fn set_ledger(&mut self, ledger: Arc<Ledger>) {
        self.ledger = Some(ledger);
    }

    /// Starts the thread if there is none yet. Without it, nothing may be added.
    pub(super) fn is_possible(&self, file: &OwnedFd) -> bool {
        let mut state = self.shared.lock();
        if state.thread {
            return true;
        }
        let Ok(file) = file.try_clone() else {
            return false;
        };
        let (shared, page, most) = (Arc::clone(&self.shared), self.page, self.most);
        let (loans, ledger) = (self.loans.clone(), self.ledger.clone());
        let thread = thread::Builder::new().name("quire-dsm-free".to_owned());
        let spawned = thread.spawn(move || {
            shared.free(page, most, |part| {
                settle(&loans, part)?;
                if let Some(ledger) = &ledger {
                    ledger.free(pages_of(part, page));
                }
                punch(&file, part)
            });
        });
        state.thread = spawned.is_ok();
        state.thread
    }

    /// Whether memory may be brought around a base page of an extent that is to be filled: it has
    /// none that is kept for it, and nothing is freed there right now.
    pub(super) fn may_reserve(&self, extent: Extent, page: usize) -> bool {
        let state = self.shared.lock();
        state.reservations.find_at(extent, page) == Found::Nothing
            && !state.is_any_freed(extent, self.page)
    }

    /// An extent has got zeros in some pages.
    pub(super) fn reserve(&self, extent: Extent, zeros: &Popmap) {
        self.shared.lock().reservations.add(extent, zeros);
    }

    /// Pages that no mapping shows any more.
    pub(super) fn add(&self, pages: Pages) {
        let mut state = self.shared.lock();
        for page in pages.iter() {
            if !state.reservations.leave(page) {
                state.pages.insert(page);
                state.order.push_back(page);
            }
        }
        if state.is_too_much(self.most) {
            self.shared.changed.notify_all();
        }
    }

    /// Pages are filled: what the first of them finds in the file, and with how many the
    /// same is so. Those do not change under the caller.
    pub(super) fn reuse(&self, pages: Pages) -> (Pages, Found) {
        let mut state = self.shared.lock();
        while state.is_freed(pages.first, self.page) {
            state = self.shared.wait(state);
        }
        let found = state.find(pages.first);
        state.fill(pages.first);
        let mut count = 1;
        for page in pages.iter().skip(1) {
            if state.is_freed(page, self.page) || state.find(page) != found {
                break;
            }
            state.fill(page);
            count += 1;
        }
        let first = pages.first;
        (Pages { first, count }, found)
    }

    /// All of some pages are filled, if each of them finds something in the file; whether it is
    /// so.
    pub(super) fn reuse_all(&self, pages: Pages) -> bool {
        let mut state = self.shared.lock();
        let (is_freed, size) = (State::is_freed, self.page);
        while pages.iter().any(|page| is_freed(&state, page, size)) {
            state = self.shared.wait(state);
        }
        let are_there = pages.iter().all(|page| state.find(page) != Found::Nothing);
        if are_there {
            pages.iter().for_each(|page| state.fill(page));
        }
        are_there
    }

    /// All pages are freed by the caller.
    pub(super) fn clear(&self) {
        let mut state = self.shared.lock();
        while !state.freed.is_empty() || state.preempted.is_some() {
            state = self.shared.wait(state);
        }
        state.reservations.clear();
        state.pages.clear();
        state.order.clear();
    }

    /// How many there are.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.shared.lock().pages.len()
    }
}

impl Drop for Stale {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait(state);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees what is too much, the oldest first, part by part with a function.
    fn free(&self, page: Bytes, most: usize, free: impl Fn(Part) -> Result<(), Broken>) {
        let mut state = self.lock();
        while !state.ended {
            if !state.is_too_much(most) {
                state = self.wait(state);
                continue;
            }
            let preempted = state.preempt();
            state.choose(most);
            let chosen: Vec<_> = state.freed.iter().copied().collect();
            drop(state);
            let of_extent = preempted.iter().flat_map(|(extent, unused)| {
                let runs = unused.runs();
                runs.map(|run| extent.part(&run))
            });
            let others = gather(&chosen)
                .into_iter()
                .map(|pages| bytes_of(pages, page));
            for part in of_extent.chain(others) {
                if let Err(broken) = free(part) {
                    // They are filled again where they are, or not at all.
                    tracing::warn!("{broken}");
                }
            }
            state = self.lock();
            state.freed.clear();
            state.preempted = None;
            self.changed.notify_all();
        }
    }
}

impl State {
    fn is_too_much(&self, most: usize) -> bool {
        let reserved = self.reservations.stale();
        self.order.len() > 2 * most || reserved.0 > 2 * KEPT_IN_RESERVATIONS.0
    }

    /// Whether a page is freed right now, or may be.
    fn is_freed(&self, page: PageNumber, size: Bytes) -> bool {
        self.freed.contains(&page)
            || self.preempted.is_some()
                && Extent::of(bytes_of(Pages::one(page), size)).next() == self.preempted
    }

    /// Whether any page of an extent is.
    fn is_any_freed(&self, extent: Extent, size: Bytes) -> bool {
        let first = PageNumber(extent.start().0 / size.0);
        let next = PageNumber(Extent(extent.0 + 1).start().0.div_ceil(size.0));
        self.preempted == Some(extent) || self.freed.range(first..next).next().is_some()
    }

    fn find(&self, page: PageNumber) -> Found {
        match self.pages.contains(&page) {
            true => Found::Old,
            false => self.reservations.find(page),
        }
    }

    fn fill(&mut self, page: PageNumber) {
        if !self.pages.remove(&page) {
            self.reservations.fill(page);
        }
    }

    fn preempt(&mut self) -> Option<(Extent, Popmap)> {
        if self.reservations.stale().0 <= 2 * KEPT_IN_RESERVATIONS.0 {
            return None;
        }
        let preempted = self.reservations.preempt();
        self.preempted = preempted.as_ref().map(|(extent, _)| *extent);
        preempted
    }

    fn choose(&mut self, most: usize) {
        if self.order.len() <= 2 * most {
            return;
        }
        while self.order.len() > most {
            let Some(page) = self.order.pop_front() else {
                return;
            };
            if self.pages.remove(&page) {
                self.freed.insert(page);
            }
        }
    }
}

/// Neighbours together.
fn gather(pages: &[PageNumber]) -> Vec<Pages> {
    let next = |a: &PageNumber, b: &PageNumber| a.0 + 1 == b.0;
    let runs = pages.chunk_by(next);
    runs.map(|run| Pages {
        first: run[0],
        count: u32::try_from(run.len()).unwrap_or(u32::MAX),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::memory::held;
    use rustix::fs::MemfdFlags;

    const PAGE: u64 = 4096;

    #[test]
    fn what_is_too_much_is_freed_and_the_rest_is_used_again() {
        let file = rustix::fs::memfd_create(c"stale", MemfdFlags::CLOEXEC).unwrap();
        let all = 3 * KEPT.0 / PAGE;
        for page in 0..all {
            rustix::io::pwrite(&file, &[1], page * PAGE).unwrap();
        }
        let stale = Stale::new(Bytes(PAGE), Loans::default());
        assert!(stale.is_possible(&file));
        let is_reused = |page| stale.reuse(Pages::one(PageNumber(page))).1 == Found::Old;
        assert!(!is_reused(7));
        for page in 0..all {
            stale.add(Pages::one(PageNumber(page)));
            if page == 7 {
                assert!(is_reused(7));
                assert!(!is_reused(7));
            }
        }
        while held(&file) > 2 * KEPT.0 / PAGE + 1 {
            thread::yield_now();
        }
        assert!(is_reused(all - 1));
        assert!(!is_reused(0));
        assert!(stale.len() >= stale.most - 1);
        let mut byte = [0];
        rustix::io::pread(&file, &mut byte, 7 * PAGE).unwrap();
        assert_eq!(byte, [1], "it was in use again");
        stale.clear();
        assert_eq!(stale.len(), 0);
    }

    #[test]
    fn pages_are_used_again_with_those_like_them() {
        let file = rustix::fs::memfd_create(c"stale", MemfdFlags::CLOEXEC).unwrap();
        let stale = Stale::new(Bytes(PAGE), Loans::default());
        assert!(stale.is_possible(&file));
        let pages = |first, count| Pages {
            first: PageNumber(first),
            count,
        };
        stale.add(pages(2, 3));
        assert_eq!(stale.reuse(pages(0, 8)), (pages(0, 2), Found::Nothing));
        assert_eq!(stale.reuse(pages(2, 2)), (pages(2, 2), Found::Old));
        assert_eq!(stale.reuse(pages(4, 4)), (pages(4, 1), Found::Old));
        assert_eq!(stale.reuse(pages(2, 6)), (pages(2, 6), Found::Nothing));
        assert_eq!(stale.len(), 0);
    }

    #[test]
    fn neighbours_are_freed_together() {
        let runs = gather(&[1, 2, 4, 6, 7, 8].map(PageNumber));
        let counts: Vec<_> = runs.iter().map(|run| (run.first.0, run.count)).collect();
        assert_eq!(counts, [(1, 2), (4, 1), (6, 3)]);
        assert!(gather(&[]).is_empty());
    }
}
