//! What a directory knows, as a pure automaton: it takes a command, and says the answer and
//! what has changed. There is no clock in it: whoever has one keeps [`Ages`] beside it, and
//! says with [`Command::Expire`] when a lease is over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::asked::{Failed, Question, Reply};
use super::{Change, Entry, LeaseId, Member, View, look_at_epoch, slots};
use crate::store::ObjectId;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Command {
    /// Somebody asks. Where that takes a new lease, it is this one.
    Ask(LeaseId, Question),
    /// A lease is over.
    Expire(LeaseId),
    /// The copy of the directory that a server has, by the server's place in the list. The
    /// first one counts.
    Copy(u64, u64),
}

/// What outlives all servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lasting {
    /// Objects, by their slots.
    names: BTreeMap<String, Entry>,
    views: BTreeMap<u64, View>,
}

impl Lasting {
    /// The slot of what is asked for by a name or an exact spelling.
    fn slot<'a>(&self, asked: &'a str) -> Option<&'a str> {
        slots::of(asked).find(|slot| {
            let there = self.names.get(*slot);
            there.is_some_and(|entry| slots::is_meant(asked, entry))
        })
    }

    fn find(&self, asked: &str) -> Option<&Entry> {
        self.names.get(self.slot(asked)?)
    }

    /// Whether the object with a key is begun.
    fn has_begun(&self, key: &str) -> bool {
        let found = self.find(&slots::exact(key));
        found.is_some_and(Entry::is_begun)
    }

    /// Takes the object with a key from where it lies, and says where that was.
    fn take(&mut self, key: &str) -> Result<(String, Entry), Failed> {
        let exact = slots::exact(key);
        let slot = self.slot(&exact);
        let taken = slot.and_then(|slot| self.names.remove_entry(slot));
        taken.ok_or_else(|| Failed::Missing(format!("object {key}")))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    member: Member,
    length: Duration,
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
    pub fn new(mut lasting: Lasting) -> State {
        lasting.names.retain(|_, entry| !entry.is_begun());
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
            Command::Expire(lease) => (Reply::Done, self.end(lease)),
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

    /// The answer to what changes nothing here; none to anything else. What a renewal changes
    /// are the lease's [`Ages`].
    pub fn look(&self, question: &Question) -> Option<Reply> {
        let Lasting { names, views } = &self.lasting;
        Some(match question {
            Question::Renew(lease) => match self.leases.get(&lease.0) {
                Some(held) => Reply::Renewed(held.length),
                None => Reply::Failed(Failed::LeaseOver),
            },
            Question::Members => Reply::Members(self.members()),
            Question::Find(name) => Reply::Found(self.lasting.find(name).cloned()),
            Question::Entries => Reply::Entries(names.values().cloned().collect()),
            Question::View(ObjectId(object)) => Reply::Viewed(views.get(object).cloned()),
            _ => return None,
        })
    }

    fn answer(&mut self, fresh: LeaseId, question: Question) -> Outcome {
        match question {
            Question::Join(member, length) => self.join(fresh, member, length),
            Question::Leave(lease) => Ok((Reply::Done, self.end(lease))),
            Question::Publish(entry) => self.publish(entry),
            Question::Discard(key) => self.discard(&key),
            Question::Begin(lease, entry) => self.begin(lease, entry),
            Question::EndBegun(key) => self.end_begun(&key),
            Question::GiveSize(entry) => self.give_size(entry),
            Question::Withdraw(key) => self.withdraw(&key),
            Question::Propose(lease, view) => self.propose(lease, view),
            looks => {
                let seen = self.look(&looks);
                let seen = seen.ok_or_else(|| Failed::Other("nothing answers that".to_owned()))?;
                Ok((seen, None))
            }
        }
    }

    fn join(&mut self, fresh: LeaseId, member: Member, length: Duration) -> Outcome {
        let mut held = self.leases.values();
        if held.any(|held| held.member.id == member.id) {
            return Err(Failed::Exists(format!("server {}", member.id.0)));
        }
        let held = Held {
            member: member.clone(),
            length,
        };
        self.leases.insert(fresh.0, held);
        Ok((Reply::Joined(fresh, length), Some(Change::Joined(member))))
    }

    fn end(&mut self, lease: LeaseId) -> Option<Change> {
        let held = self.leases.remove(&lease.0)?;
        let is_left = |entry: &Entry| !entry.is_begun() || entry.home != held.member.id;
        self.lasting.names.retain(|_, entry| is_left(entry));
        Some(Change::Left(held.member.id))
    }

    fn members(&self) -> Vec<Member> {
        let held = self.leases.values();
        let mut members: Vec<_> = held.map(|held| held.member.clone()).collect();
        members.sort_by_key(|member| member.id);
        members
    }

    fn publish(&mut self, entry: Entry) -> Outcome {
        let names = &mut self.lasting.names;
        let key = &entry.object.is.name;
        let (name, exact) = (slots::name_of(key), slots::exact(key));
        let lives = names.get(name);
        if let Some(lives) = lives.filter(|_| !entry.is_removed) {
            return Err(match lives.is_begun() && !entry.is_begun() {
                true => Failed::Begun(lives.object.is.name.clone()),
                false => Failed::Exists(format!("an object {name}")),
            });
        }
        let has_key = lives.is_some_and(|lives| lives.object.is.name == *key);
        if (has_key && entry.is_removed) || names.contains_key(&exact) {
            return Err(Failed::InUse(format!("object {key}")));
        }
        let slot = match entry.is_removed {
            true => exact,
            false => name.to_owned(),
        };
        names.insert(slot, entry.clone());
        Ok((Reply::Done, Some(Change::Published(entry))))
    }

    fn begin(&mut self, lease: LeaseId, entry: Entry) -> Outcome {
        let home = self.leases.get(&lease.0).map(|held| held.member.id);
        match home == Some(entry.home) {
            true => self.publish(entry),
            false => Err(Failed::LeaseOver),
        }
    }

    fn give_size(&mut self, entry: Entry) -> Outcome {
        let key = &entry.object.is.name;
        let name = slots::name_of(key).to_owned();
        match self.lasting.find(&slots::exact(key)) {
            Some(found) if found.is_begun() => {}
            Some(_) => return Err(Failed::Exists(format!("an object {name}"))),
            None => return Err(Failed::Missing(format!("object {key}"))),
        }
        self.lasting.names.insert(name, entry.clone());
        Ok((Reply::Done, Some(Change::Published(entry))))
    }

    fn end_begun(&mut self, key: &str) -> Outcome {
        match self.lasting.has_begun(key) {
            true => {
                let (slot, _) = self.lasting.take(key)?;
                Ok((Reply::Done, Some(Change::Withdrawn(slot))))
            }
            false => Err(Failed::Missing(format!("object {key} that is begun"))),
        }
    }

    fn discard(&mut self, key: &str) -> Outcome {
        if self.lasting.has_begun(key) {
            return Err(Failed::Missing(format!("object {key} that has a size")));
        }
        let exact = slots::exact(key);
        if self.lasting.slot(&exact) == Some(&exact) {
            return Err(Failed::Missing(format!("object {key} that has its name")));
        }
        let (_, mut entry) = self.lasting.take(key)?;
        entry.is_removed = true;
        self.lasting.names.insert(exact, entry.clone());
        Ok((Reply::Done, Some(Change::Published(entry))))
    }

    fn withdraw(&mut self, key: &str) -> Outcome {
        let (slot, gone) = self.lasting.take(key)?;
        self.lasting.views.remove(&gone.object.id.0);
        let reply = Reply::Withdrawn(!gone.is_removed);
        Ok((reply, Some(Change::Withdrawn(slot))))
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

/// When leases end, by a clock.
#[derive(Debug, Default)]
pub(super) struct Ages(BTreeMap<u64, Instant>);

impl Ages {
    /// Commands were applied until now.
    pub fn look(&mut self, state: &State, now: Instant) {
        self.0.retain(|lease, _| state.leases.contains_key(lease));
        for (lease, held) in &state.leases {
            self.0.entry(*lease).or_insert(now + held.length);
        }
    }

    /// A lease is renewed.
    pub fn renew(&mut self, state: &State, lease: LeaseId, now: Instant) {
        if let Some(held) = state.leases.get(&lease.0) {
            self.0.insert(lease.0, now + held.length);
        }
    }

    /// All are.
    pub fn renew_all(&mut self, state: &State, now: Instant) {
        self.0.clear();
        self.look(state, now);
    }

    /// Leases that are over, in the order of who has them.
    pub fn over(&self, state: &State, now: Instant) -> Vec<LeaseId> {
        let over = self.0.iter().filter(|(_, ends)| **ends <= now);
        let mut over: Vec<_> = over
            .filter_map(|(lease, _)| Some((state.leases.get(lease)?.member.id, *lease)))
            .collect();
        over.sort_unstable();
        over.into_iter().map(|(_, lease)| LeaseId(lease)).collect()
    }

    /// When the next one may be over.
    pub fn next(&self) -> Option<Instant> {
        self.0.values().min().copied()
    }
}

#[cfg(test)]
mod tests;
