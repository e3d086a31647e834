//! The thread of a client: it carries messages between the server, the caches of open
//! objects, and the program. Here is what happens to its links, and to objects in each turn.
//!
//! | module | holds |
//! |---|---|
//! | [`commands`] | what the program wants |
//! | [`asking`] | what the server is asked, and who waits for the answer |
//! | [`opening`] | objects that are opened, and their mappings |
//! | [`bringing`] | what was written over a link that has ended, brought over the next one |
//! | [`giving_back`] | what was written, given back piece by piece |
//! | [`safety`] | what of that the server keeps for good |
//! | [`elsewhere`] | the next server, where one cannot be used |

mod asking;
mod bringing;
mod commands;
mod elsewhere;
mod giving_back;
mod opening;
mod safety;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use quire_core::dsm::kernel::Space;
use quire_core::dsm::message::{FromKernel, ToKernel};

use super::attached::Attached;
use super::guard::Guard;
use super::progress::Note;
use super::recovery::ToRecovery;
use super::region::Regions;
use super::{ClientError, Options};
use crate::link::turn::{Closed, Handler, LinkId, Links, Turn};
use crate::link::{Established, LinkError};
use crate::node::{self, Broken, Cache, Exchange};
use crate::wire::control::{
    Handle, Name, Reason, Refusal, RequestId, Rights, SHARES_PAGES, Welcome, has_kept_all,
};
use crate::wire::{Contents, Control, Lent};
use asking::Awaited;
use bringing::Bringing;
use commands::Reply;
pub(super) use commands::{Command, Found, Opened, Told, Wanted};
use elsewhere::{Question, Reopening, Servers};
use giving_back::{GivingBack, NEXT_PIECE, Then};
pub(super) use opening::Form;
use safety::Safety;

/// How late a timer of the thread may be, in nanoseconds.
const SLACK: u64 = 1000;
/// After all servers were tried, the next attempt is made after this time.
const AGAIN: Duration = Duration::from_millis(50);

/// An object that is open, among all that this client ever opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(pub(super) u64);

/// An object that is open.
pub(super) struct Object {
    pub(super) cache: Cache,
    space: Space,
    name: Name,
    /// The exact spelling of its key.
    exact: Name,
    rights: Rights,
    /// As it was when it was opened.
    form: Form,
    /// What the server calls it on this link.
    handle: Option<Handle>,
    /// How often the link broke.
    breaks: Arc<AtomicU64>,
    safety: Safety,
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
    /// What was written over links that have ended.
    bringing: BTreeMap<u64, Bringing>,
    last_bringing: u64,
    /// By which number the server knows this side.
    number: u64,
    /// Who brings what is written when this process is killed, if there is such a one.
    recovery: Option<ToRecovery>,
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

impl Carrier {
    pub fn new(options: Options, inbox: Receiver<Command>, ready: Option<Reply<()>>) -> Carrier {
        Carrier {
            servers: Servers::new(options.addresses.clone()),
            options,
            inbox,
            ready,
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
            bringing: BTreeMap::new(),
            last_bringing: 0,
            number: 0,
            recovery: None,
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
        self.guard = Guard::new(self.options.revoker, first.is_some());
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
            Err(error) => {
                let is_denied = error.kind() == std::io::ErrorKind::PermissionDenied;
                self.failed(links.now(), &error.to_string(), is_denied);
            }
        }
    }

    /// The link, where it can be used.
    fn usable_link(&self) -> Option<LinkId> {
        self.link.filter(|_| self.is_up)
    }

    /// How long touches wait for a new link.
    fn reconnect(&self) -> Duration {
        self.options.reconnect(self.lease)
    }

    fn unreachable(&self) -> ClientError {
        ClientError::Unreachable {
            address: self.servers.current().to_string(),
            why: "the link is broken".into(),
            is_denied: false,
        }
    }

    /// Which object of those that have caches here a mapping is of, by its number.
    fn mapped(&self, number: u64) -> Option<(Key, Space)> {
        let whole = Key(number);
        let space = self.objects.get(&whole).map(|object| object.space);
        let whole = space.map(|space| (whole, space));
        self.regions.get(number).or(whole)
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
        let link = self.usable_link();
        let Some(object) = self.objects.get_mut(&key) else {
            return false;
        };
        let to = link.zip(object.handle);
        let mut way = Way { links, to };
        if let Err(broken) = act(&mut object.cache, &mut way) {
            tracing::error!("{}: {broken}", object.name);
            if let Some(link) = self.link {
                links.close(link, &broken.to_string());
            }
            self.tell_of_loss(key);
            return false;
        }
        let has_link = to.is_some();
        self.tell_of_loss(key);
        has_link
    }

    fn new_key(&mut self) -> Key {
        self.last_key += 1;
        Key(self.last_key)
    }

    /// The link is as good as it gets: what there is goes on over it.
    fn is_welcome(&mut self, links: &mut Links, welcome: &Welcome) {
        self.is_up = true;
        self.number = welcome.kernel.0;
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
        self.claim_again(links);
    }

    fn keys(&self) -> Vec<Key> {
        self.objects.keys().copied().collect()
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
        let Control::ToKernel {
            object, message, ..
        } = message
        else {
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
            Control::ToKernel {
                object,
                stamp,
                message,
            } => {
                if let Some(key) = self.handles.get(&object).copied() {
                    self.with(links, key, |cache, way| {
                        cache.set_stamp(stamp);
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
        self.stop_bringing();
        self.handles.clear();
        let is_kept = matches!(&closed.why, LinkError::Goodbye(why) if has_kept_all(why));
        for key in self.keys() {
            if let Some(object) = self.objects.get_mut(&key)
                && object.handle.take().is_some()
            {
                object.breaks.fetch_add(1, Ordering::SeqCst);
                if is_kept {
                    object.cache.is_safe(object.cache.given_back().0);
                }
            }
            self.with(links, key, |cache, way| cache.lost(node::now(), way));
        }
        for awaited in std::mem::take(&mut self.awaited).into_values() {
            self.refuse(awaited);
        }
        // What was given back in part is lost in part. What is to be closed is closed.
        for giving in std::mem::take(&mut self.giving_back) {
            match giving.then {
                Then::Sync(reply) | Then::Tell(reply) => self.refuse(Awaited::Sync(reply)),
                Then::Close(_) => self.giving_back.push_back(giving),
            }
        }
        let until = links.now() + self.reconnect();
        for attached in self.attached.values_mut() {
            attached.lost(until, is_kept);
        }
        if !self.is_over {
            self.failed(links.now(), &closed.why.to_string(), false);
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
        let has_more = !self.giving_back.is_empty() || self.brings();
        let next_piece = has_more.then(|| Instant::now() + NEXT_PIECE);
        let failing = self.attached.values().filter_map(Attached::fails_at);
        let due = due.into_iter().chain(self.again).chain(self.asks_at());
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
        self.go_on_bringing(links);
        self.ask_what_is_safe(links, now);
        self.note_progress(links, Note::GoesOn);
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
