//! A shared object as the allocator needs it: its words, its locks, its types, and whether others
//! can have taken this program for dead.
//!
//! The lock of a list is a mutex of the object's server, `quire.heap.NUMBER`. All threads of
//! a program are one party there, so they lock a mutex of their own first.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use quire_core::dsm::alloc::{self, Changed, List, Refused, Word};
use quire_core::dsm::sync::{Answer, Name, Request};
use quire_core::dsm::types::{Machine, TypeTag};
use quire_core::units::{Bytes, ObjectOffset};

use super::alive::Alive;
use crate::client::Shared;

/// What the threads of a program lock before they lock a list.
pub(crate) struct Lists {
    mutexes: Vec<Mutex<()>>,
    /// A list was locked whose holder is gone.
    were_abandoned: AtomicBool,
}

impl Default for Lists {
    fn default() -> Lists {
        Lists {
            mutexes: (0..List::COUNT).map(|_| Mutex::new(())).collect(),
            were_abandoned: AtomicBool::new(false),
        }
    }
}

impl Lists {
    fn lock(&self, list: List) -> MutexGuard<'_, ()> {
        let mutex = self.mutexes[list.number()].lock();
        // It protects nothing here.
        mutex.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a list was locked since the last call whose holder was gone.
    pub(crate) fn were_abandoned(&self) -> bool {
        self.were_abandoned.swap(false, Ordering::Relaxed)
    }
}

/// A list that is locked.
pub(super) struct Held<'a> {
    shared: &'a Shared,
    list: List,
    _threads: MutexGuard<'a, ()>,
}

impl Drop for Held<'_> {
    /// Nobody waits for the answer. What the program says next comes behind it.
    fn drop(&mut self) {
        self.shared.say(Request::Unlock(name_of(self.list)));
    }
}

fn name_of(list: List) -> Name {
    Name(format!("quire.heap.{}", list.number()))
}

/// An object, as a program has it.
pub(super) struct World<'a> {
    pub shared: &'a Shared,
    /// The mark of its heap. There is none while the heap is made: should two make it at once,
    /// they write the same.
    pub alive: Option<Alive<'a>>,
}

impl<'a> alloc::Shared for World<'a> {
    type Guard<'b>
        = Held<'a>
    where
        Self: 'b;

    fn size(&self) -> Bytes {
        self.shared.size()
    }

    fn word(&self, at: ObjectOffset) -> Word<'_> {
        let cell = &self.shared.words()[(at.0 / 8) as usize];
        match self.shared.machine().order() == Machine::native().order() {
            true => Word::new(cell),
            false => Word::swapped(cell),
        }
    }

    fn lock(&self, list: List) -> Result<Held<'a>, Refused> {
        let lists = self.shared.lists();
        let threads = lists.lock(list);
        let answer = self.shared.synchronise(Request::Lock(name_of(list)));
        let refused = |why: &str| Refused(format!("{list} cannot be locked: {why}"));
        match answer.map_err(|error| refused(&error.to_string()))? {
            Answer::Done => {}
            Answer::Abandoned => lists.were_abandoned.store(true, Ordering::Relaxed),
            _ => return Err(refused("this program has locked it by its name")),
        }
        Ok(Held {
            shared: self.shared,
            list,
            _threads: threads,
        })
    }

    fn tag(&self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), Refused> {
        let tagged = self.shared.tag(range, tag);
        tagged.map_err(|error| Refused(error.to_string()))
    }

    fn publish(&self, range: Range<ObjectOffset>) -> Result<(), Refused> {
        // The server gets what is sent over a link in this order, up to where it breaks.
        let given = self.shared.give_back(range);
        given.map_err(|error| Refused(error.to_string()))
    }

    fn is_sure(&self) -> bool {
        self.alive.as_ref().is_none_or(Alive::is_sure)
    }

    fn change(&self, at: ObjectOffset, from: u64, to: u64) -> Changed {
        let word = self.word(at);
        match &self.alive {
            Some(alive) => alive.change(word, from, to),
            None if word.change(from, to) => Changed::Done,
            None => Changed::Differs,
        }
    }
}
