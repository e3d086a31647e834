//! The log of commands that all copies of the directory share, as far as one of them has it:
//! the state that a beginning of it led to, and what came after. It is the storage of the
//! crate `raft`, in types of our own.

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError, util};
use serde::{Deserialize, Serialize};

/// What a server has promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Promise {
    term: u64,
    vote: u64,
    commit: u64,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Logged {
    /// In which term it was made.
    pub term: u64,
    /// Its place.
    pub index: u64,
    /// The command.
    pub data: Vec<u8>,
}

/// The state after all entries up to one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Base {
    /// That entry's place.
    pub index: u64,
    /// In which term it was made.
    pub term: u64,
    /// The state.
    pub state: Vec<u8>,
}

/// The log, and who has a vote: as many servers as there are, from 1 on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Log {
    voters: u64,
    promise: Promise,
    base: Base,
    entries: Vec<Logged>,
}

impl Log {
    /// The empty log of so many servers.
    pub fn new(voters: u64) -> Log {
        Log {
            voters,
            ..Log::default()
        }
    }

    /// What it begins with.
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// How many entries come after that.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The place of the last entry.
    pub fn last(&self) -> u64 {
        self.base.index + self.entries.len() as u64
    }

    /// This is promised from now on.
    pub fn promise(&mut self, hard: &HardState) {
        self.promise = Promise {
            term: hard.term,
            vote: hard.vote,
            commit: hard.commit,
        };
    }

    /// Entries up to this one are agreed upon.
    pub fn commit(&mut self, index: u64) {
        self.promise.commit = index;
    }

    /// These entries follow, in the place of all from the first of them on.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else {
            return;
        };
        let kept = first.index.saturating_sub(self.base.index + 1);
        self.entries.truncate(kept as usize);
        self.entries.extend(entries.iter().map(Logged::from));
    }

    /// It begins with this.
    pub fn begin(&mut self, base: Base) {
        self.promise.commit = self.promise.commit.max(base.index);
        self.entries.clear();
        self.base = base;
    }

    /// It begins with the state after the entry at a place, which is applied.
    pub fn compact(&mut self, index: u64, state: Vec<u8>) {
        let Ok(term) = self.term(index) else {
            return;
        };
        let gone = index - self.base.index;
        self.entries.drain(..gone as usize);
        self.base = Base { index, term, state };
    }

    fn voters(&self) -> ConfState {
        let mut all = ConfState::default();
        all.set_voters((1..=self.voters).collect());
        all
    }
}

impl From<&Entry> for Logged {
    fn from(entry: &Entry) -> Logged {
        Logged {
            term: entry.term,
            index: entry.index,
            data: entry.data.to_vec(),
        }
    }
}

impl From<Logged> for Entry {
    fn from(logged: Logged) -> Entry {
        Entry {
            term: logged.term,
            index: logged.index,
            data: logged.data.into(),
            ..Entry::default()
        }
    }
}

impl From<&Snapshot> for Base {
    fn from(snapshot: &Snapshot) -> Base {
        let about = snapshot.get_metadata();
        Base {
            index: about.index,
            term: about.term,
            state: snapshot.data.to_vec(),
        }
    }
}

/// A base as a snapshot, for so many servers.
pub(super) fn snapshot(base: Base, voters: ConfState) -> Snapshot {
    let mut snapshot = Snapshot {
        data: base.state.into(),
        ..Snapshot::default()
    };
    let about = snapshot.mut_metadata();
    about.index = base.index;
    about.term = base.term;
    about.set_conf_state(voters);
    snapshot
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let hard = HardState {
            term: self.promise.term,
            vote: self.promise.vote,
            commit: self.promise.commit,
            ..HardState::default()
        };
        Ok(RaftState::new(hard, self.voters()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        most: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base.index {
            return Err(Error::Store(StorageError::Compacted));
        }
        let place = |index: u64| (index - self.base.index - 1) as usize;
        let found = self.entries.get(place(low)..place(high));
        let found = found.ok_or(Error::Store(StorageError::Unavailable))?;
        let mut found: Vec<Entry> = found.iter().cloned().map(Entry::from).collect();
        util::limit_size(&mut found, most.into());
        Ok(found)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let Some(after) = index.checked_sub(self.base.index) else {
            return Err(Error::Store(StorageError::Compacted));
        };
        if after == 0 {
            return Ok(self.base.term);
        }
        let entry = self.entries.get(after as usize - 1);
        let entry = entry.ok_or(Error::Store(StorageError::Unavailable))?;
        Ok(entry.term)
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, from: u64, _: u64) -> raft::Result<Snapshot> {
        if self.base.index < from {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        Ok(snapshot(self.base.clone(), self.voters()))
    }
}
