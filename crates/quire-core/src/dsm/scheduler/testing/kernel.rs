//! A small honest kernel: what it has of each page, what its programs wait for.

use crate::dsm::message::{Access, FromKernel, Lock, PageNumber, Pages, ToKernel};

/// What it has of a page. Contents are the number of times that the page was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cached {
    None,
    Read(u8),
    Write { value: u8, dirty: bool },
}

impl Cached {
    pub(crate) const fn value(self) -> Option<u8> {
        match self {
            Cached::None => None,
            Cached::Read(value) | Cached::Write { value, .. } => Some(value),
        }
    }

    pub(crate) const fn allows(self, access: Access) -> bool {
        match access {
            Access::Read => !matches!(self, Cached::None),
            Access::Write => matches!(self, Cached::Write { .. }),
        }
    }
}

/// A program waits until it has access to all these pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Want {
    pub(crate) first: u64,
    pub(crate) count: u32,
    pub(crate) access: Access,
    /// It has some of them and keeps them until it is asked for them.
    pub(crate) unlock: bool,
}

impl Want {
    pub(crate) const fn pages(self) -> Pages {
        Pages {
            first: PageNumber(self.first),
            count: self.count,
        }
    }
}

/// The kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub(crate) cache: Vec<Cached>,
    /// Pages that it let go of on its own, without telling.
    let_go: Vec<bool>,
    pub(crate) wants: Vec<Want>,
    /// It was told something that it cannot make sense of.
    pub(crate) confused: bool,
}

impl Kernel {
    pub(crate) fn new(pages: usize) -> Kernel {
        Kernel {
            cache: vec![Cached::None; pages],
            let_go: vec![false; pages],
            wants: Vec::new(),
            confused: false,
        }
    }

    pub(crate) fn has(&self, pages: Pages, access: Access) -> bool {
        pages.iter().all(|page| self.at(page).allows(access))
    }

    /// A program needs access that it does not have.
    pub(crate) fn fault(&mut self, pages: Pages, access: Access) -> Vec<FromKernel<u8>> {
        let mut messages = Vec::new();
        if access == Access::Write && pages.iter().any(|page| self.let_go[page.0 as usize]) {
            messages.extend(pages.iter().filter_map(|page| self.let_go(page)));
        }
        let unlock = access == Access::Write && pages.iter().any(|p| self.at(p) != Cached::None);
        self.wants.push(Want {
            first: pages.first.0,
            count: pages.count,
            access,
            unlock,
        });
        messages.push(if unlock {
            FromKernel::DataUnlock { pages }
        } else {
            FromKernel::DataRequest { pages, access }
        });
        messages
    }

    /// Whether a fault is possible now: to ask for all of some pages it may have to let go of
    /// some.
    pub(crate) fn may_fault(&self, pages: Pages, access: Access) -> bool {
        let let_go = pages.iter().any(|page| self.let_go[page.0 as usize]);
        access == Access::Read || !let_go || pages.iter().all(|page| self.may_drop(page))
    }

    /// It lets go of a page on its own.
    pub(crate) fn let_go(&mut self, page: PageNumber) -> Option<FromKernel<u8>> {
        let had = self.at(page) != Cached::None;
        let back = self.drop_page(page);
        self.let_go[page.0 as usize] |= had && back.is_none();
        back
    }

    /// Whether it may let go of a page on its own.
    pub(crate) fn may_drop(&self, page: PageNumber) -> bool {
        let mut wants = self.wants.iter();
        !wants.any(|want| want.unlock && want.pages().contains(page))
    }

    /// It has a page no more; what it wrote is given back.
    pub(crate) fn drop_page(&mut self, page: PageNumber) -> Option<FromKernel<u8>> {
        let cached = std::mem::replace(&mut self.cache[page.0 as usize], Cached::None);
        match cached {
            Cached::Write { value, dirty: true } => Some(FromKernel::DataWrite {
                pages: Pages::one(page),
                data: vec![Some(value)],
            }),
            _ => None,
        }
    }

    /// A message from the server; what it answers.
    pub(crate) fn hear(&mut self, message: ToKernel<u8>) -> Vec<FromKernel<u8>> {
        match message {
            ToKernel::DataProvided {
                pages,
                data,
                access,
            } => {
                self.known(pages);
                for (page, value) in pages.iter().zip(data) {
                    self.provided(page, value.unwrap_or(0), access);
                }
                Vec::new()
            }
            ToKernel::LockRequest {
                pages,
                lock: Lock::AllowWrite,
            } => {
                for page in pages.iter() {
                    self.allowed(page);
                }
                Vec::new()
            }
            ToKernel::LockRequest {
                pages,
                lock: Lock::Flush,
            } => {
                let mut answers: Vec<_> = pages
                    .iter()
                    .filter_map(|page| self.drop_page(page))
                    .collect();
                self.known(pages);
                answers.push(FromKernel::LockCompleted { pages });
                answers
            }
            ToKernel::DataError { pages } => {
                self.wants
                    .retain(|want| !want.pages().iter().any(|page| pages.contains(page)));
                Vec::new()
            }
        }
    }

    /// The server knows what it has of these pages.
    fn known(&mut self, pages: Pages) {
        for page in pages.iter() {
            self.let_go[page.0 as usize] = false;
        }
    }

    fn provided(&mut self, page: PageNumber, value: u8, access: Access) {
        self.confused |= matches!(self.at(page), Cached::Write { .. });
        self.cache[page.0 as usize] = match access {
            Access::Read => Cached::Read(value),
            Access::Write => Cached::Write {
                value,
                dirty: false,
            },
        };
    }

    /// What it gave back meanwhile it passes over.
    fn allowed(&mut self, page: PageNumber) {
        if let Cached::Read(value) = self.at(page) {
            self.cache[page.0 as usize] = Cached::Write {
                value,
                dirty: false,
            };
        }
    }

    fn at(&self, page: PageNumber) -> Cached {
        self.cache[page.0 as usize]
    }
}
