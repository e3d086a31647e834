//! What a server that ends hands over to its peer servers.
//!
//! When its kernels have nothing of an object any more, it sends one of the other members the
//! pages that would be lost with it. As soon as that member has them, it proposes the view
//! without itself: nobody has to wait until its programs have certainly stopped. The pages are
//! among the newest contents in that view. Until then it serves its peer servers as ever. If
//! another view comes before, or a member is gone, it begins again. Pages go in parts, so large that
//! the link has room for what else is said: the peer server answers for each before the next one goes.
//!
//! Mutexes, barriers and counters of the object that it keeps go to another member, too
//! ([`crate::server::meeting`]).
//!
//! Who begins to end says so to all, and is asked by none that hears it in time; where all others
//! end, too, there is nobody who would need the pages. A peer server that ends, or is in another view,
//! refuses; then another one is asked. The last one proposes a view without anybody, so that no
//! server that joins just then takes the object for one that goes on, with nothing in it. An
//! object that this server keeps in its store stays there. Of one that another server keeps,
//! that server has all by then. Where kernels did not answer, the pages are handed over all the
//! same, but the others wait as for a server that is gone.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use quire_core::dsm::message::{KernelId, PageNumber, ServerId};
use quire_core::dsm::scheduler::distributed::Version;

use super::joint::Joint;
use super::{AGAIN, Around, PeerServers, Stage};
use crate::directory::LeaseId;
use crate::server::core::Core;
use crate::server::distant;
use crate::server::meeting::Minutes;
use crate::server::object::{Object, Page};
use crate::server::said::Said;
use crate::store::ObjectId;
use crate::wire::Contents;
use crate::wire::control::MachineCode;

/// How far an object is whose server ends, in the view that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Handing {
    /// Nothing was done.
    Nothing,
    /// A peer server was sent a part of the pages, and has this number to answer with.
    Sent(ServerId, u64),
    /// All pages that would be lost are somewhere else.
    Taken,
    /// A peer server was sent what this server knows of mutexes, barriers and counters.
    Asked(ServerId, u64),
    /// That peer server keeps them now, and these others have yet to say that they know.
    Told(BTreeSet<ServerId>, u64),
    /// Nothing would be lost with this server.
    Settled,
    /// The view without this server was proposed.
    Proposed,
    /// This server leaves without that.
    Left,
}

impl Handing {
    /// Whether a peer server has to answer.
    pub fn waits_for(&self, peer_server: ServerId) -> bool {
        match self {
            Handing::Sent(to, _) | Handing::Asked(to, _) => *to == peer_server,
            Handing::Told(silent, _) => silent.contains(&peer_server),
            _ => false,
        }
    }
}

/// A page that a server hands over: its number and version, and contents where they are not zeros.
pub(super) type HandedOver = VecDeque<(PageNumber, Version, Option<Page>)>;

/// A page that a peer server hands over.
pub(super) struct Legacy {
    pub object: ObjectId,
    pub epoch: u64,
    pub page: PageNumber,
    pub version: Version,
    pub machine: MachineCode,
    pub contents: Option<Contents>,
}

impl PeerServers {
    /// This server begins to end: nobody is to hand it anything.
    pub fn tell_of_the_end(&mut self, a: &mut Around<'_>) {
        let others = self.members.keys().filter(|it| Some(**it) != self.me());
        for other in others.copied().collect::<Vec<_>>() {
            self.wires.say(a.links, other, &Said::Ends, None);
        }
    }

    /// This server ends, and hears its programs no more.
    pub fn end(&mut self) {
        self.is_ending = true;
    }

    /// Whether there is something that peer servers have yet to take.
    pub fn is_handing_over(&self) -> bool {
        let mut joints = self.joints.values();
        self.is_a_member() && joints.any(|joint| self.is_to_be_left(joint))
    }

    /// How often peer servers have taken something from this server, as it ends.
    pub const fn inherited_from(&self) -> u64 {
        self.inherited
    }

    /// Logs what is lost with this server, as nobody took it.
    pub fn name_what_is_lost(&self, core: &mut Core) {
        let members = &self.members;
        for joint in self
            .joints
            .values()
            .filter(|joint| self.is_to_be_left(joint))
        {
            let left = match joint.handing {
                Handing::Nothing if joint.home.is_none() => {
                    let handoff = core
                        .object(&joint.name)
                        .map(|here| here.handoff(|server| !members.contains_key(&server)).len());
                    handoff.unwrap_or(0)
                }
                Handing::Sent(..) => joint.handoff.len() + joint.untaken,
                _ => 0,
            };
            if left > 0 {
                tracing::error!(
                    "{}: {left} pages that nobody else has were not taken over in time, and are lost",
                    joint.name.plain()
                );
            }
        }
    }

    /// Whether this server is a member still, whom peer servers would hear of what they lose with it.
    pub const fn is_a_member(&self) -> bool {
        matches!(self.stage, Stage::In(..))
    }

    /// Whether an object has yet to be left to others, or to nobody.
    fn is_to_be_left(&self, joint: &Joint) -> bool {
        let is_mine = joint.home.is_some() && joint.home == self.me();
        joint.views.is_in() && !is_mine && joint.handing != Handing::Left
    }

    /// Whether all others that have an object end, too, or have done so.
    fn is_the_last(&self, joint: &Joint) -> bool {
        self.all_others(joint, |it| {
            self.parting.contains(it) || self.left.contains_key(it)
        })
    }

    /// Whether all others that had an object have left.
    fn is_alone(&self, joint: &Joint) -> bool {
        self.all_others(joint, |it| self.left.contains_key(it))
    }

    fn all_others(&self, joint: &Joint, holds: impl Fn(&ServerId) -> bool) -> bool {
        let mut members = joint.views.members().iter();
        members.all(|it| Some(*it) == self.me() || holds(it))
    }

    /// Goes on with handing over, as far as that goes now.
    pub(super) fn hand_over(&mut self, a: &mut Around<'_>, now: Instant) {
        let Stage::In(me, lease) = &self.stage else {
            return;
        };
        let (me, lease) = (*me, lease.id());
        let joints = self.joints.iter();
        let due = joints.filter(|(_, joint)| self.is_to_be_left(joint) && joint.may_ask(now));
        for id in due.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(joint) = self.joints.get(&id) else {
                continue;
            };
            match joint.handing {
                Handing::Nothing if joint.home.is_some() => self.set(id, Handing::Taken),
                Handing::Nothing if self.is_alone(joint) => self.close(id, (lease, me)),
                Handing::Nothing if self.is_the_last(joint) => self.set(id, Handing::Settled),
                Handing::Nothing => self.hand_off(a, id),
                Handing::Taken => self.hand_over_meeting(a, id),
                Handing::Settled => self.leave_view(a, id, (lease, me)),
                _ => {}
            }
        }
    }

    /// Proposes the view of an object that nobody has any more.
    fn close(&mut self, id: ObjectId, (lease, me): (LeaseId, ServerId)) {
        let Some(joint) = self.joints.get_mut(&id) else {
            return;
        };
        tracing::info!("{}: all of its servers end", joint.name);
        joint.handing = Handing::Proposed;
        let epoch = joint.views.epoch() + 1;
        self.propose(lease, id, (epoch, Vec::new(), me));
    }

    /// Proposes the view of an object without this server. That can be at once where no
    /// program has anything from here.
    fn leave_view(&mut self, a: &mut Around<'_>, id: ObjectId, (lease, me): (LeaseId, ServerId)) {
        let Some(joint) = self.joints.get_mut(&id) else {
            return;
        };
        let here = a.core.object(&joint.name);
        if here.is_some_and(|here| !here.is_all_back()) {
            joint.handing = Handing::Left;
            return;
        }
        joint.handing = Handing::Proposed;
        let epoch = joint.views.epoch() + 1;
        let members = joint.views.members().iter().copied();
        let others = members.filter(|it| *it != me).collect();
        self.propose(lease, id, (epoch, others, me));
    }

    /// The members of an object's view that hear this server and go on.
    fn successors(&self, object: ObjectId) -> Vec<ServerId> {
        let Some(joint) = self.joints.get(&object) else {
            return Vec::new();
        };
        let epoch = joint.views.epoch();
        let hears = |it: &ServerId| {
            let goes_on = !self.parting.contains(it);
            goes_on && self.wires.is_up(*it) && joint.views.may_send(*it, epoch)
        };
        let others = joint.views.members().iter().copied();
        let others = others.filter(|it| Some(*it) != self.me() && hears(it));
        others.collect()
    }

    /// Has another server keep mutexes, barriers and counters of an object, where this one does
    /// or did: the one that has been a member for longest, and does not end itself.
    fn hand_over_meeting(&mut self, a: &mut Around<'_>, object: ObjectId) {
        let successors = self.successors(object);
        let Some(joint) = self.joints.get_mut(&object) else {
            return;
        };
        let next = successors.iter().find(|it| !joint.refused.contains(it));
        let (Some(&next), true) = (next, joint.meeting.is_mine()) else {
            joint.handing = Handing::Settled;
            return;
        };
        let next = joint.meeting.successor().unwrap_or(next);
        self.handoffs += 1;
        let number = self.handoffs;
        joint.handing = Handing::Asked(next, number);
        let minutes = joint.meeting.hand_over(next);
        let said = Said::Minutes {
            object,
            number,
            minutes,
        };
        self.wires.say(a.links, next, &said, None);
    }

    /// A peer server keeps mutexes, barriers and counters of an object from now on.
    fn meeting_is_taken(&mut self, a: &mut Around<'_>, object: ObjectId, to: ServerId) {
        let others = self.successors(object).into_iter().filter(|it| *it != to);
        let silent: BTreeSet<ServerId> = others.collect();
        self.handoffs += 1;
        let number = self.handoffs;
        let said = Said::Moved { object, number, to };
        for other in &silent {
            self.wires.say(a.links, *other, &said, None);
        }
        match silent.is_empty() {
            true => self.set(object, Handing::Settled),
            false => self.set(object, Handing::Told(silent, number)),
        }
    }

    fn set(&mut self, id: ObjectId, handing: Handing) {
        if let Some(joint) = self.joints.get_mut(&id) {
            joint.handing = handing;
        }
    }

    /// Begins to send a peer server what would be lost of an object.
    fn hand_off(&mut self, a: &mut Around<'_>, object: ObjectId) {
        let successors = self.successors(object);
        let Some(joint) = self.joints.get_mut(&object) else {
            return;
        };
        let here = a.core.object(&joint.name);
        let ready = |here: &mut Object| here.is_live() && !successors.is_empty();
        let Some(here) = here.and_then(|here| ready(here).then_some(here)) else {
            joint.not_before = (self.clock)() + AGAIN / 5;
            return;
        };
        // Who refused is not asked again at once, as each part has another number.
        let successor = successors[self.handoffs as usize % successors.len()];
        let members = &self.members;
        joint.handoff = here.handoff(|server| !members.contains_key(&server)).into();
        tracing::info!(
            "{}: {} pages are handed over",
            joint.name,
            joint.handoff.len()
        );
        self.hand_off_part(a, object, successor);
    }

    /// Sends a peer server a part of what would be lost of an object.
    fn hand_off_part(&mut self, a: &mut Around<'_>, object: ObjectId, successor: ServerId) {
        let Some(joint) = self.joints.get_mut(&object) else {
            return;
        };
        self.handoffs += 1;
        joint.handing = Handing::Sent(successor, self.handoffs);
        let epoch = joint.views.epoch();
        joint.untaken = 0;
        let mut weight = 0;
        while let Some((page, version, data)) = joint.handoff.pop_front() {
            joint.untaken += 1;
            weight += distant::weight(data.as_ref().map(|data| &data.contents));
            let machine = data.as_ref().map(|data| data.machine);
            let said = Said::Handoff {
                object,
                epoch,
                page,
                version,
                machine: machine.map_or(MachineCode(0), MachineCode::from),
            };
            let contents = data.map(|data| data.contents);
            self.wires.say(a.links, successor, &said, contents);
            if weight >= distant::WINDOW {
                break;
            }
        }
        let number = self.handoffs;
        let said = Said::HandoffEnd {
            object,
            epoch,
            number,
        };
        self.wires.say(a.links, successor, &said, None);
    }

    /// A member is gone: what this server has from it is to be handed over, too, as nobody else may
    /// have it as new.
    pub(super) fn hand_over_anew(&mut self, gone: ServerId) {
        let theirs = self.joints.values_mut();
        let theirs = theirs.filter(|joint| joint.views.members().contains(&gone));
        let unsaid = theirs.filter(|it| !matches!(it.handing, Handing::Proposed | Handing::Left));
        unsaid.for_each(|joint| joint.handing = Handing::Nothing);
    }

    /// Whether this server inherits in this view of an object.
    fn inherits(&self, from: ServerId, object: ObjectId, epoch: u64) -> bool {
        let joint = self.joints.get(&object).filter(|_| !self.is_ending);
        joint.is_some_and(|joint| {
            let views = &joint.views;
            views.is_in() && views.epoch() == epoch && views.members().contains(&from)
        })
    }

    /// A peer server that ends hands over a page. What is wrong with it is an error.
    pub(super) fn inherit(
        &mut self,
        a: &mut Around<'_>,
        from: ServerId,
        legacy: Legacy,
    ) -> Result<(), String> {
        if !self.inherits(from, legacy.object, legacy.epoch) {
            return Ok(());
        }
        let joint = self.joints.get(&legacy.object);
        let Some(here) = joint.and_then(|joint| a.core.object(&joint.name)) else {
            return Ok(());
        };
        let machine = legacy.machine.machine();
        let machine = machine.ok_or("a page of a machine that is unknown here")?;
        let data = legacy.contents.map(|contents| Page { contents, machine });
        let inherited = here.inherit((legacy.page, legacy.version, data));
        inherited.map_err(|nonsense| nonsense.to_string())
    }

    /// A peer server that ends has handed over pages of an object. It is told whether they are here.
    pub(super) fn will(
        &mut self,
        a: &mut Around<'_>,
        from: ServerId,
        (object, epoch, number): (ObjectId, u64, u64),
    ) {
        let is_taken = self.inherits(from, object, epoch);
        let said = Said::HandoffTaken {
            object,
            number,
            is_taken,
        };
        self.wires.say(a.links, from, &said, None);
    }

    /// A peer server has what was handed over, or knows what it was told, or refuses it.
    pub(super) fn inherited(
        &mut self,
        a: &mut Around<'_>,
        from: ServerId,
        (object, number): (ObjectId, u64),
        is_taken: bool,
    ) {
        let Some(joint) = self.joints.get_mut(&object) else {
            return;
        };
        self.inherited += u64::from(is_taken);
        match &mut joint.handing {
            Handing::Sent(to, sent) if (*to, *sent) == (from, number) => match is_taken {
                true if joint.handoff.is_empty() => joint.handing = Handing::Taken,
                true => self.hand_off_part(a, object, from),
                false => {
                    joint.not_before = (self.clock)() + AGAIN / 5;
                    joint.handing = Handing::Nothing;
                }
            },
            Handing::Asked(to, sent) if (*to, *sent) == (from, number) => match is_taken {
                true => self.meeting_is_taken(a, object, from),
                false => {
                    joint.meeting.keep();
                    joint.refused.insert(from);
                    joint.handing = Handing::Taken;
                }
            },
            Handing::Told(silent, sent) if *sent == number => {
                silent.remove(&from);
                if silent.is_empty() {
                    joint.handing = Handing::Settled;
                }
            }
            _ => {}
        }
    }

    /// A peer server that ends has this server keep mutexes, barriers and counters of an object.
    pub(super) fn take_minutes(
        &mut self,
        a: &mut Around<'_>,
        from: ServerId,
        (object, number): (ObjectId, u64),
        minutes: Minutes,
    ) {
        let living = self.kernels_of(a, object);
        let is_ending = self.is_ending;
        let joint = self.joints.get_mut(&object).filter(|_| !is_ending);
        let is_taken = joint.is_some();
        if let Some(joint) = joint {
            let mut all = Vec::new();
            joint.meeting.take_over(from, minutes, &living, &mut all);
            self.carry_out(a, object, all);
        }
        let said = Said::HandoffTaken {
            object,
            number,
            is_taken,
        };
        self.wires.say(a.links, from, &said, None);
    }

    /// A peer server that ends has another one keep mutexes, barriers and counters of an object.
    pub(super) fn moved(
        &mut self,
        a: &mut Around<'_>,
        from: ServerId,
        (object, number): (ObjectId, u64),
        to: ServerId,
    ) {
        if let Some(joint) = self.joints.get_mut(&object) {
            let mut all = Vec::new();
            joint.meeting.moved(from, to, &mut all);
            self.carry_out(a, object, all);
        }
        let said = Said::HandoffTaken {
            object,
            number,
            is_taken: true,
        };
        self.wires.say(a.links, from, &said, None);
    }

    /// A peer server says which kernels it has, as this server keeps mutexes, barriers and counters
    /// in the place of another one.
    pub(super) fn present(
        &mut self,
        a: &mut Around<'_>,
        from: ServerId,
        (object, kernels): (ObjectId, Vec<KernelId>),
    ) {
        if let Some(joint) = self.joints.get_mut(&object) {
            let mut all = Vec::new();
            let living = kernels.into_iter().collect();
            joint.meeting.present(from, &living, &mut all);
            self.carry_out(a, object, all);
        }
    }

    /// The kernels that this server has of an object.
    pub(super) fn kernels_of(&self, a: &Around<'_>, object: ObjectId) -> BTreeSet<KernelId> {
        let joint = self.joints.get(&object);
        joint.map_or_else(BTreeSet::new, |joint| a.core.kernels_of(&joint.name))
    }

    /// This server is in no view of an object any more, as it wanted.
    pub(super) fn is_out(&mut self, object: ObjectId) {
        if let Some(joint) = self.joints.remove(&object) {
            tracing::info!("{}: this server is out of it", joint.name);
            self.ids.remove(&joint.name);
        }
    }
}
