//! Single messages, for tests that tell a story.

use crate::dsm::message::{Access, FromKernel, KernelId, Lock, PageNumber, Pages, ToKernel};
use crate::dsm::scheduler::{Action, Nonsense, Scheduler};

/// Some pages.
pub(crate) const fn pages(first: u64, count: u32) -> Pages {
    Pages {
        first: PageNumber(first),
        count,
    }
}

/// A kernel says something that makes sense: what the scheduler wants to be done.
pub(crate) fn say<S: Scheduler<u8>>(
    scheduler: &mut S,
    kernel: u64,
    message: FromKernel<u8>,
) -> Vec<Action<u8>> {
    let mut actions = Vec::new();
    scheduler
        .kernel_says(KernelId(kernel), message, &mut actions)
        .expect("it makes sense");
    actions
}

/// A kernel says something that makes none.
pub(crate) fn refused<S: Scheduler<u8>>(
    scheduler: &mut S,
    kernel: u64,
    message: FromKernel<u8>,
) -> Nonsense {
    let mut actions = Vec::new();
    let outcome = scheduler.kernel_says(KernelId(kernel), message, &mut actions);
    assert!(actions.is_empty());
    outcome.expect_err("it makes no sense")
}

/// The backer supplies these pages: all of them hold `value`.
pub(crate) fn load<S: Scheduler<u8>>(
    scheduler: &mut S,
    pages: Pages,
    value: u8,
) -> Vec<Action<u8>> {
    let mut actions = Vec::new();
    let data = vec![Some(value); pages.count as usize];
    scheduler.loaded(pages, Some(data), &mut actions);
    actions
}

pub(crate) const fn read(pages: Pages) -> FromKernel<u8> {
    let access = Access::Read;
    FromKernel::DataRequest { pages, access }
}

pub(crate) const fn write(pages: Pages) -> FromKernel<u8> {
    let access = Access::Write;
    FromKernel::DataRequest { pages, access }
}

pub(crate) const fn unlock(pages: Pages) -> FromKernel<u8> {
    FromKernel::DataUnlock { pages }
}

pub(crate) const fn completed(pages: Pages) -> FromKernel<u8> {
    FromKernel::LockCompleted { pages }
}

/// It gives back pages that all hold `value`.
pub(crate) fn back(pages: Pages, value: u8) -> FromKernel<u8> {
    let data = vec![Some(value); pages.count as usize];
    FromKernel::DataWrite { pages, data }
}

pub(crate) const fn flush(kernel: u64, pages: Pages) -> Action<u8> {
    let lock = Lock::Flush;
    Action::Tell(KernelId(kernel), ToKernel::LockRequest { pages, lock })
}

pub(crate) const fn allow(kernel: u64, pages: Pages) -> Action<u8> {
    let lock = Lock::AllowWrite;
    Action::Tell(KernelId(kernel), ToKernel::LockRequest { pages, lock })
}

pub(crate) const fn error(kernel: u64, pages: Pages) -> Action<u8> {
    Action::Tell(KernelId(kernel), ToKernel::DataError { pages })
}

/// It gets pages that hold these values.
pub(crate) fn provide(kernel: u64, pages: Pages, access: Access, values: &[u8]) -> Action<u8> {
    let data = values.iter().copied().map(Some).collect();
    let message = ToKernel::DataProvided {
        pages,
        data,
        access,
    };
    Action::Tell(KernelId(kernel), message)
}

/// What is saved holds these values.
pub(crate) fn save(pages: Pages, values: &[u8]) -> Action<u8> {
    Action::Save(pages, values.iter().copied().map(Some).collect())
}
