//! The links of a server to its peer servers: one to each. Whoever has the smaller number
//! connects, and connects again when the link breaks.
//!
//! A link carries what is said in order and loses nothing as long as it holds. What is said in a
//! turn of the loop goes together when that ends. What is said while there is no link waits for it.
//! What was said to a link that broke may be lost; the owner of this is told, and says nothing more
//! in that view.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quire_core::dsm::message::ServerId;

use super::outside::Connect;
use crate::directory::Member;
use crate::link::greeting::Proof;
use crate::link::{Address, Again, Established, LinkError, LinkId, Links, Security, Seldom};
use crate::server::said::{self, Garbage, Parts, Said, Together};
use crate::wire::control::{Name, Reason, Refusal, Welcome};
use crate::wire::{Contents, Control};

/// Between two attempts to connect, at first and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// The way to one peer server.
struct Wire {
    /// Where it is; none where it is no member, as far as is known.
    address: Option<String>,
    link: Option<LinkId>,
    /// Both sides know each other.
    is_up: bool,
    queue: Vec<Control>,
    /// What was said in this turn, while there is a link.
    together: Together,
    /// When to connect.
    again: Again,
    /// Since when there is no link.
    down: Instant,
    /// What is told where it cannot be reached.
    told: Seldom,
}

/// A link to a server.
struct End {
    /// Which server it is, where that is known.
    peer_server: Option<ServerId>,
    parts: Parts,
}

/// A message, from whom, and the page in it.
pub(super) type Came = (Option<ServerId>, Said, Option<Contents>);

/// The links to all peer servers.
pub(super) struct Wires {
    me: Option<ServerId>,
    wires: BTreeMap<ServerId, Wire>,
    ends: BTreeMap<LinkId, End>,
    security: Security,
    /// Names that certificates of servers are for.
    names: Vec<Name>,
    lease: Duration,
    clock: fn() -> Instant,
    dial: Connect,
}

impl Wires {
    pub fn new(
        (security, names): (Security, Vec<Name>),
        lease: Duration,
        clock: fn() -> Instant,
        dial: Connect,
    ) -> Wires {
        Wires {
            me: None,
            wires: BTreeMap::new(),
            ends: BTreeMap::new(),
            security,
            names,
            lease,
            clock,
            dial,
        }
    }

    /// This server has another number from now on, or none. All links to peer servers end.
    pub fn start(&mut self, me: Option<ServerId>, links: &mut Links) {
        self.me = me;
        self.wires.clear();
        for (link, end) in &mut self.ends {
            if end.peer_server.take().is_some() {
                links.close(*link, "this server starts anew");
            }
        }
    }

    /// Whether a link is one to a server.
    pub fn has(&self, link: LinkId) -> bool {
        self.ends.contains_key(&link)
    }

    /// A server is a member.
    pub fn joined(&mut self, member: &Member) {
        self.wire(member.id).address = Some(member.address.clone());
    }

    /// A server is no member any more.
    pub fn left(&mut self, id: ServerId) {
        if let Some(wire) = self.wires.get_mut(&id) {
            wire.address = None;
            if wire.link.is_none() {
                self.wires.remove(&id);
            }
        }
    }

    /// Whether both sides can speak.
    pub fn is_up(&self, id: ServerId) -> bool {
        Some(id) == self.me || self.wires.get(&id).is_some_and(|wire| wire.is_up)
    }

    /// Since when there is no link to a peer server.
    pub fn down_since(&self, id: ServerId) -> Option<Instant> {
        let wire = self.wires.get(&id).filter(|wire| !wire.is_up)?;
        Some(wire.down)
    }

    fn wire(&mut self, id: ServerId) -> &mut Wire {
        let now = (self.clock)();
        self.wires.entry(id).or_insert_with(|| Wire {
            address: None,
            link: None,
            is_up: false,
            queue: Vec::new(),
            together: Together::default(),
            again: Again::new(now, AGAIN),
            down: now,
            told: Seldom::default(),
        })
    }

    /// A server has connected. Whether it may stay.
    pub fn greeted(&mut self, link: LinkId, who: &Established) -> Result<(), Refusal> {
        let denied = |text: String| Refusal {
            reason: Reason::Denied,
            text,
        };
        match who.proof {
            Proof::Certificate if !self.names.contains(&who.hello.name) => {
                return Err(denied(format!(
                    "{} is not the name of a peer server here; name it with --peer-server",
                    who.hello.name
                )));
            }
            Proof::User(uid) if uid != rustix::process::getuid().as_raw() => {
                return Err(denied(format!(
                    "a server of user {uid} is no peer server of this user's"
                )));
            }
            _ => {}
        }
        self.add(link, None);
        Ok(())
    }

    fn add(&mut self, link: LinkId, peer_server: Option<ServerId>) {
        let parts = Parts::default();
        self.ends.insert(link, End { peer_server, parts });
    }

    /// A server to which this one connected has welcomed it.
    pub fn welcomed(&mut self, links: &mut Links, link: LinkId, welcome: &Welcome) {
        let Some(to) = self.ends.get(&link).and_then(|end| end.peer_server) else {
            return;
        };
        let is_tls = self.wires.get(&to).is_some_and(|wire| {
            let address = wire.address.as_ref().and_then(|text| text.parse().ok());
            address.is_some_and(|address: Address| {
                matches!(self.security.for_address(&address), Ok(Some(_)))
            })
        });
        if is_tls && !self.names.contains(&welcome.name) {
            return links.close(link, "that is not the name of a peer server");
        }
        if u128::from(welcome.lease) != self.lease.as_millis() {
            tracing::error!(
                "a peer server has leases of {} ms, this one of {} ms: give all the same --lease",
                welcome.lease,
                self.lease.as_millis()
            );
            return links.close(link, "peer servers must have the same --lease");
        }
        for part in said::encode(
            self.me.unwrap_or(ServerId(0)),
            &Said::Introduce { to },
            None,
        ) {
            links.send(link, part);
        }
        self.up(links, to);
    }

    /// A server that connected says which it is. The peer server whose earlier link it takes the
    /// place of, if there was one.
    pub fn introduced(
        &mut self,
        links: &mut Links,
        link: LinkId,
        (from, to): (ServerId, ServerId),
    ) -> Option<ServerId> {
        let is_known = self
            .ends
            .get(&link)
            .is_none_or(|end| end.peer_server.is_some());
        if is_known || self.me != Some(to) || from == to {
            links.close(link, "another server was meant");
            return None;
        }
        let before = self.wire(from).link;
        let broken = before.and_then(|before| self.ended(before));
        if let Some(before) = before {
            links.close(before, "there is a newer link");
        }
        if let Some(end) = self.ends.get_mut(&link) {
            end.peer_server = Some(from);
        }
        self.wire(from).link = Some(link);
        broken
    }

    /// What waited for a link leaves.
    pub fn up(&mut self, links: &mut Links, id: ServerId) {
        let wire = self.wire(id);
        wire.is_up = true;
        if let Some(address) = &wire.address {
            wire.told.reached(format_args!("the server at {address}"));
        }
        wire.again.succeeded();
        let Some(link) = wire.link else { return };
        for message in std::mem::take(&mut wire.queue) {
            links.send(link, message);
        }
    }

    /// A link to a server has ended: where it never stood, a line says so, and then one a minute.
    pub fn tell(&mut self, link: LinkId, why: &LinkError) {
        let server = self.ends.get(&link).and_then(|end| end.peer_server);
        let wire = server.and_then(|id| self.wires.get_mut(&id));
        if let Some(wire) = wire.filter(|wire| !wire.is_up)
            && let Some(address) = &wire.address
        {
            let who = format_args!("the server at {address}");
            wire.told.unreachable((self.clock)(), who, why);
        }
    }

    /// A link to a server has ended. The peer server to which something may have been lost.
    pub fn ended(&mut self, link: LinkId) -> Option<ServerId> {
        let peer_server = self.ends.remove(&link)?.peer_server?;
        let wire = self.wires.get_mut(&peer_server)?;
        if wire.link != Some(link) {
            return None;
        }
        let was_up = std::mem::take(&mut wire.is_up);
        wire.link = None;
        wire.together = Together::default();
        wire.again.later((self.clock)());
        if was_up {
            wire.down = (self.clock)();
        }
        if wire.address.is_none() {
            self.wires.remove(&peer_server);
        }
        was_up.then_some(peer_server)
    }

    /// Says something to a peer server, now or when there is a link.
    pub fn say(&mut self, links: &mut Links, to: ServerId, said: &Said, page: Option<Contents>) {
        let Some(me) = self.me else { return };
        let wire = self.wire(to);
        let Some(link) = wire.link.filter(|_| wire.is_up) else {
            wire.queue.extend(said::encode(me, said, page));
            return;
        };
        for part in wire.together.add(me, said, page) {
            // A link that takes no more has ended; that is told.
            links.send(link, part);
        }
    }

    /// Sends what was said in this turn.
    pub fn turn_ends(&mut self, links: &mut Links) {
        let Some(me) = self.me else { return };
        for wire in self.wires.values_mut() {
            if let Some((link, together)) = wire.link.zip(wire.together.take(me)) {
                links.send(link, together);
            }
        }
    }

    /// Says something to a server over the link that it came by.
    pub fn reply(&mut self, links: &mut Links, link: LinkId, said: &Said) {
        // In the order in which it is said.
        self.turn_ends(links);
        for part in said::encode(self.me.unwrap_or(ServerId(0)), said, None) {
            links.send(link, part);
        }
    }

    /// Something came over a link to a server.
    pub fn came(
        &mut self,
        link: LinkId,
        from: ServerId,
        (body, data): (&[u8], Vec<Option<Contents>>),
    ) -> Result<Vec<Came>, Garbage> {
        let Some(end) = self.ends.get_mut(&link) else {
            return Ok(Vec::new());
        };
        let came = end.parts.add(body, data)?;
        let peer_server = end.peer_server;
        let came = came.into_iter().map(|(said, page)| match &said {
            Said::Introduce { .. } => (Some(from), said, page),
            _ => (peer_server, said, page),
        });
        Ok(came.collect())
    }

    /// When the next attempt to connect is due.
    pub fn deadline(&self) -> Option<Instant> {
        let due = self
            .wires
            .iter()
            .filter(|(id, wire)| self.is_due(**id, wire));
        due.map(|(_, wire)| wire.again.due()).min()
    }

    fn is_due(&self, id: ServerId, wire: &Wire) -> bool {
        self.me.is_some_and(|me| me < id) && wire.link.is_none() && wire.address.is_some()
    }

    /// Connects where that is due.
    pub fn connect(&mut self, links: &mut Links, now: Instant) {
        let due = self
            .wires
            .iter()
            .filter(|(id, wire)| self.is_due(**id, wire) && wire.again.due() <= now);
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.connect_to(links, id, now);
        }
    }

    fn connect_to(&mut self, links: &mut Links, id: ServerId, now: Instant) {
        let Some(wire) = self.wires.get_mut(&id) else {
            return;
        };
        wire.again.later(now);
        let Some(Ok(address)) = wire.address.as_ref().map(|text| text.parse::<Address>()) else {
            return;
        };
        match (self.dial)(links, &address, &self.security) {
            Ok(link) => {
                wire.link = Some(link);
                self.add(link, Some(id));
            }
            Err(error) => tracing::info!("the server at {address}: {error}"),
        }
    }
}
