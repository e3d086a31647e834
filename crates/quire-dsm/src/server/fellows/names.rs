//! What programs ask by the name of an object. Names belong to all servers: the directory is
//! asked before an object is made or removed, and where one is wanted that is not here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Instant;

use quire_core::dsm::message::ServerId;

use super::keeper::is_away;
use super::line::MOST;
use super::{Fellows, Making, Stage, Told, known};
use crate::directory::{Directory, DirectoryError, Entry, Matter};
use crate::server::Around;
use crate::server::core::{self, Core, Out, PeerId};
use crate::server::distant::Distant;
use crate::server::object::{Object, Part, Refused};
use crate::server::said::Said;
use crate::store::ObjectId;
use crate::wire::Control;
use crate::wire::control::{self, Answer, FailureKind, Name, Request, RequestId, SchedulerKind};

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
    pub name: Name,
    pub until: Instant,
    /// Its keeper may come back until then.
    pub is_away: bool,
}

/// What a program has the directory asked for.
pub(super) enum Wanted {
    /// To make a name known.
    Publish(Box<(Making, Entry)>),
    /// What is behind a name.
    Find(Name),
    /// To forget a name.
    Withdraw(PeerId, RequestId, Name),
}

impl Wanted {
    /// Asks for it.
    fn ask(self, directory: &dyn Directory) -> Told {
        match self {
            Wanted::Publish(new) => {
                let (making, entry) = *new;
                Told::Published(making, directory.publish(&entry))
            }
            Wanted::Find(name) => {
                let found = directory.find(name.as_str());
                Told::Found(name, found)
            }
            Wanted::Withdraw(peer, number, name) => {
                let done = directory.withdraw(name.as_str());
                Told::Withdrawn(peer, number, name, done)
            }
        }
    }
}

/// Whether an object can be used here.
enum Reach {
    Here,
    Later,
    /// It is not here: the directory is to be asked for it.
    Unknown,
}

impl Fellows {
    /// A program says something. What the server's own core is to answer comes back.
    pub fn intercept(
        &mut self,
        a: &mut Around<'_>,
        peer: PeerId,
        message: Control,
    ) -> Option<Control> {
        let Control::Request {
            id: number,
            request,
        } = message
        else {
            return Some(message);
        };
        let name = match &request {
            Request::Create(info) => info.name.clone(),
            Request::Open { name, .. }
            | Request::Attach { name, .. }
            | Request::Statistics { name, .. }
            | Request::Hottest { name, .. }
            | Request::Watch { name, .. }
            | Request::Tag { name, .. }
            | Request::Grant { name, .. }
            | Request::Remove { name }
            | Request::Discard { name } => name.clone(),
            Request::List { after } => {
                self.list(a, (peer, number), after.clone());
                return None;
            }
            _ => {
                let id = number;
                return Some(Control::Request { id, request });
            }
        };
        let reach = match &request {
            Request::Create(_) if self.me().is_some() => Reach::Here,
            Request::Create(_) => Reach::Later,
            _ => self.reach(a.core, &name, &request),
        };
        match reach {
            Reach::Here => self.here(a, (peer, number), &name, request),
            Reach::Later | Reach::Unknown => {
                let own = self.waiting.iter().filter(|it| it.peer == peer).count();
                let is_known = matches!(reach, Reach::Later);
                if own >= MOST || !(is_known || self.seek(peer, &name)) {
                    core::answer_with(peer, number, Err(too_many()), a.out);
                    return None;
                }
                let until = (self.clock)() + 4 * self.lease;
                self.waiting.push(Waiting {
                    peer,
                    number,
                    request,
                    name,
                    until,
                    is_away: false,
                });
                None
            }
        }
    }

    /// Whether an object can be used here.
    fn reach(&self, core: &mut Core, name: &Name, request: &Request) -> Reach {
        let is_shown = matches!(
            request,
            Request::Statistics { .. } | Request::Hottest { .. } | Request::Watch { .. }
        );
        let Some(object) = core.object(name) else {
            return Reach::Unknown;
        };
        let is_ready = !object.is_joint || is_shown || {
            let live = object.is_live();
            let joint = self.ids.get(name).and_then(|id| self.joints.get(id));
            let is_closed = |until: Instant| until > (self.clock)();
            live && joint.is_some_and(|joint| {
                joint.views.is_in()
                    && joint.types.is_known
                    && !joint.closed_until.is_some_and(is_closed)
            })
        };
        match is_ready {
            true => Reach::Here,
            false => Reach::Later,
        }
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
            let all = entries.iter().filter_map(known::info);
            let all = all.map(|(info, _)| (info.name.clone(), info));
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
    fn ask_for(&mut self, program: PeerId, wanted: Wanted) -> bool {
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
    fn seek(&mut self, program: PeerId, name: &Name) -> bool {
        if self.me().is_none() || self.sought.contains(name) {
            return true;
        }
        let may = self.ask_for(program, Wanted::Find(name.clone()));
        if may {
            self.sought.insert(name.clone());
        }
        may
    }

    /// Asks for a name once more, for one of those who wait for it.
    pub(super) fn seek_again(&mut self, name: Name) {
        self.sought.remove(&name);
        let waits = self.waiting.iter().find(|waiting| waiting.name == name);
        if let Some(program) = waits.map(|waiting| waiting.peer) {
            self.seek(program, &name);
        }
    }

    /// A program is gone: what it waits for is not needed, but by others.
    pub fn program_left(&mut self, program: PeerId) {
        self.waiting.retain(|waiting| waiting.peer != program);
        self.listing.wanted.retain(|wanted| wanted.0 != program);
        for wanted in self.line.gone(program) {
            if let Wanted::Find(name) = wanted {
                self.seek_again(name);
            }
        }
    }

    /// Does what is asked of an object that can be used here, or leaves it to the core.
    fn here(
        &mut self,
        a: &mut Around<'_>,
        (peer, number): (PeerId, RequestId),
        name: &Name,
        request: Request,
    ) -> Option<Control> {
        if let Some(refused) = self.only_keeper(name, &request) {
            core::answer_with(peer, number, Err(refused), a.out);
            return None;
        }
        match &request {
            Request::Create(info) => {
                match a.core.may_create(peer, info) {
                    Ok(owner) => self.publish(a, (peer, number), info.clone(), owner),
                    Err(refused) => core::answer_with(peer, number, Err(refused), a.out),
                }
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

    fn publish(
        &mut self,
        a: &mut Around<'_>,
        (peer, number): (PeerId, RequestId),
        info: control::Object,
        owner: String,
    ) {
        let Some(home) = self.me() else { return };
        let id = ObjectId((self.numbers)());
        let entry = known::entry(&info, &owner, id, (home, self.keepers.store));
        let making = Making {
            peer,
            number,
            info,
            owner,
            id,
            home,
        };
        if !self.ask_for(peer, Wanted::Publish(Box::new((making, entry)))) {
            core::answer_with(peer, number, Err(too_many()), a.out);
        }
    }

    /// The name of an object is known to all.
    pub(super) fn published(
        &mut self,
        a: &mut Around<'_>,
        making: Making,
        done: Result<(), DirectoryError>,
    ) {
        if done.is_ok() && self.keepers.store.is_some() {
            return self.admit(a, making);
        }
        let Making {
            peer,
            number,
            info,
            owner,
            id,
            home,
        } = making;
        let is_joint = info.scheduler == SchedulerKind::Distributed;
        let part = Part { me: home, of: home };
        let name = info.name.clone();
        let made = match done {
            Ok(()) if is_joint && self.me() != Some(home) => Err((
                FailureKind::Unavailable,
                "this server has started anew meanwhile; remove the object and make it again"
                    .to_owned(),
            )),
            Ok(()) => a.core.insert(info, owner, is_joint.then_some(part)),
            Err(error) => Err(refused(&error)),
        };
        if made.is_ok() && is_joint {
            self.add(id, name, (home, home));
        }
        let answer = made.map(|()| Answer::Done);
        core::answer_with(peer, number, answer, a.out);
    }

    /// Objects that only this server has are its own under its new number, too.
    pub(super) fn publish_again(&mut self, core: &Core, me: ServerId) {
        let own = |object: &&Object| !object.is_joint && object.id.is_none();
        for object in core.objects().filter(own) {
            let id = ObjectId((self.numbers)());
            let entry = known::entry(&object.info, &object.owner, id, (me, None));
            self.desk.ask(Matter::Names, move |directory| {
                let name = &entry.object.is.name;
                // It may not have been there.
                let _ = directory.withdraw(name);
                if let Err(error) = directory.publish(&entry) {
                    tracing::warn!("{name} cannot be found by others: {error}");
                }
                Told::Nothing
            });
        }
    }

    /// The directory says what is behind a name.
    pub(super) fn found(
        &mut self,
        a: &mut Around<'_>,
        name: Name,
        found: Result<Option<Entry>, DirectoryError>,
    ) {
        self.sought.remove(&name);
        let Stage::In(me, _) = &self.stage else {
            return;
        };
        let me = *me;
        if a.core.object(&name).is_some() {
            return self.retry(a, &name);
        }
        let entry = match found {
            Ok(Some(entry)) => entry,
            Ok(None) => return self.nowhere(a, &name),
            Err(error) => return self.fail(a, &name, &refused(&error)),
        };
        let Some((info, owner)) = known::info(&entry) else {
            let text = format!("{name} is of a kind that this server does not know");
            return self.fail(a, &name, &(FailureKind::Invalid, text));
        };
        let is_joint = info.scheduler == SchedulerKind::Distributed;
        if (!is_joint || entry.keeper.is_some()) && self.is_absent(entry.home).is_none() {
            self.sought.insert(name.clone());
            self.unsure.insert(name);
            return;
        }
        if !is_joint {
            return self.kept_elsewhere(a, &name, &owner, &entry);
        }
        if entry.keeper.is_some() && !self.members.contains_key(&entry.home) {
            return self.all_gone(a, &name, &owner, true);
        }
        let part = Part { me, of: entry.home };
        match a.core.insert(info, owner, Some(part)) {
            Ok(()) => {
                let id = entry.object.id;
                self.add(id, name.clone(), (me, entry.home));
                if entry.keeper.is_some() {
                    let (pager, queue) = Distant::new();
                    a.core.keep_elsewhere(&name, pager, queue.clone());
                    self.is_kept_by(id, entry.home, Some(queue));
                }
            }
            Err(refused) => self.fail(a, &name, &refused),
        }
    }

    /// Another server alone keeps the object.
    fn kept_elsewhere(&mut self, a: &mut Around<'_>, name: &Name, owner: &str, entry: &Entry) {
        match self.members.get(&entry.home) {
            Some(member) => {
                let text = format!(
                    "{name} is kept by the server at {0} alone: take --server {0}, or make it \
                     with --scheduler distributed",
                    member.address
                );
                self.fail(a, name, &(FailureKind::Unavailable, text));
            }
            None => self.all_gone(a, name, owner, entry.keeper.is_some()),
        }
    }

    /// The servers that had an object are gone. All that can be done is to remove its name,
    /// or, where one of them keeps it on its disk, to start that one again.
    pub(super) fn all_gone(&mut self, a: &mut Around<'_>, name: &Name, owner: &str, is_kept: bool) {
        let back_by = self.keepers.back_by(name, (self.clock)());
        for waiting in self.take_waiting(name) {
            let (peer, number) = (waiting.peer, waiting.number);
            let is_owner = a.core.identity(peer) == Some(owner);
            let removes = matches!(
                waiting.request,
                Request::Remove { .. } | Request::Discard { .. }
            );
            if is_owner && removes {
                self.withdraw(a, (peer, number), name.clone());
                continue;
            }
            let opens = matches!(
                waiting.request,
                Request::Open { .. } | Request::Attach { .. }
            );
            if let Some(back_by) = back_by.filter(|_| opens && is_kept) {
                self.waiting.push(Waiting {
                    until: waiting.until.min(back_by),
                    is_away: true,
                    ..waiting
                });
                continue;
            }
            if is_kept {
                core::answer_with(peer, number, Err(is_away(name)), a.out);
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
        name: Name,
    ) {
        if !self.ask_for(peer, Wanted::Withdraw(peer, number, name)) {
            core::answer_with(peer, number, Err(too_many()), a.out);
        }
    }

    /// A name is gone from the directory.
    pub(super) fn removed(
        &mut self,
        a: &mut Around<'_>,
        (peer, number): (PeerId, RequestId),
        name: &Name,
        done: Result<(), DirectoryError>,
    ) {
        let answer = match done {
            Ok(()) | Err(DirectoryError::Missing(_)) if a.core.is_kept(name) => {
                if let Some(id) = self.ids.remove(name) {
                    self.joints.remove(&id);
                }
                a.core.collect(name);
                a.core.dismiss((peer, number), name, a.out);
                return self.retry(a, name);
            }
            Ok(()) | Err(DirectoryError::Missing(_)) => {
                self.withdrawn(a, name);
                a.core.drop_object(name, "the object was removed", a.out);
                Ok(Answer::Done)
            }
            Err(error) => Err(refused(&error)),
        };
        core::answer_with(peer, number, answer, a.out);
    }

    /// Asks again what waits for an object.
    pub(super) fn retry(&mut self, a: &mut Around<'_>, name: &Name) {
        for waiting in self.take_waiting(name) {
            self.again(a, waiting);
        }
    }

    /// Asks again for what waits for a keeper that is away: one of them, or all.
    pub(super) fn retry_away(&mut self, a: &mut Around<'_>, published: Option<&str>) {
        let is_it = |name: &Name| published.is_none_or(|published| name.as_str() == published);
        let away = self.waiting.iter().filter(|it| it.is_away);
        let names = away.map(|it| it.name.clone()).filter(is_it);
        for name in names.collect::<BTreeSet<_>>() {
            self.sought.remove(&name);
            self.retry(a, &name);
        }
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

    pub(super) fn take_waiting(&mut self, name: &Name) -> Vec<Waiting> {
        let all = std::mem::take(&mut self.waiting);
        let (these, others) = all.into_iter().partition(|waiting| waiting.name == *name);
        self.waiting = others;
        these
    }

    /// Tells all who wait for an object that it cannot be had.
    pub(super) fn fail(&mut self, a: &mut Around<'_>, name: &Name, refused: &Refused) {
        for waiting in self.take_waiting(name) {
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
            self.sought.remove(&waiting.name);
            let refused = match waiting.is_away {
                true => is_away(&waiting.name),
                false => {
                    let why = self.why_not(&waiting.name);
                    (FailureKind::Unavailable, format!("{}: {why}", waiting.name))
                }
            };
            core::answer_with(waiting.peer, waiting.number, Err(refused), a.out);
        }
    }

    /// Why an object cannot be used here.
    fn why_not(&self, name: &Name) -> String {
        if !matches!(self.stage, Stage::In(..)) {
            return "this server is not joined to the others: the directory does not answer".into();
        }
        let joint = self.ids.get(name).and_then(|id| self.joints.get(id));
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

/// What a program is told that asks more at once than it may.
fn too_many() -> Refused {
    let text = "too much is asked at once that the directory has to answer".to_owned();
    (FailureKind::Full, text)
}

/// What a program is told when the directory did not do something.
pub(super) fn refused(error: &DirectoryError) -> Refused {
    match error {
        DirectoryError::Exists(what) => (FailureKind::Exists, format!("there is {what} already")),
        error => (FailureKind::Unavailable, error.to_string()),
    }
}
