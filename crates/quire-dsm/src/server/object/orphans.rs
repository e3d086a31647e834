//! Pages of an object that somebody could write to who is gone, and did not give back.
//!
//! They are as the server knew them last. Who had written to them may bring what they held, until
//! somebody else has been given them: then that is lost, which is counted, and told to who opens the
//! object next.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use quire_core::dsm::message::{Client, FromKernel, KernelId, PageNumber, Pages, ToKernel};
use quire_core::dsm::scheduler::Nonsense;
use quire_core::dsm::scheduler::distributed::{self, Brought, Decided};
use quire_core::dsm::types::Machine;

use super::{Object, Page};
use crate::server::replica::Replica;
use crate::wire::Contents;
use crate::wire::control::SchedulerKind;

/// The pages whose writers are gone.
#[derive(Default)]
pub(in crate::server) struct Orphans {
    pages: BTreeMap<PageNumber, Orphan>,
    /// Those that were brought by a kernel that is not settled yet.
    brought: BTreeSet<(KernelId, PageNumber)>,
    /// The latest versions of pages that were brought by kernels that are not known here.
    versions: BTreeMap<PageNumber, Known>,
    /// Those about which the next view decides.
    waiting: BTreeMap<PageNumber, Known>,
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
pub(in crate::server) struct Bearer {
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

/// What becomes of a page that is brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Fate {
    /// The object has it, or something later.
    Kept,
    Lost,
    /// The next view of the object decides.
    Waits,
}

impl Fate {
    const fn of(is_kept: bool) -> Fate {
        match is_kept {
            true => Fate::Kept,
            false => Fate::Lost,
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
    fn add(&mut self, kernel: KernelId, pages: Vec<PageNumber>) {
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
        message.pages().iter().for_each(|page| self.given_one(page));
    }

    /// Somebody is given this page.
    pub(super) fn given_one(&mut self, page: PageNumber) {
        if let Some(orphan) = self.pages.remove(&page) {
            self.lost += 1;
            self.untold += u64::from(!orphan.is_told);
        }
    }

    /// A page comes from another server: if it was an orphan here, it was brought there.
    pub(super) fn came(&mut self, page: PageNumber) {
        self.pages.remove(&page);
    }

    /// This version of a page was brought to an object that several servers may share.
    fn was_brought(&mut self, page: PageNumber, version: Known) {
        self.pages.remove(&page);
        self.versions.insert(page, version);
    }

    /// This version of a page, which no server knew of as an orphan, was brought in vain. Programs that share a
    /// copy bring the same, which counts once.
    pub(in crate::server) fn refuse(&mut self, page: PageNumber, stamp: u64) {
        if self.refused.insert((page, stamp)) {
            self.lost += 1;
            self.untold += 1;
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
        self.orphans.add(kernel, written);
    }

    /// A page is brought that was claimed.
    pub(in crate::server) fn take(
        &mut self,
        bearer: Bearer,
        (one, data): (Pages, Option<Contents>),
        tell: &mut dyn FnMut(KernelId, ToKernel<Contents>),
    ) -> Result<Fate, Nonsense> {
        let page = one.first;
        let size = self.info.page_size.bytes().0;
        let whole = data.as_ref().is_none_or(|data| data.len() as u64 == size);
        if !whole || page.0 >= self.info.size.0.div_ceil(size) {
            return Err(Nonsense("a page that the object does not have"));
        }
        let Bearer {
            kernel,
            version,
            machine,
        } = bearer;
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
            return Ok(Fate::Kept);
        }
        if self.info.scheduler == SchedulerKind::Distributed {
            return Ok(self.take_distributed(page, bearer, data, tell));
        }
        let before = self.orphans.versions.get(&page).copied();
        let known = version.map(|version| Known::new(version, data.as_ref()));
        match known {
            None if self
                .orphans
                .pages
                .get(&page)
                .is_some_and(|it| it.kernel == kernel) => {}
            None => return Ok(Fate::of(self.orphans.brought.contains(&(kernel, page)))),
            // It is there already, or a later one is.
            Some(it) if before.is_some_and(|before| before == it || before.stamp > it.stamp) => {
                return Ok(Fate::Kept);
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
        if !is_taken && let Some(it) = known {
            self.orphans.refuse(page, it.stamp);
        }
        Ok(Fate::of(is_taken))
    }

    /// The same, of an object that several servers may share: versions are times of their clock.
    fn take_distributed(
        &mut self,
        page: PageNumber,
        bearer: Bearer,
        data: Option<Contents>,
        tell: &mut dyn FnMut(KernelId, ToKernel<Contents>),
    ) -> Fate {
        let Bearer {
            kernel, machine, ..
        } = bearer;
        let is_its = |orphan: &Orphan| orphan.kernel == kernel;
        let version = bearer.version.or_else(|| {
            // Of a kernel that is known: it is what the page had become, if that is still an orphan.
            self.orphans.pages.get(&page).filter(|it| is_its(it))?;
            let given = self.scheduler.joint()?.version(page)?;
            Some(Version {
                stamp: given.0 + 1,
                is_held: true,
            })
        });
        let Some(Version { stamp, is_held }) = version else {
            return Fate::of(self.orphans.brought.contains(&(kernel, page)));
        };
        let it = Known::new(Version { stamp, is_held }, data.as_ref());
        if self.orphans.versions.get(&page) == Some(&it) {
            return Fate::Kept;
        }
        let is_kept = self.behind.is_some();
        let data = data.map(|contents| Page {
            contents: self.kept(contents),
            machine,
        });
        let mut actions = std::mem::take(&mut self.actions);
        let taken = match self.scheduler.joint() {
            // What was given back before the store was opened, that may have, and later versions.
            Some(replica) if is_kept && !is_held && !replica.had(page) => Brought::Refused,
            Some(replica) => replica.bring(page, (distributed::Version(stamp), data), &mut actions),
            None => Brought::Refused,
        };
        if taken == Brought::Taken {
            self.orphans.was_brought(page, it);
            self.orphans.brought.insert((kernel, page));
        }
        self.carry_out(actions, tell);
        match taken {
            Brought::Taken => Fate::Kept,
            Brought::Waits => {
                self.orphans.waiting.insert(page, it);
                Fate::Waits
            }
            Brought::Refused => {
                if is_held && bearer.version.is_some() {
                    self.orphans.refuse(page, stamp);
                }
                Fate::of(!is_held)
            }
        }
    }

    /// What views have decided about pages that were brought since that was last asked.
    pub(in crate::server) fn decided(&mut self) -> Vec<Decided> {
        let decided = self
            .scheduler
            .joint()
            .map(Replica::decided)
            .unwrap_or_default();
        for it in decided.iter().filter(|it| it.is_taken) {
            let known = self.orphans.waiting.remove(&it.page);
            if let Some(known) = known.filter(|known| known.stamp == it.version.0) {
                self.orphans.was_brought(it.page, known);
            }
        }
        decided
    }
}
