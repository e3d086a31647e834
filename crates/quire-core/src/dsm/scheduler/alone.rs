//! What the schedulers of a single server, [`super::simple`] and [`super::multi`], have in
//! common: which messages make sense at all, what is counted, and whether a kernel is still
//! there. They say what becomes of the pages.

use std::collections::BTreeSet;

use super::hot::Hot;
use super::observe::{Aside, Fault, Stats};
use super::options::Options;
use super::{Action, Nonsense};
use crate::dsm::message::{Client, FromKernel, KernelId, Pages};

/// What such a scheduler has beside its pages. Two are equal if they do the same from now
/// on, whatever they counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Desk {
    pub(super) options: Options,
    /// Kernels that said `Terminate` and are not gone yet.
    pub(super) ended: BTreeSet<KernelId>,
    /// The server ends: nobody gets anything any more.
    pub(super) is_ending: bool,
    pub(super) stats: Aside<Stats>,
    pub(super) hot: Aside<Hot>,
}

impl Desk {
    pub(super) fn new(options: Options) -> Desk {
        Desk {
            options,
            ended: BTreeSet::new(),
            is_ending: false,
            stats: Aside::default(),
            hot: Aside::default(),
        }
    }
}

/// A scheduler of a single server. What is asked of it has been checked: pages are of the
/// object, and kernels have said no end.
pub(super) trait Alone<D: Clone> {
    fn desk(&mut self) -> &mut Desk;

    /// Pages that a kernel needs.
    fn fault(
        &mut self,
        kernel: KernelId,
        pages: Pages,
        fault: Fault,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense>;

    /// Whether a kernel may give back what it wrote to these pages.
    fn may_write_back(&self, kernel: KernelId, pages: Pages) -> bool;

    /// It does so.
    fn written_back(
        &mut self,
        kernel: KernelId,
        pages: Pages,
        data: Vec<Option<D>>,
        actions: &mut Vec<Action<D>>,
    );

    /// Whether a kernel was asked to give these pages back, and has not answered.
    fn owes_answer(&self, kernel: KernelId, pages: Pages) -> bool;

    /// It does so.
    fn answered(&mut self, kernel: KernelId, pages: Pages, actions: &mut Vec<Action<D>>);

    /// A kernel has no copies any more and wants none: it crashed, or ended.
    fn forget(&mut self, kernel: KernelId, crashed: bool, actions: &mut Vec<Action<D>>);

    /// Whoever backs the object answered.
    fn supplied(
        &mut self,
        pages: Pages,
        data: Option<Vec<Option<D>>>,
        actions: &mut Vec<Action<D>>,
    );

    /// Nobody waits for anything any more, and whoever may write to pages is asked for them.
    fn take_back(&mut self, actions: &mut Vec<Action<D>>);

    /// The server ends.
    fn end(&mut self, actions: &mut Vec<Action<D>>) {
        self.desk().is_ending = true;
        self.counted(actions, Self::take_back);
    }

    /// Does something, and counts what shall be done because of it.
    fn counted<R>(
        &mut self,
        actions: &mut Vec<Action<D>>,
        act: impl FnOnce(&mut Self, &mut Vec<Action<D>>) -> R,
    ) -> R {
        let before = actions.len();
        let outcome = act(self, actions);
        self.desk().stats.0.count_actions(&actions[before..]);
        outcome
    }

    /// A kernel says something.
    fn says(
        &mut self,
        kernel: KernelId,
        message: FromKernel<D>,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        self.desk().stats.0.received.count(&message);
        let outcome = self.counted(actions, |it, actions| it.hear(kernel, message, actions));
        self.desk().stats.0.received.nonsense += u64::from(outcome.is_err());
        outcome
    }

    /// A client is gone.
    fn lose(&mut self, client: Client, actions: &mut Vec<Action<D>>) {
        if let Client::Kernel(kernel) = client {
            self.desk().ended.remove(&kernel);
            self.counted(actions, |it, actions| it.forget(kernel, true, actions));
        }
    }

    fn hear(
        &mut self,
        kernel: KernelId,
        message: FromKernel<D>,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        if self.desk().ended.contains(&kernel) {
            return super::after_the_end(&message);
        }
        if let FromKernel::DataRequest { pages, .. }
        | FromKernel::DataUnlock { pages }
        | FromKernel::DataWrite { pages, .. }
        | FromKernel::LockCompleted { pages } = &message
        {
            self.desk().options.check(*pages)?;
        }
        match message {
            FromKernel::DataRequest { .. } | FromKernel::DataUnlock { .. }
                if self.desk().is_ending =>
            {
                Ok(())
            }
            FromKernel::DataRequest { pages, access } => {
                self.fault(kernel, pages, Fault::of(access, false), actions)
            }
            FromKernel::DataUnlock { pages } => self.fault(kernel, pages, Fault::Unlock, actions),
            FromKernel::DataWrite { pages, data } => self.data_write(kernel, pages, data, actions),
            FromKernel::LockCompleted { pages } => {
                if !self.owes_answer(kernel, pages) {
                    return Err(Nonsense("LockCompleted for a page that was not flushed"));
                }
                self.answered(kernel, pages, actions);
                Ok(())
            }
            FromKernel::Terminate => {
                self.desk().ended.insert(kernel);
                self.forget(kernel, false, actions);
                Ok(())
            }
        }
    }

    fn data_write(
        &mut self,
        kernel: KernelId,
        pages: Pages,
        data: Vec<Option<D>>,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        if data.len() as u64 != u64::from(pages.count) {
            return Err(Nonsense("DataWrite has not as many contents as pages"));
        }
        if !self.may_write_back(kernel, pages) {
            return Err(Nonsense(
                "DataWrite of a page that the kernel may not write to",
            ));
        }
        actions.push(Action::Save(pages, data.clone()));
        self.written_back(kernel, pages, data, actions);
        Ok(())
    }
}
