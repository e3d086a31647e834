//! A process that uses one object: what the thread of a client does, with the real automaton
//! of the cache and real links, and plain memory in the place of userfaultfd. Its threads
//! read and write words.

use std::collections::BTreeMap;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_core::dsm::kernel::{Action, Failure, Kernel, Settings, Space, Time, hold_for};
use quire_core::dsm::message::{Access, FromKernel, KernelId, PageNumber, Pages};
use quire_core::units::Bytes;
use quire_dsm::link::Established;
use quire_dsm::link::turn::{Closed, Handler, LinkId, Links};
use quire_dsm::wire::control::{
    Answer, Failure as Refused, FailureKind, Handle, MachineCode, Name, Object, PageSize, Reason,
    Refusal, Request, RequestId, Rights, SchedulerKind, Welcome,
};
use quire_dsm::wire::{Contents, Control};

use crate::checker::{Kind, Operation};
use crate::joined::office::Office;
use crate::net::{self, Hub, clock};
use crate::random::Random;
use crate::world::Shared;

pub const PAGES: u64 = 3;
/// The words of each page that are used.
const USED: u64 = 2;
const PAGE: usize = 4096;
const THREADS: usize = 2;
/// Between two attempts to reach the server.
const AGAIN: Duration = Duration::from_millis(40);
const SPACE: Space = Space(0);

/// The page of an object that a word of a history is in.
pub const fn page_of(word: u64) -> u64 {
    word / USED
}

/// How the processes of a run behave.
#[derive(Clone, Debug)]
pub struct Manner {
    pub scheduler: SchedulerKind,
    /// Pages that one page of this machine has.
    pub together: u32,
    /// Pages that are asked for ahead.
    pub ahead: u32,
    /// About so many milliseconds are between two accesses of a thread.
    pub pause: u64,
    /// Words are written once in so many accesses.
    pub writes: u64,
    /// Faults wait so long for their page, and for a new link.
    pub patience: Duration,
    pub reconnect: Duration,
    /// The hosts of servers that they try, in this order.
    pub servers: Vec<String>,
    /// What several servers share, where there are several.
    pub joined: Option<Arc<Office>>,
}

/// What a thread is at.
#[derive(Clone, Copy, Debug)]
enum Thread {
    /// It does something else until then.
    Rests(Instant),
    /// It will try to access its word then.
    Tries(Wish, Instant),
    /// It has touched the page and waits.
    Waits(Wish),
}

/// What a thread wants.
#[derive(Clone, Copy, Debug)]
struct Wish {
    kind: Kind,
    word: u64,
    value: u64,
    begin: u64,
}

impl Wish {
    const fn page(self) -> u64 {
        self.word / USED
    }

    const fn access(self) -> Access {
        match self.kind {
            Kind::Read => Access::Read,
            Kind::Write => Access::Write,
        }
    }
}

/// Whose answer it is.
enum Awaited {
    /// Asked in this moment of the history.
    Open(u64),
    Discard,
    Create,
    Close,
    /// What was written over the link before may be brought.
    Claim,
    Settle,
}

/// What was had in a session with the server, and it may not have.
#[derive(Default)]
struct Had {
    /// What the server called this side's link, and the object there.
    session: Option<(u64, Handle)>,
    /// The server's incarnation.
    run: u64,
    /// Pages that were written when the link broke.
    written: BTreeMap<u64, Vec<u8>>,
    /// Pages that were given back, in this order.
    given_back: Vec<(u64, Vec<u8>)>,
    /// The sessions of the history of which something may be lost.
    open: Vec<u64>,
    /// What the object is called over the new link, while all that is brought.
    next: Option<Handle>,
}

/// A page of the memory.
struct Page {
    bytes: Vec<u8>,
    /// Whether something is there.
    is_here: bool,
    /// What the mapping allows.
    shown: Option<Access>,
}

pub struct Program {
    host: usize,
    manner: Manner,
    world: Shared,
    hub: Arc<Hub>,
    random: Random,
    epoch: Instant,
    /// The server's incarnation on whose object this works; with several servers, which of all
    /// objects it is.
    run: u64,
    /// The number in the object's name, where there are several servers: another one takes its
    /// place where all servers of the object are gone.
    name: u64,
    /// How the object is asked for when it was opened once.
    exact: Option<Name>,
    /// Which server is tried.
    turn: usize,
    /// When the next one is tried.
    onward: Option<Instant>,
    session: u64,
    link: Option<LinkId>,
    is_up: bool,
    again: Option<Instant>,
    handle: Option<Handle>,
    awaited: BTreeMap<RequestId, Awaited>,
    last_request: u64,
    kernel: Option<Kernel>,
    /// By which number the server knows this side.
    number: u64,
    had: Had,
    pages: Vec<Page>,
    threads: [Thread; THREADS],
    is_leaving: bool,
    over: Option<String>,
}

impl Program {
    pub fn new(host: usize, seed: u64, manner: &Manner, hub: &Arc<Hub>, world: &Shared) -> Program {
        let session = world.borrow_mut().session();
        let (name, run) = (world.borrow().run, world.borrow().run);
        let now = clock();
        let page = || Page {
            bytes: vec![0; PAGE],
            is_here: false,
            shown: None,
        };
        Program {
            host,
            manner: manner.clone(),
            world: Shared::clone(world),
            hub: Arc::clone(hub),
            random: Random::new(seed, session),
            epoch: now,
            run,
            name,
            exact: None,
            turn: 0,
            onward: None,
            session,
            link: None,
            is_up: false,
            again: Some(now),
            handle: None,
            awaited: BTreeMap::new(),
            last_request: 0,
            kernel: None,
            number: 0,
            had: Had::default(),
            pages: (0..PAGES).map(|_| page()).collect(),
            threads: [Thread::Rests(now); THREADS],
            is_leaving: false,
            over: None,
        }
    }

    pub const fn is_over(&self) -> bool {
        self.over.is_some()
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        self.world
            .borrow_mut()
            .note(format_args!("c{} {what}", self.host));
    }

    fn time(&self) -> Time {
        Time(0) + (clock() - self.epoch)
    }

    /// The name of the object.
    fn object(&self) -> Name {
        let name = match self.manner.joined {
            Some(_) => format!("words-{}", self.name),
            None => "words".into(),
        };
        name.parse().expect("a name")
    }

    /// By what the object is asked for.
    fn asked(&self) -> Name {
        self.exact.clone().unwrap_or_else(|| self.object())
    }

    fn ask(&mut self, links: &mut Links, request: Request, awaited: Awaited) {
        let Some(link) = self.link.filter(|_| self.is_up) else {
            return;
        };
        self.last_request += 1;
        let id = RequestId(self.last_request);
        links.send(link, Control::Request { id, request });
        self.awaited.insert(id, awaited);
    }

    fn open(&mut self, links: &mut Links) {
        let since = self.world.borrow_mut().moment();
        let request = Request::Open {
            name: self.asked(),
            rights: Rights {
                read: true,
                write: true,
            },
        };
        self.ask(links, request, Awaited::Open(since));
    }

    /// The object is to leave its name to another one.
    fn discard(&mut self, links: &mut Links) {
        if let Some(name) = self.exact.clone() {
            self.note(format_args!("discards {name}"));
            self.ask(links, Request::Discard { name }, Awaited::Discard);
        }
    }

    /// Which object it is, where there are several servers. The key may be another one's than before,
    /// which was made when that was gone.
    fn found(&mut self, office: &Office, exact: Name, asked: u64) {
        let object = office.object(exact.as_str());
        let mut world = self.world.borrow_mut();
        let before = self.exact.replace(exact.clone());
        if before.as_ref().is_some_and(|before| *before != exact) {
            world.fail(format!("c{} gets {exact}, not {before:?}", self.host));
        }
        let is_removed = object.is_some_and(|object| world.was_removed(object, asked));
        if before.is_none() && is_removed {
            world.fail(format!("c{} gets {exact}, which was removed", self.host));
        }
        self.run = world.object(object);
    }

    fn create(&mut self, links: &mut Links) {
        let object = Object {
            name: self.object(),
            size: Bytes(PAGES * PAGE as u64),
            page_size: PageSize::BASE,
            scheduler: self.manner.scheduler,
            machine: MachineCode(0),
            tags: Vec::new(),
        };
        self.ask(links, Request::Create(object), Awaited::Create);
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::new(PAGES);
        settings.together = self.manner.together;
        settings.ahead = self.manner.ahead;
        settings.patience = self.manner.patience;
        settings.reconnect = self.manner.reconnect;
        settings
    }

    /// The object is open, for the first time or again.
    fn opened(&mut self, links: &mut Links, handle: Handle, name: Name) {
        let brings = !self.had.written.is_empty() || !self.had.given_back.is_empty();
        match self.had.session.filter(|_| brings && self.keeps()) {
            Some((session, object)) if self.had.run == self.run => {
                self.had.next = Some(handle);
                self.note(format_args!("brings what it wrote over link {session}"));
                let session = KernelId(session);
                let request = Request::Claim {
                    session,
                    object,
                    name,
                };
                self.ask(links, request, Awaited::Claim);
            }
            Some(_) => {
                self.is_settled(1);
                self.goes_on(links, handle);
            }
            None => {
                self.is_settled(0);
                self.goes_on(links, handle);
            }
        }
    }

    /// Whether it keeps what was written until the server has it.
    const fn keeps(&self) -> bool {
        self.manner.joined.is_none()
    }

    /// The server takes what was written.
    fn claimed(&mut self, links: &mut Links, object: Handle, (is_known, received): (bool, u64)) {
        let Some(link) = self.link else { return };
        let given_back = self.had.given_back.iter().skip(received as usize);
        let given_back = given_back.filter(|_| is_known).cloned();
        let written = self.had.written.iter();
        let written = written.map(|(page, bytes)| (*page, bytes.clone()));
        for (page, bytes) in given_back.chain(written) {
            let pages = Pages::one(PageNumber(page));
            let data = vec![Some(Contents::from(bytes))];
            let message = FromKernel::DataWrite { pages, data };
            links.send(link, Control::FromKernel { object, message });
        }
        let missing = 0;
        self.ask(links, Request::Settle { object, missing }, Awaited::Settle);
    }

    /// All was brought, but for so many pages, which this program is told.
    fn is_settled(&mut self, lost: u64) {
        let open = mem::take(&mut self.had.open);
        if lost > 0 {
            self.note(format_args!("is told that {lost} pages are lost"));
            let mut world = self.world.borrow_mut();
            open.into_iter().for_each(|session| world.loses(session));
        }
        self.had = Had::default();
    }

    fn is_settled_at(&mut self, links: &mut Links, lost: u64) {
        let next = self.had.next.take();
        self.is_settled(lost);
        if let Some(handle) = next {
            self.goes_on(links, handle);
        }
    }

    /// It goes on with the object.
    fn goes_on(&mut self, links: &mut Links, handle: Handle) {
        self.had.session = Some((self.number, handle));
        self.had.run = self.run;
        self.handle = Some(handle);
        self.onward = None;
        self.note(format_args!("has the object of server {}", self.run));
        self.world.borrow_mut().linked(self.host, true);
        if let Some(office) = &self.manner.joined {
            let server = office.member(self.server());
            self.world.borrow_mut().served(self.session, server);
        }
        if self.kernel.is_none() {
            self.kernel = Some(Kernel::new(self.settings()));
        } else {
            self.with(links, |kernel, _, actions| kernel.linked(actions));
        }
    }

    fn answered(&mut self, links: &mut Links, id: RequestId, answer: Result<Answer, Refused>) {
        let Some(awaited) = self.awaited.remove(&id) else {
            return;
        };
        match (awaited, answer) {
            (Awaited::Open(asked), Ok(Answer::Opened { object, exact, .. })) => {
                let name = exact.clone();
                if let Some(office) = self.manner.joined.clone() {
                    self.found(&office, exact, asked);
                }
                self.opened(links, object, name);
            }
            (
                Awaited::Claim,
                Ok(Answer::Claimed {
                    object,
                    is_known,
                    received,
                    is_shared: _,
                }),
            ) => self.claimed(links, object, (is_known, received)),
            (Awaited::Settle, Ok(Answer::Settled { lost })) => {
                self.is_settled_at(links, lost);
            }
            (Awaited::Open(_), Err(refused)) if refused.kind == FailureKind::NotFound => {
                match self.exact {
                    None => self.create(links),
                    // It went while this program was away.
                    Some(_) => self.note(format_args!("finds nothing: {}", refused.text)),
                }
            }
            (Awaited::Discard, Ok(_)) => {
                self.world.borrow_mut().removed(self.run);
            }
            (Awaited::Discard, Err(refused))
                if matches!(
                    refused.kind,
                    FailureKind::NotFound | FailureKind::Unavailable | FailureKind::Busy
                ) => {}
            (Awaited::Open(_), Err(refused)) if refused.kind == FailureKind::Unavailable => {
                self.refused(links, &refused.text);
            }
            (Awaited::Create, _) => self.open(links),
            (Awaited::Close, Ok(_)) => {
                self.over = Some("it is done".into());
                if let Some(link) = self.link {
                    links.close(link, "it is done");
                }
            }
            (_, other) => self
                .world
                .borrow_mut()
                .fail(format!("an answer that makes no sense: {other:?}")),
        }
    }

    /// A server does not open the object: the next one is asked. Where all that had the
    /// object are gone, another takes its place.
    fn refused(&mut self, links: &mut Links, why: &str) {
        let office = self.manner.joined.as_ref();
        let is_gone = office.is_some_and(|office| office.is_gone(self.asked().as_str()));
        self.note(format_args!("is refused {}: {why}", self.asked()));
        if why.contains("are gone") && !is_gone {
            let what = format!("c{}: {why}, which is not so", self.host);
            self.world.borrow_mut().fail(what);
        }
        if is_gone {
            let mut world = self.world.borrow_mut();
            world.run = world.run.max(self.name + 1);
            if self.kernel.is_none() {
                self.name = world.run;
            }
        }
        if let Some(link) = self.link {
            links.close(link, "another server is tried");
        }
    }

    /// The host of the server that is tried.
    fn server(&self) -> &str {
        &self.manner.servers[self.turn % self.manner.servers.len()]
    }

    /// Does something with the cache, and what it says.
    fn with(
        &mut self,
        links: &mut Links,
        act: impl FnOnce(&mut Kernel, Time, &mut Vec<Action<Contents>>),
    ) {
        let now = self.time();
        let mut actions = Vec::new();
        if let Some(kernel) = &mut self.kernel {
            act(kernel, now, &mut actions);
        }
        for action in actions {
            self.carry_out(links, action);
        }
    }

    fn send(&self, links: &mut Links, message: FromKernel<Contents>) {
        let to = self.link.filter(|_| self.is_up).zip(self.handle);
        self.note(format_args!("says {}", said(&message)));
        if let Some((link, object)) = to {
            links.send(link, Control::FromKernel { object, message });
        }
    }

    fn carry_out(&mut self, links: &mut Links, action: Action<Contents>) {
        match action {
            Action::Send(message) => {
                if let FromKernel::DataWrite { pages, data } = &message {
                    self.gives_back(*pages, data);
                }
                self.send(links, message);
            }
            Action::Fill {
                pages,
                data,
                access,
                space,
            } => {
                for (number, content) in pages.iter().zip(data) {
                    self.fill(number, content);
                    if space.is_some() {
                        self.show(number, access);
                    }
                }
            }
            Action::Show { pages, access, .. } => {
                pages.iter().for_each(|number| self.show(number, access));
            }
            Action::Allow { pages, .. } => {
                let pages = pages.iter();
                pages.for_each(|number| self.show(number, Access::Write));
            }
            Action::GiveBack(pages) => {
                let data: Vec<_> = pages.iter().map(|number| Some(self.take(number))).collect();
                self.gives_back(pages, &data);
                self.send(links, FromKernel::DataWrite { pages, data });
            }
            Action::Remove(pages) => pages.iter().for_each(|number| drop(self.take(number))),
            Action::RemoveAll => self.remove_all(),
            Action::Lost(pages) => {
                self.note(format_args!("had written {pages:?}"));
                for PageNumber(number) in pages.iter() {
                    let bytes = self.pages[number as usize].bytes.clone();
                    self.had.written.insert(number, bytes);
                }
            }
            Action::Fail { pages, why, .. } => self.fail(Some(pages), why),
            Action::FailAll(why) => {
                self.remove_all();
                self.fail(None, why);
            }
        }
    }

    fn gives_back(&mut self, pages: Pages, data: &[Option<Contents>]) {
        for (PageNumber(number), data) in pages.iter().zip(data) {
            let bytes = data
                .as_ref()
                .map_or_else(|| vec![0; PAGE], |data| data.to_vec());
            self.had.given_back.push((number, bytes));
        }
    }

    fn remove_all(&mut self) {
        for number in 0..PAGES {
            self.pages[number as usize].is_here = false;
            self.hide(number);
        }
    }

    fn fill(&mut self, number: PageNumber, content: Option<Contents>) {
        let page = &mut self.pages[number.0 as usize];
        if mem::replace(&mut page.is_here, true) {
            let what = format!("c{} fills page {} twice", self.host, number.0);
            self.world.borrow_mut().fail(what);
        }
        match content {
            Some(content) => page.bytes.copy_from_slice(&content),
            None => page.bytes.fill(0),
        }
    }

    /// The mapping allows something; who waits for the page tries again.
    fn show(&mut self, number: PageNumber, access: Access) {
        let page = &mut self.pages[number.0 as usize];
        if !page.is_here {
            let what = format!(
                "c{} is shown page {}, which is not there",
                self.host, number.0
            );
            return self.world.borrow_mut().fail(what);
        }
        page.shown = page.shown.max(Some(access));
        let shown = page.shown;
        self.note(format_args!("may {access:?} page {}", number.0));
        self.world
            .borrow_mut()
            .may(self.host, self.run, number.0, shown);
        for thread in &mut self.threads {
            if let Thread::Waits(wish) = *thread
                && wish.page() == number.0
            {
                let late = u64::from(self.random.once_in(4));
                *thread = Thread::Tries(wish, clock() + Duration::from_millis(late));
            }
        }
    }

    fn hide(&mut self, number: u64) {
        self.pages[number as usize].shown = None;
        self.world
            .borrow_mut()
            .may(self.host, self.run, number, None);
    }

    fn take(&mut self, number: PageNumber) -> Contents {
        let page = &mut self.pages[number.0 as usize];
        page.is_here = false;
        let contents = Contents::from(page.bytes.clone());
        self.hide(number.0);
        contents
    }

    /// Memory fails: whoever touches it ends the process, as SIGBUS does.
    fn fail(&mut self, pages: Option<Pages>, why: Failure) {
        self.note(format_args!("memory fails: {pages:?}: {why}"));
        let wants = |thread: &Thread| match thread {
            Thread::Waits(wish) | Thread::Tries(wish, _) => {
                pages.is_none_or(|pages| pages.contains(PageNumber(wish.page())))
            }
            Thread::Rests(_) => false,
        };
        let all = 0..self.threads.len();
        let wanting: Vec<usize> = all.filter(|at| wants(&self.threads[*at])).collect();
        self.world.borrow_mut().failed(self.host, &wanting, why);
        if !wanting.is_empty() || pages.is_none() && why != Failure::Ended {
            self.over.get_or_insert(why.to_string());
        }
    }

    /// Lets the threads run.
    fn run_threads(&mut self, links: &mut Links) {
        for number in 0..THREADS {
            if let Thread::Rests(until) = self.threads[number]
                && until <= clock()
                && !self.is_leaving
                && self.kernel.is_some()
            {
                self.choose(links, number);
            }
            if let Thread::Tries(wish, at) = self.threads[number]
                && at <= clock()
                && self.over.is_none()
            {
                self.attempt(links, number, wish);
            }
        }
    }

    /// A thread decides what to do next.
    fn choose(&mut self, links: &mut Links, number: usize) {
        if self.world.borrow().is_ending {
            return;
        }
        let word = self.random.below(PAGES * USED);
        if self.random.once_in(25) {
            let pages = Pages::one(PageNumber(word / USED));
            self.with(links, |kernel, _, actions| kernel.evict(pages, actions));
        }
        let rests = |thread: &Thread| matches!(thread, Thread::Rests(_));
        if self.random.once_in(150) && self.handle.is_some() && self.threads.iter().all(rests) {
            return self.leave(links);
        }
        if self.manner.joined.is_some() && self.random.once_in(150) && self.handle.is_some() {
            self.discard(links);
        }
        let kind = match self.random.once_in(self.manner.writes) {
            true => Kind::Write,
            false => Kind::Read,
        };
        let mut world = self.world.borrow_mut();
        let begin = world.moment();
        world.begins(
            (self.host, number),
            format!("c{}.{number} {kind:?} {word}", self.host),
        );
        let wish = Wish {
            kind,
            word,
            value: begin,
            begin,
        };
        self.threads[number] = Thread::Tries(wish, clock());
    }

    /// A thread touches its word: it succeeds, or there is a fault.
    fn attempt(&mut self, links: &mut Links, number: usize, wish: Wish) {
        let page = &mut self.pages[wish.page() as usize];
        if page.shown < Some(wish.access()) {
            self.threads[number] = Thread::Waits(wish);
            let (page, access) = (PageNumber(wish.page()), wish.access());
            return self.with(links, |kernel, now, actions| {
                kernel.fault(now, SPACE, page, access, actions);
            });
        }
        let at = (wish.word % USED) as usize * 8;
        let place = &mut page.bytes[at..at + 8];
        let value = match wish.kind {
            Kind::Read => u64::from_le_bytes(place.try_into().expect("8 bytes")),
            Kind::Write => {
                place.copy_from_slice(&wish.value.to_le_bytes());
                wish.value
            }
        };
        let mut world = self.world.borrow_mut();
        let operation = Operation {
            who: self.session,
            kind: wish.kind,
            word: self.run << 8 | wish.word,
            value,
            begin: wish.begin,
            end: world.moment(),
        };
        world.done((self.host, number), operation);
        let pause = Duration::from_millis(self.random.below(2 * self.manner.pause + 1));
        self.threads[number] = Thread::Rests(clock() + pause);
    }

    /// Gives all back, and ends when the server has said that it has it.
    fn leave(&mut self, links: &mut Links) {
        self.note(format_args!("leaves"));
        self.is_leaving = true;
        self.with(links, |kernel, _, actions| kernel.terminate(actions));
        if let Some(object) = self.handle.take() {
            self.ask(links, Request::Close { object }, Awaited::Close);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let mut world = self.world.borrow_mut();
        let why = self.over.as_deref().unwrap_or("the host crashed");
        world.note(format_args!("c{} ends: {why}", self.host));
        if why != "it is done" {
            world.lost(self.session, self.host);
            self.had
                .open
                .iter()
                .for_each(|session| world.loses(*session));
        }
        world.clear(self.host);
    }
}

impl Handler for Program {
    fn greeted(&mut self, _: &mut Links, _: LinkId, _: &Established) -> Result<Welcome, Refusal> {
        Err(Refusal {
            reason: Reason::Denied,
            text: "this is no server".into(),
        })
    }

    fn welcomed(&mut self, links: &mut Links, _: LinkId, welcome: &Welcome) {
        self.is_up = true;
        self.number = welcome.kernel.0;
        if self.manner.joined.is_none() {
            let run = welcome.name.as_str().trim_start_matches("server-");
            self.run = run.parse().expect("the number of an incarnation");
        }
        self.open(links);
    }

    fn message(&mut self, links: &mut Links, link: LinkId, message: Control, _: Vec<OwnedFd>) {
        match message {
            Control::Answer { id, answer } => self.answered(links, id, answer),
            Control::ToKernel {
                object, message, ..
            } if Some(object) == self.handle => {
                let mut heard = Ok(());
                self.note(format_args!("hears {}", net::told(&message)));
                self.with(links, |kernel, now, actions| {
                    heard = kernel.hear(now, message, actions);
                });
                if let Err(nonsense) = heard {
                    let what = format!("c{} hears nonsense: {nonsense}", self.host);
                    self.world.borrow_mut().fail(what);
                }
            }
            Control::ToKernel { .. } => {}
            other => links.close(link, &format!("{:?} is for servers", other.kind())),
        }
    }

    fn closed(&mut self, links: &mut Links, _: LinkId, closed: &Closed) {
        self.note(format_args!("has no link: {}", closed.why));
        (self.link, self.is_up, self.handle) = (None, false, None);
        self.awaited.clear();
        self.world.borrow_mut().linked(self.host, false);
        self.with(links, |kernel, now, actions| kernel.lost(now, actions));
        if self.over.is_some() {
            return;
        }
        if self.is_leaving {
            self.over = Some("the link broke before all was given back".into());
        }
        let mut world = self.world.borrow_mut();
        match closed.why.to_string().contains("the server ends") {
            true => world.parts(self.session, self.host),
            false if self.keeps() => {
                world.breaks();
                self.had.open.push(self.session);
            }
            false => world.lost(self.session, self.host),
        }
        self.session = world.session();
        self.again = Some(clock() + AGAIN);
        self.onward = None;
        self.turn += 1;
    }

    fn deadline(&self) -> Option<Instant> {
        let kernel = self.kernel.as_ref().and_then(Kernel::deadline);
        let kernel = kernel.map(|due| self.epoch + Duration::from_nanos(due.0));
        let threads = self.threads.iter().filter_map(|thread| match thread {
            Thread::Rests(at) if self.kernel.is_some() && !self.is_leaving => Some(*at),
            Thread::Tries(_, at) => Some(*at),
            _ => None,
        });
        let threads = threads.filter(|_| !self.world.borrow().is_ending);
        let asks = self.again.into_iter().chain(self.onward);
        kernel.into_iter().chain(asks).chain(threads).min()
    }

    fn turn_ends(&mut self, links: &mut Links, now: Instant) {
        if self.again.is_some_and(|again| again <= now) {
            self.again = None;
            let transport = self.hub.dial(self.server());
            self.link = Some(links.connect_over(transport).expect("it is registered"));
            let several = self.manner.servers.len() > 1;
            self.onward = several.then(|| now + self.manner.reconnect / 2);
        }
        if self.onward.is_some_and(|onward| onward <= now) {
            self.onward = None;
            if let Some(link) = self.link {
                links.close(link, "it does not answer");
            }
        }
        let round_trip = self.link.and_then(|link| links.round_trip(link));
        let hold = hold_for(round_trip.unwrap_or_default());
        let time = self.time();
        if let Some(kernel) = &mut self.kernel {
            kernel.set_hold(hold);
            if kernel.deadline().is_some_and(|due| due <= time) {
                self.with(links, |kernel, now, actions| kernel.pass(now, actions));
            }
        }
        self.run_threads(links);
    }
}

/// What a cache says, in a few words.
fn said(message: &FromKernel<Contents>) -> String {
    match message {
        FromKernel::DataWrite { pages, .. } => {
            format!("DataWrite {}+{}", pages.first.0, pages.count)
        }
        other => format!("{other:?}"),
    }
}
