//! What a server that ends gathers from its peer servers: of the objects that it keeps in its store, what
//! programs have written at other servers, and have not given back.
//!
//! It asks the other members of such an object ([`Said::Flush`]). Each has its kernels give back all
//! that they have, as if it ended itself, and gives them nothing any more. What they give back comes
//! the way that it always does ([`Said::Keep`]). The answer says how many pages have yet to come;
//! there are none when this server has acknowledged them all, so that they are on its disk. It asks
//! again now and then, and who joins in between is asked, too. A member that is gone from the
//! directory, or from the view, owes nothing.

use std::collections::BTreeMap;
use std::time::Instant;

use quire_core::dsm::message::ServerId;

use super::{AGAIN, Around, PeerServers};
use crate::server::core::{Core, Out};
use crate::server::said::Said;
use crate::store::ObjectId;
use crate::wire::control::Name;

/// How far it is.
#[derive(Default)]
pub(super) struct Gathering {
    /// When all that owe something are asked again; `None` where this server does not end.
    ask_at: Option<Instant>,
    owed: BTreeMap<(ObjectId, ServerId), Owed>,
}

/// What a peer server owes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    /// It has not said yet.
    Unknown,
    /// So many pages, as far as is known.
    Pages(u64),
    Nothing,
}

impl PeerServers {
    /// This server begins to end: what it keeps is gathered.
    pub fn gather(&mut self, a: &mut Around<'_>, now: Instant) {
        self.gathering.ask_at = Some(now);
        self.go_on_gathering(a, now);
    }

    /// Asks all that owe something, if it is time.
    pub(super) fn go_on_gathering(&mut self, a: &mut Around<'_>, now: Instant) {
        if self.gathering.ask_at.is_none_or(|at| at > now) {
            return;
        }
        self.gathering.ask_at = Some(now + AGAIN);
        for (object, peer_server) in self.asked() {
            let owed = self.gathering.owed.entry((object, peer_server));
            if *owed.or_insert(Owed::Unknown) != Owed::Nothing {
                self.wires
                    .say(a.links, peer_server, &Said::Flush { object }, None);
            }
        }
    }

    /// Which peer servers are asked for what this server keeps.
    fn asked(&self) -> Vec<(ObjectId, ServerId)> {
        let Some(me) = self.me() else {
            return Vec::new();
        };
        let kept = self.joints.iter();
        let kept = kept.filter(|(_, joint)| joint.home == Some(me) && joint.views.is_in());
        let members = kept.flat_map(|(&object, joint)| {
            let members = joint.views.members().iter().copied();
            members.map(move |member| (object, member))
        });
        let others = members.filter(|(_, member)| *member != me);
        others
            .filter(|(_, member)| self.members.contains_key(member))
            .collect()
    }

    /// What is still owed, and by whom. A member that was not asked yet may owe anything.
    fn debts(&self) -> impl Iterator<Item = (ObjectId, ServerId, Owed)> {
        let all = self.asked().into_iter();
        let all = all.map(|key| {
            let owed = self.gathering.owed.get(&key);
            (key.0, key.1, *owed.unwrap_or(&Owed::Unknown))
        });
        all.filter(|(_, _, owed)| *owed != Owed::Nothing)
    }

    /// Whether a peer server owes something.
    pub fn is_gathering(&self) -> bool {
        self.debts().next().is_some()
    }

    /// How many pages have to come still, as far as that is known: less is nearer to the end.
    pub fn uncollected(&self) -> u64 {
        let pages = self.debts().map(|(_, _, owed)| match owed {
            // More than any peer server can have, though not so much that a sum overflows.
            Owed::Unknown => 1 << 48,
            Owed::Pages(pages) => pages,
            Owed::Nothing => 0,
        });
        pages.sum()
    }

    /// Logs what peer servers did not give back. Whether they gave back all.
    pub fn name_what_is_uncollected(&self) -> bool {
        let mut is_complete = true;
        for (object, peer_server, owed) in self.debts() {
            is_complete = false;
            let name = self.joints.get(&object).map(|joint| joint.name.as_str());
            let name = name.unwrap_or("an object");
            let at = self
                .members
                .get(&peer_server)
                .map(|member| member.address.as_str());
            let at = at.unwrap_or("another server");
            match owed {
                Owed::Pages(pages) => tracing::warn!(
                    "{name}: {pages} pages that programs of the server at {at} may have written were \
                     not given back in time; they stay as they were before"
                ),
                Owed::Unknown | Owed::Nothing => tracing::warn!(
                    "{name}: the server at {at} did not say in time whether its programs have \
                     written something that was not given back; that is lost"
                ),
            }
        }
        is_complete
    }

    /// The home server of an object ends, and asks for all of it.
    pub(super) fn flush(&mut self, a: &mut Around<'_>, from: ServerId, object: ObjectId) {
        let joint = self.joints.get(&object);
        let joint = joint.filter(|joint| joint.home == Some(from));
        let left = joint.map_or(0, |joint| a.core.give_all_back(&joint.name, a.out));
        self.wires
            .say(a.links, from, &Said::Flushed { object, left }, None);
    }

    /// A peer server has said how many pages have yet to come from it.
    pub(super) fn flushed(&mut self, from: ServerId, object: ObjectId, left: u64) {
        if let Some(owed) = self.gathering.owed.get_mut(&(object, from)) {
            *owed = match left {
                0 => Owed::Nothing,
                pages => Owed::Pages(pages),
            };
        }
    }

    /// One of those pages has come. Its sender says more only behind others, which may take long on
    /// a slow link.
    pub(super) fn gathered_one(&mut self, from: ServerId, object: ObjectId) {
        if let Some(Owed::Pages(pages)) = self.gathering.owed.get_mut(&(object, from)) {
            *pages = pages.saturating_sub(1);
        }
    }
}

impl Core {
    /// Has the kernels of an object give back all that they have, and gives them nothing any more.
    /// How many pages its home server does not have yet.
    fn give_all_back(&mut self, name: &Name, out: &mut Vec<Out>) -> u64 {
        self.act(name, out, |object, tell| object.recall(tell));
        let object = self.object(name);
        object.map_or(0, |object| {
            let kept = object.behind.as_ref().map_or(0, |behind| behind.left().0);
            object.missing().into_values().sum::<u64>() + kept as u64
        })
    }
}
