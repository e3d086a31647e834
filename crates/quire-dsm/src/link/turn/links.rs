//! The links of a loop, from the first byte to the last.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::net::UnixStream;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::config::Config;
use super::listen::{self, Listener};
use super::token::{MAX_INDEX, MAX_KEY, Target};
use super::{Closed, LONGEST};
use crate::link::Seldom;
use crate::link::address::{Address, AddressError, Security};
use crate::link::connection::{Counters, Link, LinkError};
use crate::link::greeting::{Established, prove, refusal};
use crate::link::lease::{Duty, Grantor, Holder, Terms};
use crate::link::round_trip::RoundTrip;
use crate::link::transport::{Peer, Tcp, Transport, Unix};
use crate::wire::control::{Hello, Name, Refusal, Welcome};
use crate::wire::{Control, Kind, Pool};

/// At most so many peers are accepted in a turn, for each socket that listens.
const ACCEPTED: usize = 64;

/// After a peer could not be accepted, the next attempt is made after this time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A link, among all that a loop ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// How far a link is.
enum Stage {
    /// This side connects, and the transport is not ready.
    Connecting,
    /// The peer has connected, and is to say who it is.
    AwaitsHello,
    /// This side has connected and said who it is.
    AwaitsWelcome,
    /// The peer has said hello; the handler thinks about it.
    Welcoming,
    /// Both know each other.
    Open(Lease),
}

/// Who has a lease from whom.
enum Lease {
    /// Nobody.
    None,
    /// This side from the peer.
    Held(Holder),
    /// The peer from this side.
    Granted(Grantor, Terms),
}

/// A link, and what the loop knows of it.
struct Entry {
    link: Link,
    generation: u32,
    stage: Stage,
    /// The handler is told when it ends: this side made it, or its peer is known.
    told: bool,
    /// Since when the peer has time to say who it is; from then on a lease counts.
    since: Instant,
    /// The peer must have this name.
    expected: Option<Name>,
    /// It is in the list of those to be flushed.
    marked: bool,
    /// The poll looks for room to write, too.
    writable: bool,
    /// The peer's process ends.
    ending: bool,
    /// As far as this side asked for something that is answered at once.
    round_trip: RoundTrip,
}

impl Entry {
    /// A message was answered after so long.
    fn took(&mut self, time: Duration) {
        let way = self.link.round_trip();
        self.round_trip.took(way.map_or(time, |way| way.min(time)));
    }
}

/// All links of a loop.
pub struct Links {
    registry: Registry,
    config: Config,
    pool: Pool,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    generation: u32,
    listeners: Vec<Listener>,
    /// What one of them is called that has no address.
    beside: Option<Name>,
    /// Listeners that could not accept for now.
    paused: Vec<usize>,
    /// Links that may have something to send.
    marked: Vec<LinkId>,
    /// Links that gave way to others.
    unfinished: Vec<LinkId>,
    /// Links that ended. They are closed after the handler was told: a peer that sees the
    /// end may take it that this side has stopped to use what it was given.
    ended: VecDeque<(LinkId, Closed, Link)>,
    /// From this moment on clocks count.
    epoch: Instant,
    now: Instant,
    next_look: Instant,
    /// What is told of peers that cannot be accepted.
    refusals: Seldom,
}

impl Links {
    pub(super) fn new(registry: Registry, config: Config) -> Links {
        let now = (config.clock)();
        Links {
            registry,
            config,
            pool: Pool::new(),
            entries: Vec::new(),
            free: Vec::new(),
            generation: 0,
            listeners: Vec::new(),
            beside: None,
            paused: Vec::new(),
            marked: Vec::new(),
            unfinished: Vec::new(),
            ended: VecDeque::new(),
            epoch: now,
            now,
            next_look: now + LONGEST,
            refusals: Seldom::default(),
        }
    }

    /// When this turn began.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// The loop's clock.
    pub(crate) const fn teller(&self) -> fn() -> Instant {
        self.config.clock
    }

    /// What time it is by the loop's clock.
    pub(super) fn clock(&self) -> Instant {
        (self.config.clock)()
    }

    /// The pool from which contents of messages come.
    #[must_use]
    pub const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// How many links there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Listens at an address. Says at which, where any port was asked for.
    ///
    /// # Errors
    /// When the address needs TLS and there is no identity, and those of the system.
    pub fn listen(&mut self, address: &Address, security: &Security) -> io::Result<Address> {
        let identity = security.for_address(address).map_err(invalid)?;
        let is_plain = matches!(address, Address::Tcp(_)) && identity.is_none();
        let listener = Listener::new(address, identity)?;
        let address = listener.address()?;
        self.listen_with(listener)?;
        if is_plain && self.beside.is_none() {
            self.beside = self.listen_beside();
        }
        Ok(address)
    }

    /// Listens where programs of this machine can pass descriptors; if that cannot be had, they
    /// do without.
    fn listen_beside(&mut self) -> Option<Name> {
        let listening = Listener::beside().and_then(|(listener, name)| {
            self.listen_with(listener)?;
            Ok(name)
        });
        if let Err(error) = &listening {
            tracing::debug!("no socket beside those of TCP: {error}");
        }
        listening.ok()
    }

    fn listen_with(&mut self, mut listener: Listener) -> io::Result<()> {
        let index = self.listeners.len();
        listener.register(&self.registry, Target::Listener(index).into())?;
        self.listeners.push(listener);
        Ok(())
    }

    /// What the socket is called at which programs of this machine that have come over plain
    /// TCP can pass descriptors.
    #[must_use]
    pub fn beside(&self) -> Option<&Name> {
        self.beside.as_ref()
    }

    /// Connects to the socket that a server has told of, to which this side came over TCP.
    ///
    /// # Errors
    /// Those of the system, in particular where the server is on another machine.
    pub fn connect_beside(&mut self, name: &Name) -> io::Result<LinkId> {
        let address = listen::abstract_address(name)?;
        let socket = UnixStream::connect_addr(&address)?;
        self.connect_over(Box::new(Unix::new(socket)?))
    }

    /// Connects to a server, of which the name may be known. [`super::Handler::welcomed`] or
    /// [`super::Handler::closed`] says what came of it.
    ///
    /// # Errors
    /// When the address needs TLS and there is no identity, and those of the system.
    pub fn connect(
        &mut self,
        address: &Address,
        security: &Security,
        expected: Option<Name>,
    ) -> io::Result<LinkId> {
        let identity = security.for_address(address).map_err(invalid)?;
        let transport: Box<dyn Transport> = match address {
            Address::Tcp(address) => Box::new(Tcp::connect(*address, self.config.tcp_timeout)?),
            Address::Unix(path) => Box::new(Unix::new(UnixStream::connect(path)?)?),
        };
        let mut link = Link::plain(transport, self.pool.clone(), self.config.patience);
        if let Some(identity) = identity {
            link = link
                .with_tls_client(&identity, expected.as_ref())
                .map_err(io::Error::other)?;
        }
        self.add(link, Stage::Connecting, expected)
    }

    /// Takes a link over a transport that is connected already; this side is the one that
    /// says hello.
    ///
    /// # Errors
    /// Those of the system.
    pub fn connect_over(&mut self, transport: Box<dyn Transport>) -> io::Result<LinkId> {
        let link = Link::plain(transport, self.pool.clone(), self.config.patience);
        self.add(link, Stage::Connecting, None)
    }

    /// Takes a peer that has connected over a transport from elsewhere; it is to say hello.
    pub fn accept_over(&mut self, transport: Box<dyn Transport>) {
        self.accepted(transport, None);
    }

    /// Queues a message. It leaves at the end of the turn. Says whether the link takes it;
    /// one that does not has ended, or is about to.
    pub fn send(&mut self, id: LinkId, message: Control) -> bool {
        self.send_with(id, message, Vec::new())
    }

    /// Queues a message with descriptors, which only Unix sockets carry.
    pub fn send_with(&mut self, id: LinkId, message: Control, with: Vec<OwnedFd>) -> bool {
        let Some(entry) = self.entry(id) else {
            return false;
        };
        if !matches!(entry.stage, Stage::Open(_)) {
            return false;
        }
        match entry.link.send(message, with) {
            Ok(()) => {
                self.mark(id);
                true
            }
            Err(error) => {
                self.end(id, error);
                false
            }
        }
    }

    /// What waits to be sent over a link, in bytes. Whoever makes much of it waits.
    #[must_use]
    pub fn queued(&self, id: LinkId) -> usize {
        self.get(id).map_or(0, |entry| entry.link.queued())
    }

    /// About how much goes over a link in a quarter of a second, in bytes. Whoever has that wait
    /// there has others wait as long.
    #[must_use]
    pub fn moment(&self, id: LinkId) -> usize {
        self.get(id).map_or(0, |entry| entry.link.moment())
    }

    /// What went over a link.
    #[must_use]
    pub fn counters(&self, id: LinkId) -> Option<&Counters> {
        self.get(id).map(|entry| entry.link.counters())
    }

    /// How long a message and its answer take at best, without the two sides' threads where the
    /// transport knows that.
    #[must_use]
    pub fn round_trip(&self, id: LinkId) -> Option<Duration> {
        self.get(id).and_then(|entry| entry.round_trip.shortest())
    }

    /// Whether what is lent (`wire/lent.rs`) is sent over a link from where it is.
    #[must_use]
    pub fn sends_files(&self, id: LinkId) -> bool {
        self.get(id).is_some_and(|entry| entry.link.sends_files())
    }

    /// When this side stops to use what it was given over a link, if nothing is heard before.
    #[must_use]
    pub fn stops_at(&self, id: LinkId) -> Option<Instant> {
        match &self.get(id)?.stage {
            Stage::Open(Lease::Held(holder)) => Some(self.epoch + holder.stops_at()),
            _ => None,
        }
    }

    /// Who is at its other end.
    #[must_use]
    pub fn peer(&self, id: LinkId) -> Option<&Peer> {
        self.get(id).map(|entry| entry.link.peer())
    }

    /// Ends a link, on purpose, and tells the peer why. It takes it that this side has
    /// stopped to use what it was given.
    pub fn close(&mut self, id: LinkId, reason: &str) {
        let goodbye = Control::Goodbye {
            reason: reason.to_owned(),
        };
        self.send(id, goodbye);
        self.end(id, LinkError::Closed(reason.to_owned()));
    }

    /// Has the loop look at a descriptor: [`super::Handler::ready`] is called with the key
    /// when it becomes readable. It is called once for what came until then, so that all of
    /// it is to be read.
    ///
    /// # Errors
    /// Those of the system.
    ///
    /// # Panics
    /// If the key is not below 2^62.
    pub fn watch(&mut self, descriptor: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        assert!(key < MAX_KEY, "the key {key} is too large");
        let raw = descriptor.as_raw_fd();
        let token = Target::Source(key).into();
        self.registry
            .register(&mut SourceFd(&raw), token, Interest::READABLE)
    }

    /// Has the loop look away from a descriptor. To be called before it is closed.
    ///
    /// # Errors
    /// Those of the system.
    pub fn unwatch(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.registry
            .deregister(&mut SourceFd(&descriptor.as_raw_fd()))
    }

    fn get(&self, id: LinkId) -> Option<&Entry> {
        let entry = self.entries.get(id.index as usize)?.as_ref()?;
        (entry.generation == id.generation).then_some(entry)
    }

    fn entry(&mut self, id: LinkId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(id.index as usize)?.as_mut()?;
        (entry.generation == id.generation).then_some(entry)
    }

    /// Takes a new link.
    fn add(&mut self, link: Link, stage: Stage, expected: Option<Name>) -> io::Result<LinkId> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.generation = self.generation.wrapping_add(1);
        let id = LinkId {
            index,
            generation: self.generation,
        };
        let connects = matches!(stage, Stage::Connecting);
        let mut entry = Entry {
            link,
            generation: id.generation,
            stage,
            told: connects,
            since: self.clock(),
            expected,
            marked: false,
            writable: connects,
            ending: false,
            round_trip: RoundTrip::default(),
        };
        let interest = interest(connects);
        let watched = entry.link.watch(&self.registry, token(id), interest, false);
        if let Err(error) = watched {
            self.free.push(index);
            return Err(error);
        }
        self.next_look = self.next_look.min(entry.since + self.config.greeting);
        self.entries[index as usize] = Some(entry);
        Ok(id)
    }

    /// Takes peers that connect.
    pub(super) fn accept(&mut self, index: usize) {
        let mut again = self.now;
        for _ in 0..ACCEPTED {
            let Some(listener) = self.listeners.get(index) else {
                return;
            };
            let identity = listener.identity.clone();
            match listener.accept(self.config.tcp_timeout) {
                Ok(transport) => self.accepted(transport, identity.as_deref()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    if let Some(more) = self.refusals.due(self.now) {
                        tracing::warn!(%error, "a peer cannot be accepted{more}");
                    }
                    again += ACCEPT_PAUSE;
                    break;
                }
            }
        }
        self.paused.push(index);
        self.next_look = self.next_look.min(again);
    }

    fn accepted(
        &mut self,
        transport: Box<dyn Transport>,
        identity: Option<&crate::link::Identity>,
    ) {
        let peer = transport.peer().to_string();
        let most = self.config.most_links.min(MAX_INDEX as usize);
        if self.len() >= most {
            self.end_oldest_stranger();
        }
        if self.len() >= most {
            if let Some(more) = self.refusals.due(self.now) {
                let links = self.len();
                tracing::warn!(%peer, links, "too many links: this one is closed{more}");
            }
            return;
        }
        let link = Link::plain(transport, self.pool.clone(), self.config.patience);
        let added = match identity {
            Some(identity) => link.with_tls_server(identity).map_err(io::Error::other),
            None => Ok(link),
        }
        .and_then(|link| self.add(link, Stage::AwaitsHello, None));
        if let Err(error) = added
            && let Some(more) = self.refusals.due(self.now)
        {
            tracing::warn!(%peer, %error, "a peer cannot be accepted{more}");
        }
    }

    /// Makes place: ends the link that has said for the longest time not who it is.
    fn end_oldest_stranger(&mut self) {
        let links = self.entries.iter().enumerate();
        let strangers = links.filter_map(|(index, entry)| {
            let entry = entry.as_ref()?;
            let id = LinkId {
                index: index as u32,
                generation: entry.generation,
            };
            matches!(entry.stage, Stage::AwaitsHello).then_some((entry.since, id))
        });
        if let Some((_, id)) = strangers.min() {
            self.end(id, LinkError::Crowded(self.len()));
        }
    }

    /// The poll says something about a link.
    pub(super) fn event(&mut self, id: LinkId, writable: bool, end: bool) {
        let Some(entry) = self.entry(id) else { return };
        entry.link.ready(end);
        if matches!(entry.stage, Stage::Connecting) {
            match entry.link.connected() {
                Ok(true) => self.say_hello(id),
                Ok(false) => {}
                Err(error) => self.end(id, error),
            }
        } else if writable {
            self.mark(id);
        }
    }

    /// The transport is ready.
    fn say_hello(&mut self, id: LinkId) {
        let (hello, now) = (self.config.hello.clone(), self.clock());
        let Some(entry) = self.entry(id) else { return };
        entry.stage = Stage::AwaitsWelcome;
        entry.since = now;
        match entry.link.send(Control::Hello(hello), Vec::new()) {
            Ok(()) => self.mark(id),
            Err(error) => self.end(id, error),
        }
    }

    /// A link that can be read.
    pub(super) fn readable(&mut self, id: LinkId) -> Option<&mut Link> {
        let entry = self.entry(id)?;
        (!matches!(entry.stage, Stage::Connecting)).then_some(&mut entry.link)
    }

    /// It may have something to send.
    pub(super) fn mark(&mut self, id: LinkId) {
        let Some(entry) = self.entry(id) else { return };
        if !entry.marked {
            entry.marked = true;
            self.marked.push(id);
        }
    }

    /// There is more to be read.
    pub(super) fn unfinished(&mut self, id: LinkId) {
        self.unfinished.push(id);
    }

    pub(super) fn take_unfinished(&mut self) -> Vec<LinkId> {
        std::mem::take(&mut self.unfinished)
    }

    pub(super) fn has_work(&self) -> bool {
        !self.unfinished.is_empty() || !self.marked.is_empty() || !self.ended.is_empty()
    }

    pub(super) fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    pub(super) const fn next_look(&self) -> Instant {
        self.next_look
    }

    pub(super) fn next_closed(&mut self) -> Option<(LinkId, Closed, Link)> {
        self.ended.pop_front()
    }

    /// A peer says who it is.
    pub(super) fn hello(&mut self, id: LinkId, hello: Hello) -> Result<Established, LinkError> {
        let Some(entry) = self.entry(id) else {
            return Err(LinkError::Ended);
        };
        if !matches!(entry.stage, Stage::AwaitsHello) {
            return Err(LinkError::Unexpected(Kind::Hello));
        }
        let proof = prove(&entry.link, &hello.name)?;
        entry.stage = Stage::Welcoming;
        Ok(Established {
            hello,
            peer: entry.link.peer().clone(),
            proof,
        })
    }

    /// What the handler says about it.
    pub(super) fn answer_hello(&mut self, id: LinkId, answer: Result<Welcome, Refusal>) {
        let (epoch, now) = (self.epoch, self.clock());
        let Some(entry) = self.entry(id) else { return };
        let welcome = match answer {
            Ok(welcome) => welcome,
            Err(refusal) => return self.end(id, LinkError::Refused(refusal)),
        };
        let lease = match terms(&welcome) {
            Some(terms) => Lease::Granted(Grantor::new(terms, now - epoch), terms),
            None => Lease::None,
        };
        entry.stage = Stage::Open(lease);
        entry.told = true;
        entry.link.greeted();
        match entry.link.send(Control::Welcome(welcome), Vec::new()) {
            Ok(()) => self.mark(id),
            Err(error) => self.end(id, error),
        }
        self.next_look = now;
    }

    /// A server welcomes this side.
    pub(super) fn welcome(&mut self, id: LinkId, welcome: &Welcome) -> Result<(), LinkError> {
        let (epoch, now) = (self.epoch, self.clock());
        let Some(entry) = self.entry(id) else {
            return Err(LinkError::Ended);
        };
        if !matches!(entry.stage, Stage::AwaitsWelcome) {
            return Err(LinkError::Unexpected(Kind::Welcome));
        }
        prove(&entry.link, &welcome.name)?;
        if let Some(expected) = entry
            .expected
            .as_ref()
            .filter(|name| **name != welcome.name)
        {
            return Err(LinkError::Stranger {
                claimed: welcome.name.clone(),
                expected: expected.clone(),
            });
        }
        let lease = match terms(welcome) {
            Some(terms) => Lease::Held(Holder::new(terms, entry.since - epoch)),
            None => Lease::None,
        };
        entry.took(now - entry.since);
        entry.stage = Stage::Open(lease);
        entry.link.greeted();
        self.next_look = self.now;
        Ok(())
    }

    /// Whether a message may come now.
    pub(super) fn check_open(&self, id: LinkId, kind: Kind) -> Result<(), LinkError> {
        match self.get(id).map(|entry| &entry.stage) {
            Some(Stage::Open(_)) => Ok(()),
            Some(_) => Err(LinkError::Unexpected(kind)),
            None => Err(LinkError::Ended),
        }
    }

    /// The peer says that its process ends.
    pub(super) fn ending(&mut self, id: LinkId) -> Result<(), LinkError> {
        self.check_open(id, Kind::Ending)?;
        if let Some(entry) = self.entry(id) {
            entry.ending = true;
        }
        Ok(())
    }

    /// The peer says that it is there.
    pub(super) fn heartbeat(&mut self, id: LinkId, clock: u64) -> Result<(), LinkError> {
        let now = self.clock() - self.epoch;
        let Some(entry) = self.entry(id) else {
            return Err(LinkError::Ended);
        };
        match &mut entry.stage {
            Stage::Open(Lease::Granted(grantor, terms)) => {
                if !grantor.heartbeat(now) {
                    return Err(LinkError::Silent(terms.lease + terms.margin));
                }
                self.send(id, Control::HeartbeatSeen { clock });
                Ok(())
            }
            _ => Err(LinkError::Unexpected(Kind::Heartbeat)),
        }
    }

    /// The peer has heard that this side is there.
    pub(super) fn heartbeat_seen(&mut self, id: LinkId, clock: u64) -> Result<(), LinkError> {
        let now = self.clock() - self.epoch;
        let Some(entry) = self.entry(id) else {
            return Err(LinkError::Ended);
        };
        match &mut entry.stage {
            Stage::Open(Lease::Held(holder)) => {
                if holder.acknowledged(now, clock) {
                    let sent = Duration::from_nanos(clock);
                    let time = now.saturating_sub(sent);
                    entry.took(time);
                    Ok(())
                } else {
                    Err(LinkError::LeaseOver(holder.terms().lease))
                }
            }
            _ => Err(LinkError::Unexpected(Kind::HeartbeatSeen)),
        }
    }

    /// The machine was asleep for so long, which the clock of leases has not counted: what this side
    /// holds from other machines runs out that much earlier. Who is on this machine slept, too.
    pub(super) fn slept(&mut self, length: Duration) {
        for entry in self.entries.iter_mut().flatten() {
            if let Stage::Open(Lease::Held(holder)) = &mut entry.stage
                && !entry.link.peer().is_on_this_machine()
            {
                holder.slept(length);
            }
        }
        self.next_look = self.now;
    }

    /// Ends a link. The handler is told before this turn ends.
    pub(super) fn end(&mut self, id: LinkId, why: LinkError) {
        if self.get(id).is_none() {
            return;
        }
        let Some(mut entry) = self.entries[id.index as usize].take() else {
            return;
        };
        self.free.push(id.index);
        let why = match entry.ending && is_closed(&why) {
            true => LinkError::Exited,
            false => why,
        };
        log_end(&entry, &why);
        let open = matches!(entry.stage, Stage::Open(_));
        if let Some(refusal) = refusal(&why).filter(|_| !open) {
            // The peer is told where that is possible; it is the end in any case.
            let _ = entry.link.send(Control::Refusal(refusal), Vec::new());
        }
        if entry.told {
            let closed = self.closed(&entry, why);
            self.ended.push_back((id, closed, entry.link));
        } else {
            entry.link.close();
        }
    }

    /// How a link ended. Who had a lease is waited for as long as that lasts, unless it has ended
    /// itself.
    fn closed(&self, entry: &Entry, why: LinkError) -> Closed {
        let local = entry.link.peer().process().is_some();
        let has_ended = match why {
            LinkError::Goodbye(_) | LinkError::Exited => true,
            ref why => local && is_closed(why),
        };
        let (stopped_at, may_come_back) = match &entry.stage {
            Stage::Open(Lease::Granted(grantor, _)) if !has_ended => {
                (self.epoch + grantor.gives_up_at(), true)
            }
            _ => (self.now, false),
        };
        Closed {
            why,
            stopped_at,
            may_come_back,
        }
    }

    /// Sends what is queued.
    pub(super) fn flush_all(&mut self) {
        while let Some(id) = self.marked.pop() {
            self.flush(id);
        }
    }

    /// Sends what is queued for a link, as far as it takes it now. It need not be asked for: all is sent when the
    /// turn is over.
    pub fn flush(&mut self, id: LinkId) {
        let now = self.now;
        let Some(entry) = self.entry(id) else { return };
        entry.marked = false;
        let connecting = matches!(entry.stage, Stage::Connecting);
        if connecting {
            return;
        }
        let blocked = match entry.link.flush(now) {
            Ok(done) => !done,
            Err(error) => return self.end(id, error),
        };
        if blocked != entry.writable {
            entry.writable = blocked;
            let stall = entry.link.patience().stall;
            let Some(entry) = self.entries[id.index as usize].as_mut() else {
                return;
            };
            let watched = entry
                .link
                .watch(&self.registry, token(id), interest(blocked), true);
            self.next_look = self.next_look.min(now + stall);
            if let Err(error) = watched {
                self.end(id, error.into());
            }
        }
    }

    /// Does what is due, and finds out when the next thing is.
    pub(super) fn look_at_clock(&mut self) {
        let now = self.clock();
        if now < self.next_look {
            return;
        }
        self.next_look = now + LONGEST;
        for index in std::mem::take(&mut self.paused) {
            self.accept(index);
        }
        for index in 0..self.entries.len() {
            let Some(entry) = &self.entries[index] else {
                continue;
            };
            let id = LinkId {
                index: index as u32,
                generation: entry.generation,
            };
            match self.look_at(id, now) {
                Ok(next) => self.next_look = self.next_look.min(next),
                Err(error) => self.end(id, error),
            }
        }
    }

    /// Does what is due for a link; says when it is to be looked at again.
    fn look_at(&mut self, id: LinkId, now: Instant) -> Result<Instant, LinkError> {
        let (epoch, greeting, later) = (self.epoch, self.config.greeting, now + LONGEST);
        let Some(entry) = self.entry(id) else {
            return Ok(later);
        };
        let patience = entry.link.patience().stall;
        let stalled = entry.link.blocked().map(|since| since + patience);
        if stalled.is_some_and(|end| now >= end) {
            return Err(LinkError::Stalled(patience));
        }
        let next = match &mut entry.stage {
            Stage::Open(Lease::None) => later,
            Stage::Open(Lease::Granted(grantor, terms)) => {
                if grantor.has_given_up(now - epoch) {
                    return Err(LinkError::Silent(terms.lease + terms.margin));
                }
                epoch + grantor.gives_up_at()
            }
            Stage::Open(Lease::Held(holder)) => match holder.duty(now - epoch) {
                Duty::WaitUntil(moment) => epoch + moment,
                Duty::Stop => return Err(LinkError::LeaseOver(holder.terms().lease)),
                Duty::Heartbeat(clock) => {
                    let next = now + holder.terms().interval;
                    let stop = epoch + holder.stops_at();
                    self.send(id, Control::Heartbeat { clock });
                    next.min(stop)
                }
            },
            _ if now >= entry.since + greeting => return Err(LinkError::NoHello(greeting)),
            _ => entry.since + greeting,
        };
        Ok(stalled.map_or(next, |end| next.min(end)))
    }
}

/// The terms that a welcome offers.
fn terms(welcome: &Welcome) -> Option<Terms> {
    let lease = Duration::from_millis(welcome.lease.into());
    (!lease.is_zero()).then(|| Terms::new(lease))
}

fn token(id: LinkId) -> Token {
    Target::Link(id).into()
}

fn interest(writable: bool) -> Interest {
    if writable {
        Interest::READABLE | Interest::WRITABLE
    } else {
        Interest::READABLE
    }
}

/// Whether the other end of a socket is closed, as far as this one knows: that of a Unix
/// socket is; over a network it may be somebody between. Whoever writes before reading the end
/// gets a broken pipe, and where something was left unread there, the connection is reset.
fn is_closed(why: &LinkError) -> bool {
    match why {
        LinkError::Ended => true,
        LinkError::Broken(error) => matches!(
            error.kind(),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
        ),
        _ => false,
    }
}

fn invalid(error: AddressError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// One line for a link that ends, with what is wrong. That a server cannot be reached its handler says, who
/// tries again and again and knows what was said.
fn log_end(entry: &Entry, why: &LinkError) {
    let peer = entry.link.peer();
    let is_try = matches!(entry.stage, Stage::Connecting | Stage::AwaitsWelcome);
    if is_try || why.is_usual() {
        tracing::debug!(%peer, "link closed: {why}");
    } else {
        tracing::warn!(%peer, "link closed: {why}");
    }
}
