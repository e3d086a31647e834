//! A distributed scheduler as a server has it: with counters and pages that are looked at like
//! those of the other schedulers.

use std::collections::BTreeSet;

use quire_core::dsm::message::{Client, FromKernel, KernelId, PageNumber, Pages, ServerId};
use quire_core::dsm::scheduler::distributed::{
    self, Brought, Decided, Distributed, Epoch, Message, MissedView, Owner, Version,
};
use quire_core::dsm::scheduler::observe::{self, Observe, PageStats, PageStatus, Stats};
use quire_core::dsm::scheduler::{Action, Nonsense, Recall, Scheduler};

use super::object::Page;

/// A server's part in an object.
pub(super) struct Replica {
    inner: Distributed<Page>,
    stats: Stats,
    /// The server's clock.
    clock: u64,
}

/// No other server's clock is so far ahead: what somebody brings with a later time is made up.
const AHEAD: u64 = 1 << 44;

impl Replica {
    pub fn new(inner: Distributed<Page>) -> Replica {
        Replica {
            inner,
            stats: Stats::default(),
            clock: 0,
        }
    }

    /// A peer server says something.
    pub fn server_says(
        &mut self,
        from: ServerId,
        message: Message<Page>,
        actions: &mut Vec<Action<Page>>,
    ) -> Result<(), Nonsense> {
        self.counted(actions, |inner, actions| {
            inner.server_says(from, message, actions)
        })
    }

    /// There is a new view.
    pub fn new_view(
        &mut self,
        epoch: Epoch,
        members: BTreeSet<ServerId>,
        actions: &mut Vec<Action<Page>>,
    ) -> Result<(), MissedView> {
        self.counted(actions, |inner, actions| {
            inner.new_view(epoch, members, actions)
        })
    }

    /// Kernels are given versions that are later than this time of the server's clock.
    pub fn set_clock(&mut self, clock: u64) {
        self.clock = clock;
        self.inner.set_floor(Version(clock + 1));
    }

    /// A time of the servers' clock that is no earlier than any version that was here.
    pub const fn clock(&self) -> u64 {
        self.inner.newest().0
    }

    /// Somebody brings a version of a page that it had written.
    pub fn bring(
        &mut self,
        page: PageNumber,
        it: (Version, Option<Page>),
        actions: &mut Vec<Action<Page>>,
    ) -> Brought {
        if it.0.0 > self.clock.saturating_add(AHEAD) {
            return Brought::Refused;
        }
        self.counted(actions, |inner, actions| inner.bring(page, it, actions))
    }

    /// Whether any version of a page was ever here.
    pub fn had(&self, page: PageNumber) -> bool {
        self.version(page).is_some_and(|it| it > Version::default())
    }

    /// What views have decided since that was last asked.
    pub fn decided(&mut self) -> Vec<Decided> {
        self.inner.decided()
    }

    /// The version of a page, or that of the latest contents here.
    pub fn version(&self, page: PageNumber) -> Option<Version> {
        self.inner.stat(page).map(|known| known.version)
    }

    /// A peer server gave back this version of a page, which is kept here.
    pub fn paged_out(&mut self, page: PageNumber, version: Version, data: Option<Page>) {
        self.inner.paged_out(page, version, data);
    }

    /// What would be lost with this server, which ends, where others may be gone already.
    pub fn handoff(
        &self,
        is_gone: impl Fn(ServerId) -> bool,
    ) -> Vec<(PageNumber, Version, Option<Page>)> {
        self.inner.handoff(is_gone).collect()
    }

    /// A peer server that ends hands over a page.
    pub fn inherit(&mut self, page: PageNumber, version: Version, data: Option<Page>) {
        self.inner.inherit(page, version, data);
    }

    pub fn is_live(&self) -> bool {
        self.inner.is_live()
    }

    /// Does something, and counts what comes of it.
    fn counted<R>(
        &mut self,
        actions: &mut Vec<Action<Page>>,
        act: impl FnOnce(&mut Distributed<Page>, &mut Vec<Action<Page>>) -> R,
    ) -> R {
        let from = actions.len();
        let result = act(&mut self.inner, actions);
        self.stats.count_actions(&actions[from..]);
        let counters = self.inner.counters();
        self.stats.faults = counters.local;
        self.stats.received_from_servers = counters.servers.received;
        self.stats.forwarded = counters.forwarded.total();
        self.stats.faults_of_servers = counters.remote.total();
        self.stats.completions = counters.completions;
        result
    }
}

impl Recall<Page> for Replica {
    fn recall(&mut self, actions: &mut Vec<Action<Page>>) {
        self.counted(actions, Recall::recall);
    }

    fn owes(&self, page: PageNumber) -> Option<KernelId> {
        self.inner.owes(page)
    }
}

impl Scheduler<Page> for Replica {
    fn written_by(&self, kernel: KernelId) -> Vec<PageNumber> {
        let owner = Some(Client::Kernel(kernel));
        let is_its = |number: &PageNumber| self.page(*number).is_some_and(|it| it.owner == owner);
        self.touched().filter(is_its).collect()
    }

    fn kernel_says(
        &mut self,
        kernel: KernelId,
        message: FromKernel<Page>,
        actions: &mut Vec<Action<Page>>,
    ) -> Result<(), Nonsense> {
        self.stats.received.count(&message);
        let heard = self.counted(actions, |inner, actions| {
            inner.kernel_says(kernel, message, actions)
        });
        self.stats.received.nonsense += u64::from(heard.is_err());
        heard
    }

    fn loaded(
        &mut self,
        pages: Pages,
        data: Option<Vec<Option<Page>>>,
        actions: &mut Vec<Action<Page>>,
    ) {
        self.counted(actions, |inner, actions| inner.loaded(pages, data, actions));
    }

    fn gone(&mut self, client: Client, actions: &mut Vec<Action<Page>>) {
        self.counted(actions, |inner, actions| inner.gone(client, actions));
    }
}

impl Observe for Replica {
    fn stats(&self) -> &Stats {
        &self.stats
    }

    fn page(&self, page: PageNumber) -> Option<PageStatus> {
        let known = self.inner.stat(page)?;
        let owner = match known.owner {
            Owner::Myself | Owner::Pager => None,
            Owner::Kernel(kernel) => Some(Client::Kernel(kernel)),
            Owner::Server(server) => Some(Client::Server(server)),
        };
        let is_here = known.state == distributed::State::Read;
        Some(PageStatus {
            state: state(known.state),
            owner,
            readers: known.readers.len(),
            waiting_readers: 0,
            waiting_writers: known.waiting,
            here: is_here,
            lost: false,
            stats: PageStats {
                faults: known.faults,
                ..PageStats::default()
            },
        })
    }

    fn hottest(&mut self) -> Vec<PageNumber> {
        self.inner.hottest()
    }

    fn touched_count(&self) -> usize {
        self.inner.known_count()
    }

    fn touched(&self) -> Box<dyn Iterator<Item = PageNumber> + '_> {
        Box::new(self.inner.known())
    }
}

fn state(state: distributed::State) -> observe::State {
    match state {
        distributed::State::Read => observe::State::Read,
        distributed::State::Write => observe::State::Write,
        distributed::State::ReadWait => observe::State::ReadWait,
        distributed::State::WriteWait => observe::State::WriteWait,
    }
}
