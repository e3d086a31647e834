//! The plainest scheduler that is right: one request at a time, over the whole object.
//! Everybody who has any page is flushed first, and whoever asked gets what it asked for.
//! It is slow, and too simple to be wrong; what it does is compared with what others do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::dsm::message::{
    Access, Client, FromKernel, KernelId, Lock, PageNumber, Pages, ToKernel,
};
use crate::dsm::scheduler::{Action, Nonsense, Scheduler};

/// The scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Naive {
    contents: BTreeMap<PageNumber, u8>,
    queue: VecDeque<(KernelId, Pages, Access)>,
    /// Who was given something, and not asked for it since.
    holders: BTreeSet<KernelId>,
    /// Who was asked for all that it has, and has not answered.
    asked: BTreeSet<KernelId>,
    pages: u32,
}

impl Naive {
    pub(crate) fn new(pages: u32) -> Naive {
        Naive {
            pages,
            ..Naive::default()
        }
    }

    fn go_on(&mut self, actions: &mut Vec<Action<u8>>) {
        while self.asked.is_empty()
            && let Some(&(kernel, pages, access)) = self.queue.front()
        {
            if self.holders.is_empty() {
                self.queue.pop_front();
                let data = pages.iter().map(|page| self.contents.get(&page).copied());
                let message = ToKernel::DataProvided {
                    pages,
                    data: data.collect(),
                    access,
                };
                actions.push(Action::Tell(kernel, message));
                self.holders.insert(kernel);
            } else {
                self.asked = std::mem::take(&mut self.holders);
                let (first, count) = (PageNumber(0), self.pages);
                let message = ToKernel::LockRequest {
                    pages: Pages { first, count },
                    lock: Lock::Flush,
                };
                let asked = self.asked.iter();
                actions.extend(asked.map(|kernel| Action::Tell(*kernel, message.clone())));
            }
        }
    }

    fn forget(&mut self, kernel: KernelId, actions: &mut Vec<Action<u8>>) {
        self.queue.retain(|(waiting, ..)| *waiting != kernel);
        self.holders.remove(&kernel);
        self.asked.remove(&kernel);
        self.go_on(actions);
    }
}

impl Scheduler<u8> for Naive {
    fn kernel_says(
        &mut self,
        kernel: KernelId,
        message: FromKernel<u8>,
        actions: &mut Vec<Action<u8>>,
    ) -> Result<(), Nonsense> {
        match message {
            FromKernel::DataRequest { pages, access } => {
                self.queue.push_back((kernel, pages, access));
            }
            FromKernel::DataUnlock { pages } => {
                self.queue.push_back((kernel, pages, Access::Write));
            }
            FromKernel::DataWrite { pages, data } => {
                for (page, value) in pages.iter().zip(data) {
                    self.contents.insert(page, value.unwrap_or(0));
                }
            }
            FromKernel::LockCompleted { .. } => {
                self.asked.remove(&kernel);
            }
            FromKernel::Terminate => self.forget(kernel, actions),
        }
        self.go_on(actions);
        Ok(())
    }

    fn loaded(&mut self, _: Pages, _: Option<Vec<Option<u8>>>, _: &mut Vec<Action<u8>>) {}

    fn gone(&mut self, client: Client, actions: &mut Vec<Action<u8>>) {
        if let Client::Kernel(kernel) = client {
            self.forget(kernel, actions);
        }
    }
}
