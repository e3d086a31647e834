//! One copy of each page for all programs of this machine.
//!
//! For each object that programs attach, the server is one more kernel of it, with one
//! cache ([`crate::node`]) in its own event loop. A program maps the cache's memory file, the
//! whole or parts of it, and passes the userfaultfd of each mapping (`mapped`), whose faults
//! are read here: no message says that a program touches a page, and one that the machine has
//! costs nobody else anything.
//!
//! Who can write to the file can write to the object, so it is given only to programs that
//! may. Those that may only read have a cache of their own, and so have those that say that
//! they are another kind of machine.
//!
//! The mappings of a program that is silent stay known until its process is dead or comes
//! back: they may show pages, and these are to be taken from them before somebody else writes
//! to them. They hold nobody up, as pages are taken from a stopped process, too.
//!
//! When a program flushes or closes an object, what all programs here wrote to it is given
//! back first, piece by piece between other things, as it may be much.
//!
//! Programs get the cache's ledger with its file, too, and have both when this server is killed: they bring
//! what was written to the next one.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_core::dsm::kernel::Space;
use quire_core::dsm::message::{Access, FromKernel, PageNumber, Pages, ToKernel};
use quire_core::dsm::types::Machine;
use quire_core::units::{Bytes, ObjectOffset};

use super::Around;
use super::core::{MACHINE, Opening, PeerId};
use super::object::Refused;
use crate::link::Established;
use crate::node::ledger::Ledger;
use crate::node::{self, Broken, Cache, Exchange, Part, Shape, Until, Written, room_for};
use crate::wire::control::{
    Answer, FailureKind, Handle, MappingNumber, Name, PageSize, Request, RequestId, Rights,
    SHARES_PAGES,
};
use crate::wire::{Contents, Control};
use mapped::{Mapped, Wanted};

mod mapped;

/// Keys of descriptors that are watched here are not below this.
pub(super) const KEYS: u64 = 1 << 61;
/// So often it is looked whether silent programs are dead.
const LOOK: Duration = Duration::from_secs(1);
/// About so much is given back between other things.
const PIECE: u64 = 8 << 20;
/// Who shares pages can read and write them.
const BOTH: Rights = Rights {
    read: true,
    write: true,
};

/// By this number no server ever knows a link: what programs bring of this one's caches, others take as they
/// take what was written over links that they do not know.
const NO_LINK: u64 = u64::MAX;

/// An answer, with descriptors.
type Answered = (Result<Answer, Refused>, Vec<OwnedFd>);

/// What becomes of a request.
pub(super) enum Asked {
    /// It is answered, with descriptors.
    Answered(Box<Result<Answer, Refused>>, Vec<OwnedFd>),
    /// It is answered later.
    Later,
    /// It is not for here.
    Other(Request),
}

/// The objects that programs of this machine have attached.
#[derive(Default)]
pub(super) struct Local {
    /// The processes that can share pages.
    processes: BTreeMap<PeerId, u32>,
    caches: BTreeMap<Handle, Cached>,
    names: BTreeMap<Name, Handle>,
    programs: BTreeMap<(PeerId, Handle), Program>,
    /// Requests that wait until what was written is given back; they take turns.
    giving_back: VecDeque<GivingBack>,
    /// Whose userfaultfd has which key.
    watched: BTreeMap<u64, (Handle, Space)>,
    last_key: u64,
    /// Kept, so that none is allocated for a fault.
    said: Said,
    /// When it is to be looked whether silent programs are dead, if there are any.
    look: Option<Instant>,
    /// Until when this server may show programs what it has.
    until: Until,
    /// The ledgers of caches that this server, which ends, has given all back of.
    left: Vec<(Name, Arc<Ledger>)>,
}

/// The cache of one object.
struct Cached {
    cache: Cache,
    name: Name,
    page: Bytes,
    whole: Part,
    /// How many programs have it attached.
    programs: usize,
    silent: Vec<Silent>,
}

/// What was written to an object is given back; then a program is answered.
struct GivingBack {
    who: (PeerId, Handle),
    next: PageNumber,
    id: RequestId,
    request: Request,
}

/// A program that has an object attached.
struct Program {
    cache: Handle,
    mapped: BTreeMap<MappingNumber, Mapped>,
}

/// A mapping of a program that was given up and may be alive.
struct Silent {
    process: u32,
    mapped: Mapped,
}

/// What a kernel of this machine says.
#[derive(Default)]
struct Said(Vec<FromKernel<Contents>>);

impl Exchange for Said {
    fn send(&mut self, message: FromKernel<Contents>) {
        self.0.push(message);
    }

    fn receive(&mut self) -> Option<ToKernel<Contents>> {
        None
    }
}

impl Local {
    /// A peer is here; whether it can share pages with this machine.
    pub fn greeted(&mut self, peer: PeerId, who: &Established, machine: Machine) -> bool {
        let Some(pid) = who.peer.process() else {
            return false;
        };
        let hello = &who.hello;
        let can = hello.features & SHARES_PAGES != 0
            && hello.page_size == PageSize::BASE
            && machine == Machine::native();
        if can {
            self.processes.insert(peer, pid);
        }
        can
    }

    /// A peer asks something.
    pub fn asked(
        &mut self,
        around: &mut Around<'_>,
        peer: PeerId,
        (id, request): (RequestId, Request),
        descriptors: Vec<OwnedFd>,
    ) -> Asked {
        if let Request::Remove { name } | Request::Discard { name } = &request {
            self.forget_the_dead(around, name);
        }
        if !self.processes.contains_key(&peer) {
            return Asked::Other(request);
        }
        let done = match request {
            Request::Attach { name, rights } => {
                let (answer, with) = self.attach(around, peer, name, rights);
                return Asked::Answered(Box::new(answer), with);
            }
            Request::Register {
                object,
                mapping,
                start,
                length: len,
                base,
            } => {
                let part = Part { start, len };
                let wanted = Wanted {
                    mapping,
                    part,
                    base,
                };
                self.register(around, (peer, object), &wanted, descriptors)
            }
            Request::Unregister { object, mapping } => {
                self.unregister(around, (peer, object), mapping)
            }
            Request::GiveBack { object, pages } => self.give_back(around, (peer, object), pages),
            Request::WillNeed {
                object,
                mapping,
                pages,
                access,
            } => self.need(around, (peer, object), mapping, (pages, access)),
            Request::Sync { object } | Request::Close { object }
                if self.programs.contains_key(&(peer, object)) =>
            {
                let closes = matches!(request, Request::Close { .. });
                if closes {
                    self.forget_mappings(around, (peer, object));
                }
                if !self.is_kept_apart(around, (peer, object)) {
                    if closes {
                        self.detach(around, (peer, object), true);
                    }
                    return Asked::Other(request);
                }
                self.giving_back.push_back(GivingBack {
                    who: (peer, object),
                    next: PageNumber(0),
                    id,
                    request,
                });
                self.go_on_giving_back(around);
                return Asked::Later;
            }
            other => return Asked::Other(other),
        };
        Asked::Answered(Box::new(done.map(|()| Answer::Done)), Vec::new())
    }

    fn attach(
        &mut self,
        around: &mut Around<'_>,
        peer: PeerId,
        name: Name,
        rights: Rights,
    ) -> Answered {
        let files = match around.core.allows(peer, &name, BOTH) {
            true => self.cache_of(around, &name),
            false => None,
        };
        let Some((cache, files)) = files else {
            let opened = around.core.open(peer, &name, rights, Opening::Kernel);
            return (opened, Vec::new());
        };
        let opened = around.core.open(peer, &name, rights, Opening::Program);
        let attached = opened.map(|answer| match answer {
            Answer::Opened {
                object,
                exact,
                info,
                lost,
            } => {
                let program = Program {
                    cache,
                    mapped: BTreeMap::new(),
                };
                self.programs.insert((peer, object), program);
                if let Some(cached) = self.caches.get_mut(&cache) {
                    cached.programs += 1;
                }
                Answer::Attached {
                    object,
                    exact,
                    info,
                    lost,
                }
            }
            other => other,
        });
        self.retire(around, cache);
        match attached.is_ok() {
            true => (attached, files),
            false => (attached, Vec::new()),
        }
    }

    /// The cache of an object, its file, and its ledger; none, where it cannot be had.
    fn cache_of(&mut self, around: &mut Around<'_>, name: &Name) -> Option<(Handle, Vec<OwnedFd>)> {
        let handle = match self.names.get(name) {
            Some(handle) => *handle,
            None => self.make_cache(around, name)?,
        };
        match self.caches.get(&handle)?.files() {
            Ok(files) => Some((handle, files)),
            Err(error) => {
                tracing::warn!("{name}: its pages cannot be shared: {error}");
                self.retire(around, handle);
                None
            }
        }
    }

    fn make_cache(&mut self, around: &mut Around<'_>, name: &Name) -> Option<Handle> {
        let opened = around.core.open(MACHINE, name, BOTH, Opening::Machine);
        let Ok(Answer::Opened { object, info, .. }) = opened else {
            return None;
        };
        let shape = Shape {
            page: info.page_size.bytes(),
            room: room_for(info.size),
            ..Shape::new(info.size)
        };
        let settings = shape.settings();
        let whole = Part {
            start: ObjectOffset(0),
            len: Bytes(settings.pages * shape.page.0),
        };
        let pages = settings.pages;
        let made = Cache::new(shape.page, settings, around.links.pool().clone());
        let noted = made.and_then(|mut cache| cache.keep_what_is_written(pages).map(|()| cache));
        let mut cache = match noted {
            Ok(cache) => cache,
            Err(errno) => {
                tracing::warn!("{name}: its pages cannot be shared: {errno}");
                around.core.shut(MACHINE, object, around.out);
                return None;
            }
        };
        cache.begin_session(NO_LINK, object);
        cache.show_until(self.until.term());
        let cached = Cached {
            cache,
            name: name.clone(),
            page: shape.page,
            whole,
            programs: 0,
            silent: Vec::new(),
        };
        self.caches.insert(object, cached);
        self.names.insert(name.clone(), object);
        Some(object)
    }

    /// Gives up pages, for all programs that share them.
    fn give_back(
        &mut self,
        around: &mut Around<'_>,
        who: (PeerId, Handle),
        pages: Pages,
    ) -> Result<(), Refused> {
        let program = self.programs.get(&who).ok_or_else(not_attached)?;
        let cache = program.cache;
        match self.with(around, cache, |cache, said| cache.evict(pages, said)) {
            true => Ok(()),
            false => Err((FailureKind::Unavailable, "the memory has failed".into())),
        }
    }

    /// Has pages brought that a mapping will need.
    fn need(
        &mut self,
        around: &mut Around<'_>,
        who: (PeerId, Handle),
        mapping: MappingNumber,
        need: (Pages, Access),
    ) -> Result<(), Refused> {
        let program = self.programs.get(&who).ok_or_else(not_attached)?;
        let (cache, mapped) = (program.cache, program.mapped.get(&mapping));
        let space = mapped.ok_or_else(mapped::unknown)?.space;
        // What goes wrong ends the cache, which programs see.
        self.with(around, cache, |cache, said| {
            cache.will_need(space, need, node::now(), said)
        });
        Ok(())
    }

    /// Gives back a piece of what was written, for whoever waits first.
    fn go_on_giving_back(&mut self, around: &mut Around<'_>) {
        let Some(mut giving) = self.giving_back.pop_front() else {
            return;
        };
        let cache = self.programs.get(&giving.who).map(|program| program.cache);
        let cached = cache.and_then(|cache| Some((cache, self.caches.get(&cache)?)));
        let mut next = None;
        if let Some((cache, cached)) = cached {
            let most = (PIECE / cached.page.0).max(1) as usize;
            self.with(around, cache, |cache, said| {
                next = cache.sync_from(giving.next, most, said)?;
                Ok(())
            });
        }
        match next {
            Some(next) => {
                giving.next = next;
                self.giving_back.push_back(giving);
            }
            None => self.all_given_back(around, giving),
        }
    }

    /// Whether what programs wrote to an object is to be given back where it is to be safe: somebody
    /// else keeps it. Where this server alone has it, in memory, its own copy is as safe as anything.
    fn is_kept_apart(&self, around: &mut Around<'_>, who: (PeerId, Handle)) -> bool {
        let cache = self.programs.get(&who).map(|program| program.cache);
        let name = cache.and_then(|cache| self.caches.get(&cache));
        let object = name.and_then(|cached| around.core.object(&cached.name));
        object.is_some_and(|object| object.is_joint || object.behind.is_some())
    }

    /// The scheduler has all that was written; the rest of the answer is the core's.
    fn all_given_back(&mut self, around: &mut Around<'_>, giving: GivingBack) {
        let GivingBack {
            who, id, request, ..
        } = giving;
        if matches!(request, Request::Close { .. }) {
            self.detach(around, who, true);
        }
        let message = Control::Request { id, request };
        around.core.says(who.0, message, around.out);
    }

    /// A program has unmapped an object, and closes it: nothing is taken from its mappings any more,
    /// which would be tried page by page.
    fn forget_mappings(&mut self, around: &mut Around<'_>, who: (PeerId, Handle)) {
        let program = self.programs.get(&who);
        let all = program.map(|program| program.mapped.keys().copied().collect::<Vec<_>>());
        for mapping in all.into_iter().flatten() {
            // It is there.
            let _ = self.unregister(around, who, mapping);
        }
    }

    /// A program is done with an object, or it is dead or silent.
    fn detach(&mut self, around: &mut Around<'_>, who: (PeerId, Handle), is_done: bool) {
        let Some(Program { cache, mapped }) = self.programs.remove(&who) else {
            return;
        };
        let Some(cached) = self.caches.get_mut(&cache) else {
            return;
        };
        cached.programs -= 1;
        let silent = self.processes.get(&who.0).filter(|_| !is_done).copied();
        for mapped in mapped.into_values() {
            self.watched.remove(&mapped.key);
            cached.unwatch(around, &mapped);
            match silent {
                Some(process) => cached.silent.push(Silent { process, mapped }),
                None => cached.cache.remove(mapped.space),
            }
        }
        if silent.is_some() || around.core.is_discarded(&cached.name) {
            cached.forget_the_dead();
        }
        if silent.is_some() {
            self.look.get_or_insert(around.links.now() + LOOK);
        }
        self.retire(around, cache);
    }

    /// Gives a cache up that nobody uses.
    fn retire(&mut self, around: &mut Around<'_>, handle: Handle) {
        let cached = self.caches.get(&handle);
        if cached.is_some_and(|cached| cached.programs == 0 && cached.silent.is_empty()) {
            self.with(around, handle, |cache, said| {
                cache.terminate(said)?;
                cache.end_session();
                Ok(())
            });
            self.drop_cache(around, handle);
        }
    }

    /// A cache is no more: what it did not give back is the core's, as it was.
    fn drop_cache(&mut self, around: &mut Around<'_>, handle: Handle) {
        let Some(cached) = self.caches.remove(&handle) else {
            return;
        };
        self.names.remove(&cached.name);
        for space in cached.cache.spaces() {
            if let Some(uffd) = cached.cache.uffd(space) {
                // Those of silent programs are not watched.
                let _ = around.links.unwatch(uffd);
            }
        }
        self.watched.retain(|_, (cache, _)| *cache != handle);
        around.core.shut(MACHINE, handle, around.out);
    }

    /// An object is not this server's any more: nobody here may have pages of it. Programs
    /// that have it open, whose links end, attach it anew where it is again.
    pub fn give_up(&mut self, around: &mut Around<'_>, handle: Handle, why: &str) {
        let Some(cached) = self.caches.get_mut(&handle) else {
            return;
        };
        let name = &cached.name;
        match cached.cache.abandon() {
            Ok(()) => tracing::warn!("{name}: programs here lose all pages of it: {why}"),
            Err(broken) => {
                tracing::error!("{name}: the memory of programs here fails: {why}; {broken}");
            }
        }
        self.drop_cache(around, handle);
    }

    /// Does something with a cache, and tells the core what comes of it; whether it could.
    fn with(
        &mut self,
        around: &mut Around<'_>,
        handle: Handle,
        act: impl FnOnce(&mut Cache, &mut Said) -> Result<(), Broken>,
    ) -> bool {
        let Some(cached) = self.caches.get_mut(&handle) else {
            return false;
        };
        let done = act(&mut cached.cache, &mut self.said);
        for message in self.said.0.drain(..) {
            let message = Control::FromKernel {
                object: handle,
                message,
            };
            around.core.says(MACHINE, message, around.out);
        }
        if let Err(broken) = &done {
            tracing::error!("{}: {broken}", cached.name);
            self.drop_cache(around, handle);
        }
        done.is_ok()
    }

    /// This server has a lease as one of several, which ends then, or none and nothing that it
    /// was for. Where it is stopped in the midst of a turn, and goes on when others may have what
    /// it had, it shows programs nothing of it any more.
    pub fn show_until(&mut self, end: Option<Instant>) {
        self.until.set(end);
    }

    /// The core says something to this machine's kernels.
    pub fn hear(
        &mut self,
        around: &mut Around<'_>,
        object: Handle,
        (stamp, message): (u64, ToKernel<Contents>),
    ) {
        self.with(around, object, |cache, said| {
            cache.set_stamp(stamp);
            cache.hear(node::now(), message, said)
        });
    }

    /// There are faults.
    pub fn ready(&mut self, around: &mut Around<'_>, key: u64) {
        if let Some((handle, space)) = self.watched.get(&key).copied() {
            self.with(around, handle, |cache, said| {
                cache.read_faults(space, node::now(), said).map(drop)
            });
        }
    }

    /// The link to a peer has ended. Unless it is done or dead, it may still have pages.
    pub fn closed(&mut self, around: &mut Around<'_>, peer: PeerId, is_done: bool) {
        let all = (peer, Handle(0))..=(peer, Handle(u32::MAX));
        let attached: Vec<_> = self.programs.range(all).map(|(who, _)| *who).collect();
        for who in attached {
            self.detach(around, who, is_done);
        }
        self.processes.remove(&peer);
        self.giving_back.retain(|giving| giving.who.0 != peer);
    }

    /// When [`Local::turn_ends`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let due = self.caches.values();
        let due = due.filter_map(|cached| cached.cache.deadline()).min();
        let due = due.map(|due| {
            let left = Duration::from_nanos(due.0.saturating_sub(node::now().0));
            Instant::now() + left
        });
        let at_once = self.giving_back.front().map(|_| Instant::now());
        due.into_iter().chain(self.look).chain(at_once).min()
    }

    /// Does what is due.
    pub fn turn_ends(&mut self, around: &mut Around<'_>, now: Instant) {
        self.go_on_giving_back(around);
        let time = node::now();
        let is_due = |cached: &Cached| cached.cache.deadline().is_some_and(|due| due <= time);
        let due = self.caches.iter().filter(|(_, cached)| is_due(cached));
        let due: Vec<Handle> = due.map(|(handle, _)| *handle).collect();
        for handle in due {
            self.with(around, handle, |cache, said| cache.pass(time, said));
        }
        self.note_what_is_safe(around);
        if self.look.is_some_and(|look| look <= now) {
            self.look_for_the_dead(around, now);
        }
    }

    /// Notes in ledgers what nobody has to bring any more, as it is kept where it outlives this server.
    fn note_what_is_safe(&mut self, around: &mut Around<'_>) {
        let mut is_kept = |name: &Name| {
            let object = around.core.object(name);
            let behind = object.and_then(|object| object.behind.as_ref());
            behind.is_none_or(|behind| behind.left().0 == 0)
        };
        for cached in self.caches.values_mut() {
            let (given_back, safe) = cached.cache.given_back();
            if given_back > safe && is_kept(&cached.name) {
                cached.cache.is_safe(given_back);
            }
        }
        self.left.retain(|(name, ledger)| {
            let is_kept = is_kept(name);
            if is_kept {
                ledger.end();
            }
            !is_kept
        });
    }

    /// Forgets silent programs that have died since it was looked: an object that only they had
    /// open can be removed. A link may end a moment before its process is dead.
    fn forget_the_dead(&mut self, around: &mut Around<'_>, name: &Name) {
        if let Some(handle) = self.names.get(name).copied() {
            if let Some(cached) = self.caches.get_mut(&handle) {
                cached.forget_the_dead();
            }
            self.retire(around, handle);
        }
    }

    /// Forgets silent programs that are dead.
    fn look_for_the_dead(&mut self, around: &mut Around<'_>, now: Instant) {
        let silent = self
            .caches
            .iter()
            .filter(|(_, cached)| !cached.silent.is_empty());
        let silent: Vec<Handle> = silent.map(|(handle, _)| *handle).collect();
        self.look = None;
        for handle in silent {
            if let Some(cached) = self.caches.get_mut(&handle) {
                cached.forget_the_dead();
                if !cached.silent.is_empty() {
                    self.look = Some(now + LOOK);
                }
            }
            self.retire(around, handle);
        }
    }

    /// Gives all back, as the server ends. Programs that have objects attached wait for it to be
    /// started again, or for another server.
    pub fn end(&mut self, around: &mut Around<'_>) {
        let all: Vec<Handle> = self.caches.keys().copied().collect();
        for handle in all {
            self.with(around, handle, |cache, said| cache.leave(said));
            let cached = self.caches.get(&handle);
            let left = cached.and_then(|it| Some((it.name.clone(), it.cache.kept().ok()??.ledger)));
            self.left.extend(left);
            self.drop_cache(around, handle);
        }
    }
}

impl Cached {
    /// What programs get: the file, and the ledger.
    fn files(&self) -> std::io::Result<Vec<OwnedFd>> {
        let Some(Written { memory, ledger, .. }) = self.cache.kept()? else {
            return Ok(vec![self.cache.file().try_clone_to_owned()?]);
        };
        Ok(vec![memory, ledger.as_fd().try_clone_to_owned()?])
    }

    /// The faults of a mapping are not read any more.
    fn unwatch(&self, around: &mut Around<'_>, mapped: &Mapped) {
        if let Some(uffd) = self.cache.uffd(mapped.space) {
            // It is not looked at any more in any case.
            let _ = around.links.unwatch(uffd);
        }
    }

    /// Forgets mappings of silent programs.
    fn forget(&mut self, which: impl Fn(&Silent) -> bool) {
        let (gone, rest) = std::mem::take(&mut self.silent)
            .into_iter()
            .partition(which);
        self.silent = rest;
        let gone: Vec<Silent> = gone;
        for silent in gone {
            self.cache.remove(silent.mapped.space);
        }
    }

    fn forget_the_dead(&mut self) {
        let mut dead: Vec<Space> = Vec::new();
        for silent in &self.silent {
            if self.cache.is_gone(silent.mapped.space) {
                dead.push(silent.mapped.space);
            }
        }
        self.forget(|silent| dead.contains(&silent.mapped.space));
    }
}

fn not_attached() -> Refused {
    let text = "the object is not attached; open it first";
    (FailureKind::NotFound, text.into())
}
