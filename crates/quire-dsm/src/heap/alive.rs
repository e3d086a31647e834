//! How others know that the program of a heap is alive, and how the heap knows what others
//! believe.
//!
//! The owner of a heap holds a mutex with its number in its name. The server frees it when the
//! program is gone. So whoever can lock it knows that this owner is dead.
//!
//! The server may also forget the mutex while the program lives: when the link to it breaks,
//! or, where several servers share the object, when the one that keeps mutexes is gone, or
//! the link to that one breaks. The program hears of both: of its own link from
//! [`Shared::breaks`], of the rest by something that it waits for at that server (that a
//! counter becomes 1), because all that wait there get an error. It hears so before it loses
//! any page to who takes it for dead: that page has to come by the same server, and so does
//! the error, which is sent first.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Mutex, PoisonError};

use quire_core::dsm::alloc::Owner;
use quire_core::dsm::sync::{self, Name, Request};

use super::HeapError;
use crate::client::{ClientError, Shared};
use crate::wire::control::Answer;

/// The mark of an owner that is alive.
pub(super) struct Alive<'a> {
    shared: &'a Shared,
    owner: Owner,
    /// How often the link had broken when the heap was opened.
    breaks: u64,
    /// Where it is told that the mark was forgotten.
    forgotten: Mutex<Receiver<Result<Answer, ClientError>>>,
}

impl<'a> Alive<'a> {
    /// Marks an owner. `breaks` is how often the link had broken before there was one.
    pub fn mark(shared: &'a Shared, owner: Owner, breaks: u64) -> Result<Alive<'a>, HeapError> {
        // It begins to wait before there is a mark that could be forgotten.
        let forgotten = shared.begin(Request::AtLeast {
            counter: mark(owner),
            value: 1,
        });
        let alive = Alive {
            shared,
            owner,
            breaks,
            forgotten: Mutex::new(forgotten),
        };
        match shared.synchronise(Request::Lock(mark(owner)))? {
            sync::Answer::Done | sync::Answer::Abandoned => Ok(alive),
            _ => Err(ClientError::Confused.into()),
        }
    }

    /// Whether nobody can have taken the owner for dead.
    pub fn is_sure(&self) -> bool {
        let forgotten = self.forgotten.lock();
        let forgotten = forgotten.unwrap_or_else(PoisonError::into_inner);
        // Once it was told, the channel has ended.
        let is_quiet = matches!(forgotten.try_recv(), Err(TryRecvError::Empty));
        is_quiet && self.shared.breaks() == self.breaks
    }
}

impl Drop for Alive<'_> {
    /// The mark goes, and so does what waits. The counter is left as it was.
    fn drop(&mut self) {
        if !self.is_sure() {
            return;
        }
        self.shared.say(Request::Unlock(mark(self.owner)));
        for by in [1, -1] {
            let counter = mark(self.owner);
            self.shared.say(Request::Add { counter, by });
        }
    }
}

/// What marks an owner: a mutex that it holds while it is alive, and a counter of this name.
pub(super) fn mark(owner: Owner) -> Name {
    Name(format!("quire.heap.owner.{}", owner.number()))
}
