//! What a server that ends hands over to its fellows.
//!
//! When its kernels have nothing of an object any more, it sends one of the other members the
//! pages that would be lost with it, and from then on obeys no scheduler of a fellow in this
//! view. As soon as that member has them, it proposes the view without itself: nobody has to
//! wait until its programs have certainly stopped. They are there in that view, among the
//! newest contents.
//!
//! A fellow that ends itself, or is in another view, refuses; then another one is asked. An
//! object that this server keeps in its store stays there. Of one that another server keeps,
//! that server has all by then. Where kernels did not answer, the pages are handed over all the
//! same, but the others wait as for a server that is gone.

use std::time::Instant;

use quire_core::dsm::message::{PageNumber, ServerId};
use quire_core::dsm::scheduler::distributed::Version;

use super::joint::Joint;
use super::{AGAIN, Around, Fellows, Stage};
use crate::server::object::{Object, Page};
use crate::server::said::Said;
use crate::store::ObjectId;
use crate::wire::Contents;
use crate::wire::control::MachineCode;

/// How far an object is whose server ends, in the view that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handing {
    /// Nothing was done.
    Nothing,
    /// A fellow was sent all pages, and has this number to answer with.
    Sent(ServerId, u64),
    /// All that would be lost is somewhere else.
    Taken,
    /// The view without this server was proposed.
    Proposed,
    /// This server leaves without that.
    Left,
}

/// A page that a fellow hands over.
pub(super) struct Legacy {
    pub object: ObjectId,
    pub epoch: u64,
    pub page: PageNumber,
    pub version: Version,
    pub machine: MachineCode,
    pub contents: Option<Contents>,
}

impl Fellows {
    /// This server ends, and its programs are gone.
    pub fn end(&mut self) {
        self.is_ending = true;
    }

    /// Whether there is something that fellows have yet to take.
    pub fn is_handing_over(&self) -> bool {
        let mut joints = self.joints.values();
        matches!(self.stage, Stage::In(..)) && joints.any(|joint| self.is_to_be_left(joint))
    }

    /// Whether others go on with an object when this server is gone.
    fn is_to_be_left(&self, joint: &Joint) -> bool {
        let is_mine = joint.keeper.is_some() && joint.keeper == self.me();
        let is_shared = joint.views.is_in() && joint.views.members().len() > 1;
        is_shared && !is_mine && joint.handing != Handing::Left
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
            let epoch = joint.views.epoch();
            match joint.handing {
                Handing::Nothing if joint.keeper.is_some() => self.set(id, Handing::Taken),
                Handing::Nothing => self.bequeath(a, id),
                Handing::Sent(..) | Handing::Proposed | Handing::Left => {}
                Handing::Taken => {
                    let here = a.core.object(&joint.name);
                    if here.is_none_or(|here| here.is_all_back()) {
                        let members = joint.views.members().iter().copied();
                        let others = members.filter(|it| *it != me).collect();
                        self.set(id, Handing::Proposed);
                        self.propose(lease, id, (epoch + 1, others, me));
                    } else {
                        self.set(id, Handing::Left);
                    }
                }
            }
        }
    }

    fn set(&mut self, id: ObjectId, handing: Handing) {
        if let Some(joint) = self.joints.get_mut(&id) {
            joint.handing = handing;
        }
    }

    /// Sends a fellow what would be lost of an object.
    fn bequeath(&mut self, a: &mut Around<'_>, object: ObjectId) {
        let me = self.me();
        let Some(joint) = self.joints.get_mut(&object) else {
            return;
        };
        let epoch = joint.views.epoch();
        let reached = |it: &&ServerId| {
            Some(**it) != me && self.wires.is_up(**it) && joint.views.may_send(**it, epoch)
        };
        let heirs: Vec<ServerId> = joint
            .views
            .members()
            .iter()
            .filter(reached)
            .copied()
            .collect();
        let here = a.core.object(&joint.name);
        let ready = |here: &mut Object| here.is_live() && !heirs.is_empty();
        let Some(here) = here.and_then(|here| ready(here).then_some(here)) else {
            joint.not_before = Instant::now() + AGAIN / 5;
            return;
        };
        self.wills += 1;
        // Who refused is not asked again at once.
        let heir = heirs[self.wills as usize % heirs.len()];
        joint.handing = Handing::Sent(heir, self.wills);
        let pages = here.bequeath();
        tracing::info!("{}: {} pages are handed over", joint.name, pages.len());
        for (page, version, data) in pages {
            let machine = data.as_ref().map(|data| data.machine);
            let said = Said::Inherit {
                object,
                epoch,
                page,
                version,
                machine: machine.map_or(MachineCode(0), MachineCode::from),
            };
            let contents = data.map(|data| data.contents);
            self.wires.say(a.links, heir, &said, contents);
        }
        let number = self.wills;
        let said = Said::Will {
            object,
            epoch,
            number,
        };
        self.wires.say(a.links, heir, &said, None);
    }

    /// Whether this server inherits in this view of an object.
    fn inherits(&self, from: ServerId, object: ObjectId, epoch: u64) -> bool {
        let joint = self.joints.get(&object).filter(|_| !self.is_ending);
        joint.is_some_and(|joint| {
            let views = &joint.views;
            views.is_in() && views.epoch() == epoch && views.members().contains(&from)
        })
    }

    /// A fellow that ends hands over a page. What is wrong with it is an error.
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

    /// A fellow that ends has handed over all pages of an object. It is told whether they are
    /// here.
    pub(super) fn will(
        &mut self,
        a: &mut Around<'_>,
        from: ServerId,
        (object, epoch, number): (ObjectId, u64, u64),
    ) {
        let is_taken = self.inherits(from, object, epoch);
        let said = Said::Inherited {
            object,
            number,
            is_taken,
        };
        self.wires.say(a.links, from, &said, None);
    }

    /// A fellow has what was handed over, or refuses it.
    pub(super) fn inherited(
        &mut self,
        from: ServerId,
        (object, number): (ObjectId, u64),
        is_taken: bool,
    ) {
        let Some(joint) = self.joints.get_mut(&object) else {
            return;
        };
        if joint.handing != Handing::Sent(from, number) {
            return;
        }
        joint.handing = match is_taken {
            true => Handing::Taken,
            false => {
                joint.not_before = Instant::now() + AGAIN / 5;
                Handing::Nothing
            }
        };
    }

    /// This server is in no view of an object any more, as it wanted.
    pub(super) fn is_out(&mut self, object: ObjectId) {
        if let Some(joint) = self.joints.remove(&object) {
            tracing::info!("{}: the others go on without this server", joint.name);
            self.ids.remove(&joint.name);
        }
    }
}
