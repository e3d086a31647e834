//! One copy of the directory, as a pure automaton: it takes questions, messages of other
//! copies, and ticks of a clock, and says what is to be kept, what is to be sent, and what was
//! answered. Disk, network and clock stay outside.
//!
//! Everything that is asked goes through the log that all copies share, reading too, and
//! renewals of leases: an answer says what was true when most copies had agreed. The
//! agreement is Raft's, by the crate `raft`.
//!
//! # When a lease is over
//! Each copy knows since when it has seen no renewal of a lease. That is later than the
//! renewal was sent, so none can think that a lease is over before its holder does. Whoever
//! leads ends it by a command ([`Command::Expire`]).
//!
//! # What is asked again
//! A question may get lost on its way to the leader, or with it. It is asked again when
//! another one leads, and after a while; it is done once ([`Served`]).

use std::collections::BTreeMap;
use std::time::Instant;

use raft::eraftpb::{Entry, Message};
use raft::{Config, INVALID_ID, RawNode, SnapshotStatus, StateRole};
use serde::{Deserialize, Serialize};

use super::log::{Base, Log};
use super::mail::{Letter, Mail};
use super::served::Served;
use crate::directory::asked::{Question, Reply};
use crate::directory::state::{Ages, Command, State};
use crate::directory::{Change, LeaseId};

/// After so many entries the log begins anew.
const COMPACT: usize = 256;
/// An election begins after so many ticks without a leader, up to twice as many.
pub(super) const ELECTION: usize = 10;
/// A leader is heard of after so many ticks.
const HEARTBEAT: usize = 3;
/// So many messages may be on the way to another copy.
const WINDOW: usize = 64;
/// Bytes of entries in one message, about.
const PARCEL: u64 = 256 << 10;

/// Which copy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// Which list of servers it is about.
    pub list: u64,
    /// How many servers are in it.
    pub servers: u64,
    /// The place of this one, from 1 on.
    pub me: u64,
    /// The number of this copy.
    pub copy: u64,
}

/// Why a copy cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the others know another copy of this server, which is gone: {0}")]
    Gone(&'static str),
    #[error("its log holds what this version cannot read")]
    Unreadable,
    #[error(transparent)]
    Disk(#[from] crate::store::StoreError),
    #[error("the agreement with the others: {0}")]
    Raft(#[from] raft::Error),
}

/// A command, and who waits for its answer.
#[derive(Serialize, Deserialize)]
struct Record {
    asker: u64,
    number: u64,
    command: Command,
}

struct Waiting {
    command: Command,
    /// In which term, to which leader and at which tick it was said.
    said: Option<(u64, u64, u64)>,
}

/// What all copies agree on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Agreed {
    pub state: State,
    served: Served,
}

/// What came of it.
#[derive(Default)]
pub(super) struct Done {
    /// What others are to hear.
    pub letters: Vec<Letter>,
    /// What has changed, in order. To be told before the answers.
    pub changes: Vec<Change>,
    /// The answers, by the number of the question.
    pub answers: Vec<(u64, Reply)>,
}

/// One copy of the directory.
pub(super) struct Replica {
    node: RawNode<Log>,
    place: Place,
    agreed: Agreed,
    ages: Ages,
    ticks: u64,
    applied: u64,
    /// Who asks here: nobody else, and not this server before it was started again.
    asker: u64,
    last: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// Makes numbers that nobody had before.
    numbers: Box<dyn FnMut() -> u64 + Send>,
}

impl Replica {
    /// A copy with its log.
    pub fn new(
        place: Place,
        log: Log,
        mut numbers: Box<dyn FnMut() -> u64 + Send>,
    ) -> Result<Replica, Broken> {
        let config = Config {
            id: place.me,
            election_tick: ELECTION,
            heartbeat_tick: HEARTBEAT,
            applied: log.base().index,
            max_size_per_msg: PARCEL,
            max_inflight_msgs: WINDOW,
            check_quorum: true,
            pre_vote: true,
            ..Config::default()
        };
        let agreed = agreed_at(log.base())?;
        let applied = log.base().index;
        let nobody = slog::Logger::root(slog::Discard, slog::o!());
        Ok(Replica {
            node: RawNode::new(&config, log, &nobody)?,
            place,
            agreed,
            ages: Ages::default(),
            ticks: 0,
            applied,
            asker: numbers(),
            last: 0,
            waiting: BTreeMap::new(),
            numbers,
        })
    }

    /// Its log, as it is to be kept.
    pub fn log(&self) -> &Log {
        self.node.store()
    }

    /// Whether it leads.
    pub fn leads(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// Who leads, as far as it knows: a place in the list.
    pub fn leader(&self) -> Option<u64> {
        let leader = self.node.raft.leader_id;
        (leader != INVALID_ID).then_some(leader)
    }

    /// Asks something. The answer has this number.
    pub fn ask(&mut self, question: Question) -> u64 {
        self.last += 1;
        let fresh = LeaseId((self.numbers)());
        let waiting = Waiting {
            command: Command::Ask(fresh, question),
            said: None,
        };
        self.waiting.insert(self.last, waiting);
        self.last
    }

    /// Nobody waits for an answer any more.
    pub fn forget(&mut self, number: u64) {
        self.waiting.remove(&number);
    }

    /// A tick of the clock.
    pub fn tick(&mut self, now: Instant) {
        self.node.tick();
        self.ticks += 1;
        let Place { me, copy, .. } = self.place;
        if self.leader().is_some() && self.agreed.state.copy(me).is_none() {
            self.propose(0, Command::Copy(me, copy));
        }
        if self.leads() {
            for over in self.ages.over(&self.agreed.state, now) {
                self.propose(0, over);
            }
        }
    }

    /// Another copy says something.
    ///
    /// # Errors
    /// Where this copy cannot go on: it is not the one that the others know. `Ok` with a
    /// text means that what came is not used, and why.
    pub fn hear(&mut self, letter: Letter) -> Result<Option<&'static str>, Broken> {
        let Place { list, me, copy, .. } = self.place;
        let mail = letter.mail;
        if letter.list != list {
            return Ok(Some("it was given another list of servers"));
        }
        if mail.to != me || letter.sender == me {
            return Ok(Some("it takes this server for another one of the list"));
        }
        if letter.to.is_some_and(|known| known != copy) {
            return Err(Broken::Gone("was its directory emptied or replaced?"));
        }
        let known = self.agreed.state.copy(letter.sender);
        if known.is_some_and(|known| known != letter.from) {
            return Ok(Some(
                "its copy of the directory is not the one that it had; bring that one back",
            ));
        }
        let message = mail.message(self.place.servers, self.log().last());
        match message {
            // The automaton refuses what is out of date by itself.
            Ok(message) => drop(self.node.step(message)),
            Err(why) => return Ok(Some(why)),
        }
        Ok(None)
    }

    /// A message to another copy did not leave, or may not have arrived.
    pub fn unreachable(&mut self, place: u64) {
        self.node.report_unreachable(place);
    }

    /// A whole state has left for another copy. If it does not arrive, that is seen later.
    pub fn sent_base(&mut self, place: u64) {
        self.node.report_snapshot(place, SnapshotStatus::Finish);
    }

    /// Has another copy lead, if this one does: the one that has most of the log.
    pub fn resign(&mut self) {
        let me = self.place.me;
        let progress = self.node.raft.prs().iter();
        let others = progress.filter(|(id, progress)| **id != me && progress.recent_active);
        let best = others.max_by_key(|(_, progress)| progress.matched);
        let best = best.map(|(id, _)| *id);
        if let Some(best) = best.filter(|_| self.leads()) {
            self.node.transfer_leader(best);
        }
    }

    /// Says what is to be said, and does what was agreed on. `keep` makes the log durable.
    ///
    /// # Errors
    /// Where this copy cannot go on.
    pub fn settle(
        &mut self,
        now: Instant,
        keep: &mut dyn FnMut(Place, &Log) -> Result<(), Broken>,
    ) -> Result<Done, Broken> {
        let mut done = Done::default();
        self.say_waiting();
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            self.send(ready.take_messages(), &mut done);
            let base = (!ready.snapshot().is_empty()).then(|| Base::from(ready.snapshot()));
            let must_keep = ready.must_sync() || base.is_some();
            if let Some(base) = base {
                self.restore(base, &mut done)?;
            }
            self.apply(ready.take_committed_entries(), &mut done)?;
            let log = self.node.mut_store();
            log.append(ready.entries());
            if let Some(hard) = ready.hs() {
                log.promise(hard);
            }
            if must_keep {
                keep(self.place, self.node.store())?;
            }
            self.send(ready.take_persisted_messages(), &mut done);
            let mut light = self.node.advance(ready);
            if let Some(commit) = light.commit_index() {
                self.node.mut_store().commit(commit);
            }
            self.send(light.take_messages(), &mut done);
            self.apply(light.take_committed_entries(), &mut done)?;
            self.node.advance_apply();
        }
        self.ages.look(&self.agreed.state, now);
        self.compact()?;
        Ok(done)
    }

    fn send(&self, messages: Vec<Message>, done: &mut Done) {
        let letter = |mail: Mail| Letter {
            list: self.place.list,
            sender: self.place.me,
            from: self.place.copy,
            to: self.agreed.state.copy(mail.to),
            mail,
        };
        let mails = messages.into_iter().filter_map(Mail::new);
        done.letters.extend(mails.map(letter));
    }

    /// Whether the leader was told.
    fn propose(&mut self, number: u64, command: Command) -> bool {
        let record = Record {
            asker: self.asker,
            number,
            command,
        };
        let Ok(bytes) = postcard::to_stdvec(&record) else {
            // Nothing in it can fail to be encoded.
            return false;
        };
        self.node.propose(Vec::new(), bytes).is_ok()
    }

    /// Tells the leader what it was not told, or another one before it, or long ago.
    fn say_waiting(&mut self) {
        let Some(leader) = self.leader() else {
            return;
        };
        let (term, ticks) = (self.node.raft.term, self.ticks);
        let is_due = |waiting: &Waiting| {
            waiting.said.is_none_or(|(then, to, tick)| {
                (then, to) != (term, leader) || ticks - tick >= ELECTION as u64
            })
        };
        let due = self.waiting.iter().filter(|(_, waiting)| is_due(waiting));
        let due: Vec<_> = due
            .map(|(number, waiting)| (*number, waiting.command.clone()))
            .collect();
        for (number, command) in due {
            if self.propose(number, command)
                && let Some(waiting) = self.waiting.get_mut(&number)
            {
                waiting.said = Some((term, leader, ticks));
            }
        }
    }

    fn restore(&mut self, base: Base, done: &mut Done) -> Result<(), Broken> {
        self.agreed = agreed_at(&base)?;
        self.applied = base.index;
        self.node.mut_store().begin(base);
        done.changes.push(Change::Missed);
        Ok(())
    }

    fn apply(&mut self, entries: Vec<Entry>, done: &mut Done) -> Result<(), Broken> {
        for entry in entries {
            self.applied = entry.index;
            // A new leader begins with an empty one.
            if entry.data.is_empty() {
                continue;
            }
            let record: Record =
                postcard::from_bytes(&entry.data).map_err(|_| Broken::Unreadable)?;
            let Record { asker, number, .. } = record;
            // What nobody waits for has no number, and may be done twice.
            if number != 0 && !self.agreed.served.is_new(asker, number) {
                continue;
            }
            let (reply, change) = self.agreed.state.apply(record.command);
            done.changes.extend(change);
            if asker == self.asker && self.waiting.remove(&number).is_some() {
                done.answers.push((number, reply));
            }
        }
        let Place { me, copy, .. } = self.place;
        match self.agreed.state.copy(me) {
            Some(known) if known != copy => Err(Broken::Gone("is this its first directory?")),
            _ => Ok(()),
        }
    }

    fn compact(&mut self) -> Result<(), Broken> {
        if self.log().len() <= COMPACT || self.applied <= self.log().base().index {
            return Ok(());
        }
        let state = postcard::to_stdvec(&self.agreed).map_err(|_| Broken::Unreadable)?;
        let applied = self.applied;
        self.node.mut_store().compact(applied, state);
        Ok(())
    }

    /// The last entry that it has applied.
    #[cfg(test)]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// What it knows.
    #[cfg(test)]
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }
}

fn agreed_at(base: &Base) -> Result<Agreed, Broken> {
    match base.index {
        0 => Ok(Agreed::default()),
        _ => postcard::from_bytes(&base.state).map_err(|_| Broken::Unreadable),
    }
}
