//! What programs had written and not given back when their links ended, and who brings it now:
//! the program itself over a new link, or its recovery process where it was killed.
//!
//! Until the program has certainly stopped, its kernel is the pages' owner; whoever claims it
//! becomes that kernel, and gives back as it would have done. Later the pages are *orphans*
//! ([`super::super::object::orphans`]): they are as the server knew them last, and what is brought is
//! taken as long as nobody has been given them.
//!
//! Of an object that several servers share, pages can be brought to any of them. What is elsewhere, the
//! next view decides about, which is wanted as soon as all was brought; who brings it is answered then.

use std::collections::BTreeMap;

use quire_core::dsm::message::{FromKernel, KernelId, PageNumber, Pages};
use quire_core::dsm::sync::Parting;
use quire_core::dsm::types::Machine;

use super::{Core, Open, Opening, Out, Peer, PeerId, answer_with, cut, not_open};
use crate::server::backed::Asker;
use crate::server::object::orphans::{Bearer, Fate, Version};
use crate::server::object::{Object, Refused};
use crate::wire::Contents;
use crate::wire::control::{Answer, FailureKind, Handle, Name, RequestId, Rights};

/// So many kernels without a link are remembered at most; the first are forgotten first.
const MOST: usize = 4096;

/// What one needs to give something back.
const TO_WRITE: Rights = Rights {
    read: false,
    write: true,
};

/// A kernel whose link has ended without a goodbye.
#[derive(Debug)]
pub(super) struct Left {
    name: Name,
    kernel: KernelId,
    machine: Machine,
    /// As whom its peer counted.
    identity: String,
    /// So many pages came from it with contents.
    received: u64,
}

/// An object that a peer has open only to bring what another link's kernel had written.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    /// Whether the kernel that had it is known here.
    known: bool,
    machine: Machine,
    /// So many pages were not taken.
    lost: u64,
    /// Which versions of pages come next.
    versions: BTreeMap<PageNumber, Version>,
    /// Those about which a view decides.
    waits: BTreeMap<PageNumber, Version>,
    /// All was brought: which request says so, and of how many pages there was nothing.
    settles: Option<(RequestId, u64)>,
}

impl Core {
    /// Whether a peer may have written to pages of its own, which can be claimed for it.
    pub fn may_claim(&self, id: PeerId) -> bool {
        let peer = self.peers.get(&id);
        let mut open = peer.into_iter().flat_map(|peer| peer.open.values());
        open.any(|open| open.opening == Opening::Kernel && open.rights.write)
    }

    /// Remembers the kernels of a peer whose link has ended.
    pub(super) fn remember(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get(&id) else {
            return;
        };
        for (handle, open) in &peer.open {
            let object = self.objects.get(&open.name);
            let is_known = object.is_some_and(|it| it.kernels.contains_key(&open.kernel));
            if !is_known || open.opening != Opening::Kernel || !open.rights.write {
                continue;
            }
            let left = Left {
                name: open.name.clone(),
                kernel: open.kernel,
                machine: peer.machine,
                identity: peer.identity.clone(),
                received: open.received,
            };
            self.without_link.entry((id, *handle)).or_insert(left);
        }
        while self.without_link.len() > MOST {
            self.without_link.pop_first();
        }
    }

    /// A peer brings what was written over another link.
    pub(super) fn claim(
        &mut self,
        id: PeerId,
        (session, handle): (PeerId, Handle),
        name: &Name,
        out: &mut Vec<Out>,
    ) -> Result<Answer, Refused> {
        if !self.allows(id, name, TO_WRITE) {
            let text = format!("who may not write to {} gives nothing back", name.plain());
            return Err((FailureKind::Denied, text));
        }
        self.end_session(id, session, handle, out);
        let identity = self.identity(id).unwrap_or_default();
        let left = self.without_link.get(&(session, handle));
        let left = left.filter(|left| left.name == *name && left.identity == identity);
        let found = left.map(|left| (left.kernel, left.machine, left.received));
        let machine = self.peers.get(&id).map(|peer| peer.machine);
        let Some(machine) = machine else {
            return Err((FailureKind::Denied, "the link has ended".into()));
        };
        let (kernel, machine, received) = match found {
            Some(found) => found,
            None => {
                self.last_kernel += 1;
                (KernelId(self.last_kernel), machine, 0)
            }
        };
        let claim = Claim {
            known: found.is_some(),
            machine,
            lost: 0,
            versions: BTreeMap::new(),
            waits: BTreeMap::new(),
            settles: None,
        };
        let taken = self.kernels.get(&kernel).copied();
        let taken =
            taken.and_then(|(peer, handle)| self.peers.get_mut(&peer)?.open.remove(&handle));
        let open = taken.unwrap_or_else(|| Open {
            name: name.clone(),
            kernel,
            rights: TO_WRITE,
            opening: Opening::Claim,
            received,
            claim: None,
        });
        let is_there = self.kernels.contains_key(&kernel);
        let Some(peer) = self.peers.get_mut(&id) else {
            return Err((FailureKind::Denied, "the link has ended".into()));
        };
        peer.next += 1;
        let new = Handle(peer.next);
        peer.open.insert(
            new,
            Open {
                opening: Opening::Claim,
                claim: Some(claim),
                ..open
            },
        );
        if is_there {
            self.kernels.insert(kernel, (id, new));
        }
        Ok(Answer::Claimed {
            object: new,
            is_known: found.is_some(),
            received,
            is_shared: self.is_joint(name),
        })
    }

    /// Somebody says which versions of pages come next.
    pub(super) fn vouch(
        &mut self,
        id: PeerId,
        handle: Handle,
        (first, stamps): (PageNumber, Vec<(u64, bool)>),
    ) -> Result<Answer, Refused> {
        let open = self
            .peers
            .get_mut(&id)
            .and_then(|peer| peer.open.get_mut(&handle));
        let claim = open.and_then(|open| open.claim.as_mut());
        let claim = claim.ok_or((FailureKind::NotFound, "nothing is claimed".into()))?;
        let versions = stamps.into_iter().zip(first.0..);
        let version = |((stamp, is_held), page): ((u64, bool), u64)| {
            (PageNumber(page), Version { stamp, is_held })
        };
        claim.versions = versions.map(version).collect();
        Ok(Answer::Done)
    }

    /// Whoever had a link says over another one that it uses the first no more.
    fn end_session(&mut self, id: PeerId, session: PeerId, handle: Handle, out: &mut Vec<Out>) {
        let same = |peer: &super::Peer| Some(peer.identity.as_str()) == self.identity(id);
        let found = self.peers.get(&session).filter(|peer| {
            session != id && !peer.is_cut_off && peer.open.contains_key(&handle) && same(peer)
        });
        if found.is_some() {
            self.cut_off(session);
            let why = "this program has come over another link";
            out.push(Out::Cut(session, why.to_owned()));
        }
    }

    /// Pages are brought that were claimed.
    pub(super) fn brought(
        &mut self,
        id: PeerId,
        handle: Handle,
        message: FromKernel<Contents>,
        out: &mut Vec<Out>,
    ) {
        let (pages, data) = match message {
            FromKernel::DataWrite { pages, data } => (pages, data),
            // A flush reached the kernel when its link had ended: it is settled soon.
            _ => return,
        };
        let open = self.peers.get(&id).and_then(|peer| peer.open.get(&handle));
        let Some((open, claim)) = open.and_then(|open| Some((open, open.claim.clone()?))) else {
            return;
        };
        let (kernel, name) = (open.kernel, open.name.clone());
        if data.len() != pages.count as usize {
            let why = "not as many contents as pages".to_owned();
            return out.push(cut(id, handle, why));
        }
        let (mut lost, mut waits) = (0, Vec::new());
        for (page, data) in pages.iter().zip(data) {
            let version = claim.versions.get(&page).copied().unwrap_or_default();
            let bearer = Bearer {
                kernel,
                version: (!claim.known).then_some(version),
                machine: claim.machine,
            };
            let one = (Pages::one(page), data);
            let fate = self.act(&name, out, |object, tell| object.take(bearer, one, tell));
            match fate {
                Some(Ok(Fate::Kept)) => {}
                Some(Ok(Fate::Waits)) => waits.push((page, version)),
                Some(Ok(Fate::Lost)) | None => lost += 1,
                Some(Err(nonsense)) => return out.push(cut(id, handle, nonsense.to_string())),
            }
        }
        let open = self
            .peers
            .get_mut(&id)
            .and_then(|peer| peer.open.get_mut(&handle));
        if let Some(claim) = open.and_then(|open| open.claim.as_mut()) {
            claim.lost += lost;
            claim.waits.extend(waits);
        }
    }

    /// Views have decided about pages of an object that were brought.
    pub(super) fn claims_are_decided(&mut self, name: &Name, out: &mut Vec<Out>) {
        let decided = self.objects.get_mut(name).map(Object::decided);
        let decided = decided.filter(|decided| !decided.is_empty());
        let Some(decided) = decided else {
            return;
        };
        let (mut settled, mut refused) = (Vec::new(), Vec::new());
        for (id, handle, claim) in claims_of(&mut self.peers, name) {
            for it in &decided {
                // Of a kernel that is known only one version is brought.
                let is_known = claim.known;
                let is_it = |waits: &mut Version| is_known || waits.stamp == it.version.0;
                let waited = claim.waits.get_mut(&it.page).is_some_and(is_it);
                if waited && let Some(version) = claim.waits.remove(&it.page) {
                    let is_lost = (is_known || version.is_held) && !it.is_taken;
                    claim.lost += u64::from(is_lost);
                    refused.extend((is_lost && !is_known).then_some((it.page, it.version.0)));
                }
            }
            settled.extend(
                claim
                    .settles
                    .filter(|_| claim.waits.is_empty())
                    .map(|it| (id, handle, it)),
            );
        }
        if let Some(object) = self.objects.get_mut(name) {
            refused
                .into_iter()
                .for_each(|(page, stamp)| object.orphans.refuse(page, stamp));
        }
        for (id, handle, (number, missing)) in settled {
            self.settle_claim((id, number), handle, missing, out);
        }
    }

    /// An object is given up here: which of its kernels had links does not matter any more.
    pub(super) fn forget_kernels(&mut self, name: &Name) {
        self.without_link.retain(|_, left| left.name != *name);
    }

    /// Who waits until a view has decided about what was brought of an object.
    pub(super) fn claimers(&mut self, name: &Name) -> Vec<(PeerId, Handle)> {
        let claims = claims_of(&mut self.peers, name);
        let waiting = claims.filter(|(.., claim)| claim.settles.is_some());
        waiting.map(|(id, handle, _)| (id, handle)).collect()
    }

    /// All was brought.
    pub(super) fn settle_claim(
        &mut self,
        asker: Asker,
        handle: Handle,
        missing: u64,
        out: &mut Vec<Out>,
    ) {
        let peer = self.peers.get_mut(&asker.0);
        let open = peer.and_then(|peer| peer.open.get_mut(&handle));
        if let Some(open) = open
            && let Some(claim) = open.claim.as_mut().filter(|claim| !claim.waits.is_empty())
        {
            claim.settles = Some((asker.1, missing));
            return out.push(Out::WantsView(open.name.clone()));
        }
        let peer = self.peers.get_mut(&asker.0);
        let open = peer.and_then(|peer| peer.open.remove(&handle));
        let Some(mut open) = open else {
            return not_open(asker, out);
        };
        let Some(claim) = open.claim.take() else {
            return not_open(asker, out);
        };
        self.without_link
            .retain(|_, left| left.kernel != open.kernel);
        if let Some(object) = self.objects.get_mut(&open.name) {
            object.orphans.settled(open.kernel, missing);
        }
        if self.kernels.contains_key(&open.kernel) {
            self.close(&open, Parting::Crashed, out);
        }
        let lost = claim.lost + missing;
        if lost > 0 {
            let (name, who) = (open.name.plain(), self.words_for(asker.0));
            tracing::warn!("{name}: what {who} brings of {lost} pages is lost: others have them");
        }
        answer_with(
            asker.0,
            asker.1,
            Ok(Answer::Settled { lost: claim.lost }),
            out,
        );
    }
}

/// What is claimed of an object.
fn claims_of<'a>(
    peers: &'a mut BTreeMap<PeerId, Peer>,
    name: &'a Name,
) -> impl Iterator<Item = (PeerId, Handle, &'a mut Claim)> {
    peers.iter_mut().flat_map(move |(id, peer)| {
        let of_it = peer
            .open
            .iter_mut()
            .filter(move |(_, open)| open.name == *name);
        of_it.filter_map(|(handle, open)| Some((*id, *handle, open.claim.as_mut()?)))
    })
}
