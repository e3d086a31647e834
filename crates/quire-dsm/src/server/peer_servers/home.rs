//! Objects that a server keeps in its store, although several servers share them.
//!
//! The server that made such an object is its *home server*. It loads pages that no server has,
//! and what kernels give back anywhere goes to it and onto its disk. The others need it: when
//! it is gone, they give the object up, and it is there again when its home server is back, with
//! what was acknowledged. So nobody can go on with pages while their home server knows of others. Programs
//! that come again for it wait for three leases, as they do for a server of their own.
//!
//! A home server that comes back, under a new number, offers its objects when its old number is
//! gone from the directory, and the programs of all that heard of that have certainly
//! stopped. The object gets another number too, so that nothing that is said about the old
//! one is taken for the new one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quire_core::dsm::message::{PageNumber, ServerId};
use quire_core::dsm::scheduler::distributed::Version;

use super::names::refused;
use super::{AGAIN, Around, Making, PeerServers, Stage, Told, known};
use crate::directory::{Directory, DirectoryError, Matter};
use crate::server::core::{self, Core, PEER_SERVERS};
use crate::server::distant::{self, Queue};
use crate::server::object::{Part, Refused};
use crate::server::said::Said;
use crate::store::ObjectId;
use crate::wire::Contents;
use crate::wire::control::{
    Answer, Failure, FailureKind, HOME_KEPT_ALL, Name, Request, RequestId, SchedulerKind,
};

/// So many leases programs wait for a server that is away ([`crate::client::Options::reconnect`]).
const PATIENCE: u32 = 3;

/// What the core of this server was asked for by its peer servers' part.
enum Owed {
    /// To put an object into the store.
    Making(Making),
    /// To keep a page that a peer server sent under this number.
    Kept {
        to: ServerId,
        object: ObjectId,
        number: u64,
    },
}

/// What a peer server wants to be kept.
pub(super) struct Parcel {
    pub object: ObjectId,
    pub epoch: u64,
    pub number: u64,
    pub page: PageNumber,
    pub version: Version,
    pub contents: Option<Contents>,
}

/// What a server has to do with home servers, itself or others.
#[derive(Default)]
pub(super) struct Homes {
    /// Which store it has; none where it keeps nothing.
    pub store: Option<u64>,
    owed: BTreeMap<RequestId, Owed>,
    last: u64,
    /// Objects of the store that are not offered to others yet.
    closed: Vec<Name>,
    /// When they are.
    pub open_at: Option<Instant>,
    /// Objects whose home servers are gone, which may be started again until then.
    away: BTreeMap<Name, Instant>,
}

impl Homes {
    pub fn new(store: Option<u64>) -> Homes {
        Homes {
            store,
            ..Homes::default()
        }
    }

    /// Until when the home server of an object is waited for, if it is.
    pub fn back_by(&self, name: &Name, now: Instant) -> Option<Instant> {
        self.away.get(name).copied().filter(|until| *until > now)
    }

    fn owe(&mut self, owed: Owed) -> RequestId {
        self.last += 1;
        let number = RequestId(self.last);
        self.owed.insert(number, owed);
        number
    }
}

/// Why a home server's objects cannot be used where it is gone.
const GONE: &str = "the server that keeps it on its disk is gone; programs wait for it to be \
                    started again";

impl PeerServers {
    /// A new object goes into the store of this server.
    pub(super) fn admit(&mut self, a: &mut Around<'_>, making: Making) {
        match making.object().map(|object| a.core.granted(object)) {
            Ok(object) => {
                let number = self.homes.owe(Owed::Making(making));
                a.core.admit((PEER_SERVERS, number), object, a.out);
            }
            Err(refused) => self.not_made(a, making, refused),
        }
    }

    fn not_made(&mut self, a: &mut Around<'_>, making: Making, refused: Refused) {
        let name = making.info.name;
        self.desk.ask(Matter::Names, move |directory| {
            if let Err(error) = directory.withdraw(name.as_str()) {
                tracing::warn!("{name} was not made, and its name cannot be withdrawn: {error}");
            }
            Told::Nothing
        });
        core::answer_with(making.peer, making.number, Err(refused), a.out);
    }

    /// The core has done what it was asked for.
    pub fn core_answers(
        &mut self,
        a: &mut Around<'_>,
        number: RequestId,
        answer: Result<Answer, Failure>,
    ) {
        match self.homes.owed.remove(&number) {
            Some(Owed::Making(making)) => match answer {
                Ok(_) => self.made(a, making),
                Err(Failure { kind, text }) => self.not_made(a, making, (kind, text)),
            },
            Some(Owed::Kept { to, object, number }) => {
                let error = answer.err().map(|failure| failure.text);
                let said = Said::Kept {
                    object,
                    number,
                    error,
                };
                self.wires.say(a.links, to, &said, None);
            }
            None => {}
        }
    }

    /// An object is in the store.
    fn made(&mut self, a: &mut Around<'_>, making: Making) {
        let name = making.info.name.clone();
        if making.info.scheduler == SchedulerKind::Distributed {
            if self.me() == Some(making.home) {
                self.add(making.id, name.clone(), (making.home, making.home));
                self.is_kept_by(making.id, making.home, None);
            } else {
                // It started anew meanwhile.
                self.begin_anew(a, &name, "its server has started anew");
                self.offer_again(vec![name.clone()]);
            }
        }
        core::answer_with(making.peer, making.number, Ok(making.made()), a.out);
        self.retry(a, &name);
    }

    /// An object is kept on disk, by this server or with what this queue brings to another.
    pub(super) fn is_kept_by(&mut self, id: ObjectId, home: ServerId, queue: Option<Queue>) {
        if let Some(joint) = self.joints.get_mut(&id) {
            (joint.home, joint.queue) = (Some(home), queue);
        }
    }

    /// This server keeps a distributed object, which begins with nothing but what the store has.
    pub(super) fn begin_anew(&mut self, a: &mut Around<'_>, name: &Name, why: &str) {
        let me = self.me().unwrap_or(ServerId(0));
        a.core.renew(name, Part { me, of: me }, why, a.out);
    }

    /// This server is a member: it will offer all objects of its store.
    pub(super) fn offer_all(&mut self, a: &mut Around<'_>) {
        let kept: Vec<(Name, SchedulerKind)> = a.core.kept_objects().collect();
        for (name, scheduler) in &kept {
            if *scheduler == SchedulerKind::Distributed {
                self.begin_anew(a, name, "its server has joined others");
            }
        }
        self.homes.closed.clear();
        self.homes.open_at = None;
        self.offer_again(kept.into_iter().map(|(name, _)| name).collect());
    }

    /// These objects are to be offered when nobody can use what they were before.
    fn offer_again(&mut self, names: Vec<Name>) {
        self.homes.closed.extend(names);
        if !self.homes.closed.is_empty() {
            self.look_for_past(Duration::ZERO);
        }
    }

    /// Asks whether the directory still has this server under an earlier number.
    fn look_for_past(&mut self, later: Duration) {
        let (Some(me), Some(store)) = (self.me(), self.homes.store) else {
            return;
        };
        self.desk.ask_later(Matter::Names, later, move |directory| {
            Told::Past(me, has_past(directory, me, store))
        });
    }

    /// The directory has said that.
    pub(super) fn past(&mut self, me: ServerId, is_there: Result<bool, DirectoryError>) {
        if self.me() != Some(me) {
            return;
        }
        match is_there {
            Ok(false) => self.homes.open_at = Some((self.clock)() + self.certain()),
            Ok(true) => self.look_for_past(AGAIN),
            Err(error) => {
                tracing::warn!("objects of the store wait: {error}");
                self.look_for_past(AGAIN);
            }
        }
    }

    /// Offers the objects of the store, if it is time.
    pub(super) fn offer(&mut self, a: &mut Around<'_>, now: Instant) {
        let Stage::In(me, _) = &self.stage else {
            return;
        };
        if self.homes.open_at.is_none_or(|at| at > now) {
            return;
        }
        self.homes.open_at = None;
        let (home, store) = (*me, self.homes.store);
        for name in std::mem::take(&mut self.homes.closed) {
            let Some(object) = a.core.object(&name) else {
                continue;
            };
            let id = ObjectId((self.numbers)());
            let mut entry = known::entry(&object.info, &object.owner, id, (home, store));
            entry.is_removed = object.is_discarded;
            self.desk.ask(Matter::Names, move |directory| {
                let done = directory.find(name.exact().as_str()).and_then(|found| {
                    if found.is_some_and(|found| found.store == store) {
                        directory.withdraw(name.as_str())?;
                    }
                    known::publish_again(directory, &entry)
                });
                Told::Offered(name, id, home, done)
            });
        }
    }

    /// The directory has an object of the store.
    pub(super) fn offered(
        &mut self,
        a: &mut Around<'_>,
        name: Name,
        (id, home): (ObjectId, ServerId),
        done: Result<(), DirectoryError>,
    ) {
        if self.me() != Some(home) || a.core.object(&name).is_none() {
            return;
        }
        match done {
            Ok(()) => {
                if a.core.object(&name).is_some_and(|object| object.is_joint) {
                    self.add(id, name.clone(), (home, home));
                    self.is_kept_by(id, home, None);
                }
                self.retry(a, &name);
            }
            Err(DirectoryError::Exists(_) | DirectoryError::InUse(_)) => {
                let why = "another object has this name by now; remove that, and start this \
                           server anew";
                tracing::error!("{name} of the store is not served: {why}");
                a.core.drop_object(&name, why, a.out);
                let taken = (FailureKind::Unavailable, format!("{}: {why}", name.plain()));
                self.fail(a, &name.exact(), &taken);
                self.retry(a, &name);
            }
            Err(error) => {
                tracing::warn!("{name} of the store waits: {error}");
                self.homes.closed.push(name);
                self.homes.open_at = Some((self.clock)() + AGAIN);
            }
        }
    }

    /// A server is gone: the objects that it keeps are given up here. Programs that come again for them
    /// wait, as long as for a server that is away, for it to be started again.
    pub(super) fn home_left(&mut self, a: &mut Around<'_>, home: ServerId) {
        let kept = |joint: &super::joint::Joint| joint.home == Some(home);
        let lost: Vec<ObjectId> = self
            .joints
            .iter()
            .filter(|(_, joint)| kept(joint))
            .map(|(id, _)| *id)
            .collect();
        let now = (self.clock)();
        self.homes.away.retain(|_, until| *until > now);
        for id in lost {
            if let Some(joint) = self.joints.remove(&id) {
                let back_by = now + PATIENCE * self.lease;
                self.homes.away.insert(joint.name.clone(), back_by);
                let here = a.core.object(&joint.name);
                let why = match here.is_some_and(|here| here.has_given_all_back()) {
                    true => HOME_KEPT_ALL,
                    false => GONE,
                };
                tracing::warn!("{}: {why}", joint.name);
                self.ids.remove(&joint.name);
                a.core.drop_object(&joint.name, why, a.out);
            }
        }
    }

    /// What is to be told where an object's home server alone may do what is asked.
    pub(super) fn only_home(&self, name: &Name, request: &Request) -> Option<Refused> {
        let is_so = matches!(
            request,
            Request::Remove { .. } | Request::Discard { .. } | Request::Grant { .. }
        );
        let joint = self.ids.get(name).and_then(|id| self.joints.get(id));
        let home = joint.and_then(|joint| joint.home);
        let home = home.filter(|home| is_so && Some(*home) != self.me())?;
        let member = self.members.get(&home)?;
        let text = format!(
            "the server at {0} keeps {name} on its disk, and what it is can be changed there \
             only: take --server {0}",
            member.address
        );
        Some((FailureKind::Unavailable, text))
    }

    /// Sends home servers what was given back here, as much as may be under way to each.
    pub(super) fn send_parcels(&mut self, a: &mut Around<'_>) {
        let mut under_way: BTreeMap<ServerId, usize> = BTreeMap::new();
        for joint in self.joints.values() {
            if let (Some(home), Some(queue)) = (joint.home, &joint.queue) {
                *under_way.entry(home).or_default() += queue.under_way();
            }
        }
        for (&object, joint) in &self.joints {
            let (Some(home), Some(queue)) = (joint.home, &joint.queue) else {
                continue;
            };
            let epoch = joint.views.epoch();
            if !joint.views.is_in() || !joint.views.may_send(home, epoch) {
                continue;
            }
            let to_home = under_way.entry(home).or_default();
            for (number, parcel) in queue.take(distant::WINDOW.saturating_sub(*to_home)) {
                *to_home += distant::weight(parcel.contents.as_ref());
                let said = Said::Keep {
                    object,
                    epoch,
                    number,
                    page: parcel.page,
                    version: parcel.version,
                };
                let contents = parcel.contents;
                self.wires.say(a.links, home, &said, contents);
            }
        }
    }

    /// A peer server wants something to be kept. What is wrong with it is an error.
    pub(super) fn keep(
        &mut self,
        a: &mut Around<'_>,
        from: ServerId,
        parcel: Parcel,
    ) -> Result<(), String> {
        let me = self.me();
        let Some(joint) = self.joints.get_mut(&parcel.object) else {
            return Ok(());
        };
        if joint.home != me {
            return Err(format!("this server does not keep {}", joint.name));
        }
        let epoch = joint.views.epoch();
        if parcel.epoch > epoch {
            joint.early_parcels.push((from, parcel));
            return Ok(());
        }
        // What was sent in an earlier view is sent again in this one, if its sender is in it.
        if parcel.epoch < epoch || !joint.views.members().contains(&from) {
            return Ok(());
        }
        let name = joint.name.clone();
        let Parcel { object, number, .. } = parcel;
        let owed = Owed::Kept {
            to: from,
            object,
            number,
        };
        let asker = (PEER_SERVERS, self.homes.owe(owed));
        let page = (parcel.page, parcel.version, parcel.contents);
        let kept = a.core.keep(&name, page, asker, a.out);
        self.gathered_one(from, object);
        kept.map_err(|nonsense| format!("{name}: {nonsense}"))
    }

    /// The home server of an object has answered.
    pub(super) fn kept(&mut self, object: ObjectId, number: u64, error: Option<String>) {
        let joint = self.joints.get(&object);
        if let Some(queue) = joint.and_then(|joint| joint.queue.as_ref()) {
            queue.answered(number, error.map_or(Ok(()), Err));
        }
    }
}

/// Whether a member lives under whose number this server's store was offered before.
fn has_past(directory: &dyn Directory, me: ServerId, store: u64) -> Result<bool, DirectoryError> {
    let members = directory.members()?;
    let lives = |id: ServerId| members.iter().any(|member| member.id == id);
    let mut entries = directory.entries()?.into_iter();
    Ok(entries.any(|it| it.store == Some(store) && it.home != me && lives(it.home)))
}

/// What those are told who want an object whose home server is gone.
pub(super) fn is_away(name: &Name) -> Refused {
    let text = format!(
        "the server that keeps {name} on its disk is not there; start it again with its --store, \
         or forget the object with `quire object rm {name}`"
    );
    (FailureKind::Unavailable, text)
}

impl Core {
    /// Keeps a page that a peer server sent, and answers when it is safe.
    fn keep(
        &mut self,
        name: &Name,
        page: (PageNumber, Version, Option<Contents>),
        asker: (core::PeerId, RequestId),
        out: &mut Vec<core::Out>,
    ) -> Result<(), quire_core::dsm::scheduler::Nonsense> {
        match self.object(name) {
            Some(object) => object.keep(page)?,
            None => {
                let gone = refused(&DirectoryError::Missing(format!("object {name}")));
                core::answer_with(asker.0, asker.1, Err(gone), out);
                return Ok(());
            }
        }
        self.sync(asker, name, out);
        Ok(())
    }
}
