//! A server for tests of the cache: the simplest that keeps one version of each page. Who
//! asks first is served first, and a writer is given a page after all others have said
//! that they have dropped it. Tests of the node use it, too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::message::{Access, FromKernel, KernelId, Lock, PageNumber, Pages, ToKernel};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Page<D> {
    content: Option<D>,
    readers: BTreeSet<KernelId>,
    owner: Option<KernelId>,
    queue: VecDeque<Wish>,
    /// Who has still to say that it has dropped the page.
    flushing: BTreeSet<KernelId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Wish {
    kernel: KernelId,
    access: Access,
    upgrade: bool,
}

/// The server of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Toy<D> {
    pages: BTreeMap<PageNumber, Page<D>>,
    /// What is to be sent.
    pub out: Vec<(KernelId, ToKernel<D>)>,
}

impl<D: Clone> Toy<D> {
    pub const fn new() -> Toy<D> {
        Toy {
            pages: BTreeMap::new(),
            out: Vec::new(),
        }
    }

    /// The latest copy that is here.
    pub fn content(&self, page: PageNumber) -> Option<D> {
        self.pages.get(&page).and_then(|page| page.content.clone())
    }

    pub fn hear(&mut self, kernel: KernelId, message: FromKernel<D>) {
        match message {
            FromKernel::DataRequest { pages, access } => self.wish(kernel, pages, access, false),
            FromKernel::DataUnlock { pages } => self.wish(kernel, pages, Access::Write, true),
            FromKernel::DataWrite { pages, data } => {
                for (number, content) in pages.iter().zip(data) {
                    let page = self.page(number);
                    assert_eq!(page.owner, Some(kernel), "{number:?} comes from its owner");
                    (page.content, page.owner) = (content, None);
                    self.pump(number);
                }
            }
            FromKernel::LockCompleted { pages } => {
                for number in pages.iter() {
                    let page = self.page(number);
                    assert!(
                        page.flushing.remove(&kernel),
                        "{number:?} was to be flushed"
                    );
                    page.readers.remove(&kernel);
                    page.owner = page.owner.filter(|owner| *owner != kernel);
                    self.pump(number);
                }
            }
            FromKernel::Terminate => self.gone(kernel),
        }
    }

    pub fn gone(&mut self, kernel: KernelId) {
        self.out.retain(|(to, _)| *to != kernel);
        let numbers: Vec<_> = self.pages.keys().copied().collect();
        for number in numbers {
            let page = self.page(number);
            page.readers.remove(&kernel);
            page.flushing.remove(&kernel);
            page.queue.retain(|wish| wish.kernel != kernel);
            page.owner = page.owner.filter(|owner| *owner != kernel);
            self.pump(number);
        }
    }

    fn page(&mut self, number: PageNumber) -> &mut Page<D> {
        self.pages.entry(number).or_insert_with(|| Page {
            content: None,
            readers: BTreeSet::new(),
            owner: None,
            queue: VecDeque::new(),
            flushing: BTreeSet::new(),
        })
    }

    fn wish(&mut self, kernel: KernelId, pages: Pages, access: Access, upgrade: bool) {
        for number in pages.iter() {
            let wish = Wish {
                kernel,
                access,
                upgrade,
            };
            self.page(number).queue.push_back(wish);
            self.pump(number);
        }
    }

    fn pump(&mut self, number: PageNumber) {
        loop {
            let page = self.page(number);
            let Some(&wish) = page.queue.front() else {
                return;
            };
            if !page.flushing.is_empty() {
                return;
            }
            let mut others: BTreeSet<_> = page.owner.into_iter().collect();
            if wish.access == Access::Write {
                others.extend(&page.readers);
            }
            others.remove(&wish.kernel);
            if !others.is_empty() {
                page.flushing.clone_from(&others);
                let pages = Pages::one(number);
                let lock = Lock::Flush;
                let flush = |to| (to, ToKernel::LockRequest { pages, lock });
                self.out.extend(others.into_iter().map(flush));
                return;
            }
            page.queue.pop_front();
            let answer = grant(page, number, wish);
            self.out.push((wish.kernel, answer));
        }
    }
}

fn grant<D: Clone>(page: &mut Page<D>, number: PageNumber, wish: Wish) -> ToKernel<D> {
    let pages = Pages::one(number);
    let had = page.readers.remove(&wish.kernel);
    match wish.access {
        Access::Read => {
            page.readers.insert(wish.kernel);
        }
        Access::Write => page.owner = Some(wish.kernel),
    }
    if had && wish.upgrade {
        return ToKernel::LockRequest {
            pages,
            lock: Lock::AllowWrite,
        };
    }
    ToKernel::DataProvided {
        pages,
        data: vec![page.content.clone()],
        access: wish.access,
    }
}
