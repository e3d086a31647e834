//! The object server: keeps objects, and runs the scheduler of each.
//!
//! [`core`] decides: one message in, messages out, no I/O, so that it is tested and simulated
//! without a network. [`Server`] joins it to the links of an event loop, and keeps the time:
//! what a kernel had that went silent is given to nobody before its lease is certainly over.
//! What stands behind the objects, a store or pagers, answers later and from other threads;
//! the loop waits for none of it.
//!
//! | module | holds |
//! |---|---|
//! | [`core`] | what is done with messages of programs |
//! | [`object`] | one object |
//! | `keeping` | objects with a store or a pager behind them |
//! | `backed` | the pager of one object at work |
//! | `depot` | what the store knows of objects |
//! | `distant` | the pager of an object that another server keeps |
//! | `reclaim` | pages that a pager wants back |
//! | `watch` | who watches what schedulers are told and tell |
//! | `local` | one copy of each page for all programs of this machine |
//! | `replica` | an object's scheduler, where several servers share it |
//! | `rights` | who may do what to an object |
//! | `peer_servers` | what a server does that is joined to others |
//! | `views` | when an object needs another view |
//! | `meeting` | mutexes, barriers and counters of an object that several servers share |
//! | `bundles` | what kernels are told, gathered while a turn lasts |
//! | `ending` | what it does when it is told to end |
//! | `said` | what servers say to each other |

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_core::dsm::message::KernelId;
use quire_core::dsm::sync::Parting;
use quire_core::dsm::types::Machine;
use quire_core::units::Bytes;

use crate::link::connection::LinkError;
use crate::link::greeting::Proof;
use crate::link::turn::{Closed, Handler, LinkId, Links, Turn};
use crate::link::{Address, Established, Peer as LinkPeer, Security};
use crate::pager::Pager;
use crate::store::Store;
use crate::wire::Control;
use crate::wire::control::{
    Failure, HAS_RECOVERY, Name, Reason, Refusal, Request, Rights, Role, SHARES_PAGES, Welcome,
};

mod backed;
mod bundles;
pub mod core;
mod depot;
mod distant;
mod ending;
mod keeping;
mod local;
mod meeting;
pub mod object;
mod peer_servers;
mod reclaim;
mod replica;
mod rights;
pub(crate) mod said;
#[cfg(test)]
mod tests;
mod views;
mod watch;

use self::bundles::{Bundle, Bundles};
use self::core::{Core, MACHINE, Out, PEER_SERVERS, Peer, PeerId};
pub use self::ending::{Ended, Ending, Patience};
pub use self::keeping::{Offer, PAGER_PATIENCE};
use self::local::{Asked, Local};
use self::peer_servers::PeerServers;
pub use self::peer_servers::{Connect, Host, Joining, Numbers, Outside};

/// How long a lease lasts, unless told otherwise.
pub const LEASE: Duration = Duration::from_secs(4);

/// The loop looks at least so often whether it shall end.
const LONGEST: Duration = Duration::from_secs(1);

/// Programs of a server that was started again try to reach it so often, and have what they brought
/// taken by then.
const COMING_BACK: Duration = Duration::from_millis(120);

/// What parts of a server act on.
struct Around<'a> {
    core: &'a mut Core,
    links: &'a mut Links,
    out: &'a mut Vec<Out>,
}

/// How a peer goes that is gone.
#[derive(Clone, Copy)]
struct Leaving {
    how: Parting,
    /// Its process may live, as only its link is known to be cut.
    may_come_back: bool,
}

/// A server, as the event loop sees it.
pub struct Server {
    core: Core,
    name: Name,
    lease: Duration,
    peers: BTreeMap<LinkId, PeerId>,
    links: BTreeMap<PeerId, LinkId>,
    /// Those that have recovery processes.
    kept: BTreeSet<PeerId>,
    next: u64,
    /// Until when nobody gets anything of objects that were there when it was started, as programs come
    /// again with what they had written; and who has asked meanwhile.
    opens_at: Option<Instant>,
    asked_early: Vec<(PeerId, Control)>,
    /// The same of programs that share pages with this machine: which of their mappings have faults.
    touched_early: Vec<u64>,
    /// Peers that are gone, by when they have certainly stopped to use what they have.
    leaving: BTreeMap<(Instant, PeerId), Leaving>,
    out: Vec<Out>,
    /// Other servers that it is joined to.
    peer_servers: Option<PeerServers>,
    /// What is being sent; kept, so that none is allocated for a message.
    sent: Vec<Out>,
    /// What kernels are told, until the turn ends.
    bundles: Bundles,
    /// The pages that programs of this machine share.
    local: Local,
    /// When removed objects are looked at again for which programs may come back.
    forsaken_at: Option<Instant>,
    /// When the last turn ended, and until when programs have time to come back because no turn began
    /// for long after one, as where this server was stopped: their leases ended without their fault.
    last_turn: Option<Instant>,
    late_until: Option<Instant>,
    /// Somebody wants it to end.
    is_over: bool,
}

impl Server {
    /// A server without objects.
    #[must_use]
    pub fn new(name: Name, lease: Duration) -> Server {
        let mut core = Core::default();
        core.joined(MACHINE, Peer::new("this machine".into(), Machine::native()));
        Server {
            core,
            name,
            lease,
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            kept: BTreeSet::new(),
            next: 0,
            opens_at: None,
            asked_early: Vec::new(),
            touched_early: Vec::new(),
            leaving: BTreeMap::new(),
            out: Vec::new(),
            peer_servers: None,
            sent: Vec::new(),
            bundles: Bundles::default(),
            local: Local::default(),
            forsaken_at: None,
            last_turn: None,
            late_until: None,
            is_over: false,
        }
    }

    /// Gives programs numbers from this one on, below 2^62. Servers that programs may take for each
    /// other, as one is started in the place of another, are to begin far from each other: by its
    /// number over a link that has ended a program brings what it had written over that
    /// ([`Request::Claim`]).
    pub fn number_from(&mut self, first: u64) {
        self.next = first.max(self.next);
    }

    /// Stamps what it says to kernels from this one on: more than any server has given that kept the
    /// same objects before, such as nanoseconds of a clock that goes on.
    pub const fn stamp_from(&mut self, first: u64) {
        self.core.clock = first;
    }

    /// Keeps objects in a store from now on: they, their rights and what was acknowledged
    /// outlive the server. Those that are there already are served. Programs may come back for
    /// those that were removed; else these go.
    ///
    /// # Errors
    /// Where threads that read from it cannot be started.
    pub fn keep_in(&mut self, store: Store) -> io::Result<()> {
        self.core.keep_in(store)?;
        self.opens_at = Some(Instant::now() + COMING_BACK);
        self.forsaken_at = Some(Instant::now() + self.lease);
        Ok(())
    }

    /// Makes an object whose contents a pager supplies. It lives as long as the server, and
    /// is not in its store.
    ///
    /// # Errors
    /// What is wrong with it, or that there is one of this name.
    pub fn create_with_pager(
        &mut self,
        offer: Offer,
        pager: Box<dyn Pager>,
    ) -> Result<(), Failure> {
        self.core.create_with_pager(offer, pager)
    }

    /// Of what the store or a pager has, about so much is kept in memory; the rest is asked
    /// for again when it is needed. Otherwise all stays that was ever used.
    pub fn limit_memory(&mut self, limit: Bytes) {
        self.core.limit_memory(limit);
    }

    /// What others may do to each object that is made from now on, unless its maker says otherwise. Servers
    /// that are joined should be told the same.
    pub fn grant_usually(&mut self, grants: Vec<(String, Rights)>) {
        self.core.usual_grants = grants;
    }

    /// Has the store and pagers wake this loop. [`serve`] does that by itself.
    pub fn wake_with(&mut self, waker: Arc<mio::Waker>) {
        self.core.bell().hang(move || {
            // It fails where the loop is gone, and then nobody has to be woken.
            let _ = waker.wake();
        });
    }

    /// Joins it to other servers.
    ///
    /// # Errors
    /// Where no thread can be started that asks the directory.
    pub fn join(&mut self, turn: &Turn, joining: Joining) -> io::Result<()> {
        let outside = Outside::system(turn, joining.directory.clone())?;
        self.join_with(turn, joining, outside)
    }

    /// Joins it to other servers, with other things from outside of the loop than the
    /// system's.
    ///
    /// # Errors
    /// Where the directory cannot be watched.
    pub fn join_with(&mut self, turn: &Turn, joining: Joining, outside: Outside) -> io::Result<()> {
        let store = self.core.close_kept(&mut self.out);
        let clock = turn.links.teller();
        self.peer_servers = Some(PeerServers::new(
            joining, store, self.lease, clock, outside,
        )?);
        Ok(())
    }

    /// Looks whether this server was late itself, as it was stopped: who lost the link by that comes
    /// again, with what it has written, and nobody else gets that before.
    fn look_whether_late(&mut self, now: Instant) {
        let is_late =
            |last: Instant| now.saturating_duration_since(last) > LONGEST + self.lease / 4;
        if self.last_turn.take().is_some_and(is_late) {
            let until = now + self.lease / 2;
            self.late_until = Some(until);
            let leaving = std::mem::take(&mut self.leaving);
            let leaving = leaving.into_iter();
            let later = leaving.map(|((at, peer), leaving)| match leaving.how {
                Parting::Crashed => ((at.max(until), peer), leaving),
                Parting::Left => ((at, peer), leaving),
            });
            self.leaving = later.collect();
        }
    }

    /// Looks whether its lease as one of several servers is over, before it does anything
    /// that it may not do then.
    fn look_at_lease(&mut self, links: &mut Links) {
        let now = links.now();
        self.with_peer_servers(links, |peer_servers, a| peer_servers.look_at_lease(a, now));
        self.send(links);
        self.show_until_lease_ends();
    }

    /// A lease that was renewed, is new, or was lost without anything being left of it.
    fn show_until_lease_ends(&mut self) {
        let end = self.peer_servers.as_ref().and_then(PeerServers::lease_ends);
        self.local.show_until(end);
    }

    /// Does something with the peer servers, if there are any.
    fn with_peer_servers<R>(
        &mut self,
        links: &mut Links,
        act: impl FnOnce(&mut PeerServers, &mut Around<'_>) -> R,
    ) -> Option<R> {
        let peer_servers = self.peer_servers.as_mut()?;
        let mut around = Around {
            core: &mut self.core,
            links,
            out: &mut self.out,
        };
        Some(act(peer_servers, &mut around))
    }

    /// What it keeps.
    #[must_use]
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Sends what there is to be sent, and what comes of that on this machine.
    fn send(&mut self, links: &mut Links) {
        while !self.out.is_empty() {
            std::mem::swap(&mut self.out, &mut self.sent);
            let mut sent = std::mem::take(&mut self.sent);
            for out in sent.drain(..) {
                self.send_one(links, out);
            }
            self.sent = sent;
        }
    }

    /// Sends one thing; what comes of that may be more.
    fn send_one(&mut self, links: &mut Links, out: Out) {
        match out {
            Out::Send(
                peer,
                Control::ToKernel {
                    object, message, ..
                },
            ) => {
                if let Some(bundle) = self.bundles.add(peer, (object, message)) {
                    self.tell(links, peer, bundle);
                }
            }
            Out::Send(PEER_SERVERS, Control::Answer { id, answer }) => {
                self.with_peer_servers(links, |peer_servers, a| {
                    peer_servers.core_answers(a, id, answer)
                });
            }
            Out::Send(peer, message) => {
                self.tell_the_rest(links, peer);
                if let Some(link) = self.links.get(&peer) {
                    // A link that takes no more has ended; that is told.
                    links.send(*link, message);
                }
            }
            Out::Cut(peer, why) => {
                self.bundles.take(peer);
                if let Some(link) = self.links.get(&peer) {
                    tracing::warn!("{}: {why}", describe(links, *link));
                    links.close(*link, &why);
                }
            }
            Out::GiveUp(object, why) => {
                self.tell_the_rest(links, MACHINE);
                let (local, mut around) = self.around(links);
                local.give_up(&mut around, object, &why);
            }
            Out::Again(peer, message) => self.peer_says(links, peer, message, Vec::new()),
            Out::PeerServer(name, to, message) => {
                self.with_peer_servers(links, |peer_servers, a| {
                    peer_servers.tell(a, &name, to, message)
                });
            }
            Out::Meet {
                name,
                kernel,
                number,
                request,
            } => {
                self.with_peer_servers(links, |peer_servers, a| {
                    peer_servers.meet(a, &name, (kernel, number), request);
                });
            }
            Out::Tagged { name, asker, part } => {
                self.with_peer_servers(links, |peer_servers, a| {
                    peer_servers.tagged(a, &name, asker, part)
                });
            }
            Out::Unused(name) if self.peer_servers.is_some() => {
                self.with_peer_servers(links, |peer_servers, a| peer_servers.unused(a, &name));
            }
            Out::Unused(name) => self.core.let_unused_go(&name, &mut self.out),
            Out::WantsView(name) => {
                self.with_peer_servers(links, |peer_servers, _| peer_servers.wants_view(&name));
            }
            Out::Parted { name, kernel, how } => {
                self.with_peer_servers(links, |peer_servers, a| {
                    peer_servers.parted(a, &name, kernel, how)
                });
            }
        }
    }

    /// Tells a kernel something.
    fn tell(&mut self, links: &mut Links, peer: PeerId, (object, message): Bundle) {
        if peer == MACHINE {
            self.core.clock += 1;
            let stamp = self.core.clock;
            let (local, mut around) = self.around(links);
            local.hear(&mut around, object, (stamp, message));
        } else if let Some(link) = self.links.get(&peer) {
            // A link that takes no more has ended; that is told.
            self.core.clock += 1;
            let stamp = self.core.clock;
            links.send(
                *link,
                Control::ToKernel {
                    object,
                    stamp,
                    message,
                },
            );
        }
    }

    /// Tells the kernels of a peer what was held until now.
    fn tell_the_rest(&mut self, links: &mut Links, peer: PeerId) {
        if let Some(bundle) = self.bundles.take(peer) {
            self.tell(links, peer, bundle);
        }
    }

    /// Sends all, also what was held, and what comes of that.
    fn send_all(&mut self, links: &mut Links) {
        self.send(links);
        while let Some((peer, bundle)) = self.bundles.next() {
            self.tell(links, peer, bundle);
            self.send(links);
        }
    }

    /// A program says something.
    fn peer_says(
        &mut self,
        links: &mut Links,
        peer: PeerId,
        message: Control,
        descriptors: Vec<OwnedFd>,
    ) {
        let Some(message) = self.unless_ending(peer, message) else {
            return;
        };
        let Some(message) = self.unless_early(links.now(), peer, message) else {
            return;
        };
        let message = match self.peer_servers {
            Some(_) => self
                .with_peer_servers(links, |peer_servers, a| {
                    peer_servers.intercept(a, peer, message)
                })
                .flatten(),
            None => Some(message),
        };
        let message = message.and_then(|it| self.core.resolve(peer, it, &mut self.out));
        let message = message.and_then(|message| self.ask_local(links, peer, message, descriptors));
        if let Some(message) = message {
            self.core.says(peer, message, &mut self.out);
        }
    }

    /// A message that is to be heard now. What a kernel asks for waits as long as others may bring it.
    fn unless_early(&mut self, now: Instant, peer: PeerId, message: Control) -> Option<Control> {
        use quire_core::dsm::message::FromKernel::{DataRequest, DataUnlock};
        let asks = matches!(
            message,
            Control::FromKernel {
                message: DataRequest { .. } | DataUnlock { .. },
                ..
            } | Control::Request {
                request: Request::WillNeed { .. },
                ..
            }
        );
        if asks && self.is_early(now) {
            self.asked_early.push((peer, message));
            return None;
        }
        Some(message)
    }

    /// Whether programs may still come with what they had written before this server was started.
    fn is_early(&self, now: Instant) -> bool {
        self.opens_at.is_some_and(|at| at > now)
    }

    /// What this machine's programs share, and what it acts on.
    fn around<'a>(&'a mut self, links: &'a mut Links) -> (&'a mut Local, Around<'a>) {
        let around = Around {
            core: &mut self.core,
            links,
            out: &mut self.out,
        };
        (&mut self.local, around)
    }

    /// What was asked of this machine's own copies of pages, before the core is asked. Says
    /// what is left for that.
    fn ask_local(
        &mut self,
        links: &mut Links,
        peer: PeerId,
        message: Control,
        descriptors: Vec<OwnedFd>,
    ) -> Option<Control> {
        let Control::Request { id, request } = message else {
            return Some(message);
        };
        let (local, mut around) = self.around(links);
        match local.asked(&mut around, peer, (id, request), descriptors) {
            Asked::Answered(answer, with) => {
                let answer = answer.map_err(|(kind, text)| Failure { kind, text });
                self.tell_the_rest(links, peer);
                if let Some(link) = self.links.get(&peer) {
                    // A link that takes no more has ended; that is told.
                    links.send_with(*link, Control::Answer { id, answer }, with);
                }
                None
            }
            Asked::Later => None,
            Asked::Other(request) => Some(Control::Request { id, request }),
        }
    }

    /// Takes back what peers had whose time is over.
    fn let_go(&mut self, now: Instant) {
        while let Some((&(at, peer), &leaving)) = self.leaving.first_key_value() {
            if at > now {
                return;
            }
            self.leaving.pop_first();
            let Leaving { how, may_come_back } = leaving;
            self.core.left(peer, how, may_come_back, &mut self.out);
        }
    }
}

/// Who a peer is, for a person: its name, and where it has not shown that the name is its
/// own, what is known for sure.
fn described(who: &Established) -> String {
    let name = &who.hello.name;
    match (who.proof, &who.peer) {
        (Proof::Certificate, _) => name.to_string(),
        (_, LinkPeer::Local { pid, uid, .. }) => format!("{name} (uid {uid}, pid {pid})"),
        (_, LinkPeer::Beside { pid }) => format!("{name} (pid {pid})"),
        (_, peer) => format!("{name} ({peer})"),
    }
}

/// Where a program may come to share pages, if it wants to and has come over plain TCP from
/// this machine.
fn beside(links: &Links, who: &Established) -> Option<Name> {
    let is_from_here = match &who.peer {
        LinkPeer::Tcp(address) => address.ip().to_canonical().is_loopback(),
        _ => false,
    };
    let wants = who.hello.features & SHARES_PAGES != 0;
    let is_plain = who.proof == Proof::Nothing;
    links
        .beside()
        .filter(|_| is_from_here && wants && is_plain)
        .cloned()
}

fn describe(links: &Links, link: LinkId) -> String {
    links
        .peer(link)
        .map_or_else(|| "a peer".into(), ToString::to_string)
}

impl Handler for Server {
    fn greeted(
        &mut self,
        links: &mut Links,
        link: LinkId,
        who: &Established,
    ) -> Result<Welcome, Refusal> {
        // Peer servers have to take what it hands over.
        if who.hello.role == Role::Server {
            return self.greeted_server(link, who);
        }
        if self.is_over {
            return Err(Refusal {
                reason: Reason::Ending,
                text: "the server ends".into(),
            });
        }
        let code = who.hello.machine;
        let Some(machine) = code.machine() else {
            return Err(Refusal {
                reason: Reason::Nonsense,
                text: format!(
                    "machine type {} is unknown here: take a newer server",
                    code.0
                ),
            });
        };
        self.next += 1;
        let peer = PeerId(self.next);
        self.peers.insert(link, peer);
        self.links.insert(peer, link);
        let identity = who.to_string();
        let joined = Peer::new(identity, machine).described(described(who));
        self.core.joined(peer, joined);
        if who.hello.features & HAS_RECOVERY != 0 {
            self.kept.insert(peer);
        }
        let shares = self.local.greeted(peer, who, machine);
        Ok(Welcome {
            name: self.name.clone(),
            kernel: KernelId(peer.0),
            lease: u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX),
            features: match shares {
                true => SHARES_PAGES,
                false => 0,
            },
            beside: beside(links, who),
        })
    }

    fn welcomed(&mut self, links: &mut Links, link: LinkId, welcome: &Welcome) {
        if let Some(peer_servers) = &mut self.peer_servers {
            peer_servers.welcomed(links, link, welcome);
        }
    }

    fn message(
        &mut self,
        links: &mut Links,
        link: LinkId,
        message: Control,
        descriptors: Vec<OwnedFd>,
    ) {
        self.look_whether_late(links.now());
        self.look_at_lease(links);
        if let Some(peer) = self.peers.get(&link).copied() {
            self.peer_says(links, peer, message, descriptors);
        } else {
            self.with_peer_servers(links, |peer_servers, a| {
                peer_servers.heard(a, link, message)
            });
        }
        self.send(links);
    }

    fn closed(&mut self, links: &mut Links, link: LinkId, closed: &Closed) {
        self.look_whether_late(links.now());
        if self.peer_servers.as_ref().is_some_and(|it| it.has(link)) {
            self.with_peer_servers(links, |peer_servers, a| {
                peer_servers.closed(a, link, &closed.why)
            });
            return self.send(links);
        }
        let Some(peer) = self.peers.remove(&link) else {
            return;
        };
        self.links.remove(&peer);
        self.bundles.take(peer);
        let how = match closed.why {
            LinkError::Goodbye(_) | LinkError::Exited => Parting::Left,
            _ => Parting::Crashed,
        };
        // Whatever else is wrong, the link's own line says.
        if matches!(closed.why, LinkError::Ended | LinkError::Closed(_)) {
            tracing::warn!("{}: {}", self.core.words_for(peer), closed.why);
        }
        self.core.cut_off(peer);
        if let Some(peer_servers) = &mut self.peer_servers {
            peer_servers.program_left(peer);
        }
        let is_done = matches!(closed.why, LinkError::Goodbye(_));
        let (local, mut around) = self.around(links);
        local.closed(&mut around, peer, is_done);
        let may_come_back = closed.may_come_back;
        let leaving = Leaving { how, may_come_back };
        let mut at = closed.stopped_at;
        let has_recovery = self.kept.remove(&peer);
        if has_recovery && self.core.may_claim(peer) && !matches!(closed.why, LinkError::Goodbye(_))
        {
            // Its recovery process brings what it had written, if it was killed before it had given all back.
            at = at.max(links.now() + self.lease / 2);
        }
        if let Some(until) = self.late_until.filter(|_| how == Parting::Crashed) {
            at = at.max(until);
        }
        self.leaving.insert((at, peer), leaving);
        self.let_go(links.now());
        self.send(links);
    }

    fn ready(&mut self, links: &mut Links, key: u64) {
        if key < local::KEYS {
            self.is_over = true;
            return;
        }
        self.look_at_lease(links);
        if self.is_early(links.now()) {
            self.touched_early.push(key);
            return;
        }
        let (local, mut around) = self.around(links);
        local.ready(&mut around, key);
        self.send(links);
    }

    fn woken(&mut self, links: &mut Links) {
        self.with_peer_servers(links, |peer_servers, a| peer_servers.woken(a));
        self.send(links);
    }

    fn deadline(&self) -> Option<Instant> {
        let leaving = self.leaving.first_key_value().map(|((at, _), _)| *at);
        let peer_servers = self.peer_servers.as_ref().and_then(PeerServers::deadline);
        let due = leaving.into_iter().chain(self.core.next_look());
        let due = due.chain(self.forsaken_at).chain(self.opens_at);
        due.chain(peer_servers).chain(self.local.deadline()).min()
    }

    fn slept(&mut self, links: &mut Links, length: Duration) {
        tracing::warn!("this machine was asleep for {} s", length.as_secs_f64());
        self.with_peer_servers(links, |peer_servers, a| peer_servers.slept(a, length));
        self.send_all(links);
    }

    fn turn_ends(&mut self, links: &mut Links, now: Instant) {
        self.look_whether_late(now);
        self.last_turn = Some(now);
        if self.opens_at.is_some_and(|at| at <= now) {
            self.opens_at = None;
            for (peer, message) in std::mem::take(&mut self.asked_early) {
                self.peer_says(links, peer, message, Vec::new());
            }
            for key in std::mem::take(&mut self.touched_early) {
                let (local, mut around) = self.around(links);
                local.ready(&mut around, key);
            }
        }
        self.let_go(now);
        if self.core.misses() && self.forsaken_at.is_none() {
            self.forsaken_at = Some(now + self.lease);
        }
        if self.forsaken_at.is_some_and(|at| at <= now) {
            let goes_on = self.core.forsaken(&mut self.out);
            self.forsaken_at = goes_on.then(|| now + self.lease);
        }
        self.core.look_behind(now, &mut self.out);
        self.with_peer_servers(links, |peer_servers, a| peer_servers.turn_ends(a, now));
        self.send(links);
        self.show_until_lease_ends();
        let (local, mut around) = self.around(links);
        local.turn_ends(&mut around, now);
        self.core.tell_watchers(&mut self.out);
        self.send_all(links);
        self.with_peer_servers(links, PeerServers::send);
    }
}

impl Server {
    /// A server has connected.
    fn greeted_server(&mut self, link: LinkId, who: &Established) -> Result<Welcome, Refusal> {
        let Some(peer_servers) = &mut self.peer_servers else {
            return Err(Refusal {
                reason: Reason::Denied,
                text: "this server has no peer servers: give it --peers or --etcd".into(),
            });
        };
        peer_servers.greeted(link, who)?;
        Ok(Welcome {
            name: self.name.clone(),
            kernel: KernelId(0),
            lease: u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX),
            features: 0,
            beside: None,
        })
    }
}

/// Listens at addresses. Says at which, where any port was asked for.
///
/// # Errors
/// When an address needs TLS and there is no identity, and those of the system.
pub fn listen(turn: &mut Turn, at: &[Address], security: &Security) -> io::Result<Vec<Address>> {
    let listen = |address: &Address| {
        let listening = turn.links.listen(address, security);
        listening.map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))
    };
    at.iter().map(listen).collect()
}

/// Serves until a descriptor becomes readable. Then it takes back what programs have written,
/// as far as they answer, has it safe where it is kept, hands over to peer servers
/// what they would lose with it, and says goodbye to all.
///
/// # Errors
/// When the loop cannot go on.
pub fn serve(turn: &mut Turn, server: &mut Server, end: BorrowedFd<'_>) -> io::Result<Ended> {
    let _first = turn.go_first();
    turn.links.watch(end, 0)?;
    server.wake_with(turn.waker());
    while !server.is_over {
        turn.once(server, LONGEST)?;
    }
    ending::end(turn, server)
}
