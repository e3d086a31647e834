//! Machines, sessions, servers and wires. Each thing that can happen is one [`Step`].
//!
//! A machine has a session with one server: all with the only one, or each with its own.
//! A session and a wire are in order, each message once. When one breaks, what was under way
//! is lost, and both sides are told: a machine at once, its server at any time after that; two
//! servers by a view with the same members, before which they say nothing to each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::machine::{Machine, Outcome, Wrong};
use super::server::Server;
use crate::dsm::message::{
    Access, Client, FromKernel, KernelId, PageNumber, Pages, ServerId, ToKernel,
};
use crate::dsm::scheduler::Action;
use crate::dsm::scheduler::distributed::Message;

/// What there is, and what may happen how often.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) pages: usize,
    /// The pages of the scheduler that a page of each machine has.
    pub(super) together: Vec<u32>,
    /// The most pages that a cache asks for ahead.
    pub(super) ahead: u32,
    /// Touches that fault, of all machines together.
    pub(super) accesses: u8,
    /// Threads of a machine that wait at the same time.
    pub(super) threads: usize,
    /// Pages that caches give up on their own.
    pub(super) evictions: u8,
    /// Machines that crash and start anew, with nothing.
    pub(super) crashes: u8,
    /// Sessions between machines and servers that break.
    pub(super) cuts: u8,
    /// Wires between servers that break.
    pub(super) breaks: u8,
    /// Servers of which one may crash, with its machine, for good.
    pub(super) mortal: Vec<usize>,
    /// Caches keep a page for a while before they obey a flush.
    pub(super) holds: bool,
    /// Messages between machines and servers take no time.
    pub(super) near: bool,
    /// What was sent before a session broke may arrive after that, and the backer takes time.
    pub(super) late: bool,
    /// Machines that differ in nothing touch something for the first time in their order.
    pub(super) alike: bool,
    pub(super) wrong: Wrong,
}

/// A session of a machine with its server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Session {
    machine: usize,
    /// It goes on, as far as the machine knows. If not, the server is told when it has heard
    /// what is still under way.
    is_live: bool,
    up: VecDeque<FromKernel<u8>>,
    down: VecDeque<ToKernel<u8>>,
}

/// How often things may still happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Left {
    accesses: u8,
    evictions: u8,
    crashes: u8,
    cuts: u8,
    breaks: u8,
    mortal: Vec<usize>,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// A thread of a machine touches a page.
    Touch(usize, usize, Access),
    /// A cache gives up a page.
    Evict(usize, usize),
    /// The next message of a session arrives at its server, or its end.
    Up(KernelId),
    /// The next message of a session arrives at its machine.
    Down(KernelId),
    /// Flushes that waited are obeyed.
    Pass(usize),
    /// The next message of a wire arrives.
    Wire(usize, usize),
    /// The backer answers a server's oldest load.
    Load(usize),
    /// A machine crashes and starts anew; of what it sent so much still arrives.
    Crash(usize, usize),
    /// A session breaks; of what the machine sent so much still arrives.
    Cut(usize, usize),
    /// There is a new session.
    Link(usize),
    /// The wire between two servers breaks.
    Break(usize, usize),
    /// A server and its machine crash.
    Die(usize),
    /// A server hears of its next view.
    View(usize),
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World<S> {
    /// `None`: crashed.
    servers: Vec<Option<S>>,
    machines: Vec<Machine>,
    /// By the number of the kernel: the machine's, and the number of machines more for each
    /// session before.
    sessions: BTreeMap<KernelId, Session>,
    wires: BTreeMap<(usize, usize), VecDeque<Message<u8>>>,
    /// The view in which a server noticed that its wire to another broke.
    broken: BTreeMap<(usize, usize), u64>,
    /// The members of each view but the first.
    views: Vec<BTreeSet<ServerId>>,
    loads: BTreeMap<usize, VecDeque<Pages>>,
    backer: Vec<u8>,
    /// What each page holds, in the one order in which all touches happen.
    truth: Vec<u8>,
    /// What was given back last and is not lost.
    given_back: Vec<u8>,
    left: Left,
    /// What a server cannot make sense of.
    confused: Option<&'static str>,
}

impl<S: Server> World<S> {
    pub(super) fn new(servers: Vec<S>, setup: &Setup) -> World<S> {
        let machines = setup.together.iter();
        let machines = machines.map(|it| Machine::new(setup, *it));
        let machines: Vec<_> = machines.collect();
        let sessions = (0..machines.len()).map(|at| (KernelId(at as u64), Session::new(at)));
        World {
            servers: servers.into_iter().map(Some).collect(),
            sessions: sessions.collect(),
            machines,
            wires: BTreeMap::new(),
            broken: BTreeMap::new(),
            views: Vec::new(),
            loads: BTreeMap::new(),
            backer: vec![0; setup.pages],
            truth: vec![0; setup.pages],
            given_back: vec![0; setup.pages],
            left: Left {
                accesses: setup.accesses,
                evictions: setup.evictions,
                crashes: setup.crashes,
                cuts: setup.cuts,
                breaks: setup.breaks,
                mortal: setup.mortal.clone(),
            },
            confused: None,
        }
    }

    /// Everything that can happen now.
    pub(super) fn steps(&self, setup: &Setup, steps: &mut Vec<Step>) {
        self.due(steps);
        for (at, machine) in self.machines.iter().enumerate() {
            if self.server_of(at).is_some() {
                self.touches(at, setup, steps);
                self.losses(at, machine, setup, steps);
            }
        }
        for (from, to) in self.pairs().filter(|_| self.left.breaks > 0) {
            steps.push(Step::Break(from, to));
        }
        let has_peer_server = self.servers.iter().flatten().count() > 1;
        let mortal = self.left.mortal.iter().filter(|_| has_peer_server);
        steps.extend(mortal.map(|server| Step::Die(*server)));
    }

    /// What happens by itself, sooner or later.
    fn due(&self, steps: &mut Vec<Step>) {
        for (&id, session) in &self.sessions {
            if !session.up.is_empty() || !session.is_live {
                steps.push(Step::Up(id));
            }
            if !session.down.is_empty() {
                steps.push(Step::Down(id));
            }
        }
        for (at, machine) in self.machines.iter().enumerate() {
            if machine.keeps_on() {
                steps.push(Step::Pass(at));
            }
            if !machine.is_linked() {
                steps.push(Step::Link(at));
            }
        }
        steps.extend(self.wires.keys().map(|(from, to)| Step::Wire(*from, *to)));
        steps.extend(self.loads.keys().map(|server| Step::Load(*server)));
        let servers = self.servers.iter().enumerate();
        let behind = servers.filter_map(|(at, server)| {
            let view = server.as_ref()?.view();
            (view < self.views.len() as u64).then_some(Step::View(at))
        });
        steps.extend(behind);
    }

    fn touches(&self, at: usize, setup: &Setup, steps: &mut Vec<Step>) {
        let machine = &self.machines[at];
        let is_like_it = |other: &usize| setup.together[*other] == setup.together[at];
        let before = (0..at).filter(is_like_it);
        let is_early = setup.alike && before.into_iter().any(|it| !self.machines[it].began);
        if self.left.accesses == 0 || is_early {
            return;
        }
        for page in 0..setup.pages {
            for access in [Access::Read, Access::Write] {
                if machine.would_fault(page, access, setup.threads) {
                    steps.push(Step::Touch(at, page, access));
                }
            }
        }
    }

    /// What goes wrong with a machine. One that has touched nothing has nothing to lose.
    fn losses(&self, at: usize, machine: &Machine, setup: &Setup, steps: &mut Vec<Step>) {
        if !machine.began || !machine.is_linked() {
            return;
        }
        if self.left.evictions > 0 {
            let pages = 0..self.truth.len();
            let pages = pages.filter(|page| machine.may_evict(*page));
            steps.extend(pages.map(|page| Step::Evict(at, page)));
        }
        let session = self
            .sessions
            .values()
            .find(|it| it.is_live && it.machine == at);
        let session = session.filter(|_| setup.late);
        let under_way = session.map_or(0, |session| session.up.len());
        for arrives in 0..=under_way {
            if self.left.crashes > 0 {
                steps.push(Step::Crash(at, arrives));
            }
            if self.left.cuts > 0 {
                steps.push(Step::Cut(at, arrives));
            }
        }
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let there = |at: &usize| self.servers[*at].is_some();
        let all = 0..self.servers.len();
        let pairs = all.flat_map(|from| (from + 1..self.servers.len()).map(move |to| (from, to)));
        pairs.filter(move |(from, to)| there(from) && there(to))
    }

    /// The server of a machine, if it is there.
    fn server_of(&self, machine: usize) -> Option<usize> {
        let server = machine % self.servers.len();
        self.servers[server].as_ref().map(|_| server)
    }

    /// Something happens.
    pub(super) fn step(&mut self, step: Step, setup: &Setup) {
        match step {
            Step::Touch(at, page, access) => {
                self.left.accesses -= 1;
                self.with(at, |machine| machine.touch(page, access));
            }
            Step::Evict(at, page) => {
                self.left.evictions -= 1;
                self.with(at, |machine| machine.evict(page));
            }
            Step::Up(id) => self.up(id),
            Step::Down(id) => self.down(id),
            Step::Pass(at) => self.with(at, Machine::pass),
            Step::Wire(from, to) => self.wire(from, to),
            Step::Load(server) => self.load(server),
            Step::Crash(at, arrives) => {
                self.left.crashes -= 1;
                self.crash(at, arrives, setup);
            }
            Step::Cut(at, arrives) => {
                self.left.cuts -= 1;
                self.end_session(at, arrives);
                self.with(at, Machine::lose_session);
            }
            Step::Link(at) => {
                self.open_session(at);
                self.with(at, Machine::new_session);
            }
            Step::Break(a, b) => {
                self.left.breaks -= 1;
                self.break_wire(a, b);
            }
            Step::Die(server) => self.die(server, setup),
            Step::View(server) => self.enter_view(server),
        }
        self.settle(setup);
    }

    /// Brings what takes no time.
    fn settle(&mut self, setup: &Setup) {
        loop {
            let loads = self.loads.keys().next().filter(|_| !setup.late);
            let sessions = self.sessions.iter().filter(|_| setup.near);
            let mut busy = sessions.filter(|(_, it)| !it.is_empty());
            if let Some(server) = loads.copied() {
                self.load(server);
            } else if let Some((&id, session)) = busy.next() {
                match session.down.is_empty() {
                    true => self.up(id),
                    false => self.down(id),
                }
            } else {
                return;
            }
        }
    }

    /// A machine does something, and what comes of it is carried out.
    fn with(&mut self, at: usize, act: impl FnOnce(&mut Machine) -> Outcome) {
        let outcome = act(&mut self.machines[at]);
        for page in outcome.written {
            self.truth[page] += 1;
        }
        for page in outcome.lost {
            self.truth[page] = self.given_back[page];
        }
        let mut sessions = self.sessions.values_mut();
        let session = sessions.find(|it| it.is_live && it.machine == at);
        match session {
            Some(session) => session.up.extend(outcome.sent),
            None if !outcome.sent.is_empty() => {
                self.confused = Some("something is sent without a session");
            }
            None => {}
        }
    }

    fn up(&mut self, id: KernelId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let server = session.machine % self.servers.len();
        let Some(message) = session.up.pop_front() else {
            self.sessions.remove(&id);
            self.serve(server, |server, actions| {
                server.gone(Client::Kernel(id), actions);
            });
            return;
        };
        if let FromKernel::DataWrite { pages, data } = &message {
            for (page, value) in pages.iter().zip(data) {
                self.given_back[page.0 as usize] = value.unwrap_or(0);
            }
        }
        let mut outcome = Ok(());
        self.serve(server, |server, actions| {
            outcome = server.kernel_says(id, message, actions);
        });
        if let Err(nonsense) = outcome {
            self.confused = Some(nonsense.0);
        }
    }

    fn down(&mut self, id: KernelId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let machine = session.machine;
        if let Some(message) = session.down.pop_front() {
            self.with(machine, |machine| machine.hear(message));
        }
    }

    fn wire(&mut self, from: usize, to: usize) {
        let Some(wire) = self.wires.get_mut(&(from, to)) else {
            return;
        };
        let message = wire.pop_front();
        if wire.is_empty() {
            self.wires.remove(&(from, to));
        }
        let mut outcome = Ok(());
        self.serve(to, |server, actions| {
            if let Some(message) = message {
                outcome = server.peer_server_says(ServerId(from as u64), message, actions);
            }
        });
        if let Err(nonsense) = outcome {
            self.confused = Some(nonsense.0);
        }
    }

    fn load(&mut self, server: usize) {
        let Some(loads) = self.loads.get_mut(&server) else {
            return;
        };
        let pages = loads.pop_front();
        if loads.is_empty() {
            self.loads.remove(&server);
        }
        if let Some(pages) = pages {
            let data = pages.iter().map(|page| Some(self.backer[page.0 as usize]));
            let data = Some(data.collect());
            self.serve(server, |server, actions| {
                server.loaded(pages, data, actions)
            });
        }
    }

    /// A server does something, and what it wants is done.
    fn serve(&mut self, at: usize, act: impl FnOnce(&mut S, &mut Vec<Action<u8>>)) {
        let Some(server) = self.servers[at].as_mut() else {
            return;
        };
        let mut actions = Vec::new();
        act(server, &mut actions);
        for action in actions {
            match action {
                Action::Tell(id, message) => {
                    let session = self.sessions.get_mut(&id);
                    if let Some(session) = session.filter(|session| session.is_live) {
                        session.down.push_back(message);
                    }
                }
                Action::TellServer(to, message) => self.tell(at, to.0 as usize, message),
                Action::Load(pages) => self.loads.entry(at).or_default().push_back(pages),
                // Servers that are joined keep nothing with a backer.
                Action::Save(..) if self.servers.len() > 1 => {}
                Action::Save(pages, data) => {
                    for (page, value) in pages.iter().zip(data) {
                        self.backer[page.0 as usize] = value.unwrap_or(0);
                    }
                }
            }
        }
    }

    fn tell(&mut self, from: usize, to: usize, message: Message<u8>) {
        let noticed = self.broken.get(&(from, to));
        let is_cut = noticed.is_some_and(|view| message.epoch.0 <= *view);
        if self.servers[to].is_some() && !is_cut {
            self.wires.entry((from, to)).or_default().push_back(message);
        }
    }

    fn crash(&mut self, at: usize, arrives: usize, setup: &Setup) {
        for page in (0..self.truth.len()).filter(|page| self.machines[at].is_writer(*page)) {
            self.truth[page] = self.given_back[page];
        }
        self.end_session(at, arrives);
        let together = setup.together[at];
        self.machines[at] = Machine::new(setup, together);
        self.machines[at].began = true;
        self.open_session(at);
    }

    /// Of what the machine sent so much still arrives; the rest is lost, both ways.
    fn end_session(&mut self, at: usize, arrives: usize) {
        let mut sessions = self.sessions.values_mut();
        let Some(session) = sessions.find(|it| it.is_live && it.machine == at) else {
            return;
        };
        session.is_live = false;
        session.down.clear();
        for message in session.up.split_off(arrives) {
            if let FromKernel::DataWrite { pages, .. } = message {
                for page in pages.iter().map(|page| page.0 as usize) {
                    self.truth[page] = self.given_back[page];
                }
            }
        }
    }

    fn open_session(&mut self, at: usize) {
        let mut id = KernelId(at as u64);
        while self
            .sessions
            .keys()
            .any(|it| *it >= id && it.0 as usize % self.machines.len() == at)
        {
            id.0 += self.machines.len() as u64;
        }
        self.sessions.insert(id, Session::new(at));
    }

    /// What is under way is lost, and so is what either says before it hears of a view.
    fn break_wire(&mut self, a: usize, b: usize) {
        for (from, to) in [(a, b), (b, a)] {
            self.wires.remove(&(from, to));
            let view = self.servers[from].as_ref().map_or(0, Server::view);
            self.broken.insert((from, to), view);
        }
        self.views.push(self.members());
    }

    fn members(&self) -> BTreeSet<ServerId> {
        let servers = self.servers.iter().enumerate();
        let there = servers.filter(|(_, server)| server.is_some());
        there.map(|(at, _)| ServerId(at as u64)).collect()
    }

    /// A server and its machine are gone. What it said before may still come.
    fn die(&mut self, server: usize, setup: &Setup) {
        self.left.mortal.clear();
        self.servers[server] = None;
        self.loads.remove(&server);
        self.wires.retain(|(_, to), _| *to != server);
        let others = self.servers.len();
        self.sessions.retain(|_, it| it.machine % others != server);
        for machine in (server..self.machines.len()).step_by(others) {
            self.machines[machine] = Machine::new(setup, 1);
        }
        self.views.push(self.members());
    }

    /// When the last member has heard that a server is gone, the newest contents that are
    /// left are what a page holds.
    fn enter_view(&mut self, at: usize) {
        let Some(last) = self.servers[at].as_ref().map(Server::view) else {
            return;
        };
        let members = self.views[last as usize].clone();
        let before = last
            .checked_sub(1)
            .map(|view| self.views[view as usize].len());
        let has_lost = members.len() < before.unwrap_or(self.servers.len());
        let others = self.servers.iter().enumerate();
        let mut others = others.filter(|(other, _)| *other != at);
        let is_last = others.all(|(_, it)| it.as_ref().is_none_or(|it| it.view() > last));
        if has_lost && is_last {
            for page in 0..self.truth.len() {
                self.fall_back(page);
            }
        }
        let mut entered = true;
        self.serve(at, |server, actions| {
            entered = server.enters(last + 1, members, actions);
        });
        self.broken
            .retain(|(from, _), view| *from != at || *view > last);
        if !entered {
            self.confused = Some("a view was missed");
        }
    }

    fn fall_back(&mut self, page: usize) {
        let number = PageNumber(page as u64);
        let contents = self.servers.iter().flatten();
        let contents = contents.filter_map(|server| server.latest(number)).max();
        let memory = self
            .machines
            .iter()
            .filter_map(|machine| machine.held(page));
        let memory = memory.map(|held| held.value).max();
        let up = self.sessions.values().flat_map(|session| &session.up);
        let under_way = up.filter_map(|message| match message {
            FromKernel::DataWrite { pages, data } if pages.contains(number) => {
                data[(page as u64 - pages.first.0) as usize]
            }
            _ => None,
        });
        self.given_back[page] = contents.unwrap_or(0);
        self.truth[page] = contents.max(memory).max(under_way.max()).unwrap_or(0);
    }

    /// At any time a page has one writer or any number of readers, as the machines see it.
    pub(super) fn one_writer_or_readers(&self) -> bool {
        (0..self.truth.len()).all(|page| {
            let machines = self.machines.iter();
            let copies = machines
                .clone()
                .filter(|it| it.held(page).is_some())
                .count();
            copies <= 1 || !machines.into_iter().any(|it| it.is_writer(page))
        })
    }

    /// Whoever reads, reads what was written last.
    pub(super) fn copies_are_current(&self) -> bool {
        let is_current = |machine: &Machine, page: usize| {
            let held = machine.held(page);
            held.is_none_or(|held| held.value == self.truth[page])
        };
        let mut machines = self.machines.iter();
        machines.all(|machine| (0..self.truth.len()).all(|page| is_current(machine, page)))
    }

    /// What makes no sense, if anything.
    pub(super) fn nonsense(&self) -> Option<&'static str> {
        let confused = self.machines.iter().find_map(|machine| machine.confused);
        self.confused.or(confused)
    }

    /// Whether nothing happens any more by itself.
    pub(super) fn is_quiet(&self) -> bool {
        let mut due = Vec::new();
        self.due(&mut due);
        due.is_empty()
    }

    pub(super) fn somebody_waits(&self) -> bool {
        self.machines.iter().any(Machine::waits)
    }

    /// Whether what a page holds is at its writer, or with the backer.
    pub(super) fn nothing_is_lost(&self) -> bool {
        (0..self.truth.len()).all(|page| {
            let has_writer = self.machines.iter().any(|it| it.is_writer(page));
            has_writer || self.servers.len() > 1 || self.backer[page] == self.truth[page]
        })
    }
}

impl Session {
    fn new(machine: usize) -> Session {
        Session {
            machine,
            is_live: true,
            up: VecDeque::new(),
            down: VecDeque::new(),
        }
    }

    /// Whether nothing is under way, also no end.
    fn is_empty(&self) -> bool {
        self.is_live && self.up.is_empty() && self.down.is_empty()
    }
}
