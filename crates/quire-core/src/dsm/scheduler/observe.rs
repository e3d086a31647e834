//! Counters of a scheduler, and what it knows of a page. Both can be read at any time, and
//! are read for `quire object stat`.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use super::Action;
pub use super::hot::HOTTEST;
use crate::dsm::message::{Access, Client, FromKernel, Lock, PageNumber, ToKernel};

/// What a client needs a page for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fault {
    /// It has none of it and reads.
    Read,
    /// It has none of it and writes.
    Write,
    /// It has it to be read, and writes.
    Unlock,
}

impl Fault {
    /// What a client needs that has a copy of the page, or none.
    #[must_use]
    pub const fn of(access: Access, has_copy: bool) -> Fault {
        match (access, has_copy) {
            (Access::Read, _) => Fault::Read,
            (Access::Write, false) => Fault::Write,
            (Access::Write, true) => Fault::Unlock,
        }
    }
}

/// Faults by kind. A request for several pages is a fault on each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Faults of readers, in pages.
    pub read: u64,
    /// Faults of writers that had no copy, in pages.
    pub write: u64,
    /// Faults of writers that had a copy to be read, in pages.
    pub unlock: u64,
}

impl Faults {
    /// All of them, in pages.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.read + self.write + self.unlock
    }

    /// Counts one.
    pub fn count(&mut self, fault: Fault) {
        match fault {
            Fault::Read => self.read += 1,
            Fault::Write => self.write += 1,
            Fault::Unlock => self.unlock += 1,
        }
    }
}

/// Messages that came from kernels, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// [`FromKernel::DataRequest`], in messages.
    pub data_request: u64,
    /// [`FromKernel::DataUnlock`], in messages.
    pub data_unlock: u64,
    /// [`FromKernel::DataWrite`], in messages.
    pub data_write: u64,
    /// [`FromKernel::LockCompleted`], in messages.
    pub lock_completed: u64,
    /// [`FromKernel::Terminate`], in messages.
    pub terminate: u64,
    /// Contents in all of them, in pages.
    pub pages: u64,
    /// Those of them that made no sense, in messages.
    pub nonsense: u64,
}

impl Received {
    /// All of them, in messages.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.data_request
            + self.data_unlock
            + self.data_write
            + self.lock_completed
            + self.terminate
    }

    /// Counts one.
    pub fn count<D>(&mut self, message: &FromKernel<D>) {
        match message {
            FromKernel::DataRequest { .. } => self.data_request += 1,
            FromKernel::DataUnlock { .. } => self.data_unlock += 1,
            FromKernel::DataWrite { data, .. } => {
                self.data_write += 1;
                self.pages += data.len() as u64;
            }
            FromKernel::LockCompleted { .. } => self.lock_completed += 1,
            FromKernel::Terminate => self.terminate += 1,
        }
    }
}

/// Messages that were sent to kernels, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// [`ToKernel::DataProvided`], in messages.
    pub data_provided: u64,
    /// [`Lock::Flush`], in messages.
    pub flush: u64,
    /// [`Lock::AllowWrite`], in messages.
    pub allow_write: u64,
    /// [`ToKernel::DataError`], in messages.
    pub data_error: u64,
    /// Contents in all of them, in pages.
    pub pages: u64,
}

impl Sent {
    /// All of them, in messages.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.data_provided + self.flush + self.allow_write + self.data_error
    }

    /// Counts one.
    pub fn count<D>(&mut self, message: &ToKernel<D>) {
        match message {
            ToKernel::DataProvided { data, .. } => {
                self.data_provided += 1;
                self.pages += data.len() as u64;
            }
            ToKernel::LockRequest { lock, .. } => match lock {
                Lock::Flush => self.flush += 1,
                Lock::AllowWrite => self.allow_write += 1,
            },
            ToKernel::DataError { .. } => self.data_error += 1,
        }
    }
}

/// What a scheduler counts of an object, from its creation on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Faults, in pages.
    pub faults: Faults,
    /// Messages from kernels.
    pub received: Received,
    /// Messages to kernels.
    pub sent: Sent,
    /// Messages from peer servers, in messages.
    pub received_from_servers: u64,
    /// Messages to peer servers, in messages.
    pub sent_to_servers: u64,
    /// Faults of peer servers' kernels that came here, in pages.
    pub faults_of_servers: u64,
    /// Messages from kernels that the paper does not count: the second ones of those who
    /// answer a flush in two.
    pub completions: u64,
    /// Requests that were passed on to a peer server, in requests.
    pub forwarded: u64,
    /// Copies that a client was asked to give back, in pages.
    pub descheduled: u64,
    /// Requests that were not answered at once, in requests.
    pub waits: u64,
    /// Requests that changed nothing, as what they ask for is on its way, in requests.
    pub repeated: u64,
    /// Pages that went back to the latest copy as their writer was gone, in pages.
    pub recoveries: u64,
    /// Pages that whoever backs the object was asked for, in pages.
    pub loaded: u64,
    /// Pages that whoever backs the object was given, in pages.
    pub saved: u64,
    /// Pages that whoever backs the object could not supply, in pages.
    pub lost: u64,
}

impl Stats {
    /// Messages from and to kernels and peer servers, in messages.
    #[must_use]
    pub const fn messages(&self) -> u64 {
        self.received.total()
            + self.sent.total()
            + self.received_from_servers
            + self.sent_to_servers
    }

    /// Counts what a scheduler wants to be done.
    pub fn count_actions<D>(&mut self, actions: &[Action<D>]) {
        for action in actions {
            match action {
                Action::Tell(_, message) => self.sent.count(message),
                Action::TellServer(..) => self.sent_to_servers += 1,
                Action::Load(pages) => self.loaded += u64::from(pages.count),
                Action::Save(pages, _) => self.saved += u64::from(pages.count),
            }
        }
    }
}

/// What a scheduler counts of a page, from the object's creation on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageStats {
    /// Faults.
    pub faults: Faults,
    /// How often a client was asked to give back its copy.
    pub descheduled: u64,
    /// Requests that were not answered at once.
    pub waits: u64,
    /// How often it went back to the latest copy as its writer was gone.
    pub recoveries: u64,
}

/// The four states of a page (paper 003, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum State {
    /// There is no writer, there may be readers with a copy, the server is the owner.
    Read,
    /// There is one writer, there are no readers, and nobody waits.
    Write,
    /// No writer waits. Whoever has the page was asked to return it.
    ReadWait,
    /// Writers wait, and readers may. Whoever has copies was asked to return them.
    WriteWait,
}

/// What a scheduler knows of a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageStatus {
    /// Its state.
    pub state: State,
    /// Who may write to it; `None` is the server itself.
    pub owner: Option<Client>,
    /// How many clients have a copy to be read.
    pub readers: usize,
    /// How many requests wait to read it.
    pub waiting_readers: usize,
    /// How many requests wait to write to it.
    pub waiting_writers: usize,
    /// Whether the server has a copy; not the latest contents while there is a writer.
    pub here: bool,
    /// Whether its contents are lost.
    pub lost: bool,
    /// What was counted.
    pub stats: PageStats,
}

/// A scheduler that can be looked at.
pub trait Observe {
    /// What it counts of the object.
    fn stats(&self) -> &Stats;

    /// What it knows of a page; `None` where nobody ever asked for it.
    fn page(&self, page: PageNumber) -> Option<PageStatus>;

    /// The pages with the most faults, those with more first; [`HOTTEST`] at most. Of pages with
    /// as many faults as the last of them, any. It takes no look at all pages.
    fn hottest(&mut self) -> Vec<PageNumber>;

    /// How many pages somebody ever asked for, in pages.
    fn touched_count(&self) -> usize;

    /// Every page that somebody ever asked for, in order.
    fn touched(&self) -> Box<dyn Iterator<Item = PageNumber> + '_>;
}

/// What is carried along and decides nothing: two automata that differ in nothing else are
/// equal.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Aside<T>(pub(super) T);

impl<T> PartialEq for Aside<T> {
    fn eq(&self, _: &Aside<T>) -> bool {
        true
    }
}

impl<T> Eq for Aside<T> {}

impl<T> Hash for Aside<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
