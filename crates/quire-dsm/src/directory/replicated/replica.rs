//! One copy of the directory, as a pure automaton: it takes questions, messages of other
//! copies, and ticks of a clock, and says what is to be kept, what is to be sent, and what was
//! answered. Disk, network and clock stay outside.
//!
//! What changes something is a command in the log that all copies share. The agreement on it
//! is Raft's, by the crate `raft`. What only looks at something is answered from the copy that
//! was asked, when the leader has said how far that copy must be, and most copies have said
//! after that was asked that the leader is one still (a *read index*). So an answer says what
//! was true when it was asked for, or later; and nothing is written for it.
//!
//! # When a lease is over
//! To renew a lease is to look whether it is there: the leader notes when that was asked. It
//! ends a lease by a command ([`Command::Expire`]) that was not renewed for as long as it
//! lasts. Who leads anew gives all leases their full length. None ends before its holder knows:
//!
//! - The leader notes a renewal later than it was sent.
//! - A renewal that another leader noted was answered only if most copies obeyed that one still
//!   after it was sent. So whoever leads instead was chosen later than it was sent.
//! - What an earlier leader wanted to end is done, or never will be, before the next one lets
//!   anybody look: its own first entry comes behind that in the log.
//! - Where a leader lets look at what it is about to end, the holder knows already that it is
//!   over, and a renewal that is answered then does not bring it back ([`super::super::Lease`]).
//!
//! # What is asked again
//! A question may get lost on its way to the leader, or with it. It is asked again when
//! another one leads, and after a while; it is done once ([`Served`]). Where this copy was so far
//! behind that it got a whole state in which the question is done already, what the answer was
//! is not known here, and never will be: that is the answer then.

use std::collections::BTreeMap;
use std::time::Instant;

use raft::eraftpb::{Entry, Message};
use raft::{Config, INVALID_ID, RawNode, ReadState, SnapshotStatus, StateRole};
use serde::{Deserialize, Serialize};

use super::log::{Base, Log};
use super::mail::{Letter, Mail};
use super::served::Served;
use crate::directory::asked::{Failed, Question, Reply};
use crate::directory::state::{Ages, Command, State};
use crate::directory::{Change, LeaseId};
use crate::store::StoreError;

/// After so many entries the log begins anew.
const COMPACT: usize = 256;
/// An election begins after so many ticks without a leader, up to twice as many.
pub(super) const ELECTION: usize = 10;
/// What was not answered after so many ticks is asked again.
const AGAIN: u64 = 6;
/// A leader is heard of after so many ticks.
const HEARTBEAT: usize = 3;
/// Why it is not known what came of a question.
const BEHIND: &str =
    "this server's copy was behind when it was done, so what came of it is not known";
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
    #[error("{0}; then start this server again")]
    Disk(#[from] StoreError),
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
    question: Question,
    /// The lease, where it takes a new one.
    fresh: LeaseId,
    /// In which term, to which leader and at which tick it was said.
    said: Option<(u64, u64, u64)>,
    /// What only looks is answered when so many entries are applied.
    seen_at: Option<u64>,
}

/// Which look at the directory it is.
#[derive(Serialize, Deserialize)]
struct Look {
    asker: u64,
    number: u64,
    /// Each attempt is another one.
    tick: u64,
    /// The lease that is renewed by it.
    renews: Option<LeaseId>,
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
    /// When leases end, where this copy leads.
    ages: Ages,
    /// The term in which it led last.
    led: u64,
    /// After so many entries the log begins anew.
    compact_after: usize,
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
            led: 0,
            compact_after: COMPACT,
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
            question,
            fresh,
            said: None,
            seen_at: None,
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
            self.end_leases(now);
        }
    }

    /// Ends leases that are over. Where this copy has come to lead, all have their full length
    /// from now on.
    fn end_leases(&mut self, now: Instant) {
        let (term, state) = (self.node.raft.term, &self.agreed.state);
        match self.led == term {
            true => self.ages.look(state, now),
            false => self.ages.renew_all(state, now),
        }
        self.led = term;
        for over in self.ages.over(state, now) {
            self.propose(0, Command::Expire(over));
        }
    }

    /// Somebody wants to look, and to renew a lease by that.
    fn note(&mut self, renews: Option<LeaseId>, now: Instant) {
        if let Some(lease) = renews.filter(|_| self.leads()) {
            self.ages.renew(&self.agreed.state, lease, now);
        }
    }

    /// Another copy says something.
    ///
    /// # Errors
    /// Where this copy cannot go on: it is not the one that the others know. `Ok` with a
    /// text means that what came is not used, and why.
    pub fn hear(&mut self, letter: Letter, now: Instant) -> Result<Option<&'static str>, Broken> {
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
        if let Some(look) = mail.look() {
            let Ok(look) = postcard::from_bytes::<Look>(look) else {
                return Ok(Some("a question that makes no sense"));
            };
            self.note(look.renews, now);
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
        keep: &mut dyn FnMut(&Log) -> Result<(), StoreError>,
    ) -> Result<Done, Broken> {
        let mut done = Done::default();
        self.say_waiting(now);
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            self.seen(ready.take_read_states());
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
                keep(self.node.store())?;
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
        self.answer_looks(&mut done);
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
    fn say_waiting(&mut self, now: Instant) {
        let Some(leader) = self.leader() else {
            return;
        };
        let (term, ticks) = (self.node.raft.term, self.ticks);
        let is_due = |waiting: &Waiting| {
            let is_due = waiting.said.is_none_or(|(then, to, tick)| {
                (then, to) != (term, leader) || ticks - tick >= AGAIN
            });
            is_due && waiting.seen_at.is_none()
        };
        let due = self.waiting.iter().filter(|(_, waiting)| is_due(waiting));
        let due: Vec<_> = due
            .map(|(number, waiting)| (*number, waiting.fresh, waiting.question.clone()))
            .collect();
        for (number, fresh, question) in due {
            let is_said = match question.only_looks() {
                true => {
                    self.look(number, &question, now);
                    true
                }
                false => self.propose(number, Command::Ask(fresh, question)),
            };
            let waiting = self.waiting.get_mut(&number).filter(|_| is_said);
            if let Some(waiting) = waiting {
                waiting.said = Some((term, leader, ticks));
            }
        }
    }

    /// Asks the leader to be let look.
    fn look(&mut self, number: u64, question: &Question, now: Instant) {
        let renews = match question {
            Question::Renew(lease) => Some(*lease),
            _ => None,
        };
        let look = Look {
            asker: self.asker,
            number,
            tick: self.ticks,
            renews,
        };
        // Nothing in it can fail to be encoded.
        if let Ok(bytes) = postcard::to_stdvec(&look) {
            self.note(renews, now);
            self.node.read_index(bytes);
        }
    }

    /// The leader says how far this copy must be to be looked at.
    fn seen(&mut self, states: Vec<ReadState>) {
        for state in states {
            let Ok(look) = postcard::from_bytes::<Look>(&state.request_ctx) else {
                continue;
            };
            let waiting = self.waiting.get_mut(&look.number);
            if let Some(waiting) = waiting.filter(|_| look.asker == self.asker) {
                waiting.seen_at.get_or_insert(state.index);
            }
        }
    }

    /// Answers those that wait to look and may.
    fn answer_looks(&mut self, done: &mut Done) {
        let (state, applied) = (&self.agreed.state, self.applied);
        self.waiting.retain(|number, waiting| {
            let reply = match waiting.seen_at {
                Some(index) if index <= applied => state.look(&waiting.question),
                _ => None,
            };
            let waits = reply.is_none();
            done.answers.extend(reply.map(|reply| (*number, reply)));
            waits
        });
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
                if asker == self.asker && self.waiting.remove(&number).is_some() {
                    let unknown = Failed::Unknown(BEHIND.to_owned());
                    done.answers.push((number, Reply::Failed(unknown)));
                }
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
        if self.log().len() <= self.compact_after || self.applied <= self.log().base().index {
            return Ok(());
        }
        let state = postcard::to_stdvec(&self.agreed).map_err(|_| Broken::Unreadable)?;
        let applied = self.applied;
        self.node.mut_store().compact(applied, state);
        Ok(())
    }

    /// Its log is to begin anew more often.
    #[cfg(test)]
    pub fn compact_after(&mut self, entries: usize) {
        self.compact_after = entries;
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
