//! What a server does with messages: it finds the object, looks at rights, and asks the
//! object. No I/O: one message in, messages out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use quire_core::dsm::message::{FromKernel, KernelId, ServerId, ToKernel};
use quire_core::dsm::scheduler::Nonsense;
use quire_core::dsm::scheduler::distributed::{Message, MissedView};
use quire_core::dsm::sync::{Answered, Parting, Party, RequestId as SyncId};
use quire_core::dsm::types::Machine;

use naming::{AllBegun, KeyNumbers};
pub(super) use naming::{tell_of_begun, was_removed};

use super::backed::Asker;
use super::keeping::Keeping;
use super::object::forked_children::ForkedChildren;
use super::object::tags::MOST_SEGMENTS;
use super::object::{ANYONE, Object, Page, Part, Refused};
use super::watch::Watchers;
use crate::wire::control::{
    self, Answer, Failure, FailureKind, Handle, Name, Request, RequestId, Rights, SchedulerKind,
};
use crate::wire::{Contents, Control};

mod claims;
mod look;
mod naming;

/// Objects that one answer lists at most.
const LISTED: usize = 128;

/// What one needs to synchronise with others.
const TO_WRITE: Rights = Rights {
    read: false,
    write: true,
};

/// Objects that one peer may have open at a time.
const MOST_OPEN: usize = 4096;
/// Objects that a server keeps at most.
const MOST_OBJECTS: usize = 65_536;

/// A later time than this no server's clock has for centuries.
const LATEST: u64 = 1 << 63;

/// No server says so much to kernels without a word to its peer servers: what a million messages a
/// second are in four hours.
const UNHEARD: u64 = 1 << 34;

/// A peer, among all that a server ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u64);

/// A peer.
#[derive(Debug)]
pub struct Peer {
    /// As whom it counts where rights are given.
    identity: String,
    /// Who it is, for a person.
    described: String,
    machine: Machine,
    open: BTreeMap<Handle, Open>,
    next: u32,
    /// Its link has ended. What it has is still its own for a while.
    pub(super) is_cut_off: bool,
}

/// An object that a peer has open.
#[derive(Debug)]
struct Open {
    name: Name,
    kernel: KernelId,
    rights: Rights,
    opening: Opening,
    /// So many pages came with contents.
    received: u64,
    /// Where it is open only for what another link's kernel had written.
    claim: Option<claims::Claim>,
}

/// As whom a server knows this machine's kernels, whose pages programs here share.
pub(super) const MACHINE: PeerId = PeerId(0);

/// As whom the core knows the part of this server that speaks with peer servers.
pub(super) const PEER_SERVERS: PeerId = PeerId(u64::MAX);

/// Who asks for what nobody asked for: the answer goes nowhere.
pub(super) const NOBODY: PeerId = PeerId(u64::MAX - 1);

/// As what an object is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// As a kernel of its own.
    Kernel,
    /// As a program that shares the pages of this machine's kernel.
    Program,
    /// As this machine's kernel, for programs whose rights are known.
    Machine,
    /// For what was written over another link.
    Claim,
}

/// What is to be done.
#[derive(Debug)]
pub enum Out {
    /// A peer gets a message.
    Send(PeerId, Control),
    /// The link to a peer is ended, for this reason.
    Cut(PeerId, String),
    /// This machine's copies of an object's pages are given up, for this reason.
    GiveUp(Handle, String),
    /// A peer says this again, as what it had to wait for is there.
    Again(PeerId, Control),
    /// A peer server gets a message about an object.
    PeerServer(Name, ServerId, Message<Page>),
    /// Somebody synchronises over an object that several servers share.
    Meet {
        /// The object.
        name: Name,
        /// Who.
        kernel: KernelId,
        /// Which of its requests it is.
        number: RequestId,
        /// How.
        request: quire_core::dsm::sync::Request,
    },
    /// Somebody has given a part of an object that several servers share another type, and is
    /// answered when all of them know.
    Tagged {
        /// The object.
        name: Name,
        /// Who.
        asker: Asker,
        /// The part, and its type.
        part: control::Segment,
    },
    /// Nobody has an object open here any more that was discarded.
    Unused(Name),
    /// The next view of an object decides about what was brought of it.
    WantsView(Name),
    /// Somebody is gone who had an object open that several servers share.
    Parted {
        /// The object.
        name: Name,
        /// Who.
        kernel: KernelId,
        /// How.
        how: Parting,
    },
}

/// The objects of a server, and its peers.
#[derive(Default)]
pub struct Core {
    pub(super) objects: BTreeMap<Name, Object>,
    begun: AllBegun,
    key_numbers: KeyNumbers,
    pub(super) peers: BTreeMap<PeerId, Peer>,
    /// Which peer a kernel belongs to, and what it calls the object.
    pub(super) kernels: BTreeMap<KernelId, (PeerId, Handle)>,
    last_kernel: u64,
    /// What is said to kernels is numbered by this, on and on. It is a clock of all servers that are joined:
    /// whoever hears of another one's time goes on from there. So a page's later version has a later time.
    pub(super) clock: u64,
    /// Kernels whose links have ended, and what had been called what there.
    without_link: BTreeMap<(PeerId, Handle), claims::Left>,
    /// What stands behind the objects.
    pub(super) keeping: Keeping,
    watchers: Watchers,
    /// Somebody may come back, since this was last looked at.
    misses: bool,
    /// The server ends: nothing new is begun.
    pub(super) is_ending: bool,
    /// It hands over what it has: programs are not heard any more.
    pub(super) is_deaf: bool,
    /// What others may do to each new object, unless its maker says otherwise.
    pub(super) usual_grants: Vec<(String, Rights)>,
}

impl Peer {
    /// A peer that has nothing open.
    #[must_use]
    pub fn new(identity: String, machine: Machine) -> Peer {
        Peer {
            described: identity.clone(),
            identity,
            machine,
            open: BTreeMap::new(),
            next: 0,
            is_cut_off: false,
        }
    }

    /// The same peer, described in these words where people look.
    #[must_use]
    pub fn described(mut self, words: String) -> Peer {
        self.described = words;
        self
    }
}

impl Core {
    /// The objects, by name.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    /// A peer is here.
    pub fn joined(&mut self, id: PeerId, peer: Peer) {
        self.peers.insert(id, peer);
    }

    /// The link to a peer has ended. Nothing is sent to it any more; what it has stays its
    /// own until [`Core::left`].
    pub fn cut_off(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.is_cut_off = true;
        }
        self.remember(id);
        self.unwatch(id);
    }

    /// Who a peer is, where people look.
    pub(super) fn words_for(&self, id: PeerId) -> &str {
        self.peers.get(&id).map_or("a peer", |peer| &peer.described)
    }

    /// A peer has certainly stopped to use what it had. What it alone had of discarded objects stays,
    /// for some leases, where it may come back.
    pub fn left(&mut self, id: PeerId, how: Parting, may_come_back: bool, out: &mut Vec<Out>) {
        let Some(peer) = self.peers.remove(&id) else {
            return;
        };
        for open in peer.open.into_values() {
            if may_come_back {
                self.miss(&open.name);
            }
            self.close(&open, how, out);
        }
    }

    /// Looks at what the pager of an object has said, and does what is due there.
    pub(super) fn look_behind_one(&mut self, name: &Name, now: Instant, out: &mut Vec<Out>) {
        self.act(name, out, |object, tell| object.look_behind(now, tell));
    }

    /// A peer says something.
    pub fn says(&mut self, id: PeerId, message: Control, out: &mut Vec<Out>) {
        match message {
            Control::Request {
                id: number,
                request,
            } => self.asked(id, number, request, out),
            Control::FromKernel { object, message } => self.heard(id, object, message, out),
            Control::ChildComes { object } => self.forked_child(id, object, ForkedChildren::comes),
            Control::ChildCame { object } => self.forked_child(id, object, ForkedChildren::came),
            other => out.push(Out::Cut(
                id,
                format!("{:?} is nothing that a kernel says", other.kind()),
            )),
        }
    }

    /// A kernel speaks with the scheduler of an object.
    fn heard(
        &mut self,
        id: PeerId,
        handle: Handle,
        message: FromKernel<Contents>,
        out: &mut Vec<Out>,
    ) {
        let open = self.peers.get(&id).and_then(|peer| peer.open.get(&handle));
        let Some(open) = open else {
            // It was removed, or closed: what was on its way then means nothing.
            return;
        };
        if open.opening == Opening::Claim {
            return self.brought(id, handle, message, out);
        }
        if !may(open.rights, &message) {
            let why = format!("{} writes to {} without the right to", id.0, open.name);
            out.push(cut(id, handle, why));
            return;
        }
        let (kernel, name) = (open.kernel, open.name.clone());
        if let FromKernel::DataWrite { pages, .. } = &message {
            let count = u64::from(pages.count);
            let open = self
                .peers
                .get_mut(&id)
                .and_then(|peer| peer.open.get_mut(&handle));
            if let Some(open) = open {
                open.received += count;
            }
        }
        let heard = self.act(&name, out, |object, tell| {
            object.hear(kernel, message, tell)
        });
        if let Some(Err(nonsense)) = heard {
            out.push(cut(id, handle, nonsense.to_string()));
        }
    }

    /// Does something with an object, if it is here, and passes on what comes of it.
    pub(super) fn act<R>(
        &mut self,
        name: &Name,
        out: &mut Vec<Out>,
        act: impl FnOnce(&mut Object, &mut dyn FnMut(KernelId, ToKernel<Contents>)) -> R,
    ) -> Option<R> {
        let (kernels, peers) = (&self.kernels, &self.peers);
        let object = self.objects.get_mut(name)?;
        let mut tell = |kernel, message| deliver(kernels, peers, kernel, message, out);
        if let Some(replica) = object.scheduler.joint() {
            replica.set_clock(self.clock);
        }
        let result = act(object, &mut tell);
        if let Some(replica) = object.scheduler.joint() {
            self.clock = self.clock.max(replica.clock());
        }
        for (to, message) in object.mail.drain(..) {
            out.push(Out::PeerServer(name.clone(), to, message));
        }
        self.settle(name, out);
        Some(result)
    }

    fn asked(&mut self, id: PeerId, number: RequestId, request: Request, out: &mut Vec<Out>) {
        let mut request = request;
        if let Request::Create(info) | Request::GiveSize(info) = &mut request {
            info.scheduler = info.scheduler.or(SchedulerKind::Multi);
        }
        let answer = match request {
            Request::Open { name, rights } => self.open(id, &name, rights, Opening::Kernel),
            Request::Close { object } => return self.close_handle((id, number), object, out),
            Request::Create(info) => return self.create((id, number), info, out),
            Request::Remove { name } => return self.remove((id, number), &name, out),
            Request::Begin { name } => self.begin(id, name),
            Request::GiveSize(info) => return self.give_size((id, number), info, out),
            Request::Discard { name } => return self.discard((id, number), &name, out),
            Request::List { after } => Ok(self.list(after.as_ref())),
            Request::Statistics { name, pages } => self.statistics(id, &name, pages),
            Request::Hottest { name, most } => self.hottest(id, &name, most),
            Request::Watch { name, pages } => match self.watch(id, number, name, pages) {
                Ok(()) => return,
                Err(refused) => Err(refused),
            },
            Request::Tag { name, tags } => {
                let changed = self.tag(id, &name, tags);
                return self.changed((id, number), &name, changed, out);
            }
            Request::TagPart { object, part } => {
                let tagged = self.tag_part(id, object, part);
                let asker = (id, number);
                let open = self.peers.get(&id).and_then(|peer| peer.open.get(&object));
                return match open.map(|open| open.name.clone()) {
                    Some(name) if tagged.is_ok() && self.is_joint(&name) => {
                        out.push(Out::Tagged { name, asker, part });
                    }
                    Some(name) => self.changed(asker, &name, tagged, out),
                    None => answer_with(id, number, tagged, out),
                };
            }
            Request::Grant { name, to, rights } => {
                let changed = self.grant(id, &name, to, rights);
                return self.changed((id, number), &name, changed, out);
            }
            Request::Sync { object } => return self.sync_handle((id, number), object, out),
            Request::Synchronise { object, request } => {
                return self.synchronise(id, number, object, request, out);
            }
            Request::Claim {
                session,
                object,
                name,
            } => self.claim(id, (PeerId(session.0), object), &name, out),
            Request::Vouch {
                object,
                first,
                stamps,
            } => self.vouch(id, object, (first, stamps)),
            Request::Settle { object, missing } => {
                return self.settle_claim((id, number), object, missing, out);
            }
            Request::Attach { .. }
            | Request::Register { .. }
            | Request::GiveBack { .. }
            | Request::WillNeed { .. }
            | Request::Unregister { .. } => {
                let text = "the server shares pages with programs of its own machine only";
                Err((FailureKind::Invalid, text.into()))
            }
        };
        answer_with(id, number, answer, out);
    }

    /// Whether a peer may do this to an object that is there.
    pub(super) fn allows(&self, id: PeerId, name: &Name, rights: Rights) -> bool {
        let found = self.peers.get(&id).zip(self.objects.get(name));
        found.is_some_and(|(peer, object)| object.allows(&peer.identity, rights))
    }

    /// A peer opens an object, by its key.
    pub(super) fn open(
        &mut self,
        id: PeerId,
        key: &Name,
        rights: Rights,
        opening: Opening,
    ) -> Result<Answer, Refused> {
        let Some(peer) = self.peers.get_mut(&id) else {
            return Err((FailureKind::Denied, "the link has ended".into()));
        };
        let name = key.plain();
        let object = self.objects.get_mut(key).ok_or_else(|| not_found(&name))?;
        if opening != Opening::Machine && !object.allows(&peer.identity, rights) {
            return Err(no_right(&name, (&peer.identity, rights), object));
        }
        if rights.write && object.is_read_only() {
            let text = format!("{name} can only be read: its pager takes nothing back");
            return Err((FailureKind::Denied, text));
        }
        if peer.open.len() >= MOST_OPEN {
            let text = format!("{MOST_OPEN} objects are open already; close some");
            return Err((FailureKind::Full, text));
        }
        object.new.end();
        self.last_kernel += 1;
        let kernel = KernelId(self.last_kernel);
        peer.next += 1;
        let handle = Handle(peer.next);
        if opening != Opening::Program {
            object.kernels.insert(kernel, peer.machine);
        }
        self.kernels.insert(kernel, (id, handle));
        peer.open.insert(
            handle,
            Open {
                name: key.clone(),
                kernel,
                rights,
                opening,
                received: 0,
                claim: None,
            },
        );
        let lost = match opening {
            Opening::Kernel | Opening::Program => object.orphans.tell(rights.write),
            Opening::Machine | Opening::Claim => 0,
        };
        Ok(Answer::Opened {
            object: handle,
            exact: key.exact(),
            info: object.told(),
            lost,
        })
    }

    fn close_handle(&mut self, asker: Asker, handle: Handle, out: &mut Vec<Out>) {
        match self.shut(asker.0, handle, out) {
            Some(name) => self.sync(asker, &name, out),
            None => not_open(asker, out),
        }
    }

    /// A peer has an object open no more. Which, if it had.
    pub(super) fn shut(&mut self, id: PeerId, handle: Handle, out: &mut Vec<Out>) -> Option<Name> {
        let open = self.peers.get_mut(&id)?.open.remove(&handle)?;
        self.close(&open, Parting::Left, out);
        Some(open.name)
    }

    fn sync_handle(&mut self, asker: Asker, handle: Handle, out: &mut Vec<Out>) {
        let peer = self.peers.get(&asker.0);
        let Some(open) = peer.and_then(|peer| peer.open.get(&handle)) else {
            return not_open(asker, out);
        };
        let name = open.name.clone();
        self.sync(asker, &name, out);
    }

    /// Takes back what a kernel had.
    fn close(&mut self, open: &Open, how: Parting, out: &mut Vec<Out>) {
        self.kernels.remove(&open.kernel);
        let (kernel, name) = (open.kernel, open.name.clone());
        let mut answers = Vec::new();
        let is_joint = self.act(&name, out, |object, tell| {
            object.gone(kernel, tell);
            object.sync.gone(Party(kernel.0), how, &mut answers);
            object.is_joint
        });
        if self.is_to_go(&name) {
            out.push(Out::Unused(name.clone()));
        }
        if is_joint == Some(true) {
            out.push(Out::Parted { name, kernel, how });
        }
        self.met(answers, out);
    }

    fn create(&mut self, asker: Asker, info: control::Object, out: &mut Vec<Out>) {
        let owner = self.owner_to_be(asker.0);
        match owner.and_then(|owner| self.new_object(info, owner)) {
            Ok(object) => self.admit(asker, object, out),
            Err(refused) => answer_with(asker.0, asker.1, Err(refused), out),
        }
    }

    /// As whom a peer would own an object that it wants to make, if it may.
    pub(super) fn may_create(&self, id: PeerId, info: &control::Object) -> Result<String, Refused> {
        let owner = self.owner_to_be(id)?;
        self.new_object(info.clone(), owner.clone())?;
        Ok(owner)
    }

    pub(super) fn owner_to_be(&self, id: PeerId) -> Result<String, Refused> {
        let identity = self.identity(id).map(str::to_owned);
        identity.ok_or_else(|| (FailureKind::Denied, "the link has ended".into()))
    }

    /// An object that there may be, with a key. It is not among the others yet.
    pub(super) fn new_object(
        &self,
        mut info: control::Object,
        owner: String,
    ) -> Result<Object, Refused> {
        info.name = self.new_key(&info.name)?;
        Object::new(info, owner, None).map(|object| self.granted(object))
    }

    /// A new object, to which others have the rights that they usually have here.
    pub(super) fn granted(&self, mut object: Object) -> Object {
        for (who, rights) in &self.usual_grants {
            object.grants.usual(who, *rights);
        }
        object
    }

    /// Adds an object that holds zeros, or this server's part in one, which may have been removed.
    pub(super) fn insert(
        &mut self,
        info: control::Object,
        owner: String,
        part: Option<Part>,
        is_removed: bool,
    ) -> Result<(), Refused> {
        let key = info.name.clone();
        let mut object = self.granted(Object::new(info, owner, part)?);
        object.is_discarded = is_removed;
        self.put(key, object);
        Ok(())
    }

    /// The object, if the peer may change what it is.
    fn own(&mut self, id: PeerId, name: &Name) -> Result<&mut Object, Refused> {
        let object = self.objects.get_mut(name);
        let name = name.plain();
        let object = object.ok_or_else(|| not_found(&name))?;
        match self.peers.get(&id) {
            Some(peer) if peer.identity == object.owner => Ok(object),
            _ => Err(belongs(&name, &object.owner)),
        }
    }

    fn remove(&mut self, asker: Asker, name: &Name, out: &mut Vec<Out>) {
        match self.may_remove(asker.0, name) {
            Ok(()) => {
                self.collect(name);
                self.dismiss(asker, name, out);
            }
            Err(refused) => answer_with(asker.0, asker.1, Err(refused), out),
        }
    }

    /// Whether a peer may remove an object now.
    pub(super) fn may_remove(&mut self, id: PeerId, name: &Name) -> Result<(), Refused> {
        match self.own(id, name)?.kernels.len() {
            0 => Ok(()),
            open => Err(still_open(name, open)),
        }
    }

    fn is_joint(&self, name: &Name) -> bool {
        self.objects.get(name).is_some_and(|object| object.is_joint)
    }

    /// An object, if it is here.
    pub(super) fn object(&mut self, name: &Name) -> Option<&mut Object> {
        self.objects.get_mut(name)
    }

    /// The identity as which a peer counts.
    pub(super) fn identity(&self, id: PeerId) -> Option<&str> {
        self.peers.get(&id).map(|peer| peer.identity.as_str())
    }

    /// Drops an object without regard to who uses it. Their links are ended.
    pub(super) fn drop_object(&mut self, name: &Name, why: &str, out: &mut Vec<Out>) {
        self.collect(name);
        if !self.forget_object(name) {
            return;
        }
        self.forget_kernels(name);
        let claimers = self.claimers(name);
        let users = self.users(name).map(|(id, handle, _)| (id, handle));
        // Each peer is cut off once, with all that it has.
        let users: BTreeMap<PeerId, Handle> = users.chain(claimers).collect();
        let cut = |(id, handle)| cut(id, handle, why.to_owned());
        out.extend(users.into_iter().map(cut));
    }

    /// Who has an object open, and how.
    fn users(&self, name: &Name) -> impl Iterator<Item = (PeerId, Handle, &Open)> {
        let opened = self.kernels.values().filter_map(|(id, handle)| {
            let open = self.peers.get(id)?.open.get(handle)?;
            Some((*id, *handle, open))
        });
        opened.filter(move |(_, _, open)| open.name == *name)
    }

    /// The kernels that have an object open, here or sharing a copy of this machine.
    pub(super) fn kernels_of(&self, name: &Name) -> BTreeSet<KernelId> {
        self.users(name).map(|(_, _, open)| open.kernel).collect()
    }

    /// A peer server speaks about an object; `None` where that is not here.
    pub(super) fn hear_peer_server(
        &mut self,
        name: &Name,
        from: ServerId,
        message: Message<Page>,
        out: &mut Vec<Out>,
    ) -> Option<Result<(), Nonsense>> {
        let heard = self.act(name, out, |object, tell| {
            object.hear_peer_server(from, message, tell)
        });
        self.claims_are_decided(name, out);
        heard
    }

    /// An object that several servers share has a new view.
    pub(super) fn new_view(
        &mut self,
        name: &Name,
        (epoch, members): (u64, BTreeSet<ServerId>),
        out: &mut Vec<Out>,
    ) -> Result<(), MissedView> {
        let entered = self.act(name, out, |object, tell| {
            object.new_view(epoch, members, tell)
        });
        self.claims_are_decided(name, out);
        entered.unwrap_or(Ok(()))
    }

    /// A peer server's clock: it is never ahead of this one's from now on.
    pub(super) fn hears_time(&mut self, clock: u64) {
        self.clock = self.clock.max(clock.min(LATEST));
    }

    /// A server of those that are joined is gone, and may have said more to kernels than the others have
    /// heard of: whatever is said from now on is later.
    pub(super) const fn passes_what_was_unheard(&mut self) {
        self.clock += UNHEARD;
    }

    /// Answers somebody who synchronises over an object that several servers share.
    pub(super) fn met_elsewhere(
        &self,
        kernel: KernelId,
        number: RequestId,
        answer: Result<quire_core::dsm::sync::Answer, Refused>,
        out: &mut Vec<Out>,
    ) {
        if let Some((peer, _)) = self.kernels.get(&kernel) {
            answer_with(*peer, number, answer.map(Answer::Synchronised), out);
        }
    }

    fn tag(
        &mut self,
        id: PeerId,
        name: &Name,
        tags: Vec<control::Segment>,
    ) -> Result<Answer, Refused> {
        self.own(id, name)?.tag(tags)?;
        Ok(Answer::Done)
    }

    /// Somebody who has an object open gives a part of it another type, which is like writing
    /// to it.
    fn tag_part(
        &mut self,
        id: PeerId,
        handle: Handle,
        part: control::Segment,
    ) -> Result<Answer, Refused> {
        let open = self.peers.get(&id).and_then(|peer| peer.open.get(&handle));
        // What programs of this machine share, its kernel has.
        let machine = open.and_then(|open| self.machines_kernel(&open.name));
        let found = open.and_then(|open| Some((open, self.objects.get_mut(&open.name)?)));
        let (open, object) =
            found.ok_or((FailureKind::NotFound, "the object is not open".into()))?;
        if !open.rights.write {
            let name = open.name.plain();
            let text = format!("{name} is open to be read; open it to be written");
            return Err((FailureKind::Denied, text));
        }
        let kernel = match open.opening {
            Opening::Program => machine.unwrap_or(open.kernel),
            Opening::Kernel | Opening::Machine | Opening::Claim => open.kernel,
        };
        object.tag_part(kernel, part)?;
        Ok(Answer::Done)
    }

    /// This machine's kernel of an object, if it has one.
    fn machines_kernel(&self, name: &Name) -> Option<KernelId> {
        let mut open = self.peers.get(&MACHINE)?.open.values();
        open.find(|open| open.name == *name).map(|open| open.kernel)
    }

    fn grant(
        &mut self,
        id: PeerId,
        name: &Name,
        to: String,
        rights: Rights,
    ) -> Result<Answer, Refused> {
        self.own(id, name)?.grant(to, rights)?;
        Ok(Answer::Done)
    }

    fn list(&self, after: Option<&Name>) -> Answer {
        let all = self
            .objects
            .values()
            .map(|object| (object.listed_as(), object));
        let is_later = |name: &Name| after.is_none_or(|after| name > after);
        let mut later: Vec<_> = all.filter(|(name, _)| is_later(name)).collect();
        // They are in this order already, but for some of those whose names were removed.
        later.sort_by(|(one, _), (other, _)| one.cmp(other));
        listed(later.into_iter().map(|(_, object)| object.listed()))
    }

    fn synchronise(
        &mut self,
        id: PeerId,
        number: RequestId,
        handle: Handle,
        request: quire_core::dsm::sync::Request,
        out: &mut Vec<Out>,
    ) {
        let peer = self.peers.get(&id);
        let open = peer.and_then(|peer| peer.open.get(&handle));
        let found = open.and_then(|open| Some((open.kernel, self.objects.get_mut(&open.name)?)));
        let Some((kernel, object)) = found else {
            return not_open((id, number), out);
        };
        if !peer.is_some_and(|peer| object.allows(&peer.identity, TO_WRITE)) {
            let name = object.info.name.plain();
            let text = format!("who may not write to {name} does not synchronise with others");
            return answer_with(id, number, Err((FailureKind::Denied, text)), out);
        }
        if object.is_joint {
            let name = object.info.name.clone();
            out.push(Out::Meet {
                name,
                kernel,
                number,
                request,
            });
            return;
        }
        let mut answers = Vec::new();
        let party = Party(kernel.0);
        object
            .sync
            .ask(party, SyncId(number.0), request, &mut answers);
        self.met(answers, out);
    }

    /// Answers those who synchronise.
    fn met(&self, answers: Vec<Answered>, out: &mut Vec<Out>) {
        for Answered {
            party,
            request,
            answer,
        } in answers
        {
            if let Some((peer, _)) = self.kernels.get(&KernelId(party.0)) {
                let answer = Ok(Answer::Synchronised(answer));
                answer_with(*peer, RequestId(request.0), answer, out);
            }
        }
    }
}

/// Has a peer cut off that cannot go on with an object. This machine goes on with others.
fn cut(id: PeerId, handle: Handle, why: String) -> Out {
    match id {
        MACHINE => Out::GiveUp(handle, why),
        id => Out::Cut(id, why),
    }
}

/// Whether somebody with these rights may say this.
fn may(rights: Rights, message: &FromKernel<Contents>) -> bool {
    use quire_core::dsm::message::Access::{Read, Write};
    match message {
        FromKernel::DataRequest { access: Read, .. } => rights.read,
        FromKernel::DataRequest { access: Write, .. }
        | FromKernel::DataUnlock { .. }
        | FromKernel::DataWrite { .. } => rights.write,
        FromKernel::LockCompleted { .. } | FromKernel::Terminate => true,
    }
}

/// The first of these objects, as many as a message holds.
pub(super) fn listed(objects: impl Iterator<Item = control::Object>) -> Answer {
    let mut later = objects.peekable();
    let mut objects: Vec<control::Object> = Vec::new();
    // An object with all types that it may have fits; many of them do not.
    let mut room = MOST_SEGMENTS;
    while objects.len() < LISTED
        && let Some(object) = later.next_if(|object| object.tags.len() <= room)
    {
        room -= object.tags.len();
        objects.push(object);
    }
    Answer::Listed {
        objects,
        more: later.peek().is_some(),
    }
}

fn not_open(asker: Asker, out: &mut Vec<Out>) {
    let refused = (FailureKind::NotFound, "the object is not open".into());
    answer_with(asker.0, asker.1, Err(refused), out);
}

pub(super) fn not_found(name: &Name) -> Refused {
    (FailureKind::NotFound, format!("there is no object {name}"))
}

/// What is said to who may not use an object so.
fn no_right(name: &Name, (who, rights): (&str, Rights), object: &Object) -> Refused {
    let (words, letters) = match (rights.read, rights.write) {
        (true, true) => ("read and write", "rw"),
        (false, true) => ("write", "rw"),
        _ => ("read", "r"),
    };
    let text = format!(
        "{} has no right to {name} (asked for: {words}); its maker, {}, gives it by `quire object grant \
         {name} {who} {letters}`, and `quire serve --grant anyone={letters}` gives it to all who come, of \
         what is made from then on",
        in_words(who),
        in_words(&object.owner)
    );
    (FailureKind::Denied, text)
}

/// What is said where only the maker of an object may do something.
pub(super) fn belongs(name: &Name, owner: &str) -> Refused {
    let text = match owner {
        ANYONE => format!(
            "{name} belongs to {}: remove it or grant rights to it over TCP, too",
            in_words(owner)
        ),
        _ => format!("{name} belongs to {owner}, who alone removes it and grants rights to it"),
    };
    (FailureKind::Denied, text)
}

/// Who somebody is, for people.
fn in_words(who: &str) -> &str {
    match who {
        ANYONE => "whoever comes over TCP without a certificate",
        who => who,
    }
}

/// What is said where an object cannot be removed.
pub(super) fn still_open(name: &Name, open: usize) -> Refused {
    let name = name.plain();
    let times = match open {
        1 => "once".to_owned(),
        open => format!("{open} times"),
    };
    let text = format!("{name} is open, {times}; it can be removed when nobody uses it");
    (FailureKind::Busy, text)
}

pub(super) fn answer_with(
    peer: PeerId,
    id: RequestId,
    answer: Result<Answer, Refused>,
    out: &mut Vec<Out>,
) {
    let answer = answer.map_err(|(kind, text)| Failure { kind, text });
    out.push(Out::Send(peer, Control::Answer { id, answer }));
}

/// Sends a kernel a message, if its link is there.
fn deliver(
    kernels: &BTreeMap<KernelId, (PeerId, Handle)>,
    peers: &BTreeMap<PeerId, Peer>,
    kernel: KernelId,
    message: ToKernel<Contents>,
    out: &mut Vec<Out>,
) {
    let Some((peer, object)) = kernels.get(&kernel) else {
        return;
    };
    if peers.get(peer).is_some_and(|peer| !peer.is_cut_off) {
        let object = *object;
        // It gets its stamp when it leaves.
        let stamp = 0;
        out.push(Out::Send(
            *peer,
            Control::ToKernel {
                object,
                stamp,
                message,
            },
        ));
    }
}
