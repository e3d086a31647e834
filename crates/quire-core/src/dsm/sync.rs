//! Synchronisation of the programs that share an object: mutexes, conditions, barriers and
//! counters, kept by the object's server.
//!
//! Shared memory alone is enough to synchronise, as it is strictly coherent. But a lock
//! that many machines try to take is a page that all of them write to, and a waiter that
//! looks at a word again and again takes its page away from whoever wants to change it.
//! Here who waits costs one message to ask and one to be answered.
//!
//! One automaton ([`SyncTable`]) holds everything of one object that is synchronised by name. It
//! takes requests and returns answers. A request has exactly one answer, at once or later,
//! unless its party is gone.
//!
//! Parties that crash: a mutex whose holder is gone goes to who waits next, with a warning
//! that what it protects may be half done ([`Answer::Abandoned`]), as robust mutexes of
//! POSIX do. A barrier is broken when one of those who arrived there before, or wait there
//! now, crashes: all who wait and all who come get [`Answer::Broken`], until somebody mends
//! it. (Who was never there is not known to be awaited.) Who leaves without a crash breaks a
//! barrier only while it waits there. Who waits for a condition or a counter is forgotten.
//!
//! A barrier is forgotten, broken or not, when all who arrived in its last round are gone: who
//! comes then is of another group. Not so if somebody waited there when it broke: of that round
//! some have not come yet, and they are told. Such a barrier stays broken until it is mended,
//! like the barriers of Java and Python, and as a barrier in shared memory does until it is
//! initialised anew. Of those that nobody is left of, the last [`REMEMBERED`] are kept.
//!
//! So are abandoned mutexes that nobody waits for. A counter that is 0 and that nobody waits for
//! is as if it had never been. There are at most [`MOST`] names.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

/// A program that synchronises with others, among all of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Party(pub u64);

/// A request of a party: its own number for it, which its answer bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);

/// The name of something that synchronises; each kind has names of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Name(pub String);

/// What a party wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Request {
    /// The mutex, as soon as it is free. Whoever waits longest gets it first.
    Lock(Name),
    /// The mutex, if it is free now.
    TryLock(Name),
    /// The mutex is free again.
    Unlock(Name),
    /// The mutex is given up, until somebody signals the condition; then it is wanted again.
    Wait {
        /// The condition.
        condition: Name,
        /// The mutex, which the party holds.
        mutex: Name,
    },
    /// Some of those who wait for the condition go on: those who wait longest.
    Signal {
        /// The condition.
        condition: Name,
        /// How many; all of them where it is `None`.
        count: Option<u32>,
    },
    /// The party waits until as many have arrived.
    Arrive {
        /// The barrier.
        barrier: Name,
        /// How many, the same from each of them.
        parties: u32,
    },
    /// A broken barrier is as if nobody had ever arrived.
    Mend(Name),
    /// Adds to a counter, which is 0 at first and goes round at its ends.
    Add {
        /// The counter.
        counter: Name,
        /// What is added.
        by: i64,
    },
    /// The party waits until a counter is at least so much.
    AtLeast {
        /// The counter.
        counter: Name,
        /// So much.
        value: i64,
    },
}

/// What a party is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Answer {
    /// It is done. A mutex is held, a barrier was passed, a condition was signalled.
    Done,
    /// A mutex is held, and who held it before was gone without giving it back.
    Abandoned,
    /// The mutex was not free.
    Busy,
    /// The party does not hold the mutex, or holds it already.
    NotYours,
    /// The barrier is broken, because somebody is gone.
    Broken,
    /// The barrier is for another number of parties: this one.
    Parties(u32),
    /// What the counter is now.
    Value(i64),
    /// The name is longer than [`LONGEST`], or it would be one more than [`MOST`].
    Full,
}

/// An answer, and to which request of whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answered {
    /// Who asked.
    pub party: Party,
    /// Which of its requests it was.
    pub request: RequestId,
    /// The answer.
    pub answer: Answer,
}

/// How many broken barriers are remembered that nobody is left of, and how many mutexes that were
/// abandoned; the one that was left first is forgotten first. So programs that come, break
/// barriers of ever new names and go leave room for others.
pub const REMEMBERED: usize = 1024;

/// The longest name, in bytes.
pub const LONGEST: usize = 255;

/// So many names there may be of one object, of all kinds, that somebody uses or that are
/// remembered.
pub const MOST: usize = 1 << 16;

/// Who asked, and which of its requests it was.
type Asker = (Party, RequestId);

/// A mutex that somebody holds; a free one is not kept, unless it was abandoned.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
struct Mutex {
    holder: Option<Party>,
    /// Whoever held it is gone, and nobody was told yet.
    abandoned: bool,
    waiting: VecDeque<Asker>,
}

/// A party that waits for a condition, and the mutex that it wants afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Sleeper {
    asker: Asker,
    mutex: Name,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
struct Barrier {
    parties: u32,
    arrived: Vec<Asker>,
    /// Who arrived in this round or the one before.
    known: BTreeSet<Party>,
    broken: bool,
    /// Somebody waited when it broke: others of that round may still come.
    expected: bool,
}

/// How a party went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parting {
    /// It said goodbye.
    Left,
    /// It was cut off, or has crashed.
    Crashed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
struct Counter {
    value: i64,
    /// Who waits, by what for.
    waiting: BTreeSet<(i64, Asker)>,
}

/// All that is synchronised by name for one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct SyncTable {
    mutexes: BTreeMap<Name, Mutex>,
    conditions: BTreeMap<Name, VecDeque<Sleeper>>,
    barriers: BTreeMap<Name, Barrier>,
    /// Broken barriers that are kept though nobody is left of them, in the order in which the
    /// last was gone.
    forsaken: VecDeque<Name>,
    /// Abandoned mutexes that nobody waits for, in the order in which they became so.
    abandoned: VecDeque<Name>,
    counters: BTreeMap<Name, Counter>,
}

impl SyncTable {
    /// Whether it knows a barrier: somebody has arrived there who is not gone, or it is broken.
    #[must_use]
    pub fn has_barrier(&self, name: &Name) -> bool {
        self.barriers.contains_key(name)
    }

    /// A party wants something. Answers are added in the order in which they are to be sent.
    pub fn ask(
        &mut self,
        party: Party,
        request: RequestId,
        wanted: Request,
        answers: &mut Vec<Answered>,
    ) {
        let asker = (party, request);
        if !self.has_room(&wanted) {
            return say(asker, Answer::Full, answers);
        }
        match wanted {
            Request::Lock(name) => self.lock(asker, name, answers),
            Request::TryLock(name) => self.try_lock(asker, name, answers),
            Request::Unlock(name) => {
                let answer = self.unlock(party, &name, answers);
                say(asker, answer, answers);
            }
            Request::Wait { condition, mutex } => self.wait(asker, condition, mutex, answers),
            Request::Signal { condition, count } => {
                self.signal(&condition, count, answers);
                say(asker, Answer::Done, answers);
            }
            Request::Arrive { barrier, parties } => self.arrive(asker, barrier, parties, answers),
            Request::Mend(barrier) => {
                self.mend(&barrier);
                say(asker, Answer::Done, answers);
            }
            Request::Add { counter, by } => {
                let value = self.add(counter, by, answers);
                say(asker, Answer::Value(value), answers);
            }
            Request::AtLeast { counter, value } => self.at_least(asker, counter, value, answers),
        }
    }

    /// Whether what a request names may be kept.
    fn has_room(&self, wanted: &Request) -> bool {
        let (name, is_there) = match wanted {
            Request::Lock(name) | Request::TryLock(name) => (name, self.mutexes.contains_key(name)),
            Request::Wait { condition, .. } => (condition, self.conditions.contains_key(condition)),
            Request::Arrive { barrier, .. } => (barrier, self.has_barrier(barrier)),
            Request::Add { counter, .. } | Request::AtLeast { counter, .. } => {
                (counter, self.counters.contains_key(counter))
            }
            Request::Unlock(_) | Request::Signal { .. } | Request::Mend(_) => return true,
        };
        let all = self.mutexes.len() + self.conditions.len() + self.barriers.len();
        is_there || name.0.len() <= LONGEST && all + self.counters.len() < MOST
    }

    /// Whether a request of a party has not been answered yet.
    #[must_use]
    pub fn is_waiting(&self, party: Party, request: RequestId) -> bool {
        let asker = (party, request);
        let mut mutexes = self.mutexes.values();
        let mut barriers = self.barriers.values();
        let mut counters = self.counters.values();
        let mut sleepers = self.conditions.values().flatten();
        mutexes.any(|mutex| mutex.waiting.contains(&asker))
            || barriers.any(|barrier| barrier.arrived.contains(&asker))
            || counters.any(|counter| counter.waiting.iter().any(|(_, it)| *it == asker))
            || sleepers.any(|sleeper| sleeper.asker == asker)
    }

    /// A party is gone: nothing that it holds or waits for is left.
    pub fn gone(&mut self, party: Party, how: Parting, answers: &mut Vec<Answered>) {
        let is_it = |asker: &Asker| asker.0 == party;
        for sleepers in self.conditions.values_mut() {
            sleepers.retain(|sleeper| !is_it(&sleeper.asker));
        }
        self.conditions.retain(|_, sleepers| !sleepers.is_empty());
        for counter in self.counters.values_mut() {
            counter.waiting.retain(|(_, asker)| !is_it(asker));
        }
        self.counters.retain(|_, counter| !counter.is_as_new());
        self.leave_barriers(party, how, answers);
        let names: Vec<Name> = self.mutexes.keys().cloned().collect();
        for name in names {
            self.leave_mutex(party, &name, answers);
        }
    }

    fn leave_barriers(&mut self, party: Party, how: Parting, answers: &mut Vec<Answered>) {
        let forsaken = &mut self.forsaken;
        self.barriers.retain(|name, barrier| {
            let was_known = !barrier.known.is_empty();
            barrier.leave(party, how, answers);
            let is_known = !barrier.known.is_empty();
            if was_known && !is_known && barrier.expected {
                forsaken.push_back(name.clone());
            }
            is_known || barrier.expected
        });
        while self.forsaken.len() > REMEMBERED {
            if let Some(name) = self.forsaken.pop_front() {
                self.barriers.remove(&name);
            }
        }
    }

    fn lock(&mut self, asker: Asker, name: Name, answers: &mut Vec<Answered>) {
        let mutex = self.mutexes.entry(name.clone()).or_default();
        match mutex.holder {
            Some(holder) if holder == asker.0 => say(asker, Answer::NotYours, answers),
            Some(_) => mutex.waiting.push_back(asker),
            None => self.give(&name, asker, answers),
        }
    }

    fn try_lock(&mut self, asker: Asker, name: Name, answers: &mut Vec<Answered>) {
        let mutex = self.mutexes.entry(name.clone()).or_default();
        match mutex.holder {
            Some(holder) if holder == asker.0 => say(asker, Answer::NotYours, answers),
            Some(_) => say(asker, Answer::Busy, answers),
            None => self.give(&name, asker, answers),
        }
    }

    /// Gives a mutex that nobody holds to somebody.
    fn give(&mut self, name: &Name, asker: Asker, answers: &mut Vec<Answered>) {
        let Some(mutex) = self.mutexes.get_mut(name) else {
            return;
        };
        if mutex.give(asker, answers) {
            self.abandoned.retain(|abandoned| abandoned != name);
        }
    }

    fn unlock(&mut self, party: Party, name: &Name, answers: &mut Vec<Answered>) -> Answer {
        match self.mutexes.get_mut(name) {
            Some(mutex) if mutex.holder == Some(party) => {
                mutex.holder = None;
                self.hand_on(name, answers);
                Answer::Done
            }
            _ => Answer::NotYours,
        }
    }

    /// Gives a mutex that nobody holds to who waits longest.
    fn hand_on(&mut self, name: &Name, answers: &mut Vec<Answered>) {
        let Some(mutex) = self.mutexes.get_mut(name) else {
            return;
        };
        match mutex.waiting.pop_front() {
            Some(next) => self.give(name, next, answers),
            None if !mutex.abandoned => {
                self.mutexes.remove(name);
            }
            None => self.remember(name),
        }
    }

    /// A mutex was abandoned, and nobody waits for it.
    fn remember(&mut self, name: &Name) {
        self.abandoned.push_back(name.clone());
        if self.abandoned.len() > REMEMBERED
            && let Some(first) = self.abandoned.pop_front()
        {
            self.mutexes.remove(&first);
        }
    }

    fn leave_mutex(&mut self, party: Party, name: &Name, answers: &mut Vec<Answered>) {
        let Some(mutex) = self.mutexes.get_mut(name) else {
            return;
        };
        mutex.waiting.retain(|asker| asker.0 != party);
        if mutex.holder == Some(party) {
            mutex.holder = None;
            mutex.abandoned = true;
            self.hand_on(name, answers);
        }
    }

    fn wait(&mut self, asker: Asker, condition: Name, mutex: Name, answers: &mut Vec<Answered>) {
        match self.unlock(asker.0, &mutex, answers) {
            Answer::Done => {
                let sleepers = self.conditions.entry(condition).or_default();
                sleepers.push_back(Sleeper { asker, mutex });
            }
            refused => say(asker, refused, answers),
        }
    }

    /// Who is woken wants its mutex again; the answer to its wait is the mutex.
    fn signal(&mut self, condition: &Name, count: Option<u32>, answers: &mut Vec<Answered>) {
        let Some(sleepers) = self.conditions.get_mut(condition) else {
            return;
        };
        let count = count.map_or(sleepers.len(), |count| sleepers.len().min(count as usize));
        let woken: Vec<Sleeper> = sleepers.drain(..count).collect();
        if sleepers.is_empty() {
            self.conditions.remove(condition);
        }
        for sleeper in woken {
            self.lock(sleeper.asker, sleeper.mutex, answers);
        }
    }

    fn arrive(&mut self, asker: Asker, name: Name, parties: u32, answers: &mut Vec<Answered>) {
        let parties = parties.max(1);
        let barrier = self.barriers.entry(name).or_default();
        if barrier.broken {
            return say(asker, Answer::Broken, answers);
        }
        if barrier.arrived.is_empty() {
            barrier.parties = parties;
        }
        if barrier.parties != parties {
            return say(asker, Answer::Parties(barrier.parties), answers);
        }
        barrier.arrived.push(asker);
        barrier.known.insert(asker.0);
        if barrier.arrived.len() == parties as usize {
            barrier.known = barrier.arrived.iter().map(|asker| asker.0).collect();
            for asker in barrier.arrived.drain(..) {
                say(asker, Answer::Done, answers);
            }
        }
    }

    fn mend(&mut self, name: &Name) {
        if self
            .barriers
            .get(name)
            .is_some_and(|barrier| barrier.broken)
        {
            self.barriers.remove(name);
            self.forsaken.retain(|forsaken| forsaken != name);
        }
    }

    fn add(&mut self, name: Name, by: i64, answers: &mut Vec<Answered>) -> i64 {
        let counter = self.counters.entry(name.clone()).or_default();
        counter.value = counter.value.wrapping_add(by);
        let value = counter.value;
        while let Some(&(wanted, asker)) = counter.waiting.first() {
            if wanted > value {
                break;
            }
            counter.waiting.pop_first();
            say(asker, Answer::Value(value), answers);
        }
        if counter.is_as_new() {
            self.counters.remove(&name);
        }
        value
    }

    fn at_least(&mut self, asker: Asker, name: Name, value: i64, answers: &mut Vec<Answered>) {
        let now = self.counters.get(&name).map_or(0, |counter| counter.value);
        if now >= value {
            return say(asker, Answer::Value(now), answers);
        }
        let counter = self.counters.entry(name).or_default();
        counter.waiting.insert((value, asker));
    }
}

impl Mutex {
    /// Gives it, free as it is, to somebody. Whether it was abandoned.
    fn give(&mut self, asker: Asker, answers: &mut Vec<Answered>) -> bool {
        self.holder = Some(asker.0);
        let was_abandoned = std::mem::take(&mut self.abandoned);
        let answer = match was_abandoned {
            true => Answer::Abandoned,
            false => Answer::Done,
        };
        say(asker, answer, answers);
        was_abandoned
    }
}

impl Counter {
    /// Whether it is as one that nobody has ever used.
    fn is_as_new(&self) -> bool {
        self.value == 0 && self.waiting.is_empty()
    }
}

impl Barrier {
    /// A party is gone: those who wait with it, or for it, wait in vain.
    fn leave(&mut self, party: Party, how: Parting, answers: &mut Vec<Answered>) {
        let waits = self.arrived.iter().any(|asker| asker.0 == party);
        let was_here = self.known.remove(&party);
        let is_missed = was_here && how == Parting::Crashed;
        if !waits && !is_missed {
            return;
        }
        self.expected |= !self.arrived.is_empty();
        self.arrived.retain(|asker| asker.0 != party);
        self.broken = true;
        for asker in self.arrived.drain(..) {
            say(asker, Answer::Broken, answers);
        }
    }
}

fn say(asker: Asker, answer: Answer, answers: &mut Vec<Answered>) {
    let (party, request) = asker;
    answers.push(Answered {
        party,
        request,
        answer,
    });
}

#[cfg(test)]
mod tests;
