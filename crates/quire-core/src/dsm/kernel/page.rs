//! One page of a cache, and who waits for it.

use std::collections::BTreeSet;

use super::{Failure, Space, Time};
use crate::dsm::message::{Access, PageNumber};

/// What is known of a page. One of which nothing is known is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// It was asked for.
    Asked(Access),
    /// It may be read.
    Readable,
    /// It may be read, and the right to write was asked for.
    Upgrading,
    /// It may be written; what it holds is to be given back.
    Writable,
    /// Nobody can have it any more.
    Failed(Failure),
}

/// A mapping in which threads wait for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    pub(super) space: Space,
    access: Access,
    /// When the first of the threads loses patience.
    until: Time,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Page {
    pub(super) state: State,
    /// A flush is not obeyed before.
    pub(super) kept_until: Time,
    /// In the order in which they came; each mapping once for each access.
    pub(super) waiting: Vec<Waiting>,
    /// The mapping that is shown the page when it comes.
    pub(super) asker: Option<Space>,
    /// Its place in the queue of what is held.
    pub(super) came: Option<u64>,
    /// When the first of all who wait loses patience, as noted among the alarms.
    alarm: Option<Time>,
}

impl Page {
    pub(super) const fn new(state: State) -> Page {
        Page {
            state,
            kept_until: Time(0),
            waiting: Vec::new(),
            asker: None,
            came: None,
            alarm: None,
        }
    }

    /// What programs may do to it.
    pub(super) const fn holds(&self) -> Option<Access> {
        match self.state {
            State::Readable | State::Upgrading => Some(Access::Read),
            State::Writable => Some(Access::Write),
            State::Asked(_) | State::Failed(_) => None,
        }
    }

    /// Whether it is here and nobody waits for more.
    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.state, State::Readable | State::Writable)
    }

    /// Notes that a thread waits.
    pub(super) fn wait(&mut self, space: Space, access: Access, until: Time) {
        let mut same = self.waiting.iter();
        if same.any(|waiting| waiting.space == space && waiting.access == access) {
            return;
        }
        self.waiting.push(Waiting {
            space,
            access,
            until,
        });
    }

    /// Takes those out of the waiting whom an access satisfies: their mappings, each once.
    pub(super) fn served(&mut self, access: Access) -> Vec<Space> {
        let mut served = Vec::new();
        self.waiting.retain(|waiting| {
            let stays = waiting.access > access;
            if !stays && !served.contains(&waiting.space) {
                served.push(waiting.space);
            }
            stays
        });
        served
    }

    /// Keeps the alarms in step with who waits.
    pub(super) fn set_alarm(
        &mut self,
        number: PageNumber,
        alarms: &mut BTreeSet<(Time, PageNumber)>,
    ) {
        let first = self.waiting.iter().map(|waiting| waiting.until).min();
        if first == self.alarm {
            return;
        }
        if let Some(alarm) = self.alarm {
            alarms.remove(&(alarm, number));
        }
        if let Some(first) = first {
            alarms.insert((first, number));
        }
        self.alarm = first;
    }

    /// The link broke and the contents are gone; whether anything is still to be known.
    pub(super) fn forget(&mut self) -> bool {
        if matches!(self.state, State::Failed(_)) {
            return true;
        }
        let Some(wanted) = self.waiting.iter().map(|waiting| waiting.access).max() else {
            return false;
        };
        (self.state, self.came) = (State::Asked(wanted), None);
        true
    }
}
