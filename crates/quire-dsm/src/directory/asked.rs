//! A directory's questions and answers as values, for whoever asks it over a link.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Change, Directory, DirectoryError, Entry, LeaseId, Member, View};
use crate::store::ObjectId;
use quire_core::dsm::message::ServerId;

/// One of the functions of [`Directory`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Question {
    Join(Member, Duration),
    Renew(LeaseId),
    Leave(LeaseId),
    Members,
    Publish(Entry),
    Find(String),
    Entries,
    Withdraw(String),
    View(ObjectId),
    Propose(LeaseId, View),
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    Done,
    Joined(LeaseId, Duration),
    Renewed(Duration),
    Members(Vec<Member>),
    Found(Option<Entry>),
    Entries(Vec<Entry>),
    Viewed(Option<View>),
    Failed(Failed),
}

/// Why it did not do something: [`DirectoryError`], as far as others need to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Failed {
    LeaseOver,
    Exists(String),
    Missing(String),
    Overtaken(View),
    WrongEpoch { current: u64, wanted: u64 },
    Other(String),
}

/// What has changed: [`Change`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum News {
    Joined(Member),
    Left(ServerId),
    Published(Entry),
    Withdrawn(String),
    Viewed(View),
    Missed,
}

impl Question {
    /// Asks a directory. This may wait.
    pub fn ask(self, directory: &dyn Directory) -> Reply {
        let answer = match self {
            Question::Join(member, lease) => directory
                .join(&member, lease)
                .map(|(lease, length)| Reply::Joined(lease, length)),
            Question::Renew(lease) => directory.renew(lease).map(Reply::Renewed),
            Question::Leave(lease) => directory.leave(lease).map(|()| Reply::Done),
            Question::Members => directory.members().map(Reply::Members),
            Question::Publish(entry) => directory.publish(&entry).map(|()| Reply::Done),
            Question::Find(name) => directory.find(&name).map(Reply::Found),
            Question::Entries => directory.entries().map(Reply::Entries),
            Question::Withdraw(name) => directory.withdraw(&name).map(|()| Reply::Done),
            Question::View(object) => directory.view(object).map(Reply::Viewed),
            Question::Propose(lease, view) => directory.propose(lease, &view).map(|()| Reply::Done),
        };
        answer.unwrap_or_else(|error| Reply::Failed(error.into()))
    }
}

impl From<DirectoryError> for Failed {
    fn from(error: DirectoryError) -> Failed {
        match error {
            DirectoryError::LeaseOver => Failed::LeaseOver,
            DirectoryError::Exists(what) => Failed::Exists(what),
            DirectoryError::Missing(what) => Failed::Missing(what),
            DirectoryError::Overtaken(view) => Failed::Overtaken(view),
            DirectoryError::WrongEpoch { current, wanted } => {
                Failed::WrongEpoch { current, wanted }
            }
            other => Failed::Other(other.to_string()),
        }
    }
}

impl Failed {
    /// The error again, for the directory of this name.
    pub fn error(self, directory: &str) -> DirectoryError {
        match self {
            Failed::LeaseOver => DirectoryError::LeaseOver,
            Failed::Exists(what) => DirectoryError::Exists(what),
            Failed::Missing(what) => DirectoryError::Missing(what),
            Failed::Overtaken(view) => DirectoryError::Overtaken(view),
            Failed::WrongEpoch { current, wanted } => {
                DirectoryError::WrongEpoch { current, wanted }
            }
            Failed::Other(why) => DirectoryError::Refused(directory.to_owned(), why),
        }
    }
}

impl From<Change> for News {
    fn from(change: Change) -> News {
        match change {
            Change::Joined(member) => News::Joined(member),
            Change::Left(server) => News::Left(server),
            Change::Published(entry) => News::Published(entry),
            Change::Withdrawn(name) => News::Withdrawn(name),
            Change::Viewed(view) => News::Viewed(view),
            Change::Missed => News::Missed,
        }
    }
}

impl From<News> for Change {
    fn from(news: News) -> Change {
        match news {
            News::Joined(member) => Change::Joined(member),
            News::Left(server) => Change::Left(server),
            News::Published(entry) => Change::Published(entry),
            News::Withdrawn(name) => Change::Withdrawn(name),
            News::Viewed(view) => Change::Viewed(view),
            News::Missed => Change::Missed,
        }
    }
}
