//! One object of a server: its scheduler, its types, who may do what to it, and who meets
//! over it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use quire_core::dsm::message::{
    Client, FromKernel, KernelId, PageNumber, Pages, ServerId, ToKernel,
};
use quire_core::dsm::per_page::PerPage;
use quire_core::dsm::scheduler::distributed::{
    Body, Distributed, Epoch, Message, MissedView, Version,
};
use quire_core::dsm::scheduler::multi::Multi;
use quire_core::dsm::scheduler::observe::{Observe, PageStatus, Stats};
use quire_core::dsm::scheduler::options::Options;
use quire_core::dsm::scheduler::simple::Simple;
use quire_core::dsm::scheduler::trace::Event;
use quire_core::dsm::scheduler::{Action, Nonsense, Recall};
use quire_core::dsm::sync::SyncTable;
use quire_core::dsm::types::{Machine, Report, TagMap, Translation};
use quire_core::units::{Bytes, ObjectOffset};

use super::backed::saves::Outcome;
use super::backed::{Asker, Behind, Heard};
use super::distant::Queue;
use super::ending::Recalled;
use super::reclaim::{PAGER, Reclaim};
use super::replica::Replica;
use super::rights::{self, Grants, Stamp};
use super::watch::Tap;
use crate::store::ObjectId;
use crate::wire::control::{self, Answer, FailureKind, Name, Rights, SchedulerKind};
use crate::wire::{Contents, Pool};

pub(super) mod forked_children;
pub(super) mod orphans;
pub(super) mod tags;

use forked_children::ForkedChildren;
use orphans::Orphans;
use tags::tag_map;

/// As whom everybody counts.
pub(super) const ANYONE: &str = "anyone";

/// Why an object cannot be made or changed.
pub(super) type Refused = (FailureKind, String);

/// A page, in the form of the machine that wrote it.
#[derive(Clone, Debug)]
pub struct Page {
    pub(super) contents: Contents,
    pub(super) machine: Machine,
}

/// A scheduler that can be looked at.
pub(super) trait Fault: Recall<Page> + Observe + Send {
    /// The scheduler, if it is one that has peer servers.
    fn joint(&mut self) -> Option<&mut Replica> {
        None
    }
}

impl Fault for Simple<Page> {}
impl Fault for Multi<Page> {}
impl Fault for Replica {
    fn joint(&mut self) -> Option<&mut Replica> {
        Some(self)
    }
}

/// So many leases programs have to come back for removed objects after their links were cut, or their
/// server was started again: they look for it for three.
const COME_BACK: u8 = 4;

/// Whether somebody is waited for who does not use an object now: for so many more leases, the one
/// that runs among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Awaited(u8);

impl Awaited {
    /// From now on, and for [`COME_BACK`] leases after the one that runs.
    pub(super) const fn begin(&mut self) {
        self.0 = 1 + COME_BACK;
    }

    /// A lease is over.
    pub(super) const fn pass(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }

    /// Nobody is any more.
    pub(super) const fn end(&mut self) {
        self.0 = 0;
    }

    pub(super) const fn is_so(self) -> bool {
        self.0 > 0
    }
}

/// What an object with a key is in a list of all: one that was removed is spelled exactly.
pub(super) fn listed(info: &control::Object, is_removed: bool) -> control::Object {
    control::Object {
        name: listed_as(&info.name, is_removed).into_owned(),
        ..info.clone()
    }
}

/// By what an object with a key is listed: its name, or what spells the key exactly.
fn listed_as(key: &Name, is_removed: bool) -> Cow<'_, Name> {
    match (is_removed, key.is_plain()) {
        (false, true) | (true, false) => Cow::Borrowed(key),
        (false, false) => Cow::Owned(key.plain()),
        (true, true) => Cow::Owned(key.exact()),
    }
}

/// A server's part in an object that several servers share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// This server.
    pub me: ServerId,
    /// The server that made the object.
    pub of: ServerId,
}

/// An object.
pub struct Object {
    /// What it was made as; its name here is its key.
    pub info: control::Object,
    pub(super) sync: SyncTable,
    pub(super) kernels: BTreeMap<KernelId, Machine>,
    /// As whom its maker counts, who may do everything.
    pub(super) owner: String,
    /// What others may do to it.
    pub(super) grants: Grants,
    tags: TagMap,
    pub(super) scheduler: Box<dyn Fault>,
    /// Whether several servers share it.
    pub(super) is_joint: bool,
    /// Whether it goes when nobody has it open any more; its name is free.
    pub(super) is_discarded: bool,
    /// Somebody may come back for it, whose link was cut: it is not gone yet, though it was discarded.
    pub(super) missed: Awaited,
    /// Who made it of what was begun has not opened it yet: it is not gone yet, either.
    pub(super) new: Awaited,
    /// Children of who has it open are about to open it.
    pub(super) forked_children: ForkedChildren,
    /// Pages whose writers are gone.
    pub(super) orphans: Orphans,
    /// What peer servers are to be told.
    pub(super) mail: Vec<(ServerId, Message<Page>)>,
    pub(super) actions: Vec<Action<Page>>,
    pool: Pool,
    /// The machine in whose form the pager has its contents.
    machine: Machine,
    /// Who supplies its contents, and takes them back. Without anybody it begins with zeros
    /// and lives in memory.
    pub(super) behind: Option<Behind>,
    /// What its pager wants back.
    pub(super) reclaim: Reclaim,
    /// What was asked for when its server began to end.
    pub(super) recalled: Recalled,
    /// Which it is in the store.
    pub(super) id: Option<ObjectId>,
    /// What is on its way to the server that keeps it, if that is another.
    pub(super) queue: Option<Queue>,
    /// The versions of pages that the pager got, where several servers share it.
    versions: PerPage<Version>,
    /// What counts for it in the server's bound of memory.
    pub(super) in_memory: Bytes,
    /// What could not be carried over exactly when pages were translated.
    pub(super) report: Report,
    /// What its scheduler is told and tells, while somebody watches.
    pub(super) tap: Tap,
}

impl Object {
    /// Makes an object that holds zeros; with a part, one that several servers share.
    pub(super) fn new(
        info: control::Object,
        owner: String,
        part: Option<Part>,
    ) -> Result<Object, Refused> {
        let invalid = |text: String| (FailureKind::Invalid, text);
        if info.size.0 == 0 || info.size.0 > 1 << 47 {
            let text = format!("an object has 1 to 2^47 bytes, not {}", info.size.0);
            return Err(invalid(text));
        }
        let unknown = || invalid(format!("machine type {} is unknown here", info.machine.0));
        let machine = info.machine.machine().ok_or_else(unknown)?;
        let options = Options::new(info.size.0.div_ceil(info.page_size.bytes().0));
        let scheduler: Box<dyn Fault> = match info.scheduler {
            SchedulerKind::Simple => Box::new(Simple::new(options)),
            SchedulerKind::Multi | SchedulerKind::Usual => Box::new(Multi::new(options)),
            SchedulerKind::Distributed => {
                let alone = Part {
                    me: ServerId(0),
                    of: ServerId(0),
                };
                let Part { me, of } = part.unwrap_or(alone);
                Box::new(Replica::new(Distributed::replica(me, of, options.pages)))
            }
        };
        let tags = tag_map(&info)?;
        Ok(Object {
            info,
            sync: SyncTable::default(),
            kernels: BTreeMap::new(),
            owner,
            grants: Grants::default(),
            tags,
            scheduler,
            is_joint: part.is_some(),
            is_discarded: false,
            missed: Awaited::default(),
            new: Awaited::default(),
            forked_children: ForkedChildren::default(),
            orphans: Orphans::default(),
            mail: Vec::new(),
            actions: Vec::new(),
            pool: Pool::new(),
            machine,
            behind: None,
            reclaim: Reclaim::default(),
            recalled: Recalled::default(),
            id: None,
            queue: None,
            versions: PerPage::new(),
            in_memory: Bytes::ZERO,
            report: Report::new(),
            tap: Tap::default(),
        })
    }

    /// Whether it is this server's alone, and in no store.
    pub(super) const fn is_only_here(&self) -> bool {
        !self.is_joint && self.id.is_none()
    }

    /// Whether somebody is about to open it, or may come back for it.
    pub(super) const fn is_awaited(&self) -> bool {
        self.missed.is_so() || self.new.is_so() || self.forked_children.are_awaited()
    }

    /// What is answered to who has made it.
    pub(super) const fn made(&self) -> Answer {
        match self.new.is_so() {
            true => Answer::Sized {
                is_removed: self.is_discarded,
            },
            false => Answer::Done,
        }
    }

    /// What those who use it are told that it is.
    pub(super) fn told(&self) -> control::Object {
        control::Object {
            name: self.info.name.plain(),
            ..self.info.clone()
        }
    }

    /// By what it is listed among all: its name, if it has that still.
    pub(super) fn listed_as(&self) -> Cow<'_, Name> {
        listed_as(&self.info.name, self.is_discarded)
    }

    /// What it is in such a list.
    pub(super) fn listed(&self) -> control::Object {
        listed(&self.info, self.is_discarded)
    }

    /// Whether it can only be read, as far as its pager has said.
    pub(super) fn is_read_only(&self) -> bool {
        self.behind.as_ref().is_some_and(Behind::is_read_only)
    }

    /// The machine in whose form contents are that nobody has written yet.
    pub(super) const fn machine(&self) -> Machine {
        self.machine
    }

    /// Says what somebody may do to it from now on. Who has it open keeps what he has.
    pub(super) fn grant(&mut self, to: String, rights: Rights) -> Result<(), Refused> {
        self.grant_at(ServerId(0), to, rights).map(|_| ())
    }

    /// The same, said at a server of several that share the object. When that was.
    pub(super) fn grant_at(
        &mut self,
        by: ServerId,
        to: String,
        rights: Rights,
    ) -> Result<Stamp, Refused> {
        self.grants.say(to, rights, by).map_err(|rights::Full| {
            let most = rights::MOST;
            let text = format!("{most} others have rights already; take back some");
            (FailureKind::Full, text)
        })
    }

    /// Whether somebody may do this to it. Who may do nothing may not have it open, either.
    pub(super) fn allows(&self, identity: &str, wanted: Rights) -> bool {
        let (own, all) = (self.grants.of(identity), self.grants.of(ANYONE));
        let may = |own: bool, all: bool, wanted: bool| own || all || !wanted;
        identity == self.owner
            || (wanted != rights::NOTHING
                && may(own.read, all.read, wanted.read)
                && may(own.write, all.write, wanted.write))
    }

    /// A kernel says something. What others are told is handed to `tell`.
    pub(super) fn hear(
        &mut self,
        kernel: KernelId,
        message: FromKernel<Contents>,
        tell: &mut dyn FnMut(KernelId, ToKernel<Contents>),
    ) -> Result<(), Nonsense> {
        let message = self.received(kernel, message)?;
        self.tap.see(|| Event::received(kernel, &message));
        let mut actions = std::mem::take(&mut self.actions);
        let heard = self.scheduler.kernel_says(kernel, message, &mut actions);
        if let Err(Nonsense(reason)) = heard {
            self.tap.see(|| Event::nonsense(kernel, reason));
        }
        self.carry_out(actions, tell);
        heard
    }

    /// A kernel is gone.
    pub(super) fn gone(
        &mut self,
        kernel: KernelId,
        tell: &mut dyn FnMut(KernelId, ToKernel<Contents>),
    ) {
        self.leave_orphans(kernel);
        let mut actions = std::mem::take(&mut self.actions);
        let client = Client::Kernel(kernel);
        self.tap.see(|| Event::gone(client));
        self.scheduler.gone(client, &mut actions);
        self.kernels.remove(&kernel);
        if let Some(behind) = &mut self.behind {
            behind.forget(kernel);
        }
        self.carry_out(actions, tell);
    }

    /// What its scheduler has counted.
    pub(super) fn counted(&self) -> &Stats {
        self.scheduler.stats()
    }

    /// What is known of a page, if somebody ever asked for it.
    pub(super) fn page(&self, page: PageNumber) -> Option<PageStatus> {
        self.scheduler.page(page)
    }

    /// The pages with the most faults, those with more first.
    pub(super) fn hottest(&mut self) -> Vec<PageNumber> {
        self.scheduler.hottest()
    }

    /// How many pages somebody ever asked for.
    pub(super) fn touched_count(&self) -> usize {
        self.scheduler.touched_count()
    }

    /// The pages that somebody ever asked for.
    pub(super) fn touched(&self) -> impl Iterator<Item = PageNumber> {
        self.scheduler.touched()
    }

    /// A peer server says something.
    pub(super) fn hear_peer_server(
        &mut self,
        from: ServerId,
        mut message: Message<Page>,
        tell: &mut dyn FnMut(KernelId, ToKernel<Contents>),
    ) -> Result<(), Nonsense> {
        let size = self.info.page_size.bytes().0;
        let carried = match &mut message.body {
            Body::Copy { page, data, .. } => Some((*page, data.as_mut())),
            Body::Own { page, data, .. } => Some((*page, data.as_mut().and_then(Option::as_mut))),
            _ => None,
        };
        if let Some((number, mut data)) = carried {
            look_at_page(size, &self.info, number.0, data.as_deref())?;
            self.orphans.came(number);
            if let Some(page) = &mut data {
                page.contents = self.kept(page.contents.clone());
            }
        }
        self.tap.see(|| Event::from_server(from));
        let mut actions = std::mem::take(&mut self.actions);
        let heard = match self.scheduler.joint() {
            Some(replica) => replica.server_says(from, message, &mut actions),
            None => Err(Nonsense("one server alone keeps this object")),
        };
        self.carry_out(actions, tell);
        heard
    }

    /// There is a new view.
    pub(super) fn new_view(
        &mut self,
        epoch: u64,
        members: BTreeSet<ServerId>,
        tell: &mut dyn FnMut(KernelId, ToKernel<Contents>),
    ) -> Result<(), MissedView> {
        let mut actions = std::mem::take(&mut self.actions);
        let entered = match self.scheduler.joint() {
            Some(replica) => replica.new_view(Epoch(epoch), members, &mut actions),
            None => Ok(()),
        };
        self.carry_out(actions, tell);
        entered
    }

    /// Whether faults are answered: not while servers agree on a new view.
    pub(super) fn is_live(&mut self) -> bool {
        self.scheduler
            .joint()
            .is_none_or(|replica| replica.is_live())
    }

    /// What its pager has said by now, and what is due.
    pub(super) fn look_behind(
        &mut self,
        now: Instant,
        tell: &mut dyn FnMut(KernelId, ToKernel<Contents>),
    ) {
        if let Some(behind) = &mut self.behind {
            behind.pass(now);
        }
        let actions = std::mem::take(&mut self.actions);
        self.carry_out(actions, tell);
    }

    /// Who waited until all was safe, and how that ended.
    pub(super) fn ended(&mut self) -> Vec<(Asker, Result<Answer, Refused>)> {
        let Some(behind) = &mut self.behind else {
            return Vec::new();
        };
        let name = self.info.name.plain();
        let answer = |outcome: Outcome| match outcome {
            Ok(()) => Ok(Answer::Done),
            Err((page, why)) => {
                let text = format!("page {} of {name} is not safe: {why}", page.0);
                Err((FailureKind::Unavailable, text))
            }
        };
        let ended = behind.ended().into_iter();
        ended
            .map(|(asker, result)| (asker, answer(result)))
            .collect()
    }

    pub(super) fn carry_out(
        &mut self,
        mut actions: Vec<Action<Page>>,
        tell: &mut dyn FnMut(KernelId, ToKernel<Contents>),
    ) {
        let mut at = 0;
        loop {
            while at < actions.len() {
                let placeholder = Action::Save(Pages::one(Default::default()), Vec::new());
                self.tap.see(|| Event::sent(&actions[at]));
                let action = std::mem::replace(&mut actions[at], placeholder);
                self.carry_out_one(action, &mut actions, tell);
                at += 1;
            }
            // The pager may have answered at once.
            self.hear_pager(&mut actions, tell);
            self.reclaim(&mut actions);
            if at == actions.len() {
                break;
            }
        }
        actions.clear();
        self.actions = actions;
    }

    fn carry_out_one(
        &mut self,
        action: Action<Page>,
        actions: &mut Vec<Action<Page>>,
        tell: &mut dyn FnMut(KernelId, ToKernel<Contents>),
    ) {
        match action {
            Action::Tell(PAGER, message) => self.pager_is_told(&message),
            Action::Tell(kernel, message) => {
                self.orphans.given(&message);
                let message = self.sent(kernel, message);
                match &mut self.behind {
                    Some(behind) => behind.tell(kernel, message, tell),
                    None => tell(kernel, message),
                }
            }
            Action::Load(pages) => match &mut self.behind {
                Some(behind) => behind.load(pages),
                None => {
                    // Nobody backs it: what nobody has written is zeros.
                    let zeros = pages.iter().map(|_| None).collect();
                    self.tap.see(|| Event::loaded(pages, true));
                    self.scheduler.loaded(pages, Some(zeros), actions);
                }
            },
            // Without a pager what is given back stays in the scheduler.
            Action::Save(pages, data) => self.save(pages, data),
            Action::TellServer(to, message) => {
                if let Body::Copy { page, .. } | Body::Own { page, .. } = &message.body {
                    self.orphans.given_one(*page);
                }
                self.mail.push((to, message));
            }
        }
    }

    /// How much of it is in memory and could go.
    pub(super) fn resident(&self) -> Bytes {
        self.behind.as_ref().map_or(Bytes::ZERO, Behind::resident)
    }

    /// Has about so much of it go from memory, as far as nobody needs it now.
    pub(super) fn make_room(&mut self, wanted: Bytes) {
        if let Some(behind) = &mut self.behind {
            behind.make_room(wanted, |page| self.scheduler.release(page));
        }
    }

    /// A peer server sends a page that is to be kept here.
    pub(super) fn keep(
        &mut self,
        (page, version, contents): (PageNumber, Version, Option<Contents>),
    ) -> Result<(), Nonsense> {
        let machine = self.machine;
        let data = contents.map(|contents| Page { contents, machine });
        let size = self.info.page_size.bytes().0;
        look_at_page(size, &self.info, page.0, data.as_ref())?;
        if self.versions.get(page).is_some_and(|it| *it >= version) {
            return Ok(());
        }
        self.versions.insert(page, version);
        if let Some(replica) = self.scheduler.joint() {
            replica.paged_out(page, version, data.clone());
        }
        self.give(Pages::one(page), vec![data]);
        Ok(())
    }

    /// What would be lost with this server, which ends, where others may be gone already.
    pub(super) fn handoff(
        &mut self,
        is_gone: impl Fn(ServerId) -> bool,
    ) -> Vec<(PageNumber, Version, Option<Page>)> {
        let replica = self.scheduler.joint();
        replica.map_or_else(Vec::new, |replica| replica.handoff(is_gone))
    }

    /// A peer server that ends hands over a page.
    pub(super) fn inherit(
        &mut self,
        (page, version, data): (PageNumber, Version, Option<Page>),
    ) -> Result<(), Nonsense> {
        let size = self.info.page_size.bytes().0;
        look_at_page(size, &self.info, page.0, data.as_ref())?;
        let data = data.map(|data| Page {
            contents: self.kept(data.contents),
            ..data
        });
        if let Some(replica) = self.scheduler.joint() {
            replica.inherit(page, version, data);
        }
        Ok(())
    }

    /// Pages were given back here: they go to the pager, here or at the server that keeps them.
    fn save(&mut self, pages: Pages, data: Vec<Option<Page>>) {
        if self.is_joint && self.behind.is_some() {
            for page in pages.iter() {
                let replica = self.scheduler.joint();
                let version = replica.and_then(|it| it.version(page)).unwrap_or_default();
                match &self.queue {
                    Some(queue) => queue.given(page, version),
                    None => drop(self.versions.insert(page, version)),
                }
            }
        }
        self.give(pages, data);
    }

    /// Gives pages to the pager, in the form in which it has them.
    fn give(&mut self, pages: Pages, data: Vec<Option<Page>>) {
        let Some(behind) = &mut self.behind else {
            return;
        };
        for (number, page) in pages.iter().zip(&data) {
            let is_foreign = page
                .as_ref()
                .is_some_and(|page| page.machine != self.machine);
            behind.given_back(number, is_foreign);
        }
        let given = pages.iter().zip(data).map(|(number, page)| {
            let at = ObjectOffset(number.0 * self.info.page_size.bytes().0);
            Some(self.translated(page?, at, Some(self.machine)))
        });
        let given: Vec<_> = given.collect();
        if let Some(behind) = &mut self.behind {
            behind.save(pages, given);
        }
    }

    /// Brings what the pager has said to the scheduler.
    fn hear_pager(
        &mut self,
        actions: &mut Vec<Action<Page>>,
        tell: &mut dyn FnMut(KernelId, ToKernel<Contents>),
    ) {
        let Some(behind) = &mut self.behind else {
            return;
        };
        let machine = self.machine;
        let page = |contents| Page { contents, machine };
        for heard in behind.events(Instant::now(), tell) {
            match heard {
                Heard::Loaded(pages, data) => {
                    let page = |held: Option<_>| held.map(page);
                    let data = data.map(|data| data.into_iter().map(page).collect());
                    self.tap.see(|| Event::loaded(pages, data.is_some()));
                    self.scheduler.loaded(pages, data, actions);
                }
                Heard::WantsBack(pages) => self.wants_back(pages),
            }
        }
    }

    /// Contents as they are kept: one page of many that came at once keeps the memory of all.
    fn kept(&self, contents: Contents) -> Contents {
        match contents.is_part() {
            true => self.pool.copy(&contents),
            false => contents,
        }
    }

    /// A message of a kernel, its pages in the form of that kernel's machine.
    fn received(
        &self,
        kernel: KernelId,
        message: FromKernel<Contents>,
    ) -> Result<FromKernel<Page>, Nonsense> {
        let machine = self.kernels.get(&kernel).copied();
        let machine = machine.ok_or(Nonsense("the object is not open"))?;
        Ok(match message {
            FromKernel::DataRequest { pages, access } => FromKernel::DataRequest { pages, access },
            FromKernel::DataUnlock { pages } => FromKernel::DataUnlock { pages },
            FromKernel::LockCompleted { pages } => FromKernel::LockCompleted { pages },
            FromKernel::Terminate => FromKernel::Terminate,
            FromKernel::DataWrite { pages, mut data } => {
                let size = self.info.page_size.bytes().0 as usize;
                let fits = |contents: &Option<Contents>| {
                    contents
                        .as_ref()
                        .is_none_or(|contents| contents.len() == size)
                };
                if !data.iter().all(fits) {
                    return Err(Nonsense("contents that are not as long as a page"));
                }
                Contents::part_with(&mut data);
                let page = |contents| Page {
                    contents: self.kept(contents),
                    machine,
                };
                let data = data
                    .into_iter()
                    .map(|contents| contents.map(page))
                    .collect();
                FromKernel::DataWrite { pages, data }
            }
        })
    }

    /// A message to a kernel, its pages in the form of that kernel's machine.
    fn sent(&mut self, kernel: KernelId, message: ToKernel<Page>) -> ToKernel<Contents> {
        match message {
            ToKernel::LockRequest { pages, lock } => ToKernel::LockRequest { pages, lock },
            ToKernel::DataError { pages } => ToKernel::DataError { pages },
            ToKernel::DataProvided {
                pages,
                data,
                access,
            } => {
                let to = self.kernels.get(&kernel).copied();
                let size = self.info.page_size.bytes().0;
                let pair = pages.iter().zip(data);
                let data = pair.map(|(number, page)| {
                    let at = ObjectOffset(number.0 * size);
                    Some(self.translated(page?, at, to))
                });
                let data = data.collect();
                ToKernel::DataProvided {
                    pages,
                    data,
                    access,
                }
            }
        }
    }

    fn translated(&mut self, page: Page, at: ObjectOffset, to: Option<Machine>) -> Contents {
        let Some(to) = to.filter(|to| *to != page.machine) else {
            return page.contents;
        };
        let length = page.contents.len();
        let mut buffer = self.pool.take(length);
        let mut report = Report::default();
        let translation = Translation::new(page.machine, to);
        let into = &mut buffer[..length];
        let done = translation.copy_contents(&self.tags, at, &page.contents, into, &mut report);
        // Segments begin and end with whole elements, and so do pages.
        debug_assert!(done.is_ok(), "{done:?}");
        if report.replaced() > 0 {
            tracing::warn!("{}, sent to {to}: {report}", self.info.name);
        }
        self.report.merge(&report);
        Contents::whole(buffer, length)
    }
}

/// Whether a peer server's page can be one of the object.
fn look_at_page(
    size: u64,
    info: &control::Object,
    page: u64,
    data: Option<&Page>,
) -> Result<(), Nonsense> {
    if page >= info.size.0.div_ceil(size) {
        return Err(Nonsense("a page is beyond the object's end"));
    }
    match data {
        Some(data) if data.contents.len() as u64 != size => {
            Err(Nonsense("contents that are not as long as a page"))
        }
        _ => Ok(()),
    }
}
