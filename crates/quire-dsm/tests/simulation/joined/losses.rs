//! What may be missing from the memory that several servers share, when programs and servers
//! were lost.

use std::collections::{BTreeMap, BTreeSet};

use quire_core::dsm::message::ServerId;

use crate::checker::{Kind, Operation};
use crate::client::page_of;

/// What was lost, and when, in moments of the history.
pub struct Losses<'a> {
    /// Sessions of programs that ended without having given back all.
    pub sessions: &'a BTreeMap<u64, u64>,
    /// The servers that sessions were with.
    pub served: &'a BTreeMap<u64, Option<ServerId>>,
    /// Servers that are no members any more.
    pub servers: &'a BTreeMap<ServerId, u64>,
}

impl Losses<'_> {
    fn server(&self, session: u64) -> Option<ServerId> {
        self.served.get(&session).copied().flatten()
    }

    fn is_lost(&self, server: Option<ServerId>) -> bool {
        server.is_none_or(|server| self.servers.contains_key(&server))
    }

    /// From when on a write may be missing, if it ever may.
    fn may_be_missing(&self, write: &Operation) -> Option<u64> {
        let session = self.sessions.get(&write.who);
        let server = self.server(write.who);
        let server = server.and_then(|server| self.servers.get(&server));
        session.into_iter().chain(server).min().copied()
    }

    /// Whether a write has to stay because of what somebody else did. Who had the page after
    /// it, and before anything was lost, got it from the writer's server by way of his own:
    /// it stays as long as either does.
    fn keeps(&self, write: &Operation, lost: u64, other: &Operation) -> bool {
        let is_there = |session| !self.is_lost(self.server(session));
        if other.who == write.who || page_of(other.word) != page_of(write.word) {
            return false;
        }
        let saw =
            other.kind == Kind::Read && (other.word, other.value) == (write.word, write.value);
        let had_it_after = other.begin > write.end && other.end < lost;
        (saw || had_it_after) && (is_there(write.who) || is_there(other.who))
    }

    /// Takes out writes that may be missing, and what saw them.
    pub fn forget(&self, history: &mut Vec<Operation>) {
        let writes = history.iter().filter(|it| it.kind == Kind::Write);
        let forgotten: BTreeSet<u64> = writes
            .filter_map(|write| Some((write, self.may_be_missing(write)?)))
            .filter(|(write, lost)| !history.iter().any(|it| self.keeps(write, *lost, it)))
            .map(|(write, _)| write.value)
            .collect();
        history.retain(|it| !forgotten.contains(&it.value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Session 1 and 2 are with a server that is lost at moment 50, session 3 with one that is
    /// not.
    fn left(history: &[(u64, Kind, u64, u64, u64)]) -> usize {
        let operation = |&(who, kind, word, value, begin): &(u64, Kind, u64, u64, u64)| Operation {
            who,
            kind,
            word,
            value,
            begin,
            end: begin + 1,
        };
        let mut history: Vec<Operation> = history.iter().map(operation).collect();
        let (lost, there) = (Some(ServerId(1)), Some(ServerId(2)));
        Losses {
            sessions: &BTreeMap::new(),
            served: &BTreeMap::from([(1, lost), (2, lost), (3, there)]),
            servers: &BTreeMap::from([(ServerId(1), 50)]),
        }
        .forget(&mut history);
        history.len()
    }

    #[test]
    fn what_only_a_lost_server_had_may_be_missing() {
        let write = (1, Kind::Write, 0, 7, 10);
        assert_eq!(left(&[write, (2, Kind::Read, 0, 7, 20)]), 0);
        assert_eq!(left(&[write, (3, Kind::Read, 0, 0, 60)]), 1);
    }

    #[test]
    fn what_another_server_had_may_not_be_missing() {
        let write = (1, Kind::Write, 0, 7, 10);
        assert_eq!(left(&[write, (3, Kind::Read, 0, 7, 20)]), 2);
        // It had the page, if not this word.
        assert_eq!(left(&[write, (3, Kind::Read, 1, 0, 20)]), 2);
        assert_eq!(left(&[write, (3, Kind::Read, 2, 0, 20)]), 1);
        assert_eq!(left(&[(3, Kind::Write, 0, 7, 10)]), 1);
    }
}
