//! Where a client goes on when it cannot stay where it is: its servers, one after the other.
//!
//! After a link broke, a server is asked for all objects that are open before any of them is
//! used there. Where one is refused, the other servers are tried first: it may be theirs. When
//! half of the time is over for which touches wait, a server that has some of them is good
//! enough; the others fail then, with the reason.
//!
//! Whoever has no object open takes a question to the next server where one refuses it
//! because another one has the object.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use quire_core::dsm::kernel;

use super::asking::Awaited;
use super::commands::{Found, Opened, Reply, Wanted};
use super::opening::Form;
use super::safety::Safety;
use super::{Carrier, Key};
use crate::client::ClientError;
use crate::link::{Address, Addresses, Links, Seldom};
use crate::wire::control::{self, Answer, Failure, FailureKind, Handle, Request};

/// The servers of a client, of which it uses one.
pub(super) struct Servers {
    addresses: Addresses,
    /// The one that is used or tried.
    at: usize,
    /// So many were tried in vain since one was good enough.
    in_vain: usize,
    /// Why they were, until the first one answers, and whether the system does not let this user connect.
    whys: Vec<(String, String, bool)>,
    /// What is told of each that is lost or cannot be reached.
    told: BTreeMap<usize, Seldom>,
    /// Since when no server has been good enough.
    since: Option<Instant>,
}

impl Servers {
    pub fn new(addresses: Addresses) -> Servers {
        Servers {
            addresses,
            at: 0,
            in_vain: 0,
            whys: Vec::new(),
            told: BTreeMap::new(),
            since: None,
        }
    }

    /// The one that is used or tried.
    pub fn current(&self) -> &Address {
        self.addresses.get(self.at)
    }

    /// How many there are.
    pub const fn count(&self) -> usize {
        self.addresses.count()
    }

    /// Goes on to the next one. Says whether all were tried by now.
    fn go_on(&mut self, now: Instant) -> bool {
        self.since.get_or_insert(now);
        self.at = (self.at + 1) % self.count();
        self.in_vain += 1;
        self.in_vain.is_multiple_of(self.count())
    }

    /// Whether none was tried twice since one was good enough: what is wrong with each is told
    /// once.
    pub const fn is_first_round(&self) -> bool {
        self.in_vain <= self.addresses.count()
    }

    /// The one that was used or tried is not there: one line, and then one a minute for each.
    fn tell(&mut self, now: Instant, why: &str) {
        let told = self.told.entry(self.at).or_default();
        if let Some(more) = told.due(now) {
            tracing::warn!("{}: {why}; connecting again{more}", self.current());
        }
    }

    /// Why none can be reached.
    fn unreachable(&self) -> ClientError {
        let is_denied = self.whys.iter().all(|(.., denied)| *denied);
        let mut whys = self.whys.iter().cloned();
        let (address, mut why, _) = whys.next().unwrap_or_default();
        for (address, also, _) in whys {
            why = format!("{why}; {address}: {also}");
        }
        ClientError::Unreachable {
            address,
            why,
            is_denied,
        }
    }

    /// The one that is used is good enough. A line says so where one said that there was none.
    fn stay(&mut self) {
        (self.in_vain, self.since) = (0, None);
        let told = self.told.values_mut();
        if told.fold(false, |any, told| told.over() | any) {
            tracing::warn!("{}: connected again", self.current());
        }
    }

    /// Whether one that has some objects and refuses others is good enough.
    fn is_good_enough(&self, now: Instant, reconnect: Duration, has_some: bool) -> bool {
        let waited = self.since.map_or(reconnect, |since| now - since);
        self.count() == 1 || waited >= reconnect || has_some && waited >= reconnect / 2
    }
}

/// What a server has answered so far that is asked for the open objects.
#[derive(Default)]
pub(super) struct Reopening {
    /// So many answers are missing.
    missing: usize,
    /// Objects that it has, and what they are called on this link.
    found: Vec<(Key, Handle)>,
    /// Shared copies that it has, which go on at once.
    attached: usize,
    /// Objects that it refuses, and why.
    refused: Vec<(Key, String)>,
    /// Those of them that are not as they were.
    changed: BTreeSet<Key>,
}

/// A question that may be taken from server to server.
pub(super) struct Question {
    what: What,
    /// What the first server said that refused.
    refused: Option<Failure>,
    /// So many servers may answer it, with the one that is asked.
    left: usize,
}

/// What is asked.
pub(super) enum What {
    Open {
        wanted: Wanted,
        reply: Reply<Opened>,
    },
    /// Something about one object.
    Ask {
        request: Request,
        reply: Reply<Answer>,
    },
}

impl Question {
    /// It cannot be had.
    pub fn fail(self, error: ClientError) {
        let error = self.refused.map_or(error, ClientError::Refused);
        // Who waited may have gone.
        match self.what {
            What::Open { reply, .. } => drop(reply.send(Err(error))),
            What::Ask { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}

/// Whether a request is about one object, so that it can be asked of another server when one
/// does not have it.
pub(super) const fn is_about_an_object(request: &Request) -> bool {
    matches!(
        request,
        Request::Statistics { .. }
            | Request::Hottest { .. }
            | Request::Remove { .. }
            | Request::Discard { .. }
            | Request::Grant { .. }
            | Request::Tag { .. }
    )
}

/// Whoever opens an object is told what programs before it have lost.
fn tell_of_lost(info: &control::Object, lost: u64) {
    if lost > 0 {
        let name = &info.name;
        tracing::error!(
            "{name}: what programs wrote to {lost} of its pages is lost: they are gone and gave \
             nothing back; these pages are as they were before (quire object stat {name})"
        );
    }
}

impl Carrier {
    /// The server cannot be reached, or is left: the next one is tried.
    pub(super) fn failed(&mut self, now: Instant, why: &str, is_denied: bool) {
        if self.ready.is_none() && !self.is_over {
            self.servers.tell(now, why);
        }
        let address = self.servers.current().to_string();
        let all_tried = self.servers.go_on(now);
        if let Some(mut question) = self.taken.take() {
            question.left -= 1;
            match question.left {
                0 => question.fail(self.unreachable()),
                _ => self.taken = Some(question),
            }
        }
        match self.ready.take() {
            Some(ready) => {
                self.servers.whys.push((address, why.to_owned(), is_denied));
                match all_tried {
                    true => {
                        self.is_over = true;
                        // Who waited may have gone.
                        let _ = ready.send(Err(self.servers.unreachable()));
                    }
                    false => (self.ready, self.again) = (Some(ready), Some(now)),
                }
            }
            None => {
                let pause = if all_tried {
                    super::AGAIN
                } else {
                    Duration::ZERO
                };
                self.again = Some(now + pause);
            }
        }
    }

    /// Asks a server that is new for the objects that are open.
    pub(super) fn reopen(&mut self, links: &mut Links) {
        let lost = self.attached.iter().filter(|(_, it)| it.is_lost());
        let own = self.objects.keys();
        let again = own.chain(lost.map(|(key, _)| key)).copied().collect();
        self.reopening = Reopening::default();
        self.ask_again(links, again);
        self.stay_or_leave(links);
    }

    /// Asks the server for objects that have no handle on this link.
    pub(super) fn ask_again(&mut self, links: &mut Links, keys: Vec<Key>) {
        self.reopening.missing += keys.len();
        for key in keys {
            let own = self.objects.get(&key).map(|object| {
                let (name, rights) = (object.exact.clone(), object.rights);
                Request::Open { name, rights }
            });
            let request = own.or_else(|| Some(self.attached.get(&key)?.again()));
            match request {
                Some(request) => self.ask(links, request, Awaited::Again(key)),
                None => self.reopening.missing -= 1,
            }
        }
    }

    /// The server has answered for an object that was open.
    pub(super) fn reopened(
        &mut self,
        links: &mut Links,
        key: Key,
        answer: Result<Answer, Failure>,
        descriptors: Vec<OwnedFd>,
    ) {
        let why = match (answer, self.attached.get_mut(&key)) {
            (Ok(Answer::Attached { object, info, .. }), Some(attached)) => {
                match attached.is_again(object, Form::from(&info), descriptors) {
                    Ok(written) => {
                        self.reopening.attached += 1;
                        match written {
                            Some(written) => self.bring_of_server(links, key, written),
                            None => self.attached_goes_on(links, key),
                        }
                        None
                    }
                    Err(why) => {
                        self.ask(links, Request::Close { object }, Awaited::nobody());
                        Some(why.to_string())
                    }
                }
            }
            (Ok(Answer::Opened { object, info, .. }), None) => match self.is_changed(key, &info) {
                false => {
                    self.reopening.found.push((key, object));
                    None
                }
                true => {
                    self.ask(links, Request::Close { object }, Awaited::nobody());
                    self.reopening.changed.insert(key);
                    Some(ClientError::Changed(info.name).to_string())
                }
            },
            (Ok(Answer::Opened { object, .. }), Some(_)) => {
                self.ask(links, Request::Close { object }, Awaited::nobody());
                Some("the server does not share its pages any more".to_owned())
            }
            (Err(failure), _) => {
                if failure.kind == FailureKind::NotFound && self.is_unique(key) {
                    self.reopening.changed.insert(key);
                }
                Some(failure.to_string())
            }
            (Ok(other), _) => Some(format!("the server answers {other:?}")),
        };
        let refused = why.map(|why| (key, why));
        self.reopening.refused.extend(refused);
        self.reopening.missing = self.reopening.missing.saturating_sub(1);
        self.stay_or_leave(links);
    }

    /// When the server has answered for all objects: they go on there, or the next server is
    /// asked.
    fn stay_or_leave(&mut self, links: &mut Links) {
        let reopening = &self.reopening;
        if reopening.missing > 0 {
            return;
        }
        let has_some = !reopening.found.is_empty() || reopening.attached > 0;
        let (now, reconnect) = (links.now(), self.reconnect());
        let is_wanted = |(key, _): &&(Key, String)| !self.has_failed(*key);
        if let Some((key, why)) = reopening.refused.iter().find(is_wanted)
            && let Some(link) = self.link
            && !self.servers.is_good_enough(now, reconnect, has_some)
        {
            let name = self.name(*key);
            if self.servers.is_first_round() {
                tracing::warn!("{}: {name}: {why}", self.servers.current());
            }
            return links.close(link, "another server may have an object that is open");
        }
        self.servers.stay();
        let reopening = mem::take(&mut self.reopening);
        for (key, handle) in reopening.found {
            self.go_on(links, key, handle);
        }
        for (key, why) in reopening.refused {
            tracing::error!("{} cannot be opened again: {why}", self.name(key));
            self.give_up(links, key, &why);
            if reopening.changed.contains(&key) {
                self.with(links, key, |cache, way| {
                    cache.end(kernel::Failure::Changed, way)
                });
            }
        }
    }

    /// Whether an object that was open is another one now.
    fn is_changed(&self, key: Key, info: &control::Object) -> bool {
        let object = self.objects.get(&key);
        object.is_some_and(|object| object.form != Form::from(info))
    }

    /// Whether there will never be another object by the key of one.
    fn is_unique(&self, key: Key) -> bool {
        let key = self.objects.get(&key).and_then(|object| object.exact.key());
        key.is_some_and(|key| !key.is_plain())
    }

    /// An object that was found again goes on.
    fn go_on(&mut self, links: &mut Links, key: Key, handle: Handle) {
        if !self.bring_own(links, key, handle) {
            self.resume(links, key, handle);
        }
    }

    /// What was written before is brought: what is waited for is asked for.
    pub(super) fn resume(&mut self, links: &mut Links, key: Key, handle: Handle) {
        let number = self.number;
        let Some(object) = self.objects.get_mut(&key) else {
            // It was closed meanwhile.
            return self.ask(links, Request::Close { object: handle }, Awaited::nobody());
        };
        (object.handle, object.safety) = (Some(handle), Safety::default());
        object.cache.begin_session(number, handle);
        self.handles.insert(handle, key);
        self.with(links, key, |cache, way| cache.linked(way));
    }

    /// Whether the memory of an object has failed for good, or it is closed.
    fn has_failed(&self, key: Key) -> bool {
        let own = self.objects.get(&key);
        let own = own.is_some_and(|object| object.cache.ended().is_none());
        !own && !self.attached.contains_key(&key)
    }

    fn name(&self, key: Key) -> String {
        let own = self.objects.get(&key).map(|object| &object.name);
        let name = own.or_else(|| Some(self.attached.get(&key)?.name()));
        name.map(ToString::to_string).unwrap_or_default()
    }

    /// Asks something that another server may know where this one does not.
    pub(super) fn begin(&mut self, links: &mut Links, what: What) {
        let question = Question {
            what,
            refused: None,
            left: self.servers.count(),
        };
        self.put(links, question);
    }

    /// Puts a question to the server.
    pub(super) fn put(&mut self, links: &mut Links, question: Question) {
        let request = match &question.what {
            What::Open { wanted, .. } => {
                let (name, rights) = (wanted.name.clone(), wanted.rights);
                match self.shares {
                    true => Request::Attach { name, rights },
                    false => Request::Open { name, rights },
                }
            }
            What::Ask { request, .. } => request.clone(),
        };
        self.ask(links, request, Awaited::Question(question));
    }

    /// The server has answered a question.
    pub(super) fn told(
        &mut self,
        links: &mut Links,
        question: Question,
        answer: Result<Answer, Failure>,
        descriptors: Vec<OwnedFd>,
    ) {
        // Who waited may have gone.
        match (question.what, answer) {
            (what, Err(failure)) => self.refused(links, Question { what, ..question }, failure),
            (What::Ask { reply, .. }, Ok(answer)) => drop(reply.send(Ok(answer))),
            (
                What::Open { wanted, reply },
                Ok(Answer::Opened {
                    object,
                    exact,
                    info,
                    lost,
                }),
            ) => {
                tell_of_lost(&info, lost);
                let is = Found { exact, info };
                let opened = self.opened(links, Some(object), is, wanted);
                if opened.is_err() {
                    self.ask(links, Request::Close { object }, Awaited::nobody());
                }
                let _ = reply.send(opened);
            }
            (
                What::Open { wanted, reply },
                Ok(Answer::Attached {
                    object,
                    exact,
                    info,
                    lost,
                }),
            ) => {
                tell_of_lost(&info, lost);
                let is = Found { exact, info };
                self.attached(links, (object, is), descriptors, (wanted, reply));
            }
            (What::Open { reply, .. }, Ok(_)) => drop(reply.send(Err(ClientError::Confused))),
        }
    }

    /// The server refuses. Where another one may have the object, and nothing of this side
    /// depends on this link, that one is asked.
    fn refused(&mut self, links: &mut Links, mut question: Question, failure: Failure) {
        let is_elsewhere = failure.kind == FailureKind::Unavailable && question.left > 1;
        let is_free =
            self.objects.is_empty() && self.attached.is_empty() && self.awaited.is_empty();
        match self.link {
            Some(link) if is_elsewhere && is_free => {
                question.refused.get_or_insert(failure);
                self.taken = Some(question);
                links.close(link, "another server may have the object");
            }
            _ => question.fail(failure.into()),
        }
    }
}
