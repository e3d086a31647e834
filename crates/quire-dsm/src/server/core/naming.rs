//! Objects that have one of a name and a size only.
//!
//! Programs make shared memory in two steps: it has a name first, then a size. Until then it is
//! *begun*: nobody else can make it, nobody can open it, and whoever gives it a size makes it. That is
//! known until this server ends; where it is joined to others, by the directory, and not here.
//! What is begun has a key, which has a number in any case: nobody has it open, so nothing is known here of
//! who has it when it is removed, and no other gets its key. The object that is made of it keeps that. Who
//! gives a size to what was removed makes a discarded object. A server that was started again has forgotten what
//! was begun, and tells that from what was removed by the key ([`KeyNumbers`]): what it makes of that has the name, if
//! nothing else has.
//!
//! And they remove memory that they use: it has no name any more for those who look for it, and goes
//! when nobody has it open. Such an object is *discarded*. Programs that have it open, whose children
//! open it, and whose links break, ask for it by the exact spelling of its key ([`Name`]); by its name
//! another object can be made at once, which gets another key while this one is there. Objects are kept by
//! their keys: [`Core::resolve`] finds those that requests ask for.

use std::collections::BTreeMap;

use super::super::backed::Asker;
use super::super::object::forked_children::ForkedChildren;
use super::super::object::{Object, Refused};
use super::{Core, MOST_OBJECTS, NOBODY, Out, PeerId, answer_with};
use crate::random::random;
use crate::wire::Control;
use crate::wire::control::{self, Answer, Failure, FailureKind, Handle, Name, Request, RequestId};

/// An object that is begun.
pub(super) struct Begun {
    /// Its key, which has a number, and is its own exact spelling.
    key: Name,
    /// As whom counts who began it.
    owner: String,
}

/// The numbers of keys that a server gives: in their last bits is one that it took when it was started.
pub(super) struct KeyNumbers {
    of_this_start: u64,
}

impl KeyNumbers {
    /// The bits that tell which start of a server it was; the others are any.
    const START: u64 = 0xffff;

    fn next(&self) -> u64 {
        random() & !Self::START | self.of_this_start
    }

    /// Whether a key may have its number from here.
    fn has_given(&self, key: &Name) -> bool {
        let number = key.number();
        number.is_some_and(|it| it & Self::START == self.of_this_start)
    }
}

impl Default for KeyNumbers {
    fn default() -> KeyNumbers {
        let of_this_start = random() & Self::START;
        KeyNumbers { of_this_start }
    }
}

/// All of them, by their names.
pub(super) type AllBegun = BTreeMap<Name, Begun>;

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
                let answer = self.ask_begun(id, &request, &asked);
                let answer = answer.unwrap_or_else(|| Err(super::not_found(&asked)));
                answer_with(id, number, answer, out);
                return None;
            }
            (None, ..) => {}
        }
        let id = number;
        Some(Control::Request { id, request })
    }

    /// What is begun that is asked for by its name, or by its key.
    fn begun_by(&self, asked: &Name) -> Option<&Begun> {
        let begun = self.begun.get(&asked.plain())?;
        (asked.is_plain() || begun.key == *asked).then_some(begun)
    }

    /// What is answered where a request asks for something that is begun; nothing where that is not so.
    fn ask_begun(
        &mut self,
        id: PeerId,
        request: &Request,
        asked: &Name,
    ) -> Option<Result<Answer, Refused>> {
        let begun = self.begun_by(asked)?;
        Some(match request.removes() {
            true => self.end_begun(id, &asked.plain()),
            false => tell_of_begun(request, &begun.key),
        })
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
        is_there.then(|| exists(name))
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
        let (key, owner) = (
            name.numbered(self.key_numbers.next()),
            peer.identity.clone(),
        );
        let exact = key.exact();
        self.begun.insert(name, Begun { key, owner });
        Ok(Answer::Begun { exact })
    }

    /// The key of a new object of a name: that of what is begun by it, if something is.
    pub(super) fn new_key(&self, name: &Name) -> Result<Name, Refused> {
        self.may_have(name)?;
        if let Some(begun) = self.begun.get(name) {
            return Ok(begun.key.clone());
        }
        self.may_be_more()?;
        Ok(name.numbered(self.key_numbers.next()))
    }

    /// A peer gives a size to what was begun.
    pub(super) fn give_size(&mut self, asker: Asker, info: control::Object, out: &mut Vec<Out>) {
        let owner = self.may_size(asker.0, &info);
        match owner.and_then(|owner| self.sized(info, owner)) {
            Ok(object) => self.admit(asker, object, out),
            Err(refused) => answer_with(asker.0, asker.1, Err(refused), out),
        }
    }

    /// As whom a peer would own an object that it makes of what was begun, if it may, as far as is known
    /// here.
    pub(in crate::server) fn may_size(
        &self,
        id: PeerId,
        info: &control::Object,
    ) -> Result<String, Refused> {
        let owner = self.owner_to_be(id)?;
        let key = &info.name;
        if key.key().as_ref() != Some(key) {
            let text = format!("{key} is no key of what was begun");
            return Err((FailureKind::Invalid, text));
        }
        if self.objects.contains_key(key) || self.keeping.is_busy_with(key) {
            return Err(exists(&key.plain()));
        }
        Object::new(info.clone(), owner.clone(), None)?;
        Ok(owner)
    }

    /// Whether a key is of what was begun before this server was started, and has its name still.
    fn is_forgotten(&self, key: &Name) -> bool {
        let name = key.plain();
        let is_free = self.is_taken(&name).is_none() && !self.begun.contains_key(&name);
        is_free && !self.key_numbers.has_given(key)
    }

    /// The object that is made of what was begun: a discarded one where that was removed.
    fn sized(&self, info: control::Object, owner: String) -> Result<Object, Refused> {
        let is_begun = self.begun_by(&info.name).is_some();
        if !is_begun {
            self.may_be_more()?;
        }
        let mut object = self.granted(Object::new(info, owner, None)?);
        object.is_discarded = !is_begun && !self.is_forgotten(&object.info.name);
        object.new.begin();
        Ok(object)
    }

    /// Whether there may be one more object.
    pub(in crate::server) fn may_be_more(&self) -> Result<(), Refused> {
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
        // Nobody may come for it.
        self.misses |= object.is_awaited();
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

    /// What is begun has no name any more, if the peer may remove it. Nor has what is made of it, if it
    /// has got its size, and the store has not got that yet.
    fn end_begun(&mut self, id: PeerId, name: &Name) -> Result<Answer, Refused> {
        let begun = self.begun.get(name).ok_or_else(|| super::not_found(name))?;
        let owner = &begun.owner;
        let peer = self.peers.get(&id);
        if peer.is_none_or(|peer| peer.identity != *owner) {
            return Err(super::belongs(name, owner));
        }
        if let Some(begun) = self.begun.remove(name) {
            self.keeping.discard_underway(&begun.key);
        }
        Ok(Answer::Done)
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
            object.missed.begin();
            self.misses = true;
        }
    }

    /// A peer forks, or is the child: it says so of what it has open.
    pub(super) fn forked_child(
        &mut self,
        id: PeerId,
        object: Handle,
        does: impl FnOnce(&mut ForkedChildren, &str),
    ) {
        let peer = self.peers.get(&id);
        let open = peer.and_then(|peer| Some((peer, peer.open.get(&object)?)));
        // What was closed meanwhile is used by nobody on its behalf.
        if let Some((peer, open)) = open
            && let Some(object) = self.objects.get_mut(&open.name)
        {
            does(&mut object.forked_children, &peer.identity);
            self.misses |= object.forked_children.are_awaited();
        }
    }

    /// Whether somebody is waited for since this was last asked: [`Core::forsaken`] is due in a lease.
    pub(in crate::server) fn misses(&mut self) -> bool {
        std::mem::take(&mut self.misses)
    }

    /// Whether a discarded object would be used, as it is open or may be again.
    pub(in crate::server) fn is_used(&self, name: &Name) -> bool {
        let object = self.objects.get(name);
        object.is_some_and(|object| object.is_awaited() || !object.kernels.is_empty())
    }

    /// A lease is over: discarded objects go that nobody has open, if programs have had the time to
    /// come back for them. Whether some are still waited for.
    pub(in crate::server) fn forsaken(&mut self, out: &mut Vec<Out>) -> bool {
        for object in self.objects.values_mut() {
            object.missed.pass();
            object.new.pass();
            object.forked_children.pass();
        }
        let unused = self.objects.keys().filter(|name| self.is_to_go(name));
        out.extend(unused.cloned().map(Out::Unused));
        self.objects.values().any(Object::is_awaited)
    }

    /// A discarded object goes, if that is so.
    pub(in crate::server) fn let_unused_go(&mut self, name: &Name, out: &mut Vec<Out>) {
        if self.is_to_go(name) {
            self.collect(name);
            self.dismiss((NOBODY, RequestId(0)), name, out);
        }
    }
}

/// What a request is answered that asks for what is begun and has this key, and does not remove it.
pub(in crate::server) fn tell_of_begun(request: &Request, key: &Name) -> Result<Answer, Refused> {
    match request {
        Request::Statistics { .. } => Ok(Answer::Begun { exact: key.exact() }),
        _ => {
            let Failure { kind, text } = Failure::begun(&key.plain());
            Err((kind, text))
        }
    }
}

/// What is said where there is an object that somebody wants to make.
fn exists(name: &Name) -> Refused {
    let text = format!("there is an object {name} already");
    (FailureKind::Exists, text)
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
    use crate::wire::control::{self, MachineCode, PageSize, Rights, SchedulerKind};

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
        /// To the one with this of the exact spellings that there ever were.
        GiveSize(usize),
        Look(By),
        Open(By),
        /// The first of those that it has open, or the last.
        Close(bool),
        Remove(By),
        Discard(By),
        /// A child will open what it has open.
        Fork,
        /// It is such a child.
        Come,
        Leave,
        /// Those have had their time who were about to open something.
        Forsake,
    }

    /// An object, and who has it open.
    #[derive(Debug, Default)]
    struct Known {
        open: BTreeSet<u64>,
        goes: bool,
        /// Its maker has not opened it.
        new: bool,
        /// So many children have not opened it.
        forked_children: u64,
    }

    impl Known {
        fn is_gone(&self) -> bool {
            self.goes && self.open.is_empty() && !self.is_awaited()
        }

        fn is_awaited(&self) -> bool {
            self.new || self.forked_children > 0
        }
    }

    /// What there is, by its exact spelling. The first of these is that of the name, which is the key
    /// of nothing that is made.
    #[derive(Debug)]
    struct Naive {
        begun: Option<usize>,
        there: BTreeMap<usize, Known>,
        spellings: usize,
    }

    /// What is done, with the key of what is begun, and whether what got its size has no name.
    type Outcome = Result<(Option<usize>, bool), FailureKind>;

    const DONE: Outcome = Ok((None, false));

    impl Naive {
        fn new() -> Naive {
            Naive {
                begun: None,
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
                None if self.is_begun(by) => Err(FailureKind::Begun),
                None => Err(FailureKind::NotFound),
            }
        }

        fn is_begun(&self, by: By) -> bool {
            match by {
                By::Name => self.begun.is_some(),
                By::Key(key) => self.begun == Some(key % self.spellings),
            }
        }

        fn new_spelling(&mut self) -> usize {
            self.spellings += 1;
            self.spellings - 1
        }

        /// What is to be answered; nothing where nobody is.
        fn obey(&mut self, peer: u64, step: Step) -> Option<Outcome> {
            let done = match step {
                Step::Begin | Step::Create if self.living().is_some() => Err(FailureKind::Exists),
                Step::Begin if self.begun.is_some() => Err(FailureKind::Exists),
                Step::Begin => {
                    self.begun = Some(self.new_spelling());
                    Ok((self.begun, false))
                }
                Step::Create => {
                    let begun = self.begun.take();
                    let key = begun.unwrap_or_else(|| self.new_spelling());
                    self.there.insert(key, Known::default());
                    DONE
                }
                Step::GiveSize(key) => self.give_size(key % self.spellings),
                Step::Look(by) => match self.which(by) {
                    Err(FailureKind::Begun) => Ok((self.begun, false)),
                    found => found.and(DONE),
                },
                Step::Open(by) => self.which(by).and_then(|key| {
                    let known = self.there.entry(key).or_default();
                    known.open.insert(peer);
                    known.new = false;
                    DONE
                }),
                Step::Close(first) => {
                    let mut open = self.there.values_mut().filter(|it| it.open.contains(&peer));
                    let one = if first { open.next() } else { open.next_back() };
                    let closed = one.map(|it| it.open.remove(&peer));
                    closed.ok_or(FailureKind::NotFound).and(DONE)
                }
                Step::Remove(by) | Step::Discard(by) => match self.which(by) {
                    Err(FailureKind::Begun) => {
                        self.begun = None;
                        DONE
                    }
                    found => found.and_then(|key| self.remove(key, step)),
                },
                Step::Fork | Step::Come => {
                    let there = self.there.values_mut();
                    for known in there.filter(|it| it.open.contains(&peer)) {
                        known.forked_children = match step {
                            Step::Fork => known.forked_children + 1,
                            _ => known.forked_children.saturating_sub(1),
                        };
                    }
                    return None;
                }
                Step::Leave => {
                    for known in self.there.values_mut() {
                        known.open.remove(&peer);
                    }
                    self.there.retain(|_, it| !it.is_gone());
                    return None;
                }
                Step::Forsake => {
                    for known in self.there.values_mut() {
                        (known.new, known.forked_children) = (false, 0);
                    }
                    self.there.retain(|_, it| !it.is_gone());
                    return None;
                }
            };
            self.there.retain(|_, it| !it.is_gone());
            Some(done)
        }

        fn give_size(&mut self, key: usize) -> Outcome {
            if key == 0 {
                return Err(FailureKind::Invalid);
            }
            if self.there.contains_key(&key) {
                return Err(FailureKind::Exists);
            }
            let goes = self.begun.take_if(|it| *it == key).is_none();
            let known = Known {
                goes,
                new: true,
                ..Known::default()
            };
            self.there.insert(key, known);
            Ok((None, goes))
        }

        fn remove(&mut self, key: usize, step: Step) -> Outcome {
            let known = self.there.entry(key).or_default();
            let is_discarded = matches!(step, Step::Discard(_));
            if known.open.is_empty() && !(known.is_awaited() && is_discarded) {
                self.there.remove(&key);
                return DONE;
            }
            match step {
                Step::Discard(_) if known.goes => Err(FailureKind::NotFound),
                Step::Discard(_) => {
                    known.goes = true;
                    DONE
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
                Step::GiveSize(key) => Request::GiveSize(control::Object {
                    name: self.name(By::Key(key)),
                    ..object()
                }),
                Step::Look(by) => Request::Statistics {
                    name: self.name(by),
                    pages: None,
                },
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
                Step::Fork | Step::Come => {
                    let mut out = Vec::new();
                    for object in of_it.map(|(_, handle)| *handle) {
                        let told = match step {
                            Step::Fork => Control::ChildComes { object },
                            _ => Control::ChildCame { object },
                        };
                        self.core.says(PeerId(peer + 1), told, &mut out);
                    }
                    self.settle(peer, out);
                    return None;
                }
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
                Step::Forsake => {
                    let mut out = Vec::new();
                    while self.core.forsaken(&mut out) {}
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
            if let (Step::Create, Some(Ok(_))) = (step, told) {
                let exact = self.core.key_of(&name()).expect("it was made").exact();
                if !self.spellings.contains(&exact) {
                    self.spellings.push(exact);
                }
            }
            told
        }

        /// Which of the exact spellings it is, which may be a new one.
        fn spelling(&mut self, exact: Name) -> usize {
            let known = self.spellings.iter().position(|it| *it == exact);
            known.unwrap_or_else(|| {
                self.spellings.push(exact);
                self.spellings.len() - 1
            })
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
                            ..
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
                        told = Some(match answer {
                            Ok(Answer::Begun { exact }) => Ok((Some(self.spelling(exact)), false)),
                            Ok(Answer::Sized { is_removed }) => Ok((None, is_removed)),
                            answer => answer.map_err(|failure| failure.kind).and(DONE),
                        });
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
            (0..8_usize).prop_map(Step::GiveSize),
            by().prop_map(Step::Look),
            Just(Step::Forsake),
            by().prop_map(Step::Open),
            any::<bool>().prop_map(Step::Close),
            by().prop_map(Step::Remove),
            by().prop_map(Step::Discard),
            Just(Step::Fork),
            Just(Step::Come),
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

    /// What has got its size is there until who gave it that opens it, though its name is removed
    /// meanwhile; and no longer if nobody comes.
    #[test]
    fn what_got_its_size_waits_for_its_maker() {
        for comes in [true, false] {
            let mut real = Real::new();
            assert_eq!(real.obey(0, Step::Begin), Some(Ok((Some(1), false))));
            assert_eq!(real.obey(0, Step::GiveSize(1)), Some(DONE));
            assert_eq!(real.obey(1, Step::Discard(By::Name)), Some(DONE));
            assert!(real.core.misses(), "it is looked at again");
            if comes {
                assert_eq!(real.obey(0, Step::Open(By::Key(1))), Some(DONE));
            }
            real.obey(1, Step::Forsake);
            assert_eq!(real.core.objects().count(), usize::from(comes));
        }
    }

    /// A server that was started again gives a name to what was begun before, if nothing else has it.
    #[test]
    fn what_was_begun_before_a_restart_has_its_name() {
        // Two starts have the same number once in so many times.
        crate::random::repeat_numbers(7);
        for is_taken in [false, true] {
            let mut real = Real::new();
            assert_eq!(real.obey(0, Step::Begin), Some(Ok((Some(1), false))));
            real.core = Real::new().core;
            if is_taken {
                assert_eq!(real.obey(1, Step::Create), Some(DONE));
            }
            assert_eq!(real.obey(0, Step::GiveSize(1)), Some(Ok((None, is_taken))));
            let named = real.core.key_of(&name());
            let is_it = named.is_some_and(|key| key.exact() == real.spellings[1]);
            assert_eq!(is_it, !is_taken);
        }
    }

    /// Each that may come back for something has as long for that, whoever else is missed meanwhile.
    #[test]
    fn what_is_missed_waits_for_some_leases() {
        let mut core = Core::default();
        let names = ["grid~1", "grid~2"].map(|name| name.parse::<Name>().expect("a key"));
        for key in &names {
            let mut object = Object::new(object(), "uid:7".into(), None).expect("it is right");
            object.is_discarded = true;
            core.put(key.clone(), object);
        }
        let goes = |core: &mut Core| {
            let mut out = Vec::new();
            let goes_on = core.forsaken(&mut out);
            let gone = out.into_iter().filter_map(|out| match out {
                Out::Unused(name) => core.objects.remove(&name).map(|_| name),
                _ => None,
            });
            (gone.collect::<Vec<_>>(), goes_on)
        };
        core.miss(&names[0]);
        assert!(core.misses());
        core.miss(&names[1]);
        assert_eq!(goes(&mut core), (vec![], true));
        core.miss(&names[1]);
        for _ in 0..3 {
            assert_eq!(goes(&mut core), (vec![], true));
        }
        assert_eq!(goes(&mut core), (vec![names[0].clone()], true));
        assert_eq!(goes(&mut core), (vec![names[1].clone()], false));
    }

    /// What is begun or to go is another one's as much as an object is.
    #[test]
    fn only_who_made_it_removes_it() {
        let mut real = Real::new();
        let stranger = Peer::new("stranger".into(), Machine::native());
        real.core.joined(PeerId(PEERS), stranger);
        let last = PEERS - 1;
        for make in [Step::Begin, Step::Create] {
            assert!(matches!(real.obey(0, make), Some(Ok(_))));
            for remove in [Step::Remove(By::Name), Step::Discard(By::Name)] {
                assert_eq!(real.obey(last, remove), Some(Err(FailureKind::Denied)));
            }
        }
    }
}
