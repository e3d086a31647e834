//! Objects that are discarded, where servers are joined. The directory takes the name from one first.
//! Then all servers that share it are told, and who discards it is answered when they know: whoever asks
//! by the name from then on, wherever that is, does not get it. Which ever sees that nobody has it open
//! there asks the others, until it is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use quire_core::dsm::message::ServerId;

use super::super::backed::Asker;
use super::super::core::{self, Core, NOBODY};
use super::super::said::Said;
use super::joint::Joint;
use super::names::{Wanted, refused, too_many};
use super::{Around, PeerServers};
use crate::directory::DirectoryError;
use crate::store::ObjectId;
use crate::wire::control::{Answer, FailureKind, Name, RequestId};

/// What is to be done about discarded objects.
#[derive(Default)]
pub(super) struct Discarding {
    /// Those that nobody has open here.
    unused: BTreeSet<Name>,
    ask_at: Option<Instant>,
    /// Those that the directory is to forget.
    leaving: BTreeSet<Name>,
    /// Those that nobody can open here until then, though they are there: they are about to be removed.
    closed: BTreeMap<ObjectId, Instant>,
    /// Those from which the directory is to take the name.
    asked: BTreeSet<Name>,
    /// Those that not all servers know of.
    told: BTreeMap<ObjectId, Told>,
}

/// Who is answered when all servers know that an object is discarded.
struct Told {
    asker: Asker,
    name: Name,
    /// The servers that have not said so.
    silent: BTreeSet<ServerId>,
}

impl Discarding {
    /// When others are to be asked again, or something can be opened again.
    pub fn deadline(&self) -> Option<Instant> {
        let opens_at = self.closed.values().min().copied();
        self.ask_at.into_iter().chain(opens_at).min()
    }
}

impl PeerServers {
    /// A program discards an object that is here.
    pub(super) fn discard(&mut self, a: &mut Around<'_>, asker: Asker, name: &Name) {
        let others = self.others_with(name);
        match a.core.may_remove(asker.0, name) {
            Ok(())
                if others.as_ref().is_none_or(|(_, others)| others.is_empty())
                    && !a.core.is_used(name) =>
            {
                return self.remove(a, asker, name);
            }
            Ok(()) | Err((FailureKind::Busy, _)) => {}
            Err(refused) => return core::answer_with(asker.0, asker.1, Err(refused), a.out),
        }
        let wanted = Wanted::Discard(asker.0, asker.1, name.clone());
        let may = match a.core.may_discard(asker.0, name) {
            Ok(()) if self.discarding.asked.contains(name) => Err(core::was_removed(name)),
            Ok(()) if self.ask_for(asker.0, wanted) => {
                self.discarding.asked.insert(name.clone());
                return;
            }
            Ok(()) => Err(too_many()),
            refused => refused,
        };
        core::answer_with(asker.0, asker.1, may.map(|()| Answer::Done), a.out);
    }

    /// An object has no name any more in the directory: another one can have it.
    pub(super) fn discarded(
        &mut self,
        a: &mut Around<'_>,
        asker: Asker,
        name: &Name,
        done: Result<(), DirectoryError>,
    ) {
        self.discarding.asked.remove(name);
        // Its news may have come before, and it may have gone meanwhile.
        if let Ok(()) | Err(DirectoryError::Missing(_)) = done
            && let Some(here) = a.core.object(name)
        {
            here.is_discarded = true;
        }
        if let Err(error) = done {
            let refused = match error {
                // Another server was faster, and tells the others.
                DirectoryError::Missing(_) => core::was_removed(name),
                error => refused(&error),
            };
            core::answer_with(asker.0, asker.1, Err(refused), a.out);
            return self.unused(a, name);
        }
        match self.others_with(name) {
            Some((object, silent)) => self.tell_of_discarded(a, asker, (object, name), silent),
            None => a.core.changed(asker, name, Ok(Answer::Done), a.out),
        }
        self.unused(a, name);
    }

    /// The other servers are told that an object is discarded; those that are not reached now hear of
    /// it when they are.
    fn tell_of_discarded(
        &mut self,
        a: &mut Around<'_>,
        asker: Asker,
        (object, name): (ObjectId, &Name),
        mut silent: BTreeSet<ServerId>,
    ) {
        silent.retain(|server| self.wires.is_up(*server));
        for server in &silent {
            let said = Said::Discarded { object };
            self.wires.say(a.links, *server, &said, None);
        }
        let name = name.clone();
        let told = Told {
            asker,
            name,
            silent,
        };
        self.discarding.told.insert(object, told);
        self.answer_those_told(a);
    }

    /// An object that is here has no name any more, another server says or the directory.
    pub(super) fn was_discarded(&self, a: &mut Around<'_>, object: ObjectId) {
        let name = self.joints.get(&object).map(|joint| &joint.name);
        if let Some(here) = name.and_then(|name| a.core.object(name)) {
            here.is_discarded = true;
        }
    }

    /// A server knows that an object is discarded; or its link is gone, and it hears of all such objects
    /// when it is there again.
    pub(super) fn knows_of_discarded(
        &mut self,
        a: &mut Around<'_>,
        server: ServerId,
        object: Option<ObjectId>,
    ) {
        for (id, told) in &mut self.discarding.told {
            if object.is_none_or(|object| object == *id) {
                told.silent.remove(&server);
            }
        }
        self.answer_those_told(a);
    }

    /// A server is gone: its programs may come here for what it shared.
    pub(super) fn programs_may_come(&self, a: &mut Around<'_>, server: ServerId) {
        let shared = |joint: &&Joint| joint.views.members().contains(&server);
        for joint in self.joints.values().filter(shared) {
            a.core.miss(&joint.name);
        }
    }

    /// This server begins anew: others hear of what it discarded from the directory.
    pub(super) fn nobody_is_told(&mut self, a: &mut Around<'_>) {
        for told in self.discarding.told.values_mut() {
            told.silent.clear();
        }
        self.answer_those_told(a);
    }

    fn answer_those_told(&mut self, a: &mut Around<'_>) {
        let all = std::mem::take(&mut self.discarding.told).into_iter();
        let (known, others): (BTreeMap<_, _>, _) =
            all.partition(|(_, told)| told.silent.is_empty());
        self.discarding.told = others;
        for Told { asker, name, .. } in known.into_values() {
            a.core.changed(asker, &name, Ok(Answer::Done), a.out);
        }
    }

    /// Nobody has an object open here that may have been discarded.
    pub fn unused(&mut self, a: &mut Around<'_>, name: &Name) {
        if a.core.is_to_go(name) {
            self.discarding.unused.insert(name.clone());
            self.ask_for_unused(a, (self.clock)());
        }
    }

    /// How often an object is open here, which somebody elsewhere wants to remove. Who waits to open
    /// it counts, and so does who may come back for it. Where nobody does, it stays so for as long as that may take.
    pub(super) fn times_open(&mut self, a: &mut Around<'_>, object: ObjectId) -> u64 {
        let Some(joint) = self.joints.get(&object) else {
            return 0;
        };
        let name = joint.name.clone();
        let here = a.core.object(&name);
        let open = here.map_or(0, |it| it.kernels.len() + usize::from(it.is_awaited()));
        let times = open + self.wait_to_open(a.core, &name);
        if times == 0 {
            let until = (self.clock)() + self.lease;
            self.discarding.closed.insert(object, until);
        }
        times as u64
    }

    /// Whether nobody can open an object here for now.
    pub(super) fn is_closed(&self, object: ObjectId) -> bool {
        let until = self.discarding.closed.get(&object);
        until.is_some_and(|until| *until > (self.clock)())
    }

    /// What was not removed in time can be opened again.
    fn open_again(&mut self, a: &mut Around<'_>, now: Instant) {
        if self.discarding.closed.values().all(|until| *until > now) {
            return;
        }
        let all = std::mem::take(&mut self.discarding.closed).into_iter();
        let (over, others): (BTreeMap<_, _>, _) = all.partition(|(_, until)| *until <= now);
        self.discarding.closed = others;
        for object in over.into_keys() {
            let joint = self.joints.get(&object);
            if let Some(name) = joint.map(|joint| joint.name.clone()) {
                self.retry(a, &name);
            }
        }
    }

    /// Nobody takes the name from an object any more, whose program is gone.
    pub(super) fn is_not_discarded(&mut self, name: &Name) {
        self.discarding.asked.remove(name);
    }

    /// Asks once more for what is still there.
    pub(super) fn look_for_unused(&mut self, a: &mut Around<'_>, now: Instant) {
        self.open_again(a, now);
        if self.discarding.ask_at.is_some_and(|at| at <= now) {
            self.ask_for_unused(a, now);
        }
    }

    /// The directory is to forget what nobody has open.
    pub(super) fn is_leaving(&mut self, name: Name) {
        self.discarding.leaving.insert(name);
    }

    /// The directory was to forget that, and has done so or not. Others may have had no room beside it.
    pub(super) fn has_left(&mut self, a: &mut Around<'_>, name: &Name, is_gone: bool) {
        self.discarding.leaving.remove(name);
        if is_gone && self.discarding.leaving.is_empty() {
            self.ask_for_unused(a, (self.clock)());
        }
    }

    /// Whether it is for this server to say that an object can go: it knows who has it, and nobody
    /// waits for it here.
    fn may_go(&self, core: &Core, name: &Name) -> bool {
        let joint = self.ids.get(name).and_then(|id| self.joints.get(id));
        joint.is_none_or(|joint| joint.views.is_in())
            && self.wait_to_open(core, name) == 0
            && !self.discarding.leaving.contains(name)
    }

    fn ask_for_unused(&mut self, a: &mut Around<'_>, now: Instant) {
        self.discarding.unused.retain(|name| a.core.is_to_go(name));
        let unused = self.discarding.unused.iter();
        let may_go = unused.filter(|name| self.may_go(a.core, name));
        for name in may_go.cloned().collect::<Vec<_>>() {
            self.remove(a, (NOBODY, RequestId(0)), &name);
        }
        let is_none = self.discarding.unused.is_empty();
        self.discarding.ask_at = (!is_none).then(|| now + self.lease);
    }
}
