//! A directory's questions and answers as values: for whoever asks it over a link, and for
//! directories that are made of them.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Change, Directory, DirectoryError, Entry, LeaseId, Matter, Member, View, Watcher};
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
    Discard(String),
    Begin(LeaseId, Entry),
    EndBegun(String),
    GiveSize(Entry),
}

impl Question {
    /// What it is about.
    pub const fn matter(&self) -> Matter {
        match self {
            Question::Join(..)
            | Question::Renew(_)
            | Question::Leave(_)
            | Question::Members
            | Question::View(_)
            | Question::Propose(..) => Matter::Views,
            Question::Publish(_)
            | Question::Find(_)
            | Question::Entries
            | Question::Withdraw(_)
            | Question::Discard(_)
            | Question::Begin(..)
            | Question::EndBegun(_)
            | Question::GiveSize(_) => Matter::Names,
        }
    }
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
    /// Whether it had its name.
    Withdrawn(bool),
}

/// Why it did not do something: [`DirectoryError`], as far as others need to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Failed {
    LeaseOver,
    Exists(String),
    Missing(String),
    Overtaken(View),
    WrongEpoch {
        current: u64,
        wanted: u64,
    },
    Other(String),
    /// It may have done it.
    Unknown(String),
    InUse(String),
    Begun(String),
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

/// A question, for the thread that has it answered.
pub(crate) struct Asked {
    pub question: Question,
    /// Who waits for the answer.
    pub reply: Sender<Reply>,
    /// Until when.
    pub until: Instant,
}

impl Asked {
    /// Has a thread take a question, and waits for the answer. `put` says whether there is
    /// such a thread.
    ///
    /// # Errors
    /// The time is over, or the thread has dropped the question.
    pub fn wait(
        question: Question,
        patience: Duration,
        put: impl FnOnce(Asked) -> bool,
    ) -> Result<Reply, RecvTimeoutError> {
        let (reply, answer) = mpsc::channel();
        let until = Instant::now() + patience;
        let asked = Asked {
            question,
            reply,
            until,
        };
        if !put(asked) {
            return Err(RecvTimeoutError::Disconnected);
        }
        answer.recv_timeout(patience)
    }
}

/// A directory that takes questions as values. The functions of [`Directory`] follow.
pub(crate) trait Answers: Send + Sync {
    /// Asks. This may wait. What it answers may be [`Reply::Failed`].
    fn ask(&self, question: Question) -> Result<Reply, DirectoryError>;

    /// What errors call it.
    fn name(&self) -> &str;

    /// [`Directory::watch`].
    fn watch(&self, watcher: Watcher) -> Result<(), DirectoryError>;

    /// Asks, for an answer of one kind.
    fn wants<T>(
        &self,
        question: Question,
        take: impl FnOnce(Reply) -> Option<T>,
    ) -> Result<T, DirectoryError>
    where
        Self: Sized,
    {
        match self.ask(question)? {
            Reply::Failed(failed) => Err(failed.error(self.name())),
            reply => take(reply).ok_or_else(|| {
                let what = "an answer that does not fit the question".to_owned();
                DirectoryError::Refused(self.name().to_owned(), what)
            }),
        }
    }
}

/// The answer to what is only to be done.
fn done(reply: Reply) -> Option<()> {
    matches!(reply, Reply::Done).then_some(())
}

impl<T: Answers> Directory for T {
    fn join(
        &self,
        member: &Member,
        lease: Duration,
    ) -> Result<(LeaseId, Duration), DirectoryError> {
        self.wants(Question::Join(member.clone(), lease), |reply| match reply {
            Reply::Joined(lease, length) => Some((lease, length)),
            _ => None,
        })
    }

    fn renew(&self, lease: LeaseId) -> Result<Duration, DirectoryError> {
        self.wants(Question::Renew(lease), |reply| match reply {
            Reply::Renewed(length) => Some(length),
            _ => None,
        })
    }

    fn leave(&self, lease: LeaseId) -> Result<(), DirectoryError> {
        self.wants(Question::Leave(lease), done)
    }

    fn members(&self) -> Result<Vec<Member>, DirectoryError> {
        self.wants(Question::Members, |reply| match reply {
            Reply::Members(members) => Some(members),
            _ => None,
        })
    }

    fn publish(&self, entry: &Entry) -> Result<(), DirectoryError> {
        self.wants(Question::Publish(entry.clone()), done)
    }

    fn find(&self, name: &str) -> Result<Option<Entry>, DirectoryError> {
        self.wants(Question::Find(name.to_owned()), |reply| match reply {
            Reply::Found(entry) => Some(entry),
            _ => None,
        })
    }

    fn entries(&self) -> Result<Vec<Entry>, DirectoryError> {
        self.wants(Question::Entries, |reply| match reply {
            Reply::Entries(entries) => Some(entries),
            _ => None,
        })
    }

    fn begin(&self, lease: LeaseId, entry: &Entry) -> Result<(), DirectoryError> {
        self.wants(Question::Begin(lease, entry.clone()), done)
    }

    fn give_size(&self, entry: &Entry) -> Result<(), DirectoryError> {
        self.wants(Question::GiveSize(entry.clone()), done)
    }

    fn end_begun(&self, key: &str) -> Result<(), DirectoryError> {
        self.wants(Question::EndBegun(key.to_owned()), done)
    }

    fn discard(&self, key: &str) -> Result<(), DirectoryError> {
        self.wants(Question::Discard(key.to_owned()), done)
    }

    fn withdraw(&self, key: &str) -> Result<bool, DirectoryError> {
        self.wants(Question::Withdraw(key.to_owned()), |reply| match reply {
            Reply::Withdrawn(had_name) => Some(had_name),
            _ => None,
        })
    }

    fn view(&self, object: ObjectId) -> Result<Option<View>, DirectoryError> {
        self.wants(Question::View(object), |reply| match reply {
            Reply::Viewed(view) => Some(view),
            _ => None,
        })
    }

    fn propose(&self, lease: LeaseId, view: &View) -> Result<(), DirectoryError> {
        self.wants(Question::Propose(lease, view.clone()), done)
    }

    fn watch(&self, watcher: Watcher) -> Result<(), DirectoryError> {
        Answers::watch(self, watcher)
    }
}

impl Question {
    /// Whether it changes nothing that is agreed on: it reads, or renews a lease.
    pub fn only_looks(&self) -> bool {
        matches!(
            self,
            Question::Renew(_)
                | Question::Members
                | Question::Find(_)
                | Question::Entries
                | Question::View(_)
        )
    }

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
            Question::Withdraw(key) => directory.withdraw(&key).map(Reply::Withdrawn),
            Question::View(object) => directory.view(object).map(Reply::Viewed),
            Question::Propose(lease, view) => directory.propose(lease, &view).map(|()| Reply::Done),
            Question::Discard(key) => directory.discard(&key).map(|()| Reply::Done),
            Question::Begin(lease, entry) => directory.begin(lease, &entry).map(|()| Reply::Done),
            Question::EndBegun(key) => directory.end_begun(&key).map(|()| Reply::Done),
            Question::GiveSize(entry) => directory.give_size(&entry).map(|()| Reply::Done),
        };
        answer.unwrap_or_else(|error| Reply::Failed(error.into()))
    }
}

impl From<DirectoryError> for Failed {
    fn from(error: DirectoryError) -> Failed {
        match error {
            DirectoryError::LeaseOver => Failed::LeaseOver,
            DirectoryError::Exists(what) => Failed::Exists(what),
            DirectoryError::InUse(what) => Failed::InUse(what),
            DirectoryError::Begun(key) => Failed::Begun(key),
            DirectoryError::Missing(what) => Failed::Missing(what),
            DirectoryError::Overtaken(view) => Failed::Overtaken(view),
            DirectoryError::WrongEpoch { current, wanted } => {
                Failed::WrongEpoch { current, wanted }
            }
            DirectoryError::Silent(_, why) => Failed::Unknown(why),
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
            Failed::InUse(what) => DirectoryError::InUse(what),
            Failed::Begun(key) => DirectoryError::Begun(key),
            Failed::Missing(what) => DirectoryError::Missing(what),
            Failed::Overtaken(view) => DirectoryError::Overtaken(view),
            Failed::WrongEpoch { current, wanted } => {
                DirectoryError::WrongEpoch { current, wanted }
            }
            Failed::Other(why) => DirectoryError::Refused(directory.to_owned(), why),
            Failed::Unknown(why) => DirectoryError::Silent(directory.to_owned(), why),
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
