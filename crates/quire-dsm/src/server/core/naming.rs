//! Objects that have one of a name and a size only.
//!
//! Programs make shared memory in two steps: it has a name first, then a size. Until then it is
//! *begun*: nobody else can make it, nobody can open it, and whoever gives it a size makes it. That is
//! known to this server alone, and until it ends.
//!
//! And they remove memory that they use: it has no name any more for those who look for it, and goes
//! when nobody has it open. Such an object is *discarded*. Programs that have it open, whose children
//! open it, and whose links break, know what it was called and find it by that, so that no other
//! object can have the name meanwhile.

use std::collections::BTreeMap;

use super::super::backed::Asker;
use super::super::object::{Object, Refused};
use super::{Core, MOST_OBJECTS, NOBODY, Out, PeerId, answer_with};
use crate::wire::control::{Answer, FailureKind, Name, RequestId};

/// Names of objects that are begun, and as whom those count who began them.
pub(super) type Begun = BTreeMap<Name, String>;

impl Core {
    /// Why there is no object of a name.
    pub(in crate::server) fn lacks(&self, name: &Name) -> Refused {
        match self.begun.contains_key(name) {
            true => {
                let text = format!(
                    "{name} has no size yet: a program has made it, and not said how large it is"
                );
                (FailureKind::Begun, text)
            }
            false => super::not_found(name),
        }
    }

    /// Why no object can be made by a name, if that is so.
    pub(super) fn is_taken(&self, name: &Name) -> Option<Refused> {
        let object = self.objects.get(name);
        if let Some(object) = object.filter(|object| object.is_discarded) {
            let open = self.times_open(name, object);
            let text = format!(
                "{name} was removed and is still open, {open} times; its name is free when nobody \
                 uses it"
            );
            return Some((FailureKind::Busy, text));
        }
        let is_there = object.is_some() || self.keeping.is_busy_with(name);
        is_there.then(|| {
            let text = format!("there is an object {name} already");
            (FailureKind::Exists, text)
        })
    }

    /// A peer begins an object.
    pub(super) fn begin(&mut self, id: PeerId, name: Name) -> Result<Answer, Refused> {
        let Some(peer) = self.peers.get(&id) else {
            return Err((FailureKind::Denied, "the link has ended".into()));
        };
        if let Some(taken) = self.is_taken(&name) {
            return Err(taken);
        }
        if self.begun.contains_key(&name) {
            let text = format!("there is an object {name} already, which has no size yet");
            return Err((FailureKind::Exists, text));
        }
        self.may_be_more()?;
        self.begun.insert(name, peer.identity.clone());
        Ok(Answer::Done)
    }

    /// Whether there may be one more object.
    pub(super) fn may_be_more(&self) -> Result<(), Refused> {
        let all = self.objects.len() + self.keeping.underway() + self.begun.len();
        if all >= MOST_OBJECTS {
            let text = format!("{MOST_OBJECTS} objects are here already; remove some");
            return Err((FailureKind::Full, text));
        }
        Ok(())
    }

    /// An object is there, which has a size.
    pub(in crate::server) fn put(&mut self, name: Name, object: Object) {
        self.begun.remove(&name);
        self.objects.insert(name, object);
    }

    /// What is begun has no name any more, if the peer may remove it; nothing where none is begun.
    pub(in crate::server) fn end_begun(
        &mut self,
        id: PeerId,
        name: &Name,
    ) -> Option<Result<(), Refused>> {
        let owner = self.begun.get(name)?;
        let peer = self.peers.get(&id);
        if peer.is_none_or(|peer| peer.identity != *owner) {
            let text = format!("{name} belongs to {owner}");
            return Some(Err((FailureKind::Denied, text)));
        }
        self.begun.remove(name);
        Some(Ok(()))
    }

    /// A peer discards an object.
    pub(super) fn discard(&mut self, asker: Asker, name: &Name, out: &mut Vec<Out>) {
        match self.may_remove(asker.0, name) {
            Err((FailureKind::Busy, _)) => {
                let discarded = self.discard_used(asker.0, name);
                answer_with(asker.0, asker.1, discarded.map(|()| Answer::Done), out);
            }
            // It says what is wrong, too, and ends what is begun.
            _ => self.remove(asker, name, out),
        }
    }

    /// A peer discards an object that somebody has open, here or elsewhere.
    pub(in crate::server) fn discard_used(
        &mut self,
        id: PeerId,
        name: &Name,
    ) -> Result<(), Refused> {
        let object = self.own(id, name)?;
        if object.is_discarded {
            let text = format!("{name} was removed, and goes when nobody uses it any more");
            return Err((FailureKind::NotFound, text));
        }
        object.is_discarded = true;
        Ok(())
    }

    /// Whether an object goes when nobody has it open.
    pub(in crate::server) fn is_discarded(&self, name: &Name) -> bool {
        self.objects.get(name).is_some_and(|it| it.is_discarded)
    }

    /// Whether an object is to go now: it was discarded, and nobody has it open here.
    pub(in crate::server) fn is_to_go(&self, name: &Name) -> bool {
        let object = self.objects.get(name);
        object.is_some_and(|object| object.is_discarded && object.kernels.is_empty())
    }

    /// A discarded object goes, if that is so.
    pub(in crate::server) fn let_unused_go(&mut self, name: &Name, out: &mut Vec<Out>) {
        if self.is_to_go(name) {
            self.collect(name);
            self.dismiss((NOBODY, RequestId(0)), name, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use quire_core::dsm::types::Machine;
    use quire_core::units::Bytes;

    use super::super::Peer;
    use super::*;
    use crate::wire::Control;
    use crate::wire::control::{
        Handle, MachineCode, Object, PageSize, Request, Rights, SchedulerKind,
    };

    const PEERS: u64 = 3;

    fn name() -> Name {
        "grid".parse().expect("a name")
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Begin,
        Create,
        Open,
        Close,
        Remove,
        Discard,
        Leave,
    }

    /// What there is, and who has it open.
    #[derive(Debug, PartialEq)]
    enum Naive {
        Nothing,
        Begun,
        There { open: BTreeSet<u64>, goes: bool },
    }

    impl Naive {
        /// What is to be answered; nothing where nobody is.
        fn obey(&mut self, peer: u64, step: Step) -> Option<Result<(), FailureKind>> {
            use FailureKind::{Busy, Exists, NotFound};
            let refused = |kind| Some(Err(kind));
            let done = Some(Ok(()));
            match (&mut *self, step) {
                (Naive::There { open, .. }, Step::Leave) => drop(open.remove(&peer)),
                (_, Step::Leave) => {}
                (Naive::Nothing, Step::Begin) => {
                    *self = Naive::Begun;
                    return done;
                }
                (Naive::Begun, Step::Begin) => return refused(Exists),
                (Naive::Nothing | Naive::Begun, Step::Create) => {
                    let open = BTreeSet::new();
                    *self = Naive::There { open, goes: false };
                    return done;
                }
                (Naive::There { goes, .. }, Step::Begin | Step::Create) => {
                    return refused(if *goes { Busy } else { Exists });
                }
                (Naive::There { open, .. }, Step::Open) => {
                    open.insert(peer);
                    return done;
                }
                (Naive::There { open, .. }, Step::Close) if open.contains(&peer) => {
                    open.remove(&peer);
                    self.is_over();
                    return done;
                }
                (_, Step::Close) => return refused(NotFound),
                (Naive::Begun, Step::Open) => return refused(FailureKind::Begun),
                (Naive::Begun, Step::Remove | Step::Discard) => {
                    *self = Naive::Nothing;
                    return done;
                }
                (Naive::There { open, .. }, Step::Remove | Step::Discard) if open.is_empty() => {
                    *self = Naive::Nothing;
                    return done;
                }
                (Naive::There { goes: true, .. }, Step::Discard) => return refused(NotFound),
                (Naive::There { goes, .. }, Step::Discard) => {
                    *goes = true;
                    return done;
                }
                (Naive::There { .. }, Step::Remove) => return refused(Busy),
                (Naive::Nothing, Step::Open | Step::Remove | Step::Discard) => {
                    return refused(NotFound);
                }
            }
            self.is_over();
            None
        }

        fn is_over(&mut self) {
            if matches!(self, Naive::There { open, goes: true } if open.is_empty()) {
                *self = Naive::Nothing;
            }
        }
    }

    /// The server, without links.
    struct Real {
        core: Core,
        open: BTreeMap<u64, Handle>,
    }

    impl Real {
        fn new() -> Real {
            let mut core = Core::default();
            for peer in 0..PEERS {
                join(&mut core, peer);
            }
            let open = BTreeMap::new();
            Real { core, open }
        }

        fn obey(&mut self, peer: u64, step: Step) -> Option<Result<(), FailureKind>> {
            let rights = Rights {
                read: true,
                write: true,
            };
            let request = match step {
                Step::Begin => Request::Begin { name: name() },
                Step::Create => Request::Create(object()),
                Step::Open if self.open.contains_key(&peer) => return Some(Ok(())),
                Step::Open => Request::Open {
                    name: name(),
                    rights,
                },
                Step::Close => Request::Close {
                    object: self.open.remove(&peer).unwrap_or(Handle(u32::MAX)),
                },
                Step::Remove => Request::Remove { name: name() },
                Step::Discard => Request::Discard { name: name() },
                Step::Leave => {
                    let mut out = Vec::new();
                    let id = PeerId(peer + 1);
                    self.core
                        .left(id, quire_core::dsm::sync::Parting::Left, &mut out);
                    self.open.remove(&peer);
                    join(&mut self.core, peer);
                    self.settle(peer, out);
                    return None;
                }
            };
            let mut out = Vec::new();
            let id = RequestId(1);
            let message = Control::Request { id, request };
            self.core.says(PeerId(peer + 1), message, &mut out);
            self.settle(peer, out)
        }

        fn settle(&mut self, peer: u64, mut out: Vec<Out>) -> Option<Result<(), FailureKind>> {
            let mut told = None;
            while let Some(next) = (!out.is_empty()).then(|| out.remove(0)) {
                match next {
                    Out::Unused(name) => self.core.let_unused_go(&name, &mut out),
                    Out::Send(PeerId(to), Control::Answer { answer, .. }) if to == peer + 1 => {
                        if let Ok(Answer::Opened { object, .. }) = &answer {
                            self.open.insert(peer, *object);
                        }
                        told = Some(answer.map(drop).map_err(|failure| failure.kind));
                    }
                    _ => {}
                }
            }
            told
        }
    }

    fn join(core: &mut Core, peer: u64) {
        let joins = Peer::new("anyone".into(), Machine::native());
        core.joined(PeerId(peer + 1), joins);
    }

    fn object() -> Object {
        Object {
            name: name(),
            size: Bytes(4096),
            page_size: PageSize::BASE,
            scheduler: SchedulerKind::Multi,
            machine: MachineCode(0),
            tags: Vec::new(),
        }
    }

    proptest! {
        /// Names mean the same as where nothing but them is looked at.
        #[test]
        fn names_are_as_in_a_naive_model(steps in vec((0..PEERS, step()), 0..60)) {
            let (mut naive, mut real) = (Naive::Nothing, Real::new());
            for (peer, step) in steps {
                prop_assert_eq!(naive.obey(peer, step), real.obey(peer, step), "{:?}", step);
                let is_there = matches!(naive, Naive::There { .. });
                prop_assert_eq!(real.core.objects().count(), usize::from(is_there));
            }
        }
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Begin),
            Just(Step::Create),
            Just(Step::Open),
            Just(Step::Close),
            Just(Step::Remove),
            Just(Step::Discard),
            Just(Step::Leave),
        ]
    }

    /// What is begun or to go is another one's as much as an object is.
    #[test]
    fn only_who_made_it_removes_it() {
        let mut real = Real::new();
        let stranger = Peer::new("stranger".into(), Machine::native());
        real.core.joined(PeerId(PEERS), stranger);
        let last = PEERS - 1;
        for make in [Step::Begin, Step::Create] {
            assert_eq!(real.obey(0, make), Some(Ok(())));
            for remove in [Step::Remove, Step::Discard] {
                assert_eq!(real.obey(last, remove), Some(Err(FailureKind::Denied)));
            }
        }
    }
}
