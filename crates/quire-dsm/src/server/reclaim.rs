//! Takes pages back from kernels for a pager that wants them (`lock_request` with
//! [`Lock::Flush`](quire_core::dsm::message::Lock)).
//!
//! To the scheduler the pager is one more kernel, which asks to write to one page after the
//! other. When it has a page, nobody else does, and all that was written to it has come
//! back. As soon as that is safe, the contents go from memory, so that the pager is asked
//! for them when somebody needs them again, and the page is free.

use std::collections::VecDeque;

use quire_core::dsm::message::{Access, Client, FromKernel, KernelId, PageNumber, Pages, ToKernel};
use quire_core::dsm::scheduler::Action;
use quire_core::dsm::scheduler::observe::{PageStatus, State};

use super::object::{Object, Page};

/// As whom a pager asks the scheduler. Kernels are numbered from 1 on.
pub const PAGER: KernelId = KernelId(u64::MAX);

/// What a pager wants back.
#[derive(Default)]
pub struct Reclaim {
    wanted: VecDeque<Pages>,
    current: Option<Current>,
}

/// What it is about to get back.
struct Current {
    pages: Pages,
    /// How many of them it has had.
    done: u32,
    step: Step,
}

/// What is done with a page.
enum Step {
    /// Nothing yet.
    Ask,
    /// The scheduler was asked.
    Wait,
    /// Nobody has it any more.
    Granted,
}

impl Current {
    fn page(&self) -> Option<PageNumber> {
        let left = self.done < self.pages.count;
        left.then(|| PageNumber(self.pages.first.0 + u64::from(self.done)))
    }
}

/// Whether some kernel has a page, or waits for it.
fn is_used(status: &PageStatus) -> bool {
    let waiting = status.waiting_readers + status.waiting_writers;
    status.owner.is_some() || status.readers + waiting > 0 || status.state != State::Read
}

impl Object {
    /// The pager wants pages back.
    pub(super) fn wants_back(&mut self, pages: Pages) {
        let end = pages.first.0.checked_add(u64::from(pages.count));
        let all = self.info.size.0.div_ceil(self.info.page_size.bytes().0);
        if end.is_some_and(|end| end <= all) {
            self.reclaim.wanted.push_back(pages);
        } else {
            let name = &self.info.name;
            tracing::warn!("{name}: the pager wants pages back that there are not");
        }
    }

    /// The scheduler answers the pager. A flush that follows is answered by giving the page
    /// up, which is done anyway.
    pub(super) fn pager_is_told(&mut self, message: &ToKernel<Page>) {
        let is_grant = !matches!(message, ToKernel::LockRequest { .. });
        if let Some(current) = self.reclaim.current.as_mut().filter(|_| is_grant) {
            current.step = Step::Granted;
        }
    }

    /// Goes on with what the pager wants back, as far as that goes now.
    pub(super) fn reclaim(&mut self, actions: &mut Vec<Action<Page>>) {
        while let Some(mut current) = self.next_reclaim() {
            let goes_on = match current.page() {
                Some(page) => self.reclaim_page(page, &mut current, actions),
                None => {
                    if let Some(behind) = &mut self.behind {
                        behind.flushed(current.pages);
                    }
                    continue;
                }
            };
            self.reclaim.current = Some(current);
            if !goes_on {
                return;
            }
        }
    }

    fn next_reclaim(&mut self) -> Option<Current> {
        let reclaim = &mut self.reclaim;
        let begun = reclaim.current.take();
        begun.or_else(|| {
            let pages = reclaim.wanted.pop_front()?;
            Some(Current {
                pages,
                done: 0,
                step: Step::Ask,
            })
        })
    }

    /// Does the next thing for a page. Whether there is something to be done after that.
    fn reclaim_page(
        &mut self,
        page: PageNumber,
        current: &mut Current,
        actions: &mut Vec<Action<Page>>,
    ) -> bool {
        match current.step {
            Step::Ask if self.scheduler.page(page).as_ref().is_some_and(is_used) => {
                current.step = Step::Wait;
                let (pages, access) = (Pages::one(page), Access::Write);
                let request = FromKernel::DataRequest { pages, access };
                // The page is one of the object's.
                let _ = self.scheduler.kernel_says(PAGER, request, actions);
                false
            }
            Step::Wait => false,
            Step::Granted if self.is_saving(page) => false,
            Step::Ask | Step::Granted => {
                if self.is_safe(page) {
                    self.scheduler.release(page);
                }
                if matches!(current.step, Step::Granted) {
                    let _ = self
                        .scheduler
                        .kernel_says(PAGER, FromKernel::Terminate, actions);
                    self.scheduler.gone(Client::Kernel(PAGER), actions);
                }
                (current.done, current.step) = (current.done + 1, Step::Ask);
                true
            }
        }
    }

    fn is_saving(&self, page: PageNumber) -> bool {
        let behind = self.behind.as_ref();
        behind.is_some_and(|behind| behind.is_saving(page))
    }

    fn is_safe(&self, page: PageNumber) -> bool {
        let behind = self.behind.as_ref();
        behind.is_some_and(|behind| behind.is_safe(page))
    }
}
