//! What servers say to each other.

use crate::dsm::message::{Access, PageNumber, ServerId};
use serde::{Deserialize, Serialize};

/// The number of a view, counted from zero (the servers as they were before any view).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// Which version of a page it is: each time that the page is given to a kernel to be written it gets a
/// larger one. Two copies of a page with the same version have the same contents.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Version(pub u64);

/// What servers say to each other. Whoever is in a later view drops it; whoever is in an
/// earlier one keeps it until that view comes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message<D> {
    /// The view in which it was sent.
    pub epoch: Epoch,
    /// What is said.
    pub body: Body<D>,
}

/// A fault of a server: it needs a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fault {
    /// Which page.
    pub page: PageNumber,
    /// The server that needs it; whoever sends this may only pass it on.
    pub who: ServerId,
    /// A copy to be read, or the page itself.
    pub access: Access,
    /// The version of the copy that `who` had when it asked; this need not be sent to it.
    pub have: Option<Version>,
    /// How often it was forwarded.
    pub hops: u32,
}

/// What a [`Message`] says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Body<D> {
    /// A page fault, new or forwarded.
    Fault(Fault),
    /// A copy of a page, to be read until it is invalidated.
    Copy {
        /// Which page.
        page: PageNumber,
        /// Its version.
        version: Version,
        /// Who owns the page, as long as there is this copy.
        owner: ServerId,
        /// What it holds.
        data: Option<D>,
    },
    /// A page and its ownership. No server but the receiver and those that read below it has
    /// a copy any more.
    Own {
        /// Which page.
        page: PageNumber,
        /// Its version.
        version: Version,
        /// What it holds; `None` where the receiver said that it has this version.
        data: Option<Option<D>>,
    },
    /// The copy that the sender gave is to be dropped, and all that were made of it.
    Invalidate {
        /// Which page.
        page: PageNumber,
        /// Who will own it.
        owner: ServerId,
    },
    /// The answer to [`Body::Invalidate`]: the copy is gone, and all that were made of it.
    Invalidated {
        /// Which page.
        page: PageNumber,
    },
    /// The page that the receiver waits for cannot be had.
    Lost {
        /// Which page.
        page: PageNumber,
    },
    /// To the least member of a new view: all that the sender knows of.
    Holdings(Vec<Holding>),
    /// From the least member of a new view, when all have reported: who owns what.
    Owners {
        /// Who owns the pages that are not in the list.
        home: ServerId,
        /// Who owns the others.
        owners: Vec<(PageNumber, ServerId)>,
    },
}

/// What a server has of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holding {
    /// Which page.
    pub page: PageNumber,
    /// The version of what it has.
    pub version: Version,
    /// Whether it has contents of it.
    pub contents: bool,
    /// Whether it owns it, be it through one of its kernels.
    pub owner: bool,
}
