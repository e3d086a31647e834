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
//! the error, which is sent first. Both are counters, so that the look at them and what relies on
//! it are one step ([`restartable`]): a write that has to wait for its page looks again.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use quire_core::dsm::alloc::{Changed, Owner, Word};
use quire_core::dsm::sync::{self, Name, Request};
use quire_linux::restartable::{self, Provided};
use quire_linux::touch;

use super::HeapError;
use crate::client::{ClientError, Shared};

/// The mark of an owner that is alive.
pub(super) struct Alive<'a> {
    shared: &'a Shared,
    owner: Owner,
    /// How often the link had broken when the heap was opened.
    breaks: u64,
    /// Not 0 any more when the mark was forgotten.
    forgotten: Arc<AtomicU64>,
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
            forgotten,
        };
        match shared.synchronise(Request::Lock(mark(owner)))? {
            sync::Answer::Done | sync::Answer::Abandoned => Ok(alive),
            _ => Err(ClientError::Confused.into()),
        }
    }

    /// Whether nobody can have taken the owner for dead.
    pub fn is_sure(&self) -> bool {
        self.signs().into_iter().all(Provided::holds)
    }

    /// What is so as long as it is sure.
    fn signs(&self) -> [Provided<'_>; 2] {
        let broken = Provided {
            counter: self.shared.counted_breaks(),
            is: self.breaks,
        };
        let forgotten = Provided {
            counter: &self.forgotten,
            is: 0,
        };
        [broken, forgotten]
    }

    /// Changes a word of the object as long as it is sure, in one step.
    pub fn change(&self, word: Word<'_>, from: u64, to: u64) -> Changed {
        let (cell, [from, to]) = word.stored([from, to]);
        loop {
            // The page comes here to be written to, which is one message.
            touch::write(cell);
            return match restartable::change(cell, from, to, self.signs()) {
                restartable::Changed::Done => Changed::Done,
                restartable::Changed::Differs => Changed::Differs,
                restartable::Changed::Refused => Changed::Unsure,
                restartable::Changed::Interrupted => continue,
            };
        }
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
