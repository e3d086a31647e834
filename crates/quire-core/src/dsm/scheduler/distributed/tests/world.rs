//! Servers, their kernels and the links between them, to be driven step by step. What is
//! checked is what kernels see, never what servers believe.
//!
//! A page holds the number of writes that it has seen. `latest` is what it must hold, so a
//! stale read, a lost update and a second writer all show as a wrong number.

use crate::dsm::message::{
    Access, Client, FromKernel, KernelId, Lock, PageNumber, Pages, ServerId, ToKernel,
};
use crate::dsm::scheduler::distributed::{Body, Distributed, Epoch, Message, State, Version};
use crate::dsm::scheduler::{Action, Recall, Scheduler};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Node {
    Server(usize),
    Kernel(usize),
    /// The pager of a server that is not the home server.
    Pager(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Packet {
    PeerServer(Message<u32>),
    Up(FromKernel<u32>),
    Down(ToKernel<u32>),
    /// A page that was given back, for the home server, in this view.
    Keep(Epoch, Parcel),
    /// What would be lost with a server that ends, in this view.
    Inherit(Epoch, Parcel),
}

/// A page that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parcel {
    page: PageNumber,
    version: Version,
    value: u32,
}

/// How far a server is that ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ending {
    /// Whom it hands over to, in which view.
    successor: Option<(usize, Epoch)>,
    /// How much of that is still to be taken.
    left: usize,
}

/// What the first server keeps, as long as it does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Home {
    /// The version and the value of each page.
    kept: Vec<(Version, u32)>,
    /// What other servers were not answered yet.
    unanswered: BTreeMap<(usize, PageNumber), Parcel>,
}

/// A page at a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cached {
    pub access: Option<Access>,
    pub value: u32,
    pub dirty: bool,
    pub wants: Option<Access>,
}

// What was counted does not make two servers different.
impl<D: PartialEq> PartialEq for Distributed<D> {
    fn eq(&self, other: &Self) -> bool {
        let same = (self.me, self.home, &self.ended) == (other.me, other.home, &other.ended);
        same && (&self.pages, &self.view) == (&other.pages, &other.view)
    }
}
impl<D: Eq> Eq for Distributed<D> {}
impl<D: Hash> Hash for Distributed<D> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.home, &self.ended, &self.pages, &self.view).hash(state);
    }
}

impl<D: Clone> Distributed<D> {
    /// The latest contents of a page that are here.
    pub(crate) fn latest_contents(&self, page: PageNumber) -> Option<D> {
        self.pages.get(page)?.contents.clone()?
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// `None`: crashed.
    pub servers: Vec<Option<Distributed<u32>>>,
    /// Each with its pages; kernel `k` belongs to server `k % servers`.
    pub kernels: Vec<Vec<Cached>>,
    pub links: BTreeMap<(Node, Node), VecDeque<Packet>>,
    /// The number of writes that are done, by page.
    pub latest: Vec<u32>,
    /// The members of each view but the first.
    pub views: Vec<BTreeSet<ServerId>>,
    /// What went wrong first.
    pub broken: Option<String>,
    /// A server in WriteWait answers an invalidation without obeying it, as the paper says.
    pub as_the_paper: bool,
    /// Messages between kernels and servers take no time.
    pub near: bool,
    /// Whether kernels write as soon as they may.
    pub eager: bool,
    /// Where the first server keeps what is given back anywhere. It does not crash.
    pub home: Option<Home>,
    /// Servers that end in order. What they have may not be lost.
    pub ending: BTreeMap<usize, Ending>,
    /// Nobody crashes, so nothing may be lost.
    pub is_orderly: bool,
}

impl World {
    /// Servers that are replicas of those given (a server of itself is the first), with
    /// kernels in turn.
    pub fn new(of: &[usize], kernels: usize, pages: usize) -> World {
        let server = |(me, &of): (usize, &usize)| {
            Some(Distributed::replica(
                ServerId(me as u64),
                ServerId(of as u64),
                pages as u64,
            ))
        };
        World {
            servers: of.iter().enumerate().map(server).collect(),
            kernels: vec![vec![Cached::default(); pages]; kernels],
            links: BTreeMap::new(),
            latest: vec![0; pages],
            views: Vec::new(),
            broken: None,
            as_the_paper: false,
            near: true,
            eager: true,
            home: None,
            ending: BTreeMap::new(),
            is_orderly: false,
        }
    }

    /// A server begins to end, if another one stays.
    pub fn end(&mut self, server: usize) {
        let stays = |other: &ServerId| !self.ending.contains_key(&(other.0 as usize));
        if self.alive().iter().filter(|it| stays(it)).count() < 2 {
            return;
        }
        let mut actions = Vec::new();
        match &mut self.servers[server] {
            Some(ending) if !self.ending.contains_key(&server) => ending.recall(&mut actions),
            _ => return,
        }
        self.ending.insert(server, Ending::default());
        self.carry_out(server, actions);
        self.settle();
    }

    /// A server that ends goes on with that: when its kernels have nothing any more, it hands
    /// over to `successor`, and when that has taken all, it leaves.
    pub fn go_on_ending(&mut self, server: usize, successor: usize) {
        let Some(epoch) = self.epoch(server) else {
            return;
        };
        let can_inherit = |successor: usize| {
            let stays = self.servers[successor].is_some() && !self.ending.contains_key(&successor);
            stays && self.epoch(successor) == Some(epoch)
        };
        let (now, new) = match self.ending.get(&server) {
            Some(ending) => (ending.clone(), can_inherit(successor)),
            None => return,
        };
        match now.successor {
            // Others propose views, too: it leaves when its own is the next.
            Some((_, at)) if at == epoch && now.left == 0 && !self.is_behind(server) => {
                self.leave(server);
            }
            Some((successor, at)) if at == epoch && (now.left == 0 || can_inherit(successor)) => {}
            _ if new && self.owes_nothing(server) => self.hand_over(server, successor, epoch),
            _ => {}
        }
    }

    fn owes_nothing(&self, server: usize) -> bool {
        let mut pages = (0..self.latest.len() as u64).map(PageNumber);
        let server = self.servers[server].as_ref();
        server.is_some_and(|it| it.is_live() && pages.all(|page| it.owes(page).is_none()))
    }

    fn hand_over(&mut self, server: usize, successor: usize, epoch: Epoch) {
        let Some(ending) = &self.servers[server] else {
            return;
        };
        let is_gone = |it: ServerId| self.servers[it.0 as usize].is_none();
        let all: Vec<_> = ending.handoff(is_gone).collect();
        let left = all.len();
        let successor_at = Some((successor, epoch));
        self.ending.insert(
            server,
            Ending {
                successor: successor_at,
                left,
            },
        );
        for (page, version, value) in all {
            let value = value.unwrap_or(0);
            let parcel = Parcel {
                page,
                version,
                value,
            };
            let link = (Node::Pager(server), Node::Server(successor));
            self.send(link.0, link.1, Packet::Inherit(epoch, parcel));
        }
    }

    fn successor_hears(&mut self, from: usize, to: usize, (sent, parcel): (Epoch, Parcel)) {
        let stays = !self.ending.contains_key(&to);
        let Some(successor) = self.servers[to].as_mut() else {
            return;
        };
        if successor.epoch() != sent || !stays {
            return;
        }
        successor.inherit(parcel.page, parcel.version, Some(parcel.value));
        if let Some(ending) = self.ending.get_mut(&from)
            && ending.successor == Some((to, sent))
        {
            ending.left -= 1;
        }
    }

    /// A server is done: the others go on without it, and nothing is lost.
    fn leave(&mut self, server: usize) {
        self.links.retain(|&(from, to), _| {
            let kernel =
                |node| matches!(node, Node::Kernel(it) if it % self.servers.len() == server);
            !kernel(from) && !kernel(to)
        });
        self.crash(server);
    }

    /// The first server is the home server of all pages.
    pub fn keep(&mut self) {
        self.home = Some(Home {
            kept: vec![Default::default(); self.latest.len()],
            unanswered: BTreeMap::new(),
        });
    }

    pub fn server_of(&self, kernel: usize) -> usize {
        kernel % self.servers.len()
    }

    pub fn break_with(&mut self, what: impl Into<String>) {
        if self.broken.is_none() {
            self.broken = Some(what.into());
        }
    }

    fn send(&mut self, from: Node, to: Node, packet: Packet) {
        self.links.entry((from, to)).or_default().push_back(packet);
    }

    /// What links have something to bring.
    pub fn busy(&self) -> Vec<(Node, Node)> {
        self.links.keys().copied().collect()
    }

    /// Brings the oldest message of a link.
    pub fn deliver(&mut self, link: (Node, Node)) {
        self.deliver_one(link);
        self.settle();
    }

    fn deliver_one(&mut self, (from, to): (Node, Node)) {
        let Some(queue) = self.links.get_mut(&(from, to)) else {
            return;
        };
        let packet = queue.pop_front();
        if queue.is_empty() {
            self.links.remove(&(from, to));
        }
        match (from, to, packet) {
            (Node::Server(from), Node::Server(to), Some(Packet::PeerServer(message))) => {
                self.server_hears(from, to, message);
            }
            (Node::Kernel(kernel), Node::Server(server), Some(Packet::Up(message))) => {
                self.kernel_says(kernel, server, message);
            }
            (_, Node::Kernel(kernel), Some(Packet::Down(message))) => {
                self.kernel_hears(kernel, message);
            }
            (Node::Pager(from), Node::Server(to), Some(Packet::Inherit(epoch, parcel))) => {
                self.successor_hears(from, to, (epoch, parcel));
            }
            (Node::Pager(from), _, Some(Packet::Keep(epoch, parcel))) => {
                self.home_hears(from, epoch, parcel);
            }
            _ => {}
        }
    }

    /// Brings all messages between kernels and their servers, if these take no time.
    fn settle(&mut self) {
        let local = |&(from, to): &(Node, Node)| {
            matches!((from, to), (Node::Kernel(_), _) | (_, Node::Kernel(_)))
        };
        while self.near {
            let Some(link) = self.links.keys().copied().find(local) else {
                break;
            };
            self.deliver_one(link);
        }
    }

    fn server_hears(&mut self, from: usize, to: usize, message: Message<u32>) {
        let Some(server) = self.servers[to].as_mut() else {
            return;
        };
        let mut actions = Vec::new();
        if let (true, &Body::Invalidate { page, .. }) = (self.as_the_paper, &message.body)
            && server
                .stat(page)
                .is_some_and(|stat| stat.state == State::WriteWait)
        {
            let epoch = message.epoch;
            let body = Body::Invalidated { page };
            let answer = Message { epoch, body };
            actions.push(Action::TellServer(ServerId(from as u64), answer));
        } else {
            if let Body::Fault(fault) = &message.body
                && fault.hops as usize > 2 * self.servers.len() + 16
            {
                self.broken = Some("a fault is forwarded without end".to_string());
            }
            let Some(server) = self.servers[to].as_mut() else {
                return;
            };
            if let Err(nonsense) = server.server_says(ServerId(from as u64), message, &mut actions)
            {
                self.break_with(format!("server {to} about {from}: {nonsense}"));
            }
        }
        self.carry_out(to, actions);
    }

    fn kernel_says(&mut self, kernel: usize, to: usize, message: FromKernel<u32>) {
        let Some(server) = self.servers[to].as_mut() else {
            return;
        };
        let mut actions = Vec::new();
        if let Err(nonsense) = server.kernel_says(KernelId(kernel as u64), message, &mut actions) {
            self.break_with(format!("server {to} about kernel {kernel}: {nonsense}"));
        }
        self.carry_out(to, actions);
    }

    pub fn carry_out(&mut self, server: usize, actions: Vec<Action<u32>>) {
        let me = Node::Server(server);
        for action in actions {
            match action {
                Action::Tell(kernel, message) => {
                    self.send(me, Node::Kernel(kernel.0 as usize), Packet::Down(message));
                }
                Action::TellServer(to, message) => {
                    if self.servers[to.0 as usize].is_some() {
                        let to = Node::Server(to.0 as usize);
                        self.send(me, to, Packet::PeerServer(message));
                    }
                }
                Action::Load(pages) => {
                    let mut actions = Vec::new();
                    if let Some(server) = self.servers[server].as_mut() {
                        let data = vec![None; pages.count as usize];
                        server.loaded(pages, Some(data), &mut actions);
                    }
                    self.carry_out(server, actions);
                }
                Action::Save(pages, data) => {
                    for (page, data) in pages.iter().zip(data) {
                        self.save(server, page, data.unwrap_or(0));
                    }
                }
            }
        }
    }

    fn save(&mut self, server: usize, page: PageNumber, value: u32) {
        let stat = self.servers[server].as_ref().and_then(|it| it.stat(page));
        let (Some(home), Some(stat)) = (&mut self.home, stat) else {
            return;
        };
        let version = stat.version;
        let parcel = Parcel {
            page,
            version,
            value,
        };
        if server == 0 {
            home.kept[page.0 as usize] = (version, value);
            return;
        }
        home.unanswered.insert((server, page), parcel);
        self.send_parcel(server, parcel);
    }

    fn send_parcel(&mut self, from: usize, parcel: Parcel) {
        if let Some(epoch) = self.epoch(from) {
            let packet = Packet::Keep(epoch, parcel);
            self.send(Node::Pager(from), Node::Server(0), packet);
        }
    }

    /// What comes for a view that the home server has not heard of waits; of an earlier one it is
    /// worth nothing, and comes again.
    fn home_hears(&mut self, from: usize, sent: Epoch, parcel: Parcel) {
        let (Some(home), Some(server)) = (&mut self.home, &mut self.servers[0]) else {
            return;
        };
        if sent > server.epoch() {
            let link = (Node::Pager(from), Node::Server(0));
            let queue = self.links.entry(link).or_default();
            return queue.push_front(Packet::Keep(sent, parcel));
        }
        if sent < server.epoch() {
            return;
        }
        let (page, version) = (parcel.page, parcel.version);
        let kept = &mut home.kept[page.0 as usize];
        if version > kept.0 {
            *kept = (version, parcel.value);
            server.paged_out(page, version, Some(parcel.value));
        }
        if home.unanswered.get(&(from, page)) == Some(&parcel) {
            home.unanswered.remove(&(from, page));
        }
    }

    /// Whatever is lost, it is nothing that is kept.
    fn check_kept(&mut self) {
        let kept = self.home.iter().flat_map(|home| &home.kept);
        if kept
            .zip(&self.latest)
            .any(|(kept, latest)| kept.1 > *latest)
        {
            self.break_with("something older came after what is kept");
        }
    }

    fn kernel_hears(&mut self, kernel: usize, message: ToKernel<u32>) {
        match message {
            ToKernel::DataProvided {
                pages,
                data,
                access,
            } => {
                for (page, data) in pages.iter().zip(data) {
                    self.provided(kernel, page.0 as usize, data.unwrap_or(0), access);
                }
            }
            ToKernel::LockRequest {
                pages,
                lock: Lock::AllowWrite,
            } => {
                let page = pages.first.0 as usize;
                if self.kernels[kernel][page].access != Some(Access::Read) {
                    self.break_with("a kernel may write to a page that it does not have");
                }
                let value = self.kernels[kernel][page].value;
                self.provided(kernel, page, value, Access::Write);
            }
            ToKernel::LockRequest {
                pages,
                lock: Lock::Flush,
            } => self.flush(kernel, pages),
            ToKernel::DataError { pages } => {
                self.kernels[kernel][pages.first.0 as usize].wants = None;
            }
        }
        self.check();
    }

    fn provided(&mut self, kernel: usize, page: usize, value: u32, access: Access) {
        let cached = &mut self.kernels[kernel][page];
        let wanted = cached.wants;
        cached.value = value;
        cached.access = Some(access);
        cached.dirty = false;
        if wanted.is_none() {
            self.break_with("a kernel got a page that it did not want");
        }
        if wanted == Some(Access::Read) || access == Access::Write {
            self.kernels[kernel][page].wants = None;
        }
        if access == Access::Write && self.eager {
            self.write(kernel, page);
        }
    }

    /// A kernel that may write to a page does.
    pub fn write(&mut self, kernel: usize, page: usize) {
        self.check();
        let cached = &mut self.kernels[kernel][page];
        cached.value += 1;
        cached.dirty = true;
        self.latest[page] += 1;
    }

    fn up(&mut self, kernel: usize, message: FromKernel<u32>) {
        let server = Node::Server(self.server_of(kernel));
        self.send(Node::Kernel(kernel), server, Packet::Up(message));
    }

    fn flush(&mut self, kernel: usize, pages: Pages) {
        let cached = &mut self.kernels[kernel][pages.first.0 as usize];
        let (value, dirty) = (cached.value, cached.dirty);
        cached.access = None;
        cached.dirty = false;
        if dirty {
            let data = vec![Some(value)];
            self.up(kernel, FromKernel::DataWrite { pages, data });
        }
        self.up(kernel, FromKernel::LockCompleted { pages });
    }

    /// Whether a kernel would fault.
    pub fn would_fault(&self, kernel: usize, page: usize, access: Access) -> bool {
        let cached = self.kernels[kernel][page];
        let has = cached.access.is_some_and(|has| has >= access);
        let server = self.server_of(kernel);
        let serves = self.servers[server].is_some() && !self.ending.contains_key(&server);
        serves && cached.wants.is_none() && !has
    }

    /// A program touches a page that its kernel has not.
    pub fn fault(&mut self, kernel: usize, page: usize, access: Access) {
        let cached = &mut self.kernels[kernel][page];
        cached.wants = Some(access);
        let pages = Pages::one(PageNumber(page as u64));
        let message = match cached.access {
            Some(Access::Read) => FromKernel::DataUnlock { pages },
            _ => FromKernel::DataRequest { pages, access },
        };
        self.up(kernel, message);
        self.settle();
    }

    /// A kernel gives a page back that it has written.
    pub fn page_out(&mut self, kernel: usize, page: usize) {
        let cached = &mut self.kernels[kernel][page];
        if !cached.dirty || cached.wants.is_some() {
            return;
        }
        cached.access = None;
        cached.dirty = false;
        let data = vec![Some(cached.value)];
        let pages = Pages::one(PageNumber(page as u64));
        self.up(kernel, FromKernel::DataWrite { pages, data });
        self.settle();
    }

    /// A kernel forgets a page that it may only read.
    pub fn forget(&mut self, kernel: usize, page: usize) {
        let cached = &mut self.kernels[kernel][page];
        if cached.access == Some(Access::Read) && cached.wants.is_none() {
            cached.access = None;
        }
    }

    /// A server and its kernels are gone; what it sent before may still come.
    pub fn crash(&mut self, server: usize) {
        self.servers[server] = None;
        for kernel in (server..self.kernels.len()).step_by(self.servers.len()) {
            self.kernels[kernel].fill(Cached::default());
            self.links.retain(|&(from, to), _| {
                from != Node::Kernel(kernel) && to != Node::Kernel(kernel)
            });
        }
        self.links.retain(|&(_, to), _| to != Node::Server(server));
        if let Some(home) = &mut self.home {
            home.unanswered.retain(|(from, _), _| *from != server);
        }
        self.views.push(self.alive());
    }

    /// Whether nothing is lost with a kernel.
    pub fn has_written_nothing(&self, kernel: usize) -> bool {
        let link = (Node::Kernel(kernel), Node::Server(self.server_of(kernel)));
        let writable = |page: &Cached| page.access == Some(Access::Write);
        let giving_back =
            |packet: &Packet| matches!(packet, Packet::Up(FromKernel::DataWrite { .. }));
        !self.kernels[kernel].iter().any(writable)
            && !self
                .links
                .get(&link)
                .is_some_and(|queue| queue.iter().any(giving_back))
    }

    /// A kernel's session ends; it drops what it has.
    pub fn lose_kernel(&mut self, kernel: usize) {
        let server = self.server_of(kernel);
        let nothing_lost = self.has_written_nothing(kernel);
        self.kernels[kernel].fill(Cached::default());
        self.links
            .retain(|&(from, to), _| from != Node::Kernel(kernel) && to != Node::Kernel(kernel));
        for page in 0..self.latest.len() {
            if !nothing_lost {
                self.latest[page] = self.newest(page);
            }
        }
        self.check_kept();
        let mut actions = Vec::new();
        if let Some(server) = self.servers[server].as_mut() {
            server.gone(Client::Kernel(KernelId(kernel as u64)), &mut actions);
        }
        self.carry_out(server, actions);
        self.settle();
    }

    pub fn alive(&self) -> BTreeSet<ServerId> {
        let alive = (0..self.servers.len()).filter(|&server| self.servers[server].is_some());
        alive.map(|server| ServerId(server as u64)).collect()
    }

    pub fn epoch(&self, server: usize) -> Option<Epoch> {
        self.servers[server].as_ref().map(Distributed::epoch)
    }

    /// Whether there is a view that a server has not heard of.
    pub fn is_behind(&self, server: usize) -> bool {
        self.epoch(server)
            .is_some_and(|epoch| epoch.0 < self.views.len() as u64)
    }

    /// A server hears of its next view. When the last one has, the newest contents that are
    /// left are the latest.
    pub fn new_view(&mut self, server: usize) {
        let Some(Epoch(last)) = self.epoch(server) else {
            return;
        };
        let epoch = Epoch(last + 1);
        let members = self.views[last as usize].clone();
        let last = (0..self.servers.len())
            .filter(|&other| other != server)
            .all(|other| self.epoch(other).is_none_or(|has| has >= epoch));
        if last {
            for page in 0..self.latest.len() {
                let newest = self.newest(page);
                if self.is_orderly && newest != self.latest[page] {
                    self.break_with("an update is lost, though all servers ended in order");
                }
                self.latest[page] = newest;
            }
            self.check_kept();
        }
        let mut actions = Vec::new();
        let result = match self.servers[server].as_mut() {
            Some(server) => server.new_view(epoch, members, &mut actions),
            None => return,
        };
        if result.is_err() {
            self.break_with("a view was missed");
        }
        self.carry_out(server, actions);
        let unanswered = self.home.iter().flat_map(|home| &home.unanswered);
        let of_it = unanswered.filter(|((from, _), _)| *from == server);
        let again: Vec<Parcel> = of_it.map(|(_, parcel)| *parcel).collect();
        for parcel in again {
            self.send_parcel(server, parcel);
        }
        self.settle();
    }

    fn newest(&self, page: usize) -> u32 {
        let number = PageNumber(page as u64);
        let servers = self.servers.iter().flatten();
        let contents = servers.filter_map(|server| server.pages.get(number)?.contents?);
        let cached = self.kernels.iter().map(|kernel| kernel[page]);
        let kernels = cached
            .filter(|page| page.access.is_some())
            .map(|page| page.value);
        let flying = self
            .links
            .values()
            .flatten()
            .filter_map(|packet| match packet {
                Packet::Up(FromKernel::DataWrite { pages, data }) if pages.first == number => {
                    data[0]
                }
                _ => None,
            });
        contents.chain(kernels).chain(flying).max().unwrap_or(0)
    }

    /// Single writer or readers, all of the latest version.
    pub fn check(&mut self) {
        for page in 0..self.latest.len() {
            let cached: Vec<Cached> = self.kernels.iter().map(|kernel| kernel[page]).collect();
            let copies = cached.iter().filter(|page| page.access.is_some()).count();
            if copies > 1 && cached.iter().any(|page| page.access == Some(Access::Write)) {
                self.break_with("a page has a writer and another writer or reader");
            }
            let latest = self.latest[page];
            if cached
                .iter()
                .any(|page| page.access.is_some() && page.value != latest)
            {
                self.break_with("a kernel has a version that is not the latest");
            }
        }
    }

    /// Where nothing is under way any more, nobody may wait.
    pub fn check_quiet(&mut self) {
        let is_served = |kernel: usize| !self.ending.contains_key(&self.server_of(kernel));
        let waits = |kernel: &Vec<Cached>| kernel.iter().any(|page| page.wants.is_some());
        let mut kernels = self.kernels.iter().enumerate();
        if self.links.is_empty() && kernels.any(|(it, kernel)| is_served(it) && waits(kernel)) {
            self.break_with("a fault is never answered");
        }
    }

    /// Brings all that is under way, the links in turn.
    pub fn drain(&mut self) {
        while !self.links.is_empty() && self.broken.is_none() {
            for link in self.busy() {
                self.deliver(link);
            }
        }
        self.check_quiet();
    }
}
