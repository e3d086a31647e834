//! The answer to a request for several pages: as few messages as what it gets allows.

use super::page::Grant;
use super::request::Request;
use crate::dsm::message::{Access, Lock, PageNumber, Pages, ToKernel};

/// An answer that is being made, page by page in order.
pub(super) struct Answer<D> {
    access: Access,
    messages: Vec<ToKernel<D>>,
}

impl<D> Answer<D> {
    pub(super) const fn new(request: &Request) -> Answer<D> {
        Answer {
            access: request.access(),
            messages: Vec::new(),
        }
    }

    /// What it gets of the next page.
    pub(super) fn push(&mut self, page: PageNumber, grant: Grant<D>) {
        match (grant, self.messages.last_mut()) {
            (Grant::Contents(more), Some(ToKernel::DataProvided { pages, data, .. })) => {
                pages.count += 1;
                data.push(more);
            }
            (Grant::AllowWrite, Some(ToKernel::LockRequest { pages, .. }))
            | (Grant::Lost, Some(ToKernel::DataError { pages })) => pages.count += 1,
            (grant, _) => self.messages.push(self.message(page, grant)),
        }
    }

    /// The messages, in order.
    pub(super) fn finish(self) -> impl Iterator<Item = ToKernel<D>> {
        self.messages.into_iter()
    }

    fn message(&self, page: PageNumber, grant: Grant<D>) -> ToKernel<D> {
        let pages = Pages::one(page);
        match grant {
            Grant::Contents(data) => ToKernel::DataProvided {
                pages,
                data: vec![data],
                access: self.access,
            },
            Grant::AllowWrite => ToKernel::LockRequest {
                pages,
                lock: Lock::AllowWrite,
            },
            Grant::Lost => ToKernel::DataError { pages },
        }
    }
}
