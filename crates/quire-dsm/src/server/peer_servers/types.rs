//! The types of objects that several servers share. Pages go from server to server in the form
//! of whoever wrote them, and each server translates them for its own programs: so all must
//! know the same types.
//!
//! They are chosen when the object is made, which the directory tells. Later a program gives
//! whole pages that it alone has another type (`server::object::tags`). Its server does so,
//! tells the other members of the view, and answers the program when all of them have done the
//! same. The pages mean nothing until then, so it does no harm that some translate them by
//! the old types meanwhile; and who gets a copy then has it dropped when the program writes.
//!
//! - An answer counts only in the view in which it was asked for: each view has all its members
//!   asked again. So who becomes a member does not miss what was under way.
//! - Who becomes a member knows no types, until the member that came first has told it all of
//!   them. Its programs wait so long with opening the object.
//! - If the server of the program is gone before all have answered, some have one type and some
//!   another. The pages mean nothing, and get a type again before they are used.

use std::collections::BTreeSet;

use quire_core::dsm::message::ServerId;

use super::{Around, PeerServers};
use crate::link::LinkId;
use crate::server::core::{self, PeerId};
use crate::server::said::Said;
use crate::store::ObjectId;
use crate::wire::control::{Answer, Name, RequestId, Segment};

/// What is under way about the types of an object.
pub(super) struct Types {
    /// Whether they are known here.
    pub is_known: bool,
    /// What came before they were known, or of a view that is not known yet.
    early: Vec<(ServerId, Said)>,
    changes: Vec<Change>,
    last: u64,
}

/// A change that not all servers have made yet.
struct Change {
    number: u64,
    asker: (PeerId, RequestId),
    part: Segment,
    silent: BTreeSet<ServerId>,
}

impl Types {
    /// Those of an object that this server made, or of which it becomes a member.
    pub fn new(is_maker: bool) -> Types {
        Types {
            is_known: is_maker,
            early: Vec::new(),
            changes: Vec::new(),
            last: 0,
        }
    }

    /// Takes those of whom no answer is awaited any more.
    fn made_by_all(&mut self) -> Vec<(PeerId, RequestId)> {
        let made = self.changes.extract_if(.., |it| it.silent.is_empty());
        made.map(|change| change.asker).collect()
    }
}

impl PeerServers {
    /// A program of this server has given a part of an object another type.
    pub fn tagged(
        &mut self,
        a: &mut Around<'_>,
        name: &Name,
        asker: (PeerId, RequestId),
        part: Segment,
    ) {
        let Some(&object) = self.ids.get(name) else {
            return;
        };
        if let Some(joint) = self.joints.get_mut(&object) {
            joint.types.last += 1;
            joint.types.changes.push(Change {
                number: joint.types.last,
                asker,
                part,
                silent: BTreeSet::new(),
            });
            let number = joint.types.last;
            self.tell_change(a, object, number);
        }
        self.answer_changes(a, object);
    }

    /// Asks all other members to make a change.
    fn tell_change(&mut self, a: &mut Around<'_>, object: ObjectId, number: u64) {
        let me = self.me();
        let Some(joint) = self.joints.get_mut(&object) else {
            return;
        };
        let members = joint.views.members().iter().copied();
        let others: BTreeSet<ServerId> = members.filter(|it| Some(*it) != me).collect();
        let epoch = joint.views.epoch();
        let change = joint.types.changes.iter_mut();
        for change in change.filter(|change| change.number == number) {
            change.silent.clone_from(&others);
            let part = change.part;
            let said = Said::Tagged {
                object,
                epoch,
                number,
                part,
            };
            for other in &others {
                self.wires.say(a.links, *other, &said, None);
            }
        }
    }

    fn answer_changes(&mut self, a: &mut Around<'_>, object: ObjectId) {
        if let Some(joint) = self.joints.get_mut(&object) {
            for (peer, number) in joint.types.made_by_all() {
                core::answer_with(peer, number, Ok(Answer::Done), a.out);
            }
        }
    }

    /// There is a new view of an object: who came first tells the others all types, and
    /// changes that are under way are asked for again.
    pub(super) fn types_in_view(&mut self, a: &mut Around<'_>, object: ObjectId) {
        let me = self.me();
        let Some(joint) = self.joints.get_mut(&object) else {
            return;
        };
        let name = joint.name.clone();
        let members = joint.views.members().to_vec();
        let numbers: Vec<u64> = joint.types.changes.iter().map(|it| it.number).collect();
        if members.first().copied() == me {
            // There is nobody else who could tell.
            joint.types.is_known = true;
            let here = a.core.object(&name);
            let tags = here.map(|here| here.info.tags.clone()).unwrap_or_default();
            let said = Said::Types { object, tags };
            for other in members.iter().filter(|it| Some(**it) != me) {
                self.wires.say(a.links, *other, &said, None);
            }
        }
        for number in numbers {
            self.tell_change(a, object, number);
        }
        self.answer_changes(a, object);
        self.obey_early(a, object);
    }

    /// What came too early is obeyed now, if it still does not come too early.
    fn obey_early(&mut self, a: &mut Around<'_>, object: ObjectId) {
        let joint = self.joints.get_mut(&object);
        let early = joint.map(|joint| std::mem::take(&mut joint.types.early));
        for (from, said) in early.unwrap_or_default() {
            if let Err(why) = self.types_said(a, from, said) {
                tracing::error!("a peer server said what makes no sense: {why}");
            }
        }
    }

    /// A peer server says something about types, over a link that is cut where it makes no sense.
    pub(super) fn obey_types(
        &mut self,
        a: &mut Around<'_>,
        link: LinkId,
        (from, said): (ServerId, Said),
    ) {
        if let Err(why) = self.types_said(a, from, said) {
            tracing::error!("a peer server is cut off: {why}");
            a.links.close(link, &why);
        }
    }

    fn types_said(&mut self, a: &mut Around<'_>, from: ServerId, said: Said) -> Result<(), String> {
        let (Said::Tagged { object, .. }
        | Said::TaggedToo { object, .. }
        | Said::Types { object, .. }) = said
        else {
            return Ok(());
        };
        let Some(joint) = self.joints.get_mut(&object) else {
            return Ok(());
        };
        let here = a.core.object(&joint.name);
        match said {
            Said::Types { tags, .. } if !joint.types.is_known => {
                joint.types.is_known = true;
                let taken = here.map_or(Ok(()), |here| here.take_types(tags));
                let name = joint.name.clone();
                self.obey_early(a, object);
                self.if_live(a, &name);
                return taken.map_err(|(_, text)| text);
            }
            Said::Tagged { epoch, .. } if !joint.types.is_known || epoch > joint.views.epoch() => {
                joint.types.early.push((from, said));
            }
            Said::Tagged { number, part, .. } => {
                let made = here.map_or(Ok(()), |here| here.tag_pages(part));
                made.map_err(|(_, text)| text)?;
                let epoch = joint.views.epoch();
                let too = Said::TaggedToo {
                    object,
                    epoch,
                    number,
                };
                self.wires.say(a.links, from, &too, None);
            }
            Said::TaggedToo { epoch, number, .. } if epoch == joint.views.epoch() => {
                let changes = joint.types.changes.iter_mut();
                for change in changes.filter(|change| change.number == number) {
                    change.silent.remove(&from);
                }
                self.answer_changes(a, object);
            }
            _ => {}
        }
        Ok(())
    }
}
