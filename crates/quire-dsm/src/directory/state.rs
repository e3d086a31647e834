//! What a directory knows, as a pure automaton: it takes a command, and says the answer and
//! what has changed. There is no clock in it; [`Ages`] has one beside it.
//!
//! A lease counts its renewals. Whoever sees it unchanged for longer than it lasts may say
//! so with [`Command::Expire`], which ends it only if it is still at that count. So a renewal
//! that came before wins, and all that apply the same commands come to the same state.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::asked::{Failed, Question, Reply};
use super::{Change, Entry, LeaseId, Member, View, look_at_epoch};
use crate::store::ObjectId;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Command {
    /// Somebody asks. Where that takes a new lease, it is this one.
    Ask(LeaseId, Question),
    /// A lease with so many renewals is over.
    Expire(LeaseId, u64),
    /// The copy of the directory that a server has, by the server's place in the list. The
    /// first one counts.
    Copy(u64, u64),
}

/// What outlives all servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lasting {
    names: BTreeMap<String, Entry>,
    views: BTreeMap<u64, View>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    member: Member,
    length: Duration,
    renewals: u64,
}

/// All that a directory knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// What outlives all servers.
    pub lasting: Lasting,
    leases: BTreeMap<u64, Held>,
    copies: BTreeMap<u64, u64>,
}

type Outcome = Result<(Reply, Option<Change>), Failed>;

impl State {
    /// A directory in which nobody is a member.
    pub fn new(lasting: Lasting) -> State {
        State {
            lasting,
            ..State::default()
        }
    }

    /// Does what is to be done: the answer, and what has changed.
    pub fn apply(&mut self, command: Command) -> (Reply, Option<Change>) {
        match command {
            Command::Ask(fresh, question) => self
                .answer(fresh, question)
                .unwrap_or_else(|failed| (Reply::Failed(failed), None)),
            Command::Expire(lease, renewals) => (Reply::Done, self.expire(lease, renewals)),
            Command::Copy(place, copy) => {
                self.copies.entry(place).or_insert(copy);
                (Reply::Done, None)
            }
        }
    }

    /// The copy that a server of the list has.
    pub fn copy(&self, place: u64) -> Option<u64> {
        self.copies.get(&place).copied()
    }

    fn answer(&mut self, fresh: LeaseId, question: Question) -> Outcome {
        let lasting = &self.lasting;
        Ok(match question {
            Question::Join(member, length) => return self.join(fresh, member, length),
            Question::Renew(lease) => (Reply::Renewed(self.renew(lease)?), None),
            Question::Leave(lease) => (Reply::Done, self.end(lease)),
            Question::Members => (Reply::Members(self.members()), None),
            Question::Publish(entry) => return self.publish(entry),
            Question::Find(name) => (Reply::Found(lasting.names.get(&name).cloned()), None),
            Question::Entries => {
                let entries = lasting.names.values().cloned().collect();
                (Reply::Entries(entries), None)
            }
            Question::Withdraw(name) => return self.withdraw(&name),
            Question::View(ObjectId(object)) => {
                (Reply::Viewed(lasting.views.get(&object).cloned()), None)
            }
            Question::Propose(lease, view) => return self.propose(lease, view),
        })
    }

    fn join(&mut self, fresh: LeaseId, member: Member, length: Duration) -> Outcome {
        let mut held = self.leases.values();
        if held.any(|held| held.member.id == member.id) {
            return Err(Failed::Exists(format!("server {}", member.id.0)));
        }
        let held = Held {
            member: member.clone(),
            length,
            renewals: 0,
        };
        self.leases.insert(fresh.0, held);
        Ok((Reply::Joined(fresh, length), Some(Change::Joined(member))))
    }

    fn renew(&mut self, lease: LeaseId) -> Result<Duration, Failed> {
        let held = self.leases.get_mut(&lease.0).ok_or(Failed::LeaseOver)?;
        held.renewals += 1;
        Ok(held.length)
    }

    fn end(&mut self, lease: LeaseId) -> Option<Change> {
        let held = self.leases.remove(&lease.0)?;
        Some(Change::Left(held.member.id))
    }

    fn expire(&mut self, lease: LeaseId, renewals: u64) -> Option<Change> {
        let held = self.leases.get(&lease.0)?;
        (held.renewals == renewals)
            .then(|| self.end(lease))
            .flatten()
    }

    fn members(&self) -> Vec<Member> {
        let held = self.leases.values();
        let mut members: Vec<_> = held.map(|held| held.member.clone()).collect();
        members.sort_by_key(|member| member.id);
        members
    }

    fn publish(&mut self, entry: Entry) -> Outcome {
        let name = &entry.object.is.name;
        if self.lasting.names.contains_key(name) {
            return Err(Failed::Exists(format!("an object {name}")));
        }
        self.lasting.names.insert(name.clone(), entry.clone());
        Ok((Reply::Done, Some(Change::Published(entry))))
    }

    fn withdraw(&mut self, name: &str) -> Outcome {
        let gone = self.lasting.names.remove(name);
        let gone = gone.ok_or_else(|| Failed::Missing(format!("object {name}")))?;
        self.lasting.views.remove(&gone.object.id.0);
        Ok((Reply::Done, Some(Change::Withdrawn(name.to_owned()))))
    }

    fn propose(&mut self, lease: LeaseId, view: View) -> Outcome {
        let maker = self.leases.get(&lease.0).map(|held| held.member.id);
        if maker != Some(view.by) {
            return Err(Failed::LeaseOver);
        }
        look_at_epoch(self.lasting.views.get(&view.object.0), &view)?;
        self.lasting.views.insert(view.object.0, view.clone());
        Ok((Reply::Done, Some(Change::Viewed(view))))
    }
}

/// Since when leases are as they are, by a clock.
#[derive(Debug, Default)]
pub(super) struct Ages(BTreeMap<u64, Age>);

#[derive(Clone, Copy, Debug)]
struct Age {
    renewals: u64,
    ends: Instant,
}

impl Ages {
    /// Commands were applied until now.
    pub fn look(&mut self, state: &State, now: Instant) {
        self.0.retain(|lease, _| state.leases.contains_key(lease));
        for (lease, held) in &state.leases {
            let age = Age {
                renewals: held.renewals,
                ends: now + held.length,
            };
            let known = self.0.entry(*lease).or_insert(age);
            if known.renewals != held.renewals {
                *known = age;
            }
        }
    }

    /// Leases that are over, by the number of who has them: how to end each.
    pub fn over(&self, state: &State, now: Instant) -> Vec<Command> {
        let over = self.0.iter().filter(|(_, age)| age.ends <= now);
        let mut over: Vec<_> = over
            .filter_map(|(lease, age)| {
                let held = state.leases.get(lease)?;
                let expire = Command::Expire(LeaseId(*lease), age.renewals);
                Some((held.member.id, expire))
            })
            .collect();
        over.sort_unstable_by_key(|(id, _)| *id);
        over.into_iter().map(|(_, expire)| expire).collect()
    }

    /// When the next one may be over.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().map(|age| age.ends).min()
    }
}
