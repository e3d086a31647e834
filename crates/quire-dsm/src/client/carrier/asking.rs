//! What the server is asked, and who waits for the answer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, SendError};

use super::commands::{Opened, Reply, Told};
use super::elsewhere::Question;
use super::{Carrier, Key};
use crate::client::ClientError;
use crate::client::attached::Attached;
use crate::link::turn::Links;
use crate::node::Mapping;
use crate::node::ledger::Ledger;
use crate::wire::Control;
use crate::wire::control::{Answer, Failure, Handle, MappingNumber, Request, RequestId};

/// Whose answer it is.
pub(super) enum Awaited {
    Answer(Reply<Answer>),
    /// Whatever it is.
    Told(Told),
    /// Of whoever wants to know of an object, or to open it.
    Question(Question),
    /// An object is opened again after its link broke.
    Again(Key),
    /// The server is to know of a mapping of an object.
    Registered {
        key: Key,
        mapping: MappingNumber,
        new: New,
    },
    /// An object is closed, and what was written is safe.
    Close(Reply<()>),
    /// The server knows a mapping no more, whatever it says.
    Unregistered(Reply<()>),
    /// An object is closed, and what was written is safe: nobody need bring it.
    CloseKept(Reply<()>, Arc<Ledger>),
    /// What was written over a link that has ended may be brought.
    Claimed(u64),
    /// It is brought.
    Settled(u64),
    /// What was to be given back is, and is safe where that was asked for.
    Sync(Reply<()>),
    /// So many pages of an object that were given back are safe.
    Safe(Key, u64),
}

/// Whether a mapping that is registered is a new one, and who waits for it.
pub(super) enum New {
    /// The program has it, and the link is a new one.
    No,
    /// That of an object that is opened.
    Whole(Opened, Reply<Opened>),
    /// One more part of an object.
    Part(Mapping, Reply<(Mapping, u64)>),
}

impl New {
    /// It is not to be had.
    pub(super) fn refuse(self, why: ClientError) {
        // Who waited may have gone.
        match self {
            New::No => {}
            New::Whole(_, reply) => drop(reply.send(Err(why))),
            New::Part(_, reply) => drop(reply.send(Err(why))),
        }
    }
}

impl Awaited {
    /// An object is closed, and nobody waits for that.
    pub(super) fn nobody() -> Awaited {
        Awaited::Close(mpsc::channel().0)
    }
}

impl Carrier {
    /// Asks the server. Without a link, who waits is told so.
    pub(super) fn ask(&mut self, links: &mut Links, request: Request, awaited: Awaited) {
        self.ask_with(links, request, Vec::new(), awaited);
    }

    pub(super) fn ask_with(
        &mut self,
        links: &mut Links,
        request: Request,
        with: Vec<OwnedFd>,
        awaited: Awaited,
    ) {
        self.last_request += 1;
        let id = RequestId(self.last_request);
        let link = self.usable_link();
        let request = Control::Request { id, request };
        let sent = link.is_some_and(|link| links.send_with(link, request, with));
        match sent {
            true => drop(self.awaited.insert(id, awaited)),
            false => self.refuse(awaited),
        }
    }

    pub(super) fn refuse(&mut self, awaited: Awaited) {
        let why = self.unreachable();
        self.refuse_as(awaited, why);
    }

    /// The same where an object is not to be had on this link, or never again.
    pub(super) fn refuse_of(&mut self, key: Key, awaited: Awaited) {
        let failure = self.attached.get(&key).and_then(Attached::failure);
        let why = failure.unwrap_or_else(|| self.unreachable());
        self.refuse_as(awaited, why);
    }

    fn refuse_as(&mut self, awaited: Awaited, why: ClientError) {
        // Who waited may have gone.
        match awaited {
            Awaited::Answer(reply) => drop(reply.send(Err(why))),
            Awaited::Question(question) => question.fail(why),
            Awaited::Unregistered(reply) => drop(reply.send(Ok(()))),
            Awaited::Close(reply) | Awaited::CloseKept(reply, _) | Awaited::Sync(reply) => {
                drop(reply.send(Err(why)));
            }
            Awaited::Registered { key, mapping, new } => {
                match (&new, self.attached.get_mut(&key)) {
                    (New::Whole(..), _) => drop(self.attached.remove(&key)),
                    (New::Part(..), Some(attached)) => drop(attached.forget(mapping)),
                    (New::Part(..), None) | (New::No, _) => {}
                }
                new.refuse(why);
            }
            // They are asked again over the next link.
            Awaited::Told(_)
            | Awaited::Again(_)
            | Awaited::Claimed(_)
            | Awaited::Settled(_)
            | Awaited::Safe(..) => {}
        }
    }

    /// Asks something about an object that is open.
    pub(super) fn ask_of(
        &mut self,
        links: &mut Links,
        key: Key,
        request: impl FnOnce(Handle) -> Request,
        awaited: Awaited,
    ) {
        match self.handle(key) {
            Some(object) => self.ask(links, request(object), awaited),
            None => self.refuse_of(key, awaited),
        }
    }

    /// The server has answered.
    pub(super) fn answered(
        &mut self,
        links: &mut Links,
        id: RequestId,
        answer: Result<Answer, Failure>,
        descriptors: Vec<OwnedFd>,
    ) {
        let Some(awaited) = self.awaited.remove(&id) else {
            return;
        };
        // Who waited may have gone.
        match (awaited, answer) {
            (Awaited::Answer(reply), answer) => drop(reply.send(answer.map_err(Into::into))),
            (Awaited::Told(told), _) => drop(told),
            (Awaited::CloseKept(reply, ledger), answer) => {
                ledger.end();
                drop(reply.send(answer.map(drop).map_err(Into::into)));
            }
            (Awaited::Claimed(number), answer) => self.claimed(links, number, answer),
            (Awaited::Settled(number), answer) => self.settled(links, number, answer),
            (Awaited::Close(reply), answer) => {
                let closed = answer.map(drop).map_err(Into::into);
                // Where nobody waits, it is said here.
                if let Err(SendError(Err(error))) = reply.send(closed) {
                    tracing::error!("an object was closed, but: {error}");
                }
            }
            (Awaited::Unregistered(reply), _) => drop(reply.send(Ok(()))),
            (Awaited::Sync(reply), answer) => {
                let _ = reply.send(answer.map(drop).map_err(Into::into));
            }
            (Awaited::Safe(key, count), answer) => {
                self.is_safe(key, answer.is_ok().then_some(count));
            }
            (Awaited::Question(question), answer) => {
                self.told(links, question, answer, descriptors);
            }
            (Awaited::Registered { key, mapping, new }, answer) => {
                self.registered(links, (key, mapping), new, answer.err());
            }
            (Awaited::Again(key), answer) => self.reopened(links, key, answer, descriptors),
        }
    }
}
