//! Robust mutexes in objects: the next who locks one is told that its owner has ended (`EOWNERDEAD`).
//!
//! In the kernel's shared memory the kernel goes through a list of the mutexes that a thread holds which
//! ends. It finds none in an object, whose pages may be on another machine by then. So the object's server
//! keeps them, as the mutexes of `quire_dsm_lock` by name, and learns of each program that ends or is cut off;
//! who locks one asks it, which takes a message and its answer. The words in the memory say which thread has it, and
//! are changed by who has it at the server only. One that a thread leaves locked which ends while its
//! process goes on is let go of here.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use quire_core::dsm::sync::{Answer, Name, Request};

use super::mutex::{FREE, HELD, Held, Words};
use super::waiting::{Deadline, Waiting, Wake, me, wake};
use crate::state;
use crate::trouble::{self, Trouble};

/// What `users` says of one: what it guards may be half done, or is given up.
const SOUND: u32 = 0;
const INCONSISTENT: u32 = 1;
const GIVEN_UP: u32 = 2;

/// Those that a thread has.
struct Mine(RefCell<Vec<usize>>);

thread_local! {
    static MINE: Mine = const { Mine(RefCell::new(Vec::new())) };
}

impl Drop for Mine {
    /// The thread ends: who waits for what it has is told.
    fn drop(&mut self) {
        for at in self.0.take() {
            // SAFETY: the thread has locked a mutex there, and a program keeps what it has locked; where it
            // has unmapped the object, none is found.
            if let Some(held) = unsafe { Held::find(at as *mut libc::pthread_mutex_t) }
                && held.words.owner.load(Ordering::SeqCst) == me()
            {
                let _ = ask(held.words, Request::Unlock);
            }
        }
    }
}

fn note(words: &Words, has: bool) {
    let at = std::ptr::from_ref(words) as usize;
    // A thread that ends may lock and let go in what is done then: it is noted no more.
    let _ = MINE.try_with(|mine| {
        let mut mine = mine.0.borrow_mut();
        match has {
            true => mine.push(at),
            false => mine.retain(|it| *it != at),
        }
    });
}

/// Asks the object's server about a mutex.
/// Nothing where the server cannot be reached now.
fn ask(words: &Words, request: fn(Name) -> Request) -> trouble::Result<Option<Answer>> {
    let at = std::ptr::from_ref(words) as u64;
    let none = || {
        Trouble::new(
            libc::ENOTSUP,
            "a robust mutex is in no object that is mapped",
        )
    };
    let asked = state::locked(|state| {
        let (start, mapped) = state.mapped.range(..=at).next_back().ok_or_else(none)?;
        let (entry, offset) = (mapped.entry, mapped.offset + (at - start));
        if at - start >= mapped.len {
            return Err(none());
        }
        let name = Name(format!("robust-{offset:x}"));
        state.run(move |works| works.synchronise(entry, request(name)))
    });
    asked.unwrap_or_else(|| Err(none()))
}

/// Takes it, or waits for it until a time; at no time where it is only tried.
pub(super) fn lock(held: Held<'_>, end: Option<Option<Deadline>>) -> Result<(), c_int> {
    let words = held.words;
    let mut waiting = Waiting::new(held.copies, end.flatten());
    loop {
        if words.users.load(Ordering::SeqCst) == GIVEN_UP {
            return Err(libc::ENOTRECOVERABLE);
        }
        let answer = ask(words, Request::TryLock);
        match answer {
            Ok(Some(answer @ (Answer::Done | Answer::Abandoned))) => return is_ours(words, answer),
            // Another thread of this process has it, or somebody else; or there is no link now.
            Ok(Some(Answer::Busy | Answer::NotYours) | None) => {}
            Ok(Some(_)) => return Err(libc::EAGAIN),
            Err(trouble) => return Err(trouble.errno),
        }
        if end.is_none() {
            return Err(libc::EBUSY);
        }
        let seen = words.state.load(Ordering::SeqCst);
        waiting
            .wait(&words.state, seen)
            .map_err(|_| libc::ETIMEDOUT)?;
    }
}

/// The server has given it to this thread.
fn is_ours(words: &Words, answer: Answer) -> Result<(), c_int> {
    if words.users.load(Ordering::SeqCst) == GIVEN_UP {
        let _ = ask(words, Request::Unlock);
        return Err(libc::ENOTRECOVERABLE);
    }
    let was_left = words.state.swap(HELD, Ordering::SeqCst) != FREE;
    words.owner.store(me(), Ordering::SeqCst);
    words.again.store(0, Ordering::SeqCst);
    note(words, true);
    if was_left || answer == Answer::Abandoned {
        words.users.store(INCONSISTENT, Ordering::SeqCst);
        return Err(libc::EOWNERDEAD);
    }
    words.users.store(SOUND, Ordering::SeqCst);
    Ok(())
}

/// Lets go of one that this thread has.
pub(super) fn unlock(held: Held<'_>) -> Result<(), c_int> {
    let words = held.words;
    let is_given_up = words.users.load(Ordering::SeqCst) != SOUND;
    if is_given_up {
        // Nobody has said that what it guards is whole again.
        words.users.store(GIVEN_UP, Ordering::SeqCst);
    }
    words.owner.store(0, Ordering::SeqCst);
    words.state.store(FREE, Ordering::SeqCst);
    note(words, false);
    let answer = ask(words, Request::Unlock);
    wake(held.copies, &words.state, Wake::One);
    match answer {
        Ok(Some(Answer::Done)) => Ok(()),
        // The link broke meanwhile, and others may have had it.
        _ => Err(libc::ENOTRECOVERABLE),
    }
}

/// What it guards is whole again.
pub(super) fn is_consistent(words: &Words) -> Result<(), c_int> {
    let users: &AtomicU32 = &words.users;
    let is_ours = words.owner.load(Ordering::SeqCst) == me();
    match users.load(Ordering::SeqCst) {
        INCONSISTENT if is_ours => {
            users.store(SOUND, Ordering::SeqCst);
            Ok(())
        }
        _ => Err(libc::EINVAL),
    }
}
