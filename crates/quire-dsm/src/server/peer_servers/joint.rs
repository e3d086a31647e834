//! The objects that several servers share: their views, what their schedulers say to each
//! other, and who meets over them.

use std::collections::BTreeSet;
use std::time::Instant;

use quire_core::dsm::message::{KernelId, ServerId};
use quire_core::dsm::scheduler::distributed::Message;
use quire_core::dsm::sync::{Parting, Request};

use super::handing::{HandedOver, Handing, Legacy};
use super::home::Parcel;
use super::names::Gone;
use super::types::Types;
use super::{AGAIN, Around, PeerServers, Stage, Told};
use crate::directory::{DirectoryError, LeaseId, Matter, View};
use crate::link::LinkId;
use crate::server::core::{self, PeerId};
use crate::server::distant::Queue;
use crate::server::meeting::{Do, Meeting};
use crate::server::object::Page;
use crate::server::said::{self, Said};
use crate::server::views::{Heard, Views, Wish};
use crate::store::ObjectId;
use crate::wire::Contents;
use crate::wire::control::{FailureKind, MachineCode, Name, RequestId};

/// An object that several servers share, at one of them.
pub(super) struct Joint {
    pub name: Name,
    pub views: Views,
    pub types: Types,
    pub meeting: Meeting,
    /// What came about meetings of a view that is not known here yet.
    early: Vec<(ServerId, Said)>,
    /// The directory was asked something about its view.
    is_asked: bool,
    /// The directory is not asked before.
    pub not_before: Instant,
    /// Its maker is gone, and the directory was asked since whether there is a first view of it.
    is_asked_at_last: bool,
    /// Somebody wants to remove it.
    removal: Option<Removal>,
    /// The server that keeps it on its disk, if one does.
    pub home: Option<ServerId>,
    /// What is on its way to the home server, if that is another server.
    pub queue: Option<Queue>,
    /// What came to be kept in a view that is not known here yet.
    pub early_parcels: Vec<(ServerId, Parcel)>,
    /// How far it is, where this server ends.
    pub handing: Handing,
    /// What is yet to be handed over, where a peer server has a part of it.
    pub handoff: HandedOver,
    /// How many pages of it were sent, and are not answered.
    pub untaken: usize,
    /// Members that do not keep mutexes and the like in its place.
    pub refused: BTreeSet<ServerId>,
}

impl Joint {
    /// Whether the directory may be asked something about its view.
    pub fn may_ask(&self, now: Instant) -> bool {
        !self.is_asked && self.not_before <= now
    }
}

/// Somebody wants to remove an object, and all its servers are asked whether it is open.
struct Removal {
    peer: PeerId,
    number: RequestId,
    silent: BTreeSet<ServerId>,
}

impl PeerServers {
    /// This server has a part in an object from now on.
    pub(super) fn add(&mut self, id: ObjectId, name: Name, (me, maker): (ServerId, ServerId)) {
        self.ids.insert(name.clone(), id);
        let is_maker = me == maker;
        let joint = Joint {
            name,
            views: Views::new(me, maker),
            types: Types::new(is_maker),
            meeting: Meeting::new(me),
            early: Vec::new(),
            is_asked: !is_maker,
            not_before: (self.clock)(),
            is_asked_at_last: false,
            removal: None,
            home: None,
            queue: None,
            early_parcels: Vec::new(),
            handing: Handing::Nothing,
            handoff: HandedOver::new(),
            untaken: 0,
            refused: BTreeSet::new(),
        };
        self.joints.insert(id, joint);
        if !is_maker {
            self.read_view(id);
        }
        self.look_soon();
    }

    fn read_view(&mut self, id: ObjectId) {
        self.desk.ask(Matter::Views, move |directory| {
            Told::Viewed(id, false, directory.view(id))
        });
    }

    /// Looks whether other views are needed.
    pub(super) fn look_at_views(&mut self, a: &mut Around<'_>, now: Instant) {
        let Stage::In(me, lease) = &self.stage else {
            return;
        };
        if !self.roll.is_current() {
            return;
        }
        let (me, lease) = (*me, lease.id());
        self.look_who_is_gone(now);
        if !self.roll.is_current() {
            // Views have members that are to be asked for first.
            return;
        }
        if self.is_apart(me, now) {
            return self.start_anew(a, "this server does not reach a peer server that lives");
        }
        let ids: Vec<ObjectId> = self.joints.keys().copied().collect();
        for id in ids {
            match self.wish(id, now) {
                Some(Wish::Next(epoch, members)) => self.propose(lease, id, (epoch, members, me)),
                Some(Wish::Lost) => self.lose(a, id),
                Some(Wish::Nothing) | None => {}
            }
        }
    }

    /// Counts from now on for members of views that the directory does not know, forgets
    /// those that are in no view any more, and comes back when others are certainly gone.
    fn look_who_is_gone(&mut self, now: Instant) {
        let certain = self.certain();
        let joints = self.joints.values();
        let in_views: BTreeSet<ServerId> = joints.flat_map(|joint| joint.views.awaited()).collect();
        for member in &in_views {
            self.is_absent(*member);
        }
        self.left
            .retain(|id, left| *left + certain > now || in_views.contains(id));
        let later = self.left.values().map(|left| *left + certain);
        if let Some(at) = later.filter(|at| *at > now).min() {
            self.look_at_the_latest(at);
        }
    }

    fn look_at_the_latest(&mut self, at: Instant) {
        self.look_at = Some(self.look_at.map_or(at, |other| other.min(at)));
    }

    /// Whether a member lives that was there before this server, and that it has not reached
    /// for long.
    fn is_apart(&mut self, me: ServerId, now: Instant) -> bool {
        let patience = 3 * self.lease;
        let mut next: Option<Instant> = None;
        for joint in self.joints.values().filter(|joint| joint.views.is_in()) {
            let before_me = joint.views.members().iter().take_while(|it| **it != me);
            let living = before_me.filter(|other| self.members.contains_key(other));
            let down = living.filter_map(|other| self.wires.down_since(*other));
            next = down.map(|down| down + patience).chain(next).min();
        }
        if let Some(at) = next.filter(|at| *at > now) {
            self.look_at_the_latest(at);
        }
        next.is_some_and(|at| at <= now)
    }

    /// What is to be proposed for an object. Where its first view is not known, the directory
    /// is asked for it again.
    fn wish(&mut self, id: ObjectId, now: Instant) -> Option<Wish> {
        let certain = self.certain();
        let joint = self.joints.get_mut(&id).filter(|joint| !joint.is_asked)?;
        if joint.not_before > now {
            let at = joint.not_before;
            self.look_at_the_latest(at);
            return None;
        }
        let left = &self.left;
        let has_left = |member| left.contains_key(&member);
        let is_gone = |member| left.get(&member).is_some_and(|left| *left + certain <= now);
        let wish = joint
            .views
            .wish((has_left, is_gone), |id| self.wires.is_up(id));
        // The view that it made at last may not be known yet.
        let is_lost = wish == Wish::Lost && joint.views.epoch() == 0;
        let is_to_be_asked = is_lost && !std::mem::replace(&mut joint.is_asked_at_last, is_lost);
        let is_awaited = wish == Wish::Nothing && joint.views.epoch() == 0;
        if is_to_be_asked || is_awaited {
            joint.is_asked = true;
            self.desk
                .ask_later(Matter::Views, AGAIN / 5, move |directory| {
                    Told::Viewed(id, false, directory.view(id))
                });
            return None;
        }
        Some(wish)
    }

    pub(super) fn propose(
        &mut self,
        lease: LeaseId,
        object: ObjectId,
        (epoch, members, by): (u64, Vec<ServerId>, ServerId),
    ) {
        if let Some(joint) = self.joints.get_mut(&object) {
            joint.is_asked = true;
        }
        let view = View {
            object,
            epoch,
            members,
            by,
        };
        self.desk.ask(Matter::Views, move |directory| {
            let done = directory.propose(lease, &view);
            Told::Proposed(view, done)
        });
    }

    /// All servers that had an object are gone.
    fn lose(&mut self, a: &mut Around<'_>, id: ObjectId) {
        let Some(joint) = self.joints.remove(&id) else {
            return;
        };
        self.ids.remove(&joint.name);
        let here = a.core.object(&joint.name);
        let here = here.map(|object| (object.owner.clone(), object.is_discarded));
        let (owner, is_discarded) = here.unwrap_or_default();
        let gone = Gone {
            key: &joint.name,
            owner: &owner,
            is_kept: joint.home.is_some(),
            is_removed: is_discarded,
        };
        self.all_gone(a, &joint.name.exact(), &gone);
        if !is_discarded {
            self.all_gone(a, &joint.name.plain(), &gone);
        }
        a.core
            .drop_object(&joint.name, "all servers of the object are gone", a.out);
    }

    /// What became of a view that this server proposed.
    pub(super) fn proposed(
        &mut self,
        a: &mut Around<'_>,
        view: View,
        done: Result<(), DirectoryError>,
    ) {
        let Some(joint) = self.joints.get_mut(&view.object) else {
            return;
        };
        joint.is_asked = false;
        match done {
            Ok(()) => self.viewed(a, view, false),
            Err(DirectoryError::Overtaken(other)) => {
                joint.not_before = (self.clock)() + AGAIN / 10;
                self.viewed(a, other, false);
            }
            Err(DirectoryError::LeaseOver) => {
                self.start_anew(a, "this server's lease in the directory is over");
            }
            Err(error) => {
                tracing::warn!("{}: no new view: {error}", joint.name);
                joint.not_before = (self.clock)() + AGAIN;
                joint.is_asked = true;
                if joint.handing == Handing::Proposed {
                    joint.handing = Handing::Settled;
                }
                self.read_view(view.object);
            }
        }
    }

    /// The directory says what view an object has.
    pub(super) fn view_read(
        &mut self,
        a: &mut Around<'_>,
        id: ObjectId,
        missed: bool,
        view: Result<Option<View>, DirectoryError>,
    ) {
        let Some(joint) = self.joints.get_mut(&id) else {
            return;
        };
        if !missed {
            joint.is_asked = false;
        }
        match view {
            Ok(Some(view)) => self.viewed(a, view, missed),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!("{}: {error}", joint.name);
                joint.not_before = (self.clock)() + AGAIN;
                if missed {
                    self.desk.ask_later(Matter::Views, AGAIN, move |directory| {
                        Told::Viewed(id, true, directory.view(id))
                    });
                }
            }
        }
    }

    /// There is a view. Where it is certain, nothing that came before it is still to be heard.
    pub(super) fn viewed(&mut self, a: &mut Around<'_>, view: View, is_certain: bool) {
        let id = view.object;
        let Some(joint) = self.joints.get_mut(&id) else {
            return;
        };
        if self.is_ending && !view.members.contains(&joint.views.me()) {
            return self.is_out(id);
        }
        if !is_certain && joint.views.is_in() && view.epoch > joint.views.epoch() + 1 {
            // Those in between are still under way.
            return;
        }
        match joint.views.heard(view.epoch, view.members) {
            Heard::Known => {}
            Heard::Outside => self.look_soon(),
            Heard::Missed => self.start_anew(a, "this server has missed a view of an object"),
            Heard::Enter => self.enter(a, id),
        }
    }

    /// This server is in a new view of an object.
    fn enter(&mut self, a: &mut Around<'_>, id: ObjectId) {
        let me = self.me();
        let Some(joint) = self.joints.get_mut(&id) else {
            return;
        };
        let members = joint.views.members().to_vec();
        let epoch = joint.views.epoch();
        joint.handing = Handing::Nothing;
        tracing::info!("{}: view {epoch} has {} servers", joint.name, members.len());
        let name = joint.name.clone();
        let mut all = Vec::new();
        joint.meeting.view(&members, &mut all);
        let early = std::mem::take(&mut joint.early);
        let parcels = std::mem::take(&mut joint.early_parcels);
        if let Some(queue) = &joint.queue {
            queue.again();
        }
        self.carry_out(a, id, all);
        let view = (epoch, members.iter().copied().collect());
        if let Err(missed) = a.core.new_view(&name, view, a.out) {
            return self.start_anew(a, &format!("{name}: {missed}"));
        }
        let others = members.iter().filter(|it| Some(**it) != me);
        self.pass_on_rights(a, id, &name, others);
        for (from, said) in early {
            self.meet_said(a, (from, said));
        }
        self.types_in_view(a, id);
        for (from, parcel) in parcels {
            if let Err(why) = self.keep(a, from, parcel) {
                tracing::warn!("a page of a peer server is not kept: {why}");
            }
        }
        self.look_soon();
        self.if_live(a, &name);
    }

    /// Tells the others in a view whom the maker of an object gave which rights, and whether it is
    /// discarded: what was said in the view before may be lost.
    fn pass_on_rights<'m>(
        &mut self,
        a: &mut Around<'_>,
        object: ObjectId,
        name: &Name,
        others: impl Iterator<Item = &'m ServerId>,
    ) {
        let Some(here) = a.core.object(name) else {
            return;
        };
        let grants = here.grants.said().map(|(to, rights, stamp)| Said::Granted {
            object,
            to: to.clone(),
            rights,
            stamp,
        });
        let discarded = here.is_discarded.then_some(Said::Discarded { object });
        let all: Vec<Said> = grants.chain(discarded).collect();
        for other in others {
            for said in &all {
                self.wires.say(a.links, *other, said, None);
            }
        }
    }

    /// Asks again what waits for an object, if it can be used now.
    pub(super) fn if_live(&mut self, a: &mut Around<'_>, name: &Name) {
        if self.is_awaited_by_name(name)
            && a.core.object(name).is_some_and(|object| object.is_live())
        {
            self.retry(a, name);
        }
    }

    /// A link to a peer server broke: what was under way is lost.
    pub(super) fn broke(&mut self, a: &mut Around<'_>, peer_server: ServerId) {
        let ids: Vec<ObjectId> = self.joints.keys().copied().collect();
        for id in ids {
            let mut all = Vec::new();
            let Some(joint) = self.joints.get_mut(&id) else {
                continue;
            };
            joint.views.broke(peer_server);
            if joint.handing.waits_for(peer_server) {
                joint.handing = Handing::Nothing;
            }
            joint.meeting.broke(peer_server, &mut all);
            let removal = joint.removal.take_if(|it| it.silent.contains(&peer_server));
            if let Some(removal) = removal {
                let text = format!("the link to a server of {} broke; try again", joint.name);
                let refused = (FailureKind::Unavailable, text);
                core::answer_with(removal.peer, removal.number, Err(refused), a.out);
            }
            self.carry_out(a, id, all);
        }
        self.knows_of_discarded(a, peer_server, None);
        self.look_soon();
    }

    /// The next view of an object is to decide about what was brought of it.
    pub fn wants_view(&mut self, name: &Name) {
        let id = self.ids.get(name);
        if let Some(joint) = id.and_then(|id| self.joints.get_mut(id)) {
            joint.views.want();
            self.look_soon();
        }
    }

    /// The scheduler of an object speaks to its peer server.
    pub fn tell(&mut self, a: &mut Around<'_>, name: &Name, to: ServerId, message: Message<Page>) {
        let Some(&id) = self.ids.get(name) else {
            return;
        };
        let epoch = message.epoch.0;
        let joint = self.joints.get(&id);
        if joint.is_some_and(|joint| joint.views.may_send(to, epoch)) {
            let (said, page) = said::scheduler(id, a.core.clock, message);
            self.wires.say(a.links, to, &said, page);
        }
    }

    /// A peer server says something.
    pub(super) fn obey_peer_server(
        &mut self,
        a: &mut Around<'_>,
        link: LinkId,
        (from, said, page): (ServerId, Said, Option<Contents>),
    ) {
        match said {
            Said::Scheduler {
                object,
                clock,
                message,
            } => {
                a.core.hears_time(clock);
                if let Err(why) = self.scheduler_says(a, from, object, (message, page)) {
                    tracing::error!("a peer server is cut off: {why}");
                    a.links.close(link, &why);
                }
            }
            Said::Synchronise { .. } | Said::Synchronised { .. } | Said::Parted { .. } => {
                self.meet_said(a, (from, said));
            }
            Said::Tagged { .. } | Said::TaggedToo { .. } | Said::Types { .. } => {
                self.obey_types(a, link, (from, said));
            }
            Said::Granted {
                object,
                to,
                rights,
                stamp,
            } => {
                let name = self.joints.get(&object).map(|joint| &joint.name);
                if let Some(here) = name.and_then(|name| a.core.object(name)) {
                    here.grants.hear(to, rights, stamp);
                }
            }
            Said::IsOpen { object } => {
                let times = self.times_open(a, object);
                let open = Said::Open { object, times };
                self.wires.say(a.links, from, &open, None);
            }
            Said::Discarded { object } => {
                self.was_discarded(a, object);
                let known = Said::DiscardedToo { object };
                self.wires.say(a.links, from, &known, None);
            }
            Said::DiscardedToo { object } => self.knows_of_discarded(a, from, Some(object)),
            Said::Open { object, times } => self.is_open(a, object, from, times),
            Said::Keep {
                object,
                epoch,
                number,
                page: number_of_page,
                version,
            } => {
                let parcel = Parcel {
                    object,
                    epoch,
                    number,
                    page: number_of_page,
                    version,
                    contents: page,
                };
                if let Err(why) = self.keep(a, from, parcel) {
                    tracing::error!("a peer server is cut off: {why}");
                    a.links.close(link, &why);
                }
            }
            Said::Handoff {
                object,
                epoch,
                page: number_of_page,
                version,
                machine,
            } => {
                let legacy = Legacy {
                    object,
                    epoch,
                    page: number_of_page,
                    version,
                    machine,
                    contents: page,
                };
                if let Err(why) = self.inherit(a, from, legacy) {
                    tracing::error!("a peer server is cut off: {why}");
                    a.links.close(link, &why);
                }
            }
            Said::HandoffEnd {
                object,
                epoch,
                number,
            } => self.will(a, from, (object, epoch, number)),
            Said::HandoffTaken {
                object,
                number,
                is_taken,
            } => self.inherited(a, from, (object, number), is_taken),
            Said::Minutes {
                object,
                number,
                minutes,
            } => self.take_minutes(a, from, (object, number), minutes),
            Said::Moved { object, number, to } => self.moved(a, from, (object, number), to),
            Said::Present { object, kernels } => self.present(a, from, (object, kernels)),
            Said::Ends => {
                self.parting.insert(from);
            }
            Said::Flush { object } => self.flush(a, from, object),
            Said::Flushed { object, left } => self.flushed(from, object, left),
            Said::Kept {
                object,
                number,
                error,
            } => self.kept(object, number, error),
            _ => a
                .links
                .close(link, "this server keeps no directory for others"),
        }
    }

    /// The scheduler of a peer server says something. What is wrong with it is an error.
    fn scheduler_says(
        &mut self,
        a: &mut Around<'_>,
        from: ServerId,
        object: ObjectId,
        (message, page): (Message<MachineCode>, Option<Contents>),
    ) -> Result<(), String> {
        let Some(joint) = self.joints.get(&object) else {
            return Ok(());
        };
        let name = joint.name.clone();
        let message = said::with_page(message, page).map_err(|error| error.to_string())?;
        match a.core.hear_peer_server(&name, from, message, a.out) {
            Some(Err(nonsense)) => Err(format!("{name}: {nonsense}")),
            _ => {
                self.if_live(a, &name);
                Ok(())
            }
        }
    }

    /// A program wants to remove an object that it may remove, and nobody has open here.
    pub(super) fn remove(
        &mut self,
        a: &mut Around<'_>,
        (peer, number): (PeerId, RequestId),
        name: &Name,
    ) {
        let others = self.others_with(name);
        let others = others.filter(|(_, others)| !others.is_empty());
        let joint = others.and_then(|(id, silent)| Some((id, silent, self.joints.get_mut(&id)?)));
        let Some((object, silent, joint)) = joint else {
            return self.withdraw_own(a, (peer, number), name.clone());
        };
        if joint.removal.is_some() {
            let refused = (
                FailureKind::Busy,
                format!("{} is being removed already", name.plain()),
            );
            return core::answer_with(peer, number, Err(refused), a.out);
        }
        joint.removal = Some(Removal {
            peer,
            number,
            silent: silent.clone(),
        });
        for server in silent {
            self.wires
                .say(a.links, server, &Said::IsOpen { object }, None);
        }
    }

    /// Has the directory forget an object that is here.
    fn withdraw_own(&mut self, a: &mut Around<'_>, asker: (PeerId, RequestId), name: Name) {
        let is_named = !a.core.is_discarded(&name);
        self.withdraw(a, asker, name, is_named);
    }

    /// The other servers that have a part in an object, if it is one that several share.
    pub(super) fn others_with(&self, name: &Name) -> Option<(ObjectId, BTreeSet<ServerId>)> {
        let (id, joint) = self.joints.get_key_value(self.ids.get(name)?)?;
        let me = self.me();
        let members = joint.views.members().iter().copied();
        Some((*id, members.filter(|it| Some(*it) != me).collect()))
    }

    /// A server says how often an object is open there.
    fn is_open(&mut self, a: &mut Around<'_>, object: ObjectId, from: ServerId, times: u64) {
        let Some(joint) = self.joints.get_mut(&object) else {
            return;
        };
        let Some(removal) = &mut joint.removal else {
            return;
        };
        removal.silent.remove(&from);
        let (peer, number) = (removal.peer, removal.number);
        let name = joint.name.clone();
        if times > 0 {
            joint.removal = None;
            let refused = core::still_open(&name, times as usize);
            core::answer_with(peer, number, Err(refused), a.out);
        } else if removal.silent.is_empty() {
            joint.removal = None;
            self.withdraw_own(a, (peer, number), name);
        }
    }

    /// An object is no more.
    pub(super) fn withdrawn(&mut self, a: &mut Around<'_>, name: &Name) {
        if let Some(id) = self.ids.remove(name) {
            self.joints.remove(&id);
            a.core.drop_object(name, "the object was removed", a.out);
            self.retry(a, name);
        }
    }

    /// A kernel of this server synchronises with others.
    pub fn meet(
        &mut self,
        a: &mut Around<'_>,
        name: &Name,
        (kernel, number): (KernelId, RequestId),
        request: Request,
    ) {
        self.with_meeting(a, name, |meeting, all| {
            meeting.ask(kernel, number.0, request, all);
        });
    }

    /// A kernel of this server is gone.
    pub fn parted(&mut self, a: &mut Around<'_>, name: &Name, kernel: KernelId, how: Parting) {
        self.with_meeting(a, name, |meeting, all| meeting.left(kernel, how, all));
    }

    fn with_meeting(
        &mut self,
        a: &mut Around<'_>,
        name: &Name,
        act: impl FnOnce(&mut Meeting, &mut Vec<Do>),
    ) {
        let Some(&id) = self.ids.get(name) else {
            return;
        };
        let Some(joint) = self.joints.get_mut(&id) else {
            return;
        };
        let mut all = Vec::new();
        act(&mut joint.meeting, &mut all);
        self.carry_out(a, id, all);
    }

    /// A peer server says something about a meeting.
    fn meet_said(&mut self, a: &mut Around<'_>, (from, said): (ServerId, Said)) {
        let (Said::Synchronise { object, .. }
        | Said::Synchronised { object, .. }
        | Said::Parted { object, .. }) = said
        else {
            return;
        };
        let Some(joint) = self.joints.get_mut(&object) else {
            return;
        };
        let mut all = Vec::new();
        match said {
            Said::Synchronise { epoch, .. } if epoch > joint.views.epoch() => {
                joint.early.push((from, said));
            }
            Said::Synchronise {
                kernel,
                number,
                request,
                ..
            } => joint
                .meeting
                .asked((from, kernel), number, request, &mut all),
            Said::Synchronised {
                kernel,
                number,
                answer,
                ..
            } => joint
                .meeting
                .answered(from, (kernel, number), answer, &mut all),
            Said::Parted {
                kernel, crashed, ..
            } => {
                let how = match crashed {
                    true => Parting::Crashed,
                    false => Parting::Left,
                };
                joint.meeting.parted((from, kernel), how, &mut all);
            }
            _ => {}
        }
        self.carry_out(a, object, all);
    }

    pub(super) fn carry_out(&mut self, a: &mut Around<'_>, object: ObjectId, all: Vec<Do>) {
        let epoch = self.joints.get(&object).map_or(0, |it| it.views.epoch());
        for one in all {
            let (to, said) = match one {
                Do::Present(to) => {
                    let kernels = self.kernels_of(a, object).into_iter().collect();
                    (to, Said::Present { object, kernels })
                }
                Do::Answer(kernel, number, answer) => {
                    let answer = answer.ok_or_else(|| {
                        let text = "the server that kept mutexes, barriers and counters of \
                                    the object is gone, or the link to it broke";
                        (FailureKind::Unavailable, text.to_owned())
                    });
                    a.core
                        .met_elsewhere(kernel, RequestId(number), answer, a.out);
                    continue;
                }
                Do::Ask(to, kernel, number, request) => (
                    to,
                    Said::Synchronise {
                        object,
                        epoch,
                        kernel,
                        number,
                        request,
                    },
                ),
                Do::Part(to, kernel, how) => (
                    to,
                    Said::Parted {
                        object,
                        kernel,
                        crashed: how == Parting::Crashed,
                    },
                ),
                Do::Tell(to, kernel, number, answer) => (
                    to,
                    Said::Synchronised {
                        object,
                        kernel,
                        number,
                        answer,
                    },
                ),
            };
            self.wires.say(a.links, to, &said, None);
        }
    }
}
