//! What programs ask by the name of an object. Names belong to all servers: the directory is
//! asked before an object is made or removed, and where one is wanted that is not here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Instant;

use quire_core::dsm::message::ServerId;
use quire_core::units::Bytes;

use super::home::is_away;
use super::line::MOST;
use super::{How, Making, PeerServers, Stage, Told, known};
use crate::directory::{Directory, DirectoryError, Entry, LeaseId, Matter, name_of};
use crate::server::Around;
use crate::server::core::{self, Core, NOBODY, Out, PeerId};
use crate::server::distant::Distant;
use crate::server::object::{self, Part, Refused};
use crate::server::said::Said;
use crate::store::ObjectId;
use crate::wire::Control;
use crate::wire::control::{self, Answer, FailureKind, Name, Request, RequestId, SchedulerKind};

/// What is begun at one server at most.
const MOST_BEGUN: usize = 65_536;

/// Who wants the objects of all servers: its request, and after which name they are to begin.
pub(super) type Lister = (PeerId, RequestId, Option<Name>);

/// Who waits for the objects of all servers.
#[derive(Default)]
pub(super) struct Listing {
    /// The directory was asked, for others.
    is_asked: bool,
    wanted: Vec<Lister>,
}

/// A request that waits until its object can be used here.
pub(super) struct Waiting {
    pub peer: PeerId,
    pub number: RequestId,
    pub request: Request,
    /// By what it asks for the object: its name, or the exact spelling of its key.
    pub asked: Name,
    pub until: Instant,
    /// Its home server may come back until then.
    pub is_away: bool,
}

/// What a program has the directory asked for.
pub(super) enum Wanted {
    /// To make a name known.
    Publish(Box<(Making, Entry)>),
    /// To make an object known in the place of what is begun.
    GiveSize(Box<(Making, Entry)>),
    /// What is behind a name, or an exact spelling.
    Find(Name),
    /// To forget an object, by its key; whether its name is to be removed with it.
    Withdraw(PeerId, RequestId, Name, bool),
    /// To take the name from an object, by its key.
    Discard(PeerId, RequestId, Name),
    /// To make a name known that has no size yet, for as long as a lease lives.
    Begin(Box<(Making, LeaseId, Entry)>),
    /// To forget what is begun, by its key, for a request.
    EndBegun(Box<Waiting>, Name),
}

impl Wanted {
    /// Asks for it.
    fn ask(self, directory: &dyn Directory) -> Told {
        match self {
            Wanted::Publish(new) => {
                let (making, entry) = *new;
                Told::Published(making, directory.publish(&entry))
            }
            Wanted::GiveSize(new) => {
                let (making, entry) = *new;
                Told::Published(making, directory.give_size(&entry))
            }
            Wanted::Find(asked) => {
                let found = directory.find(asked.as_str());
                Told::Found(asked, found)
            }
            Wanted::Withdraw(peer, number, key, is_named) => {
                let done = directory.withdraw(key.as_str());
                // Who takes the name from it has removed it.
                let removed = done.map(|had_name| had_name || !is_named);
                Told::Withdrawn(peer, number, key, removed)
            }
            Wanted::Discard(peer, number, key) => {
                let done = directory.discard(key.as_str());
                Told::Discarded(peer, number, key, done)
            }
            Wanted::Begin(new) => {
                let (making, lease, entry) = *new;
                Told::Published(making, directory.begin(lease, &entry))
            }
            Wanted::EndBegun(waiting, key) => {
                Told::EndedBegun(waiting, directory.end_begun(key.as_str()))
            }
        }
    }
}

/// An object whose servers may be gone.
pub(super) struct Gone<'a> {
    pub key: &'a Name,
    pub owner: &'a str,
    /// Whether one of them has it on its disk.
    pub is_kept: bool,
    /// Whether it was removed.
    pub is_removed: bool,
}

/// Whether an object can be used here.
enum Reach {
    /// By this key.
    Here(Name),
    Later,
    /// It is not here: the directory is to be asked for it.
    Unknown,
}

impl PeerServers {
    /// A program says something. What the server's own core is to answer comes back.
    pub fn intercept(
        &mut self,
        a: &mut Around<'_>,
        peer: PeerId,
        message: Control,
    ) -> Option<Control> {
        let Control::Request {
            id: number,
            mut request,
        } = message
        else {
            return Some(message);
        };
        if let Request::Create(info) | Request::GiveSize(info) = &mut request {
            info.scheduler = info.scheduler.or(SchedulerKind::Distributed);
        }
        let (asked, reach) = match &mut request {
            Request::Create(control::Object { name, .. })
            | Request::GiveSize(control::Object { name, .. })
            | Request::Begin { name } => {
                let reach = match self.me() {
                    Some(_) => Reach::Here(name.clone()),
                    None => Reach::Later,
                };
                (name.clone(), reach)
            }
            Request::List { after } => {
                self.list(a, (peer, number), after.take());
                return None;
            }
            other => match other.asks_by().cloned() {
                Some(asked) => {
                    let reach = self.reach(a.core, (peer, &asked), other);
                    (asked, reach)
                }
                None => {
                    let id = number;
                    return Some(Control::Request { id, request });
                }
            },
        };
        let is_known = match reach {
            Reach::Here(key) => return self.here(a, (peer, number), &key, request),
            Reach::Later => true,
            Reach::Unknown => false,
        };
        let own = self.waiting.iter().filter(|it| it.peer == peer).count();
        if own >= MOST || !(is_known || self.seek(peer, &asked)) {
            core::answer_with(peer, number, Err(too_many()), a.out);
            return None;
        }
        let until = (self.clock)() + 4 * self.lease;
        self.waiting.push(Waiting {
            peer,
            number,
            request,
            asked,
            until,
            is_away: false,
        });
        None
    }

    /// Whether an object can be used here that a program asks for.
    fn reach(&self, core: &mut Core, (peer, asked): (PeerId, &Name), request: &Request) -> Reach {
        let Some(key) = core.key_for(peer, request, asked) else {
            return Reach::Unknown;
        };
        let is_shown = matches!(
            request,
            Request::Statistics { .. } | Request::Hottest { .. } | Request::Watch { .. }
        );
        let Some(object) = core.object(&key) else {
            return Reach::Unknown;
        };
        let is_doubtful = asked.is_plain() && object.is_only_here() && self.doubt.is_about(&key);
        let is_ready = match object.is_joint {
            _ if is_shown => true,
            true => object.is_live() && self.has_part(&key),
            false => !is_doubtful,
        };
        match is_ready {
            true => Reach::Here(key),
            false => Reach::Later,
        }
    }

    /// Whether this server has a part in an object that several share, by which programs can use it.
    fn has_part(&self, key: &Name) -> bool {
        let id = self.ids.get(key);
        let joint = id.and_then(|id| Some((id, self.joints.get(id)?)));
        joint.is_some_and(|(id, joint)| {
            joint.views.is_in() && joint.types.is_known && !self.is_closed(*id)
        })
    }

    /// A program wants the objects of all servers. The directory is asked once for all who want
    /// them meanwhile, so that views do not wait for as many questions.
    fn list(
        &mut self,
        a: &mut Around<'_>,
        (peer, number): (PeerId, RequestId),
        after: Option<Name>,
    ) {
        let own = self.listing.wanted.iter().filter(|it| it.0 == peer);
        if own.count() >= MOST {
            return core::answer_with(peer, number, Err(too_many()), a.out);
        }
        self.listing.wanted.push((peer, number, after));
        self.ask_for_list();
    }

    fn ask_for_list(&mut self) {
        if self.listing.is_asked || self.listing.wanted.is_empty() {
            return;
        }
        self.listing.is_asked = true;
        let wanted = std::mem::take(&mut self.listing.wanted);
        self.desk.ask(Matter::Names, move |directory| {
            Told::Listed(wanted, directory.entries())
        });
    }

    /// The directory has answered with the objects of all servers.
    pub(super) fn listed(
        &mut self,
        a: &mut Around<'_>,
        wanted: Vec<Lister>,
        entries: Result<Vec<Entry>, DirectoryError>,
    ) {
        let objects = entries.map_err(|error| refused(&error)).map(|entries| {
            let listed =
                |entry: &Entry| Some(object::listed(&known::info(entry)?.0, entry.is_removed));
            let made = entries.iter().filter(|entry| !entry.is_begun());
            let all = made.filter_map(listed);
            let all = all.map(|info| (info.name.clone(), info));
            all.collect::<BTreeMap<_, _>>()
        });
        for (peer, number, after) in wanted {
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            let answer = objects.as_ref().map_err(Clone::clone).map(|objects| {
                let later = objects.range((from, Bound::Unbounded));
                core::listed(later.map(|(_, info)| info.clone()))
            });
            core::answer_with(peer, number, answer, a.out);
        }
        self.listing.is_asked = false;
        self.ask_for_list();
    }

    /// Asks the directory for a program, when it is its turn; whether it may ask so much.
    pub(super) fn ask_for(&mut self, program: PeerId, wanted: Wanted) -> bool {
        let may = self.line.add(program, wanted);
        self.ask_next();
        may
    }

    /// Asks the directory what a program wants next.
    pub(super) fn ask_next(&mut self) {
        if let Some(wanted) = self.line.next() {
            self.desk.ask(Matter::Names, move |directory| {
                Told::Program(Box::new(wanted.ask(directory)))
            });
        }
    }

    /// Asks the directory what is behind a name, for a program, as soon as this server is a
    /// member, and if it is not asked for others; whether the program may ask so much.
    fn seek(&mut self, program: PeerId, asked: &Name) -> bool {
        if self.me().is_none() || self.sought.contains(asked) {
            return true;
        }
        let may = self.ask_for(program, Wanted::Find(asked.clone()));
        if may {
            self.sought.insert(asked.clone());
        }
        may
    }

    /// Asks for something once more, for one of those who wait for it.
    pub(super) fn seek_again(&mut self, asked: Name) {
        self.sought.remove(&asked);
        let waits = self.waiting.iter().find(|waiting| waiting.asked == asked);
        if let Some(program) = waits.map(|waiting| waiting.peer) {
            self.seek(program, &asked);
        }
    }

    /// A program is gone: what it waits for is not needed, but by others.
    pub fn program_left(&mut self, program: PeerId) {
        self.waiting.retain(|waiting| waiting.peer != program);
        self.listing.wanted.retain(|wanted| wanted.0 != program);
        for wanted in self.line.gone(program) {
            match wanted {
                Wanted::Find(asked) => self.seek_again(asked),
                Wanted::Discard(.., key) => self.is_not_discarded(&key),
                Wanted::Publish(_)
                | Wanted::GiveSize(_)
                | Wanted::Withdraw(..)
                | Wanted::Begin(_)
                | Wanted::EndBegun(..) => {}
            }
        }
    }

    /// Does what is asked of an object that can be used here, or leaves it to the core.
    fn here(
        &mut self,
        a: &mut Around<'_>,
        (peer, number): (PeerId, RequestId),
        name: &Name,
        mut request: Request,
    ) -> Option<Control> {
        if let Some(refused) = self.only_home(name, &request) {
            core::answer_with(peer, number, Err(refused), a.out);
            return None;
        }
        match &request {
            Request::Create(info) => {
                let owner = a.core.may_create(peer, info);
                self.make(a, (peer, number), (info.clone(), How::New), owner);
                return None;
            }
            Request::GiveSize(info) => {
                let owner = a.core.may_size(peer, info);
                let owner = owner.and_then(|owner| a.core.may_be_more().map(|()| owner));
                self.make(a, (peer, number), (info.clone(), How::Sized), owner);
                return None;
            }
            Request::Begin { name } => {
                let may = a.core.may_have(name).and_then(|()| self.may_begin());
                let owner = may.and_then(|()| a.core.owner_to_be(peer));
                self.make(a, (peer, number), (begun(name), How::Begun), owner);
                return None;
            }
            Request::Remove { .. } => {
                match a.core.may_remove(peer, name) {
                    Ok(()) => self.remove(a, (peer, number), name),
                    Err(refused) => core::answer_with(peer, number, Err(refused), a.out),
                }
                return None;
            }
            Request::Discard { .. } => {
                self.discard(a, (peer, number), name);
                return None;
            }
            Request::Tag { .. } if self.ids.contains_key(name) => {
                let text = "the types of an object that several servers share are chosen \
                            when it is made";
                let refused = (FailureKind::Invalid, text.to_owned());
                core::answer_with(peer, number, Err(refused), a.out);
                return None;
            }
            Request::Grant { to, rights, .. } => self.pass_on(a, peer, name, (to, *rights)),
            _ => {}
        }
        if let Some(asked) = request.asks_by() {
            *asked = name.exact();
        }
        let id = number;
        Some(Control::Request { id, request })
    }

    /// An object's maker gives somebody rights: the other servers of the object are told.
    fn pass_on(
        &mut self,
        a: &mut Around<'_>,
        peer: PeerId,
        name: &Name,
        (to, rights): (&String, control::Rights),
    ) {
        let identity = a.core.identity(peer).map(str::to_owned);
        let joint = self
            .ids
            .get(name)
            .and_then(|id| self.joints.get_key_value(id));
        let here = a.core.object(name);
        let here = here.filter(|here| identity.as_ref() == Some(&here.owner));
        let (Some((&object, joint)), Some(here), Some(me)) = (joint, here, self.me()) else {
            return;
        };
        // Where it is refused, the core says so.
        let Ok(stamp) = here.grant_at(me, to.clone(), rights) else {
            return;
        };
        let to = to.clone();
        let said = Said::Granted {
            object,
            to,
            rights,
            stamp,
        };
        for member in joint.views.members().iter().filter(|it| **it != me) {
            self.wires.say(a.links, *member, &said, None);
        }
    }

    /// Makes an object, or begins one, for who would own it, if there may be one.
    fn make(
        &mut self,
        a: &mut Around<'_>,
        (peer, number): (PeerId, RequestId),
        (mut info, how): (control::Object, How),
        owner: Result<String, Refused>,
    ) {
        let owner = match owner {
            Ok(owner) => owner,
            Err(refused) => return core::answer_with(peer, number, Err(refused), a.out),
        };
        let Some(home) = self.me() else { return };
        let id = ObjectId((self.numbers)());
        match how {
            // No other is to have its key, whatever becomes of it.
            How::Begun | How::New => info.name = info.name.numbered(id.0),
            How::Adopted | How::Sized | How::Unnamed => {}
        }
        let making = Making {
            peer,
            number,
            info,
            owner,
            id,
            home,
            how,
        };
        self.publish_now(a, making);
    }

    fn publish_now(&mut self, a: &mut Around<'_>, making: Making) {
        let Stage::In(_, lease) = &self.stage else {
            let text = "this server is not joined to the others any more; try again".to_owned();
            let refused = Err((FailureKind::Unavailable, text));
            return core::answer_with(making.peer, making.number, refused, a.out);
        };
        let Making {
            info, owner, how, ..
        } = &making;
        let store = self.homes.store.filter(|_| *how != How::Begun);
        let mut entry = known::entry(info, owner, making.id, (making.home, store));
        entry.is_removed = *how == How::Unnamed;
        let (peer, number) = (making.peer, making.number);
        let wanted = match how {
            How::Begun => Wanted::Begin(Box::new((making, lease.id(), entry))),
            How::New | How::Unnamed => Wanted::Publish(Box::new((making, entry))),
            How::Adopted | How::Sized => Wanted::GiveSize(Box::new((making, entry))),
        };
        if !self.ask_for(peer, wanted) {
            core::answer_with(peer, number, Err(too_many()), a.out);
        }
    }

    /// The name of an object is known to all.
    pub(super) fn published(
        &mut self,
        a: &mut Around<'_>,
        mut making: Making,
        done: Result<(), DirectoryError>,
    ) {
        if let Err(error) = &done
            && make_otherwise(&mut making, error)
        {
            return self.publish_now(a, making);
        }
        if making.how == How::Begun {
            if done.is_ok() {
                self.begun.insert(making.info.name.plain().into());
            }
            let answer = done.map(|()| making.made());
            let answer = answer.map_err(|error| refused(&error));
            return core::answer_with(making.peer, making.number, answer, a.out);
        }
        if done.is_ok() && self.homes.store.is_some() {
            return self.admit(a, making);
        }
        let (is_joint, home) = (making.is_joint(), making.home);
        let name = making.info.name.clone();
        let made = match done {
            Ok(()) if is_joint && self.me() != Some(home) => Err((
                FailureKind::Unavailable,
                "this server has started anew meanwhile; remove the object and make it again"
                    .to_owned(),
            )),
            Ok(()) => {
                let object = making.object();
                object.map(|object| a.core.put(name.clone(), object))
            }
            Err(error) => Err(refused(&error)),
        };
        if made.is_ok() && is_joint {
            self.add(making.id, name, (home, home));
        }
        let answer = made.map(|()| making.made());
        core::answer_with(making.peer, making.number, answer, a.out);
    }

    /// Objects that only this server has are its own under its new number, too. Until the directory has
    /// answered, programs wait that ask for them by their names.
    pub(super) fn publish_again(&mut self, core: &Core, me: ServerId) {
        let mut keys = BTreeSet::new();
        for object in core.objects().filter(|object| object.is_only_here()) {
            let id = ObjectId((self.numbers)());
            let mut entry = known::entry(&object.info, &object.owner, id, (me, None));
            entry.is_removed = object.is_discarded;
            let key = object.info.name.clone();
            keys.insert(key.clone());
            self.desk.ask(Matter::Names, move |directory| {
                // It may not have been there.
                let _ = directory.withdraw(key.as_str());
                let mut done = known::publish_again(directory, &entry);
                let is_superseded = matches!(done, Err(DirectoryError::Exists(_)));
                if is_superseded {
                    entry.is_removed = true;
                    done = known::publish_again(directory, &entry);
                }
                if let Err(error) = done {
                    tracing::warn!("{key} cannot be found by others: {error}");
                }
                Told::PublishedAgain { key, is_superseded }
            });
        }
        self.doubt.joined(keys);
    }

    /// The directory has an object of this server again.
    pub(super) fn published_again(&mut self, a: &mut Around<'_>, key: &Name, is_superseded: bool) {
        if is_superseded {
            self.superseded(a, key);
        }
        self.doubt.is_settled(key);
        self.retry(a, key);
    }

    /// An object of this server was removed while the server was away: another one has its name.
    fn superseded(&mut self, a: &mut Around<'_>, key: &Name) {
        if let Some(here) = a.core.object(key) {
            let name = key.plain();
            tracing::warn!(
                "{name} was removed while this server was away, and made anew elsewhere"
            );
            here.is_discarded = true;
        }
        a.core.miss(key);
    }

    /// The directory says what is behind a name, or an exact spelling.
    pub(super) fn found(
        &mut self,
        a: &mut Around<'_>,
        asked: Name,
        found: Result<Option<Entry>, DirectoryError>,
    ) {
        self.sought.remove(&asked);
        if self.outdated.remove(&asked) {
            return self.seek_again(asked);
        }
        let Stage::In(me, _) = &self.stage else {
            return;
        };
        let me = *me;
        if a.core.key_of(&asked).is_some() {
            return self.retry(a, &asked);
        }
        let entry = match found {
            Ok(Some(entry)) => entry,
            Ok(None) => return self.fail(a, &asked, &core::not_found(&asked)),
            Err(error) => return self.fail(a, &asked, &refused(&error)),
        };
        let Some((info, owner)) = known::info(&entry) else {
            let text = format!("{asked} is of a kind that this server does not know");
            return self.fail(a, &asked, &(FailureKind::Invalid, text));
        };
        let key = info.name.clone();
        if entry.is_begun() {
            return self.found_begun(a, &asked, (&key, &owner));
        }
        if a.core.object(&key).is_some() {
            // It was removed since the directory was asked.
            return self.seek_again(asked);
        }
        let is_joint = info.scheduler == SchedulerKind::Distributed;
        if (!is_joint || entry.store.is_some()) && self.is_absent(entry.home).is_none() {
            self.sought.insert(asked.clone());
            self.unsure.insert(asked);
            return;
        }
        let gone = Gone {
            key: &key,
            owner: &owner,
            is_kept: entry.store.is_some(),
            is_removed: entry.is_removed,
        };
        if !is_joint {
            return self.kept_elsewhere(a, &asked, entry.home, &gone);
        }
        if entry.store.is_some() && !self.members.contains_key(&entry.home) {
            return self.all_gone(a, &asked, &gone);
        }
        let part = Part { me, of: entry.home };
        let inserted = a.core.insert(info, owner, Some(part), entry.is_removed);
        match inserted {
            Ok(()) => {
                let id = entry.object.id;
                self.add(id, key.clone(), (me, entry.home));
                if entry.store.is_some() {
                    let (pager, queue) = Distant::new();
                    a.core.keep_elsewhere(&key, pager, queue.clone());
                    self.is_kept_by(id, entry.home, Some(queue));
                }
            }
            Err(refused) => self.fail(a, &asked, &refused),
        }
    }

    /// Whether one more may be begun here.
    fn may_begin(&self) -> Result<(), Refused> {
        if self.begun.len() >= MOST_BEGUN {
            let text = format!("{MOST_BEGUN} objects here have no size yet; remove some");
            return Err((FailureKind::Full, text));
        }
        Ok(())
    }

    /// What is asked for is begun, at whichever server: it can be removed.
    fn found_begun(&mut self, a: &mut Around<'_>, asked: &Name, (key, owner): (&Name, &str)) {
        let name = key.plain();
        for waiting in self.take_waiting(asked) {
            let (peer, number) = (waiting.peer, waiting.number);
            let is_owner = a.core.identity(peer) == Some(owner);
            let refused = match (waiting.request.removes(), is_owner) {
                (true, true) => {
                    let wanted = Wanted::EndBegun(Box::new(waiting), key.clone());
                    if self.ask_for(peer, wanted) {
                        continue;
                    }
                    too_many()
                }
                (true, false) => core::belongs(&name, owner),
                (false, _) => {
                    let told = core::tell_of_begun(&waiting.request, key);
                    core::answer_with(peer, number, told, a.out);
                    continue;
                }
            };
            core::answer_with(peer, number, Err(refused), a.out);
        }
    }

    /// What was begun is forgotten.
    pub(super) fn ended_begun(
        &mut self,
        a: &mut Around<'_>,
        waiting: Waiting,
        done: Result<(), DirectoryError>,
    ) {
        let answer = match done {
            // It has a size by now, or is gone.
            Err(DirectoryError::Missing(_)) => return self.again(a, waiting),
            done => done.map(|()| Answer::Done),
        };
        let answer = answer.map_err(|error| refused(&error));
        core::answer_with(waiting.peer, waiting.number, answer, a.out);
    }

    /// Another server alone keeps the object.
    fn kept_elsewhere(
        &mut self,
        a: &mut Around<'_>,
        asked: &Name,
        home: ServerId,
        object: &Gone<'_>,
    ) {
        match self.members.get(&home) {
            Some(member) => {
                let text = format!(
                    "{} is kept by the server at {1} alone: take --server {1}, or make it \
                     with --scheduler distributed",
                    asked.plain(),
                    member.address
                );
                self.fail(a, asked, &(FailureKind::Unavailable, text));
            }
            None => self.all_gone(a, asked, object),
        }
    }

    /// The servers that had an object are gone. All that can be done is to remove its name,
    /// or, where one of them keeps it on its disk, to start that one again.
    pub(super) fn all_gone(&mut self, a: &mut Around<'_>, asked: &Name, object: &Gone<'_>) {
        let Gone {
            key,
            owner,
            is_kept,
            is_removed,
        } = *object;
        if is_removed && !is_kept {
            // Nobody can have it any more.
            self.fail(a, asked, &core::not_found(asked));
            return self.withdraw(a, (NOBODY, RequestId(0)), key.clone(), false);
        }
        let name = key.plain();
        let back_by = self.homes.back_by(key, (self.clock)());
        for waiting in self.take_waiting(asked) {
            let (peer, number) = (waiting.peer, waiting.number);
            let is_owner = a.core.identity(peer) == Some(owner);
            if is_owner && waiting.request.removes() {
                self.withdraw(a, (peer, number), key.clone(), !is_removed);
                continue;
            }
            if let Some(back_by) = back_by.filter(|_| waiting.request.opens() && is_kept) {
                self.waiting.push(Waiting {
                    until: waiting.until.min(back_by),
                    is_away: true,
                    ..waiting
                });
                continue;
            }
            if is_kept {
                core::answer_with(peer, number, Err(is_away(&name)), a.out);
                continue;
            }
            let text = format!(
                "the servers that had {name} are gone, and what it held with them; remove it \
                 with `quire object rm {name}`"
            );
            let refused = (FailureKind::Unavailable, text);
            core::answer_with(peer, number, Err(refused), a.out);
        }
    }

    pub(super) fn withdraw(
        &mut self,
        a: &mut Around<'_>,
        (peer, number): (PeerId, RequestId),
        key: Name,
        is_named: bool,
    ) {
        let wanted = Wanted::Withdraw(peer, number, key.clone(), is_named);
        if !self.ask_for(peer, wanted) {
            core::answer_with(peer, number, Err(too_many()), a.out);
        } else if peer == NOBODY {
            self.is_leaving(key);
        }
    }

    /// A name is gone from the directory.
    pub(super) fn removed(
        &mut self,
        a: &mut Around<'_>,
        (peer, number): (PeerId, RequestId),
        name: &Name,
        done: Result<bool, DirectoryError>,
    ) {
        let is_gone = matches!(done, Ok(_) | Err(DirectoryError::Missing(_)));
        self.removed_for(a, (peer, number), name, done);
        if peer == NOBODY {
            self.has_left(a, name, is_gone);
        }
    }

    fn removed_for(
        &mut self,
        a: &mut Around<'_>,
        (peer, number): (PeerId, RequestId),
        name: &Name,
        done: Result<bool, DirectoryError>,
    ) {
        let alone = a.core.object(name).is_some_and(|it| !it.is_joint);
        let answer = match done {
            Ok(_) | Err(DirectoryError::Missing(_)) if a.core.is_kept(name) => {
                if let Some(id) = self.ids.remove(name) {
                    self.joints.remove(&id);
                }
                a.core.collect(name);
                let asker = match done {
                    Ok(false) => {
                        let gone = Err(core::not_found(&name.plain()));
                        core::answer_with(peer, number, gone, a.out);
                        (NOBODY, RequestId(0))
                    }
                    _ => (peer, number),
                };
                a.core.dismiss(asker, name, a.out);
                return self.retry(a, name);
            }
            Ok(_) | Err(DirectoryError::Missing(_)) => {
                self.withdrawn(a, name);
                a.core.drop_object(name, "the object was removed", a.out);
                match done {
                    Ok(true) => Ok(Answer::Done),
                    // The directory may never have heard of it.
                    Err(_) if alone => Ok(Answer::Done),
                    // Another server was faster.
                    _ => Err(core::not_found(&name.plain())),
                }
            }
            Err(error) => Err(refused(&error)),
        };
        core::answer_with(peer, number, answer, a.out);
    }

    /// Asks again what waits for an object, or another one that has or had its name.
    pub(super) fn retry(&mut self, a: &mut Around<'_>, key: &Name) {
        let name = key.plain();
        for waiting in self.take_those(|asked| asked.plain() == name) {
            self.again(a, waiting);
        }
    }

    /// Whether something waits for an object, or another one that has or had its name.
    pub(super) fn is_awaited_by_name(&self, key: &Name) -> bool {
        let name = key.plain();
        self.waiting
            .iter()
            .any(|waiting| waiting.asked.plain() == name)
    }

    /// Asks again for what waits for a home server that is away: one of them, or all.
    pub(super) fn retry_away(&mut self, a: &mut Around<'_>, published: Option<&str>) {
        let is_of = |name: &Name, key: &str| name.as_str() == name_of(key);
        let is_it = |name: &Name| published.is_none_or(|published| is_of(name, published));
        let away = self.waiting.iter().filter(|it| it.is_away);
        let names = away.map(|it| it.asked.plain()).filter(is_it);
        for name in names.collect::<BTreeSet<_>>() {
            self.sought.retain(|asked| asked.plain() != name);
            self.retry(a, &name);
        }
    }

    /// How many wait to open an object.
    pub(super) fn wait_to_open(&self, core: &Core, key: &Name) -> usize {
        let waiting = self.waiting.iter().filter(|it| it.request.opens());
        let of_it = waiting.filter(|it| core.key_of(&it.asked).as_ref() == Some(key));
        of_it.count()
    }

    /// Asks everything again that waits.
    pub(super) fn retry_all(&mut self, a: &mut Around<'_>) {
        for waiting in std::mem::take(&mut self.waiting) {
            self.again(a, waiting);
        }
    }

    fn again(&mut self, a: &mut Around<'_>, waiting: Waiting) {
        let (peer, until, number) = (waiting.peer, waiting.until, waiting.number);
        let message = Control::Request {
            id: waiting.number,
            request: waiting.request,
        };
        if let Some(message) = self.intercept(a, peer, message) {
            a.out.push(Out::Again(peer, message));
        }
        let is_it = |other: &&mut Waiting| (other.peer, other.number) == (peer, number);
        if let Some(still) = self.waiting.iter_mut().find(is_it) {
            still.until = until;
        }
    }

    /// What asks for an object by this.
    pub(super) fn take_waiting(&mut self, asked: &Name) -> Vec<Waiting> {
        self.take_those(|it| it == asked)
    }

    fn take_those(&mut self, is_one: impl Fn(&Name) -> bool) -> Vec<Waiting> {
        let all = std::mem::take(&mut self.waiting);
        let (these, others) = all.into_iter().partition(|waiting| is_one(&waiting.asked));
        self.waiting = others;
        these
    }

    /// Tells all who ask for an object by this that it cannot be had.
    pub(super) fn fail(&mut self, a: &mut Around<'_>, asked: &Name, refused: &Refused) {
        for waiting in self.take_waiting(asked) {
            let (peer, number) = (waiting.peer, waiting.number);
            core::answer_with(peer, number, Err(refused.clone()), a.out);
        }
    }

    /// Tells those who have waited for too long.
    pub(super) fn give_up_waiting(&mut self, a: &mut Around<'_>, now: Instant) {
        if self.waiting.iter().all(|waiting| waiting.until > now) {
            return;
        }
        let all = std::mem::take(&mut self.waiting);
        let (over, others) = all.into_iter().partition(|waiting| waiting.until <= now);
        self.waiting = others;
        for waiting in over {
            self.sought.remove(&waiting.asked);
            let name = waiting.asked.plain();
            let refused = match waiting.is_away {
                true => is_away(&name),
                false => {
                    let why = self.why_not(a.core.key_of(&waiting.asked));
                    (FailureKind::Unavailable, format!("{name}: {why}"))
                }
            };
            core::answer_with(waiting.peer, waiting.number, Err(refused), a.out);
        }
    }

    /// Why an object cannot be used here, if it is here.
    fn why_not(&self, key: Option<Name>) -> String {
        if !matches!(self.stage, Stage::In(..)) {
            return "this server is not joined to the others: the directory does not answer".into();
        }
        let joint = key.and_then(|key| self.joints.get(self.ids.get(&key)?));
        let members = joint.map_or(&[][..], |joint| joint.views.members());
        let cut_off = members.iter().filter(|it| !self.wires.is_up(**it));
        let addresses: Vec<&str> = cut_off
            .filter_map(|it| Some(self.members.get(it)?.address.as_str()))
            .collect();
        if addresses.is_empty() {
            return "its servers do not agree on who has it; see whether they reach each other"
                .into();
        }
        format!(
            "this server does not reach {}; see whether the network is well, and whether all \
             servers have the same --lease",
            addresses.join(" and ")
        )
    }
}

/// What is begun, as an object without a size.
fn begun(name: &Name) -> control::Object {
    control::Object {
        scheduler: SchedulerKind::Multi,
        ..control::Object::usual(name.clone(), Bytes(0))
    }
}

/// Whether an object can be made otherwise than as it was tried.
fn make_otherwise(making: &mut Making, error: &DirectoryError) -> bool {
    let key = &mut making.info.name;
    let number = making.id.0;
    match (making.how, error) {
        // It gets its size.
        (How::New, DirectoryError::Begun(begun)) => match Name::try_from(begun.clone()) {
            Ok(begun) => (*key, making.how) = (begun, How::Adopted),
            Err(_) => return false,
        },
        // It was removed meanwhile.
        (How::Adopted, DirectoryError::Missing(_)) => {
            *key = key.numbered(number);
            making.how = How::New;
        }
        (How::Sized, DirectoryError::Missing(_)) => making.how = How::Unnamed,
        _ => return false,
    }
    true
}

/// What a program is told that asks more at once than it may.
pub(super) fn too_many() -> Refused {
    let text = "too much is asked at once that the directory has to answer".to_owned();
    (FailureKind::Full, text)
}

/// What a program is told when the directory did not do something.
pub(super) fn refused(error: &DirectoryError) -> Refused {
    match error {
        // An object of this key was made of what was begun, where that is in use.
        DirectoryError::Exists(what) | DirectoryError::InUse(what) => {
            (FailureKind::Exists, format!("there is {what} already"))
        }
        error => (FailureKind::Unavailable, error.to_string()),
    }
}
