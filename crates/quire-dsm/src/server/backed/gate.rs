//! Grants that wait until the pager lets their pages be written to.
//!
//! A scheduler knows nothing of pages that the pager provided for reading only. When it
//! grants one to a writer, the grant waits here, and whatever follows it to that kernel
//! waits behind it. If the pager refuses, the kernel gets an error in the place of the
//! grant. It then owns, as the scheduler sees it, a page that it does not have; when that is
//! flushed, it says so, and the page is the server's again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quire_core::dsm::message::{Access, KernelId, Lock, PageNumber, Pages, ToKernel};

use crate::wire::Contents;

type Message = ToKernel<Contents>;

/// What the pager lets be done to pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// They may be written to.
    Granted,
    /// It has to be asked.
    Locked,
    /// None may ever be written to.
    Never,
}

/// Messages to kernels that wait.
#[derive(Default)]
pub struct Gate {
    waiting: BTreeMap<KernelId, VecDeque<Message>>,
    /// Pages that the pager was asked to unlock.
    asked: BTreeSet<PageNumber>,
    /// Pages that it refused to unlock.
    refused: BTreeSet<PageNumber>,
}

impl Gate {
    /// A message is on its way to a kernel. Whoever calls asks the pager to unlock the pages
    /// that are returned.
    pub fn pass(
        &mut self,
        kernel: KernelId,
        message: Message,
        permission: impl Fn(Pages) -> Permission,
        tell: &mut dyn FnMut(KernelId, Message),
    ) -> Vec<Pages> {
        let Some(pages) = written(&message) else {
            self.follow(kernel, message, tell);
            return Vec::new();
        };
        match permission(pages) {
            Permission::Granted => {
                self.follow(kernel, message, tell);
                Vec::new()
            }
            Permission::Never => {
                self.follow(kernel, ToKernel::DataError { pages }, tell);
                Vec::new()
            }
            Permission::Locked => {
                let locked =
                    |page: &PageNumber| permission(Pages::one(*page)) != Permission::Granted;
                let fresh: Vec<_> = pages
                    .iter()
                    .filter(|page| locked(page) && !self.asked.contains(page))
                    .collect();
                self.asked.extend(&fresh);
                self.refused.retain(|page| !fresh.contains(page));
                self.waiting.entry(kernel).or_default().push_back(message);
                fresh.into_iter().map(Pages::one).collect()
            }
        }
    }

    /// The pager has let pages be written to, or refused.
    pub fn unlocked(&mut self, pages: Pages, may: bool, tell: &mut dyn FnMut(KernelId, Message)) {
        for page in pages
            .iter()
            .filter(|page| self.asked.remove(page))
            .collect::<Vec<_>>()
        {
            if !may {
                self.refused.insert(page);
            }
        }
        let (asked, refused) = (&self.asked, &self.refused);
        self.waiting.retain(|kernel, messages| {
            while let Some(next) = messages.front() {
                let pages = written(next);
                if pages.is_some_and(|pages| pages.iter().any(|page| asked.contains(&page))) {
                    return true;
                }
                let is_refused = |pages: &Pages| pages.iter().any(|page| refused.contains(&page));
                let error = pages.filter(is_refused);
                let Some(next) = messages.pop_front() else {
                    break;
                };
                tell(
                    *kernel,
                    error.map_or(next, |pages| ToKernel::DataError { pages }),
                );
            }
            false
        });
    }

    /// A kernel is gone.
    pub fn forget(&mut self, kernel: KernelId) {
        self.waiting.remove(&kernel);
    }

    /// A message goes, or follows those that wait.
    fn follow(
        &mut self,
        kernel: KernelId,
        message: Message,
        tell: &mut dyn FnMut(KernelId, Message),
    ) {
        match self.waiting.get_mut(&kernel) {
            Some(messages) => messages.push_back(message),
            None => tell(kernel, message),
        }
    }
}

/// The pages that a message lets a kernel write to.
fn written(message: &Message) -> Option<Pages> {
    match message {
        ToKernel::DataProvided {
            pages,
            access: Access::Write,
            ..
        }
        | ToKernel::LockRequest {
            pages,
            lock: Lock::AllowWrite,
        } => Some(*pages),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(page: u64) -> Message {
        ToKernel::LockRequest {
            pages: Pages::one(PageNumber(page)),
            lock: Lock::AllowWrite,
        }
    }

    fn flush(page: u64) -> Message {
        ToKernel::LockRequest {
            pages: Pages::one(PageNumber(page)),
            lock: Lock::Flush,
        }
    }

    fn error(page: u64) -> Message {
        ToKernel::DataError {
            pages: Pages::one(PageNumber(page)),
        }
    }

    /// A gate, and what was told.
    #[derive(Default)]
    struct Watched {
        gate: Gate,
        told: Vec<(u64, Message)>,
    }

    impl Watched {
        fn pass(&mut self, kernel: u64, message: Message, permission: Permission) -> usize {
            let told = &mut self.told;
            let mut tell = |kernel: KernelId, message| told.push((kernel.0, message));
            let asked = self
                .gate
                .pass(KernelId(kernel), message, |_| permission, &mut tell);
            asked.len()
        }

        fn unlocked(&mut self, page: u64, may: bool) {
            let told = &mut self.told;
            let mut tell = |kernel: KernelId, message| told.push((kernel.0, message));
            let pages = Pages::one(PageNumber(page));
            self.gate.unlocked(pages, may, &mut tell);
        }
    }

    #[test]
    fn grants_of_locked_pages_wait_and_what_follows_stays_behind() {
        let mut watched = Watched::default();
        assert_eq!(watched.pass(1, allow(5), Permission::Locked), 1);
        assert_eq!(watched.pass(1, flush(5), Permission::Locked), 0);
        // Another kernel does not wait, and nobody asks twice.
        assert_eq!(watched.pass(2, flush(6), Permission::Locked), 0);
        assert_eq!(watched.pass(3, allow(5), Permission::Locked), 0);
        assert_eq!(watched.told, [(2, flush(6))]);
        watched.unlocked(5, true);
        let all = [(2, flush(6)), (1, allow(5)), (1, flush(5)), (3, allow(5))];
        assert_eq!(watched.told, all);
        watched.pass(1, allow(5), Permission::Granted);
        assert_eq!(watched.told.last(), Some(&(1, allow(5))));
    }

    #[test]
    fn refused_grants_are_errors() {
        let mut watched = Watched::default();
        watched.pass(1, allow(5), Permission::Locked);
        watched.pass(1, allow(6), Permission::Locked);
        watched.pass(1, flush(5), Permission::Locked);
        watched.unlocked(5, false);
        assert_eq!(watched.told, [(1, error(5))]);
        watched.unlocked(6, true);
        assert_eq!(watched.told[1..], [(1, allow(6)), (1, flush(5))]);
        watched.pass(1, allow(7), Permission::Never);
        assert_eq!(watched.told.last(), Some(&(1, error(7))));
        // Whoever wants it later asks again.
        assert_eq!(watched.pass(2, allow(5), Permission::Locked), 1);
        watched.unlocked(5, true);
        assert_eq!(watched.told.last(), Some(&(2, allow(5))));
    }

    #[test]
    fn a_kernel_that_is_gone_is_told_nothing() {
        let mut watched = Watched::default();
        watched.pass(1, allow(5), Permission::Locked);
        watched.gate.forget(KernelId(1));
        watched.unlocked(5, true);
        assert_eq!(watched.told, []);
    }
}
