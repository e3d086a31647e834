//! How a server keeps its objects: what stands behind them answers later, and so must the
//! server. Making and removing an object is answered when the store has done it; what was
//! given back counts as safe when its pager says so.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use quire_core::dsm::message::ServerId;
use quire_core::units::Bytes;

use super::backed::bell::Bell;
use super::backed::held::PAUSE;
use super::backed::{Asker, Behind};
use super::core::{Core, NOBODY, Out, answer_with};
use super::depot::{Depot, Kept, refusal};
use super::distant::{Distant, Queue};
use super::object::{Object, Part, Refused};
use crate::pager::Pager;
use crate::store::{ObjectId, Store, StoreError};
use crate::wire::control::{
    self, Answer, Failure, FailureKind, Name, RequestId, Rights, SchedulerKind,
};

/// What a pager is asked for is looked at so often, if it says nothing itself.
const LOOK: Duration = Duration::from_millis(250);

/// A store may take so long to answer: its disk has a queue.
const STORE_PATIENCE: Duration = Duration::from_secs(60);

/// A pager may take so long to answer, unless told otherwise.
pub const PAGER_PATIENCE: Duration = Duration::from_secs(10);

/// What stands behind the objects of a server.
#[derive(Default)]
pub struct Keeping {
    bell: Bell,
    depot: Option<Depot>,
    /// Objects that are being made or removed, and who asked for that.
    underway: BTreeMap<Name, (Asker, Object)>,
    /// Objects whose pagers owe something.
    busy: BTreeSet<Name>,
    look_at: Option<Instant>,
    memory: Memory,
}

/// How much of the objects is in memory, although pagers have the same.
struct Memory {
    used: Bytes,
    limit: Bytes,
    /// No room is made before there is more than this.
    enough: Bytes,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            used: Bytes::ZERO,
            limit: Bytes(u64::MAX),
            enough: Bytes(u64::MAX),
        }
    }
}

impl Keeping {
    /// How many objects are being made or removed.
    pub(super) fn underway(&self) -> usize {
        self.underway.len()
    }

    /// Whether an object with a key is being made or removed.
    pub(super) fn is_busy_with(&self, key: &Name) -> bool {
        self.underway.contains_key(key)
    }

    /// Whether an object that has a name is being made or removed.
    pub(super) fn has_name(&self, name: &Name) -> bool {
        let mut all = self.underway.iter();
        all.any(|(key, (_, object))| !object.is_discarded && key.plain() == *name)
    }

    /// The name goes from an object that is being made, if one is that has this key.
    pub(super) fn discard_underway(&mut self, key: &Name) {
        if let Some((_, object)) = self.underway.get_mut(key) {
            object.is_discarded = true;
            // Who has made it by the name does not find it, and it goes in time.
            if !object.new.is_so() {
                object.missed.begin();
            }
        }
    }

    /// Puts a pager behind an object.
    fn behind(
        &self,
        pager: Box<dyn Pager>,
        object: &control::Object,
        patience: Duration,
    ) -> Behind {
        let limits = (patience, self.memory.limit);
        Behind::new(pager, object, &self.bell, limits)
    }
}

impl Memory {
    /// Counts what an object has in memory now.
    fn count(&mut self, object: &mut Object) {
        let now = object.resident();
        self.used.0 = self.used.0 - object.in_memory.0 + now.0;
        object.in_memory = now;
    }
}

/// An object that a server makes for others, with a pager of its own.
pub struct Offer {
    /// The object.
    pub object: control::Object,
    /// The identity that may do everything to it.
    pub owner: String,
    /// What everybody may do to it.
    pub anyone: Rights,
    /// How long its pager may take to answer before that counts as an error.
    pub patience: Duration,
}

impl Core {
    /// What rings when something is to be looked at.
    #[must_use]
    pub fn bell(&self) -> &Bell {
        &self.keeping.bell
    }

    /// Keeps objects in a store from now on, and takes over those that are there.
    ///
    /// # Errors
    /// Where the threads that read from it cannot be started.
    pub fn keep_in(&mut self, store: Store) -> io::Result<()> {
        let depot = Depot::new(store, self.keeping.bell.clone())?;
        for found in depot.objects() {
            match found {
                Ok((id, object)) => {
                    let object = self.kept(&depot, id, object);
                    self.objects.insert(object.info.name.clone(), object);
                }
                Err(why) => tracing::error!("an object of the store is not served: {why}"),
            }
        }
        self.keeping.depot = Some(depot);
        Ok(())
    }

    /// Of what pagers have, about so much is kept in memory; the rest is asked for again. Nor may more
    /// of an object be on its way to its pager, if that keeps up.
    pub fn limit_memory(&mut self, limit: Bytes) {
        let memory = &mut self.keeping.memory;
        (memory.limit, memory.enough) = (limit, limit);
        let behind = self
            .objects
            .values_mut()
            .filter_map(|it| it.behind.as_mut());
        behind.for_each(|behind| behind.set_most_unsafe(limit));
    }

    /// Has all distributed objects of the store wait until they are offered to other servers.
    /// The number of the store, if there is one.
    pub(super) fn close_kept(&mut self, out: &mut Vec<Out>) -> Option<u64> {
        let nobody = ServerId(0);
        let part = Part {
            me: nobody,
            of: nobody,
        };
        let kept: Vec<_> = self.kept_objects().collect();
        for (name, scheduler) in kept {
            if scheduler == SchedulerKind::Distributed {
                self.renew(&name, part, "its server joins others", out);
            }
        }
        self.keeping.depot.as_ref().map(Depot::number)
    }

    /// The objects of the store.
    pub(super) fn kept_objects(&self) -> impl Iterator<Item = (Name, SchedulerKind)> {
        let kept = self.objects().filter(|object| object.id.is_some());
        kept.map(|object| (object.info.name.clone(), object.info.scheduler))
    }

    /// Whether an object is in the store.
    pub(super) fn is_kept(&self, name: &Name) -> bool {
        let object = self.objects.get(name);
        object.is_some_and(|object| object.id.is_some())
    }

    /// Has an object of the store begin anew as one that several servers share: with what the
    /// store has. Who uses it is cut off.
    pub(super) fn renew(&mut self, name: &Name, part: Part, why: &str, out: &mut Vec<Out>) {
        let Some(old) = self.objects.get(name) else {
            return;
        };
        let (info, owner) = (old.info.clone(), old.owner.clone());
        let (grants, id) = (old.grants.clone(), old.id);
        let (is_discarded, missed) = (old.is_discarded, old.missed);
        self.drop_object(name, why, out);
        let (Some(id), Some(depot)) = (id, self.keeping.depot.take()) else {
            return;
        };
        match Object::new(info, owner, Some(part)) {
            Ok(object) => {
                let mut object = self.kept(&depot, id, object);
                object.grants = grants;
                (object.is_discarded, object.missed) = (is_discarded, missed);
                self.objects.insert(name.clone(), object);
            }
            Err((_, text)) => tracing::error!("{name} is not served: {text}"),
        }
        self.keeping.depot = Some(depot);
    }

    /// Another server keeps an object: what is given back goes there.
    pub(super) fn keep_elsewhere(&mut self, name: &Name, pager: Distant, queue: Queue) {
        if let Some(object) = self.objects.get_mut(name) {
            let pager = Box::new(pager);
            object.behind = Some(self.keeping.behind(pager, &object.info, STORE_PATIENCE));
            object.queue = Some(queue);
        }
    }

    /// Takes an object from memory, without regard to who uses it. Whether it was there.
    pub(super) fn forget_object(&mut self, name: &Name) -> bool {
        let Some(mut object) = self.objects.remove(name) else {
            return false;
        };
        self.keeping.busy.remove(name);
        self.keeping.memory.used.0 -= object.in_memory.0;
        if let Some(behind) = object.behind.take() {
            behind.end();
        }
        true
    }

    /// An object that is in the store.
    fn kept(&self, depot: &Depot, id: ObjectId, mut object: Object) -> Object {
        let keeping = &self.keeping;
        let behind = keeping.behind(depot.pager(id), &object.info, STORE_PATIENCE);
        (object.behind, object.id) = (Some(behind), Some(id));
        object
    }

    /// Makes an object whose contents a pager supplies. It lives as long as the server.
    ///
    /// # Errors
    /// What is wrong with it, or that there is one of this name.
    pub fn create_with_pager(
        &mut self,
        offer: Offer,
        pager: Box<dyn Pager>,
    ) -> Result<(), Failure> {
        let failure = |(kind, text): Refused| Failure { kind, text };
        let object = self.new_object(offer.object, offer.owner);
        let mut object = object.map_err(failure)?;
        let anyone = object.grant("anyone".to_owned(), offer.anyone);
        anyone.map_err(failure)?;
        object.behind = Some(self.keeping.behind(pager, &object.info, offer.patience));
        self.put(object.info.name.clone(), object);
        Ok(())
    }

    /// A new object: it is there at once, or when the store has it.
    pub(super) fn admit(&mut self, asker: Asker, object: Object, out: &mut Vec<Out>) {
        let name = object.info.name.clone();
        if let Some(depot) = &self.keeping.depot {
            depot.make(&object);
            self.keeping.underway.insert(name, (asker, object));
            return;
        }
        let answer = Ok(object.made());
        self.put(name, object);
        answer_with(asker.0, asker.1, answer, out);
    }

    /// An object goes, which nobody has open: at once, or when the store has removed it.
    pub(super) fn dismiss(&mut self, asker: Asker, name: &Name, out: &mut Vec<Out>) {
        let Some(mut object) = self.objects.remove(name) else {
            return;
        };
        self.keeping.busy.remove(name);
        self.keeping.memory.used.0 -= object.in_memory.0;
        object.in_memory = Bytes::ZERO;
        let waiting = object.behind.as_mut().map(Behind::dismiss);
        for (peer, id) in waiting.into_iter().flatten() {
            let gone = (
                FailureKind::NotFound,
                format!("{} was removed", name.plain()),
            );
            // Where it goes with its last user, that waits for nothing that is lost to anybody.
            let answer = match asker.0 {
                NOBODY => Ok(Answer::Done),
                _ => Err(gone),
            };
            answer_with(peer, id, answer, out);
        }
        match (object.id, &self.keeping.depot) {
            // Whatever is made by its name comes to the store after this.
            (Some(id), Some(depot)) if asker.0 == NOBODY => depot.drop_later(id, name.clone()),
            (Some(id), Some(depot)) => {
                depot.remove(id, name.clone());
                let underway = (asker, object);
                self.keeping.underway.insert(name.clone(), underway);
                return;
            }
            _ => {}
        }
        if let Some(behind) = object.behind.take() {
            behind.end();
        }
        answer_with(asker.0, asker.1, Ok(Answer::Done), out);
    }

    /// What an object is has changed: that is answered when the store has it.
    pub(super) fn changed(
        &mut self,
        asker: Asker,
        name: &Name,
        changed: Result<Answer, Refused>,
        out: &mut Vec<Out>,
    ) {
        let object = self.objects.get(name).filter(|_| changed.is_ok());
        let kept = object.and_then(|object| Some((object.id?, object)));
        match (kept, &self.keeping.depot) {
            (Some((id, object)), Some(depot)) => depot.change(id, object, asker),
            _ => answer_with(asker.0, asker.1, changed, out),
        }
    }

    /// Answers when all that was given back to an object is safe.
    pub(super) fn sync(&mut self, asker: Asker, name: &Name, out: &mut Vec<Out>) {
        let behind = self
            .objects
            .get_mut(name)
            .and_then(|object| object.behind.as_mut());
        let Some(behind) = behind else {
            return answer_with(asker.0, asker.1, Ok(Answer::Done), out);
        };
        behind.sync(asker);
        self.look_behind_one(name, Instant::now(), out);
    }

    /// Something has happened to an object: who waited for its pager is answered, and where
    /// the pager owes something, it is looked at again.
    pub(super) fn settle(&mut self, name: &Name, out: &mut Vec<Out>) {
        let Some(object) = self.objects.get_mut(name) else {
            return;
        };
        let Some(behind) = &object.behind else {
            return;
        };
        match behind.is_busy() {
            true if !self.keeping.busy.contains(name) => {
                self.keeping.busy.insert(name.clone());
            }
            true => {}
            false => drop(self.keeping.busy.remove(name)),
        }
        for ((peer, id), answer) in object.ended() {
            answer_with(peer, id, answer, out);
        }
        self.keeping.memory.count(object);
        if self.keeping.memory.used > self.keeping.memory.enough {
            self.make_room();
        }
    }

    /// Has contents go from memory, of the objects that have most there first.
    fn make_room(&mut self) {
        let memory = &mut self.keeping.memory;
        // More than is needed goes at once, so that this is not done for each page.
        let some = memory.limit.0 / 16;
        while memory.used > memory.limit {
            let largest = self
                .objects
                .values_mut()
                .max_by_key(|object| object.in_memory);
            let Some(largest) = largest else {
                break;
            };
            let before = memory.used;
            largest.make_room(Bytes(memory.used.0 - memory.limit.0 + some));
            memory.count(largest);
            if memory.used == before {
                break;
            }
        }
        // Where nothing can go, it is not tried again for each page either.
        memory.enough = Bytes(memory.used.0.saturating_add(some).max(memory.limit.0));
    }

    /// Whether something that was given back is on its way to a pager.
    pub(super) fn is_giving_back(&self) -> bool {
        self.busy().any(Behind::is_giving_back)
    }

    /// How many pages that were given back are not safe yet.
    pub(super) fn giving_back(&self) -> u64 {
        self.busy().map(|behind| behind.left().0 as u64).sum()
    }

    /// What stands behind objects whose pagers owe something.
    fn busy(&self) -> impl Iterator<Item = &Behind> {
        let busy = self.keeping.busy.iter();
        busy.filter_map(|name| self.objects.get(name)?.behind.as_ref())
    }

    /// When [`Core::look_behind`] has something to do, if nothing rings before.
    #[must_use]
    pub fn next_look(&self) -> Option<Instant> {
        self.keeping.look_at
    }

    /// Looks at what pagers and the store have said, and does what is due.
    pub fn look_behind(&mut self, now: Instant, out: &mut Vec<Out>) {
        let mut names = self.keeping.bell.heard();
        if self.keeping.look_at.is_some_and(|at| at <= now) {
            self.keeping.look_at = None;
            names.extend(self.keeping.busy.iter().cloned());
        }
        for name in names {
            self.look_behind_one(&name, now, out);
        }
        let depot = self.keeping.depot.as_ref();
        for kept in depot.map(Depot::heard).unwrap_or_default() {
            self.hear_depot(kept, out);
        }
        if self.keeping.busy.is_empty() {
            self.keeping.look_at = None;
        } else if self.keeping.look_at.is_none() {
            let pause = match self.busy().any(Behind::is_too_slow) {
                true => PAUSE,
                false => LOOK,
            };
            self.keeping.look_at = Some(now + pause);
        }
    }

    fn hear_depot(&mut self, kept: Kept, out: &mut Vec<Out>) {
        match kept {
            Kept::Made(name, made) => self.made(&name, made, out),
            Kept::Removed(name, removed) => self.removed(name, removed, out),
            Kept::Changed((peer, id), changed) => {
                let answer = changed.map(|()| Answer::Done).map_err(|error| {
                    let (kind, text) = refusal(&error);
                    let until = "it holds until this server ends, and no longer";
                    (kind, format!("{until}: {text}"))
                });
                answer_with(peer, id, answer, out);
            }
        }
    }

    fn made(&mut self, name: &Name, made: Result<ObjectId, StoreError>, out: &mut Vec<Out>) {
        let Some(((peer, id), object)) = self.keeping.underway.remove(name) else {
            return;
        };
        let answer = made.map_err(|error| refusal(&error));
        let answer = answer.map(|kept_as| {
            let answer = object.made();
            if let Some(depot) = self.keeping.depot.take() {
                let object = self.kept(&depot, kept_as, object);
                if object.is_discarded {
                    // It may have lost its name since the store was told of it.
                    depot.change(kept_as, &object, (NOBODY, RequestId(0)));
                }
                self.put(name.clone(), object);
                self.keeping.depot = Some(depot);
            }
            answer
        });
        answer_with(peer, id, answer, out);
    }

    fn removed(&mut self, name: Name, removed: Result<(), StoreError>, out: &mut Vec<Out>) {
        let Some(((peer, id), object)) = self.keeping.underway.remove(&name) else {
            return;
        };
        let answer = removed.map_err(|error| refusal(&error));
        if answer.is_err() {
            self.objects.insert(name, object);
        }
        answer_with(peer, id, answer.map(|()| Answer::Done), out);
    }
}
