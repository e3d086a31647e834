//! A member of a team that meets by requests to a [`SyncTable`], wherever that is.
//!
//! [`SyncTable`]: quire_core::dsm::sync::SyncTable

use quire_core::dsm::message::Access;
use quire_core::dsm::sync::{Answer, Name, Request};

use super::{Team, Trouble, Word};

/// One of those who run a program.
#[derive(Debug)]
pub struct Member<A, N = fn(&[Word], Access)> {
    me: usize,
    size: usize,
    ask: A,
    need: N,
}

impl<A: Fn(Request) -> Result<Answer, Trouble>> Member<A> {
    /// The member with this number, of so many. It asks with the function, which waits for
    /// the answer.
    pub fn new(me: usize, size: usize, ask: A) -> Member<A> {
        let need: fn(&[Word], Access) = |_, _| {};
        Member {
            me,
            size,
            ask,
            need,
        }
    }

    /// The same member, that passes on what it will need.
    pub fn with_needs<N: Fn(&[Word], Access)>(self, need: N) -> Member<A, N> {
        let Member { me, size, ask, .. } = self;
        Member {
            me,
            size,
            ask,
            need,
        }
    }
}

impl<A: Fn(Request) -> Result<Answer, Trouble>, N> Member<A, N> {
    fn done(&self, request: Request) -> Result<(), Trouble> {
        match (self.ask)(request)? {
            Answer::Done => Ok(()),
            other => Err(Trouble::Apart(format!("{other:?}"))),
        }
    }

    fn value(&self, request: Request) -> Result<i64, Trouble> {
        match (self.ask)(request)? {
            Answer::Value(value) => Ok(value),
            other => Err(Trouble::Apart(format!("{other:?}"))),
        }
    }
}

fn name(number: usize) -> Name {
    Name(number.to_string())
}

impl<A, N> Team for Member<A, N>
where
    A: Fn(Request) -> Result<Answer, Trouble>,
    N: Fn(&[Word], Access),
{
    fn me(&self) -> usize {
        self.me
    }

    fn size(&self) -> usize {
        self.size
    }

    fn will_need(&self, words: &[Word], access: Access) {
        (self.need)(words, access);
    }

    fn barrier(&self) -> Result<(), Trouble> {
        let parties = u32::try_from(self.size).unwrap_or(u32::MAX);
        let barrier = name(0);
        self.done(Request::Arrive { barrier, parties })
    }

    fn lock(&self, mutex: usize) -> Result<(), Trouble> {
        self.done(Request::Lock(name(mutex)))
    }

    fn unlock(&self, mutex: usize) -> Result<(), Trouble> {
        self.done(Request::Unlock(name(mutex)))
    }

    fn add(&self, counter: usize, by: i64) -> Result<i64, Trouble> {
        let counter = name(counter);
        self.value(Request::Add { counter, by })
    }

    fn at_least(&self, counter: usize, value: i64) -> Result<i64, Trouble> {
        let counter = name(counter);
        self.value(Request::AtLeast { counter, value })
    }
}
