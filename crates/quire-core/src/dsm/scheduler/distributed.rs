//! The `distributed` scheduler: any number of servers, each with its own kernels, share the
//! pages of one object (paper 003, section 4).
//!
//! A server treats its peer servers like kernels. Each page has one *owner* among the servers;
//! the others have a pointer to it, or to someone who knows more. A page fault follows these
//! pointers. Whoever forwards a write fault turns its pointer to the writer (a *hint*), for
//! this one will have the page when all before are served. Copies to be read may come from
//! any server that has one, so readers make a tree below the owner; invalidations run down
//! this tree, and each knows only its own part of it.
//!
//! | module | holds |
//! |---|---|
//! | `page` | one page at one server: the procedures of Figures 2 to 4, 6 and 7 |
//! | `view` | what happens when servers come and go |
//! | `bringing` | versions of pages that are brought whose owners are gone |
//! | `message` | what servers say to each other |
//! | `counters` | what is counted |
//! | `together` | answers about neighbouring pages, made one |
//!
//! # Where it differs from the paper
//!
//! The paper's network keeps the order of all messages. Here only those between the same two
//! parties stay in order. A, B, C and D are servers; a, b, c and d are their kernels.
//!
//! 1. **Invalidations are answered, and a writer waits for the answers.** A owns a page that B
//!    has a copy of. C wants to write. A invalidates B and ships to C; the page is faster than
//!    the invalidation, c writes, and b still reads the old version. So the owner ships when
//!    everyone below has answered ([`Body::Invalidated`], `LockCompleted`), and each server in
//!    the tree answers when everyone below it has. Meanwhile the page is in WriteWait. Without
//!    readers there is nothing to wait for: the hotspot's messages stay as they are.
//! 2. **An invalidation counts in WriteWait as well** (`invalidate_page` ignores it there). B
//!    has a copy and b wants to write: B asks A and is in WriteWait. C asked A before. If B
//!    ignores A's invalidation, b reads on while c writes. Only where B itself is the new owner
//!    does it keep its copy, because then nobody has written in between.
//! 3. **A server that asks for the page has the copies below it dropped when the page comes**,
//!    not when it asks ((1) before (2)). Else the page may come before they are dropped, and a
//!    kernel that was told to drop its copy asks again, gets one with the page, and is told a
//!    second time: its first answer would be taken for the second, and b writes while it reads.
//! 4. **Only the owner decides whether contents have to be sent** (the paper's `needs_data` is
//!    decided by who asks). B asks with a copy at hand; after the race of 2 that copy is old.
//!    So a write fault says which version the server has ([`Fault::have`]).
//! 5. **A copy turns the reader's pointer to the owner of the page**, not to the server that the
//!    copy came from (3), which may be a reader itself and have turned its own pointer since.
//!    As long as the copy is there, the page can only go to a server between the two, so it is no
//!    detour, and pointers cannot make a circle (below). Likewise an invalidation does not overwrite a hint, whose
//!    writer will have the page later than the one that is named.
//! 6. **A server with a queue does not ask for the page back** (5). Those that wait at A to write
//!    are forwarded behind the page, as if their faults came after it, each to the one before
//!    it: so the first round of section 4.1 takes the same messages in whatever order faults come
//!    in. Those that wait to read are served when the page comes to their server, before the next writer. Who came
//!    since is forwarded *ahead* of the page, and is served when it arrives. So writers cannot
//!    starve readers, which section 3 leaves open.
//! 7. **A kernel that wants to write while its server waits for a copy waits for the copy**, and
//!    the page stays in ReadWait. The paper makes this WriteWait without asking anyone (Figure
//!    3, `case ReadWait`), as the page itself is on its way. Here a copy is, and b would write
//!    to it. When it has come, the server asks for the page, as (2) says.
//! 8. **A read fault that was forwarded 16 times is taken on** by the server that it has come
//!    to. That one asks for the page itself (the paper's pretended WriteWait) and gives a copy.
//!    Else it could follow forever a page that is always one link ahead: A ships to B, forwards
//!    the fault to B, B ships to C before it comes, and so on.
//! 9. **A flush of a kernel is done when the kernel says so**: contents (`DataWrite`) and
//!    completion (`LockCompleted`) are two messages here.
//!
//! # Why every fault ends
//!
//! Draw an arrow from each server to where its pointer points or, while it waits to write, to
//! where its fault is. This is a tree. At its root is the owner, or the server to which the page
//! is under way. Each step keeps it a tree: to forward a write fault of R turns R → J → K into
//! J → R → K; to ship to R, whose fault is at the root, turns that arrow around; an
//! invalidation points to a server whose fault is at the root, and a copy points to the root. So
//! a write fault never comes back to its origin: it climbs to the root, or to a server that
//! waits to write itself, and whoever forwarded it asks behind it from then on.
//!
//! No step puts a server that waits for a copy above another one. So if two of them wait, and
//! the second was not above the fault of the first, it never will be; from this it follows that
//! they cannot wait for each other in a circle (take the one that began last out of the
//! circle: the one that it waits for is above the fault of the one that waits for it).
//!
//! # Messages at a hotspot
//!
//! If N servers write to a page in each round, 3N - 4 messages go between servers in the first
//! round, and 2N - 1 in each later one, if faults come in the order of section 4.1: N - 1 faults,
//! N - 1 transfers and one forwarded fault (with two servers none is forwarded).
//!
//! A request of several pages is answered as they become free; those that are free at once
//! are given in one message.

mod bringing;
mod counters;
mod message;
mod page;
#[cfg(test)]
mod tests;
mod together;
mod view;

pub use bringing::{Brought, Decided};
pub use counters::{Counters, Faults, Traffic};
pub use message::{Body, Epoch, Fault, Holding, Message, Version};
pub use page::{Owner, State};
pub use view::MissedView;

use super::hot::Hot;
use super::{Action, Nonsense, Recall, Scheduler, observe};
use crate::dsm::message::{Access, Client, FromKernel, KernelId, PageNumber, Pages, ServerId};
use crate::dsm::per_page::PerPage;
use bringing::Bringing;
use page::{Page, Step, Writer};
use std::collections::BTreeSet;
use view::{Phase, View};

/// How many faults of local kernels a page had.
fn heat(heat: &PerPage<Faults>) -> impl Fn(PageNumber) -> u64 {
    |page| heat.get(page).map_or(0, |faults| faults.total())
}

/// The most pages in one message of a kernel: 16 of 2 MiB, in pages of 4 KiB.
pub const MAX_PAGES: u32 = 16 * 512;

/// The fault scheduler of one object at one of its servers.
#[derive(Clone, Debug)]
pub struct Distributed<D> {
    me: ServerId,
    /// Who owns the pages that nobody has touched.
    home: ServerId,
    /// How many pages the object has.
    size: u64,
    /// Kernels that have said [`FromKernel::Terminate`], and whose link is still there.
    ended: BTreeSet<KernelId>,
    /// This server ends: its kernels get nothing any more.
    is_ending: bool,
    pages: PerPage<Page<D>>,
    view: View<D>,
    counters: Counters,
    /// Faults of local kernels, by page.
    heat: PerPage<Faults>,
    hot: Hot,
    /// The least version that a kernel is given now.
    floor: Version,
    newest: Version,
    bringing: Bringing<D>,
}

/// A page as one server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageStat {
    /// Its state.
    pub state: State,
    /// Who owns it, as far as this server knows.
    pub owner: Owner,
    /// Its version, or that of the latest contents here.
    pub version: Version,
    /// Who has a copy from here.
    pub readers: Vec<Client>,
    /// How many wait for it here.
    pub waiting: usize,
    /// Faults of this server's kernels.
    pub faults: Faults,
}

impl<D: Clone> Distributed<D> {
    /// The first server of an object of so many pages. It owns them all, and loads them when
    /// they are needed.
    #[must_use]
    pub fn primary(me: ServerId, size: u64) -> Distributed<D> {
        Distributed::replica(me, me, size)
    }

    /// A server that shares the object of another one, which may be a replica itself. It has
    /// nothing yet.
    #[must_use]
    pub fn replica(me: ServerId, of: ServerId, size: u64) -> Distributed<D> {
        Distributed {
            me,
            home: of,
            size,
            ended: BTreeSet::new(),
            is_ending: false,
            pages: PerPage::new(),
            view: View::first(),
            counters: Counters::default(),
            heat: PerPage::new(),
            hot: Hot::default(),
            floor: Version::default(),
            newest: Version::default(),
            bringing: Bringing::default(),
        }
    }

    /// Versions that are given from now on are this one or later ones.
    pub fn set_floor(&mut self, floor: Version) {
        self.floor = self.floor.max(floor);
    }

    /// The latest version of any page that was here.
    #[must_use]
    pub const fn newest(&self) -> Version {
        self.newest
    }

    /// What it has done so far.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// The view that it is in.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.view.epoch
    }

    /// Whether faults are answered: not while a new view is being made.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.view.phase == Phase::Live
    }

    /// The pages that it knows of.
    pub fn known(&self) -> impl Iterator<Item = PageNumber> + '_ {
        self.pages.keys()
    }

    /// How many pages it knows of, in pages.
    #[must_use]
    pub fn known_count(&self) -> usize {
        self.pages.len()
    }

    /// The pages that its own kernels had the most faults on, as
    /// [`observe::Observe::hottest`].
    pub fn hottest(&mut self) -> Vec<PageNumber> {
        self.hot.hottest(heat(&self.heat))
    }

    /// What it knows of a page; `None` where it has never heard of it.
    #[must_use]
    pub fn stat(&self, number: PageNumber) -> Option<PageStat> {
        self.pages.get(number).map(|page| PageStat {
            state: page.state,
            owner: page.owner,
            version: page.version,
            readers: page.readers.iter().copied().collect(),
            waiting: page.waiting.len() + page.writers.len(),
            faults: self.heat.get(number).copied().unwrap_or_default(),
        })
    }

    /// A peer server said something. A message of an earlier view is dropped, one of a
    /// later view is kept until that view comes.
    ///
    /// # Errors
    /// What makes no sense, in a line; it has changed nothing.
    pub fn server_says(
        &mut self,
        from: ServerId,
        message: Message<D>,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        self.counters.servers.received += 1;
        self.hear(from, message, actions)
    }

    /// Another server gave a version of a page back to whoever keeps it, and that is beside
    /// this server: it has contents that new then, for the time when the other is gone. They
    /// are taken where the page is elsewhere.
    pub fn paged_out(&mut self, number: PageNumber, version: Version, data: Option<D>) {
        let live = self.is_live();
        if let Some(page) = self.pages.get_mut(number) {
            page.paged_out(version, data, live);
        }
    }

    /// What would be lost with this server, page by page, when its kernels have nothing any
    /// more: the contents of pages that it owns, of those that it has sent to another
    /// server in this view, as they may be on their way, and of copies from servers that are
    /// gone, though in this view: there may be none newer. A page that comes later was sent by a
    /// server that keeps its contents for that.
    pub fn handoff(
        &self,
        is_gone: impl Fn(ServerId) -> bool,
    ) -> impl Iterator<Item = (PageNumber, Version, Option<D>)> {
        let written = self.pages.iter();
        let written = written.filter(|(_, page)| page.version > Version(0));
        let kept = move |source| source == self.me || is_gone(source);
        let lost = written.filter(move |(_, page)| kept(page.source));
        lost.filter_map(|(number, page)| Some((number, page.version, page.contents.clone()?)))
    }

    /// A peer server that ends hands over what would be lost with it. It is beside this
    /// server until there is a view without the other.
    pub fn inherit(&mut self, number: PageNumber, version: Version, data: Option<D>) {
        let live = self.is_live();
        if number.0 < self.size {
            self.on(number, &mut Vec::new(), |page, _| {
                page.paged_out(version, data, live);
            });
        }
    }

    fn hear(
        &mut self,
        from: ServerId,
        message: Message<D>,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        if message.epoch < self.view.epoch {
            self.counters.outdated += 1;
            return Ok(());
        }
        let members = &self.view.members;
        let is_stranger = !members.is_empty() && !members.contains(&from);
        if message.epoch == self.view.epoch && is_stranger {
            return Err(Nonsense("a server speaks that is not in the view"));
        }
        let about_view = matches!(message.body, Body::Holdings(_) | Body::Owners { .. });
        if message.epoch > self.view.epoch || !(about_view || self.is_live()) {
            self.view.early.push((from, message));
            return Ok(());
        }
        match message.body {
            Body::Holdings(_) | Body::Owners { .. } => {
                self.hear_of_view(from, message.body, actions)
            }
            body => self.hear_of_page(from, body, actions),
        }
    }

    fn hear_of_view(
        &mut self,
        from: ServerId,
        body: Body<D>,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        let least = self.view.members.first().copied();
        match body {
            Body::Holdings(holdings)
                if least == Some(self.me)
                    && self.view.members.contains(&from)
                    && !self.is_live() =>
            {
                self.reported(from, holdings, actions);
                Ok(())
            }
            Body::Owners { home, owners }
                if least == Some(from) && self.view.phase == Phase::Reported =>
            {
                self.enter(home, owners, actions);
                Ok(())
            }
            _ => Err(Nonsense("this server has no say in the view")),
        }
    }

    fn hear_of_page(
        &mut self,
        from: ServerId,
        body: Body<D>,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        match body {
            Body::Fault(fault) => self.hear_fault(fault, actions),
            Body::Copy {
                page,
                version,
                owner,
                data,
            } => self.on(page, actions, |page, step| {
                page.copy(version, (owner, data), step)
            }),
            Body::Own {
                page,
                version,
                data,
            } => self.on(page, actions, |page, step| page.own(version, data, step)),
            Body::Invalidate { page, owner } => self.on(page, actions, |page, step| {
                page.invalidate(from, owner, step)
            }),
            Body::Invalidated { page } => self.on(page, actions, |page, step| {
                page.dropped(Client::Server(from), step)
            }),
            Body::Lost { page } => {
                self.on(page, actions, |page, step| page.lost_elsewhere(from, step))
            }
            Body::Holdings(_) | Body::Owners { .. } => Ok(()),
        }
    }

    fn hear_fault(&mut self, fault: Fault, actions: &mut Vec<Action<D>>) -> Result<(), Nonsense> {
        if fault.page.0 >= self.size {
            return Err(Nonsense("a fault is beyond the object's end"));
        }
        if fault.who == self.me {
            return Err(Nonsense("a page fault came back to who made it"));
        }
        self.counters
            .remote
            .count(observe::Fault::of(fault.access, fault.have.is_some()));
        self.on(fault.page, actions, |page, step| {
            page.page_fault(fault, step)
        });
        Ok(())
    }

    fn send(&mut self, to: ServerId, body: Body<D>, actions: &mut Vec<Action<D>>) {
        self.counters.servers.sent += 1;
        let epoch = self.view.epoch;
        actions.push(Action::TellServer(to, Message { epoch, body }));
    }

    /// Does something with a page.
    fn on<R>(
        &mut self,
        number: PageNumber,
        actions: &mut Vec<Action<D>>,
        act: impl FnOnce(&mut Page<D>, &mut Step<'_, D>) -> R,
    ) -> R {
        let (me, first_owner) = (self.me, self.first_owner());
        let page = self
            .pages
            .get_or_insert_with(number, || Page::new(first_owner, me));
        let mut step = Step {
            me,
            epoch: self.view.epoch,
            page: number,
            is_ending: self.is_ending,
            floor: self.floor,
            counters: &mut self.counters,
            actions,
        };
        let result = act(page, &mut step);
        self.newest = self.newest.max(page.version);
        result
    }

    /// A kernel needs pages.
    fn kernel_faults(
        &mut self,
        kernel: KernelId,
        (pages, access, unlock): (Pages, Access, bool),
        actions: &mut Vec<Action<D>>,
    ) {
        let (live, from) = (self.is_live(), actions.len());
        let writer = (access == Access::Write).then_some(Writer::Kernel { kernel, unlock });
        for number in pages.iter() {
            let fault = observe::Fault::of(access, unlock);
            self.counters.local.count(fault);
            let faults = self.heat.get_or_insert_with(number, Faults::default);
            faults.count(fault);
            self.hot.count(number, faults.total());
            self.on(number, actions, |page, step| match writer {
                _ if !live => page.wait_for_view(kernel, writer),
                Some(writer) => page.write_fault(writer, step),
                None => page.read_fault(Client::Kernel(kernel), step),
            });
        }
        self.hot.look(heat(&self.heat));
        let joined = together::join(actions, from);
        self.counters.kernels.sent -= joined;
    }

    /// Checks what a kernel says, before anything is done.
    fn check(&self, kernel: KernelId, message: &FromKernel<D>) -> Result<(), Nonsense> {
        if self.ended.contains(&kernel) {
            return match message {
                FromKernel::LockCompleted { .. } => Ok(()),
                _ => Err(Nonsense("a kernel speaks after Terminate")),
            };
        }
        let owns = |number| {
            self.pages
                .get(number)
                .is_some_and(|page| page.owner == Owner::Kernel(kernel))
        };
        let may_ask = |number| {
            self.pages
                .get(number)
                .is_none_or(|page| page.may_ask(kernel))
        };
        let was_told = |number| {
            self.pages
                .get(number)
                .is_some_and(|page| page.was_told_to_flush(kernel))
        };
        match message {
            FromKernel::DataRequest { pages, .. } | FromKernel::DataUnlock { pages } => {
                self.check_range(*pages)?;
                match pages.iter().all(may_ask) {
                    true => Ok(()),
                    false => Err(Nonsense("a kernel asked for a page that it may write to")),
                }
            }
            FromKernel::DataWrite { pages, data } => {
                self.check_range(*pages)?;
                if data.len() as u64 != u64::from(pages.count) {
                    return Err(Nonsense("pages were given back without their contents"));
                }
                match pages.iter().all(owns) {
                    true => Ok(()),
                    false => Err(Nonsense("a page was given back by a kernel without it")),
                }
            }
            FromKernel::LockCompleted { pages } => {
                self.check_range(*pages)?;
                match pages.iter().all(was_told) {
                    true => Ok(()),
                    false => Err(Nonsense("a flush was completed that nobody asked for")),
                }
            }
            FromKernel::Terminate => Ok(()),
        }
    }

    fn check_range(&self, pages: Pages) -> Result<(), Nonsense> {
        let end = pages.first.0.checked_add(u64::from(pages.count));
        match pages.count {
            1..=MAX_PAGES if end.is_some_and(|end| end <= self.size) => Ok(()),
            1..=MAX_PAGES => Err(Nonsense("a message names pages beyond the object's end")),
            _ => Err(Nonsense("a message names no page, or too many")),
        }
    }
}

impl<D: Clone> Recall<D> for Distributed<D> {
    /// Here copies to be read are taken back, too: no kernel has anything then, so that others
    /// may go on without this server.
    fn recall(&mut self, actions: &mut Vec<Action<D>>) {
        self.is_ending = true;
        let numbers: Vec<PageNumber> = self.known().collect();
        for number in numbers {
            self.on(number, actions, Page::take_back);
        }
    }

    fn owes(&self, page: PageNumber) -> Option<KernelId> {
        self.pages.get(page).and_then(Page::owes)
    }
}

impl<D: Clone> Scheduler<D> for Distributed<D> {
    fn kernel_says(
        &mut self,
        kernel: KernelId,
        message: FromKernel<D>,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense> {
        self.check(kernel, &message)?;
        self.counters.kernels.received += 1;
        if self.ended.contains(&kernel) {
            return Ok(());
        }
        match message {
            FromKernel::DataRequest { .. } | FromKernel::DataUnlock { .. } if self.is_ending => {}
            FromKernel::DataRequest { pages, access } => {
                self.kernel_faults(kernel, (pages, access, false), actions);
            }
            FromKernel::DataUnlock { pages } => {
                self.kernel_faults(kernel, (pages, Access::Write, true), actions);
            }
            FromKernel::DataWrite { pages, data } => {
                actions.push(Action::Save(pages, data.clone()));
                for (number, data) in pages.iter().zip(data) {
                    self.on(number, actions, |page, _| page.data_write(data));
                }
            }
            FromKernel::LockCompleted { pages } => {
                let live = self.is_live();
                for number in pages.iter() {
                    self.on(number, actions, |page, step| {
                        page.lock_completed(kernel, live, step);
                    });
                }
                self.report_if_ready(actions);
            }
            FromKernel::Terminate => {
                self.gone(Client::Kernel(kernel), actions);
                self.ended.insert(kernel);
            }
        }
        Ok(())
    }

    fn loaded(&mut self, pages: Pages, data: Option<Vec<Option<D>>>, actions: &mut Vec<Action<D>>) {
        let live = self.is_live();
        let mut data = data.map(Vec::into_iter);
        for number in pages.iter() {
            let contents = data.as_mut().map(|data| data.next().flatten());
            let waits = self
                .pages
                .get(number)
                .is_some_and(|page| page.owner == Owner::Pager && page.asked);
            if waits {
                self.on(number, actions, |page, step| match contents {
                    Some(contents) => page.loaded(contents, live, step),
                    None => page.lost(Owner::Pager, step),
                });
            }
        }
    }

    /// A server that is gone is dealt with in a new view ([`Distributed::new_view`]); until
    /// then, whoever needs it waits.
    fn gone(&mut self, client: Client, actions: &mut Vec<Action<D>>) {
        let Client::Kernel(kernel) = client else {
            return;
        };
        self.ended.remove(&kernel);
        let live = self.is_live();
        let numbers: Vec<PageNumber> = self.pages.keys().collect();
        for number in numbers {
            self.on(number, actions, |page, step| page.gone(kernel, live, step));
        }
        self.report_if_ready(actions);
    }
}
