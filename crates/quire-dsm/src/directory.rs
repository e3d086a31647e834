//! What servers agree on: which objects there are, which servers live, and who has a part
//! in an object.
//!
//! A directory has three kinds of entries. *Names* lead to objects. *Members* are servers
//! with their addresses, each as long as its lease lives. A *view* says which servers have a
//! part in an object; its epoch grows by one with each, and the step from one epoch to the
//! next is a single transaction, so no two servers can both make the same one, and none
//! whose lease is over can make any.
//!
//! | | holds | for |
//! |---|---|---|
//! | [`Embedded`] | all of it in one server, in memory, names and views also in its store | one server, or a few that ask that one |
//! | [`Remote`] | a link to the server that has it embedded | the others of those few |
//! | [`Replicated`] | it on the disks of all servers of a list | three servers or more; the majority goes on |
//! | [`Etcd`] | it in an etcd cluster | any number of servers; the side of a partition with the majority goes on |
//!
//! Every call may wait, for a disk or the network. A server's event loop asks through a
//! [`Desk`].
//!
//! # Names and keys
//! Each object has a *key*, which never changes, and is what its [`Entry`] calls it: its name
//! with a tilde and hex digits (`grid~8f3a`), which no other object ever gets, or its name alone
//! (`grid`), as those had of servers of before. So whoever uses an object finds it by its
//! key, spelled exactly ([`exact`]: `grid~`, `grid~8f3a`), and everybody else finds by a name
//! what lives. What is only begun has a key, too ([`Directory::begin`]), and the object that is made of
//! it keeps that. An object that is removed gives its name up in one transaction
//! ([`Directory::discard`]), and is forgotten when nobody uses it any more
//! ([`Directory::withdraw`]).
//!
//! # A lease ends on its holder's clock first
//! A [`Lease`] counts from when the last renewal that was answered was *sent*. The directory
//! counts from when it received it, which is later. So a server knows that it is out, and
//! stops its mappings, before any other can see it gone, whatever the network does. Against
//! clocks that run at different speeds a part of the time (one fiftieth) is given away.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use quire_core::dsm::message::ServerId;
use serde::{Deserialize, Serialize};

use crate::store::{Object, ObjectId, StoreError};

pub(crate) mod asked;
pub(crate) mod desk;
mod embedded;
mod endpoints;
mod etcd;
mod http;
mod lease;
mod login;
mod remote;
mod replicated;
mod secured;
mod slots;
mod socket;
mod state;

pub use desk::{Clerk, Delivery, Desk, Errand, Errands, Matter};
pub use embedded::Embedded;
pub use etcd::{Access, Etcd};
pub use lease::{Lease, Renewal};
pub use login::EtcdUser;
pub use remote::Remote;
pub(crate) use replicated::Letter;
pub use replicated::{Inbox, Plan, PlanError, Replicated};
pub use secured::EtcdFiles;
pub use slots::{exact, name_of};

pub use crate::pager::Waker;

/// A server that lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which it is. No two members have the same.
    pub id: ServerId,
    /// Where it listens.
    pub address: String,
}

/// An object, as it is known by its key: `object.is.name`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The object.
    pub object: Object,
    /// The server that it was made on.
    pub home: ServerId,
    /// The store of that server, if it keeps the object there; the server has another number
    /// when it comes back, and the same store.
    #[serde(default, alias = "keeper")]
    pub store: Option<u64>,
    /// It was removed, and goes when nobody uses it any more: its name is free.
    #[serde(default)]
    pub is_removed: bool,
}

impl Entry {
    /// Whether it is begun: it has a name, and no size yet.
    #[must_use]
    pub const fn is_begun(&self) -> bool {
        self.object.is.size.0 == 0
    }
}

/// Who has a part in an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The object.
    pub object: ObjectId,
    /// The first view of an object has 1.
    pub epoch: u64,
    /// The servers.
    pub members: Vec<ServerId>,
    /// Who made this view.
    pub by: ServerId,
}

/// A lease in a directory. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub u64);

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A server is there, or has another address.
    Joined(Member),
    /// A server's lease has ended.
    Left(ServerId),
    /// There is this object, or it was removed and is still used ([`Entry::is_removed`]).
    Published(Entry),
    /// The name, or the exact spelling of a removed one's key, under which there is nothing any
    /// more. Where an object gives its name up, some directories tell of the name, too, before
    /// or after they tell that it was removed; so who hears this asks [`Directory::find`] for
    /// the exact spelling before it believes that the object is gone.
    Withdrawn(String),
    /// An object has a new view.
    Viewed(View),
    /// Changes may have been missed: what is known must be read again. The first that a
    /// watcher hears, as soon as nothing more is missed.
    Missed,
}

/// Why a directory did not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// The directory cannot be reached, or has no majority. Whether something was changed is
    /// unknown.
    #[error(
        "the directory {0} does not answer: {1}; see whether it runs, and whether this machine reaches it"
    )]
    Silent(String, String),
    /// It is not named as it should be.
    #[error("{0}")]
    Misnamed(String),
    /// What it answers makes no sense.
    #[error("the directory {0} refuses: {1}")]
    Refused(String, String),
    /// The lease is over.
    #[error("this server's lease in the directory is over; it must join anew")]
    LeaseOver,
    /// Somebody was there before.
    #[error("{0} is there already")]
    Exists(String),
    /// Another object has this key, as it was removed and is still used.
    #[error("{0} was removed and is still used")]
    InUse(String),
    /// There is nothing of that name.
    #[error("there is no {0}")]
    Missing(String),
    /// An object is begun that has the name; this is its key.
    #[error("an object {} is there already, and has no size yet", name_of(.0))]
    Begun(String),
    /// Somebody else made this view, or a later one.
    #[error("object {} is at epoch {} by server {} already", .0.object, .0.epoch, .0.by.0)]
    Overtaken(View),
    /// The first view of an object has epoch 1, each next one more than the last.
    #[error("epoch {wanted} cannot follow epoch {current}")]
    WrongEpoch {
        /// The epoch of the object's view; 0 where it has none.
        current: u64,
        /// What was proposed.
        wanted: u64,
    },
    /// The embedded directory could not be written down.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A watcher's channel, and what wakes it.
#[derive(Clone)]
pub struct Watcher {
    /// Where changes go.
    pub changes: Sender<Change>,
    /// Called after each.
    pub wake: Waker,
}

impl Watcher {
    /// Tells a change; whether the watcher is still there.
    fn tell(&self, change: Change) -> bool {
        let there = self.changes.send(change).is_ok();
        if there {
            (self.wake)();
        }
        there
    }
}

/// What servers agree on. Everything may wait; each call sees all that ended before it.
pub trait Directory: Send + Sync {
    /// Makes a server a member, for as long as its lease lives; how long that is from now
    /// on, which may be other than what was asked for.
    ///
    /// # Errors
    /// [`DirectoryError::Exists`] where a member with its number lives.
    fn join(&self, member: &Member, lease: Duration)
    -> Result<(LeaseId, Duration), DirectoryError>;

    /// Lets a lease live on; for how long from now on.
    ///
    /// # Errors
    /// [`DirectoryError::LeaseOver`].
    fn renew(&self, lease: LeaseId) -> Result<Duration, DirectoryError>;

    /// Ends a lease, and with it the membership.
    ///
    /// # Errors
    /// Where the directory does not answer.
    fn leave(&self, lease: LeaseId) -> Result<(), DirectoryError>;

    /// The servers that live, by number.
    ///
    /// # Errors
    /// Where the directory does not answer.
    fn members(&self) -> Result<Vec<Member>, DirectoryError>;

    /// Begins an object, which has no size ([`Entry::is_begun`]). It is forgotten with the membership of
    /// its home, whose lease this is, unless it was given a size until then. No other object is ever to
    /// have its key.
    ///
    /// # Errors
    /// As [`Directory::publish`], and [`DirectoryError::LeaseOver`].
    fn begin(&self, lease: LeaseId, entry: &Entry) -> Result<(), DirectoryError>;

    /// Makes an object known in the place of the one that is begun and has its key.
    ///
    /// # Errors
    /// [`DirectoryError::Missing`] where no object has this key, and [`DirectoryError::Exists`] where one
    /// has it that has a size.
    fn give_size(&self, entry: &Entry) -> Result<(), DirectoryError>;

    /// Forgets an object that is begun, by its key.
    ///
    /// # Errors
    /// [`DirectoryError::Missing`] where none is begun that has this key.
    fn end_begun(&self, key: &str) -> Result<(), DirectoryError>;

    /// Makes an object known: its name leads to it, or where it was removed, the exact spelling of
    /// its key.
    ///
    /// # Errors
    /// [`DirectoryError::Exists`] where it lives, and there is one of its name already, and
    /// [`DirectoryError::Begun`] where one of its name is begun.
    /// [`DirectoryError::InUse`] where another one has its key: it can be made known under another.
    fn publish(&self, entry: &Entry) -> Result<(), DirectoryError>;

    /// What is behind a name; by the exact spelling of a key ([`exact`]), the object that has
    /// it, whether it lives or was removed.
    ///
    /// # Errors
    /// Where the directory does not answer.
    fn find(&self, name: &str) -> Result<Option<Entry>, DirectoryError>;

    /// All objects, those that were removed as well: by the names of those that live, and the
    /// exact spellings of the keys of the others, in order.
    ///
    /// # Errors
    /// Where the directory does not answer.
    fn entries(&self) -> Result<Vec<Entry>, DirectoryError>;

    /// Has the object with a key, plain or not, give its name up: it is removed, and found only
    /// by the exact spelling of its key.
    ///
    /// # Errors
    /// [`DirectoryError::Missing`] where no object has this key, it is begun, or that was done before.
    fn discard(&self, key: &str) -> Result<(), DirectoryError>;

    /// Forgets the object with a key, plain or not, and its view, whether it lives or was
    /// removed. Another one that has its name by now stays. Whether it had its name until then.
    ///
    /// # Errors
    /// [`DirectoryError::Missing`] where no object has this key.
    fn withdraw(&self, key: &str) -> Result<bool, DirectoryError>;

    /// An object's view.
    ///
    /// # Errors
    /// Where the directory does not answer.
    fn view(&self, object: ObjectId) -> Result<Option<View>, DirectoryError>;

    /// Makes the next view of an object, if its epoch follows the last one's and the lease
    /// of whoever makes it lives.
    ///
    /// # Errors
    /// [`DirectoryError::Overtaken`] where somebody else was there before. After
    /// [`DirectoryError::Silent`] the view may have been made or not, also later: read it
    /// again until the directory answers.
    fn propose(&self, lease: LeaseId, view: &View) -> Result<(), DirectoryError>;

    /// Tells of changes from now on, until nobody listens.
    ///
    /// # Errors
    /// Where no thread can be started for it.
    fn watch(&self, watcher: Watcher) -> Result<(), DirectoryError>;
}

/// A directory that several threads use.
pub type Shared = Arc<dyn Directory>;

/// What stands against a proposed view, where the current one is this.
fn look_at_epoch(current: Option<&View>, view: &View) -> Result<(), DirectoryError> {
    let epoch = current.map_or(0, |current| current.epoch);
    match current {
        _ if view.epoch == epoch + 1 => Ok(()),
        Some(current) if view.epoch <= epoch => Err(DirectoryError::Overtaken(current.clone())),
        _ => Err(DirectoryError::WrongEpoch {
            current: epoch,
            wanted: view.epoch,
        }),
    }
}
