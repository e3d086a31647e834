//! Pages of an object that somebody could write to who is gone, and did not give back.
//!
//! They are as the server knew them last. Who had written to them may bring what they held, until
//! somebody else has been given them: then that is lost, which is counted, and told to who opens the
//! object next.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use quire_core::dsm::message::{Client, FromKernel, KernelId, PageNumber, Pages, ToKernel};
use quire_core::dsm::scheduler::Nonsense;
use quire_core::dsm::types::Machine;

use super::{Object, Page};
use crate::wire::Contents;
use crate::wire::control::SchedulerKind;

/// The pages whose writers are gone.
#[derive(Default)]
pub(in crate::server) struct Orphans {
    pages: BTreeMap<PageNumber, Orphan>,
    /// Those that were brought by a kernel that is not settled yet.
    brought: BTreeSet<(KernelId, PageNumber)>,
    /// The latest versions of pages that were brought by kernels of a server that was here before.
    versions: BTreeMap<PageNumber, Known>,
    /// Those that were not taken: programs that share a copy bring the same.
    refused: BTreeSet<(PageNumber, u64)>,
    /// The kernel that has brought all that it had.
    is_settled: Option<KernelId>,
    /// How many pages were lost.
    lost: u64,
    /// How many of them nobody has been told of.
    untold: u64,
}

struct Orphan {
    kernel: KernelId,
    /// Somebody was told that it may be lost.
    is_told: bool,
}

/// Who brings a page.
#[derive(Clone, Copy)]
pub(in crate::server) struct Brought {
    /// Who could write to it.
    pub kernel: KernelId,
    /// Which version it is, where that kernel is not known here.
    pub version: Option<Version>,
    /// The machine that wrote it.
    pub machine: Machine,
}

/// Which of several versions of a page it is.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::server) struct Version {
    /// The last stamp that its holder heard while it had it: of two versions, the later has the larger.
    pub stamp: u64,
    /// It was not given back: no later one is in the store.
    pub is_held: bool,
}

/// A version of a page that was brought.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Known {
    stamp: u64,
    /// Programs that share a copy bring the same version each, and who does so later may have written to it
    /// since.
    sum: u64,
}

impl Known {
    fn new(version: Version, data: Option<&Contents>) -> Known {
        let mut sum = DefaultHasher::new();
        data.map(|data| &data[..]).hash(&mut sum);
        Known {
            stamp: version.stamp,
            sum: sum.finish(),
        }
    }
}

impl Orphans {
    /// How many pages were lost.
    pub(in crate::server) const fn lost(&self) -> u64 {
        self.lost
    }

    /// Somebody opens the object: of so many pages that are or may be lost nobody was told before who
    /// was to write to it.
    pub(in crate::server) fn tell(&mut self, to_write: bool) -> u64 {
        let orphans = self.pages.values().filter(|orphan| !orphan.is_told);
        let told = self.untold + orphans.count() as u64;
        if to_write {
            self.untold = 0;
            self.pages
                .values_mut()
                .for_each(|orphan| orphan.is_told = true);
        }
        told
    }

    /// A kernel has brought all that it had; of so many pages that was nothing.
    pub(in crate::server) fn settled(&mut self, kernel: KernelId, missing: u64) {
        self.lost += missing;
        self.untold += missing;
        self.is_settled = Some(kernel);
        self.pages.retain(|_, orphan| orphan.kernel != kernel);
        self.brought.retain(|(of, _)| *of != kernel);
    }

    /// A kernel is gone that could write to these pages.
    fn add(&mut self, kernel: KernelId, pages: Vec<PageNumber>, can_be_brought: bool) {
        if !can_be_brought {
            self.lost += pages.len() as u64;
            self.untold += pages.len() as u64;
            return;
        }
        let orphan = |page| {
            let is_told = false;
            (page, Orphan { kernel, is_told })
        };
        self.pages.extend(pages.into_iter().map(orphan));
    }

    /// Somebody is given these pages.
    pub(super) fn given<D>(&mut self, message: &ToKernel<D>) {
        if self.pages.is_empty() || !matches!(message, ToKernel::DataProvided { .. }) {
            return;
        }
        for page in message.pages().iter() {
            if let Some(orphan) = self.pages.remove(&page) {
                self.lost += 1;
                self.untold += u64::from(!orphan.is_told);
            }
        }
    }
}

impl Object {
    /// A kernel is going to be gone without having given back what it had.
    pub(super) fn leave_orphans(&mut self, kernel: KernelId) {
        if self.orphans.is_settled == Some(kernel) {
            return;
        }
        let written = self.scheduler.written_by(kernel);
        let can_be_brought = self.info.scheduler != SchedulerKind::Distributed;
        self.orphans.add(kernel, written, can_be_brought);
    }

    /// A page is brought that was claimed. Whether it is not lost.
    pub(in crate::server) fn take(
        &mut self,
        brought: Brought,
        (one, data): (Pages, Option<Contents>),
        tell: &mut dyn FnMut(KernelId, ToKernel<Contents>),
    ) -> Result<bool, Nonsense> {
        let page = one.first;
        let size = self.info.page_size.bytes().0;
        let whole = data.as_ref().is_none_or(|data| data.len() as u64 == size);
        if !whole || page.0 >= self.info.size.0.div_ceil(size) {
            return Err(Nonsense("a page that the object does not have"));
        }
        let Brought {
            kernel,
            version,
            machine,
        } = brought;
        if self.kernels.contains_key(&kernel) {
            let is_its = |object: &Object| {
                let owner = object.scheduler.page(page).and_then(|page| page.owner);
                owner == Some(Client::Kernel(kernel))
            };
            if is_its(self) {
                let data = vec![data];
                let message = FromKernel::DataWrite { pages: one, data };
                // It may have given it back, and not have said so yet: then that is what the page holds.
                let _ = self.hear(kernel, message, tell);
            }
            return Ok(true);
        }
        let before = self.orphans.versions.get(&page).copied();
        let known = version.map(|version| Known::new(version, data.as_ref()));
        match known {
            None if self
                .orphans
                .pages
                .get(&page)
                .is_some_and(|it| it.kernel == kernel) => {}
            None => return Ok(self.orphans.brought.contains(&(kernel, page))),
            // It is there already, or a later one is.
            Some(it) if before.is_some_and(|before| before == it || before.stamp > it.stamp) => {
                return Ok(true);
            }
            Some(_) => {}
        }
        let data = data.map(|contents| Page {
            contents: self.kept(contents),
            machine,
        });
        let mut actions = std::mem::take(&mut self.actions);
        // Of a server that was here before: nobody must have asked for the page since, but for who
        // brought an earlier version.
        let is_free = version.is_none()
            || self
                .scheduler
                .page(page)
                .is_none_or(|it| it.stats.faults.total() == 0);
        let is_taken = is_free && self.scheduler.restore(page, data, &mut actions);
        if is_taken {
            self.orphans.pages.remove(&page);
            self.orphans.brought.insert((kernel, page));
            if let Some(known) = known {
                self.orphans.versions.insert(page, known);
            }
        }
        self.carry_out(actions, tell);
        // What was given back to joined servers may be what one of the others has.
        let is_given_back = version.is_some_and(|it| !it.is_held);
        let may_be_elsewhere = is_given_back && before.is_none() && self.is_joint;
        let is_lost = !is_taken && !may_be_elsewhere;
        if is_lost && known.is_some_and(|it| self.orphans.refused.insert((page, it.stamp))) {
            self.orphans.lost += 1;
            self.orphans.untold += 1;
        }
        Ok(!is_lost)
    }
}
