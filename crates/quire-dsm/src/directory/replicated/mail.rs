//! What copies of the directory say to each other: the messages of the crate `raft`, in types
//! of our own. So no decoder but the one that all of the wire has ever sees a byte from
//! outside, and nothing goes in that the automaton cannot have sent.

use raft::eraftpb::{ConfState, Entry, Message, MessageType};
use serde::{Deserialize, Serialize};

use super::log::{Base, Logged, snapshot};

/// The kinds of messages that go over a link, by number.
const KINDS: [MessageType; 14] = [
    MessageType::MsgPropose,
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTransferLeader,
    MessageType::MsgTimeoutNow,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
    MessageType::MsgReadIndex,
    MessageType::MsgReadIndexResp,
];

/// A message, and which copies it is between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Letter {
    /// Which list of servers it is about.
    pub list: u64,
    /// Who sends it, by the place in the list. The message may be another one's, passed on.
    pub sender: u64,
    /// The copy of who sends it.
    pub from: u64,
    /// The copy of who gets it, as far as the sender knows it.
    pub to: Option<u64>,
    /// The message.
    pub mail: Mail,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mail {
    kind: u8,
    pub to: u64,
    from: u64,
    term: u64,
    log_term: u64,
    index: u64,
    entries: Vec<Logged>,
    commit: u64,
    commit_term: u64,
    base: Option<Base>,
    request_snapshot: u64,
    reject: bool,
    reject_hint: u64,
    context: Vec<u8>,
    priority: i64,
}

impl Mail {
    /// A message, to be carried. None where it is not for others.
    pub fn new(mut message: Message) -> Option<Mail> {
        let kind = KINDS.iter().position(|kind| *kind == message.msg_type)?;
        let base = message
            .has_snapshot()
            .then(|| Base::from(message.get_snapshot()));
        let entries = message.take_entries();
        Some(Mail {
            kind: kind as u8,
            to: message.to,
            from: message.from,
            term: message.term,
            log_term: message.log_term,
            index: message.index,
            entries: entries.iter().map(Logged::from).collect(),
            commit: message.commit,
            commit_term: message.commit_term,
            base,
            request_snapshot: message.request_snapshot,
            reject: message.reject,
            reject_hint: message.reject_hint,
            context: message.context.to_vec(),
            priority: message.priority,
        })
    }

    /// The same as if somebody else said it.
    #[cfg(test)]
    pub fn said_by(self, from: u64) -> Mail {
        Mail { from, ..self }
    }

    /// What it asks to look at, if it asks for that.
    pub fn look(&self) -> Option<&[u8]> {
        let kind = KINDS.get(usize::from(self.kind));
        let is_look = kind == Some(&MessageType::MsgReadIndex);
        let entry = self.entries.first().filter(|_| is_look)?;
        Some(&entry.data)
    }

    /// Whether it brings a whole state.
    pub fn is_base(&self) -> bool {
        self.base.is_some()
    }

    /// The message again, for one of so many servers with a log of so many entries; why not,
    /// where no copy of this directory can have sent it.
    pub fn message(self, voters: u64, last: u64) -> Result<Message, &'static str> {
        let kind = KINDS.get(usize::from(self.kind));
        let kind = *kind.ok_or("a message of an unknown kind")?;
        if !(1..=voters).contains(&self.from) {
            return Err("a message of nobody in the list");
        }
        let is_append = kind == MessageType::MsgAppend;
        let after = |at: usize| self.index.checked_add(1 + at as u64);
        let mut entries = self.entries.iter().enumerate();
        if is_append && entries.any(|(at, entry)| Some(entry.index) != after(at)) {
            return Err("entries that do not follow one another");
        }
        let is_look = kind == MessageType::MsgReadIndex;
        if is_look && self.entries.len() != 1 {
            return Err("a question without what it asks");
        }
        if kind == MessageType::MsgHeartbeat && self.commit > last {
            return Err("it knows of entries here that are gone");
        }
        let mut message = Message::default();
        message.set_msg_type(kind);
        message.to = self.to;
        message.from = self.from;
        message.term = self.term;
        message.log_term = self.log_term;
        message.index = self.index;
        let entries: Vec<Entry> = self.entries.into_iter().map(Entry::from).collect();
        message.set_entries(entries.into());
        message.commit = self.commit;
        message.commit_term = self.commit_term;
        if let Some(base) = self.base {
            let mut all = ConfState::default();
            all.set_voters((1..=voters).collect());
            message.set_snapshot(snapshot(base, all));
        }
        message.request_snapshot = self.request_snapshot;
        message.reject = self.reject;
        message.reject_hint = self.reject_hint;
        message.context = self.context.into();
        message.priority = self.priority;
        Ok(message)
    }
}
