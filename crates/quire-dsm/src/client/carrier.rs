//! The thread of a client: it carries messages between the server, the caches of open
//! objects, and the program.

mod elsewhere;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use quire_core::dsm::kernel::Space;
use quire_core::dsm::message::{Access, FromKernel, PageNumber, Pages, ToKernel};
use quire_core::dsm::sync;
use quire_core::units::{Bytes, ObjectOffset};

use super::attached::Attached;
use super::guard::Guard;
use super::region::{self, Regions};
use super::{ClientError, Options};
use crate::link::Established;
use crate::link::turn::{Closed, Handler, LinkId, Links, Turn};
use crate::node::{self, Broken, Cache, Exchange, Mapping, Part, Shape, Where};
use crate::wire::control::{
    self, Answer, Failure, Handle, MappingNumber, Name, Reason, Refusal, Request, RequestId,
    Rights, SHARES_PAGES, Welcome,
};
use crate::wire::{Contents, Control, Lent};
use elsewhere::{Question, Reopening, Servers, What, is_about_an_object};

/// How late a timer of the thread may be, in nanoseconds.
const SLACK: u64 = 1000;
/// After all servers were tried, the next attempt is made after this time.
const AGAIN: Duration = Duration::from_millis(100);

/// About so much of what is given back waits in a link at a time, so that heartbeats and
/// faults do not wait behind all of a large object.
const PIECE: u64 = 8 << 20;

/// Whether there is room for the next piece is looked at so often, beside when the link has
/// taken something.
const NEXT_PIECE: Duration = Duration::from_millis(1);

/// An object that is open, among all that this client ever opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(pub(super) u64);

/// Who waits for something.
type Reply<T> = Sender<Result<T, ClientError>>;

/// Counts when it is dropped: whoever awaits something by it sees when there is an answer, or
/// there can be none.
pub(super) struct Told(pub(super) Arc<AtomicU64>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// What the program wants.
pub(super) enum Command {
    Ask {
        request: Request,
        reply: Reply<Answer>,
    },
    Open {
        wanted: Wanted,
        reply: Reply<Opened>,
    },
    Synchronise {
        key: Key,
        request: sync::Request,
        reply: Reply<Answer>,
    },
    /// The same; of the answer it matters only that there is one.
    Await {
        key: Key,
        request: sync::Request,
        told: Told,
    },
    Tag {
        key: Key,
        part: control::Segment,
        reply: Reply<Answer>,
    },
    GiveBack {
        key: Key,
        pages: Pages,
        reply: Reply<()>,
    },
    /// A mapping, whose number is that of an object or of a part, will be touched soon.
    Need {
        number: u64,
        pages: Pages,
        access: Access,
    },
    Flush {
        key: Key,
        reply: Reply<()>,
    },
    Close {
        key: Key,
        reply: Reply<()>,
    },
    /// A part is to be mapped, beside the whole.
    Map {
        key: Key,
        wanted: region::Wanted,
        reply: Reply<(Mapping, u64)>,
    },
    /// It is not wanted any more.
    Unmap {
        number: u64,
        reply: Reply<()>,
    },
    /// The process is going to end.
    Ending,
    End,
}

/// An object that is to be opened.
pub(super) struct Wanted {
    pub name: Name,
    pub rights: Rights,
    /// Where it is to be mapped.
    pub at: Where,
}

/// An object that was opened.
pub(super) struct Opened {
    pub mapping: Mapping,
    pub info: control::Object,
    pub key: Key,
    pub breaks: Arc<AtomicU64>,
    pub is_attached: bool,
}

/// Whose answer it is.
enum Awaited {
    Answer(Reply<Answer>),
    /// Whatever it is.
    Told(Told),
    /// Of whoever wants to know of an object, or to open it.
    Question(Question),
    /// An object is opened again after its link broke.
    Again(Key),
    /// The server is to know of a mapping of an object.
    Registered {
        key: Key,
        mapping: MappingNumber,
        new: New,
    },
    Close(Reply<()>),
    /// The server knows a mapping no more, whatever it says.
    Unregistered(Reply<()>),
    /// What was to be given back is, and is safe where that was asked for.
    Sync(Reply<()>),
}

/// Whether a mapping that is registered is a new one, and who waits for it.
enum New {
    /// The program has it, and the link is a new one.
    No,
    /// That of an object that is opened.
    Whole(Opened, Reply<Opened>),
    /// One more part of an object.
    Part(Mapping, Reply<(Mapping, u64)>),
}

impl New {
    /// It is not to be had.
    fn refuse(self, why: ClientError) {
        // Who waited may have gone.
        match self {
            New::No => {}
            New::Whole(_, reply) => drop(reply.send(Err(why))),
            New::Part(_, reply) => drop(reply.send(Err(why))),
        }
    }
}

/// An object that is open.
pub(super) struct Object {
    pub(super) cache: Cache,
    space: Space,
    name: Name,
    rights: Rights,
    /// The size of its pages.
    page: Bytes,
    /// What the server calls it on this link.
    handle: Option<Handle>,
    /// How often the link broke.
    breaks: Arc<AtomicU64>,
}

/// What was written to an object is given back, piece by piece.
struct GivingBack {
    key: Key,
    next: PageNumber,
    then: Then,
}

/// What is done when all is given back, and who waits for that.
enum Then {
    Sync(Reply<()>),
    Close(Reply<()>),
}

/// The way to the scheduler of one object. Without a link what is sent is lost, as the cache
/// knows: it was told that the link broke.
struct Way<'a> {
    links: &'a mut Links,
    to: Option<(LinkId, Handle)>,
}

impl Exchange for Way<'_> {
    fn send(&mut self, message: FromKernel<Contents>) {
        if let Some((link, object)) = self.to {
            // A link that takes no more has ended, which is told.
            self.links
                .send(link, Control::FromKernel { object, message });
        }
    }

    fn receive(&mut self) -> Option<ToKernel<Contents>> {
        None
    }
}

pub(super) struct Carrier {
    options: Options,
    servers: Servers,
    inbox: Receiver<Command>,
    /// Is told when the first link is there, or cannot be had.
    ready: Option<Reply<()>>,
    link: Option<LinkId>,
    /// This side has come again, to share pages; what the server said at the first time.
    beside: Option<(LinkId, Welcome)>,
    /// The server has welcomed this side.
    is_up: bool,
    again: Option<Instant>,
    /// What the server has answered that is asked for the objects which are open.
    reopening: Reopening,
    /// What the next server is asked, as another one refused it. Commands wait meanwhile.
    taken: Option<Question>,
    /// The server shares its pages with this program.
    shares: bool,
    objects: BTreeMap<Key, Object>,
    /// Parts of objects that are mapped beside the whole.
    regions: Regions,
    attached: BTreeMap<Key, Attached>,
    handles: BTreeMap<Handle, Key>,
    awaited: BTreeMap<RequestId, Awaited>,
    /// One after the other.
    giving_back: VecDeque<GivingBack>,
    /// How far away the server is.
    round_trip: Duration,
    /// Whether it sends from files.
    in_place: bool,
    /// How long its leases are.
    lease: Duration,
    last_key: u64,
    last_request: u64,
    is_over: bool,
    guard: Guard,
}

impl Awaited {
    /// An object is closed, and nobody waits for that.
    fn nobody() -> Awaited {
        Awaited::Close(std::sync::mpsc::channel().0)
    }
}

impl Carrier {
    pub fn new(options: Options, inbox: Receiver<Command>, ready: Reply<()>) -> Carrier {
        Carrier {
            servers: Servers::new(options.addresses.clone()),
            options,
            inbox,
            ready: Some(ready),
            link: None,
            beside: None,
            is_up: false,
            again: None,
            reopening: Reopening::default(),
            taken: None,
            shares: false,
            objects: BTreeMap::new(),
            regions: Regions::default(),
            attached: BTreeMap::new(),
            handles: BTreeMap::new(),
            awaited: BTreeMap::new(),
            giving_back: VecDeque::new(),
            round_trip: Duration::ZERO,
            in_place: false,
            lease: Duration::ZERO,
            last_key: 0,
            last_request: 0,
            is_over: false,
            guard: Guard::new(false, false),
        }
    }

    pub fn run(mut self, mut turn: Turn) {
        // Pages are kept for some ten microseconds; by default a timer is late by as much. Where
        // that is refused, they are kept somewhat longer.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(SLACK));
        let first = turn.go_first();
        self.guard = Guard::new(self.options.warden, first.is_some());
        self.connect(&mut turn.links);
        while !self.is_over {
            if let Err(error) = turn.once(&mut self, Duration::from_secs(1)) {
                tracing::error!("the event loop: {error}");
                break;
            }
        }
        // The goodbye leaves with the next turn.
        let _ = turn.once(&mut self, Duration::ZERO);
    }

    fn connect(&mut self, links: &mut Links) {
        let Options {
            security, server, ..
        } = &self.options;
        match links.connect(self.servers.current(), security, server.clone()) {
            Ok(link) => self.link = Some(link),
            Err(error) => self.failed(links.now(), &error.to_string()),
        }
    }

    /// How long touches wait for a new link.
    fn reconnect(&self) -> Duration {
        self.options.reconnect(self.lease)
    }

    fn unreachable(&self) -> ClientError {
        ClientError::Unreachable {
            address: self.servers.current().to_string(),
            why: "the link is broken".into(),
        }
    }

    /// Asks the server. Without a link, who waits is told so.
    fn ask(&mut self, links: &mut Links, request: Request, awaited: Awaited) {
        self.ask_with(links, request, Vec::new(), awaited);
    }

    fn ask_with(
        &mut self,
        links: &mut Links,
        request: Request,
        with: Vec<OwnedFd>,
        awaited: Awaited,
    ) {
        self.last_request += 1;
        let id = RequestId(self.last_request);
        let link = self.link.filter(|_| self.is_up);
        let request = Control::Request { id, request };
        let sent = link.is_some_and(|link| links.send_with(link, request, with));
        match sent {
            true => drop(self.awaited.insert(id, awaited)),
            false => self.refuse(awaited),
        }
    }

    fn refuse(&mut self, awaited: Awaited) {
        // Who waited may have gone.
        match awaited {
            Awaited::Answer(reply) => drop(reply.send(Err(self.unreachable()))),
            Awaited::Question(question) => question.fail(self.unreachable()),
            Awaited::Close(reply) | Awaited::Unregistered(reply) => drop(reply.send(Ok(()))),
            Awaited::Sync(reply) => drop(reply.send(Err(self.unreachable()))),
            Awaited::Registered { key, mapping, new } => {
                match (&new, self.attached.get_mut(&key)) {
                    (New::Whole(..), _) => drop(self.attached.remove(&key)),
                    (New::Part(..), Some(attached)) => drop(attached.forget(mapping)),
                    (New::Part(..), None) | (New::No, _) => {}
                }
                new.refuse(self.unreachable());
            }
            Awaited::Told(_) | Awaited::Again(_) => {}
        }
    }

    fn obey(&mut self, links: &mut Links, command: Command) {
        match command {
            Command::Ask { request, reply } if is_about_an_object(&request) => {
                self.begin(links, What::Ask { request, reply });
            }
            Command::Ask { request, reply } => self.ask(links, request, Awaited::Answer(reply)),
            Command::Open { wanted, reply } => self.begin(links, What::Open { wanted, reply }),
            Command::Synchronise {
                key,
                request,
                reply,
            } => match self.handle(key) {
                Some(object) => {
                    let request = Request::Synchronise { object, request };
                    self.ask(links, request, Awaited::Answer(reply));
                }
                None => self.refuse(Awaited::Answer(reply)),
            },
            Command::Await { key, request, told } => {
                if let Some(object) = self.handle(key) {
                    let request = Request::Synchronise { object, request };
                    self.ask(links, request, Awaited::Told(told));
                }
            }
            Command::Tag { key, part, reply } => match self.handle(key) {
                Some(object) => {
                    let request = Request::TagPart { object, part };
                    self.ask(links, request, Awaited::Answer(reply));
                }
                None => self.refuse(Awaited::Answer(reply)),
            },
            Command::GiveBack { key, pages, reply } if self.attached.contains_key(&key) => {
                let request = |object| Request::GiveBack { object, pages };
                self.ask_of_attached(links, key, request, Awaited::Sync(reply));
            }
            Command::GiveBack { key, pages, reply } => {
                let done = self.with(links, key, |cache, way| cache.evict(pages, way));
                let _ = reply.send(done.then_some(()).ok_or_else(|| self.unreachable()));
            }
            Command::Need {
                number,
                pages,
                access,
            } => self.need(links, number, (pages, access)),
            Command::Flush { key, reply } if self.attached.contains_key(&key) => {
                let request = |object| Request::Sync { object };
                self.ask_of_attached(links, key, request, Awaited::Sync(reply));
            }
            Command::Close { key, reply } if self.attached.contains_key(&key) => {
                let request = |object| Request::Close { object };
                self.ask_of_attached(links, key, request, Awaited::Close(reply));
                if let Some(attached) = self.attached.remove(&key) {
                    // Parts of it may still be mapped.
                    attached.fail();
                }
            }
            Command::Flush { key, reply } => self.give_back(links, key, Then::Sync(reply)),
            Command::Close { key, reply } => self.give_back(links, key, Then::Close(reply)),
            Command::Map { key, wanted, reply } if self.attached.contains_key(&key) => {
                self.map_attached(links, key, wanted, reply);
            }
            Command::Map { key, wanted, reply } => {
                let Key(number) = self.new_key();
                let objects = &mut self.objects;
                // Who waited may have gone.
                let mut mapped = self.regions.map(links, objects, number, key, wanted);
                if let Ok((mapping, _)) = &mut mapped {
                    self.guard.keep(mapping);
                }
                let _ = reply.send(mapped);
            }
            Command::Unmap { number, reply } => {
                let mapping = MappingNumber(number);
                let mut attached = self.attached.iter_mut();
                let of = attached.find_map(|(key, it)| it.forget(mapping).then_some(*key));
                match of {
                    Some(key) => {
                        let request = |object| Request::Unregister { object, mapping };
                        self.ask_of_attached(links, key, request, Awaited::Unregistered(reply));
                    }
                    None => {
                        self.regions.unmap(links, &mut self.objects, number);
                        let _ = reply.send(Ok(()));
                    }
                }
            }
            Command::Ending => {
                if let Some(link) = self.link.filter(|_| self.is_up) {
                    links.send(link, Control::Ending);
                }
            }
            Command::End => {
                self.is_over = true;
                if let Some(link) = self.link.filter(|_| self.is_up) {
                    links.close(link, "the program is done");
                }
            }
        }
    }

    /// Has pages brought that a mapping will need, by whoever answers its faults.
    fn need(&mut self, links: &mut Links, number: u64, need: (Pages, Access)) {
        if let Some((key, space)) = self.mapped(number) {
            self.with(links, key, |cache, way| {
                cache.will_need(space, need, node::now(), way)
            });
            return;
        }
        let mapping = MappingNumber(number);
        let mut attached = self.attached.iter();
        let Some(key) = attached.find_map(|(key, it)| it.has(mapping).then_some(*key)) else {
            return;
        };
        let (pages, access) = need;
        let request = |object| Request::WillNeed {
            object,
            mapping,
            pages,
            access,
        };
        self.ask_of_attached(links, key, request, Awaited::Told(Told(Arc::default())));
    }

    /// Which object of those that have caches here a mapping is of, by its number.
    fn mapped(&self, number: u64) -> Option<(Key, Space)> {
        let whole = Key(number);
        let space = self.objects.get(&whole).map(|object| object.space);
        let whole = space.map(|space| (whole, space));
        self.regions.get(number).or(whole)
    }

    /// Asks something about an object that is attached.
    fn ask_of_attached(
        &mut self,
        links: &mut Links,
        key: Key,
        request: impl FnOnce(Handle) -> Request,
        awaited: Awaited,
    ) {
        match self.attached.get(&key).and_then(Attached::handle) {
            Some(object) => self.ask(links, request(object), awaited),
            None => self.refuse(awaited),
        }
    }

    /// What the server calls an object on this link.
    fn handle(&self, key: Key) -> Option<Handle> {
        let own = self.objects.get(&key).and_then(|object| object.handle);
        own.or_else(|| self.attached.get(&key)?.handle())
    }

    /// Does something with a cache. Says whether the object is there and has a link.
    fn with(
        &mut self,
        links: &mut Links,
        key: Key,
        act: impl FnOnce(&mut Cache, &mut Way<'_>) -> Result<(), Broken>,
    ) -> bool {
        let Some(object) = self.objects.get_mut(&key) else {
            return false;
        };
        let to = self.link.filter(|_| self.is_up).zip(object.handle);
        let mut way = Way { links, to };
        if let Err(broken) = act(&mut object.cache, &mut way) {
            tracing::error!("{}: {broken}", object.name);
            if let Some(link) = self.link {
                links.close(link, &broken.to_string());
            }
            return false;
        }
        to.is_some()
    }

    /// Gives back all that was written to an object.
    fn give_back(&mut self, links: &mut Links, key: Key, then: Then) {
        let next = PageNumber(0);
        self.giving_back.push_back(GivingBack { key, next, then });
        self.go_on_giving_back(links);
    }

    /// Goes on with that, as far as there is room in the link.
    fn go_on_giving_back(&mut self, links: &mut Links) {
        while let Some(mut giving) = self.giving_back.pop_front() {
            let link = self.link.filter(|_| self.is_up);
            let mut next = None;
            if link.is_some_and(|link| links.queued(link) as u64 > PIECE) {
                next = Some(giving.next);
            } else if let Some(object) = self.objects.get(&giving.key) {
                let most = (PIECE / object.page.0).max(1) as usize;
                self.with(links, giving.key, |cache, way| {
                    next = cache.sync_from(giving.next, most, way)?;
                    Ok(())
                });
            }
            match next {
                Some(next) if next == giving.next => return self.giving_back.push_front(giving),
                Some(next) => {
                    giving.next = next;
                    self.giving_back.push_front(giving);
                }
                None => self.all_given_back(links, giving),
            }
        }
    }

    /// All that was written to an object is on its way to the server.
    fn all_given_back(&mut self, links: &mut Links, given: GivingBack) {
        let object = self.objects.get(&given.key);
        match (given.then, object.and_then(|object| object.handle)) {
            (Then::Close(reply), _) => self.close(links, given.key, reply),
            (Then::Sync(reply), Some(object)) => {
                self.ask(links, Request::Sync { object }, Awaited::Sync(reply));
            }
            (Then::Sync(reply), None) => self.refuse(Awaited::Sync(reply)),
        }
    }

    fn close(&mut self, links: &mut Links, key: Key, reply: Reply<()>) {
        self.with(links, key, |cache, way| cache.terminate(way));
        let Some(mut object) = self.objects.remove(&key) else {
            return self.refuse(Awaited::Close(reply));
        };
        if let Some(uffd) = object.cache.uffd(object.space) {
            // The descriptor ends with the cache anyway.
            let _ = links.unwatch(uffd);
        }
        self.regions.forget(links, key, &object.cache);
        object.cache.remove(object.space);
        match object.handle {
            Some(handle) => {
                self.handles.remove(&handle);
                let request = Request::Close { object: handle };
                self.ask(links, request, Awaited::Close(reply));
            }
            None => self.refuse(Awaited::Close(reply)),
        }
    }

    /// The server has opened an object: it is mapped.
    fn opened(
        &mut self,
        links: &mut Links,
        handle: Handle,
        info: control::Object,
        wanted: Wanted,
    ) -> Result<Opened, ClientError> {
        let rights = wanted.rights;
        let shape = Shape {
            page: info.page_size.bytes(),
            own_page: self.options.page_size.bytes(),
            ..Shape::new(info.size)
        };
        let mut settings = shape.settings();
        settings.reconnect = self.reconnect();
        let system = |errno: quire_linux::Errno| ClientError::System(errno.into());
        let cache = Cache::of_this_process(shape.page, settings.clone(), links.pool().clone());
        let mut cache = cache.map_err(system)?;
        cache.set_round_trip(self.round_trip);
        cache.send_in_place(self.in_place);
        let part = Part {
            start: ObjectOffset(0),
            len: Bytes(settings.pages * shape.page.0),
        };
        cache.show_until(self.guard.term());
        let mut mapping = Mapping::new(cache.file(), part, wanted.at, rights.write)?;
        self.guard.keep(&mut mapping);
        let space = cache.add_own(&mapping)?;
        let key = self.new_key();
        if let Some(uffd) = cache.uffd(space) {
            links.watch(uffd, key.0)?;
        }
        self.handles.insert(handle, key);
        let object = Object {
            cache,
            space,
            name: info.name.clone(),
            rights,
            page: shape.page,
            handle: Some(handle),
            breaks: Arc::default(),
        };
        let breaks = Arc::clone(&object.breaks);
        self.objects.insert(key, object);
        Ok(Opened {
            mapping,
            info,
            key,
            breaks,
            is_attached: false,
        })
    }

    fn new_key(&mut self) -> Key {
        self.last_key += 1;
        Key(self.last_key)
    }

    /// The server shares its pages: its file is mapped, and it is told where.
    fn attached(
        &mut self,
        links: &mut Links,
        (handle, info): (Handle, control::Object),
        file: Option<OwnedFd>,
        (wanted, reply): (Wanted, Reply<Opened>),
    ) {
        let part = whole(&info);
        let attached = Attached::new(handle, &wanted, part.len, file);
        let mapped = attached.and_then(|attached| {
            let (at, writable) = (wanted.at, wanted.rights.write);
            let mapping = Mapping::new(attached.file(), part, at, writable)?;
            Ok((attached, mapping))
        });
        match mapped {
            Ok((mut attached, mut mapping)) => {
                self.guard.keep(&mut mapping);
                let key = self.new_key();
                let number = MappingNumber(key.0);
                attached.add(number, &mapping);
                let opened = Opened {
                    mapping,
                    info,
                    key,
                    breaks: attached.breaks(),
                    is_attached: true,
                };
                self.attached.insert(key, attached);
                self.register(links, key, number, New::Whole(opened, reply));
            }
            Err(error) => {
                self.ask(links, Request::Close { object: handle }, Awaited::nobody());
                // Who waited may have gone.
                let _ = reply.send(Err(error));
            }
        }
    }

    /// Maps a part of an object that is attached, and tells the server where.
    fn map_attached(
        &mut self,
        links: &mut Links,
        key: Key,
        wanted: region::Wanted,
        reply: Reply<(Mapping, u64)>,
    ) {
        let Key(number) = self.new_key();
        let number = MappingNumber(number);
        let Some(attached) = self.attached.get_mut(&key) else {
            return drop(reply.send(Err(super::ended())));
        };
        match wanted.make(attached.file()) {
            Ok(mut mapping) => {
                self.guard.keep(&mut mapping);
                attached.add(number, &mapping);
                self.register(links, key, number, New::Part(mapping, reply));
            }
            // Who waited may have gone.
            Err(error) => drop(reply.send(Err(error.into()))),
        }
    }

    /// Tells the server of a mapping of an object.
    fn register(&mut self, links: &mut Links, key: Key, mapping: MappingNumber, new: New) {
        let awaited = Awaited::Registered { key, mapping, new };
        let attached = self.attached.get(&key);
        match attached.and_then(|attached| attached.registration(mapping)) {
            Some((request, uffd)) => self.ask_with(links, request, vec![uffd], awaited),
            None => self.refuse(awaited),
        }
    }

    /// The server answers the faults of a mapping, or it refuses to.
    fn registered(
        &mut self,
        links: &mut Links,
        (key, mapping): (Key, MappingNumber),
        new: New,
        refused: Option<Failure>,
    ) {
        let Some(attached) = self.attached.get_mut(&key) else {
            return new.refuse(super::ended());
        };
        let Some(failure) = refused else {
            attached.is_answered(mapping);
            // Who waited may have gone.
            return match new {
                New::No => {}
                New::Whole(opened, reply) => drop(reply.send(Ok(opened))),
                New::Part(mapped, reply) => drop(reply.send(Ok((mapped, mapping.0)))),
            };
        };
        match &new {
            New::No if !attached.has(mapping) => {}
            New::No => self.give_up(links, key, &failure.to_string()),
            New::Whole(..) => {
                let object = self.attached.remove(&key).and_then(|it| it.handle());
                if let Some(object) = object {
                    self.ask(links, Request::Close { object }, Awaited::nobody());
                }
            }
            New::Part(..) => drop(attached.forget(mapping)),
        }
        new.refuse(failure.into());
    }

    /// An object that was attached fails for good.
    fn give_up(&mut self, links: &mut Links, key: Key, why: &str) {
        let object = self.attached.get_mut(&key).and_then(|it| it.give_up(why));
        if let Some(object) = object {
            self.ask(links, Request::Close { object }, Awaited::nobody());
        }
    }

    fn answered(
        &mut self,
        links: &mut Links,
        id: RequestId,
        answer: Result<Answer, Failure>,
        descriptors: Vec<OwnedFd>,
    ) {
        let Some(awaited) = self.awaited.remove(&id) else {
            return;
        };
        // Who waited may have gone.
        match (awaited, answer) {
            (Awaited::Answer(reply), answer) => drop(reply.send(answer.map_err(Into::into))),
            (Awaited::Told(told), _) => drop(told),
            (Awaited::Close(reply), answer) => {
                if let Err(failure) = answer {
                    tracing::error!("an object was closed, but: {failure}");
                }
                let _ = reply.send(Ok(()));
            }
            (Awaited::Unregistered(reply), _) => drop(reply.send(Ok(()))),
            (Awaited::Sync(reply), answer) => {
                let _ = reply.send(answer.map(drop).map_err(Into::into));
            }
            (Awaited::Question(question), answer) => {
                self.told(links, question, answer, descriptors);
            }
            (Awaited::Registered { key, mapping, new }, answer) => {
                self.registered(links, (key, mapping), new, answer.err());
            }
            (Awaited::Again(key), answer) => self.reopened(links, key, answer, descriptors),
        }
    }

    /// The link is as good as it gets: what there is goes on over it.
    fn is_welcome(&mut self, links: &mut Links, welcome: &Welcome) {
        self.is_up = true;
        self.lease = Duration::from_millis(welcome.lease.into());
        self.shares = welcome.features & SHARES_PAGES != 0;
        if let Some(ready) = self.ready.take() {
            // Who waited may have gone.
            let _ = ready.send(Ok(()));
        }
        if let Some(question) = self.taken.take() {
            self.put(links, question);
        }
        self.reopen(links);
    }

    fn keys(&self) -> Vec<Key> {
        self.objects.keys().copied().collect()
    }
}

/// All pages of an object.
fn whole(info: &control::Object) -> Part {
    Part {
        start: ObjectOffset(0),
        len: Bytes(info.size.0.next_multiple_of(info.page_size.bytes().0)),
    }
}

impl Handler for Carrier {
    fn greeted(&mut self, _: &mut Links, _: LinkId, _: &Established) -> Result<Welcome, Refusal> {
        Err(Refusal {
            reason: Reason::Denied,
            text: "this is no server".into(),
        })
    }

    fn welcomed(&mut self, links: &mut Links, link: LinkId, welcome: &Welcome) {
        let is_second = self
            .beside
            .as_ref()
            .is_some_and(|(second, _)| *second == link);
        if is_second {
            self.beside = None;
            if let Some(first) = self.link.replace(link) {
                links.close(first, "this program has come again, beside");
            }
        } else if let Some(name) = &welcome.beside
            && let Ok(second) = links.connect_beside(name)
        {
            self.beside = Some((second, welcome.clone()));
            return;
        }
        self.is_welcome(links, welcome);
    }

    fn place(&mut self, link: LinkId, message: &Control) -> Option<Arc<Lent>> {
        let Control::ToKernel { object, message } = message else {
            return None;
        };
        let key = self.handles.get(object).filter(|_| self.link == Some(link));
        let object = key.and_then(|key| self.objects.get_mut(key));
        object.and_then(|object| object.cache.place(message))
    }

    fn message(
        &mut self,
        links: &mut Links,
        link: LinkId,
        message: Control,
        descriptors: Vec<OwnedFd>,
    ) {
        match message {
            Control::Answer { id, answer } => self.answered(links, id, answer, descriptors),
            Control::ToKernel { object, message } => {
                if let Some(key) = self.handles.get(&object).copied() {
                    self.with(links, key, |cache, way| {
                        cache.hear(node::now(), message, way)
                    });
                }
            }
            other => links.close(link, &format!("{:?} is for servers", other.kind())),
        }
    }

    fn closed(&mut self, links: &mut Links, link: LinkId, closed: &Closed) {
        match self.beside.take() {
            // Then the first link has to do.
            Some((second, welcome)) if second == link => return self.is_welcome(links, &welcome),
            Some((second, _)) if self.link == Some(link) => {
                links.close(second, "the link beside it is broken");
            }
            other => self.beside = other,
        }
        if self.link != Some(link) {
            return;
        }
        (self.link, self.is_up) = (None, false);
        self.reopening = Reopening::default();
        self.handles.clear();
        for key in self.keys() {
            if let Some(object) = self.objects.get_mut(&key)
                && object.handle.take().is_some()
            {
                object.breaks.fetch_add(1, Ordering::SeqCst);
            }
            self.with(links, key, |cache, way| cache.lost(node::now(), way));
        }
        for awaited in std::mem::take(&mut self.awaited).into_values() {
            self.refuse(awaited);
        }
        // What was given back in part is lost in part. What is to be closed is closed.
        for giving in std::mem::take(&mut self.giving_back) {
            match giving.then {
                Then::Sync(reply) => self.refuse(Awaited::Sync(reply)),
                Then::Close(_) => self.giving_back.push_back(giving),
            }
        }
        let until = links.now() + self.reconnect();
        for attached in self.attached.values_mut() {
            attached.lost(until);
        }
        if !self.is_over {
            if self.ready.is_none() && self.servers.is_first_round() {
                tracing::warn!("{}: {}", self.servers.current(), closed.why);
            }
            self.failed(links.now(), &closed.why.to_string());
        }
    }

    fn ready(&mut self, links: &mut Links, key: u64) {
        if let Some((key, space)) = self.mapped(key) {
            self.with(links, key, |cache, way| {
                cache.read_faults(space, node::now(), way).map(drop)
            });
        }
    }

    fn woken(&mut self, links: &mut Links) {
        while self.taken.is_none()
            && let Ok(command) = self.inbox.try_recv()
        {
            self.obey(links, command);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let due = self
            .objects
            .values()
            .filter_map(|object| object.cache.deadline());
        let now = node::now();
        let due = due.min().map(|due| {
            let left = Duration::from_nanos(due.0.saturating_sub(now.0));
            Instant::now() + left
        });
        let next_piece = self
            .giving_back
            .front()
            .map(|_| Instant::now() + NEXT_PIECE);
        let failing = self.attached.values().filter_map(Attached::fails_at);
        let due = due.into_iter().chain(self.again);
        due.chain(next_piece).chain(failing).min()
    }

    fn turn_ends(&mut self, links: &mut Links, now: Instant) {
        self.guard
            .set_end(self.link.and_then(|link| links.stops_at(link)));
        if self.again.is_some_and(|again| again <= now) {
            self.again = None;
            self.connect(links);
        }
        // Commands may have waited for a question that is answered now.
        self.woken(links);
        self.go_on_giving_back(links);
        let round_trip = self.link.and_then(|link| links.round_trip(link));
        let round_trip = round_trip.unwrap_or_default();
        let in_place = self.link.is_some_and(|link| links.sends_files(link));
        if (round_trip, in_place) != (self.round_trip, self.in_place) {
            (self.round_trip, self.in_place) = (round_trip, in_place);
            for object in self.objects.values_mut() {
                object.cache.set_round_trip(round_trip);
                object.cache.send_in_place(in_place);
            }
        }
        let time = node::now();
        let is_due = |object: &Object| object.cache.deadline().is_some_and(|due| due <= time);
        let due = self.objects.iter().filter(|(_, object)| is_due(object));
        let due: Vec<Key> = due.map(|(key, _)| *key).collect();
        for key in due {
            self.with(links, key, |cache, way| cache.pass(time, way));
        }
        for attached in self.attached.values_mut() {
            if attached.fails_at().is_some_and(|at| at <= now) {
                attached.give_up("there is no new link");
            }
        }
    }
}
