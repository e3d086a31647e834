//! A member of a team whose members are clients, on whatever machine.

use quire_core::dsm::sync::{Answer, Name, Request};

use super::{ClientError, Shared};
use crate::programs::{Team, Trouble};

/// One of those who run a program over a shared object.
pub struct Member<'a> {
    shared: &'a Shared,
    me: usize,
    size: usize,
}

impl<'a> Member<'a> {
    /// The member with this number, of so many.
    #[must_use]
    pub const fn new(shared: &'a Shared, me: usize, size: usize) -> Member<'a> {
        Member { shared, me, size }
    }

    fn ask(&self, request: Request) -> Result<Answer, Trouble> {
        let apart = |error: ClientError| Trouble::Apart(error.to_string());
        match self.shared.synchronise(request).map_err(apart)? {
            answer @ (Answer::Done | Answer::Value(_)) => Ok(answer),
            other => Err(Trouble::Apart(format!("{other:?}"))),
        }
    }

    fn value(&self, request: Request) -> Result<i64, Trouble> {
        match self.ask(request)? {
            Answer::Value(value) => Ok(value),
            other => Err(Trouble::Apart(format!("{other:?}"))),
        }
    }
}

fn name(number: usize) -> Name {
    Name(number.to_string())
}

impl Team for Member<'_> {
    fn me(&self) -> usize {
        self.me
    }

    fn size(&self) -> usize {
        self.size
    }

    fn barrier(&self) -> Result<(), Trouble> {
        let parties = u32::try_from(self.size).unwrap_or(u32::MAX);
        let barrier = name(0);
        self.ask(Request::Arrive { barrier, parties }).map(drop)
    }

    fn lock(&self, mutex: usize) -> Result<(), Trouble> {
        self.ask(Request::Lock(name(mutex))).map(drop)
    }

    fn unlock(&self, mutex: usize) -> Result<(), Trouble> {
        self.ask(Request::Unlock(name(mutex))).map(drop)
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
