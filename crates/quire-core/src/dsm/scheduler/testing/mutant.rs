//! Schedulers that are wrong. A check that does not find them checks nothing.

use std::collections::BTreeSet;

use crate::dsm::message::{Client, FromKernel, KernelId, Lock, PageNumber, Pages, ToKernel};
use crate::dsm::scheduler::observe::Observe;
use crate::dsm::scheduler::{Action, Nonsense, Scheduler};

/// Does not wait for the answers of readers: the writer has the page at once, as in the
/// paper's Figure 3.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hasty<S> {
    pub(crate) scheduler: S,
    /// Answers that were taken for granted and are still to come.
    taken: BTreeSet<(KernelId, PageNumber)>,
}

impl<S: Scheduler<u8> + Observe> Hasty<S> {
    pub(crate) fn new(scheduler: S) -> Hasty<S> {
        Hasty {
            scheduler,
            taken: BTreeSet::new(),
        }
    }

    fn take_for_granted(&mut self, mut at: usize, actions: &mut Vec<Action<u8>>) {
        while let Some(action) = actions.get(at) {
            at += 1;
            let Action::Tell(kernel, ToKernel::LockRequest { pages, lock }) = action else {
                continue;
            };
            let (kernel, pages) = (*kernel, *pages);
            if *lock == Lock::AllowWrite {
                continue;
            }
            for page in pages.iter() {
                let status = self.scheduler.page(page);
                let owner = status.and_then(|status| status.owner);
                if owner != Some(Client::Kernel(kernel)) {
                    self.taken.insert((kernel, page));
                    let pages = Pages::one(page);
                    let answer = FromKernel::LockCompleted { pages };
                    let _ = self.scheduler.kernel_says(kernel, answer, actions);
                }
            }
        }
    }
}

impl<S: Scheduler<u8> + Observe> Scheduler<u8> for Hasty<S> {
    fn kernel_says(
        &mut self,
        kernel: KernelId,
        message: FromKernel<u8>,
        actions: &mut Vec<Action<u8>>,
    ) -> Result<(), Nonsense> {
        if let FromKernel::LockCompleted { pages } = &message
            && pages.iter().all(|page| self.taken.remove(&(kernel, page)))
        {
            return Ok(());
        }
        let before = actions.len();
        self.scheduler.kernel_says(kernel, message, actions)?;
        self.take_for_granted(before, actions);
        Ok(())
    }

    fn loaded(
        &mut self,
        pages: Pages,
        data: Option<Vec<Option<u8>>>,
        actions: &mut Vec<Action<u8>>,
    ) {
        let before = actions.len();
        self.scheduler.loaded(pages, data, actions);
        self.take_for_granted(before, actions);
    }

    fn gone(&mut self, client: Client, actions: &mut Vec<Action<u8>>) {
        let before = actions.len();
        self.scheduler.gone(client, actions);
        self.take_for_granted(before, actions);
    }
}

/// Takes the contents that come back for the answer to its flush, and overlooks answers
/// that it does not expect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Eager<S>(pub(crate) S);

impl<S: Scheduler<u8>> Scheduler<u8> for Eager<S> {
    fn kernel_says(
        &mut self,
        kernel: KernelId,
        message: FromKernel<u8>,
        actions: &mut Vec<Action<u8>>,
    ) -> Result<(), Nonsense> {
        match message {
            FromKernel::DataWrite { pages, .. } => {
                self.0.kernel_says(kernel, message, actions)?;
                let answer = FromKernel::LockCompleted { pages };
                let _ = self.0.kernel_says(kernel, answer, actions);
            }
            FromKernel::LockCompleted { .. } => {
                let _ = self.0.kernel_says(kernel, message, actions);
            }
            _ => self.0.kernel_says(kernel, message, actions)?,
        }
        Ok(())
    }

    fn loaded(
        &mut self,
        pages: Pages,
        data: Option<Vec<Option<u8>>>,
        actions: &mut Vec<Action<u8>>,
    ) {
        self.0.loaded(pages, data, actions);
    }

    fn gone(&mut self, client: Client, actions: &mut Vec<Action<u8>>) {
        self.0.gone(client, actions);
    }
}

/// Does not take back the pages of a kernel that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Deaf<S>(pub(crate) S);

impl<S: Scheduler<u8>> Scheduler<u8> for Deaf<S> {
    fn kernel_says(
        &mut self,
        kernel: KernelId,
        message: FromKernel<u8>,
        actions: &mut Vec<Action<u8>>,
    ) -> Result<(), Nonsense> {
        self.0.kernel_says(kernel, message, actions)
    }

    fn loaded(
        &mut self,
        pages: Pages,
        data: Option<Vec<Option<u8>>>,
        actions: &mut Vec<Action<u8>>,
    ) {
        self.0.loaded(pages, data, actions);
    }

    fn gone(&mut self, _: Client, _: &mut Vec<Action<u8>>) {}
}
