//! Objects that have one of a name and a size only.
//!
//! Programs make shared memory in two steps: it has a name first, then a size. Until then it is
//! *begun*: nobody else can make it, nobody can open it, and whoever gives it a size makes it. That is
//! known until this server ends; where it is joined to others, by the directory, and not here.
//!
//! And they remove memory that they use: it has no name any more for those who look for it, and goes
//! when nobody has it open. Such an object is *discarded*. Programs that have it open, whose children
//! open it, and whose links break, ask for it by the exact spelling of its key ([`Name`]); by its name
//! another object can be made at once, which gets another key while this one is there. Objects are kept by
//! their keys: [`Core::resolve`] finds those that requests ask for.

use std::collections::BTreeMap;

use super::super::backed::Asker;
use super::super::object::{Object, Refused};
use super::{Core, MOST_OBJECTS, NOBODY, Out, PeerId, answer_with};
use crate::wire::Control;
use crate::wire::control::{Answer, FailureKind, Name, Request, RequestId};

/// Names of objects that are begun, and as whom those count who began them.
pub(super) type Begun = BTreeMap<Name, String>;

impl Core {
    /// The key of what is asked for by its name, or by an exact spelling; none where it is not here.
    pub(in crate::server) fn key_of(&self, asked: &Name) -> Option<Name> {
        match asked.key() {
            Some(key) => self.objects.contains_key(&key).then_some(key),
            None => self.living(asked),
        }
    }

    /// The key of what a request asks for: one that watches goes on with what it watched.
    pub(in crate::server) fn key_for(
        &self,
        id: PeerId,
        request: &Request,
        asked: &Name,
    ) -> Option<Name> {
        let watches = matches!(request, Request::Watch { .. });
        let watched = watches.then(|| self.watched(id, asked)).flatten();
        watched.or_else(|| self.key_of(asked))
    }

    /// The key of the object that has a name.
    fn living(&self, name: &Name) -> Option<Name> {
        let plain = self.objects.get_key_value(name);
        let numbered = self.objects.range(name.all_numbered());
        let mut all = plain.into_iter().chain(numbered);
        let living = all.find(|(_, object)| !object.is_discarded);
        living.map(|(key, _)| key.clone())
    }

    /// A key for a new object of a name: the name itself, unless another object here has that.
    /// Then it has this number.
    pub(in crate::server) fn free_key(&self, name: &Name, number: impl FnOnce() -> u64) -> Name {
        let is_had = self.objects.contains_key(name) || self.keeping.is_busy_with(name);
        match is_had {
            true => name.numbered(number()),
            false => name.clone(),
        }
    }

    /// Has a request ask for its object by the key. Where that is not here, it is answered, and nothing
    /// is left of it.
    pub(in crate::server) fn resolve(
        &mut self,
        id: PeerId,
        message: Control,
        out: &mut Vec<Out>,
    ) -> Option<Control> {
        let Control::Request {
            id: number,
            mut request,
        } = message
        else {
            return Some(message);
        };
        let asked = request.asks_by().cloned();
        let key = asked
            .as_ref()
            .and_then(|asked| self.key_for(id, &request, asked));
        match (asked, request.asks_by(), key) {
            (Some(_), Some(it), Some(key)) => *it = key,
            (Some(asked), ..) => {
                let ended = request.removes().then(|| self.end_begun(id, &asked));
                let answer = ended.flatten().unwrap_or_else(|| Err(self.lacks(&asked)));
                answer_with(id, number, answer.map(|()| Answer::Done), out);
                return None;
            }
            (None, ..) => {}
        }
        let id = number;
        Some(Control::Request { id, request })
    }

    /// Why there is no object of a name.
    pub(in crate::server) fn lacks(&self, name: &Name) -> Refused {
        match self.begun.contains_key(name) {
            true => is_begun(name),
            false => super::not_found(name),
        }
    }

    /// Whether an object can be made by a name, as far as is known here.
    pub(in crate::server) fn may_have(&self, name: &Name) -> Result<(), Refused> {
        // The directory knows better whether one that several servers share has the name still.
        let had_by = self.key_of(name).filter(|_| name.is_plain());
        let is_shared = had_by.is_some_and(|key| self.is_joint(&key));
        let taken = self.is_taken(name).filter(|_| !is_shared);
        taken.map_or(Ok(()), Err)
    }

    /// Why no object can be made by a name, if that is so.
    pub(super) fn is_taken(&self, name: &Name) -> Option<Refused> {
        if !name.is_plain() {
            let plain = name.plain();
            let text = format!("{name} cannot be the name of a new object; take {plain}");
            return Some((FailureKind::Invalid, text));
        }
        let is_there = self.living(name).is_some() || self.keeping.has_name(name);
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
    pub(in crate::server) fn put(&mut self, key: Name, object: Object) {
        let name = key.plain();
        if !object.is_discarded {
            self.begun.remove(&name);
            // What had the name was removed elsewhere, which is not known here yet.
            if let Some(before) = self.living(&name)
                && let Some(before) = self.objects.get_mut(&before)
            {
                before.is_discarded = true;
            }
        }
        self.objects.insert(key, object);
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
            Ok(()) | Err((FailureKind::Busy, _)) if self.is_used(name) => {
                let discarded = self.discard_used(asker.0, name);
                self.changed(asker, name, discarded.map(|()| Answer::Done), out);
            }
            // It says what is wrong, too.
            _ => self.remove(asker, name, out),
        }
    }

    /// Whether a peer may discard an object.
    pub(in crate::server) fn may_discard(&mut self, id: PeerId, key: &Name) -> Result<(), Refused> {
        match self.own(id, key)?.is_discarded {
            true => Err(was_removed(key)),
            false => Ok(()),
        }
    }

    /// A peer discards an object that somebody has open.
    fn discard_used(&mut self, id: PeerId, name: &Name) -> Result<(), Refused> {
        self.may_discard(id, name)?;
        self.own(id, name)?.is_discarded = true;
        Ok(())
    }

    /// Whether an object goes when nobody has it open.
    pub(in crate::server) fn is_discarded(&self, name: &Name) -> bool {
        self.objects.get(name).is_some_and(|it| it.is_discarded)
    }

    /// Whether an object is to go now: it was discarded, and nobody has it open here, or may come back.
    pub(in crate::server) fn is_to_go(&self, name: &Name) -> bool {
        self.is_discarded(name) && !self.is_used(name)
    }

    /// Somebody may come back for an object, whose link was cut, or whose server is gone.
    pub(in crate::server) fn miss(&mut self, name: &Name) {
        if let Some(object) = self.objects.get_mut(name) {
            object.is_missed = true;
            self.misses = true;
        }
    }

    /// Whether somebody may come back, since this was last asked: [`Core::forsaken`] is due when there
    /// was time for that.
    pub(in crate::server) fn misses(&mut self) -> bool {
        std::mem::take(&mut self.misses)
    }

    /// Whether a discarded object would be used, as it is open or may be again.
    pub(in crate::server) fn is_used(&self, name: &Name) -> bool {
        let object = self.objects.get(name);
        object.is_some_and(|object| object.is_missed || !object.kernels.is_empty())
    }

    /// Programs have had the time to come back for discarded objects: those that nobody has open go.
    pub(in crate::server) fn forsaken(&mut self, out: &mut Vec<Out>) {
        for object in self.objects.values_mut() {
            object.is_missed = false;
        }
        let unused = self.objects.keys().filter(|key| self.is_to_go(key));
        out.extend(unused.cloned().map(Out::Unused));
    }

    /// A discarded object goes, if that is so.
    pub(in crate::server) fn let_unused_go(&mut self, name: &Name, out: &mut Vec<Out>) {
        if self.is_to_go(name) {
            self.collect(name);
            self.dismiss((NOBODY, RequestId(0)), name, out);
        }
    }
}

/// Why what is begun cannot be had.
pub(in crate::server) fn is_begun(name: &Name) -> Refused {
    let text =
        format!("{name} has no size yet: a program has made it, and not said how large it is");
    (FailureKind::Begun, text)
}

/// What is said where an object is discarded that was before.
pub(in crate::server) fn was_removed(key: &Name) -> Refused {
    let name = key.plain();
    let text = format!("{name} was removed, and goes when nobody uses it any more");
    (FailureKind::NotFound, text)
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
    use crate::wire::control::{self, Handle, MachineCode, PageSize, Rights, SchedulerKind};

    const PEERS: u64 = 3;

    fn name() -> Name {
        "grid".parse().expect("a name")
    }

    /// By what an object is asked for.
    #[derive(Clone, Copy, Debug)]
    enum By {
        Name,
        /// The one of these exact spellings that there ever were.
        Key(usize),
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Begin,
        Create,
        Open(By),
        /// The first of those that it has open, or the last.
        Close(bool),
        Remove(By),
        Discard(By),
        Leave,
    }

    /// An object, and who has it open.
    #[derive(Debug, Default)]
    struct Known {
        open: BTreeSet<u64>,
        goes: bool,
    }

    /// What there is, by its exact spelling. The first of these is that of the name, which is the key
    /// of whatever is made while nothing else has it.
    #[derive(Debug)]
    struct Naive {
        begun: bool,
        there: BTreeMap<usize, Known>,
        spellings: usize,
    }

    type Outcome = Result<(), FailureKind>;

    impl Naive {
        fn new() -> Naive {
            Naive {
                begun: false,
                there: BTreeMap::new(),
                spellings: 1,
            }
        }

        fn living(&self) -> Option<usize> {
            let mut all = self.there.iter();
            all.find_map(|(key, it)| (!it.goes).then_some(*key))
        }

        /// Which one is asked for, or why there is none.
        fn which(&self, by: By) -> Result<usize, FailureKind> {
            let found = match by {
                By::Name => self.living(),
                By::Key(key) => Some(key % self.spellings),
            };
            match found.filter(|key| self.there.contains_key(key)) {
                Some(key) => Ok(key),
                None if self.begun && matches!(by, By::Name) => Err(FailureKind::Begun),
                None => Err(FailureKind::NotFound),
            }
        }

        /// What is to be answered; nothing where nobody is.
        fn obey(&mut self, peer: u64, step: Step) -> Option<Outcome> {
            let done = match step {
                Step::Begin | Step::Create if self.living().is_some() => Err(FailureKind::Exists),
                Step::Begin if self.begun => Err(FailureKind::Exists),
                Step::Begin => {
                    self.begun = true;
                    Ok(())
                }
                Step::Create => {
                    self.begun = false;
                    let is_new = self.there.contains_key(&0);
                    let key = if is_new { self.spellings } else { 0 };
                    self.spellings += usize::from(is_new);
                    self.there.insert(key, Known::default());
                    Ok(())
                }
                Step::Open(by) => self.which(by).map(|key| {
                    self.there.entry(key).or_default().open.insert(peer);
                }),
                Step::Close(first) => {
                    let mut open = self.there.values_mut().filter(|it| it.open.contains(&peer));
                    let one = if first { open.next() } else { open.next_back() };
                    let closed = one.map(|it| it.open.remove(&peer));
                    closed.map(drop).ok_or(FailureKind::NotFound)
                }
                Step::Remove(by) | Step::Discard(by) => match self.which(by) {
                    Err(FailureKind::Begun) => {
                        self.begun = false;
                        Ok(())
                    }
                    found => found.and_then(|key| self.remove(key, step)),
                },
                Step::Leave => {
                    for known in self.there.values_mut() {
                        known.open.remove(&peer);
                    }
                    self.there.retain(|_, it| !it.goes || !it.open.is_empty());
                    return None;
                }
            };
            self.there.retain(|_, it| !it.goes || !it.open.is_empty());
            Some(done)
        }

        fn remove(&mut self, key: usize, step: Step) -> Outcome {
            let known = self.there.entry(key).or_default();
            if known.open.is_empty() {
                self.there.remove(&key);
                return Ok(());
            }
            match step {
                Step::Discard(_) if known.goes => Err(FailureKind::NotFound),
                Step::Discard(_) => {
                    known.goes = true;
                    Ok(())
                }
                _ => Err(FailureKind::Busy),
            }
        }
    }

    /// The server, without links.
    struct Real {
        core: Core,
        /// All exact spellings that there ever were.
        spellings: Vec<Name>,
        /// What is open: whose, which of these, and what it is called.
        open: BTreeMap<(u64, usize), Handle>,
    }

    impl Real {
        fn new() -> Real {
            let mut core = Core::default();
            for peer in 0..PEERS {
                join(&mut core, peer);
            }
            Real {
                core,
                spellings: vec![name().exact()],
                open: BTreeMap::new(),
            }
        }

        fn name(&self, by: By) -> Name {
            match by {
                By::Key(key) => self.spellings[key % self.spellings.len()].clone(),
                By::Name => name(),
            }
        }

        fn obey(&mut self, peer: u64, step: Step) -> Option<Outcome> {
            let rights = Rights {
                read: true,
                write: true,
            };
            let mut of_it = self.open.range((peer, 0)..(peer + 1, 0));
            let request = match step {
                Step::Begin => Request::Begin { name: name() },
                Step::Create => Request::Create(object()),
                Step::Open(by) => Request::Open {
                    name: self.name(by),
                    rights,
                },
                Step::Close(first) => {
                    let one = if first {
                        of_it.next()
                    } else {
                        of_it.next_back()
                    };
                    let one = one.map(|(key, handle)| (*key, *handle));
                    let object = one.map_or(Handle(u32::MAX), |(_, handle)| handle);
                    one.and_then(|(key, _)| self.open.remove(&key));
                    Request::Close { object }
                }
                Step::Remove(by) => Request::Remove {
                    name: self.name(by),
                },
                Step::Discard(by) => Request::Discard {
                    name: self.name(by),
                },
                Step::Leave => {
                    let mut out = Vec::new();
                    let id = PeerId(peer + 1);
                    self.core
                        .left(id, quire_core::dsm::sync::Parting::Left, false, &mut out);
                    self.open.retain(|(of, _), _| *of != peer);
                    join(&mut self.core, peer);
                    self.settle(peer, out);
                    return None;
                }
            };
            let mut out = Vec::new();
            let id = RequestId(1);
            let message = Control::Request { id, request };
            let id = PeerId(peer + 1);
            if let Some(message) = self.core.resolve(id, message, &mut out) {
                self.core.says(id, message, &mut out);
            }
            let told = self.settle(peer, out);
            if let (Step::Create, Some(Ok(()))) = (step, told) {
                let exact = self.core.key_of(&name()).expect("it was made").exact();
                if !self.spellings.contains(&exact) {
                    self.spellings.push(exact);
                }
            }
            told
        }

        fn settle(&mut self, peer: u64, mut out: Vec<Out>) -> Option<Outcome> {
            let mut told = None;
            while let Some(next) = (!out.is_empty()).then(|| out.remove(0)) {
                match next {
                    Out::Unused(name) => self.core.let_unused_go(&name, &mut out),
                    Out::Send(PeerId(to), Control::Answer { answer, .. }) if to == peer + 1 => {
                        if let Ok(Answer::Opened {
                            object,
                            exact,
                            info,
                        }) = &answer
                        {
                            assert_eq!(info.name, name());
                            let key = self.spellings.iter().position(|it| it == exact);
                            let key = (peer, key.expect("it was made"));
                            // Once is enough.
                            if let Some(before) = self.open.insert(key, *object) {
                                let object = before;
                                let id = RequestId(2);
                                let request = Request::Close { object };
                                let close = Control::Request { id, request };
                                self.core.says(PeerId(to), close, &mut Vec::new());
                            }
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

    fn object() -> control::Object {
        control::Object {
            name: name(),
            size: Bytes(4096),
            page_size: PageSize::BASE,
            scheduler: SchedulerKind::Multi,
            machine: MachineCode(0),
            tags: Vec::new(),
        }
    }

    proptest! {
        /// Names and keys mean the same as where nothing but them is looked at, and no two objects
        /// have the same.
        #[test]
        fn names_are_as_in_a_naive_model(steps in vec((0..PEERS, step()), 0..80)) {
            let (mut naive, mut real) = (Naive::new(), Real::new());
            for (peer, step) in steps {
                prop_assert_eq!(naive.obey(peer, step), real.obey(peer, step), "{:?}", step);
                prop_assert_eq!(real.core.objects().count(), naive.there.len());
                let listed = real.core.list(None);
                let Answer::Listed { objects, .. } = listed else {
                    panic!("{listed:?}");
                };
                let names: BTreeSet<_> = objects.iter().map(|it| &it.name).collect();
                prop_assert_eq!(names.len(), naive.there.len());
                prop_assert_eq!(names.contains(&name()), naive.living().is_some());
            }
        }
    }

    fn by() -> impl Strategy<Value = By> {
        prop_oneof![Just(By::Name), (0..8_usize).prop_map(By::Key)]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Begin),
            Just(Step::Create),
            by().prop_map(Step::Open),
            any::<bool>().prop_map(Step::Close),
            by().prop_map(Step::Remove),
            by().prop_map(Step::Discard),
            Just(Step::Leave),
        ]
    }

    /// What has a tilde is no name of a new object.
    #[test]
    fn new_objects_have_plain_names() {
        let mut real = Real::new();
        for name in ["grid~", "grid~1"] {
            let name: Name = name.parse().expect("a spelling");
            let object = control::Object {
                name: name.clone(),
                ..object()
            };
            for request in [Request::Create(object), Request::Begin { name }] {
                let (id, mut out) = (RequestId(1), Vec::new());
                let message = Control::Request { id, request };
                let message = real.core.resolve(PeerId(1), message, &mut out);
                real.core.says(PeerId(1), message.expect("left"), &mut out);
                let told = real.settle(0, out);
                assert_eq!(told, Some(Err(FailureKind::Invalid)));
            }
        }
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
            for remove in [Step::Remove(By::Name), Step::Discard(By::Name)] {
                assert_eq!(real.obey(last, remove), Some(Err(FailureKind::Denied)));
            }
        }
    }
}
